from __future__ import annotations

from pathlib import PurePath
from typing import Any

import pytest

from siltstone.errors import CorruptionError
from siltstone.store.feed.pool import Feed, FilterGroup, Held, ReadJob, ShardFeeds, wanted_rows
from siltstone.store.feed.position import Position
from siltstone.store.feed.settings import FeedSettings
from tests.support.feed_builders import RowsInMemory, batch_of, parsed


def group_of(*filters: str) -> FilterGroup:
    return FilterGroup(parsed(*filters), 1)


def feed_at(place: int) -> Feed:
    feed = Feed(group_of("#"), Position({0: place}), 1, place)
    feed.add_shard()
    return feed


def lane_of(**settings: Any) -> ShardFeeds:
    return ShardFeeds(0, 100, FeedSettings(**settings))


def held(start: int, stop: int, size_bytes: int = 1) -> Held:
    batch = batch_of(0, range(start, stop), ["a"] * (stop - start), stop)
    batch.size_bytes = size_bytes
    return Held(start, stop, start, batch)


def test_a_live_feed_stands_where_the_hub_does() -> None:
    feed = Feed(group_of("#"), Position({0: 3, 1: 7}), 1, None)
    feed.add_shard()
    feed.add_shard()
    feed.ends = [5, 5]
    assert feed.serials() == {0: 3, 1: 7}
    feed.live = [True, True]
    assert feed.position() == Position({0: 5, 1: 7})
    assert (feed.is_live(0), feed.place(0)) == (True, 5)


def test_rows_are_found_for_each_group() -> None:
    batch = batch_of(0, range(5), ["a/1", "b", "a/2", "$SYS/a", "a/1"], 5)
    every = group_of("#", "$SYS/#")
    some = group_of("a/+", "a/1")
    none = group_of("c")
    assert wanted_rows(batch, dict.fromkeys([every, some, none])) == {
        every: None,
        some: [0, 2, 4],
        none: [],
    }


def nothing_wanted(_: bytes) -> tuple[FilterGroup, ...]:
    raise AssertionError("a group with few filters has its own matcher")


class TestHeld:
    def test_a_group_of_few_filters_finds_its_rows_itself(self) -> None:
        kept, few = held(0, 3), group_of("b", *(f"f/{number}" for number in range(99)))
        assert kept.rows_of(few, nothing_wanted) == []

    def test_the_groups_of_each_topic_tell_what_many_filters_want(self) -> None:
        many = group_of(*(f"f/{number}" for number in range(101)))
        batch = batch_of(0, range(4), ["a", "f/1", "a", "f/2"], 4)

        def wanting(topic: bytes) -> tuple[FilterGroup, ...]:
            return (many,) if topic.startswith(b"f") else ()

        assert Held(0, 4, 0, batch).rows_of(many, wanting) == [1, 3]
        assert Held(0, 4, 0, batch).rows_of(many, lambda _: (many,)) is None
        assert Held(0, 4, 0, batch).rows_of(many, lambda _: ()) == []
        assert not many.has_matcher()

    def test_what_was_read_covers_those_it_was_read_for(self) -> None:
        mine, other = group_of("a"), group_of("b")
        read = held(0, 3)
        read.give({mine: [1]})
        assert (read.covers(mine), read.covers(other), read.rows_of(mine, nothing_wanted)) == (
            True,
            False,
            [1],
        )

    def test_what_was_committed_covers_everybody(self) -> None:
        group = group_of("a/1")
        batch = batch_of(0, range(3), ["a/1", "b", "a/1"], 3)
        committed = Held(0, 3, 0, batch)
        committed.complete = True
        assert committed.covers(group)
        assert committed.rows_of(group, nothing_wanted) == [0, 2]
        assert committed.rows_of(group, nothing_wanted) is committed.rows_of(group, nothing_wanted)


class TestLane:
    def test_feeds_are_found_by_their_place(self) -> None:
        lane = lane_of()
        feeds = [feed_at(place) for place in (5, 3, 9, 5)]
        for feed in feeds:
            lane.put(feed)
        assert [feed.tag for feed in lane.between(3, 9)] == [3, 5, 5]
        lane.take(feeds[0])
        lane.take(feeds[0])
        assert [feed.tag for feed in lane.between(0, 100)] == [3, 5, 9]
        assert lane.between(6, 9) == []

    def test_a_feed_queues_once(self) -> None:
        lane = lane_of()
        feed = feed_at(5)
        lane.put(feed)
        lane.take(feed)
        lane.put(feed)
        assert list(lane.queue) == [feed]

    def test_what_was_committed_last_is_found_by_place(self) -> None:
        lane = lane_of(held_max=2)
        batches = [held(0, 3), held(3, 7), held(7, 8)]
        for each in batches:
            each.complete = True
            lane.remember(each)
        group = group_of("a")
        assert [lane.find(place, group) for place in (2, 3, 6, 7, 8)] == [
            None,
            batches[1],
            batches[1],
            batches[2],
            None,
        ]

    def test_only_so_many_bytes_are_kept(self) -> None:
        lane = lane_of(held_bytes=10)
        group = group_of("a")
        for number in range(4):
            committed, read = held(number, number + 1, 4), held(10 + number, 11 + number, 4)
            committed.complete = True
            read.give({group: None})
            lane.remember(committed)
            lane.keep(read)
        found = [place for place in range(20) if lane.find(place, group) is not None]
        assert found == [2, 3, 12, 13]

    def test_what_was_read_is_found_by_those_it_was_read_for(self) -> None:
        lane = lane_of()
        mine, other = group_of("a"), group_of("b")
        read = held(2, 5)
        read.give({mine: None})
        lane.keep(read)
        assert (lane.find(2, mine), lane.find(2, other), lane.find(5, mine)) == (read, None, None)


class TestReadJob:
    def test_it_reads_for_all_groups_and_finds_the_rows_of_each(self) -> None:
        source = RowsInMemory([["a", "b", "c", "a"]])
        first, second = group_of("a", "b"), group_of("a")
        job = ReadJob(0, 1, dict.fromkeys([first, second]), source, FeedSettings())
        job.run()
        assert source.reads == [(0, 1, ["a", "b"])]
        assert job.held is not None
        assert (job.held.start, job.held.stop) == (1, 4)
        assert (
            job.held.rows_of(first, nothing_wanted),
            job.held.rows_of(second, nothing_wanted),
        ) == (None, [1])

    def test_for_nobody_it_reads_nothing(self) -> None:
        source = RowsInMemory([["a"]])
        job = ReadJob(0, 0, {}, source, FeedSettings())
        job.run()
        assert (source.reads, job.held, job.error) == ([], None, None)

    @pytest.mark.parametrize("decode", [True, False])
    def test_lists_are_made_where_they_are_wanted(self, *, decode: bool) -> None:
        loaded: list[int] = []

        class Lazy(RowsInMemory):
            def read(self, *args: object) -> object:  # type: ignore[override]
                found = super().read(*args)  # type: ignore[arg-type]
                assert found.batch is not None
                found.batch.loader = lambda batch: loaded.append(batch.count)
                return found

        job = ReadJob(0, 0, {group_of("#"): None}, Lazy([["a"]]), FeedSettings(decode=decode))  # type: ignore[arg-type]
        job.run()
        assert loaded == [1] * decode

    def test_what_goes_wrong_is_kept(self) -> None:
        error = CorruptionError("broken", path=PurePath("x"))
        source = RowsInMemory([["a"]], error=error)
        job = ReadJob(0, 0, {group_of("#"): None}, source, FeedSettings())
        job.run()
        assert (job.held, job.error) == (None, error)
