"""Packs: the small entries of one batch in one file, so that the batch needs one sync.

    the data of the entries, one after the other
    `siltstone pack 1`, then a line for each entry:
        <offset of its data> <length> <CRC-32C of the data and the length, 8 hex digits> <name>
    u64   offset of the line `siltstone pack 1`
    u32   CRC-32C of the lines
    4s    `SPB1`

The last 16 bytes have the same layout as those of an entry with a file of its own. Each entry of a
pack is a hard link to the pack under its own name. Discarding an entry removes its name; removing
the last name removes the data.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from siltstone.errors import CorruptionError
from siltstone.fs.api import File

# A larger entry has a file of its own, so that discarding it frees its space at once.
PACKED_BYTES_MAX: Final = 65_536
# Less than the limit of links to a file, on every file system with hard links.
PACKED_ENTRIES_MAX: Final = 128
_FIRST_LINE: Final = b"siltstone pack 1\n"
_LENGTH: Final = struct.Struct("<Q")
_END: Final = struct.Struct("<QI4s")
_MAGIC: Final = b"SPB1"
END_BYTES: Final = _END.size


class EntryPlace(NamedTuple):
    """The place of an entry's data in a file, and the CRC of the data and their length."""

    offset: int
    length: int
    checksum: int


class Pack:
    """A temporary file with the data of small entries; open until it is sealed."""

    __slots__ = ("file", "parts", "path")

    def __init__(self, file: File) -> None:
        self.file = file
        self.path = file.path
        self.parts: list[EntryPlace] = []

    @property
    def end(self) -> int:
        """The offset of the next entry's data."""
        return self.parts[-1].offset + self.parts[-1].length if self.parts else 0

    def add(self, data: bytes) -> EntryPlace:
        """Write the data of another entry. Raises: StorageFullError."""
        checksum = crc32c(_LENGTH.pack(len(data)), crc32c(data))
        part = EntryPlace(self.end, len(data), checksum)
        self.file.write_at(part.offset, data)
        self.parts.append(part)
        return part

    def seal(self, names: Sequence[str]) -> None:
        """Write the table of entries, sync and close the file.

        An error of the close is raised too.
        """
        self.write_table(self.file, names)
        self.file.sync()
        self.file.close()

    def write_table(self, file: File, names: Sequence[str]) -> None:
        """Write the table of entries after the data. Raises: StorageFullError."""
        pairs = zip(self.parts, names, strict=True)
        lines = [
            b"%d %d %08x %b\n" % (part.offset, part.length, part.checksum, name.encode("ascii"))
            for part, name in pairs
        ]
        table = _FIRST_LINE + b"".join(lines)
        end = self.end
        file.write_at(end, table + _END.pack(end, crc32c(table), _MAGIC))


def find_part(file: File) -> EntryPlace | None:
    """Return the place of an entry's data in a pack; None if the file is not a pack.

    The entry is the one whose name was used to open the file.

    Raises: CorruptionError.
    """
    size = file.size()
    last = file.read_at(size - END_BYTES, END_BYTES) if size >= END_BYTES else b""
    if not last.endswith(_MAGIC):
        return None
    offset, checksum, _ = _END.unpack(last)
    table = file.read_at(offset, max(0, size - END_BYTES - offset))
    if crc32c(table) != checksum or not table.startswith(_FIRST_LINE):
        raise CorruptionError("the table of a pack is damaged", path=file.path, offset=offset)
    for line in table[len(_FIRST_LINE) :].decode("ascii").splitlines():
        place, length, crc, name = line.split(" ")
        if name == file.path.name:
            return EntryPlace(int(place), int(length), int(crc, 16))
    raise CorruptionError("a pack does not hold this entry", path=file.path, offset=offset)
