from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, cast

from siltstone.errors import OverloadedError, PoisonedError
from siltstone.store.segment.writer import Room
from siltstone.store.writer.ticket import Outcome, Ticket
from siltstone.topiclog.append_queue import TopicQueue
from tests.support.topiclog import offsets_of


class SlowLog:
    """A log that stores when it is told to, or refuses."""

    topic = "t"

    def __init__(self) -> None:
        self.appends: list[tuple[list[int], bytes, Ticket]] = []
        self.refusals: list[Exception] = []
        self.end = 0

    def append(self, offsets: bytes, values: bytes, *, timeout: float | None = None) -> Ticket:
        if self.refusals:
            raise self.refusals.pop(0)
        ticket = Ticket(len(offsets) // 4 - 1, 1, waits=True)
        self.appends.append((list(array("i", offsets)), values, ticket))
        return ticket

    def append_room(self, offsets: bytes, room: Room, *, timeout: float | None = None) -> Ticket:
        return self.append(offsets, bytes(room.contents()), timeout=timeout)

    def store(self, number: int) -> None:
        offsets, _, ticket = self.appends[number]
        count = len(offsets) - 1
        outcome = Outcome(
            duplicate=False,
            count=count,
            timestamp_us=1,
            frame_serial=self.end,
            frame_timestamp_us=1,
            frame_places=None,
        )
        self.end += count
        ticket.resolve(outcome, None)


class Bench:
    """A lane, its log, and what was told of each send."""

    def __init__(self) -> None:
        self.log = SlowLog()
        self.due: list[Callable[[], None]] = []
        self.lane = TopicQueue(cast("Any", self.log), self.due.append, lambda act: act())
        self.told: dict[str, int | Exception] = {}

    def send(self, *values: bytes) -> None:
        name = values[0].decode()
        self.lane.add(
            offsets_of(values),
            b"".join(values),
            lambda outcome: self.told.__setitem__(name, outcome),
        )

    def send_large(self, value: bytes) -> None:
        name = value.decode()
        room = Room(0, len(value), memoryview(bytearray(value)))
        self.lane.add_room(
            offsets_of([value]), room, lambda outcome: self.told.__setitem__(name, outcome)
        )

    def turn(self) -> None:
        due, self.due[:] = list(self.due), []
        for act in due:
            act()


def test_the_sends_of_a_turn_are_one_append_and_each_hears_its_offset() -> None:
    bench = Bench()
    for values in ((b"a", b"bb"), (b"c",), (b"d", b"e")):
        bench.send(*values)
    bench.turn()
    assert [(offsets, values) for offsets, values, _ in bench.log.appends] == [
        ([0, 1, 3, 4, 5, 6], b"abbcde")
    ]
    assert bench.lane.pending_bytes == 6
    bench.log.store(0)
    assert bench.told == {"a": 0, "c": 2, "d": 3}
    assert bench.lane.pending_bytes == 0


def test_at_most_two_appends_are_under_way_and_the_next_has_what_came_meanwhile() -> None:
    bench = Bench()
    for letter in (b"a", b"b", b"c", b"d"):
        bench.send(letter)
        bench.turn()
    assert [values for _, values, _ in bench.log.appends] == [b"a", b"b"]
    bench.log.store(0)
    assert [values for _, values, _ in bench.log.appends] == [b"a", b"b", b"cd"]
    bench.log.store(1)
    bench.log.store(2)
    assert bench.told == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_an_append_has_a_size() -> None:
    bench = Bench()
    for letter in (b"a", b"b"):
        bench.send(letter, bytes(5 * 1024 * 1024))
    bench.turn()
    assert [len(values) for _, values, _ in bench.log.appends] == [5 * 1024 * 1024 + 1] * 2


def test_a_refusal_is_told_to_all_of_its_append() -> None:
    bench = Bench()
    bench.log.refusals = [error := PoisonedError("x")]
    bench.send(b"a")
    bench.send(b"b")
    bench.turn()
    assert bench.told == {"a": error, "b": error}
    bench.send(b"c")
    bench.turn()
    failed = OverloadedError("later")
    bench.log.appends[0][2].resolve(failed, None)
    assert bench.told["c"] is failed


def test_too_much_is_tried_again_when_something_is_done_and_told_when_nothing_is_under_way() -> (
    None
):
    bench = Bench()
    bench.send(b"a")
    bench.turn()
    bench.log.refusals = [OverloadedError("x")]
    bench.send(b"b")
    bench.turn()
    assert bench.told == {}
    bench.log.store(0)
    bench.log.store(1)
    assert bench.told == {"a": 0, "b": 1}
    bench.log.refusals = [error := OverloadedError("y")]
    bench.send(b"c")
    bench.turn()
    assert bench.told["c"] is error


def test_sends_that_were_postponed_together_keep_their_order_before_those_that_came_later() -> None:
    bench = Bench()
    bench.send(b"a")
    bench.turn()
    bench.log.refusals = [OverloadedError("x"), OverloadedError("x")]
    for letter in (b"b", b"c", b"d"):
        bench.send(letter)
    bench.turn()
    bench.send(b"e")
    bench.turn()
    assert (bench.told, bench.lane.pending_bytes) == ({}, 5)
    bench.log.store(0)
    bench.log.store(1)
    assert [values for _, values, _ in bench.log.appends] == [b"a", b"bcde"]
    assert bench.told == {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4}
    assert bench.lane.pending_bytes == 0


def test_a_postponed_append_stays_before_the_sends_that_wait_behind_it() -> None:
    bench = Bench()
    bench.send(b"a")
    bench.turn()
    bench.log.refusals = [OverloadedError("x")]
    for letter in (b"b", b"c"):
        # Each is an append of its own, because two are too large for one.
        bench.send(letter, bytes(5 * 1024 * 1024))
    bench.turn()
    for number in range(3):
        bench.log.store(number)
    assert bench.told == {"a": 0, "b": 1, "c": 3}


def test_an_append_that_fails_makes_way_for_the_next() -> None:
    bench = Bench()
    for letter in (b"a", b"b", b"c"):
        bench.send(letter)
        bench.turn()
    assert [values for _, values, _ in bench.log.appends] == [b"a", b"b"]
    error = PoisonedError("x")
    bench.log.appends[0][2].resolve(error, None)
    assert bench.told == {"a": error}
    assert [values for _, values, _ in bench.log.appends] == [b"a", b"b", b"c"]
    bench.log.store(1)
    bench.log.store(2)
    assert (bench.told["b"], bench.told["c"], bench.lane.pending_bytes) == (0, 1, 0)


def test_an_append_that_the_log_does_not_take_leaves_its_place_to_the_next() -> None:
    bench = Bench()
    # More often than there are places.
    refusals: list[Exception] = [PoisonedError("x") for _ in range(3)]
    bench.log.refusals = list(refusals)
    for letter in (b"a", b"b", b"c", b"d"):
        bench.send(letter)
        bench.turn()
    assert bench.told == dict(zip("abc", refusals, strict=True))
    assert [values for _, values, _ in bench.log.appends] == [b"d"]
    bench.log.store(0)
    assert (bench.told["d"], bench.lane.pending_bytes) == (0, 0)


def test_a_large_send_does_not_overtake_the_small_sends_before_it() -> None:
    bench = Bench()
    for letter in (b"a", b"b"):
        bench.send(letter)
        bench.turn()
    bench.send(b"c")
    bench.send_large(b"D")
    bench.send(b"e")
    bench.send_large(b"F")
    bench.turn()
    assert [values for _, values, _ in bench.log.appends] == [b"a", b"b"]
    for number in range(6):
        bench.log.store(number)
    assert [values for _, values, _ in bench.log.appends] == [b"a", b"b", b"c", b"D", b"e", b"F"]
    assert bench.told == {"a": 0, "b": 1, "c": 2, "D": 3, "e": 4, "F": 5}
    assert bench.lane.pending_bytes == 0


def test_large_sends_do_not_wait_for_each_other() -> None:
    bench = Bench()
    for letter in (b"A", b"B", b"C"):
        bench.send_large(letter)
    assert [values for _, values, _ in bench.log.appends] == [b"A", b"B", b"C"]


def test_a_large_send_that_is_refused_makes_way_for_the_next() -> None:
    bench = Bench()
    bench.send(b"a")
    bench.send_large(b"B")
    bench.send(b"c")
    error = OverloadedError("x")
    bench.log.refusals = [error]
    bench.turn()
    assert bench.told == {"a": error}
    bench.log.store(0)
    bench.log.store(1)
    assert bench.told == {"a": error, "B": 0, "c": 1}
    bench.log.refusals = [error]
    bench.send_large(b"D")
    assert bench.told["D"] is error
