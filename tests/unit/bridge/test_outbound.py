from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from siltstone.bridge.entries import decode_entry
from siltstone.bridge.mapping import outward
from siltstone.bridge.outbound import Act, Outbound, WaitingBytes
from siltstone.bridge.settings import LinkTopic, WhenFull
from siltstone.errors import OutcomeUnknownError, OverloadedError, SiltstoneError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.mqtt.flow import without
from siltstone.mqtt.publish import PublishBatch
from siltstone.spool import Entry, Spool, UnableToCommitError
from tests.support.links import batch_of, rows, spool_on

TOPICS = (LinkTopic(pattern="s/#", remote_prefix="site/", qos=1),)


class Desk:
    """An Outbound whose thread waits until it is told to work."""

    def __init__(self, *, size_bytes_max: int = 10_000, when_full: WhenFull = "refuse") -> None:
        self.fs = FaultyFileSystem(MemoryFileSystem())
        self.spool: Spool = spool_on(self.fs)
        self.work: list[tuple[Act, Act]] = []
        self.held = 0
        self.settled: list[tuple[list[bytes], SiltstoneError | None]] = []
        self.added: list[Entry] = []
        self.outbound = Outbound(
            self.spool,
            outward(TOPICS),
            name="peer",
            publisher=b"bridge:peer",
            size_bytes_max=size_bytes_max,
            when_full=when_full,
            in_thread=lambda work, then: self.work.append((work, then)),
            now_us=lambda: 42,
            pace=WaitingBytes(self._hold, lambda size: self._hold(-size)),
            added=self.added.extend,
        )

    def _hold(self, size: int) -> None:
        self.held += size

    def settle(self, part: PublishBatch, error: Exception | None) -> None:
        assert error is None or isinstance(error, SiltstoneError)
        self.settled.append((part.topics, error))

    def take(self, *messages: tuple[str, bytes, int], publisher: bytes = b"c") -> int:
        return self.outbound.take(batch_of(*messages), publisher, self.settle)

    def turn(self) -> None:
        work, then = self.work.pop(0)
        work()
        then()

    def spooled(self) -> list[list[tuple[bytes, bytes, int]]]:
        return [
            rows(decode_entry(self.spool.stream(entry).read(), self.spool.path))
            for entry in sorted(self.spool)
        ]


def test_what_matches_is_spooled_under_its_name_there_before_it_is_settled() -> None:
    desk = Desk()
    assert desk.take(("s/1", b"a", 2), ("other", b"b", 1), ("s/2", b"c", 4)) == 1
    assert (desk.settled, desk.spooled()) == ([], [])
    assert desk.held > 0
    desk.turn()
    assert desk.spooled() == [[(b"site/s/1", b"a", 1), (b"site/s/2", b"c", 4)]]
    assert desk.settled == [([b"s/1", b"s/2"], None)]
    assert (desk.held, desk.added, desk.work) == (0, [Entry(0, "42_2")], [])


def test_what_matches_nothing_or_came_from_the_peer_is_nobodys_business() -> None:
    desk = Desk()
    assert desk.take(("other", b"b", 1)) == 0
    assert desk.take(("s/1", b"b", 1), publisher=b"bridge:peer") == 0
    assert desk.outbound.take(batch_of(("s/1", b"b", 0)), b"c", None) == 0
    desk.turn()
    assert desk.spooled() == [[(b"site/s/1", b"b", 0)]]


def test_what_comes_while_the_disk_is_busy_is_one_more_entry() -> None:
    desk = Desk()
    for number in range(3):
        desk.take((f"s/{number}", b"x", 1))
    assert len(desk.work) == 1
    desk.turn()
    desk.turn()
    assert [len(entry) for entry in desk.spooled()] == [1, 2]
    assert [topics for topics, _ in desk.settled] == [[b"s/0"], [b"s/1"], [b"s/2"]]


@pytest.mark.parametrize("first", [True, False])
def test_properties_stay_with_their_messages(first: bool) -> None:
    desk = Desk()
    desk.take(("s/busy", b"", 1))
    some = batch_of(("s/1", b"x", 1), properties=b"\x01\x01")
    for batch in [some, batch_of(("s/2", b"y", 1))][:: 1 if first else -1]:
        desk.outbound.take(batch, b"c", desk.settle)
    desk.turn()
    desk.turn()
    decoded = decode_entry(desk.spool.stream(desk.added[1]).read(), desk.spool.path)
    assert dict(zip(decoded.topics, decoded.properties, strict=True)) == {
        b"site/s/1": b"\x01\x01",
        b"site/s/2": b"",
    }


