"""The bytes of a frame: what one flush writes, as columns that Arrow maps without a copy.

    0   4  magic `SFRM`
    4   4  CRC-32C of everything after it, header and stored body, seeded by the segment
    8   4  length of the frame, header included, a multiple of 8
    12  1  kind: 1 rows, 2 state, 3 hole
    13  1  compression of the body: 0 none, 1 zstd, 2 lz4
    14  2  number of sections
    16  8  first serial
    24  4  number of rows
    28  4  number of streams
    32  8  first timestamp_us
    40  8  last timestamp_us
    48  8  position in the segment that was known to be synced when this frame was written
    56  8  length of the body before compression
    64     body: a table of sections (id u16, width u16, length u32 each), then the sections,
           each at a multiple of 8

Integers are little endian, as Arrow wants them. A row's serial is the first serial plus its index
in the frame; the rows of one stream stand together, in arrival order, so their serials and
timestamps rise. A section that would hold nothing is absent. A state frame opens each segment: it
holds the whole learned structure and the producers. The seed is a secret of the database, so that
no payload can pass for a frame.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c
from librt.strings import BytesWriter, write_i16_le, write_i32_le, write_i64_le
from mypy_extensions import i16, i32, i64

MAGIC: Final = b"SFRM"
HEADER_BYTES: Final = 64
HEADER: Final = struct.Struct("<4sIIBBHQIIqqQQ")
SECTION: Final = struct.Struct("<HHI")
DIRECTORY: Final = struct.Struct("<QIIII")
PRODUCER: Final = struct.Struct("<16sQ")

ROWS: Final = 1
STATE: Final = 2
HOLE: Final = 3

PLAIN: Final = 0
ZSTD: Final = 1
LZ4: Final = 2

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
SECTION_MAX: Final = 15

ROWS_MAX: Final = 1 << 24
# In a smaller frame offsets would save less than it costs to read them.
OFFSET_TIMES_ROWS: Final = 16
BODY_BYTES_MAX: Final = (1 << 31) - (1 << 16)

_PADDING: Final = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")


class FrameFormatError(ValueError):
    """The bytes are no frame; the caller knows the file and says what that means."""


class StreamRows:
    """The rows of one stream in the making: parallel lists, in arrival order.

    Each topic is listed once; `topic_index` says which of them a row has.
    """

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.timestamps: list[int] = []
        self.topics: list[bytes] = []
        self.topic_index: list[int] = []
        self.values: list[bytes] = []
        self.publishers: list[int] = []
        self.flags: list[int] = []
        self.properties: list[bytes] = []

    def clear(self) -> None:
        """Forget the rows, keep the stream."""
        self.timestamps = []
        self.topics = []
        self.topic_index = []
        self.values = []
        self.publishers = []
        self.flags = []
        self.properties = []


class FrameHeader:
    """The first 64 bytes, decoded."""

    def __init__(
        self,
        crc: int,
        length: int,
        kind: int,
        compression: int,
        section_count: int,
        first_serial: int,
        row_count: int,
        stream_count: int,
        first_timestamp_us: int,
        last_timestamp_us: int,
        synced_position: int,
        body_bytes: int,
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


class _SectionWriter:
    """Lays sections one after the other behind a table that is written last."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.widths: list[int] = []
        self.lengths: list[int] = []
        self.sections = BytesWriter()

    def add(self, section_id: int, width: int, data: bytes) -> None:
        if data:
            start: i64 = len(self.sections)
            self.sections.write(data)
            self.close(section_id, width, start)

    def close(self, section_id: int, width: int, start: i64) -> None:
        """Enter what was written since start as a section and pad it."""
        length: i64 = len(self.sections) - start
        self.ids.append(section_id)
        self.widths.append(width)
        self.lengths.append(int(length))
        self.sections.write(_PADDING[int(length & 7)])

    def body(self) -> bytes:
        table = b"".join(
            [
                SECTION.pack(self.ids[i], self.widths[i], self.lengths[i])
                for i in range(len(self.ids))
            ]
        )
        return table + self.sections.getvalue()


def _write_strings(
    writer: _SectionWriter, offsets_id: int, data_id: int, lists: list[list[bytes]]
) -> None:
    """Write the strings of all lists as Arrow's offsets and data; nothing when all are empty."""
    out = writer.sections
    start: i64 = len(out)
    total: i32 = 0
    write_i32_le(out, 0)
    for strings in lists:
        for item in strings:
            total += i32(len(item))
            write_i32_le(out, total)
    if total == 0:
        out.truncate(start)
        return
    writer.close(offsets_id, 4, start)
    start = len(out)
    for strings in lists:
        for item in strings:
            out.write(item)
    writer.close(data_id, 1, start)


