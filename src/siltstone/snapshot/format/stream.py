"""The byte stream of a snapshot: one gzip member with a head, records, and an end record.

    head     8  magic `SILTSNAP`
             4  version, 1
    record   4  length of the body, at most 1 MiB
             4  CRC-32C of kind and body
             1  kind
                body

    content (2)   4  number: 1 for the first content, 2 for the next one
                  1  1 for its last part, 0 if another part follows as the next record
                     up to 256 KiB of it
    end (255)     4  number of contents
                  8  their bytes
                 32  BLAKE2b-256 of all bytes before this record, including the head
                  2  number of kinds that have records
                     kind (1), number of records (8); by kind

Invariants: reading and writing keep only a buffer in memory, if the writer is drained when it is
full. A length is compared with its limit before it is used. A stream that does not reach the end
record, or continues after it, is corrupt. gzip alone does not detect this: it accepts an empty
file, a file followed by zeros, and two files in sequence.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from hashlib import blake2b
from typing import Final

from crc32c import crc32c

from siltstone.errors import CorruptionError, UsageError
from siltstone.fs.api import File
from siltstone.snapshot.format.codec import ABOUT, CONTENT, END
from siltstone.snapshot.format.totals import Totals

MAGIC: Final = b"SILTSNAP"
VERSION: Final = 1
HEAD: Final = struct.Struct("<8sI")
RECORD: Final = struct.Struct("<IIB")
PART: Final = struct.Struct("<IB")
BODY_BYTES_MAX: Final = 1024 * 1024
PART_BYTES: Final = 256 * 1024
_BUFFER_BYTES: Final = 64 * 1024
# The size that is compressed at once: about 0.2 ms of work.
_PIECE_BYTES: Final = 4 * 1024
_GZIP: Final = 16 + zlib.MAX_WBITS
_LEVEL: Final = 6
_KINDS: Final = 256
# The checksum of each kind, from which the checksum of the body continues.
_KIND_CRC: Final = [crc32c(bytes((kind,))) for kind in range(_KINDS)]


class RecordWriter:
    """Writes records to a new file, from its start.

    `write` only buffers and is fast; `drain` and `finish` compress and write to the file. They call
    `rest` after each piece of work.
    """

    def __init__(self, file: File, rest: Callable[[], None] | None = None) -> None:
        self._file = file
        self._rest = rest
        self._size = 0
        self._deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        self._digest = blake2b(digest_size=32)
        self._counts = [0] * _KINDS
        self._buffer: list[bytes] = [HEAD.pack(MAGIC, VERSION)]
        self._buffered = HEAD.size

    @property
    def is_full(self) -> bool:
        """Whether the buffer has reached its limit and must be drained."""
        return self._buffered >= _BUFFER_BYTES

    def write(self, kind: int, body: bytes) -> None:
        """Add one record. Raises: UsageError if it is too large."""
        if len(body) > BODY_BYTES_MAX:
            raise UsageError(
                f"the record is too large for a snapshot: size_bytes={len(body)} "
                f"max={BODY_BYTES_MAX} kind={kind}"
            )
        self._counts[kind] += 1
        self._put(kind, body)

    def write_content(self, number: int, content: bytes) -> None:
        """Add the parts of a content that is not empty; a content of one part is only buffered."""
        for start in range(0, len(content), PART_BYTES):
            if start:
                self.drain()
            part = content[start : start + PART_BYTES]
            is_last = start + PART_BYTES >= len(content)
            self.write(CONTENT, PART.pack(number, is_last) + part)

    def drain(self) -> None:
        """Compress the buffer and write it. Raises: what File.write raises."""
        data = b"".join(self._buffer)
        self._buffer.clear()
        self._buffered = 0
        self._digest.update(data)
        for start in range(0, len(data), _PIECE_BYTES):
            self._store(self._deflate.compress(data[start : start + _PIECE_BYTES]))
            if self._rest is not None:
                self._rest()

    def finish(self, *, contents: int, content_bytes: int) -> Totals:
        """Write the buffer and the end record; the file is complete, but not synced."""
        self.drain()
        totals = Totals(
            contents=contents,
            content_bytes=content_bytes,
            digest=self._digest.digest(),
            counts=_by_kind(self._counts),
        )
        self._put(END, totals.encode())
        self.drain()
        self._store(self._deflate.flush())
        return totals

    def _put(self, kind: int, body: bytes) -> None:
        crc = crc32c(body, _KIND_CRC[kind])
        self._buffer.append(RECORD.pack(len(body), crc, kind))
        self._buffer.append(body)
        self._buffered += RECORD.size + len(body)

    def _store(self, data: bytes) -> None:
        if data:
            self._file.write_at(self._size, data)
            self._size += len(data)


class RecordReader:
    """Reads the records of a file in order; raises CorruptionError at the first invalid one."""

    def __init__(self, file: File) -> None:
        """Read the head. Raises: UsageError for a version newer than this program supports."""
        self._file = file
        self._offset = 0
        self._inflate = zlib.decompressobj(_GZIP)
        self._plain = b""
        self._at = 0
        self._before = 0
        self._digest = blake2b(digest_size=32)
        self._counts = [0] * _KINDS
        self._is_first = True
        self.totals: Totals | None = None
        self._need(HEAD.size)
        magic, version = HEAD.unpack_from(self._plain)
        self._at = HEAD.size
        if magic != MAGIC:
            raise self.corrupt("the file is not a snapshot")
        if version > VERSION:
            raise UsageError(
                f"a newer version of Siltstone wrote the snapshot, use that version: "
                f"path={file.path} version={version} supported=1 to {VERSION}"
            )
        if version < 1:
            raise self.corrupt("invalid version")

    @property
    def plain_bytes(self) -> int:
        """The number of uncompressed bytes that were read."""
        return self._before + self._at

    def corrupt(self, reason: str) -> CorruptionError:
        """Return an error at the current position; its offset is in uncompressed bytes."""
        return CorruptionError(reason, path=self._file.path, offset=self.plain_bytes)

    def next(self) -> tuple[int, bytes] | None:
        """Return kind and body of the next record; None after a correct end record."""
        if self.totals is not None:
            return None
        self._need(RECORD.size)
        length, crc, kind = RECORD.unpack_from(self._plain, self._at)
        if length > BODY_BYTES_MAX:
            raise self.corrupt(f"a record is too large: length={length}")
        self._need(RECORD.size + length)
        start = self._at + RECORD.size
        body = self._plain[start : start + length]
        if crc32c(body, _KIND_CRC[kind]) != crc:
            raise self.corrupt("a record is damaged")
        if kind == END:
            self._end(body)
            return None
        if (kind == ABOUT) is not self._is_first:
            raise self.corrupt("the header record must be the first one, and only once")
        self._is_first = False
        self._counts[kind] += 1
        self._at = start + length
        return kind, body

    def _end(self, body: bytes) -> None:
        try:
            totals = Totals.decode(body)
        except struct.error as exc:
            raise self.corrupt("the end record is damaged") from exc
        self._drop_read()
        if totals.digest != self._digest.digest() or totals.counts != _by_kind(self._counts):
            raise self.corrupt("the records do not match their checksum")
        self._at = RECORD.size + len(body)
        while not self._inflate.eof:
            if self._fill():
                raise self.corrupt("extra bytes after the end record")
        if self._at < len(self._plain) or self._inflate.unused_data:
            raise self.corrupt("extra bytes after the end record")
        if self._file.read_at(self._offset, 1):
            raise self.corrupt("extra bytes after the end of the stream")
        self.totals = totals

    def _need(self, length: int) -> None:
        """Make sure that at least `length` bytes from the current position are in the buffer."""
        while length > len(self._plain) - self._at:
            if not self._fill():
                raise self.corrupt("the snapshot is cut short")

    def _drop_read(self) -> None:
        """Drop the bytes that were read, after adding them to the digest."""
        self._digest.update(self._plain[: self._at])
        self._before += self._at
        self._plain = self._plain[self._at :]
        self._at = 0

    def _fill(self) -> bool:
        """Add more uncompressed bytes to the buffer; return whether there were any."""
        self._drop_read()
        while not self._inflate.eof:
            data = self._inflate.unconsumed_tail
            if not data:
                data = self._file.read_at(self._offset, _BUFFER_BYTES)
                self._offset += len(data)
            try:
                plain = self._inflate.decompress(data, _BUFFER_BYTES)
            except zlib.error as exc:
                raise self.corrupt(f"invalid gzip data: {exc}") from exc
            if plain:
                self._plain += plain
                return True
            if not data:
                raise self.corrupt("the snapshot is cut short")
        return False


def _by_kind(counts: list[int]) -> dict[int, int]:
    """Return the number of records of each kind that has any."""
    return {kind: count for kind, count in enumerate(counts) if count}
