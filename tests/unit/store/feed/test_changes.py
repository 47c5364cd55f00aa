"""Feeds over a key-value database: what they deliver, in which order, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

from siltstone.errors import ClosedError, SlabDroppedError, UsageError
from siltstone.store.feed.position import Position
from siltstone.store.feed.reader import Change, FeedRead, FeedReader
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabId
from tests.support import tx_builders
from tests.support.tx_builders import START_US, problems_in

WAIT = 20.0
# A change of one byte in a topic of one byte, with its record.
RECORD_BYTES = 16 + 34


class World(tx_builders.World):
    """A database that keeps changes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"feed_bytes": 1 << 20} | settings)


def read(feed: FeedReader) -> FeedRead:
    found = feed.next(WAIT)
    assert found is not None, "nothing came"
    return found


def take(feed: FeedReader, count: int) -> list[tuple[str, bytes | None, int, int]]:
    """Return so many changes, as they come; each is acknowledged."""
    changes: list[Change] = []
    while len(changes) < count:
        found = read(feed)
        changes += found.changes()
        feed.ack(found.position)
    return [(each.topic, each.value, each.timestamp_us, each.until_us) for each in changes]


def test_a_feed_gets_the_kept_changes_and_then_the_new_ones_in_commit_order() -> None:
    with World(timed=False) as world:
        world.write("b", b"1")
        world.write("a", b"2")
        with world.database.feed() as feed:
            assert take(feed, 2) == [("b", b"1", 0, 1), ("a", b"2", 0, 1)]
            world.write("b", b"3")
            with world.database.transaction() as tx:
                tx.delete("a")
                tx.write("c", b"4")
            assert take(feed, 3) == [("b", b"3", 0, 1), ("a", None, 0, 1), ("c", b"4", 0, 1)]
            assert feed.position == world.database.end_position()
            assert feed.next(timeout=0) is None


def test_rows_and_arrow_have_what_was_written_and_changes_have_the_deletions_too() -> None:
    with World() as world:
        world.write("a", b"1", time_us=5)
        with world.database.transaction() as tx:
            tx.delete("a", 5, 6)
            tx.write("b", b"2", 7)
        with world.database.feed() as feed:
            found = [read(feed)]
            while sum(map(len, found)) < 3:
                found.append(read(feed))
        rows = [row for each in found for row in each.rows()]
        stream = world.database.streams("b")[0].stream_id
        assert rows[-1] == Row("b", b"2", timestamp_us=7, generation=1, stream=stream, serial=2)
        assert [(row.topic, row.value, row.serial) for row in rows] == [
            ("a", b"1", 0),
            ("b", b"2", 2),
        ]
        values = [value for each in found for value in each.arrow(["value"])["value"].to_pylist()]
        assert values == [b"1", b"2"]
        changes = [change for each in found for change in each.changes()]
        assert changes[1] == Change(topic="a", value=None, timestamp_us=5, until_us=6, serial=1)


def test_a_filter_selects_writes_and_deletions() -> None:
    with World(timed=False) as world, world.database.feed(["a/+", "x"]) as feed:
        for topic in ("a/1", "b", "a/2", "x"):
            world.write(topic, b"v")
        with world.database.transaction() as tx:
            tx.delete("#")
        assert take(feed, 6) == [
            ("a/1", b"v", 0, 1),
            ("a/2", b"v", 0, 1),
            ("x", b"v", 0, 1),
            *sorted((topic, None, 0, 1) for topic in ("a/1", "a/2", "x")),
        ]


def test_many_rows_of_a_topic_are_deleted_by_changes_that_end_with_a_range() -> None:
    with World() as world:
        with world.database.transaction() as tx:
            for time_us in range(30):
                tx.write("a", b"v", time_us)
        start = world.database.end_position()
        with world.database.transaction() as tx:
            tx.delete("a", 0, 25)
        with world.database.feed(position=start) as feed:
            assert take(feed, 17)[-1] == ("a", None, 0, 25)


def test_the_times_that_a_commit_assigns_are_delivered() -> None:
    with World() as world:
        world.write("a", b"1")
        with world.database.feed() as feed:
            assert take(feed, 1) == [("a", b"1", START_US, START_US + 1)]


def test_a_transaction_is_delivered_in_parts_if_there_is_little_credit() -> None:
    with World(timed=False) as world:
        with world.database.transaction() as tx:
            for topic in "abcd":
                tx.write(topic, b"v")
        with world.database.feed(credit=3) as feed:
            first = read(feed)
            assert ([row.topic for row in first.rows()], feed.next(timeout=0)) == (
                ["a", "b", "c"],
                None,
            )
            feed.ack(first.position)
            assert [row.topic for row in read(feed).rows()] == ["d"]


def test_a_saved_position_continues_after_the_last_change_also_in_the_middle_of_a_commit() -> None:
    with World(timed=False) as world:
        with world.database.transaction() as tx:
            for topic in "abcd":
                tx.write(topic, b"v")
        with world.database.feed(credit=3) as feed:
            saved = read(feed).position.to_bytes()
        world.reopen()
        world.write("e", b"v")
        with world.database.feed(position=Position.from_bytes(saved)) as feed:
            assert [change[0] for change in take(feed, 2)] == ["d", "e"]