def _write_integers(
    writer: _SectionWriter, section_id: int, width: int, lists: list[list[int]]
) -> None:
    """Write non-negative integers in width bytes each."""
    out = writer.sections
    start: i64 = len(out)
    if width == 1:
        for numbers in lists:
            for number in numbers:
                out.append(number)
    elif width == 2:
        for numbers in lists:
            for number in numbers:
                write_i16_le(out, i16(number))
    elif width == 4:
        for numbers in lists:
            for number in numbers:
                write_i32_le(out, i32(number))
    else:
        for numbers in lists:
            for number in numbers:
                write_i64_le(out, i64(number))
    writer.close(section_id, width, start)


def _write_publishers(
    writer: _SectionWriter, dictionary: list[bytes], streams: list[StreamRows]
) -> None:
    """Write who published: a dictionary, and an index a row where there is more than one name."""
    if len(dictionary) > 1:
        _write_strings(writer, PUBLISHER_OFFSETS, PUBLISHERS, [dictionary])
        width = index_width(len(dictionary))
        _write_integers(writer, PUBLISHER_INDEX, width, [stream.publishers for stream in streams])
    elif dictionary:
        writer.add(PUBLISHERS, 1, dictionary[0])


def index_width(count: int) -> int:
    """Return how many bytes an index into so many entries takes, as Arrow's signed integers."""
    if count <= 1 << 7:
        return 1
    return 2 if count <= 1 << 15 else 4


def _write_timestamps(writer: _SectionWriter, streams: list[StreamRows], rows: int) -> None:
    """Write the times: whole in a small frame, else as offsets from the first of the frame."""
    first = streams[0].timestamps[0]
    last = first
    for stream in streams:
        first = min(first, stream.timestamps[0])
        last = max(last, stream.timestamps[-1])
    width = 8 if rows < OFFSET_TIMES_ROWS else offset_width(last - first)
    if width == 8:
        first = 0
    out = writer.sections
    start: i64 = len(out)
    for stream in streams:
        if width == 1:
            for timestamp in stream.timestamps:
                out.append(timestamp - first)
        elif width == 2:
            for timestamp in stream.timestamps:
                write_i16_le(out, i16(timestamp - first))
        elif width == 4:
            for timestamp in stream.timestamps:
                write_i32_le(out, i32(timestamp - first))
        else:
            for timestamp in stream.timestamps:
                write_i64_le(out, i64(timestamp))
    writer.close(TIMESTAMPS, width, start)


def offset_width(span: int) -> int:
    """Return how many bytes offsets up to the span take: u8, i16, i32, or 8 for none at all."""
    if span < 1 << 8:
        return 1
    if span < 1 << 15:
        return 2
    return 4 if span < 1 << 31 else 8


def _write_topic_index(writer: _SectionWriter, streams: list[StreamRows], topics: int) -> None:
    """Write which topic of the frame each row has."""
    width = index_width(topics)
    out = writer.sections
    start: i64 = len(out)
    first: i32 = 0
    for stream in streams:
        if width == 1:
            for number in stream.topic_index:
                out.append(int(first) + number)
        elif width == 2:
            for number in stream.topic_index:
                write_i16_le(out, i16(first + i32(number)))
        else:
            for number in stream.topic_index:
                write_i32_le(out, first + i32(number))
        first += i32(len(stream.topics))
    writer.close(TOPIC_INDEX, width, start)


def encode_rows(
    streams: list[StreamRows], publishers: list[bytes], flags: int, edges: bytes, producers: bytes
) -> tuple[bytes, int]:
    """Build the body of a rows frame; return it with its number of sections.

    The streams come sorted by id. `flags` is what all rows share, or -1 where each stream lists its
    own; the same holds for a single publisher.
    """
    writer = _SectionWriter()
    out = writer.sections
    rows: i32 = 0
    topics: i32 = 0
    for stream in streams:
        # Stream ids use all 64 bits, which a signed writer does not take.
        out.write(stream.stream_id.to_bytes(8, "little"))
        write_i32_le(out, rows)
        write_i32_le(out, i32(len(stream.values)))
        write_i32_le(out, topics)
        write_i32_le(out, i32(len(stream.topics)))
        rows += i32(len(stream.values))
        topics += i32(len(stream.topics))
    writer.close(STREAMS, DIRECTORY.size, 0)
    writer.add(EDGES, 1, edges)
    writer.add(PRODUCERS, 24, producers)
    _write_timestamps(writer, streams, int(rows))
    _write_strings(writer, TOPIC_OFFSETS, TOPICS, [stream.topics for stream in streams])
    _write_topic_index(writer, streams, int(topics))
    _write_strings(writer, VALUE_OFFSETS, VALUES, [stream.values for stream in streams])
    _write_publishers(writer, publishers, streams)
    if flags > 0:
        writer.add(FLAGS, 1, bytes([flags]))
    elif flags < 0:
        _write_integers(writer, FLAGS, 1, [stream.flags for stream in streams])
    if streams[0].properties:
        _write_strings(
            writer, PROPERTY_OFFSETS, PROPERTIES, [stream.properties for stream in streams]
        )
    return writer.body(), len(writer.ids)


