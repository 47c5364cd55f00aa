"""Records that change only the manifest: drops and settings.

The records of several shards are stored by one change of the manifest, because it is one file that
may be large.
"""

from __future__ import annotations

from siltstone.store.log.records import DropRecord, SettingsRecord
from siltstone.store.slab.manifest import Manifest, ManifestFile
from siltstone.store.writer.commit_log import Record


class ManifestChange:
    """The replica of one change. It belongs to one thread."""

    def __init__(self, manifest: ManifestFile) -> None:
        self._manifest = manifest
        self._staged: list[DropRecord | SettingsRecord] = []

    def store(self, record: Record) -> None:
        """Stage a record; `sync` writes it."""
        assert isinstance(record, DropRecord | SettingsRecord)
        self._staged.append(record)

    def sync(self) -> None:
        """Replace the manifest by one with all staged records, durably.

        Raises: the errors of `ManifestFile.update`; UsageError for impossible settings.
        """
        staged, self._staged = self._staged, []
        if staged:
            self._manifest.update(lambda manifest: _with(manifest, staged))

    def publish(self) -> None:
        """Do nothing: the caller tells readers about dropped slabs."""


def _with(manifest: Manifest, records: list[DropRecord | SettingsRecord]) -> Manifest:
    for record in records:
        manifest = record.change(manifest)
    return manifest
