"""Encode parallel lists as the body of a frame: columns that Arrow maps. Compiled.

The streams are sorted by id; the rows of each stream are in order of arrival. Empty sections are
omitted. `frame.py` describes the format.
"""

from __future__ import annotations

from typing import Final

from librt.strings import (
    BytesWriter,
    read_i32_le,
    read_i64_le,
    write_i16_le,
    write_i32_le,
    write_i64_le,
)
from mypy_extensions import i16, i32, i64

from siltstone.store.segment.frame import (
    DIRECTORY,
    EDGES,
    FLAGS,
    PRODUCERS,
    PROPERTIES,
    PROPERTY_OFFSETS,
    PUBLISHER_INDEX,
    PUBLISHER_OFFSETS,
    PUBLISHERS,
    STREAMS,
    TIMESTAMPS,
    TOPIC_INDEX,
    TOPIC_OFFSETS,
    TOPICS,
    VALUE_OFFSETS,
    VALUES,
)

# In a smaller frame, offsets save less than they cost to read.
OFFSET_TIMES_ROWS: Final = 16
_PADDING: Final = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")


class StreamRows:
    """The rows of one stream before they are encoded, in arrival order.

    The caller calls `add` for each row, and then sets the columns that only some frames have.

    Each topic is listed once; a row has the number of its topic. Times and topic numbers are stored
    as bytes from the start: as Python integers they would be two objects for each row.
    """

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id
        self.topics: list[bytes] = []
        self.values: list[bytes] = []
        self.times = BytesWriter()
        self.topic_numbers = BytesWriter()
        self.publishers: list[int] = []
        self.flags: list[int] = []
        self.properties: list[bytes] = []

    def add(self, timestamp_us: i64, topic_number: i32, value: bytes) -> None:
        """Add a row that has one of the listed topics."""
        write_i64_le(self.times, timestamp_us)
        write_i32_le(self.topic_numbers, topic_number)
        self.values.append(value)

    def timestamps(self) -> list[int]:
        """Return the time of each row."""
        data = self.times.getvalue()
        return [int(read_i64_le(data, 8 * i)) for i in range(len(self.values))]

    def row_topics(self) -> list[bytes]:
        """Return the topic of each row."""
        data = self.topic_numbers.getvalue()
        topics = self.topics
        return [topics[read_i32_le(data, 4 * i)] for i in range(len(self.values))]


class _SectionWriter:
    """Writes sections one after another, behind a table that is complete only at the end.

    Each byte of a string is copied once, when all parts are joined.
    """

    def __init__(self) -> None:
        self.table = BytesWriter()
        self.count = 0
        # The first part is reserved for the table.
        self.parts: list[bytes] = [b""]

    def add(self, section_id: int, width: int, data: bytes) -> None:
        """Write a section, unless it is empty."""
        if data:
            self.parts.append(data)
            self.close(section_id, width, len(data))

    def close(self, section_id: int, width: int, length: int) -> None:
        """Add the parts that were just written to the table as one section, and pad it."""
        write_i16_le(self.table, i16(section_id))
        write_i16_le(self.table, i16(width))
        write_i32_le(self.table, i32(length))
        self.count += 1
        self.parts.append(_PADDING[length & 7])

    def body(self) -> bytes:
        """Return the whole body: the table and the sections."""
        self.parts[0] = self.table.getvalue()
        return b"".join(self.parts)


def _write_strings(
    writer: _SectionWriter, offsets_id: int, data_id: int, lists: list[list[bytes]]
) -> None:
    """Write the strings of all lists as Arrow's offsets and data; nothing when all are empty."""
    offsets = BytesWriter()
    total: i32 = 0
    write_i32_le(offsets, 0)
    for strings in lists:
        for item in strings:
            total += i32(len(item))
            write_i32_le(offsets, total)
    if total == 0:
        return
    writer.add(offsets_id, 4, offsets.getvalue())
    for strings in lists:
        writer.parts += strings
    writer.close(data_id, 1, int(total))


