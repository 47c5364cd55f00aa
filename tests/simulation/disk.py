"""The files of a simulated site: one file of frames, each a message that counted and its mark."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Final

from crc32c import crc32c

from siltstone.errors import NotFoundError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.publish import replace_file
from siltstone.store.writer.replication.codec import decode, decode_change
from siltstone.store.writer.replication.marks import decode_mark, encode_mark
from siltstone.store.writer.replication.messages import (
    NO_DIGEST,
    LogIdentity,
    MessageKind,
    RecordChange,
    RecordMessage,
    Term,
)
from siltstone.store.writer.replication.producers import Producers
from siltstone.store.writer.replication.rule import LogPosition

FILE: Final = PurePath("/shard")
FRAME: Final = struct.Struct("<IIH")

Row = tuple[str, int]


@dataclass
class Found:
    """What a file holds: everything that a site needs to continue behind its last mark."""

    position: LogPosition
    producers: Producers = field(default_factory=Producers)
    parts: list[bytes] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    # The chain at each index; index 0 is before GENESIS.
    chains: list[bytes] = field(default_factory=lambda: [NO_DIGEST])
    end: int = 0


def rows_of(change: RecordChange | None) -> list[Row]:
    """Return the rows, or the transactions, in a change."""
    if change is None or change.kind not in {MessageKind.ROWS, MessageKind.KV}:
        return []
    lines = change.payload.decode().split()
    return [(name, int(number)) for name, number in (line.split(":") for line in lines)]


def frame(mark: LogPosition, data: bytes) -> bytes:
    """Return the bytes of one frame."""
    head = encode_mark(mark)
    body = head + data
    return FRAME.pack(len(body), crc32c(body), len(head)) + body


def scan(data: bytes, identity: LogIdentity) -> Found:
    """Read frames up to the first one that is torn."""
    found = Found(LogPosition(identity=identity))
    while True:
        start = found.end + FRAME.size
        if start > len(data):
            return found
        length, crc, head = FRAME.unpack_from(data, found.end)
        body = data[start : start + length]
        if not length or len(body) < length or crc32c(body) != crc:
            return found
        found.end = start + length
        found.position = decode_mark(body[:head])
        found.chains.append(found.position.chain)
        take(found, body[head:])


def take(found: Found, data: bytes) -> None:
    """Apply the message of one frame."""
    message = decode(data)
    if isinstance(message, Term):
        found.parts.clear()
    if not isinstance(message, RecordMessage):
        return
    if message.kind in {MessageKind.FENCE, MessageKind.BARRIER}:
        found.producers.count(decode_change(message.kind, message.body))
        return
    found.parts.append(message.body)
    if message.part == message.parts:
        change = decode_change(message.kind, b"".join(found.parts))
        found.parts.clear()
        found.producers.count(change)
        found.rows += rows_of(change)


class Disk:
    """The disk of one site. `crash` returns the disk that the next start finds."""

    def __init__(self, fs: MemoryFileSystem | None = None) -> None:
        self.fs = MemoryFileSystem() if fs is None else fs
        # The sequence of the last mark that was written.
        self.last_mark = 0
        if fs is None:
            self.fs.create(FILE).close()
            self.fs.sync_directory(FILE.parent)

    def append(self, mark: LogPosition, data: bytes) -> None:
        with self.fs.open(FILE, writable=True) as file:
            file.write(frame(mark, data))
        self.last_mark = mark.sequence

    def sync(self) -> None:
        with self.fs.open(FILE, writable=True) as file:
            file.sync()

    def recover(self, identity: LogIdentity) -> Found:
        """Return what survived, and cut the rest off."""
        found = scan(self.fs.read(FILE), identity)
        with self.fs.open(FILE, writable=True) as file:
            file.truncate(found.end)
            file.sync()
        self.last_mark = found.position.sequence
        return found

    def synced_bytes(self) -> bytes:
        """Return what a power cut now would certainly leave."""
        try:
            return self.fs.crash_clone().read(FILE)
        except NotFoundError:
            return b""

    def replace(self, data: bytes, mark: LogPosition) -> None:
        replace_file(self.fs, FILE, data)
        self.last_mark = mark.sequence
