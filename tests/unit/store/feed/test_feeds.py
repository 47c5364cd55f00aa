from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from siltstone.errors import ClosedError, InvalidTopicError, SlabDroppedError, UsageError
from siltstone.fs.publish import replace_file
from siltstone.store.database import Database
from siltstone.store.feed.position import EARLIEST, END, LATEST, NEVER, START, Position
from siltstone.store.feed.reader import FeedReader
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import Manifest, SlabId
from tests.support.builders import NAME, PATH, World, new_database

WAIT = 20.0


def append(database: Database, *topics: str) -> None:
    database.append([Row(topic, topic.encode()) for topic in topics]).wait()


def take(feed: FeedReader, count: int) -> list[str]:
    """Return the topics of so many rows, as they come; each is acknowledged."""
    topics: list[str] = []
    while len(topics) < count:
        read = feed.next(WAIT)
        assert read is not None, "nothing came"
        topics += [row.topic for row in read.rows()]
        feed.ack(read.position)
    return topics


def feed_threads() -> list[str]:
    names = (thread.name for thread in threading.enumerate())
    return [name for name in names if name.startswith("siltstone-feed")]


def test_a_feed_gets_what_is_there_and_then_what_comes() -> None:
    with new_database() as database:
        append(database, "a/1", "b")
        with database.feed("a/#") as feed:
            assert take(feed, 1) == ["a/1"]
            append(database, "a/2", "b")
            database.seal()
            append(database, "a/3")
            assert take(feed, 2) == ["a/2", "a/3"]
            assert feed.position == database.end_position()
            assert feed.next(timeout=0) is None


def test_several_filters_are_one_feed() -> None:
    with new_database() as database, database.feed(["a", "b", "+"]) as feed:
        append(database, "a", "c", "b")
        assert sorted(take(feed, 3)) == ["a", "b", "c"]


def test_a_feed_goes_on_at_a_saved_position() -> None:
    with new_database() as database:
        for number in range(5):
            append(database, f"a/{number}")
        with database.feed() as feed:
            take(feed, 2)
        saved = Position.from_bytes(feed.position.to_bytes())
        with database.feed(position=saved) as feed:
            rest = take(feed, 5 - saved.serial(0))
        assert rest == [f"a/{number}" for number in range(saved.serial(0), 5)]


def test_a_feed_may_begin_with_what_comes() -> None:
    with new_database() as database:
        append(database, "old")
        with database.feed(position=database.end_position()) as feed:
            append(database, "new")
            assert take(feed, 1) == ["new"]


def test_a_feed_may_begin_at_a_word() -> None:
    with new_database() as database:
        append(database, "old")
        for position in (START, Position({0: EARLIEST})):
            with database.feed(position=position) as feed:
                assert take(feed, 1) == ["old"]
        for position in (END, Position({0: LATEST})):
            with database.feed(position=position) as feed:
                assert feed.position == database.end_position()
        with database.feed(position=END) as feed:
            append(database, "new")
            assert take(feed, 1) == ["new"]


def test_a_feed_may_begin_at_a_time() -> None:
    with new_database() as database:
        # Rows of one flush stand by stream, not by time.
        ticket = database.append([Row(topic, b"") for topic in "abababc"]).wait()
        since_us = ticket.timestamps()[3]
        with database.feed(since_us=since_us, credit=2) as feed:
            append(database, "d")
            assert sorted(take(feed, 5)) == ["a", "b", "b", "c", "d"]
        with database.feed(since_us=since_us + 1_000_000) as feed:
            append(database, "e")
            assert feed.next(timeout=0) is None


def test_a_feed_goes_on_behind_an_iterator_in_its_shard() -> None:
    with new_database(shards=2, shard_by="topic") as database:
        append(database, *["a/1", "a/2", "b/1"] * 3)
        (stream,) = database.streams("a/1")
        shard = stream.slab.shard
        found = database.next(database.iterator(stream, "a/1"), 1)
        with database.feed(found.iterator) as feed:
            assert take(feed, 2) == ["a/1", "a/1"]
            assert feed.position.serial(1 - shard) == NEVER
            database.seal()
            append(database, "a/2", "a/1", "b/1")
            assert take(feed, 1) == ["a/1"]
            assert feed.next(timeout=0) is None


def test_an_iterator_that_begins_at_a_time_does_so_as_a_feed() -> None:
    with new_database() as database:
        ticket = database.append([Row(topic, topic.encode()) for topic in "abab"]).wait()
        (stream,) = database.streams("a")
        iterator = database.iterator(stream, "a", since_us=ticket.timestamps()[1])
        with database.feed(iterator) as feed:
            read = feed.next(WAIT)
        assert read is not None
        assert [row.timestamp_us for row in read.rows()] == [ticket.timestamps()[2]]


@pytest.mark.parametrize(
    ("wanted", "options", "error"),
    [
        ("a/#/b", {}, InvalidTopicError),
        ("a", {"credit": 0}, UsageError),
        ("iterator", {"since_us": 5}, UsageError),
        ("iterator", {"position": Position({})}, UsageError),
        # Of another database.
        ("a", {"position": Position({0: 2})}, UsageError),
        ("a", {"position": Position({0: 1, 7: 1})}, UsageError),
    ],
)
def test_what_cannot_be_fed_is_refused(
    wanted: str, options: dict[str, Any], error: type[Exception]
) -> None:
    with new_database() as database:
        append(database, "a")
        given = database.iterator(database.streams()[0]) if wanted == "iterator" else wanted
        with pytest.raises(error):
            database.feed(given, **options)
        assert feed_threads() == []


