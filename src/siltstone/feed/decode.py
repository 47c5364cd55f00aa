"""Pieces of frames as lists of Python values. Compiled.

Columns are copied out of the map as a whole where most of their rows are wanted, and cut in memory:
a slice of bytes costs a third of one of a map.
"""

from __future__ import annotations

from siltstone.feed.batch import FeedBatch
from siltstone.segment.frame import (
    FLAGS,
    PROPERTIES,
    PROPERTY_OFFSETS,
    PUBLISHER_INDEX,
    PUBLISHER_OFFSETS,
    PUBLISHERS,
    TOPIC_INDEX,
    TOPIC_OFFSETS,
    TOPICS,
    VALUE_OFFSETS,
    VALUES,
)
from siltstone.segment.view import FrameView
from siltstone.store.rows import Piece


def rows_in(piece: Piece) -> list[int]:
    """Return the rows of a piece by their number in the frame."""
    picked = piece.picked
    start = piece.start
    if picked is None:
        return list(range(start, piece.stop))
    numbers = [int(number) for number in memoryview(picked.buffers()[1]).cast("B").cast("Q")]
    first = picked.offset
    return [start + number for number in numbers[first : first + len(picked)]]


def serials_of(pieces: list[Piece]) -> list[int]:
    """Return the serial of each row."""
    serials: list[int] = []
    for piece in pieces:
        first: int = piece.frame.header.first_serial
        if piece.picked is None:
            serials.extend(range(first + piece.start, first + piece.stop))
        else:
            serials += [first + row for row in rows_in(piece)]
    return serials


def load_pieces(pieces: list[Piece], batch: FeedBatch) -> None:
    """Make the lists of a batch from what was read."""
    numbers: list[int] = []
    values: list[bytes] = []
    flags: list[int] = []
    timestamps: list[int] = []
    publishers: list[bytes] = []
    properties: list[bytes] = []
    streams: list[tuple[int, int]] = []
    names: dict[bytes, int] = {}
    with_properties = False
    for piece in pieces:
        if piece.frame.has_properties():
            with_properties = True
    for piece in pieces:
        frame = piece.frame
        rows = None if piece.picked is None else rows_in(piece)
        numbers += _name_numbers(frame, piece, rows, names)
        values += _strings(frame, VALUE_OFFSETS, VALUES, piece, rows)
        if with_properties:
            properties += _strings(frame, PROPERTY_OFFSETS, PROPERTIES, piece, rows)
        timestamps += _times(frame, piece, rows)
        flags += _flags(frame, piece, rows)
        publishers += _publishers(frame, piece, rows)
        _add_streams(frame, piece, rows, streams)
    distinct = list(names)
    batch.topics = [distinct[number] for number in numbers]
    batch.values = values
    batch.properties = properties
    batch.timestamps = timestamps
    batch.flags = flags
    batch.publishers = publishers
    batch.streams = streams
    batch.numbers = numbers
    batch.names = distinct


def _strings(
    frame: FrameView, offsets_id: int, data_id: int, piece: Piece, rows: list[int] | None
) -> list[bytes]:
    section = frame.section(offsets_id)
    data = frame.section(data_id)
    count: int = piece.num_rows
    if section is None or data is None:
        return [b""] * count
    offsets = section.cast("i")
    if rows is not None and 4 * count <= piece.stop - piece.start:
        return [bytes(data[offsets[row] : offsets[row + 1]]) for row in rows]
    bounds = offsets[piece.start : piece.stop + 1].tolist()
    first: int = bounds[0]
    whole = bytes(data[first : bounds[-1]])
    found: list[bytes] = []
    if rows is None:
        begin = 0
        for bound in bounds[1:]:
            end: int = bound - first
            found.append(whole[begin:end])
            begin = end
    else:
        start = piece.start
        for row in rows:
            begin = bounds[row - start] - first
            end = bounds[row - start + 1] - first
            found.append(whole[begin:end])
    return found


def _integers(section: memoryview, width: int, piece: Piece, rows: list[int] | None) -> list[int]:
    numbers = section
    if width == 2:
        numbers = section.cast("h")
    elif width == 4:
        numbers = section.cast("i")
    elif width == 8:
        numbers = section.cast("q")
    if rows is None:
        return numbers[piece.start : piece.stop].tolist()
    return [numbers[row] for row in rows]


def _words(frame: FrameView, offsets_id: int, data_id: int, wanted: list[int]) -> list[bytes]:
    """Return dictionary entries of a frame by number."""
    section = frame.section(offsets_id)
    data = frame.section(data_id)
    if section is None or data is None:
        return [b""] * len(wanted)
    offsets = section.cast("i")
    return [bytes(data[offsets[number] : offsets[number + 1]]) for number in wanted]


def _name_numbers(
    frame: FrameView, piece: Piece, rows: list[int] | None, names: dict[bytes, int]
) -> list[int]:
    """Return which of the batch's distinct topics each row has; enter those that are new."""
    section = frame.section(TOPIC_INDEX)
    assert section is not None
    local = _integers(section, frame.table.widths[TOPIC_INDEX], piece, rows)
    used = list(dict.fromkeys(local))
    mapping: dict[int, int] = {}
    words = _words(frame, TOPIC_OFFSETS, TOPICS, used)
    for i in range(len(used)):
        word = words[i]
        number = names.get(word)
        if number is None:
            number = len(names)
            names[word] = number
        mapping[used[i]] = number
    return [mapping[number] for number in local]


def _times(frame: FrameView, piece: Piece, rows: list[int] | None) -> list[int]:
    times = frame.times()
    if rows is None:
        return times[piece.start : piece.stop].tolist()
    return [times[row] for row in rows]


def _flags(frame: FrameView, piece: Piece, rows: list[int] | None) -> list[int]:
    section = frame.section(FLAGS)
    if section is None:
        return [0] * piece.num_rows
    if len(section) == 1:
        return [int(section[0])] * piece.num_rows
    return _integers(section, 1, piece, rows)


def _publishers(frame: FrameView, piece: Piece, rows: list[int] | None) -> list[bytes]:
    words = frame.section(PUBLISHERS)
    if words is None:
        return [b""] * piece.num_rows
    index = frame.section(PUBLISHER_INDEX)
    if index is None:
        return [bytes(words)] * piece.num_rows
    local = _integers(index, frame.table.widths[PUBLISHER_INDEX], piece, rows)
    used = list(dict.fromkeys(local))
    names = _words(frame, PUBLISHER_OFFSETS, PUBLISHERS, used)
    mapping: dict[int, bytes] = {}
    for i in range(len(used)):
        mapping[used[i]] = names[i]
    return [mapping[number] for number in local]


def _add_streams(
    frame: FrameView, piece: Piece, rows: list[int] | None, streams: list[tuple[int, int]]
) -> None:
    """Say which stream the rows belong to."""
    for stream_id, first, count, _, _ in frame.directory():
        if rows is None:
            mine = min(first + count, piece.stop) - max(first, piece.start)
        else:
            mine = 0
            for row in rows:
                if first <= row < first + count:
                    mine += 1
        if mine > 0:
            streams.append((stream_id, mine))
