"""Builders of small frames and segments; the test chooses every field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Final, NamedTuple

import pyarrow as pa

from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.log.write.frame_builder import BuiltFrame
from siltstone.store.segment.body import (
    StreamRows,
    directory_of,
    encode_rows,
    encode_state,
    pack_rows,
)
from siltstone.store.segment.chain import state_header
from siltstone.store.segment.frame import (
    PACKED,
    PLAIN,
    ROWS,
    FrameHeader,
    decode_header,
    encode_frame,
)
from siltstone.store.segment.segment import Segment, SegmentHeader
from siltstone.store.segment.view import FrameView, compress, open_frame
from siltstone.store.segment.writer import SegmentWriter, create_segment

SEED: Final = 0x5EEDF00D
SLAB: Final = PurePath("/slab")
NOW_US: Final = 1_700_000_000_000_000
SEGMENT_BYTES: Final = 64 * 1024

HEADER_FIELDS: Final = (
    "crc",
    "length",
    "kind",
    "compression",
    "section_count",
    "first_serial",
    "row_count",
    "stream_count",
    "first_timestamp_us",
    "last_timestamp_us",
    "synced_position",
    "body_bytes",
)


class Frame(NamedTuple):
    """A frame before it is written: the arguments of `SegmentWriter.write`."""

    header: FrameHeader
    body: bytes
    directory: list[tuple[int, int, int, int, int]]


def header_fields(header: FrameHeader) -> dict[str, int]:
    """Return a header as a value that can be compared."""
    return {name: getattr(header, name) for name in HEADER_FIELDS}


def stream_rows(
    stream_id: int,
    values: Sequence[bytes],
    timestamps: Sequence[int],
    topics: Sequence[bytes] | None = None,
) -> StreamRows:
    """Return rows with only a time and a value, all of one topic or each of its own."""
    rows = StreamRows(stream_id)
    rows.topics.extend([b"t%d" % stream_id] if topics is None else topics)
    for number, (timestamp_us, value) in enumerate(zip(timestamps, values, strict=True)):
        rows.add(timestamp_us, 0 if topics is None else number, value)
    return rows


def rows_frame(
    streams: Mapping[int, Sequence[bytes]],
    *,
    serial: int = 0,
    timestamp_us: int = NOW_US,
    compression: int = PLAIN,
    edges: bytes = b"",
    producers: bytes = b"",
) -> Frame:
    """Return a frame with these values by stream; the times rise by one for each row."""
    built = _built(streams, timestamp_us)
    built.edges = edges
    built.producers = producers
    return built_frame(built, serial=serial, compression=compression)


def _built(streams: Mapping[int, Sequence[bytes]], timestamp_us: int) -> BuiltFrame:
    built = BuiltFrame(timestamp_us)
    for stream_id, values in sorted(streams.items()):
        first_us = timestamp_us + built.row_count
        times = range(first_us, first_us + len(values))
        built.streams.append(stream_rows(stream_id, values, times))
        built.row_count += len(values)
    return built


def frame_bytes(frame: Frame, seed: int = SEED) -> bytes:
    """Return the stored bytes of a frame."""
    return encode_frame(frame.header, frame.body, seed) + frame.body


def view_of(data: bytes, position: int = 0) -> FrameView:
    """Open the frame at a position of the data."""
    view = memoryview(data)
    header = decode_header(view, position, len(data))
    assert header is not None
    return open_frame(view, pa.py_buffer(data), position, header)


class StoredRow(NamedTuple):
    """A row in a frame."""

    stream_id: int
    serial: int
    timestamp_us: int
    topic: str
    value: bytes
    publisher: str
    flags: int
    properties: bytes


def rows_in(frame: FrameView) -> list[StoredRow]:
    """Return the rows of a frame in order of serials, read through Arrow."""
    rows: list[StoredRow] = []
    topics = frame.all_topics().to_pylist()
    publisher = frame.publisher()
    names = frame.publisher_words().to_pylist() if publisher is None else []
    for stream_id, first, count, _, _ in frame.directory():
        stop = first + count
        flags = frame.flags(first, stop)
        columns = zip(
            frame.timestamps(first, stop).to_pylist(),
            [topics[number] for number in frame.topic_numbers(first, stop).to_pylist()],
            frame.values(first, stop).to_pylist(),
            [names[number] for number in frame.publisher_numbers(first, stop).to_pylist()]
            if publisher is None
            else [publisher] * count,
            [flags] * count if isinstance(flags, int) else flags.to_pylist(),
            frame.properties(first, stop).to_pylist(),
            strict=True,
        )
        serials = range(frame.header.first_serial + first, frame.header.first_serial + stop)
        rows += [
            StoredRow(stream_id, serial, *row) for serial, row in zip(serials, columns, strict=True)
        ]
    return rows


def built_frame(built: BuiltFrame, *, serial: int = 0, compression: int = PLAIN) -> Frame:
    """Return the frame that the committer writes for built rows."""
    plain, sections = encode_rows(
        built.streams, built.publishers, built.flags, built.edges, built.producers
    )
    header = FrameHeader(
        kind=ROWS,
        compression=compression,
        section_count=sections,
        first_serial=serial,
        row_count=built.row_count,
        stream_count=len(built.streams),
        first_timestamp_us=built.timestamp_us,
        last_timestamp_us=built.timestamp_us + built.row_count - 1,
        body_bytes=len(plain),
    )
    return Frame(header, compress(plain, compression), directory_of(built.streams))


def packed_frame(built: BuiltFrame, *, serial: int = 0) -> Frame:
    """Return the packed frame of built rows."""
    body = pack_rows(
        built.streams,
        built.publishers,
        built.flags,
        built.edges,
        built.producers,
        built.timestamp_us,
    )
    assert body is not None
    header = FrameHeader(
        kind=ROWS,
        compression=PACKED,
        section_count=0,
        first_serial=serial,
        row_count=built.row_count,
        stream_count=len(built.streams),
        first_timestamp_us=built.timestamp_us,
        last_timestamp_us=built.timestamp_us + built.row_count - 1,
        body_bytes=len(body),
    )
    return Frame(header, body, directory_of(built.streams))


def packed_rows(
    streams: Mapping[int, Sequence[bytes]], *, serial: int = 0, timestamp_us: int = NOW_US
) -> Frame:
    """Return a packed frame with these values by stream; the times rise by one for each row."""
    return packed_frame(_built(streams, timestamp_us), serial=serial)


def segment_header(
    *, base_serial: int = 0, file_bytes: int = SEGMENT_BYTES, shard: int = 3, generation: int = 7
) -> SegmentHeader:
    return SegmentHeader(
        database="plant",
        shard=shard,
        generation=generation,
        base_serial=base_serial,
        file_bytes=file_bytes,
        created_us=NOW_US,
        seed=SEED,
    )


def slab_fs(*, capacity_bytes: int = 1 << 60) -> MemoryFileSystem:
    """Return a file system with an empty slab directory."""
    fs = MemoryFileSystem(page_bytes=4096, capacity_bytes=capacity_bytes)
    fs.make_directory(SLAB)
    fs.sync_directory(SLAB.parent)
    return fs


def new_segment(
    fs: MemoryFileSystem,
    *,
    base_serial: int = 0,
    file_bytes: int = SEGMENT_BYTES,
    edges: bytes = b"",
    producers: bytes = b"",
) -> SegmentWriter:
    """Create a segment in the slab directory, with the given contents of its state frame."""
    body, sections = encode_state(edges, producers)
    state = state_header(body, sections, serial=base_serial, timestamp_us=NOW_US - 1)
    header = segment_header(base_serial=base_serial, file_bytes=file_bytes)
    return create_segment(fs, SLAB, header, state, body)


def store(writer: SegmentWriter, frame: Frame, *, sync: bool = True) -> int:
    """Write a frame and make it visible to readers; return its position."""
    position = writer.end_position
    writer.write(*frame)
    if sync:
        writer.sync()
    writer.publish()
    return position


def values_in(segment: Segment) -> list[bytes]:
    """Return the values of all frames in the index, in order."""
    values: list[bytes] = []
    for number in range(segment.index.frame_count):
        frame = segment.frame(number)
        values.extend(frame.values(0, frame.header.row_count).to_pylist())
    return values
