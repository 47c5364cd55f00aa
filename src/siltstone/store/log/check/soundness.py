"""The rules for the contents of a frame whose checksum is correct.

A checksum detects damage by the disk. These rules check whether the data that was written is
consistent. No length or offset is used here before it was checked.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import CorruptionError, InvalidTopicError
from siltstone.store.segment.frame import (
    APART,
    DIRECTORY,
    EDGES,
    FLAGS,
    HEADER_BYTES,
    PACKED,
    PLACE,
    PRODUCER,
    PRODUCERS,
    PROPERTIES,
    PROPERTY_OFFSETS,
    PUBLISHER_INDEX,
    PUBLISHER_OFFSETS,
    PUBLISHERS,
    ROWS,
    SECTION,
    SECTION_MAX,
    SERIALS,
    STREAMS,
    TIMESTAMPS,
    TOPIC_INDEX,
    TOPIC_OFFSETS,
    TOPICS,
    VALUE_OFFSETS,
    VALUES,
    VALUES_AT,
    FrameHeader,
    head_matches,
)
from siltstone.store.segment.segment import Segment
from siltstone.store.segment.view import FrameView
from siltstone.topic.grammar import check_topic
from siltstone.topic.structure import Structure

_INDEX_WIDTHS: Final = (1, 2, 4)
_WIDTHS: Final[Mapping[int, tuple[int, ...]]] = {
    STREAMS: (DIRECTORY.size,),
    EDGES: (1,),
    PRODUCERS: (PRODUCER.size,),
    TIMESTAMPS: (1, 2, 4, 8),
    TOPIC_OFFSETS: (4,),
    TOPICS: (1,),
    VALUE_OFFSETS: (4,),
    VALUES: (1,),
    PUBLISHER_OFFSETS: (4,),
    PUBLISHERS: (1,),
    PUBLISHER_INDEX: _INDEX_WIDTHS,
    FLAGS: (1,),
    PROPERTY_OFFSETS: (4,),
    PROPERTIES: (1,),
    TOPIC_INDEX: _INDEX_WIDTHS,
    VALUES_AT: (PLACE.size,),
    SERIALS: (2, 4),
}
_TOPICS_REMEMBERED: Final = 100_000
_NARROW: Final = 2


class UnsoundError(ValueError):
    """The frame breaks a rule; the text says which one."""


def open_sound_frame(segment: Segment, position: int, header: FrameHeader) -> FrameView:
    """Open a frame and check every rule that needs only this frame. Raises: UnsoundError."""
    try:
        frame = segment.open_frame(position, header)
    except CorruptionError as exc:
        raise UnsoundError(exc.reason) from exc
    except struct.error as exc:
        raise UnsoundError("the table of sections is longer than the body") from exc
    _require(
        header.head_crc == 0 or head_matches(segment.view, position, header, segment.header.seed),
        "the head does not match its checksum",
    )
    _check_sections(frame)
    if header.kind == ROWS:
        _check_rows(frame)
    elif header.stream_count:
        raise UnsoundError("a frame without rows must not have streams")
    return frame


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise UnsoundError(rule)


def _check_sections(frame: FrameView) -> None:
    header, view = frame.header, frame.view
    if header.compression == PACKED:
        # It has no table of sections; its form was checked when it was unpacked.
        return
    if header.compression == APART:
        # The values are before the sections.
        view = view[len(view) - header.length + HEADER_BYTES :]
    _require(header.body_bytes == len(view), "the length of the body does not match the header")
    used = header.section_count * SECTION.size
    seen: set[int] = set()
    for number in range(header.section_count):
        section_id, width, length = SECTION.unpack_from(view, number * SECTION.size)
        _require(0 < section_id <= SECTION_MAX, f"unknown section {section_id}")
        _require(section_id not in seen, f"section {section_id} is repeated")
        _require(width in _WIDTHS[section_id], f"section {section_id} has items of {width} bytes")
        _require(length > 0, f"section {section_id} is empty")
        _require(length % width == 0, f"section {section_id} ends within an item")
        seen.add(section_id)
        used += (length + 7) & ~7
    if header.kind == ROWS:
        _require(used == len(view), "bytes follow the last section")
        return
    _require(seen <= {EDGES, PRODUCERS}, "a frame without rows must not have columns")
    _require(not any(view[used:]), "bytes follow the last section")


def _check_rows(frame: FrameView) -> None:
    rows = frame.header.row_count
    _require(rows > 0, "a frame of rows must have at least one row")
    topics = _check_directory(frame)
    _check_strings(frame, TOPIC_OFFSETS, TOPICS, topics)
    _check_strings(frame, VALUE_OFFSETS, VALUES, rows)
    _check_strings(frame, PROPERTY_OFFSETS, PROPERTIES, rows)
    _require(frame.section(TOPIC_OFFSETS) is not None, "the topics are missing")
    _check_numbers(frame, TOPIC_INDEX, rows)
    for stream_id, start, count, first, words in frame.directory():
        numbers = frame.topic_numbers(start, start + count)
        _require(
            _within(numbers, first, first + words),
            f"a row has a topic of another stream: stream={stream_id}",
        )
    _check_publishers(frame)
    flags = frame.table.lengths[FLAGS]
    _require(flags in (0, 1, rows), "the number of flags does not match the rows")
    _check_times(frame)


def _check_directory(frame: FrameView) -> int:
    """Check that the streams cover all rows and topics in order; return the number of topics."""
    header = frame.header
    _require(
        frame.table.lengths[STREAMS] == header.stream_count * DIRECTORY.size,
        "the number of streams does not match the header",
    )
    rows = topics = 0
    last = -1
    for stream_id, start, count, first, words in frame.directory():
        _require(stream_id > last, "the streams are not sorted by id")
        _require((start, first) == (rows, topics), "the directory does not cover the rows in order")
        _require(0 < words <= count, f"a stream must have rows and topics: stream={stream_id}")
        last, rows, topics = stream_id, rows + count, topics + words
    _require(rows == header.row_count, "the directory does not cover all rows")
    return topics


def _check_strings(frame: FrameView, offsets_id: int, data_id: int, count: int) -> None:
    offsets, data = frame.section(offsets_id), frame.section(data_id)
    if offsets is None or data is None:
        _require(offsets is data, f"sections {offsets_id} and {data_id} must exist together")
        return
    _require(
        len(offsets) == 4 * (count + 1), f"section {offsets_id} must have one offset for each item"
    )
    numbers = pa.Array.from_buffers(pa.int32(), count + 1, [None, pa.py_buffer(offsets)])
    rising = pc.all(pc.less_equal(numbers.slice(0, count), numbers.slice(1))).as_py()
    _require(
        rising and numbers[0].as_py() == 0 and numbers[count].as_py() == len(data),
        f"the offsets in section {offsets_id} must increase from 0 to the end of the data",
    )


def _check_numbers(frame: FrameView, section_id: int, rows: int) -> None:
    width = frame.table.widths[section_id]
    _require(
        width > 0 and frame.table.lengths[section_id] == rows * width,
        f"section {section_id} must have one number for each row",
    )


def _within(numbers: pa.Array, low: int, high: int) -> bool:
    bounds = pc.min_max(numbers).as_py()
    return bool(low <= bounds["min"] and bounds["max"] < high)


def _check_publishers(frame: FrameView) -> None:
    rows = frame.header.row_count
    if frame.section(PUBLISHER_OFFSETS) is None:
        _require(frame.section(PUBLISHER_INDEX) is None, "publishers are numbered but not listed")
        names = bytes(frame.section(PUBLISHERS) or b"")
        try:
            names.decode()
        except UnicodeDecodeError as exc:
            raise UnsoundError("the publisher is not valid UTF-8") from exc
        return
    count = frame.table.lengths[PUBLISHER_OFFSETS] // 4 - 1
    _check_strings(frame, PUBLISHER_OFFSETS, PUBLISHERS, count)
    _check_numbers(frame, PUBLISHER_INDEX, rows)
    _require(
        _within(frame.publisher_numbers(0, rows), 0, count), "a row has a publisher out of range"
    )
    try:
        frame.publisher_words().validate(full=True)
    except pa.ArrowInvalid as exc:
        raise UnsoundError("a publisher is not valid UTF-8") from exc


def _check_times(frame: FrameView) -> None:
    header = frame.header
    rows = header.row_count
    width = frame.table.widths[TIMESTAMPS]
    whole = frame.table.lengths[TIMESTAMPS] == width * rows
    _require(width > 0 and whole, "the number of timestamps does not match the rows")
    times = frame.timestamps(0, rows)
    bounds = pc.min_max(times).as_py()
    _require(
        (bounds["min"], bounds["max"]) == (header.first_timestamp_us, header.last_timestamp_us),
        "the first or last timestamp does not match the header",
    )
    if (serials := frame.section(SERIALS)) is not None:
        _check_serials(frame, serials, times)
        return
    falls = pc.indices_nonzero(pc.less_equal(times.slice(1), times.slice(0, rows - 1)))
    starts = {entry[1] for entry in frame.directory()}
    _require(
        all(place + 1 in starts for place in falls.to_pylist()),
        "the timestamps of a stream must increase",
    )


def _check_serials(frame: FrameView, section: memoryview, times: pa.Array) -> None:
    """Check the serials of a compacted frame, and the times in their order."""
    width = frame.table.widths[SERIALS]
    rows = frame.header.row_count
    serials = np.frombuffer(section, np.uint16 if width == _NARROW else np.uint32)
    _require(
        len(serials) == rows and bool((np.sort(serials) == np.arange(rows)).all()),
        "the serials of the frame must occur once each",
    )
    moments = np.frombuffer(times.buffers()[1], np.int64, rows, 8 * times.offset)
    for stream_id, start, count, _, _ in frame.directory():
        order = np.argsort(serials[start : start + count])
        rising = np.diff(moments[start : start + count][order]) > 0
        _require(bool(rising.all()), f"the timestamps of a stream must increase: {stream_id=}")


class TopicRules:
    """Checks that the topics of frames belong to the streams that hold them.

    It caches results, because a topic never changes its stream.
    """

    def __init__(self) -> None:
        self._streams: dict[bytes, int] = {}

    def strangers(self, frame: FrameView, structure: Structure) -> list[int]:
        """Return the streams of a consistent frame that the structure does not contain.

        Raises: UnsoundError for an invalid topic, or for one of another stream.
        """
        unknown: list[int] = []
        for stream_id, _, _, first, count in frame.directory():
            words = frame.topic_words(first, first + count).cast(pa.binary()).to_pylist()
            if structure.stream(stream_id) is None:
                unknown.append(stream_id)
                continue
            for topic in words:
                if self._streams.get(topic) != stream_id:
                    self._check(topic, stream_id, structure)
        return unknown

    def _check(self, topic: bytes, stream_id: int, structure: Structure) -> None:
        try:
            check_topic(topic)
        except InvalidTopicError as exc:
            raise UnsoundError(str(exc)) from exc
        placement = structure.lookup(topic)
        if placement is None or placement.stream.id != stream_id:
            raise UnsoundError(f"a topic does not belong to its stream: {topic=} {stream_id=}")
        if len(self._streams) >= _TOPICS_REMEMBERED:
            self._streams.clear()
        self._streams[topic] = stream_id
