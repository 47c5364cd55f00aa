"""Many small frames that are read at once give what each frame by itself gives."""

from __future__ import annotations

from functools import partial

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.rows.decode import load_parts, serials_of, streams_of
from siltstone.store.log.read.frame_rows import FrameRows, all_rows
from siltstone.store.log.read.pieces import COLUMNS, Piece, Row
from siltstone.store.log.read.scan import Span, read_slab, read_stream
from siltstone.store.log.read.selection import MANY, stream_ids
from siltstone.store.log.slab import Slab
from siltstone.store.segment.segment import Segment
from siltstone.store.segment.table import FrameTable
from siltstone.topic.grammar import TopicFilter
from tests.support.builders import World, begun, call_of, naive_match
from tests.support.frame_rows import FILTERS, a_row


def some_frames() -> st.SearchStrategy[list[list[Row]]]:
    """Most frames are of one or two rows; one may be so large that its times are offsets."""
    small = st.lists(a_row(), min_size=1, max_size=3)
    return st.lists(
        st.one_of(small, small, small, st.lists(a_row(), min_size=1, max_size=40)),
        min_size=1,
        max_size=20,
    )


def stored(frames: list[list[Row]], compression: str) -> tuple[Slab, Segment]:
    committer = begun(World(), thresholds=(-1, 1, 0), compression=compression)
    for rows in frames:
        committer.commit([call_of(*rows)])
    return committer.slab, committer.slab.handles()[-1].segment()


def numbers_of(segment: Segment) -> list[int]:
    return list(segment.index.frames_for(segment.index.stream_rows, range(1 << 62)).numbers)


def pieces_of(slab: Slab, segment: Segment, numbers: list[int]) -> list[Piece]:
    frames = [segment.frame(number) for number in numbers]
    return [
        Piece(slab=slab.id, stream=MANY, frame=frame, start=0, stop=frame.header.row_count)
        for frame in frames
        if frame.header.row_count
    ]


def column(parts: list[Piece], name: str) -> pa.Array:
    if name == "stream":
        return pa.concat_arrays([stream_ids(part).view(pa.uint64()) for part in parts])
    return pa.concat_arrays([part.column(name) for part in parts])


def table_of(segment: Segment) -> tuple[FrameTable, list[int]]:
    numbers = [n for n in numbers_of(segment) if segment.index.row_counts[n]]
    table = segment.table(numbers)
    assert table is not None
    assert len(table) == len(numbers)
    return table, numbers


@given(some_frames(), st.data())
def test_every_column_of_many_frames_is_that_of_each_frame(
    frames: list[list[Row]], data: st.DataObject
) -> None:
    slab, segment = stored(frames, "none")
    table, numbers = table_of(segment)
    rows = all_rows(slab.id, table)
    pieces = pieces_of(slab, segment, numbers)
    chosen = data.draw(st.lists(st.integers(0, rows.num_rows - 1), max_size=9))
    for name in COLUMNS:
        expected = column(pieces, name)
        found = rows.column(name)
        found.validate(full=True)
        assert found.equals(expected), name
        some = rows.pick(np.array(chosen, np.int64)).column(name)
        assert some.equals(expected.take(pa.array(chosen, pa.int64()))), name
    assert rows.rows() == [row for piece in _by_stream(slab, pieces) for row in piece.rows()]
    ordered = rows.sorted_by_time()
    assert ordered.times().tolist() == sorted(rows.times().tolist())


def _by_stream(slab: Slab, pieces: list[Piece]) -> list[Piece]:
    """Cut pieces into those of one stream, as Python rows are made of."""
    return [
        Piece(slab=slab.id, stream=stream, frame=piece.frame, start=first, stop=first + count)
        for piece in pieces
        for stream_id, first, count, _, _ in piece.frame.directory()
        for stream in [match.stream for match in slab.match(TopicFilter.parse("#"))]
        if stream.id == stream_id
    ]


@given(some_frames())
def test_lists_of_many_frames_are_those_of_each_frame(frames: list[list[Row]]) -> None:
    slab, segment = stored(frames, "none")
    table, numbers = table_of(segment)
    one: list[Piece | FrameRows] = [all_rows(slab.id, table)]
    many: list[Piece | FrameRows] = [*pieces_of(slab, segment, numbers)]
    assert serials_of(one) == serials_of(many)
    assert _ids(streams_of(one)) == _ids(streams_of(many))
    batches = []
    for parts in (one, many):
        batch = StoredBatch(0, 1, 0, 0, sum(part.num_rows for part in parts))
        batch.loader = partial(load_parts, parts)
        batch.load()
        batches.append(batch)
    for name in ("topics", "values", "flags", "timestamps", "publishers", "properties", "mixed"):
        assert getattr(batches[0], name) == getattr(batches[1], name), name
    assert set(batches[0].names) == set(batches[1].names)


def _ids(streams: list[tuple[int, int]]) -> list[int]:
    return [stream_id for stream_id, count in streams for _ in range(count)]


@given(
    some_frames(),
    st.sampled_from(FILTERS),
    st.sampled_from(["none", "zstd"]),
    st.integers(0, 30),
    st.integers(0, 60),
)
def test_filters_spans_and_serials_select_the_rows_of_a_naive_model(
    frames: list[list[Row]], text: str, compression: str, first: int, count: int
) -> None:
    slab, _ = stored(frames, compression)
    everything = sorted(
        row
        for parts in read_slab(slab, slab.match(TopicFilter.parse("#")), Span())
        for part in parts
        for row in part.rows()
    )
    assert len(everything) == sum(map(len, frames))
    times = sorted(row.timestamp_us for row in everything)
    since, until = times[min(first, len(times) - 1)], times[min(first + count, len(times) - 1)]
    serials = range(first, first + count)
    matches = slab.match(TopicFilter.parse(text))
    found = [
        row
        for parts in read_slab(slab, matches, Span(since_us=since, until_us=until), serials=serials)
        for part in parts
        for row in part.rows()
    ]
    assert sorted(found) == [
        row
        for row in everything
        if naive_match(text, row.topic)
        if since <= row.timestamp_us < until
        if row.serial in serials
    ]


@given(some_frames(), st.sampled_from(FILTERS), st.integers(1, 12), st.integers(0, 30))
def test_a_stream_is_read_in_parts_of_any_size(
    frames: list[list[Row]], text: str, rows_max: int, start: int
) -> None:
    slab, _ = stored(frames, "none")
    for match in slab.match(TopicFilter.parse(text)):
        whole = read_stream(slab, match, start, Span(), 10_000, ended=True)
        expected = [row for part in whole.parts for row in part.rows()]
        found: list[Row] = []
        serial = start
        while True:
            read = read_stream(slab, match, serial, Span(), rows_max, ended=True)
            rows = [row for part in read.parts for row in part.rows()]
            assert len(rows) == read.num_rows <= rows_max
            assert all(serial <= row.serial < read.next_serial for row in rows)
            found += rows
            serial = read.next_serial
            if read.num_rows < rows_max:
                break
        assert found == expected
        assert serial == whole.next_serial
