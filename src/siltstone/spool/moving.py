"""Copies of entries outside of a spool, to a file on this disk or another one.

The file appears whole, after its reason file, and is synced before the entry is discarded. A crash
leaves the entry, the file or both; repeating the call then completes it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import PurePath

from siltstone.errors import ExistsError, SiltstoneError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import REASON_SUFFIX, TEMPORARY_SUFFIX, replace_file
from siltstone.spool.contents import CHUNK_BYTES, EntryStream
from siltstone.spool.drafts import give_name


def copy_out(
    fs: FileSystem, source: EntryStream, destination: PurePath, reason: str | None = None
) -> None:
    """Copy the data of an entry to a new file, durable when this returns.

    Raises: ExistsError if another file has the name; CorruptionError, StorageFullError: no file is
    created.
    """
    if fs.exists(destination):
        _check_same(fs, source, destination)
        return
    beside = destination.with_name(destination.name + REASON_SUFFIX)
    if reason is not None:
        replace_file(fs, beside, f"{reason}\n".encode())
    temporary = destination.with_name(destination.name + TEMPORARY_SUFFIX)
    if fs.exists(temporary):
        fs.remove(temporary)
    try:
        _copy(fs, source, temporary)
        give_name(fs, temporary, destination)
    except SiltstoneError:
        for path in (temporary, beside) if reason is not None else (temporary,):
            with suppress(SiltstoneError):
                fs.remove(path)
        raise
    if fs.exists(temporary):
        fs.remove(temporary)
    fs.sync_directory(destination.parent)


def _copy(fs: FileSystem, source: EntryStream, target: PurePath) -> None:
    offset = 0
    with fs.create(target) as file:
        while chunk := source.read(CHUNK_BYTES):
            file.write_at(offset, chunk)
            offset += len(chunk)
        file.sync()


def _check_same(fs: FileSystem, source: EntryStream, destination: PurePath) -> None:
    """Make the name of an identical file from an earlier attempt durable.

    Raises: ExistsError if the file is different.
    """
    with fs.open(destination, writable=False) as file:
        offset = 0
        while chunk := source.read(CHUNK_BYTES):
            if file.read_at(offset, len(chunk)) != chunk:
                raise ExistsError(f"the file exists already: path={destination}")
            offset += len(chunk)
        if file.size() != offset:
            raise ExistsError(f"the file exists already: path={destination}")
    fs.sync_directory(destination.parent)
