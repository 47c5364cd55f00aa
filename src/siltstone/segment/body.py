"""The body of a frame in the making: parallel lists become the columns that Arrow maps.

The streams come sorted by id; the rows of each stand in order of arrival. What would hold nothing
is left out. The format is that of `frame.py`.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i16_le, write_i32_le, write_i64_le
from mypy_extensions import i16, i32, i64

from siltstone.segment.frame import (
    DIRECTORY,
    EDGES,
    FLAGS,
    PRODUCERS,
    PROPERTIES,
    PROPERTY_OFFSETS,
    PUBLISHER_INDEX,
    PUBLISHER_OFFSETS,
    PUBLISHERS,
    SECTION,
    STREAMS,
    TIMESTAMPS,
    TOPIC_INDEX,
    TOPIC_OFFSETS,
    TOPICS,
    VALUE_OFFSETS,
    VALUES,
)

# In a smaller frame offsets would save less than it costs to read them.
OFFSET_TIMES_ROWS: Final = 16
_PADDING: Final = (b"", b"\0" * 7, b"\0" * 6, b"\0" * 5, b"\0" * 4, b"\0" * 3, b"\0" * 2, b"\0")


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
