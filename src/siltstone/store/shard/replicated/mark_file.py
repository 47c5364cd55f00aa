"""The file with the mark of a replicated shard: how far its site has stored the shared log.

    0   4  magic `SMRK`
    4   4  CRC-32C of everything after it
    8   8  next serial of the shard
    16  4  length of the mark
    20  4  zero
    24     the mark (`store/writer/replication/marks.py`), then the table of producers

Integers are little endian. The file is replaced after a sync of the segments, never before. So the
segments have everything that the mark says, and they may have more: a restart reads the log behind
the mark again, and recognises the rows that it has by their serials.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Protocol

from crc32c import crc32c

from siltstone.errors import CorruptionError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import create_directories, replace_file
from siltstone.store.slab.manifest import REPLICATION
from siltstone.store.writer.replication.codec import UnreadableRecordError
from siltstone.store.writer.replication.marks import decode_mark, encode_mark
from siltstone.store.writer.replication.producers import Producers
from siltstone.store.writer.replication.rule import LogPosition

_MAGIC: Final = b"SMRK"
_HEAD: Final = struct.Struct("<4sIQII")
_CRC_END: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """The state from which a restart continues."""

    position: LogPosition
    producers: Producers
    next_serial: int


class Marks(Protocol):
    """The storage of the mark of a shard."""

    def read(self) -> Marked | None:
        """Return the mark; None if there is none yet. Raises: CorruptionError."""

    def write(self, marked: Marked) -> None:
        """Replace the mark, durably; everything that it says is stored and synced."""


class MarkFile:
    """The mark of a shard in a file of its own."""

    def __init__(self, fs: FileSystem, database: PurePath, shard: int) -> None:
        self._fs = fs
        self._database = database
        self._shard = shard

    def read(self) -> Marked | None:
        return read_mark(self._fs, self._database, self._shard)

    def write(self, marked: Marked) -> None:
        write_mark(self._fs, self._database, self._shard, marked)


def mark_path(database: PurePath, shard: int) -> PurePath:
    """Return the path of the mark of a shard."""
    return database / REPLICATION / f"{shard}.mark"


def encode_marked(marked: Marked) -> bytes:
    """Return the bytes of the file."""
    mark = encode_mark(marked.position)
    body = mark + marked.producers.encode()
    head = _HEAD.pack(_MAGIC, 0, marked.next_serial, len(mark), 0)
    crc = crc32c(head[_CRC_END:] + body)
    return _MAGIC + crc.to_bytes(4, "little") + head[_CRC_END:] + body


def decode_marked(data: bytes, path: PurePath) -> Marked:
    """Decode the bytes of a file. Raises: CorruptionError."""
    if len(data) < _HEAD.size or data[:4] != _MAGIC:
        raise CorruptionError("not the mark of a replicated shard", path=path)
    _, crc, next_serial, length, _ = _HEAD.unpack_from(data)
    if crc32c(data[_CRC_END:]) != crc:
        raise CorruptionError("the mark does not match its checksum", path=path)
    try:
        return Marked(
            position=decode_mark(data[_HEAD.size : _HEAD.size + length]),
            producers=Producers.decode(data[_HEAD.size + length :]),
            next_serial=next_serial,
        )
    except UnreadableRecordError as exc:
        raise CorruptionError(str(exc), path=path) from exc


def write_mark(fs: FileSystem, database: PurePath, shard: int, marked: Marked) -> None:
    """Replace the mark of a shard, durably, after its segments were synced."""
    path = mark_path(database, shard)
    if not fs.exists(path.parent):
        create_directories(fs, path.parent)
    replace_file(fs, path, encode_marked(marked))


def read_mark(fs: FileSystem, database: PurePath, shard: int) -> Marked | None:
    """Return the mark of a shard; None if it has none yet. Raises: CorruptionError."""
    path = mark_path(database, shard)
    return decode_marked(fs.read(path), path) if fs.exists(path) else None
