"""A frame laid out for reading: its sections as Arrow arrays over the map, without a copy.

A compressed body is expanded once, when the frame is opened; everything else is the same for it.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Final

import pyarrow as pa

from siltstone.segment.frame import (
    BODY_BYTES_MAX,
    FLAGS,
    HEADER_BYTES,
    LZ4,
    PLAIN,
    PROPERTIES,
    PROPERTY_OFFSETS,
    PUBLISHER_INDEX,
    PUBLISHER_OFFSETS,
    PUBLISHERS,
    TIMESTAMPS,
    VALUE_OFFSETS,
    VALUES,
    VARYING,
    VARYING_OFFSETS,
    ZSTD,
    FrameFormatError,
    FrameHeader,
    SectionTable,
    decode_directory,
    decode_sections,
)

CODECS: Final = {ZSTD: "zstd", LZ4: "lz4"}
_STORED: Final = struct.Struct("<Q")


def compress(body: bytes, compression: int) -> bytes:
    """Compress a body for storage: its compressed length, the bytes, padding."""
    if compression == PLAIN:
        return body
    packed: bytes = pa.Codec(CODECS[compression]).compress(body, asbytes=True)
    return _STORED.pack(len(packed)) + packed + bytes(-len(packed) % 8)


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
        """Return the bytes of a section, None where it is absent."""
        offset = self.table.offsets[section_id]
        return None if offset < 0 else self.view[offset : offset + self.table.lengths[section_id]]

    def directory(self) -> list[tuple[int, int, int]]:
        """Return (stream id, first row, number of rows) for each stream."""
        return decode_directory(self.view, self.table)

    def rows_of(self, stream_id: int) -> tuple[int, int]:
        """Return the half-open range of the rows of a stream; empty where it has none here."""
        for found, start, count in self.directory():
            if found == stream_id:
                return start, start + count
        return 0, 0

    def times(self) -> memoryview:
        """Return all timestamps as integers."""
        section = self.section(TIMESTAMPS)
        return memoryview(b"").cast("q") if section is None else section.cast("q")

    def timestamps(self, start: int, stop: int) -> pa.Array:
        """Return timestamps in µs."""
        return self._numbers(TIMESTAMPS, pa.int64(), start, stop)

    def varying(self, start: int, stop: int) -> pa.Array:
        """Return the varying parts of the topics, as UTF-8 strings."""
        return self._strings(VARYING_OFFSETS, VARYING, pa.string(), start, stop)

    def values(self, start: int, stop: int) -> pa.Array:
        """Return the payloads."""
        return self._strings(VALUE_OFFSETS, VALUES, pa.binary(), start, stop)

    def properties(self, start: int, stop: int) -> pa.Array:
        """Return the MQTT properties as they were received."""
        return self._strings(PROPERTY_OFFSETS, PROPERTIES, pa.binary(), start, stop)

    def flags(self, start: int, stop: int) -> pa.Array | int:
        """Return the flags of each row, or the one value that all rows have."""
        section = self.section(FLAGS)
        if section is None:
            return 0
        if len(section) == 1:
            return section[0]
        return self._numbers(FLAGS, pa.uint8(), start, stop)

    def publishers(self, start: int, stop: int) -> pa.Array:
        """Return who published each row."""
        names = self.section(PUBLISHERS)
        if names is None:
            return empty_strings(pa.string(), stop - start)
        if self.table.offsets[PUBLISHER_OFFSETS] < 0:
            return pa.repeat(pa.scalar(bytes(names).decode(), pa.string()), stop - start)
        count = self.table.lengths[PUBLISHER_OFFSETS] // 4 - 1
        dictionary = self._strings(PUBLISHER_OFFSETS, PUBLISHERS, pa.string(), 0, count)
        kind = pa.int8() if self.table.widths[PUBLISHER_INDEX] == 1 else pa.int32()
        indices = self._numbers(PUBLISHER_INDEX, kind, start, stop)
        return dictionary.take(indices)

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
    view: memoryview, buffer: pa.Buffer, position: int, header: FrameHeader
) -> FrameView:
    """Lay out a frame, expanding it where it is compressed. Raises: FrameFormatError."""
    start = position + HEADER_BYTES
    stop = position + header.length
    if header.compression == PLAIN:
        body, part = view[start:stop], buffer.slice(start, stop - start)
    else:
        part = _expand(view[start:stop], header)
        body = memoryview(part)
    return FrameView(header, body, part, decode_sections(body, 0, header.section_count))


def _expand(stored: memoryview, header: FrameHeader) -> pa.Buffer:
    if header.compression not in CODECS or not 0 < header.body_bytes <= BODY_BYTES_MAX:
        raise FrameFormatError("unknown compression")
    (length,) = _STORED.unpack_from(stored)
    if length > len(stored) - _STORED.size:
        raise FrameFormatError("compressed body is cut short")
    packed = stored[_STORED.size : _STORED.size + length]
    try:
        return pa.Codec(CODECS[header.compression]).decompress(packed, header.body_bytes)
    except (OSError, pa.ArrowInvalid) as exc:
        raise FrameFormatError("body cannot be expanded") from exc


@lru_cache(maxsize=4)
def _empties(kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar("" if kind == pa.string() else b"", kind), 1 << 16)


def empty_strings(kind: pa.DataType, count: int) -> pa.Array:
    """Return an array of empty strings; they share one buffer as far as it goes."""
    shared = _empties(kind)
    if count <= len(shared):
        return shared.slice(0, count)
    return pa.repeat(shared[0], count)
