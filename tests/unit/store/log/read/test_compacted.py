from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from siltstone.store.database import Database
from siltstone.store.log.read.compacted import CompactedTable, OpenFrames, compacted_frames
from siltstone.store.log.read.pieces import Row
from siltstone.store.segment.segment import Segment
from tests.support.builders import World
from tests.support.compacting import compact_all
from tests.support.reading import read_rows

GENERATIONS = 3
ROWS = 40


@contextmanager
def compacted(world: World) -> Iterator[Database]:
    """Yield a database with compacted generations of one frame each, with rows of two streams."""
    with world.database(thresholds=(-1, 0)) as database:
        for generation in range(GENERATIONS):
            for number in range(ROWS):
                topic = f"{'ab'[number % 2]}/{number % 4}"
                database.append([Row(topic, b"%d-%d" % (generation, number))]).wait()
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
