"""The bytes of a frame: the rows of one flush, as columns that Arrow maps without a copy.

    0   4  magic `SFRM`
    4   4  CRC-32C of everything after it, header and stored body, seeded by the segment
    8   4  length of the frame, header included, a multiple of 8
    12  1  kind: 1 rows, 2 state, 3 hole, 4 room
    13  1  compression of the body: 0 none, 1 zstd, 2 lz4; 3 none, and the values are in a room;
           4 zstd in blocks; 5 packed, with another header
    14  2  number of sections
    16  8  first serial
    24  4  number of rows
    28  4  number of streams
    32  8  first timestamp_us
    40  8  last timestamp_us
    48  8  position in the segment up to which data was synced when this frame was written
    56  4  length of the body before compression
    60  4  CRC-32C of the head: bytes 8 to 59, the table of sections, and the streams and edges
           if they are the first sections; 0 if there is none, as in a compressed frame
    64     body: a table of sections (id u16, width u16, length u32 each), then the sections,
           each at a multiple of 8

Integers are little endian, as Arrow requires. The serial of a row is the first serial plus its
index in the frame, except in a compacted frame. The rows of one stream are consecutive and in
arrival order, so their serials and timestamps rise. An empty section is absent. A state frame opens
each segment: it holds the whole learned structure and the producers. The seed is a secret of the
database, so a payload cannot imitate a frame. A room is a range of the segment that a socket fills.
The checksum of a room covers only its header; the frame that refers to the room has the checksum of
its contents.

A packed frame has few rows, and needs a few bytes besides them. It has no table of sections, and no
padding between sections:

    0   4  magic, CRC-32C, length, kind and compression as above; the kind is 1, the compression 5
    14  1  number of rows, at most 127
    15  1  number of streams
    16  8  first serial
    24  8  first timestamp_us; the times of the rows follow one another
    32  4  synced position, divided by 8
    36     body: form, flags, number of topics, number of publishers, one byte each; then sections

It has at least 64 bytes, so that 64 bytes can be read of every frame. `body.py` packs and unpacks
its body. Readers of a single frame unpack it to the body of a plain frame.

A compacted frame has the rows of many frames, sorted by stream, then by topic, then by serial. Its
section of serials says which row has which serial: the first serial plus this number. The serials
of a frame are still those from its first serial on, each once.

With the CRC of the head, a reader can index a frame and trust its streams and edges without reading
its rows. The rows are checked with the whole frame when they are read. `body.py` encodes bodies.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c
from mypy_extensions import i64

MAGIC: Final = b"SFRM"
HEADER_BYTES: Final = 64
HEAD_CRC_OFFSET: Final = 60
HEADER: Final = struct.Struct("<4sIIBBHQIIqqQII")
# The header of a packed frame: magic, CRC, length, kind, compression, rows, streams, first serial,
# first timestamp, synced position in units of 8.
PACKED_HEADER: Final = struct.Struct("<4sIIBBBBQqI")
PACKED_HEADER_BYTES: Final = 36
SECTION: Final = struct.Struct("<HHI")
DIRECTORY: Final = struct.Struct("<QIIII")
PRODUCER: Final = struct.Struct("<16sQ")
PLACE: Final = struct.Struct("<QQII")

ROWS: Final = 1
STATE: Final = 2
HOLE: Final = 3
ROOM: Final = 4

PLAIN: Final = 0
ZSTD: Final = 1
LZ4: Final = 2
# The values are in a room before the frame; the last section has their position.
APART: Final = 3
# Blocks that are compressed one by one: the sections before the values, then the rest in pieces.
BLOCKS: Final = 4
# Few rows, without a table of sections and without padding.
PACKED: Final = 5

STREAMS: Final = 1
EDGES: Final = 2
PRODUCERS: Final = 3
TIMESTAMPS: Final = 4
TOPIC_OFFSETS: Final = 5
TOPICS: Final = 6
VALUE_OFFSETS: Final = 7
VALUES: Final = 8
PUBLISHER_OFFSETS: Final = 9
PUBLISHERS: Final = 10
PUBLISHER_INDEX: Final = 11
FLAGS: Final = 12
PROPERTY_OFFSETS: Final = 13
PROPERTIES: Final = 14
TOPIC_INDEX: Final = 15
VALUES_AT: Final = 16
SERIALS: Final = 17
SECTION_MAX: Final = 17

ROWS_MAX: Final = 1 << 24
BODY_BYTES_MAX: Final = (1 << 31) - (1 << 16)

# A frame with more rows, or with larger rows, is opened by itself: its columns need not be copied.
# But each stream of it is a piece of its own, and a piece costs as much as some hundred rows.
SMALL_ROWS: Final = 2048
SMALL_BYTES: Final = 1 << 16
SMALL_ROW_BYTES: Final = 512
# The bytes of kind and compression.
PLAIN_ROWS: Final = ROWS | PLAIN << 8
PACKED_ROWS: Final = ROWS | PACKED << 8
# A packed frame has at most this many rows, and at most this many bytes of topics, of values, of
# publishers and of properties. A larger frame needs few bytes besides its rows anyway.
PACKED_ROWS_MAX: Final = 127
PACKED_BYTES_MAX: Final = 0xFFFF
# The byte `form` of a packed frame: ends have two bytes; the rows have properties; each row has its
# own flags; there are edges or producers.
WIDE: Final = 1
WITH_PROPERTIES: Final = 2
WITH_FLAGS: Final = 4
WITH_STATE: Final = 8
FORM_MAX: Final = WIDE | WITH_PROPERTIES | WITH_FLAGS | WITH_STATE
_POSITIONS_MAX: Final = 1 << 35
_LOW: Final = 0xFFFF_FFFF
_KINDS: Final = 0xFFFF


class FrameFormatError(ValueError):
    """The bytes are not a valid frame. The caller knows the file and translates the error."""


class FrameHeader:
    """The decoded header of a frame.

    The encoder sets the length and the CRCs, the writer of the segment the synced position. The
    header of a packed frame has no number of sections and no CRC of the head, both are 0.
    """

    def __init__(
        self,
        *,
        kind: int,
        compression: int,
        section_count: int,
        first_serial: int,
        row_count: int,
        stream_count: int,
        first_timestamp_us: int,
        last_timestamp_us: int,
        body_bytes: int,
        crc: int = 0,
        length: int = 0,
        synced_position: int = 0,
    ) -> None:
        self.crc = crc
        self.length = length
        self.kind = kind
        self.compression = compression
        self.section_count = section_count
        self.first_serial = first_serial
        self.row_count = row_count
        self.stream_count = stream_count
        self.first_timestamp_us = first_timestamp_us
        self.last_timestamp_us = last_timestamp_us
        self.synced_position = synced_position
        self.body_bytes = body_bytes
        self.head_crc = 0


def header_bytes(compression: int) -> int:
    """Return how many bytes of a frame are before its body."""
    return PACKED_HEADER_BYTES if compression == PACKED else HEADER_BYTES


def encode_frame(header: FrameHeader, body: bytes, seed: int) -> bytes:
    """Set length and CRCs for the body as it is stored; return the bytes of the header."""
    header.length = header_bytes(header.compression) + len(body)
    header.head_crc = 0
    if header.compression == PACKED:
        return _encode_packed(header, body, seed)
    packed = _pack(header)
    if header.compression in (PLAIN, APART):
        end = _head_end(memoryview(body), 0, header.section_count)
        fixed = packed[:HEAD_CRC_OFFSET]
        header.head_crc = crc32c(body[:end], crc32c(fixed[8:], seed))
        packed = fixed + header.head_crc.to_bytes(4, "little")
    header.crc = crc32c(body, crc32c(packed[8:], seed))
    return packed[:4] + header.crc.to_bytes(4, "little") + packed[8:]


def _pack(header: FrameHeader) -> bytes:
    return HEADER.pack(
        MAGIC,
        0,
        header.length,
        header.kind,
        header.compression,
        header.section_count,
        header.first_serial,
        header.row_count,
        header.stream_count,
        header.first_timestamp_us,
        header.last_timestamp_us,
        header.synced_position,
        header.body_bytes,
        header.head_crc,
    )


def _encode_packed(header: FrameHeader, body: bytes, seed: int) -> bytes:
    """Return the 36 bytes of the header of a packed frame."""
    # A position that is too large for the field counts as unknown.
    synced = header.synced_position if header.synced_position < _POSITIONS_MAX else 0
    packed = PACKED_HEADER.pack(
        MAGIC,
        0,
        header.length,
        header.kind,
        header.compression,
        header.row_count,
        header.stream_count,
        header.first_serial,
        header.first_timestamp_us,
        synced >> 3,
    )
    header.crc = crc32c(body, crc32c(packed[8:], seed))
    return packed[:4] + header.crc.to_bytes(4, "little") + packed[8:]


def _head_end(view: memoryview, start: int, section_count: int) -> int:
    """Return the end of the head of a body that begins at `start`.

    The head is the table of sections, and the streams and edges if they are the first sections.
    """
    end = start + section_count * SECTION.size
    if end > len(view):
        return end
    for number in range(section_count):
        fields = SECTION.unpack_from(view, start + number * SECTION.size)
        section_id: int = fields[0]
        length: int = fields[2]
        if section_id > EDGES:
            break
        end += (length + 7) & ~7
    return end


def decode_header(view: memoryview, position: int, limit: int) -> FrameHeader | None:
    """Decode the header at position; return None if there are only zeros, which is the clean end.

    Lengths are checked against the limit, so nothing beyond it is read. The CRC is not checked.

    Raises: FrameFormatError.
    """
    if position + HEADER_BYTES > limit:
        return None
    fields = HEADER.unpack_from(view, position)
    if fields[0] != MAGIC:
        if bytes(view[position : position + HEADER_BYTES]) == bytes(HEADER_BYTES):
            return None
        raise FrameFormatError("a frame does not begin at this offset")
    if fields[3] == ROWS and fields[4] == PACKED:
        return _decode_packed(view, position, limit)
    header = FrameHeader(
        crc=fields[1],
        length=fields[2],
        kind=fields[3],
        compression=fields[4],
        section_count=fields[5],
        first_serial=fields[6],
        row_count=fields[7],
        stream_count=fields[8],
        first_timestamp_us=fields[9],
        last_timestamp_us=fields[10],
        synced_position=fields[11],
        body_bytes=fields[12],
    )
    header.head_crc = fields[13]
    _check_length(header.length, position, limit)
    if not ROWS <= header.kind <= ROOM:
        raise FrameFormatError(f"unknown frame kind {header.kind}")
    return header


def _decode_packed(view: memoryview, position: int, limit: int) -> FrameHeader:
    """Decode the header of a packed frame, in at least 64 bytes. Raises: FrameFormatError."""
    fields = PACKED_HEADER.unpack_from(view, position)
    rows: int = fields[5]
    first_us: int = fields[8]
    header = FrameHeader(
        crc=fields[1],
        length=fields[2],
        kind=ROWS,
        compression=PACKED,
        section_count=0,
        first_serial=fields[7],
        row_count=rows,
        stream_count=fields[6],
        first_timestamp_us=first_us,
        last_timestamp_us=first_us + rows - 1,
        synced_position=fields[9] << 3,
        body_bytes=fields[2] - PACKED_HEADER_BYTES,
    )
    _check_length(header.length, position, limit)
    if not 0 < rows <= PACKED_ROWS_MAX:
        raise FrameFormatError(f"a packed frame cannot have {rows} rows")
    return header


def _check_length(length: int, position: int, limit: int) -> None:
    if length < HEADER_BYTES or length % 8 or position + length > limit:
        raise FrameFormatError(f"invalid frame length {length}")


def crc_matches(view: memoryview, position: int, header: FrameHeader, seed: int) -> bool:
    """Return whether the bytes of the frame, and its values in a room, match their checksums.

    For a room, only the header is checked. The frame that refers to the room has the checksum of
    its contents.
    """
    end = position + (HEADER_BYTES if header.kind == ROOM else header.length)
    if crc32c(view[position + 8 : end], seed) != header.crc:
        return False
    if header.compression != APART:
        return True
    start, size, crc = values_place(view, position, header)
    return crc32c(view[start : start + size], seed) == crc


def head_matches(view: memoryview, position: int, header: FrameHeader, seed: int) -> bool:
    """Return whether the head of a frame matches its checksum.

    The result is False for a frame without a CRC of the head: check such a frame as a whole.
    """
    if header.head_crc == 0:
        return False
    start = position + HEADER_BYTES
    end = _head_end(view, start, header.section_count)
    if end > position + header.length:
        return False
    fixed = crc32c(view[position + 8 : position + HEAD_CRC_OFFSET], seed)
    return crc32c(view[start:end], fixed) == header.head_crc


def values_place(view: memoryview, position: int, header: FrameHeader) -> tuple[int, int, int]:
    """Return position, size and CRC of values in a room.

    If the stored position or size is invalid, the size is 0 and the CRC -1.
    """
    if header.length < HEADER_BYTES + PLACE.size:
        return position, 0, -1
    fields = PLACE.unpack_from(view, position + header.length - PLACE.size)
    start: int = fields[0]
    size: int = fields[1]
    crc: int = fields[2]
    if start < HEADER_BYTES or start % 8 or size == 0 or start + size > position:
        return position, 0, -1
    return start, size, crc


def encode_room(length: int, first_serial: int, timestamp_us: int, seed: int) -> bytes:
    """Return the 64 bytes of the header of a room; `length` includes them."""
    packed = HEADER.pack(
        MAGIC, 0, length, ROOM, PLAIN, 0, first_serial, 0, 0, timestamp_us, timestamp_us, 0, 0, 0
    )
    return packed[:4] + crc32c(packed[8:], seed).to_bytes(4, "little") + packed[8:]


class SectionTable:
    """The sections of a body: offset, length and width by section id. Absent: offset -1."""

    def __init__(self) -> None:
        self.offsets: list[int] = [-1] * (SECTION_MAX + 1)
        self.lengths: list[int] = [0] * (SECTION_MAX + 1)
        self.widths: list[int] = [0] * (SECTION_MAX + 1)


def decode_sections(body: memoryview, start: int, count: int) -> SectionTable:
    """Read the table of sections; offsets are relative to the view. Raises: FrameFormatError."""
    table = SectionTable()
    position = start + count * SECTION.size
    if position > len(body):
        raise FrameFormatError("the table of sections is longer than the body")
    for i in range(count):
        section_id, width, length = SECTION.unpack_from(body, start + i * SECTION.size)
        if not 0 < section_id <= SECTION_MAX:
            raise FrameFormatError(f"unknown section {section_id}")
        if table.offsets[section_id] >= 0:
            raise FrameFormatError(f"section {section_id} is repeated")
        table.offsets[section_id] = position
        table.lengths[section_id] = length
        table.widths[section_id] = width
        position += (length + 7) & ~7
    if position > len(body):
        raise FrameFormatError("the sections are longer than the body")
    if table.lengths[STREAMS] % DIRECTORY.size:
        raise FrameFormatError("the directory of streams is cut short")
    return table


def decode_directory(view: memoryview, table: SectionTable) -> list[tuple[int, int, int, int, int]]:
    """Return (stream id, first row, rows, first topic, topics) for each stream of a rows frame."""
    offset = table.offsets[STREAMS]
    if offset < 0:
        return []
    return list(DIRECTORY.iter_unpack(view[offset : offset + table.lengths[STREAMS]]))


def find_frames(
    view: memoryview, position: int, limit: int, most: int, *, small: bool
) -> list[int]:
    """Return where plain and packed rows frames begin, as their headers say, from a position on.

    The list ends before another frame; with `small`, also before a frame that is not small. Nothing
    is checked.
    """
    found: list[int] = []
    words = view[: limit & ~7].cast("q")
    place: i64 = position
    end: i64 = limit
    while place + HEADER_BYTES <= end and len(found) < most:
        head: i64 = words[(place >> 3) + 1]
        length: i64 = head & _LOW
        kind: i64 = (head >> 32) & _KINDS
        if kind != PLAIN_ROWS and kind != PACKED_ROWS:  # noqa: PLR1714 - compiled, a tuple is slow
            break
        if length < HEADER_BYTES or length & 7:
            break
        if small and kind == PLAIN_ROWS:
            rows: i64 = words[(place >> 3) + 3]
            rows &= _LOW
            if rows > SMALL_ROWS or (length > SMALL_BYTES and length > SMALL_ROW_BYTES * rows):
                break
        found.append(place)
        place += length
    return found


def count_whole(
    view: memoryview,
    positions: list[int],
    ends: list[int],
    checksums: list[int],
    checked: list[int],
    seed: int,
) -> int:
    """Return how many frames, from the first on, have the checksum of their header.

    A frame whose number in `checked` is not 0 is not checked again. All are checked if the list is
    empty.
    """
    known = len(checked) > 0
    for number in range(len(positions)):
        if known and checked[number]:
            continue
        if crc32c(view[positions[number] + 8 : ends[number]], seed) != checksums[number]:
            return number
    return len(positions)


def count_trusted(
    view: memoryview,
    positions: list[int],
    head_ends: list[int],
    head_checksums: list[int],
    ends: list[int],
    checksums: list[int],
    seed: int,
) -> int:
    """Return how many frames, from the first on, have the checksum of their head.

    A frame without a checksum of its head, or with another one, is checked as a whole.
    """
    for number in range(len(positions)):
        position = positions[number]
        checksum = head_checksums[number]
        if checksum:
            fixed = crc32c(view[position + 8 : position + HEAD_CRC_OFFSET], seed)
            if crc32c(view[position + HEADER_BYTES : head_ends[number]], fixed) == checksum:
                continue
        if crc32c(view[position + 8 : ends[number]], seed) != checksums[number]:
            return number
    return len(positions)
