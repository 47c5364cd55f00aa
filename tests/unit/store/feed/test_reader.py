from __future__ import annotations

import pytest

from siltstone.errors import ClosedError, DiskError, UsageError
from siltstone.store.feed.position import START, Position
from siltstone.store.feed.reader import FeedRead, FeedReader
from tests.support.builders import PATH
from tests.support.feed_builders import batch_of


def read_of(first: int, stop: int) -> FeedRead:
    batch = batch_of(0, range(first, stop), ["a"] * (stop - first), stop)
    return FeedRead(position=Position({0: stop}), lost=0, batch=batch, picked=None)


def reader_with(*reads: FeedRead) -> tuple[FeedReader, list[int]]:
    """Return a reader with reads waiting, and where its credit is given back to."""
    reader = FeedReader(START)
    granted: list[int] = []
    reader.grant = granted.append
    for read in reads:
        reader.put(read)
    return reader, granted


def test_reads_come_in_order_and_move_the_position() -> None:
    first, second = read_of(0, 2), read_of(2, 5)
    reader, _ = reader_with(first, second)
    assert reader.position == START
    assert (reader.next(), reader.position) == (first, Position({0: 2}))
    assert (reader.next(), reader.position) == (second, Position({0: 5}))
    assert reader.next(timeout=0) is None


def test_a_read_has_as_many_rows_as_were_picked() -> None:
    whole = read_of(0, 5)
    part = FeedRead(position=START, lost=0, batch=whole.batch, picked=[1, 3])
    assert (len(whole), len(part)) == (5, 2)


def test_credit_comes_back_for_all_that_was_acknowledged() -> None:
    reads = [read_of(0, 2), read_of(2, 5), read_of(5, 6)]
    reader, granted = reader_with(*reads)
    reader.ack(Position({0: 5}))
    assert granted == []
    for _ in reads:
        reader.next()
    reader.ack(Position({0: 1}))
    assert granted == []
    reader.ack(Position({0: 5}))
    reader.ack(Position({0: 5}))
    reader.ack(Position({0: 6}))
    assert granted == [5, 1]


def test_asking_for_more_acknowledges_what_came() -> None:
    reads = [read_of(0, 2), read_of(2, 5)]
    reader, granted = reader_with(*reads)
    reader.end(ClosedError("the database is closed"))
    found: list[FeedRead] = []
    for read in reader:
        found.append(read)
        assert granted == [2] * (len(found) - 1)
    assert (found, granted) == (reads, [2, 3])


def test_what_ends_a_feed_is_told_behind_the_rows_that_wait() -> None:
    reader, _ = reader_with(read_of(0, 2))
    reader.end(DiskError(PATH, "read", "broken", errno=5))
    reader.end(ClosedError("later"))
    reader.put(read_of(2, 3))
    found = reader.next()
    assert found is not None
    assert len(found) == 2
    for _ in range(2):
        with pytest.raises(DiskError, match="broken"):
            reader.next()


def test_a_feed_that_was_closed_hands_nothing_out() -> None:
    left: list[str] = []
    reader, _ = reader_with(read_of(0, 2))
    reader.leave = lambda: left.append("left")
    with reader:
        pass
    reader.close()
    assert left == ["left"]
    with pytest.raises(ClosedError, match="the feed is closed"):
        reader.next()
    assert list(reader) == []


def test_whoever_wants_to_hear_is_told_of_what_comes() -> None:
    heard: list[str] = []
    reader, _ = reader_with()
    reader.on_arrival(lambda: heard.append("early"))
    assert heard == []
    reader.put(read_of(0, 1))
    reader.on_arrival(lambda: heard.append("late"))
    reader.end(ClosedError("closed"))
    reader.on_arrival(None)
    assert heard == ["early", "late", "late"]


def test_a_reader_that_nobody_runs_gives_credit_to_nobody() -> None:
    reader = FeedReader(START)
    reader.put(read_of(0, 1))
    reader.next()
    reader.ack(Position({0: 1}))
    reader.close()
    with pytest.raises(UsageError):
        reader.next()
