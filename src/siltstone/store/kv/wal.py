"""Distinguish a torn log from a damaged one, before RocksDB reads it.

RocksDB ends its write-ahead log at the first invalid record. That is right for a record that a
power cut tore. But if an earlier record was damaged later, acknowledged writes are lost. The cases
can be distinguished: every write is synced before the next one begins. A valid record that begins
after an invalid one therefore shows that the invalid one was valid before.

The log, little endian, in blocks of 32 KiB whose last few bytes may be zeros:

    CRC-32C of type and data, masked u32 | length u16 | type u8 | data

    type 1 a whole record, 2 its first part, 3 a middle one, 4 its last; 0 is space not written yet
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from crc32c import crc32c

from siltstone.errors import CorruptionError, NotFoundError
from siltstone.fs.api import EntryKind, FileSystem
from siltstone.fs.publish import move_aside

LOG_SUFFIX: Final = ".log"
TABLE_SUFFIX: Final = ".sst"
BLOCK_BYTES: Final = 32 * 1024

_HEADER: Final = struct.Struct("<IHB")
# A record of the log is a batch: the sequence number of its first key, and its number of keys.
_BATCH: Final = struct.Struct("<QI")
_WHOLE: Final = 1
_FIRST: Final = 2
_MASK: Final = 0xA282EAD8
_U32: Final = 0xFFFFFFFF
_CURRENT: Final = "CURRENT"
_LOOKS: Final = 3
_READ_BYTES: Final = 32 * BLOCK_BYTES


def set_odd_aside(fs: FileSystem, directory: PurePath) -> bool:
    """Rename pipes, links and devices with a name that RocksDB opens: it would wait for a pipe for
    ever.

    Only for the process that writes. Return whether there was any.
    """
    names = _odd_names(fs, directory)
    for name in names:
        move_aside(fs, directory / name)
    return bool(names)


def _odd_names(fs: FileSystem, directory: PurePath) -> list[str]:
    return [
        entry.name
        for entry in fs.list(directory)
        if entry.kind is EntryKind.OTHER and entry.name.endswith((LOG_SUFFIX, TABLE_SUFFIX))
    ]


def check_logs(fs: FileSystem, directory: PurePath) -> None:
    """Check the logs in a directory of RocksDB, the oldest first.

    Raises: CorruptionError if a record that had been synced is damaged, and for a pipe or link that
    RocksDB would open.
    """
    for name in _odd_names(fs, directory):
        raise CorruptionError(
            f"{name} must be a regular file, not a pipe, link or device: move it away",
            path=directory / name,
        )
    names = sorted(
        entry.name
        for entry in fs.list(directory)
        if entry.kind is EntryKind.FILE and entry.name.endswith(LOG_SUFFIX)
    )
    bad: tuple[PurePath, int] | None = None
    for name in names:
        path = directory / name
        for offset, begins, sound in _records(fs, path):
            if not sound:
                bad = bad or (path, offset)
            elif begins and bad is not None:
                raise CorruptionError(
                    "a record of the log is damaged before valid records: restore the file from "
                    "a backup",
                    path=bad[0],
                    offset=bad[1],
                )


def last_sequence(fs: FileSystem, directory: PurePath) -> int:
    """Return the number of the last key in the newest log that has one, 0 if none has."""
    names = [entry.name for entry in fs.list(directory) if entry.name.endswith(LOG_SUFFIX)]
    for name in sorted(names, reverse=True):
        last = 0
        with fs.open(directory / name, writable=False) as file:
            for offset, begins, sound in _records(fs, directory / name):
                if not sound:
                    break
                if begins:
                    head = file.read_at(offset + _HEADER.size, _BATCH.size)
                    if len(head) == _BATCH.size:
                        first, keys = _BATCH.unpack(head)
                        last = first + keys - 1
        if last:
            return last
    return 0


def has_begun(fs: FileSystem, directory: PurePath) -> bool:
    """Return whether RocksDB has files in a directory."""
    return fs.exists(directory) and (
        fs.exists(directory / _CURRENT) or bool(_contents(fs, directory))
    )


def check_begin(fs: FileSystem, directory: PurePath) -> None:
    """Refuse a directory with tables or logs but without CURRENT: RocksDB would create a new
    database in it, and remove these files.

    Raises: CorruptionError.
    """
    if not fs.exists(directory / _CURRENT) and _contents(fs, directory):
        raise CorruptionError(
            "the file CURRENT of RocksDB is missing: restore it from a backup",
            path=directory / _CURRENT,
            offset=0,
        )


def _contents(fs: FileSystem, directory: PurePath) -> list[str]:
    """Return the names of the files that hold keys."""
    return [
        entry.name
        for entry in fs.list(directory)
        if entry.kind is EntryKind.FILE and entry.name.endswith((LOG_SUFFIX, TABLE_SUFFIX))
    ]


def check_live_logs(fs: FileSystem, directory: PurePath) -> None:
    """Check the logs in a directory of RocksDB that another process may be writing to.

    Raises: CorruptionError, like `check_begin` and `check_logs`.
    """
    check_begin(fs, directory)
    for _ in range(_LOOKS - 1):
        try:
            check_logs(fs, directory)
        except (CorruptionError, NotFoundError):
            # Data that was just being written, or moved to tables, is complete at the next attempt.
            continue
        return
    check_logs(fs, directory)


def _records(fs: FileSystem, path: PurePath) -> Iterator[tuple[int, bool, bool]]:
    """Yield the offset of each part of a record, whether a record begins there, and whether the
    part is valid.

    After a part with an impossible length the rest of its block cannot be read; the next block can.
    """
    with fs.open(path, writable=False) as file:
        offset = 0
        while chunk := file.read_at(offset, _READ_BYTES):
            for start in range(0, len(chunk), BLOCK_BYTES):
                block = chunk[start : start + BLOCK_BYTES]
                for place, begins, sound in _parts(block):
                    yield offset + start + place, begins, sound
            offset += len(chunk)


def _parts(block: bytes) -> Iterator[tuple[int, bool, bool]]:
    place = 0
    while place + _HEADER.size <= len(block):
        masked, length, kind = _HEADER.unpack_from(block, place)
        end = place + _HEADER.size + length
        # Zeros are preallocated space, or a lost page: invalid like the rest.
        if kind == 0 or end > len(block):
            yield place, False, False
            return
        sound = masked == _masked(crc32c(block[place + 6 : end]))
        yield place, kind in (_WHOLE, _FIRST), sound
        # After an invalid part with a possible length, the next part is read.
        place = end


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + _MASK) & _U32
