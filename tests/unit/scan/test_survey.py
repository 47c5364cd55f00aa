from __future__ import annotations

from typing import Any

import pytest

from siltstone.errors import NotFoundError, SlabDroppedError, UsageError
from siltstone.scan.portion import Portion, Readable
from siltstone.scan.survey import (
    PlanReport,
    beyond,
    choose,
    opened,
    plan_batch,
    plan_between,
    wanted_serials,
)
from siltstone.store.feed.position import Position
from siltstone.store.log.read.selection import SlabExtent
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import NAME, NOW_US, World, rows_on, settings_of
from tests.support.pipeline import options_of, reader_of


def world_of(*generations: tuple[str, ...], **changes: Any) -> World:
    """Return a world with a generation for each tuple of topics, an append a topic."""
    world = World()
    with world.database(**changes) as database:
        for number, topics in enumerate(generations):
            if number:
                database.seal()
            for topic in topics:
                database.append(rows_on(topic)).wait()
    return world


def as_portion(partition: Readable) -> Portion:
    assert isinstance(partition, Portion)
    return partition


def serials(world: World, **changes: Any) -> list[tuple[SlabId, int, int]]:
    return [
        (run.slab, run.start_serial, run.stop_serial)
        for partition in reader_of(world, **changes).plan().partitions
        for run in as_portion(partition).runs
    ]


FIRST, SECOND, THIRD = SlabId(0, 1), SlabId(0, 2), SlabId(0, 3)


def test_everything_is_planned_where_nothing_is_left_out() -> None:
    world = world_of(("a", "b"), ("c",), ("d", "e"))
    assert serials(world) == [(FIRST, 0, 2), (SECOND, 2, 3), (THIRD, 3, 5)]


def test_generations_outside_of_the_time_are_not_looked_at() -> None:
    world = world_of(("a", "b"), ("c",), ("d", "e"))
    options = options_of(since_us=NOW_US + 2, until_us=NOW_US + 3)
    with opened(world.fs, options) as database:
        report = plan_batch(database, options).report
    assert (report.slabs, report.slabs_read) == (3, 1)
    assert (report.frames, report.frames_read) == (2, 1)


def test_frames_without_a_stream_that_is_wanted_are_not_planned() -> None:
    world = world_of(("a", "b", "a", "c"), ("b", "c"))
    assert serials(world, filters=("b", "x")) == [(FIRST, 1, 2), (SECOND, 4, 5)]


def test_a_topic_by_its_name_is_looked_for_in_its_own_shard() -> None:
    # Both topics are rows of one learned stream, of which each shard has a part.
    world = world_of(("k5", "k0"), shards=2, shard_by="topic", thresholds=(0,))
    report = reader_of(world, filters=("k0",)).plan().report
    assert (report.slabs, report.slabs_read) == (2, 1)
    assert serials(world, filters=("k0",)) == [(SlabId(1, 1), 0, 1)]
    assert serials(world, filters=("k0", "k5")) == serials(world)


def test_a_topic_of_a_stream_by_its_name_is_less_work_than_a_pattern_or_two_names() -> None:
    world = world_of(("s/a/x", "s/b/y") * 20, thresholds=(-1, 0, 0))
    counts = [
        len(reader_of(world, filters=filters, bytes_per_partition=100).plan().partitions)
        for filters in (("#",), ("s/+/x",), ("s/a/x", "s/b/y"), ("s/a/x",))
    ]
    # Of each byte of a frame an eighth counts, and a quarter of that for a name.
    assert counts == [27, 4, 4, 1]


def test_a_plan_reports_what_it_skips() -> None:
    world = world_of(("a", "b", "a"), ("b", "c"), ("c",))
    report = reader_of(world, filters=("a",)).plan().report
    # Each of the three slabs also has a frame that holds its state.
    assert (report.frames, report.frames_read) == (9, 2)
    assert (report.slabs, report.slabs_read) == (3, 1)
    assert (report.streams, report.streams_read) == (5, 1)
    assert 0 < report.bytes_read < report.size_bytes
    assert report.partitions == 1


def test_a_report_is_a_sentence() -> None:
    report = PlanReport(
        slabs=3,
        slabs_read=1,
        streams=5,
        streams_read=2,
        frames=9,
        frames_read=4,
        size_bytes=100,
        bytes_read=50,
        partitions=2,
    )
    assert str(report) == (
        "2 partitions read 1 of 3 slabs, 2 of 5 streams, 4 of 9 frames, 50 of 100 bytes"
    )


@pytest.mark.parametrize(
    ("starting", "ending", "expected"),
    [
        ({0: 1}, {0: 4}, [(FIRST, 1, 2), (SECOND, 2, 3), (THIRD, 3, 4)]),
        ({0: 2}, {0: 3}, [(SECOND, 2, 3)]),
        ({0: 3}, {0: 3}, []),
        ({0: -2}, {0: -1}, [(FIRST, 0, 2), (SECOND, 2, 3), (THIRD, 3, 5)]),
    ],
)
def test_offsets_bound_a_plan(
    starting: dict[int, int], ending: dict[int, int], expected: list[tuple[SlabId, int, int]]
) -> None:
    world = world_of(("a", "b"), ("c",), ("d", "e"))
    assert serials(world, starting=Position(starting), ending=Position(ending)) == expected


