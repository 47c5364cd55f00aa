from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from siltstone.store.log.read.cursor import ShardPlan, read_in_time_order
from siltstone.store.log.read.pieces import COLUMNS, SCHEMA
from siltstone.store.log.read.scan import Span
from siltstone.store.log.write.committer import Committer
from siltstone.store.log.write.frame_builder import Call
from siltstone.topic.grammar import TopicFilter
from tests.support.builders import NOW_US, World, begun, call_on
from tests.support.row_batches import row_batch
from tests.support.rows import rows_of

ALWAYS = Span()
SPREAD: dict[str, Any] = {"thresholds": (-1, 0)}


def plan(*committers: Committer, topic_filter: str = "#") -> ShardPlan:
    """Plan to read slabs of one shard, up to where they end now."""
    parsed = TopicFilter.parse(topic_filter)
    return [
        (committer.slab, committer.slab.match(parsed), committer.slab.next_serial())
        for committer in committers
    ]


def seen(
    shards: list[ShardPlan], span: Span = ALWAYS, rows_max: int | None = None
) -> list[tuple[int, int, str]]:
    """Return time (in µs after NOW_US), shard and topic of each row, in order."""
    return [
        (row.timestamp_us - NOW_US, row.shard, row.topic)
        for batch in read_in_time_order(shards, span, COLUMNS, rows_max)
        for row in rows_of(batch)
    ]


def interleaved(world: World) -> tuple[Committer, Committer]:
    """Commit to two shards in turn, 10 µs apart, two rows of different streams a time."""
    committers = begun(world, shard=0, **SPREAD), begun(world, shard=1, **SPREAD)
    for number in range(6):
        committers[number % 2].commit([call_on(f"z/{number}", f"a/{number}")])
        world.clock.advance(10e-6)
    return committers


INTERLEAVED = [
    row
    for number in range(6)
    for row in [
        (10 * number, number % 2, f"z/{number}"),
        (10 * number + 1, number % 2, f"a/{number}"),
    ]
]


def test_rows_of_one_frame_come_in_order_of_arrival_though_they_stand_by_stream() -> None:
    committer = begun(World(), **SPREAD)
    topics = [f"{'zyx'[number % 3]}/{number}" for number in range(9)]
    committer.commit([call_on(*topics)])
    assert seen([plan(committer)]) == [(number, 0, topic) for number, topic in enumerate(topics)]


def test_rows_of_several_shards_are_merged_by_time() -> None:
    assert seen([plan(committer) for committer in interleaved(World())]) == INTERLEAVED


def test_shards_that_come_in_any_order_are_merged_alike() -> None:
    first, second = interleaved(World())
    assert seen([plan(second), plan(first)]) == INTERLEAVED


def test_one_shard_may_end_before_another_begins() -> None:
    world = World()
    first, second = begun(world, shard=0), begun(world, shard=1)
    first.commit([call_on("a", "b")])
    world.clock.advance(1)
    second.commit([call_on("c")])
    assert seen([plan(first), plan(second)]) == [(0, 0, "a"), (1, 0, "b"), (1_000_000, 1, "c")]


def test_a_shard_without_matching_rows_does_not_hold_up_the_others() -> None:
    world = World()
    first, second, empty = (begun(world, shard=number) for number in range(3))
    first.commit([call_on("a")])
    second.commit([call_on("b")])
    plans = [plan(committer, topic_filter="b") for committer in (first, second, empty)]
    assert seen(plans) == [(0, 1, "b")]


def test_rows_of_one_time_in_two_shards_are_both_there() -> None:
    world = World()
    committers = begun(world, shard=0), begun(world, shard=1)
    for committer in committers:
        committer.commit([call_on("a", "b")])
    found = seen([plan(committer) for committer in committers])
    assert [time for time, _, _ in found] == [0, 0, 1, 1]
    assert sorted(found) == [(0, 0, "a"), (0, 1, "a"), (1, 0, "b"), (1, 1, "b")]


@pytest.mark.parametrize("rows_max", [0, 1, 2, 3, 5, 11, 12, 13])
def test_rows_max_cuts_behind_the_earliest_rows(rows_max: int) -> None:
    plans = [plan(committer) for committer in interleaved(World())]
    assert seen(plans, rows_max=rows_max) == INTERLEAVED[:rows_max]


def test_the_span_of_time_is_half_open() -> None:
    plans = [plan(committer) for committer in interleaved(World())]
    for since in range(55):
        for until in (since, since + 1, since + 10, 60):
            span = Span(since_us=NOW_US + since, until_us=NOW_US + until)
            expected = [row for row in INTERLEAVED if since <= row[0] < until]
            assert seen(plans, span) == expected, (since, until)


def test_nothing_that_came_after_the_plan_is_read() -> None:
    world = World()
    committers = interleaved(world)
    plans = [plan(committer) for committer in committers]
    for committer in committers:
        committer.commit([call_on("z/late", "a/late")])
    assert seen(plans) == INTERLEAVED


@pytest.mark.parametrize("columns", [("value",), ("serial", "topic"), ("timestamp",), COLUMNS])
def test_the_columns_are_those_asked_for_though_time_decides_the_order(
    columns: tuple[str, ...],
) -> None:
    plans = [plan(committer) for committer in interleaved(World())]
    whole = pa.Table.from_batches(read_in_time_order(plans, Span(), COLUMNS, None))
    part = pa.Table.from_batches(read_in_time_order(plans, Span(), columns, None))
    assert part.schema == pa.schema([SCHEMA.field(name) for name in columns])
    assert part.combine_chunks() == whole.select(list(columns)).combine_chunks()


@pytest.mark.parametrize("rows_max", [12, 2**63, 2**100])
def test_more_rows_may_be_asked_for_than_any_store_has(rows_max: int) -> None:
    plans = [plan(committer) for committer in interleaved(World())]
    assert seen(plans, rows_max=rows_max) == INTERLEAVED


def test_no_shards_are_no_batches() -> None:
    assert list(read_in_time_order([], Span(), COLUMNS, None)) == []


def test_no_rows_are_no_batches() -> None:
    committer = begun(World())
    assert list(read_in_time_order([plan(committer)], Span(), COLUMNS, None)) == []


def test_more_rows_than_are_gathered_at_once_stay_in_order_across_shards() -> None:
    world = World()
    committers = [
        begun(world, shard=number, segment_bytes=4 * 1024 * 1024, **SPREAD) for number in (0, 1)
    ]
    count = 5_000
    for number in range(10):
        topics = [b"ab"[row % 2 : row % 2 + 1] for row in range(count)]
        committers[number % 2].commit([Call(row_batch(topics, [b""] * count, b""))])
        # Each frame begins in the middle of the one that the other shard has written.
        world.clock.advance(count / 2 * 1e-6)
    batches = list(read_in_time_order([plan(each) for each in committers], Span(), COLUMNS, None))
    rows = [row for batch in batches for row in rows_of(batch)]
    times = [row.timestamp_us for row in rows]
    assert times == sorted(times)
    assert {
        shard: sorted(row.serial for row in rows if row.shard == shard) for shard in (0, 1)
    } == {0: list(range(5 * count)), 1: list(range(5 * count))}
    assert len(batches) < 20