def test_an_iterator_of_a_dropped_slab_is_refused() -> None:
    with new_database() as database:
        append(database, "a")
        iterator = database.iterator(database.streams()[0])
        database.seal()
        database.drop_slab(SlabId(0, 1))
        with pytest.raises(SlabDroppedError):
            database.feed(iterator)


def test_what_a_dropped_slab_took_is_told_with_the_next_rows() -> None:
    with new_database() as database:
        append(database, "a", "a", "a")
        database.seal()
        append(database, "b")
        database.drop_slab(SlabId(0, 1))
        with database.feed(position=Position({0: 1})) as feed:
            read = feed.next(WAIT)
        assert read is not None
        assert (read.lost, [row.topic for row in read.rows()]) == (2, ["b"])


def test_loss_is_told_where_no_row_follows() -> None:
    with new_database() as database:
        append(database, "a", "a", "a")
        database.seal()
        append(database, "b")
        database.drop_slab(SlabId(0, 1))
        with database.feed("a", position=Position({0: 1})) as feed:
            read = feed.next(WAIT)
        assert read is not None
        behind = Position({0: 4}, database.identity)
        assert (read.lost, read.rows(), read.position) == (2, [], behind)


def test_a_position_of_a_dropped_database_is_refused_by_its_successor() -> None:
    world = World()
    with world.database() as database:
        append(database, "a", "a")
        saved = database.end_position().to_bytes()
        former = database.identity
    with world.store() as store:
        store.drop(NAME)
    with world.database() as database:
        append(database, "a", "a")
        append(database, "b")
        for position in (Position.from_bytes(saved), Position({0: 2}, "")):
            with pytest.raises(SlabDroppedError, match="belongs to an earlier database"):
                database.feed(position=position)
        with pytest.raises(
            SlabDroppedError, match=f"position={former} database={database.identity}"
        ):
            database.feed(position=Position.from_bytes(saved))
        # Nothing is skipped by one that was made by hand, or stands at the beginning.
        with database.feed(position=Position({0: 2})) as feed:
            assert take(feed, 1) == ["b"]
        with database.feed(position=Position({}, former)) as feed:
            assert take(feed, 3) == ["a", "a", "b"]


def test_a_position_that_an_earlier_version_saved_goes_on_in_its_database() -> None:
    world = World()
    with world.database() as database:
        append(database, "a")
        append(database, "b")
    path = PATH / "data" / NAME / "manifest"
    old = replace(Manifest.decode(world.fs.read(path), path), identified=False)
    replace_file(world.fs, path, old.encode())
    with world.database() as database, database.feed(position=Position({0: 1}, "")) as feed:
        assert take(feed, 1) == ["b"]
        assert feed.position == Position({0: 2}, database.identity)


@pytest.mark.parametrize("wanted", [[], (), iter(())])
def test_a_feed_without_filters_is_refused(wanted: Any) -> None:
    with (
        new_database() as database,
        pytest.raises(UsageError, match="a feed needs at least one filter"),
    ):
        database.feed(wanted)


def test_no_more_rows_wait_than_there_is_credit_for() -> None:
    with new_database() as database:
        append(database, *["a"] * 10)
        with database.feed(credit=4) as feed:
            first = feed.next(WAIT)
            assert first is not None
            assert (len(first), feed.next(timeout=0.01)) == (4, None)
            feed.ack(first.position)
            assert len(take(feed, 6)) == 6


def test_the_threads_live_as_long_as_any_feed() -> None:
    with new_database() as database:
        assert feed_threads() == []
        first, second = database.feed(), database.feed("a")
        assert sorted(feed_threads()) == ["siltstone-feed-reads", "siltstone-feeds"]
        first.close()
        append(database, "a")
        assert take(second, 1) == ["a"]
        second.close()
        second.close()
        assert feed_threads() == []
        with database.feed() as third:
            assert take(third, 1) == ["a"]


def test_closing_the_database_ends_its_feeds_behind_their_rows() -> None:
    with new_database() as database:
        feed = database.feed()
        append(database, "a")
        assert take(feed, 1) == ["a"]
        database.append([Row("b", b"")], durability="none")
        database.close()
        assert [row.topic for read in feed for row in read.rows()] in ([], ["b"])
        with pytest.raises(ClosedError):
            feed.next()
        feed.close()
        with pytest.raises(ClosedError):
            database.feed()
    assert feed_threads() == []


def test_a_reader_of_another_process_finds_what_comes() -> None:
    world = World()
    with world.database() as database, world.reader() as reader:
        append(database, "a")
        with reader.feed() as feed:
            assert take(feed, 1) == ["a"]
            append(database, "b")
            database.seal()
            append(database, "c")
            assert take(feed, 2) == ["b", "c"]
            assert "siltstone-feed-polls" in feed_threads()
    assert feed_threads() == []


def test_many_feeds_share_the_reads_of_one() -> None:
    with new_database() as database:
        for number in range(30):
            append(database, f"a/{number}")
        source = database.feed_source()
        feeds = [database.feed("a/#") for _ in range(20)]
        topics: Sequence[list[str]] = [take(feed, 30) for feed in feeds]
        assert all(each == [f"a/{number}" for number in range(30)] for each in topics)
        # The first read may be over before the others come; what it read is in memory.
        assert source.frames_read == 30
        for feed in feeds:
            feed.close()