def directory_of(streams: list[StreamRows]) -> list[tuple[int, int, int, int, int]]:
    """Return the directory that `encode_rows` writes, as `decode_directory` reads it."""
    directory: list[tuple[int, int, int, int, int]] = []
    rows = 0
    topics = 0
    for stream in streams:
        entry = (stream.stream_id, rows, len(stream.values), topics, len(stream.topics))
        directory.append(entry)
        rows += len(stream.values)
        topics += len(stream.topics)
    return directory


def encode_state(structure: bytes, producers: bytes) -> tuple[bytes, int]:
    """Build the body of a state frame; return it with its number of sections."""
    writer = _SectionWriter()
    writer.add(EDGES, 1, structure)
    writer.add(PRODUCERS, 24, producers)
    return writer.body(), len(writer.ids)


def encode_frame(header: FrameHeader, body: bytes, seed: int) -> bytes:
    """Set length and CRC for the body as it will be stored; return the 64 bytes that precede it."""
    header.length = HEADER_BYTES + len(body)
    packed = HEADER.pack(
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
    )
    header.crc = crc32c(body, crc32c(packed[8:], seed))
    return packed[:4] + header.crc.to_bytes(4, "little") + packed[8:]


def decode_header(view: memoryview, position: int, limit: int) -> FrameHeader | None:
    """Decode the header at position; None where only zeros stand, the clean end.

    Lengths are checked against the limit, so that nothing beyond it is ever touched. The CRC is not
    checked. Raises: FrameFormatError.
    """
    if position + HEADER_BYTES > limit:
        return None
    fields = HEADER.unpack_from(view, position)
    if fields[0] != MAGIC:
        if bytes(view[position : position + HEADER_BYTES]) == bytes(HEADER_BYTES):
            return None
        raise FrameFormatError("no frame starts here")
    header = FrameHeader(
        fields[1],
        fields[2],
        fields[3],
        fields[4],
        fields[5],
        fields[6],
        fields[7],
        fields[8],
        fields[9],
        fields[10],
        fields[11],
        fields[12],
    )
    if header.length < HEADER_BYTES or header.length % 8 or position + header.length > limit:
        raise FrameFormatError(f"impossible frame length {header.length}")
    if not ROWS <= header.kind <= HOLE:
        raise FrameFormatError(f"unknown frame kind {header.kind}")
    return header


def crc_matches(view: memoryview, position: int, header: FrameHeader, seed: int) -> bool:
    """Say whether the bytes of the frame are those that were written."""
    return crc32c(view[position + 8 : position + header.length], seed) == header.crc


class SectionTable:
    """Where the sections of a body are: offset, length and width by section id, -1 where absent."""

    def __init__(self) -> None:
        self.offsets: list[int] = [-1] * (SECTION_MAX + 1)
        self.lengths: list[int] = [0] * (SECTION_MAX + 1)
        self.widths: list[int] = [0] * (SECTION_MAX + 1)


def decode_sections(body: memoryview, start: int, count: int) -> SectionTable:
    """Read the table of sections; offsets are relative to the view. Raises: FrameFormatError."""
    table = SectionTable()
    position = start + count * SECTION.size
    if position > len(body):
        raise FrameFormatError("table of sections runs past the body")
    for i in range(count):
        section_id, width, length = SECTION.unpack_from(body, start + i * SECTION.size)
        if not 0 < section_id <= SECTION_MAX:
            raise FrameFormatError(f"section {section_id} is unknown")
        if table.offsets[section_id] >= 0:
            raise FrameFormatError(f"section {section_id} is there twice")
        table.offsets[section_id] = position
        table.lengths[section_id] = length
        table.widths[section_id] = width
        position += (length + 7) & ~7
    if position > len(body):
        raise FrameFormatError("sections run past the body")
    if table.lengths[STREAMS] % DIRECTORY.size:
        raise FrameFormatError("directory of streams is cut short")
    return table


def decode_directory(view: memoryview, table: SectionTable) -> list[tuple[int, int, int, int, int]]:
    """Return (stream id, first row, rows, first topic, topics) for each stream of a rows frame."""
    offset = table.offsets[STREAMS]
    if offset < 0:
        return []
    return list(DIRECTORY.iter_unpack(view[offset : offset + table.lengths[STREAMS]]))
