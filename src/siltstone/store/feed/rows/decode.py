"""Convert rows of frames to lists of Python values. Compiled.

If most rows of a column are wanted, the whole column is copied from the map and cut in memory: a
slice of bytes costs a third of a slice of a map. Numbers are read from the bytes, so that only the
numbers that are returned become Python objects.
"""

from __future__ import annotations

from librt.strings import read_i16_le, read_i32_le, read_i64_le
from mypy_extensions import i64

from siltstone.rows.stored import StoredBatch
from siltstone.store.log.read.frame_rows import FrameRows
from siltstone.store.log.read.pieces import Piece
from siltstone.store.segment.frame import (
    DIRECTORY,
    FLAGS,
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
from siltstone.store.segment.view import FrameView


def rows_in(piece: Piece) -> list[int]:
    """Return the rows of a piece by their number in the frame."""
    picked = piece.picked
    start = piece.start
    if picked is None:
        return list(range(start, piece.stop))
    numbers = [int(number) for number in memoryview(picked.buffers()[1]).cast("B").cast("Q")]
    first = picked.offset
    return [start + number for number in numbers[first : first + len(picked)]]


def serials_of(parts: list[Piece | FrameRows]) -> list[int]:
    """Return the serial of each row."""
    serials: list[int] = []
    for piece in parts:
        if isinstance(piece, FrameRows):
            serials.extend(piece.serials().tolist())
            continue
        rows = range(piece.start, piece.stop) if piece.picked is None else rows_in(piece)
        serials.extend(piece.frame.serials_at(rows))
    return serials


def load_parts(parts: list[Piece | FrameRows], batch: StoredBatch) -> None:
    """Create the lists of a batch from the rows that were read."""
    # Another thread may read the batch meanwhile: it gets lists that are complete.
    read = StoredBatch(
        batch.shard, batch.generation, batch.start_serial, batch.stop_serial, batch.count
    )
    names: dict[bytes, bytes] = {}
    with_properties = mixed = False
    for piece in parts:
        if isinstance(piece, FrameRows):
            with_properties = with_properties or piece.has_properties()
            mixed = mixed or piece.is_mixed()
            continue
        if piece.frame.has_properties():
            with_properties = True
        if piece.frame.table.lengths[STREAMS] > DIRECTORY.size:
            mixed = True
    for piece in parts:
        if isinstance(piece, FrameRows):
            piece.load(read, names, properties=with_properties)
            continue
        frame = piece.frame
        rows = None if piece.picked is None else rows_in(piece)
        read.topics += _topics(frame, piece, rows, names)
        read.values += _strings(frame, VALUE_OFFSETS, VALUES, piece, rows)
        if with_properties:
            read.properties += _strings(frame, PROPERTY_OFFSETS, PROPERTIES, piece, rows)
        read.timestamps += _times(frame, piece, rows)
        read.flags += _flags(frame, piece, rows)
        read.publishers += _publishers(frame, piece, rows)
    batch.topics = read.topics
    batch.values = read.values
    batch.properties = read.properties
    batch.timestamps = read.timestamps
    batch.flags = read.flags
    batch.publishers = read.publishers
    batch.names = list(names)
    batch.mixed = mixed


def streams_of(parts: list[Piece | FrameRows]) -> list[tuple[int, int]]:
    """Return the streams of the rows, in order: (stream id, number of rows)."""
    streams: list[tuple[int, int]] = []
    for piece in parts:
        if isinstance(piece, FrameRows):
            streams += piece.stream_runs()
            continue
        rows = None if piece.picked is None else rows_in(piece)
        for stream_id, first, count, _, _ in piece.frame.directory():
            if rows is None:
                mine = min(first + count, piece.stop) - max(first, piece.start)
            else:
                mine = 0
                for row in rows:
                    if first <= row < first + count:
                        mine += 1
            if mine > 0:
                streams.append((stream_id, mine))
    return streams


def _strings(
    frame: FrameView, offsets_id: int, data_id: int, piece: Piece, rows: list[int] | None
) -> list[bytes]:
    section = frame.section(offsets_id)
    data = frame.section(data_id)
    count: int = piece.num_rows
    if section is None or data is None:
        return [b""] * count
    if rows is not None and 4 * count <= piece.stop - piece.start:
        return _words(section, data, rows)
    found = _cut(section, data, piece.start, piece.stop)
    if rows is None:
        return found
    start = piece.start
    return [found[row - start] for row in rows]


def _cut(section: memoryview, data: memoryview, start: int, stop: int) -> list[bytes]:
    """Return the entries from start to stop of a column of strings."""
    bounds = bytes(section[4 * start : 4 * stop + 4])
    count: i64 = stop - start
    first: i64 = i64(read_i32_le(bounds, 0))
    whole = bytes(data[first : i64(read_i32_le(bounds, 4 * count))])
    found: list[bytes] = []
    begin: i64 = 0
    at: i64 = 4
    while at <= 4 * count:
        end: i64 = i64(read_i32_le(bounds, at)) - first
        found.append(whole[begin:end])
        begin = end
        at += 4
    return found


def _words(section: memoryview, data: memoryview, wanted: list[int]) -> list[bytes]:
    """Return some entries of a column of strings by number."""
    offsets = section.cast("i")
    return [bytes(data[offsets[number] : offsets[number + 1]]) for number in wanted]


def _integers(section: memoryview, width: int, piece: Piece, rows: list[int] | None) -> list[int]:
    numbers = section
    if width == 2:
        numbers = section.cast("h")
    elif width == 4:
        numbers = section.cast("i")
    if rows is None:
        return numbers[piece.start : piece.stop].tolist()
    return [numbers[row] for row in rows]


def _topics(
    frame: FrameView, piece: Piece, rows: list[int] | None, names: dict[bytes, bytes]
) -> list[bytes]:
    """Return the topic of each row; add the topics that are new to the batch to `names`."""
    index = frame.section(TOPIC_INDEX)
    offsets = frame.section(TOPIC_OFFSETS)
    data = frame.section(TOPICS)
    assert index is not None
    assert offsets is not None
    assert data is not None
    width = frame.table.widths[TOPIC_INDEX]
    if rows is None and piece.stop - piece.start == frame.header.row_count:
        words = _cut(offsets, data, 0, len(offsets) // 4 - 1)
        for number in range(len(words)):
            word = words[number]
            words[number] = names.setdefault(word, word)
        return _chosen(words, bytes(index[: frame.header.row_count * width]), width)
    local = _integers(index, width, piece, rows)
    used = list(dict.fromkeys(local))
    mapping: dict[int, bytes] = {}
    some = _words(offsets, data, used)
    for number in range(len(used)):
        word = some[number]
        mapping[used[number]] = names.setdefault(word, word)
    return [mapping[number] for number in local]


def _chosen(words: list[bytes], index: bytes, width: int) -> list[bytes]:
    """Return the word of each row; `index` is a column of word numbers."""
    chosen: list[bytes] = []
    size: i64 = len(index)
    at: i64 = 0
    if width == 1:
        for number in index:
            chosen.append(words[number])  # noqa: PERF401 - a loop compiles best
    elif width == 2:
        while at < size:
            chosen.append(words[i64(read_i16_le(index, at))])
            at += 2
    else:
        while at < size:
            chosen.append(words[i64(read_i32_le(index, at))])
            at += 4
    return chosen


def _times(frame: FrameView, piece: Piece, rows: list[int] | None) -> list[int]:
    section = frame.section(TIMESTAMPS)
    if section is None:
        return []
    width: i64 = frame.table.widths[TIMESTAMPS]
    first: int = 0 if width == 8 else frame.header.first_timestamp_us
    if rows is not None:
        times = frame.times()
        return [times[row] for row in rows]
    column = bytes(section[piece.start * width : piece.stop * width])
    found: list[int] = []
    size: i64 = len(column)
    at: i64 = 0
    if width == 1:
        for after in column:
            found.append(first + after)  # noqa: PERF401 - a loop compiles best
    elif width == 2:
        while at < size:
            found.append(first + i64(read_i16_le(column, at)))
            at += 2
    elif width == 4:
        while at < size:
            found.append(first + i64(read_i32_le(column, at)))
            at += 4
    else:
        while at < size:
            found.append(read_i64_le(column, at))
            at += 8
    return found


def _flags(frame: FrameView, piece: Piece, rows: list[int] | None) -> list[int]:
    section = frame.section(FLAGS)
    if section is None:
        return [0] * piece.num_rows
    if len(section) == 1:
        return [int(section[0])] * piece.num_rows
    return _integers(section, 1, piece, rows)


def _publishers(frame: FrameView, piece: Piece, rows: list[int] | None) -> list[bytes]:
    data = frame.section(PUBLISHERS)
    if data is None:
        return [b""] * piece.num_rows
    index = frame.section(PUBLISHER_INDEX)
    if index is None:
        return [bytes(data)] * piece.num_rows
    offsets = frame.section(PUBLISHER_OFFSETS)
    assert offsets is not None
    width = frame.table.widths[PUBLISHER_INDEX]
    if rows is None:
        words = _cut(offsets, data, 0, len(offsets) // 4 - 1)
        return _chosen(words, bytes(index[piece.start * width : piece.stop * width]), width)
    local = _integers(index, width, piece, rows)
    used = list(dict.fromkeys(local))
    mapping = dict(zip(used, _words(offsets, data, used), strict=True))
    return [mapping[number] for number in local]
