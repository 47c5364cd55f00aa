"""The payloads of records in the shared log, and their way back into records of the store.

ROWS is one frame, header and body, as all sites store it. Every other kind is its parts:

    0   4  number of parts
    4      length of each part (u32), then the parts

Integers are little endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from siltstone.errors import SiltstoneError
from siltstone.store.log.records import (
    DropRecord,
    GenerationRecord,
    ManifestRecord,
    RollRecord,
    SettingsRecord,
    record_of,
)
from siltstone.store.log.write.committer import FrameRecord
from siltstone.store.log.write.frame_builder import BuiltFrame
from siltstone.store.segment.body import StreamRows
from siltstone.store.segment.frame import (
    EDGES,
    PRODUCERS,
    FrameFormatError,
    crc_matches,
    decode_header,
    header_bytes,
)
from siltstone.store.segment.view import FrameView, open_frame
from siltstone.store.writer.commit_log import Record, RecordKind

_COUNT: Final = struct.Struct("<I")


class BadPayloadError(SiltstoneError):
    """The log has a record that its leader cannot have made from a sound store."""


def payload_of(record: Record) -> bytes:
    """Return the bytes that all sites need to store a record."""
    if isinstance(record, FrameRecord):
        return record.payload()
    assert isinstance(record, RollRecord | GenerationRecord | DropRecord | SettingsRecord)
    parts = record.parts()
    lengths = struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts))
    return lengths + b"".join(parts)


def other_record(kind: RecordKind, payload: bytes) -> RollRecord | ManifestRecord:
    """Return a record that is not rows. Raises: BadPayloadError."""
    try:
        (count,) = _COUNT.unpack_from(payload)
        lengths = struct.unpack_from(f"<{count}I", payload, _COUNT.size)
        return record_of(kind, _cut(payload, _COUNT.size * (1 + count), lengths))
    except (struct.error, ValueError, KeyError, TypeError, IndexError) as exc:
        raise BadPayloadError(f"a {kind.name} record cannot be read: {exc}") from exc


def _cut(payload: bytes, at: int, lengths: Sequence[int]) -> list[bytes]:
    if at + sum(lengths) != len(payload):
        raise ValueError(f"its parts have {sum(lengths)} bytes, not {len(payload) - at}")
    parts: list[bytes] = []
    for length in lengths:
        parts.append(payload[at : at + length])
        at += length
    return parts


def serials_of(payload: bytes) -> range:
    """Return the serials of the rows of a ROWS record. Raises: BadPayloadError."""
    try:
        header = decode_header(memoryview(payload), 0, len(payload))
        if header is None or header.length != len(payload):
            raise FrameFormatError("the record is not one frame")
    except FrameFormatError as exc:
        raise BadPayloadError(f"a ROWS record cannot be read: {exc}") from exc
    return range(header.first_serial, header.first_serial + header.row_count)


class CountedFrame(FrameRecord):
    """A frame of the shared log, as a record. The rows are decoded only for listeners."""

    def __init__(self, payload: bytes, seed: int) -> None:
        """Check and open a frame. Raises: BadPayloadError."""
        view = memoryview(payload)
        try:
            header = decode_header(view, 0, len(payload))
            if header is None or header.length != len(payload):
                raise FrameFormatError("the record is not one frame")
            if not crc_matches(view, 0, header, seed):
                raise FrameFormatError("the checksum of the frame does not match")
            frame = open_frame(view, pa.py_buffer(payload), 0, header)
            directory = frame.directory()
        except FrameFormatError as exc:
            raise BadPayloadError(f"a ROWS record cannot be read: {exc}") from exc
        edges, producers = frame.section(EDGES), frame.section(PRODUCERS)
        body = payload[header_bytes(header.compression) :]
        super().__init__(header, body, directory, bytes(edges or b""))
        self.producers = bytes(producers or b"")
        self.seed = seed
        self._frame = frame

    def rows(self) -> BuiltFrame:
        """Return the rows."""
        return _built(self._frame)


def _built(frame: FrameView) -> BuiltFrame:
    """Return the rows of a frame as its builder made them."""
    header = frame.header
    built = BuiltFrame(header.first_timestamp_us)
    built.row_count = header.row_count
    built.size_bytes = header.body_bytes
    built.flags = -1
    name = frame.publisher()
    names = frame.publisher_words().to_pylist() if name is None else [name] if name else []
    built.publishers = [each.encode() for each in names]
    for stream_id, first, count, _, _ in frame.directory():
        numbers = range(first, first + count)
        part = StreamRows(stream_id)
        known: dict[bytes, int] = {}
        topics = [bytes(topic) for topic in frame.topics_at(numbers)]
        values, times = frame.values_at(numbers), frame.times_at(numbers)
        for i in range(count):
            number = known.setdefault(topics[i], len(known))
            part.add(times[i], number, bytes(values[i]))
        part.topics = list(known)
        part.flags = list(frame.flags_at(numbers))
        if frame.has_properties():
            part.properties = [bytes(item) for item in frame.properties_at(numbers)]
        if len(built.publishers) > 1:
            part.publishers = frame.publisher_numbers(first, first + count).to_pylist()
        built.streams.append(part)
    return built