def test_a_feed_behind_the_window_is_told_how_much_it_lost() -> None:
    with World(timed=False, feed_bytes=4 * RECORD_BYTES) as world:
        start = world.database.end_position()
        for number in range(10):
            world.write("a", b"%d" % number)
        with world.database.feed(position=start) as feed:
            found = read(feed)
            values = [row.value for row in found.rows()]
            assert found.lost + len(values) == 10
            assert values == [b"%d" % number for number in range(found.lost, 10)]
            # The window holds four changes; a fourth of it may be exceeded before it is trimmed.
            assert found.lost in {4, 5, 6}
        with world.database.feed() as feed:
            # A feed that begins with the oldest kept change has lost nothing.
            assert read(feed).lost == 0
        assert problems_in(world.memory) == []


def test_the_window_is_bounded() -> None:
    with World(timed=False, feed_bytes=1000) as world:
        sizes = []
        for number in range(200):
            world.write("a", b"%d" % number)
            sizes.append(world.memory.size_bytes("changes"))
        assert max(sizes) < 1000 * 2
        assert min(sizes[100:]) >= 1000


def test_changes_of_a_generation_that_was_sealed_or_dropped_are_still_delivered() -> None:
    with World() as world:
        world.write("a", b"1", time_us=1)
        world.database.seal()
        world.write("b", b"2", time_us=2)
        world.database.drop_slab(SlabId(0, 1))
        with world.database.feed() as feed:
            first, second = read(feed), read(feed)
        assert [(row.topic, row.generation) for row in first.rows() + second.rows()] == [
            ("a", 1),
            ("b", 2),
        ]


def test_each_shard_has_its_own_order() -> None:
    with World(timed=False, shards=2) as world, world.database.feed() as feed:
        for shard in (0, 1, 0):
            with world.database.transaction(shard=shard) as tx:
                tx.write(f"t{shard}", b"v")
        serials = {0: [0, 1], 1: [0]}
        seen: dict[int, list[int]] = {0: [], 1: []}
        for _ in range(3):
            for row in read(feed).rows():
                seen[row.shard].append(row.serial)
        assert seen == serials
        assert world.database.end_position().serials == {0: 2, 1: 1}


@pytest.mark.parametrize("missed", [1, 3])
def test_commits_whose_changes_were_not_kept_are_counted_as_lost(missed: int) -> None:
    with World(timed=False) as world:
        world.write("a", b"1")
        position = world.database.end_position()
        world.database.configure(feed_bytes=0)
        for _ in range(missed):
            world.write("a", b"2")
        world.reopen()
        world.database.configure(feed_bytes=1000)
        world.write("a", b"3")
        with world.database.feed(position=position) as feed:
            found = read(feed)
            assert (found.lost, [row.value for row in found.rows()]) == (missed, [b"3"])
        assert problems_in(world.memory) == []


class TestRefused:
    def test_a_database_without_a_window_has_no_feeds(self) -> None:
        with World(feed_bytes=0) as world:
            assert "changes" not in world.memory.families()
            for call in (world.database.feed, world.database.end_position):
                with pytest.raises(UsageError, match="keeps no changes for feeds: set feed_bytes"):
                    call()
            world.write("a", b"1", time_us=1)
            world.database.configure(feed_bytes=1000)
            world.write("a", b"2", time_us=1)
            with world.database.feed() as feed:
                assert take(feed, 1) == [("a", b"2", 1, 2)]

    def test_feeds_end_when_changes_are_not_kept_any_more(self) -> None:
        with World() as world, world.database.feed() as feed:
            world.database.configure(feed_bytes=0)
            with pytest.raises(UsageError, match="keeps no changes"):
                feed.next(WAIT)
            world.write("a", b"1")
            assert world.memory.size_bytes("changes") == 0

    def test_a_position_of_another_database_is_refused(self) -> None:
        with World() as one, World() as other:
            one.write("a", b"1")
            other.write("a", b"1")
            with pytest.raises(SlabDroppedError, match="belongs to an earlier database"):
                other.database.feed(position=one.database.end_position())
            later = Position({0: 2}, one.database.end_position().identity)
            with pytest.raises(UsageError, match="after the last row"):
                one.database.feed(position=later)

    def test_an_iterator_is_a_place_among_keys(self) -> None:
        with World() as world:
            world.write("a", b"1")
            iterator = world.database.iterator(world.database.streams()[0])
            with pytest.raises(UsageError, match="so a feed cannot continue it"):
                world.database.feed(iterator)
            with pytest.raises(UsageError, match="begins at a position, not at a time"):
                world.database.feed(since_us=1)

    def test_closing_the_database_ends_its_feeds(self) -> None:
        with World() as world, world.database.feed() as feed:
            world.database.close()
            with pytest.raises(ClosedError):
                feed.next(WAIT)
            with pytest.raises(ClosedError):
                world.database.feed()