def _write_integers(
    writer: _SectionWriter, section_id: int, width: int, lists: list[list[int]]
) -> None:
    """Write non-negative integers in `width` bytes each: 1, 2 or 4."""
    out = BytesWriter()
    for numbers in lists:
        if width == 1:
            for number in numbers:
                out.append(number)
        elif width == 2:
            for number in numbers:
                write_i16_le(out, i16(number))
        else:
            for number in numbers:
                write_i32_le(out, i32(number))
    writer.add(section_id, width, out.getvalue())


def _write_publishers(
    writer: _SectionWriter, dictionary: list[bytes], streams: list[StreamRows]
) -> None:
    """Write the publishers: a dictionary, and an index for each row if there are several names."""
    if len(dictionary) > 1:
        _write_strings(writer, PUBLISHER_OFFSETS, PUBLISHERS, [dictionary])
        width = index_width(len(dictionary))
        _write_integers(writer, PUBLISHER_INDEX, width, [stream.publishers for stream in streams])
    elif dictionary:
        writer.add(PUBLISHERS, 1, dictionary[0])


def index_width(count: int) -> int:
    """Return the width in bytes of an index into `count` entries, as Arrow's signed integers."""
    if count <= 1 << 7:
        return 1
    return 2 if count <= 1 << 15 else 4


def _write_timestamps(writer: _SectionWriter, streams: list[StreamRows], rows: int) -> None:
    """Write the times: in full in a small frame, else as offsets from the frame's first time."""
    columns = [stream.times.getvalue() for stream in streams]
    first = read_i64_le(columns[0], 0)
    last = first
    for column in columns:
        # Rows are in order of arrival, so they are in order of time.
        first = min(first, read_i64_le(column, 0))
        last = max(last, read_i64_le(column, len(column) - 8))
    width = 8 if rows < OFFSET_TIMES_ROWS else offset_width(int(last - first))
    if width == 8:
        writer.add(TIMESTAMPS, 8, b"".join(columns))
        return
    out = BytesWriter()
    for column in columns:
        size: i64 = len(column)
        for at in range(i64(0), size, 8):
            offset = read_i64_le(column, at) - first
            if width == 1:
                out.append(int(offset))
            elif width == 2:
                write_i16_le(out, i16(offset))
            else:
                write_i32_le(out, i32(offset))
    writer.add(TIMESTAMPS, width, out.getvalue())


def offset_width(span: int) -> int:
    """Return the bytes of an offset up to the span: u8, i16, i32; 8 means full timestamps."""
    if span < 1 << 8:
        return 1
    if span < 1 << 15:
        return 2
    return 4 if span < 1 << 31 else 8


def _write_topic_index(writer: _SectionWriter, streams: list[StreamRows], topics: int) -> None:
    """Write the topic number of each row."""
    width = index_width(topics)
    out = BytesWriter()
    first: i32 = 0
    for stream in streams:
        column = stream.topic_numbers.getvalue()
        size: i64 = len(column)
        for at in range(i64(0), size, 4):
            number = first + read_i32_le(column, at)
            if width == 1:
                out.append(int(number))
            elif width == 2:
                write_i16_le(out, i16(number))
            else:
                write_i32_le(out, number)
        first += i32(len(stream.topics))
    writer.add(TOPIC_INDEX, width, out.getvalue())


def encode_rows(
    streams: list[StreamRows], publishers: list[bytes], flags: int, edges: bytes, producers: bytes
) -> tuple[bytes, int]:
    """Build the body of a rows frame; return it with its number of sections.

    The streams are sorted by id. `flags` is the value that all rows share, or -1 if each stream
    lists its own flags. A single publisher is stored once in the same way.
    """
    writer = _SectionWriter()
    directory = BytesWriter()
    rows: i32 = 0
    topics: i32 = 0
    for stream in streams:
        # Stream ids use all 64 bits, and the writer of signed integers does not accept them.
        directory.write(stream.stream_id.to_bytes(8, "little"))
        write_i32_le(directory, rows)
        write_i32_le(directory, i32(len(stream.values)))
        write_i32_le(directory, topics)
        write_i32_le(directory, i32(len(stream.topics)))
        rows += i32(len(stream.values))
        topics += i32(len(stream.topics))
    writer.add(STREAMS, DIRECTORY.size, directory.getvalue())
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
    return writer.body(), writer.count


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
    return writer.body(), writer.count
