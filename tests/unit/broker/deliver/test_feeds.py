from __future__ import annotations

from pathlib import PurePath

from siltstone.broker.deliver.feeds import Announce, SessionFeeds
from siltstone.clock import ManualClock
from siltstone.errors import CorruptionError
from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.pool import Feed
from tests.support.broker_core import NOW_US, DeskShell
from tests.support.feed_builders import RowsInMemory, batch_of, parsed


class Taker:
    """Notes what comes by."""

    def __init__(self, room: int = 0) -> None:
        self.feed: Feed | None = None
        self.room = room
        self.serials: list[int] = []
        self.gone = 0
        self.errors: list[Exception] = []

    def receive(self, batch: StoredBatch, rows: list[int] | None, now: float, wall_us: int) -> None:
        assert wall_us == NOW_US
        indexes = range(batch.count) if rows is None else rows
        self.serials += [batch.serials[index] for index in indexes]

    def freed(self) -> int:
        room, self.room = self.room, 0
        return room

    def lost(self, serials: int) -> None:
        self.gone += serials

    def broken(self, error: Exception) -> None:
        self.errors.append(error)


class Desk:
    def __init__(self, *topics: str) -> None:
        self.source = RowsInMemory([list(topics)])
        clock = ManualClock(NOW_US)
        self.shell = DeskShell(clock)
        self.feeding = SessionFeeds(self.source, self.shell, clock)

    def begin(self, taker: Taker, *filters: str, at: int = 0, credit: int = 10) -> None:
        self.feeding.begin(taker, parsed(*filters), {0: at}, credit)
        self.shell.finish_works()

    def commit(self, *topics: str) -> None:
        known = self.source.topics[0]
        first = len(known)
        known.extend(topics)
        batch = batch_of(0, range(first, len(known)), topics, len(known))
        self.feeding.announce_from_thread(batch)
        assert self.shell.acts, "it must hop to the loop"
        self.shell.run()


def test_rows_come_by_from_a_place_on_and_then_as_they_are_committed() -> None:
    desk = Desk("a", "b", "a")
    taker = Taker()
    desk.begin(taker, "a", at=1)
    desk.commit("b", "a")
    assert (taker.serials, desk.feeding.ends()) == ([2, 4], {0: 5})


def test_no_more_rows_come_than_there_is_credit_for_until_more_is_freed() -> None:
    desk = Desk(*"aaaa")
    taker = Taker()
    desk.begin(taker, "a", credit=2)
    assert taker.serials == [0, 1]
    taker.room = 1
    desk.feeding.replenish(taker)
    desk.shell.finish_works()
    assert taker.serials == [0, 1, 2]


def test_what_is_freed_while_rows_are_taken_is_granted_at_once() -> None:
    desk = Desk(*"aaaa")
    taker = Taker(room=2)
    desk.begin(taker, "a", credit=2)
    assert taker.serials == [0, 1, 2, 3]


def test_nothing_comes_by_behind_the_end() -> None:
    desk = Desk()
    taker = Taker()
    desk.begin(taker, "a")
    desk.feeding.end(taker)
    desk.commit("a")
    assert taker.serials == []


def test_who_has_no_feed_can_end_and_be_replenished() -> None:
    desk = Desk()
    taker = Taker(room=1)
    desk.feeding.end(taker)
    desk.feeding.replenish(taker)
    assert taker.room == 1


def test_rows_that_are_gone_are_told() -> None:
    desk = Desk(*"aaa")
    desk.source.dropped = 2
    taker = Taker()
    desk.begin(taker, "a", at=1)
    assert (taker.gone, taker.serials) == (1, [2])


def test_who_waits_for_rows_that_cannot_be_read_is_told() -> None:
    desk = Desk("a")
    desk.source.error = error = CorruptionError("bad", path=PurePath("x"))
    taker = Taker()
    desk.begin(taker, "a")
    assert (taker.errors, taker.serials) == ([error], [])


class FailingTaker(Taker):
    """Meets a mistake of ours with the rows that it is told to fail for."""

    def __init__(self, serial: int) -> None:
        super().__init__()
        self.fails_at = serial

    def receive(self, batch: StoredBatch, rows: list[int] | None, now: float, wall_us: int) -> None:
        if self.fails_at in batch.serials:
            raise RuntimeError("on purpose")
        super().receive(batch, rows, now, wall_us)


def test_a_mistake_with_the_rows_of_one_leaves_the_others_theirs_and_they_come_again() -> None:
    desk = Desk("a", "a")
    failing, other = FailingTaker(3), Taker()
    desk.begin(failing, "a")
    desk.begin(other, "#")
    desk.commit("b", "a", "a")
    desk.commit("a")
    assert (other.serials, other.errors) == ([0, 1, 2, 3, 4, 5], [])
    assert (failing.serials, len(failing.errors)) == ([0, 1], 1)
    assert failing.feed is not None
    assert (failing.feed.removed, failing.feed.place(0)) == (True, 3)


def test_rows_are_announced_only_from_the_first_feed_on() -> None:
    desk = Desk("a")
    announced: list[Announce] = []
    desk.feeding.listen_with(announced.append)
    desk.source.topics[0].append("a")
    assert (desk.feeding.ends(), announced) == ({0: 2}, [])
    taker = Taker()
    desk.begin(taker, "a", at=2)
    assert announced == [desk.feeding.announce_from_thread]
    desk.commit("a")
    other = Taker()
    desk.begin(other, "a", at=3)
    assert (taker.serials, desk.feeding.ends(), len(announced)) == ([2], {0: 3}, 1)


def test_a_row_that_is_stored_while_the_first_feed_begins_comes_by_once() -> None:
    for is_early in (True, False):
        desk = Desk("a")

        def listen(announce: Announce, desk: Desk = desk, *, is_early: bool = is_early) -> None:
            if is_early:
                # It is announced, and it is before the ends that are read afterwards.
                desk.source.topics[0].append("a")
                announce(batch_of(0, range(1, 2), ["a"], 2))

        desk.feeding.listen_with(listen)
        before = desk.feeding.ends()[0]
        taker = Taker()
        desk.begin(taker, "a", at=before)
        desk.shell.run()
        desk.shell.finish_works()
        if not is_early:
            desk.commit("a")
        assert taker.serials == [1]
