"""The file of a single entry: the data, then 16 bytes that prove that it is complete.

    u64   length of the data
    u32   CRC-32C of the data and the length
    4s    `SPL1`

All integers are little endian. The 16 bytes are at the end because the data may be a stream of
unknown length. Small entries of a batch share a file instead: packs.py.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from typing import Final, Protocol, TypeAlias

from crc32c import crc32c

from siltstone.errors import CorruptionError, UsageError
from siltstone.fs.api import File
from siltstone.spool.packs import EntryPlace, find_part

CHUNK_BYTES: Final = 262_144
_PROOF: Final = struct.Struct("<QI4s")
_LENGTH: Final = struct.Struct("<Q")
_MAGIC: Final = b"SPL1"
PROOF_BYTES: Final = _PROOF.size


class ByteStream(Protocol):
    """A binary stream: the result of `open(…, "rb")`, the file of a socket, an EntryStream."""

    def read(self, size: int, /) -> bytes | None: ...


Source: TypeAlias = bytes | bytearray | memoryview | ByteStream | Iterable[bytes]


def chunks_of(source: Source) -> Iterator[bytes | memoryview]:
    """Yield the data of a source in chunks; a stream is never read into memory as a whole."""
    if isinstance(source, bytes | bytearray | memoryview):
        yield memoryview(source).cast("B")
        return
    given: object = source
    if hasattr(given, "read"):
        while chunk := given.read(CHUNK_BYTES):
            yield _checked(chunk)
    elif isinstance(given, Iterable) and not isinstance(given, str):
        for chunk in given:
            yield _checked(chunk)
    else:
        raise UsageError(
            f"a source must be bytes, a binary stream or an iterator of bytes: "
            f"type={type(source).__name__}"
        )


def _checked(chunk: object) -> bytes | memoryview:
    """Return a chunk of a source. Raises: UsageError if it is not bytes."""
    if isinstance(chunk, bytes):
        return chunk
    if isinstance(chunk, bytearray | memoryview):
        return memoryview(chunk).cast("B")
    raise UsageError(f"a source must yield bytes: type={type(chunk).__name__}")


def proof(length: int, checksum: int) -> bytes:
    """Return the last 16 bytes of a file; checksum is the CRC-32C of the data."""
    return _PROOF.pack(length, crc32c(_LENGTH.pack(length), checksum), _MAGIC)


def part_of(file: File) -> EntryPlace:
    """Return the place of an entry's data in the file that was opened for it.

    Raises: CorruptionError.
    """
    part = find_part(file)
    if part is not None:
        return part
    size = file.size()
    length = size - PROOF_BYTES
    last = file.read_at(length, PROOF_BYTES) if length >= 0 else b""
    if last[: _LENGTH.size] != _LENGTH.pack(max(length, 0)):
        raise CorruptionError("the size of an entry has changed", path=file.path, offset=size)
    _, checksum, magic = _PROOF.unpack(last)
    # Incomplete data has no checksum.
    return EntryPlace(0, length, checksum if magic == _MAGIC else -1)


def unpacked(file: File) -> bytes | None:
    """Return the file of an entry in a pack, as it would be if the entry had a file of its own.

    Return None if the entry is not in a pack.

    Raises: CorruptionError.
    """
    part = find_part(file)
    if part is None:
        return None
    # Use the stored checksum, so that a reader of the copy detects damaged data.
    return file.read_at(part.offset, part.length) + _PROOF.pack(part.length, part.checksum, _MAGIC)


class EntryStream(io.RawIOBase):
    """The data of an entry as an unbuffered stream, checked when its end is read.

    The stream can still be read after the entry was discarded. Reading raises CorruptionError.
    """

    def __init__(self, file: File) -> None:
        super().__init__()
        self._file = file
        self._offset = 0
        self._checksum = 0
        try:
            part = part_of(file)
        except CorruptionError:
            file.close()
            raise
        self.length = part.length
        self._start = part.offset
        self._sum = part.checksum

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        """Read the next bytes; 0 at the end. Raises: CorruptionError."""
        room = memoryview(buffer).cast("B")
        wanted = min(len(room), self.length - self._offset)
        data = self._file.read_at(self._start + self._offset, wanted)
        room[: len(data)] = data
        self._offset += len(data)
        self._checksum = crc32c(data, self._checksum)
        if room and (self._offset == self.length or not data):
            self._check()
        return len(data)

    def _check(self) -> None:
        length = _LENGTH.pack(self._offset)
        if self._offset != self.length or crc32c(length, self._checksum) != self._sum:
            raise CorruptionError(
                "the entry does not match its checksum",
                path=self._file.path,
                offset=self._offset,
            )

    def close(self) -> None:
        """Close the stream and its file."""
        self._file.close()
        super().close()
