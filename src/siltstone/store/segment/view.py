"""A frame opened for reading: its sections as Arrow arrays over the map, without a copy.

A compressed or packed body is expanded once, when the frame is opened; then it is read like any
other.
Readers that need only a few rows take slices of the map.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.scalars import scalar
from siltstone.store.segment.body import unpack_rows
from siltstone.store.segment.frame import (
    APART,
    BLOCKS,
    BODY_BYTES_MAX,
    FLAGS,
    HEADER_BYTES,
    LZ4,
    PACKED,
    PLAIN,
    PROPERTIES,
    PROPERTY_OFFSETS,
    PUBLISHER_INDEX,
    PUBLISHER_OFFSETS,
    PUBLISHERS,
    SERIALS,
    TIMESTAMPS,
    TOPIC_INDEX,
    TOPIC_OFFSETS,
    TOPICS,
    VALUE_OFFSETS,
    VALUES,
    VALUES_AT,
    ZSTD,
    FrameFormatError,
    FrameHeader,
    SectionTable,
    decode_directory,
    decode_sections,
    values_place,
)

CODECS: Final = {ZSTD: "zstd", LZ4: "lz4"}
_INDEX_TYPES: Final = {1: pa.int8(), 2: pa.int16(), 4: pa.int32()}
_WHOLE: Final = 8
_OFFSET_TYPES: Final = {1: pa.uint8(), 2: pa.int16(), 4: pa.int32()}
_INDEX_CODES: Final[dict[int, Literal["b", "h", "i"]]] = {1: "b", 2: "h", 4: "i"}
_OFFSET_CODES: Final[dict[int, Literal["B", "h", "i"]]] = {1: "B", 2: "h", 4: "i"}
_STORED: Final = struct.Struct("<Q")
# Bytes of the first block, bytes of the others, number of blocks.
_BLOCKS: Final = struct.Struct("<III4x")
BLOCK_BYTES: Final = 1 << 17


def compress(body: bytes, compression: int) -> bytes:
    """Compress a body for storage: the compressed length, the compressed bytes, padding."""
    if compression == PLAIN:
        return body
    packed: bytes = pa.Codec(CODECS[compression]).compress(body, asbytes=True)
    return _STORED.pack(len(packed)) + packed + bytes(-len(packed) % 8)


def compress_blocks(body: bytes, first: int) -> bytes:
    """Compress a body in blocks: the first bytes, and the rest in pieces of the same size.

    A reader decompresses only the blocks that it needs.
    """
    codec = pa.Codec(CODECS[ZSTD])
    bounds = [0, *range(first, len(body), BLOCK_BYTES), len(body)]
    view = memoryview(body)
    packed = [codec.compress(view[start:stop], asbytes=True) for start, stop in pairwise(bounds)]
    sizes = b"".join(len(part).to_bytes(4, "little") for part in packed)
    stored = b"".join([_BLOCKS.pack(first, BLOCK_BYTES, len(packed)), sizes, *packed])
    return stored + bytes(-len(stored) % 8)


class Blocks:
    """The compressed blocks of a body."""

    def __init__(self, stored: memoryview, body_bytes: int) -> None:
        """Find the blocks. Raises: FrameFormatError."""
        if len(stored) < _BLOCKS.size:
            raise FrameFormatError("the compressed body is cut short")
        self.first, self.size, count = _BLOCKS.unpack_from(stored)
        self._stored = stored
        self._body_bytes = body_bytes
        self._codec = pa.Codec(CODECS[ZSTD])
        place = _BLOCKS.size + 4 * count
        if not 0 < self.first <= body_bytes <= BODY_BYTES_MAX or self.size == 0:
            raise FrameFormatError("the blocks are invalid")
        if count != 1 + -(-(body_bytes - self.first) // self.size) or place > len(stored):
            raise FrameFormatError("the compressed body is cut short")
        ends = accumulate(stored[_BLOCKS.size : place].cast("I"), initial=place)
        self._places = list(pairwise(ends))
        if self._places[-1][1] > len(stored):
            raise FrameFormatError("the compressed body is cut short")

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._places)

    def range_of(self, number: int) -> tuple[int, int]:
        """Return where a block is in the body."""
        if number == 0:
            return 0, self.first
        start = self.first + (number - 1) * self.size
        return start, min(start + self.size, self._body_bytes)

    def fill(self, number: int, body: memoryview) -> None:
        """Decompress a block to its place in the body. Raises: FrameFormatError."""
        start, stop = self.range_of(number)
        begin, end = self._places[number]
        try:
            found = self._codec.decompress(self._stored[begin:end], stop - start)
        except (OSError, pa.ArrowInvalid) as exc:
            raise FrameFormatError("the body cannot be decompressed") from exc
        body[start:stop] = memoryview(found).cast("B")


class FrameView:
    """An open frame; row numbers are relative to the frame."""

    __slots__ = ("buffer", "header", "table", "view")

    def __init__(
        self, header: FrameHeader, view: memoryview, buffer: pa.Buffer, table: SectionTable
    ) -> None:
        self.header = header
        self.view = view
        self.buffer = buffer
        self.table = table

    def section(self, section_id: int) -> memoryview | None:
        """Return the bytes of a section, or None if it is absent."""
        offset = self.table.offsets[section_id]
        return None if offset < 0 else self.view[offset : offset + self.table.lengths[section_id]]

    def directory(self) -> list[tuple[int, int, int, int, int]]:
        """Return (stream id, first row, rows, first topic, topics) for each stream."""
        return decode_directory(self.view, self.table)

    def entry_of(self, stream_id: int) -> tuple[int, int, int, int, int] | None:
        """Return the directory entry of one stream, or None if it has no row in this frame."""
        for entry in self.directory():
            if entry[0] == stream_id:
                return entry
        return None

    def serial_of(self, row: int) -> int:
        """Return the serial of a row; for the number after the last row, the serial after it.

        Not for a row of a compacted frame with several streams.
        """
        assert self.implies_serials or row == self.header.row_count
        return self.header.first_serial + row

    @property
    def implies_serials(self) -> bool:
        """Whether the serial of a row is the first serial plus its number."""
        return self.table.offsets[SERIALS] < 0

    def serials_at(self, rows: Sequence[int]) -> Sequence[int]:
        """Return the serials of these rows."""
        assert self.implies_serials
        first = self.header.first_serial
        if isinstance(rows, range):
            return range(first + rows.start, first + rows.stop)
        return [first + row for row in rows]

    def rows_in(self, serials: range) -> range:
        """Return the numbers of the rows with these serials."""
        assert self.implies_serials
        first = self.header.first_serial
        start = max(0, serials.start - first)
        return range(start, max(start, min(self.header.row_count, serials.stop - first)))

    def times(self) -> memoryview:
        """Return all timestamps as integers."""
        section = self.section(TIMESTAMPS)
        if section is None:
            return memoryview(b"").cast("q")
        if self.table.widths[TIMESTAMPS] == _WHOLE:
            return section.cast("q")
        whole = self.timestamps(0, self.header.row_count)
        return memoryview(whole.buffers()[1]).cast("b").cast("q")[: len(whole)]

    def timestamps(self, start: int, stop: int) -> pa.Array:
        """Return timestamps in µs."""
        width = self.table.widths[TIMESTAMPS]
        if width == _WHOLE:
            return self._numbers(TIMESTAMPS, pa.int64(), start, stop)
        offsets = self._numbers(TIMESTAMPS, _OFFSET_TYPES[width], start, stop)
        first = scalar(self.header.first_timestamp_us, pa.int64())
        return pc.add(offsets.cast(pa.int64()), first)

    def topic_words(self, first: int, last: int) -> pa.Array:
        """Return the topics of the frame from number `first` to `last`, each once."""
        return self._strings(TOPIC_OFFSETS, TOPICS, pa.string(), first, last)

    def topic_numbers(self, start: int, stop: int) -> pa.Array:
        """Return the topic number of each row."""
        kind = _INDEX_TYPES[self.table.widths[TOPIC_INDEX]]
        return self._numbers(TOPIC_INDEX, kind, start, stop)

    def all_topics(self) -> pa.Array:
        """Return every topic of the frame, by number."""
        return self.topic_words(0, self.table.lengths[TOPIC_OFFSETS] // 4 - 1)

    def values(self, start: int, stop: int) -> pa.Array:
        """Return the payloads."""
        return self._strings(VALUE_OFFSETS, VALUES, pa.binary(), start, stop)

    def properties(self, start: int, stop: int) -> pa.Array:
        """Return the MQTT properties as they were received."""
        return self._strings(PROPERTY_OFFSETS, PROPERTIES, pa.binary(), start, stop)

    def has_properties(self) -> bool:
        """Return whether any row has MQTT properties."""
        return self.table.offsets[PROPERTIES] >= 0

    def flags(self, start: int, stop: int) -> pa.Array | int:
        """Return the flags of each row, or the one value that all rows have."""
        section = self.section(FLAGS)
        if section is None:
            return 0
        if len(section) == 1:
            return section[0]
        return self._numbers(FLAGS, pa.uint8(), start, stop)

    def publisher(self) -> str | None:
        """Return the publisher of all rows, or None if there is more than one."""
        names = self.section(PUBLISHERS)
        if names is None:
            return ""
        return bytes(names).decode() if self.table.offsets[PUBLISHER_OFFSETS] < 0 else None

    def publisher_words(self) -> pa.Array:
        """Return all publishers of the frame, by number; for frames with several publishers."""
        count = self.table.lengths[PUBLISHER_OFFSETS] // 4 - 1
        return self._strings(PUBLISHER_OFFSETS, PUBLISHERS, pa.string(), 0, count)

    def publisher_numbers(self, start: int, stop: int) -> pa.Array:
        """Return the publisher number of each row."""
        kind = _INDEX_TYPES[self.table.widths[PUBLISHER_INDEX]]
        return self._numbers(PUBLISHER_INDEX, kind, start, stop)

    def find_topic(self, topic: bytes, topics: range) -> list[int]:
        """Return the numbers in this range whose topic is equal to `topic`.

        A frame that an early version wrote may contain a topic more than once.
        """
        words, bounds = self.section(TOPICS), self.section(TOPIC_OFFSETS)
        if words is None or bounds is None:
            return []
        found: list[int] = []
        offsets = bounds.cast("i")
        first = offsets[topics.start]
        text = bytes(words[first : offsets[topics.stop]])
        number = topics.start
        place = text.find(topic)
        while place >= 0 and number < topics.stop:
            number = bisect_left(offsets, first + place, number, topics.stop)
            if number < topics.stop and offsets[number] == first + place:
                if offsets[number + 1] == first + place + len(topic):
                    found.append(number)
                number += 1
            # The match may be inside another topic, or across two. The search continues with the
            # next topic.
            place = text.find(topic, offsets[number] - first) if number < topics.stop else -1
        return found

    def topics_at(self, rows: Iterable[int]) -> list[memoryview]:
        """Return the topics of these rows, as `topic_numbers` and `topic_words` would."""
        return self._texts_at(TOPIC_OFFSETS, TOPICS, self._indexes_at(TOPIC_INDEX, rows))

    def publishers_at(self, rows: Iterable[int]) -> list[memoryview]:
        """Return the publishers of these rows; for frames with more than one publisher."""
        numbers = self._indexes_at(PUBLISHER_INDEX, rows)
        return self._texts_at(PUBLISHER_OFFSETS, PUBLISHERS, numbers)

    def values_at(self, rows: Sequence[int]) -> list[memoryview]:
        """Return the payloads of these rows."""
        return self._texts_at(VALUE_OFFSETS, VALUES, rows)

    def properties_at(self, rows: Sequence[int]) -> list[memoryview]:
        """Return the MQTT properties of these rows."""
        return self._texts_at(PROPERTY_OFFSETS, PROPERTIES, rows)

    def times_at(self, rows: Iterable[int]) -> list[int]:
        """Return the timestamps of these rows, in µs."""
        section = self.section(TIMESTAMPS)
        assert section is not None, "every row has one"
        width = self.table.widths[TIMESTAMPS]
        if width == _WHOLE:
            whole = section.cast("q")
            return [whole[row] for row in rows]
        first, offsets = self.header.first_timestamp_us, section.cast(_OFFSET_CODES[width])
        return [first + offsets[row] for row in rows]

    def flags_at(self, rows: Sequence[int]) -> bytes:
        """Return the flags of these rows, one byte each."""
        section = self.section(FLAGS)
        if section is None:
            return bytes(len(rows))
        if len(section) == 1:
            return bytes(section) * len(rows)
        return bytes([section[row] for row in rows])

    def _indexes_at(self, section_id: int, rows: Iterable[int]) -> list[int]:
        section = self.section(section_id)
        assert section is not None, "a frame with rows has it"
        numbers = section.cast(_INDEX_CODES[self.table.widths[section_id]])
        return [numbers[row] for row in rows]

    def _texts_at(self, offsets_id: int, data_id: int, numbers: Sequence[int]) -> list[memoryview]:
        bounds, data = self.section(offsets_id), self.section(data_id)
        if bounds is None or data is None:
            return [memoryview(b"")] * len(numbers)
        offsets = bounds.cast("i")
        return [data[offsets[number] : offsets[number + 1]] for number in numbers]

    def _numbers(self, section_id: int, kind: pa.DataType, start: int, stop: int) -> pa.Array:
        buffers = [None, self._slice(section_id)]
        return pa.Array.from_buffers(kind, stop - start, buffers, offset=start)

    def _strings(
        self, offsets_id: int, data_id: int, kind: pa.DataType, start: int, stop: int
    ) -> pa.Array:
        if self.table.offsets[offsets_id] < 0:
            return empty_strings(kind, stop - start)
        buffers = [None, self._slice(offsets_id), self._slice(data_id)]
        return pa.Array.from_buffers(kind, stop - start, buffers, offset=start)

    def _slice(self, section_id: int) -> pa.Buffer:
        return self.buffer.slice(self.table.offsets[section_id], self.table.lengths[section_id])


def open_frame(
    view: memoryview, buffer: pa.Buffer, position: int, header: FrameHeader, *, whole: bool = True
) -> FrameView:
    """Open a frame and expand it if necessary. A compacted frame that is not opened as a whole gets
    only the sections before the values.

    Raises: FrameFormatError.
    """
    start = position + HEADER_BYTES
    stop = position + header.length
    if header.compression == APART:
        return _open_apart(view, buffer, position, header)
    if header.compression == PACKED:
        unpacked, sections = unpack_rows(view, position, header)
        body, part = memoryview(unpacked), pa.py_buffer(unpacked)
        return FrameView(header, body, part, decode_sections(body, 0, sections))
    if header.compression == PLAIN:
        body, part = view[start:stop], buffer.slice(start, stop - start)
    else:
        part = _expand(view[start:stop], header, whole=whole)
        body = memoryview(part).cast("B")
    return FrameView(header, body, part, decode_sections(body, 0, header.section_count))


def _open_apart(
    view: memoryview, buffer: pa.Buffer, position: int, header: FrameHeader
) -> FrameView:
    """Open a frame whose values are in a room before it: the view begins with the values."""
    start, size, _ = values_place(view, position, header)
    stop = position + header.length
    body, part = view[start:stop], buffer.slice(start, stop - start)
    table = decode_sections(body, position + HEADER_BYTES - start, header.section_count)
    if size == 0 or table.offsets[VALUES_AT] < 0 or table.offsets[VALUES] >= 0:
        raise FrameFormatError("the values are missing")
    table.offsets[VALUES], table.lengths[VALUES], table.widths[VALUES] = 0, size, 1
    return FrameView(header, body, part, table)


def _expand(stored: memoryview, header: FrameHeader, *, whole: bool) -> pa.Buffer:
    if header.compression == BLOCKS:
        blocks = Blocks(stored, header.body_bytes)
        body = bytearray(header.body_bytes)
        for number in range(len(blocks) if whole else 1):
            blocks.fill(number, memoryview(body))
        return pa.py_buffer(body)
    if header.compression not in CODECS or not 0 < header.body_bytes <= BODY_BYTES_MAX:
        raise FrameFormatError("unknown compression")
    if len(stored) < _STORED.size:
        raise FrameFormatError("the compressed body is cut short")
    (length,) = _STORED.unpack_from(stored)
    if length > len(stored) - _STORED.size:
        raise FrameFormatError("the compressed body is cut short")
    packed = stored[_STORED.size : _STORED.size + length]
    try:
        return pa.Codec(CODECS[header.compression]).decompress(packed, header.body_bytes)
    except (OSError, pa.ArrowInvalid) as exc:
        raise FrameFormatError("the body cannot be decompressed") from exc


@lru_cache(maxsize=4)
def _empties(kind: pa.DataType) -> pa.Array:
    return pa.repeat(scalar("" if kind == pa.string() else b"", kind), 1 << 16)


def empty_strings(kind: pa.DataType, count: int) -> pa.Array:
    """Return an array of empty strings; up to 65536 of them share one buffer."""
    shared = _empties(kind)
    if count <= len(shared):
        return shared.slice(0, count)
    return pa.repeat(shared[0], count)