@pytest.mark.parametrize(("serial", "lost"), [(2, []), (3, []), (4, [range(3, 4)])])
def test_a_position_one_row_ahead_of_the_store_is_a_loss(serial: int, lost: list[range]) -> None:
    extent = SlabExtent(slab=SlabId(0, 1), serials=range(3), since_us=0, until_us=None)
    assert [loss.serials for loss in beyond({0: serial}, [extent])] == lost


def test_who_asks_for_everything_gets_what_is_left() -> None:
    world = world_of(("a",), ("b",), ("c",))
    with world.database() as database:
        database.drop_slab(SECOND)
    assert serials(world) == [(FIRST, 0, 1), (THIRD, 2, 3)]


def test_a_query_that_starts_behind_the_end_has_lost_what_is_between() -> None:
    world = world_of(("a", "b"))
    assert serials(world, starting=Position({0: 2})) == []
    with pytest.raises(SlabDroppedError, match=r"shard 0, serials 2 to 8;.*failOnDataLoss=false"):
        serials(world, starting=Position({0: 9}))
    assert serials(world, starting=Position({0: 9}), fails_on_loss=False) == []


@pytest.mark.parametrize("ending", [Position({}, default=-1), Position({0: 9})])
def test_who_names_a_serial_that_is_gone_hears_of_it(ending: Position) -> None:
    world = world_of(("a",), ("b",), ("c",))
    with world.database() as database:
        database.drop_slab(FIRST)
    with pytest.raises(SlabDroppedError, match="not in the store: shard 0, serials 0"):
        serials(world, starting=Position({0: 0}), ending=ending)
    assert serials(world, starting=Position({0: 0}), ending=ending, fails_on_loss=False) == [
        (SECOND, 1, 2),
        (THIRD, 2, 3),
    ]


def test_offsets_of_another_database_of_the_name_are_refused_or_passed_over() -> None:
    world = world_of(("a",), ("b",))
    with world.database() as database:
        own = database.identity
    former = "0" * 32
    for changes in (
        {"starting": Position({0: 1}, identity=former)},
        {"ending": Position({0: 1}, identity=former)},
    ):
        with pytest.raises(SlabDroppedError, match=f"offsets={former} database={own}"):
            serials(world, **changes)
        all_rows = [(FIRST, 0, 1), (SECOND, 1, 2)]
        assert serials(world, fails_on_loss=False, **changes) == all_rows
    assert serials(world, starting=Position({0: 1}, identity=own)) == [(SECOND, 1, 2)]
    assert serials(world, starting=Position({0: 1})) == [(SECOND, 1, 2)]


def test_rows_that_come_after_planning_are_not_planned() -> None:
    world = World()
    with world.database() as database:
        database.append(rows_on("a")).wait()
        extents = database.extents()
        database.append(rows_on("b")).wait()
        options = options_of()
        plan = plan_between(database, options, {0: 0}, {0: 1}, extents)
        assert [(run.start_serial, run.stop_serial) for run in plan.partitions[0].runs] == [(0, 1)]


def test_a_slab_that_goes_while_it_is_planned_is_a_loss() -> None:
    world = world_of(("a",), ("b",))
    gone = SlabExtent(slab=SlabId(0, 9), serials=range(5), since_us=0, until_us=None)
    with opened(world.fs, options_of()) as database:
        with pytest.raises(SlabDroppedError, match="shard 0, serials 0 to 4"):
            choose(database, options_of(), gone, range(5))
        assert choose(database, options_of(fails_on_loss=False), gone, range(5)) is None


def test_a_shard_that_the_end_does_not_name_is_left_out() -> None:
    extent = SlabExtent(slab=SlabId(3, 1), serials=range(5), since_us=0, until_us=None)
    assert not wanted_serials(extent, options_of(), {}, {})


@pytest.mark.parametrize("wanted", [2, 5, 16])
def test_a_plan_has_the_partitions_that_are_asked_for(wanted: int) -> None:
    world = World()
    with world.database() as database:
        database.append(rows_on(*(f"t/{number}" for number in range(300)))).wait()
        for number in range(50):
            database.append(rows_on(f"u/{number}")).wait()
        database.seal()
        database.append(rows_on(*(f"v/{number}" for number in range(100)))).wait()
    reader = reader_of(world, partitions_min=wanted)
    partitions = reader.plan().partitions
    assert len(partitions) == wanted
    spans = sorted(
        (run.start_serial, run.stop_serial) for part in partitions for run in as_portion(part).runs
    )
    # Runs of one frame in two partitions meet; each serial is read once.
    assert [start for start, _ in spans] == [0, *(stop for _, stop in spans[:-1])]
    assert spans[-1][1] == 450


def test_a_plan_has_no_more_partitions_than_rows() -> None:
    world = world_of(("a", "b", "c"))
    assert len(reader_of(world, partitions_min=64).plan().partitions) == 3


def test_the_only_database_need_not_be_named() -> None:
    world = world_of(("a",))
    with opened(world.fs, options_of()) as database:
        assert database.name == NAME
    with world.store() as store:
        store.create("other", settings_of())
    with pytest.raises(UsageError, match=r"database is missing.*found: messages, other"):
        serials(world)
    with opened(world.fs, options_of(database="other")) as database:
        assert database.name == "other"
    with pytest.raises(NotFoundError, match="database 'third' does not exist"):
        serials(world, database="third")


def test_a_directory_that_is_no_store_is_told() -> None:
    with pytest.raises(NotFoundError, match="/elsewhere is not a Siltstone data directory"):
        serials(World(), path="/elsewhere")
