from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from siltstone.errors import ClosedError, CorruptionError
from siltstone.rows.stored import StoredBatch
from siltstone.store.database import Database
from siltstone.store.feed.position import START
from siltstone.store.feed.reader import FeedReader
from siltstone.store.feed.reading import StoreSource
from siltstone.store.feed.runner import FeedRunner
from siltstone.store.feed.settings import FeedSettings
from siltstone.store.log.read.pieces import Row
from tests.support.builders import PATH, World, new_database
from tests.support.feed_builders import parsed

WAIT = 20.0


def runner_on(database: Database) -> FeedRunner:
    return FeedRunner(
        database.feed_source(), database.on_commit, FeedSettings(decode=False), polls=False
    )


def add(runner: FeedRunner, *filters: str) -> FeedReader:
    return runner.add(parsed(*filters), START, credit=100, since_us=0, left=lambda: None)


def values(reader: FeedReader, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        read = reader.next(WAIT)
        assert read is not None, "nothing came"
        found += [row.value for row in read.rows()]
    return found


def test_rows_that_are_committed_while_it_begins_come_once() -> None:
    with new_database() as database:
        database.append([Row("a", b"before")]).wait()

        def listen(callback: Callable[[StoredBatch], None]) -> Callable[[], None]:
            end = database.on_commit(callback)
            # Announced, and behind where the hub will see the end.
            database.append([Row("a", b"between")]).wait()
            return end

        runner = FeedRunner(database.feed_source(), listen, FeedSettings(), polls=False)
        reader = add(runner, "a")
        database.append([Row("a", b"after")]).wait()
        assert values(reader, 3) == [b"before", b"between", b"after"]
        assert reader.next(timeout=0) is None
        runner.end(ClosedError("over"))


def test_an_end_is_told_to_every_feed_and_ends_the_threads() -> None:
    with new_database() as database:
        before = threading.active_count()
        runner = runner_on(database)
        readers = [add(runner, "a"), add(runner, "b")]
        assert threading.active_count() == before + 2
        runner.end(ClosedError("over"))
        for reader in readers:
            with pytest.raises(ClosedError, match="over"):
                reader.next(WAIT)
        assert threading.active_count() == before
        database.append([Row("a", b"")]).wait()


def test_a_feed_that_leaves_gets_nothing_more_and_tells_so() -> None:
    left: list[str] = []
    with new_database() as database:
        runner = runner_on(database)
        leaving = runner.add(
            parsed("#"), START, credit=5, since_us=0, left=lambda: left.append("left")
        )
        staying = add(runner, "#")
        leaving.close()
        database.append([Row("a", b"1")]).wait()
        assert values(staying, 1) == [b"1"]
        runner.end(ClosedError("over"))
    assert left == ["left"]


def test_what_cannot_be_read_is_told_to_its_feed(monkeypatch: pytest.MonkeyPatch) -> None:
    with new_database() as database:
        database.append([Row("a", b"1")]).wait()

        def fail(self: StoreSource, *args: object) -> None:
            raise CorruptionError("broken", path=PATH)

        monkeypatch.setattr(StoreSource, "read", fail)
        runner = runner_on(database)
        with pytest.raises(CorruptionError, match="broken"):
            add(runner, "a").next(WAIT)
        runner.end(ClosedError("over"))


def test_what_keeps_it_from_looking_is_told_to_every_feed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    with world.database(), world.reader() as reader:
        runner = FeedRunner(reader.feed_source(), None, FeedSettings(), polls=True)
        feed = add(runner, "a")

        def fail(self: StoreSource) -> None:
            raise CorruptionError("broken", path=PATH)

        monkeypatch.setattr(StoreSource, "refresh", fail)
        with pytest.raises(CorruptionError, match="broken"):
            feed.next(WAIT)
        runner.end(ClosedError("over"))


def test_a_mistake_of_ours_ends_no_thread(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with new_database() as database:
        runner = runner_on(database)
        feed = add(runner, "a")
        feed.on_arrival(_fail)
        database.append([Row("a", b"1")]).wait()
        assert values(feed, 1) == [b"1"]
        feed.on_arrival(None)
        database.append([Row("a", b"2")]).wait()
        assert values(feed, 1) == [b"2"]
        runner.end(ClosedError("over"))
    assert [record.message for record in caplog.records] == ["internal_error"]


def _fail() -> None:
    raise ValueError("hear")


def test_a_user_may_close_its_feed_where_it_hears_of_rows() -> None:
    closed = threading.Event()
    with new_database() as database:
        feed = database.feed("a")

        def close() -> None:
            feed.close()
            closed.set()

        feed.on_arrival(close)
        database.append([Row("a", b"1")]).wait()
        assert closed.wait(WAIT)
        with pytest.raises(ClosedError):
            feed.next()