def test_a_full_spool_refuses_until_something_is_sent() -> None:
    desk = Desk(size_bytes_max=300)
    desk.take(("s/1", bytes(200), 1))
    desk.turn()
    assert desk.take(("s/2", bytes(200), 1)) == 1
    assert desk.settled == [([b"s/1"], None)]
    desk.turn()
    assert isinstance(desk.settled[1][1], OverloadedError)
    assert (desk.held, desk.outbound.dropped) == (0, 1)
    desk.outbound.freed(desk.outbound.size_bytes)
    assert desk.take(("s/2", bytes(200), 1)) == 1
    desk.turn()
    assert desk.settled[2] == ([b"s/2"], None)


def test_it_says_before_which_messages_it_has_no_room_for() -> None:
    desk = Desk(size_bytes_max=300)
    batch = batch_of(
        ("s/1", bytes(100), 1),
        ("other", bytes(900), 1),
        ("s/2", bytes(900), 2),
        ("s/3", bytes(900), 0),
        ("s/4", bytes(100), 1),
        ("s/5", bytes(100), 1),
    )
    assert desk.outbound.refused(batch, b"c") == [2, 5]
    assert desk.outbound.refused(batch, b"bridge:peer") == []
    # What is left of the batch has room, but for what its publisher does not send again.
    rest = without(batch, [2, 5])
    assert desk.outbound.refused(rest, b"c") == []
    assert desk.outbound.take(rest, b"c", desk.settle) == 1
    desk.turn()
    assert desk.settled == [([b"s/1", b"s/4"], None)]
    assert desk.outbound.dropped == 3


def test_a_spool_that_drops_refuses_nothing() -> None:
    desk = Desk(size_bytes_max=100, when_full="drop")
    assert desk.outbound.refused(batch_of(("s/2", bytes(200), 1)), b"c") == []


def test_a_full_spool_may_drop_instead() -> None:
    desk = Desk(size_bytes_max=100, when_full="drop")
    assert desk.take(("s/2", bytes(200), 1)) == 0
    assert (desk.work, desk.outbound.dropped, desk.outbound.size_bytes) == ([], 1, 0)


def test_the_size_is_that_of_the_messages_and_the_same_after_a_restart() -> None:
    desk = Desk()
    desk.take(("s/1", bytes(200), 1), ("s/2", bytes(100), 1))
    desk.turn()
    [entry] = desk.spool
    size = desk.spool.stream(entry).length
    assert desk.outbound.size_bytes == size
    again = Outbound(
        desk.spool,
        outward(TOPICS),
        name="peer",
        publisher=b"",
        size_bytes_max=1,
        when_full="drop",
        in_thread=lambda work, then: None,
        now_us=lambda: 0,
        pace=WaitingBytes(lambda _: None, lambda _: None),
        added=lambda _: None,
    )
    assert again.size_bytes == size


def test_who_publishes_hears_that_the_disk_failed_and_later_that_it_is_well() -> None:
    desk = Desk()
    desk.fs.add(Fault(operation="sync", errno=errno.EIO, path_suffix=".tmp"))
    desk.take(("s/1", b"x", 1))
    desk.turn()
    assert isinstance(desk.settled[0][1], UnableToCommitError)
    assert (desk.held, desk.outbound.size_bytes, desk.added) == (0, 0, [])
    desk.take(("s/1", b"x", 1))
    desk.turn()
    assert desk.settled[1] == ([b"s/1"], None)


def test_a_mistake_of_ours_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk()

    def broken(*_: object) -> Callable[[], None]:
        raise KeyError

    monkeypatch.setattr(desk.spool, "store_many", broken)
    desk.take(("s/1", b"x", 1))
    desk.turn()
    assert isinstance(desk.settled[0][1], OutcomeUnknownError)


@pytest.mark.parametrize("count", [1, 7, 1000, 2500])
def test_a_full_spool_is_reported_at_the_first_message_and_at_each_thousand(
    count: int, caplog: pytest.LogCaptureFixture
) -> None:
    desk = Desk(size_bytes_max=0)
    totals = range(count, 5001, count)
    for _ in totals:
        desk.take(*[("s/1", b"x", 1)] * count)
    thousands = {total // 1000 for total in totals} - {0}
    first_is_a_thousand = count >= 1000
    assert len(caplog.records) == len(thousands) + (not first_is_a_thousand)
    assert {record.message for record in caplog.records} == {"bridge_spool_full"}


def test_messages_that_wait_for_the_disk_are_stored_when_it_is_closed() -> None:
    desk = Desk()
    desk.take(("s/1", b"a", 1))
    desk.take(("s/2", b"b", 1))
    work, then = desk.work.pop()
    work()
    desk.outbound.store_rest()
    assert [rows for [rows] in desk.spooled()] == [
        (b"site/s/1", b"a", 1),
        (b"site/s/2", b"b", 1),
    ]
    assert desk.settled == [([b"s/2"], None)]
    # The loop runs it after the threads have ended.
    then()
    assert desk.settled == [([b"s/2"], None), ([b"s/1"], None)]
    assert (desk.held, desk.work) == (0, [])
