"""Make a replicated database a local one, in a data directory that no site of a cluster uses.

The rows of a site are already in segments of its own, with their serials, times and generations, so
only the manifest and the marks change. The identity stays, and with it every saved position.

The manifest is replaced first. A crash leaves the database as it was, or as a local one with marks
that mean nothing; the next call removes them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from siltstone.errors import UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import remove_tree, replace_file
from siltstone.store.slab.manifest import MANIFEST, REPLICATION, read_manifest
from siltstone.store.slab.settings import DatabaseSettings


def make_local(fs: FileSystem, directory: PurePath) -> bool:
    """Make the database in a directory a local one; return whether it was a replicated one.

    Raises: UsageError while a copy from another site is being installed; NotFoundError,
    CorruptionError.
    """
    manifest = read_manifest(fs, directory)
    marks = directory / REPLICATION
    left = [entry.name for entry in fs.list(marks)] if fs.exists(marks) else []
    was_replicated = manifest.settings.backend != "local"
    if was_replicated:
        if any(name.endswith(".install") for name in left):
            raise UsageError(
                f"{directory.name} is being replaced by a copy from another site: start the "
                f"broker once more, so that this ends"
            )
        values = manifest.settings.to_json() | {"backend": "local"}
        settings = DatabaseSettings.from_json(values)
        local = replace(manifest, settings=settings)
        replace_file(fs, directory / MANIFEST, local.encode())
    if left or fs.exists(marks):
        remove_tree(fs, marks)
    return was_replicated
