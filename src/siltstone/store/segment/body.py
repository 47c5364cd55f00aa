"""Encode parallel lists as the body of a frame: columns that Arrow maps. Compiled.

The streams are sorted by id; the rows of each stream are in order of arrival. Empty sections are
omitted. `frame.py` describes the format.

The body of a packed frame, which has few rows, has these sections one after another:

    1 byte each: form, flags of all rows, number of topics, number of publishers
    u64 a stream: its id
    u32 bytes of edges, u32 bytes of producers; only if there are any
    ends, u8 or u16 each: of the topics, the values, the publishers, and the properties if there are
    u8 a stream: where its rows end, and then u8 a stream: where its topics end; only of several
    u8 a row: µs after the first time; only of several streams, else it is the number of the row
    u8 a row: number of its topic; only if there are several topics, and fewer than rows
    u8 a row: number of its publisher; only of several publishers
    u8 a row: flags; only if the rows have different ones
    topics, values, publishers, properties, edges, producers
    zeros up to a multiple of 8, and at least 64 bytes
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
    FORM_MAX,
    HEADER_BYTES,
    PACKED_BYTES_MAX,
    PACKED_HEADER_BYTES,
    PACKED_ROWS_MAX,
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
    WIDE,
    WITH_FLAGS,
    WITH_PROPERTIES,
    WITH_STATE,
    FrameFormatError,
    FrameHeader,
)

# In a smaller frame, offsets save less than they cost to read.
OFFSET_TIMES_ROWS: Final = 16
_NARROW_MAX: Final = 0xFF
# The columns of strings that every packed frame has.
_ALWAYS: Final = 3
# The bytes of a packed body before its sections.
_FORM_BYTES: Final = 4
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


def pack_rows(
    streams: list[StreamRows],
    publishers: list[bytes],
    flags: int,
    edges: bytes,
    producers: bytes,
    first_us: int,
) -> bytes | None:
    """Build the body of a packed frame; return None if the rows do not fit in one.

    The arguments are those of `encode_rows`, and the time of the first row.
    """
    columns = _columns_of(streams, publishers)
    topics, rows = _count(columns[0]), _count(columns[1])
    if rows > PACKED_ROWS_MAX:
        return None
    most = _largest(columns)
    if most > PACKED_BYTES_MAX:
        return None
    wide = most > _NARROW_MAX
    with_state = len(edges) + len(producers) > 0
    out = BytesWriter()
    out.append(_form_of(wide, len(columns) > _ALWAYS, flags < 0, with_state))
    out.append(max(flags, 0))
    out.append(topics)
    out.append(len(publishers))
    for stream in streams:
        out.write(stream.stream_id.to_bytes(8, "little"))
    if with_state:
        write_i32_le(out, i32(len(edges)))
        write_i32_le(out, i32(len(producers)))
    for column in columns:
        _pack_ends(out, column, wide=wide)
    if len(streams) > 1:
        _pack_counts(out, columns[1])
        _pack_counts(out, columns[0])
    if not _pack_times(out, streams, first_us, rows):
        return None
    if topics > 1 and not _pack_topic_numbers(out, streams, write=topics < rows):
        return None
    if len(publishers) > 1:
        _pack_bytes(out, [stream.publishers for stream in streams])
    if flags < 0:
        _pack_bytes(out, [stream.flags for stream in streams])
    for column in columns:
        _pack_strings(out, column)
    out.write(edges)
    out.write(producers)
    size = PACKED_HEADER_BYTES + len(out)
    out.write(bytes(_packed_bytes(size) - size))
    return out.getvalue()


def _form_of(wide: bool, with_properties: bool, with_flags: bool, with_state: bool) -> int:
    form = WIDE if wide else 0
    if with_properties:
        form |= WITH_PROPERTIES
    if with_flags:
        form |= WITH_FLAGS
    return form | WITH_STATE if with_state else form


def _columns_of(streams: list[StreamRows], publishers: list[bytes]) -> list[list[list[bytes]]]:
    """Return topics, values and publishers, and properties if any row has them."""
    columns = [
        [stream.topics for stream in streams],
        [stream.values for stream in streams],
        [publishers],
    ]
    properties = [stream.properties for stream in streams]
    if _size_of(properties):
        columns.append(properties)
    return columns


def _count(column: list[list[bytes]]) -> int:
    count = 0
    for strings in column:
        count += len(strings)
    return count


def _largest(columns: list[list[list[bytes]]]) -> int:
    """Return the bytes of the largest column."""
    most = 0
    for column in columns:
        most = max(most, _size_of(column))
    return most


def _size_of(column: list[list[bytes]]) -> int:
    total = 0
    for strings in column:
        for item in strings:
            total += len(item)
    return total


def _packed_bytes(size: int) -> int:
    """Return the length of a packed frame with this many bytes before the last zeros."""
    return max((size + 7) & ~7, HEADER_BYTES)


def _pack_ends(out: BytesWriter, column: list[list[bytes]], *, wide: bool) -> None:
    end: i32 = 0
    for strings in column:
        for item in strings:
            end += i32(len(item))
            out.append(int(end & _NARROW_MAX))
            if wide:
                out.append(int(end >> 8))


def _pack_strings(out: BytesWriter, column: list[list[bytes]]) -> None:
    for strings in column:
        for item in strings:
            out.write(item)


def _pack_counts(out: BytesWriter, column: list[list[bytes]]) -> None:
    """Write how many items there are up to the end of each stream."""
    end = 0
    for strings in column:
        end += len(strings)
        out.append(end)


def _pack_bytes(out: BytesWriter, lists: list[list[int]]) -> None:
    for numbers in lists:
        for number in numbers:
            out.append(number)


def _pack_times(out: BytesWriter, streams: list[StreamRows], first_us: int, rows: int) -> bool:
    """Write the times of several streams; return False if the times do not follow one another."""
    several = len(streams) > 1
    first: i64 = first_us
    count: i64 = rows
    number: i64 = 0
    for stream in streams:
        column = stream.times.getvalue()
        size: i64 = len(column)
        for at in range(i64(0), size, 8):
            offset = read_i64_le(column, at) - first
            if several:
                if offset < 0 or offset >= count:
                    return False
                out.append(int(offset))
            elif offset != number:
                return False
            number += 1
    return True


def _pack_topic_numbers(out: BytesWriter, streams: list[StreamRows], *, write: bool) -> bool:
    """Write the topic number of each row, or else return whether it is the number of the row."""
    first: i32 = 0
    row: i32 = 0
    for stream in streams:
        column = stream.topic_numbers.getvalue()
        size: i64 = len(column)
        for at in range(i64(0), size, 4):
            number = first + read_i32_le(column, at)
            if write:
                out.append(int(number))
            elif number != row:
                return False
            row += 1
        first += i32(len(stream.topics))
    return True


class _PackedReader:
    """Reads the sections of a packed body one after another."""

    def __init__(self, data: bytes, at: int, *, wide: bool) -> None:
        self.data = data
        self.at = at
        self.wide = wide

    def ends(self, count: int) -> list[int]:
        """Read ends, and put 0 before them. Raises: FrameFormatError."""
        found = self.text(2 * count if self.wide else count)
        bounds = [0]
        last = 0
        for number in range(count):
            end = found[2 * number] | found[2 * number + 1] << 8 if self.wide else found[number]
            if end < last:
                raise FrameFormatError("the ends in a packed frame must not decrease")
            bounds.append(end)
            last = end
        return bounds

    def text(self, size: int) -> bytes:
        """Read bytes. Raises: FrameFormatError."""
        start = self.at
        self.at = start + size
        if self.at > len(self.data):
            raise FrameFormatError("the sections are longer than the packed frame")
        return self.data[start : self.at]


def unpack_rows(view: memoryview, position: int, header: FrameHeader) -> tuple[bytes, int]:
    """Return the body that `encode_rows` makes of the rows of a packed frame, and its number of
    sections.

    Raises: FrameFormatError.
    """
    data = bytes(view[position + PACKED_HEADER_BYTES : position + header.length])
    rows, count = header.row_count, header.stream_count
    form, flags, topics, names = data[0], data[1], data[2], data[3]
    if form > FORM_MAX or not 0 < count <= topics <= rows:
        raise FrameFormatError("the form of the packed frame is unknown")
    reader = _PackedReader(data, _FORM_BYTES, wide=form & WIDE != 0)
    ids = reader.text(8 * count)
    state = reader.text(8) if form & WITH_STATE else bytes(8)
    topic_ends = reader.ends(topics)
    value_ends = reader.ends(rows)
    name_ends = reader.ends(names)
    property_ends = reader.ends(rows if form & WITH_PROPERTIES else 0)
    row_ends, word_ends, times = bytes([rows]), bytes([topics]), bytes(range(rows))
    if count > 1:
        row_ends, word_ends, times = reader.text(count), reader.text(count), reader.text(rows)
    topic_numbers = bytes(range(rows))
    if topics < rows:
        topic_numbers = reader.text(rows) if topics > 1 else bytes(rows)
    name_numbers = reader.text(rows) if names > 1 else b""
    all_flags = reader.text(rows) if form & WITH_FLAGS else bytes([flags]) if flags else b""
    writer = _SectionWriter()
    words = reader.text(topic_ends[topics])
    values = reader.text(value_ends[rows])
    publishers = reader.text(name_ends[names])
    properties = reader.text(property_ends[len(property_ends) - 1])
    writer.add(STREAMS, DIRECTORY.size, _unpack_directory(ids, row_ends, word_ends))
    writer.add(EDGES, 1, reader.text(int.from_bytes(state[:4], "little")))
    writer.add(PRODUCERS, 24, reader.text(int.from_bytes(state[4:], "little")))
    _unpack_times(writer, times, header.first_timestamp_us)
    _unpack_strings(writer, TOPIC_OFFSETS, TOPICS, topic_ends, words)
    writer.add(TOPIC_INDEX, 1, topic_numbers)
    _unpack_strings(writer, VALUE_OFFSETS, VALUES, value_ends, values)
    if names > 1:
        _unpack_strings(writer, PUBLISHER_OFFSETS, PUBLISHERS, name_ends, publishers)
        writer.add(PUBLISHER_INDEX, 1, name_numbers)
    else:
        writer.add(PUBLISHERS, 1, publishers)
    writer.add(FLAGS, 1, all_flags)
    _unpack_strings(writer, PROPERTY_OFFSETS, PROPERTIES, property_ends, properties)
    size = reader.at
    if header.length != _packed_bytes(PACKED_HEADER_BYTES + size) or any(data[size:]):
        raise FrameFormatError("bytes follow the last section")
    return writer.body(), writer.count


def _unpack_directory(ids: bytes, row_ends: bytes, word_ends: bytes) -> bytes:
    out = BytesWriter()
    row, word = 0, 0
    for number in range(len(row_ends)):
        out.write(ids[8 * number : 8 * number + 8])
        write_i32_le(out, i32(row))
        write_i32_le(out, i32(row_ends[number] - row))
        write_i32_le(out, i32(word))
        write_i32_le(out, i32(word_ends[number] - word))
        row, word = row_ends[number], word_ends[number]
    return out.getvalue()


def _unpack_times(writer: _SectionWriter, times: bytes, first_us: int) -> None:
    if len(times) >= OFFSET_TIMES_ROWS:
        writer.add(TIMESTAMPS, 1, times)
        return
    out = BytesWriter()
    for offset in times:
        write_i64_le(out, i64(first_us + offset))
    writer.add(TIMESTAMPS, 8, out.getvalue())


def _unpack_strings(
    writer: _SectionWriter, offsets_id: int, data_id: int, bounds: list[int], data: bytes
) -> None:
    if not data:
        return
    out = BytesWriter()
    for bound in bounds:
        write_i32_le(out, i32(bound))
    writer.add(offsets_id, 4, out.getvalue())
    writer.add(data_id, 1, data)
