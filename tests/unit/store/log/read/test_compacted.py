from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from weakref import ref

import numpy as np
import pyarrow as pa

from siltstone.store.database import Database
from siltstone.store.log.read.compacted import CompactedTable, OpenFrames, compacted_frames
from siltstone.store.log.read.pieces import Row
from siltstone.store.segment.frame import VALUE_OFFSETS, VALUES
from siltstone.store.segment.segment import Segment
from tests.support.builders import World
from tests.support.compacting import compact_all
from tests.support.reading import read_rows

GENERATIONS = 3
ROWS = 40


@contextmanager
def compacted(world: World, value_bytes: int = 0) -> Iterator[Database]:
    """Yield a database with compacted generations of one frame each, with rows of two streams.

    After its start, each value has `value_bytes` that cannot be compressed.
    """
    random = Random(1)
    with world.database(thresholds=(-1, 0)) as database:
        for generation in range(GENERATIONS):
            for number in range(ROWS):
                topic = f"{'ab'[number % 2]}/{number % 4}"
                value = b"%d-%d" % (generation, number) + random.randbytes(value_bytes)
                database.append([Row(topic, value)]).wait()
            database.seal()
        compact_all(database)
        yield database


def segments(database: Database) -> list[Segment]:
    slabs = [database._shards.slab(each.slab) for each in database.extents()]  # noqa: SLF001
    found = [handle.segment() for slab in slabs for handle in slab.handles()]
    return [segment for segment in found if segment.is_compacted]


def opened_frames(segment: Segment, opened: OpenFrames) -> list[CompactedTable]:
    numbers = range(segment.index.frame_count)
    frames = list(compacted_frames(segment, numbers, opened))
    return [frame for frame in frames if isinstance(frame, CompactedTable)]


def test_a_frame_is_opened_once_for_the_streams_of_a_segment() -> None:
    with compacted(World()) as database:
        segment = segments(database)[0]
        opened = OpenFrames()
        first = opened_frames(segment, opened)
        assert len(first) == 1
        again = opened_frames(segment, opened)
        assert [id(frame) for frame in again] == [id(frame) for frame in first]
        assert list(segment.opened.values()) == first


def test_the_oldest_frames_are_closed_when_there_is_too_much_memory() -> None:
    with compacted(World()) as database:
        found = segments(database)
        sizes = [opened_frames(segment, OpenFrames())[0].held_bytes for segment in found]
        opened = OpenFrames(sizes[1] + sizes[2])
        for segment in found:
            segment.opened.clear()
            opened_frames(segment, opened)
        assert [len(segment.opened) for segment in found] == [0, 1, 1]


def values_of(frame: CompactedTable) -> pa.Array:
    items = np.arange(ROWS, dtype=np.int64)
    return frame.texts(VALUE_OFFSETS, VALUES, items * 0, items, pa.binary())


def test_frames_are_closed_too_when_the_values_that_are_read_take_the_memory() -> None:
    with compacted(World(), value_bytes=1000) as database:
        found = segments(database)
        opened = OpenFrames(ROWS * 1000 * 5 // 2)
        for segment in found:
            opened_frames(segment, opened)
        assert [len(segment.opened) for segment in found] == [1, 1, 1]
        for segment in found:
            for frame in compacted_frames(segment, range(segment.index.frame_count), opened):
                if isinstance(frame, CompactedTable):
                    assert len(values_of(frame)) == ROWS
        assert [len(segment.opened) for segment in found] == [0, 1, 1]


def test_values_that_a_reader_read_last_count_for_the_next_reader_of_an_open_frame() -> None:
    with compacted(World(), value_bytes=1000) as database:
        found = segments(database)
        opened = OpenFrames(ROWS * 1000 * 5 // 2)
        for frame in [opened_frames(segment, opened)[0] for segment in found]:
            values_of(frame)
        assert [len(segment.opened) for segment in found] == [1, 1, 1]
        opened_frames(found[-1], opened)
        assert [len(segment.opened) for segment in found] == [0, 1, 1]


def test_a_segment_with_open_frames_is_released_with_its_last_reference() -> None:
    with compacted(World()) as database:
        first = segments(database)[0]
        segment = Segment(first.path, first.view)
        segment.index = first.index
        assert len(opened_frames(segment, OpenFrames())) == 1
        gone = ref(segment)
        gc.disable()
        try:
            del segment
            assert gone() is None
        finally:
            gc.enable()


def test_a_filter_keeps_its_frames_open_and_a_whole_read_does_not() -> None:
    with compacted(World()) as database:
        assert len(read_rows(database, "#")) == GENERATIONS * ROWS
        assert [len(segment.opened) for segment in segments(database)] == [0] * GENERATIONS
        for _ in range(2):
            rows = read_rows(database, "a/2")
            assert [(row.topic, row.value) for row in rows] == [
                ("a/2", b"%d-%d" % (generation, number))
                for generation in range(GENERATIONS)
                for number in range(2, ROWS, 4)
            ]
        assert [len(segment.opened) for segment in segments(database)] == [1] * GENERATIONS
