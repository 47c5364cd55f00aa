"""Repair a RocksDB database that lost data, so that it opens with everything that is left."""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePath

from siltstone.errors import CorruptionError, DiskError, NotFoundError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import quarantine_file
from siltstone.store.kv.rocks import rebuild, sequence_in
from siltstone.store.kv.wal import set_odd_aside
from siltstone.store.kv.witness import (
    MANIFEST_PREFIX,
    WITNESS,
    check_sequence,
    is_manifest_of,
    read_evidence,
)


def mend(fs: FileSystem, path: PurePath, quarantine: PurePath) -> str:
    """Repair a damaged database, so that it opens with everything that is left. Return a
    description of the repair.

    No process may have it open. Replaced files are moved to quarantine. If the list of files is not
    the one that was written, it is rebuilt from the tables and logs in the directory. Writes that
    are missing at the end stay missing.

    Raises: DiskError, StorageFullError.
    """
    reason = "replaced by `siltstone verify --repair`"
    has_moved = set_odd_aside(fs, path)
    is_listed = _lists_its_files(fs, path)
    if is_listed and _has_every_write(fs, path):
        return "gave it another name" if has_moved else ""
    if not is_listed:
        for entry in fs.list(path):
            if entry.name.startswith(MANIFEST_PREFIX):
                quarantine_file(fs, path / entry.name, quarantine, reason)
        rebuild(path)
    if fs.exists(path / WITNESS):
        quarantine_file(fs, path / WITNESS, quarantine, reason)
    return "accepted" if is_listed else "rebuilt the list of files from the files"


def _lists_its_files(fs: FileSystem, path: PurePath) -> bool:
    """Return whether the MANIFEST is the one that was written, as far as the witness knows."""
    try:
        sequence_in(path)
        with suppress(CorruptionError):
            evidence = read_evidence(fs, path)
            return evidence is None or is_manifest_of(fs, path, evidence)
    except (CorruptionError, DiskError, NotFoundError):
        return False
    # The witness itself is damaged, so it proves nothing.
    return True


def _has_every_write(fs: FileSystem, path: PurePath) -> bool:
    try:
        check_sequence(path, read_evidence(fs, path), sequence_in(path))
    except CorruptionError:
        return False
    return True
