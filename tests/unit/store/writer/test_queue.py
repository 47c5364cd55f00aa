"""Tests of the writer of a shard, with a layout that only records what it is asked to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from threading import Event, Lock, Thread

import pytest

from siltstone.clock import Clock, ManualClock, SystemClock
from siltstone.errors import (
    ClosedError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    SiltstoneError,
    StorageFullError,
    UsageError,
)
from siltstone.store.writer.queue import Queued, ShardWriter, flush_delay
from siltstone.store.writer.ticket import Outcome, Ticket


@dataclass(frozen=True)
class Control:
    flush_interval: float = 0.0
    idle_flush_interval: float = 0.0
    max_items: int = 1_000
    pending_bytes_max: int = 1_000


class Note(Queued):
    """A call with a name and a ticket."""

    def __init__(self, name: str, size_bytes: int = 1, items: int = 1) -> None:
        super().__init__()
        self.name = name
        self.size_bytes = size_bytes
        self.items = items
        self.promise = Ticket(1, 1)

    def item_count(self) -> int:
        return self.items


@dataclass
class Notes:
    """A layout that records the names of the calls in each commit."""

    flush_settings: Control = field(default_factory=Control)
    batch_items_max: int = 100
    batch_bytes_max: int = 1_000
    commits: list[list[str]] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    looks: int = 0
    idle: float | None = None
    poisoned: bool = False
    mistake: Exception | None = None
    is_released: bool = False

    def check(self) -> None:
        if self.poisoned:
            raise PoisonedError("a write failed")

    def is_poisoned(self) -> bool:
        return self.poisoned

    def refused(self, call: Note) -> None:
        self.refusals.append(call.name)

    def commit(self, batch: list[Note]) -> list[Outcome | Exception | None]:
        if self.mistake is not None:
            raise self.mistake
        self.commits.append([call.name for call in batch])
        return [None] * len(batch)

    def idle_seconds(self) -> float | None:
        return self.idle

    def look_after(self) -> None:
        self.looks += 1
        self.idle = None

    def release(self) -> SiltstoneError | None:
        self.is_released = True
        return PoisonedError("the last sync failed") if self.poisoned else None

    def fail(self, cause: Exception) -> tuple[SiltstoneError, SiltstoneError]:
        return OutcomeUnknownError(str(cause)), PoisonedError("the thread has ended")


@contextmanager
def writing(notes: Notes) -> Iterator[ShardWriter[Note]]:
    writer: ShardWriter[Note] = ShardWriter("test", 7, notes, SystemClock())
    try:
        yield writer
    finally:
        writer.close()


@contextmanager
def held(writer: ShardWriter[Note]) -> Iterator[None]:
    """Keep the thread busy, so that calls submitted meanwhile have to wait."""
    began, go = Event(), Event()

    def hold() -> None:
        began.set()
        go.wait()

    ticket = writer.order(hold)
    began.wait()
    try:
        yield
    finally:
        go.set()
        ticket.wait()


def submit(writer: ShardWriter[Note], *calls: Note) -> None:
    for call in calls:
        writer.submit(call, call.promise, None)


def outcomes(*calls: Note) -> list[str]:
    """Wait for the outcomes; return the name of each error, or "stored"."""
    found = []
    for call in calls:
        try:
            call.promise.wait(10)
        except SiltstoneError as exc:
            found.append(type(exc).__name__)
        else:
            found.append("stored")
        # A wait that ends by its timeout has an unknown outcome, too.
        assert call.promise.done
    return found


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if "siltstone-test" in thread.name]


def test_calls_that_wait_together_are_one_commit_in_their_order() -> None:
    notes = Notes()
    calls = [Note(name) for name in "abc"]
    with writing(notes) as writer:
        with held(writer):
            submit(writer, *calls)
        assert outcomes(*calls) == ["stored"] * 3
    assert notes.commits == [["a", "b", "c"]]


@pytest.mark.parametrize(
    ("items", "size_bytes", "commits"),
    [
        (2, 100, [["a", "b"], ["c"]]),
        (100, 5, [["a"], ["b"], ["c"]]),
        (100, 6, [["a", "b"], ["c"]]),
        (1, 1, [["a"], ["b"], ["c"]]),
    ],
)
def test_a_commit_holds_no_more_than_its_limits_but_for_one_call(
    items: int, size_bytes: int, commits: list[list[str]]
) -> None:
    notes = Notes(batch_items_max=items, batch_bytes_max=size_bytes)
    calls = [Note(name, 3) for name in "abc"]
    with writing(notes) as writer:
        with held(writer):
            submit(writer, *calls)
        outcomes(*calls)
    assert notes.commits == commits


def test_an_order_is_obeyed_behind_the_calls_before_it() -> None:
    notes = Notes(batch_items_max=1)
    seen: list[int] = []
    with writing(notes) as writer:
        with held(writer):
            submit(writer, Note("a"), Note("b"))
            ticket = writer.order(lambda: seen.append(len(notes.commits)))
        ticket.wait(10)
    assert seen == [2]


class LateBell:
    """A bell that rings just after the first wait with a time limit was given up."""

    def __init__(self, writer: ShardWriter[Note]) -> None:
        self._writer = writer
        self._lock = Lock()
        self._lock.acquire()
        # Whether it still rang when the thread fell asleep.
        self.rang: list[bool] = []

    def acquire(self, *, timeout: float | None = None) -> bool:
        if timeout is None:
            return self._lock.acquire()
        self.rang.append(not self._lock.locked())
        if len(self.rang) == 1:
            with self._writer.mutex:
                self._writer._wake()  # noqa: SLF001 - as a caller does at this moment
            return False
        return self._lock.acquire(timeout=timeout)

    def release(self) -> None:
        self._lock.release()


def test_a_bell_that_rang_too_late_for_one_sleep_does_not_ring_in_the_next() -> None:
    notes = Notes(idle=0.01)
    with writing(notes) as writer:
        bell = LateBell(writer)
        writer._bell = bell  # type: ignore[assignment]  # noqa: SLF001
        writer.start()
        while len(bell.rang) < 2:
            pass
        submit(writer, call := Note("a"))
        assert outcomes(call) == ["stored"]
    assert not any(bell.rang)


def test_what_an_order_raises_is_the_error_of_its_ticket_and_the_thread_goes_on() -> None:
    notes = Notes()
    call = Note("a")

    def act() -> None:
        raise UsageError("no")

    with writing(notes) as writer:
        with pytest.raises(UsageError, match="no"):
            writer.order(act).wait(10)
        submit(writer, call)
        assert outcomes(call) == ["stored"]


def test_the_thread_begins_with_the_first_work() -> None:
    with writing(Notes()) as writer:
        assert threads() == []
        submit(writer, Note("a"))
        assert threads() == ["siltstone-test-7"]
    assert threads() == []


def test_a_writer_that_has_something_to_look_after_does_so_without_a_call() -> None:
    notes = Notes(idle=0.0)
    with writing(notes) as writer:
        writer.start()
        # The first look sets `idle` to None, so there is no second one.
        while not notes.looks:
            writer.order(lambda: None).wait(10)
    assert notes.looks == 1


def test_closing_commits_what_waits_and_releases_the_layout() -> None:
    notes = Notes(flush_settings=Control(flush_interval=1_000, idle_flush_interval=1_000))
    call = Note("a")
    with writing(notes) as writer:
        submit(writer, call)
        assert notes.commits == []
        assert writer.close() is None
        assert (notes.commits, notes.is_released, outcomes(call)) == ([["a"]], True, ["stored"])
        with pytest.raises(ClosedError):
            submit(writer, Note("b"))
        with pytest.raises(ClosedError):
            writer.order(lambda: None)


def test_closing_runs_the_orders_that_wait() -> None:
    began, go = Event(), Event()
    events: list[str] = []

    def hold() -> None:
        began.set()
        go.wait()

    with writing(Notes()) as writer:
        writer.order(hold)
        began.wait()
        ticket = writer.order(lambda: events.append("order"))
        closing = Thread(target=writer.close)
        closing.start()
        while not writer._closing:  # noqa: SLF001 - nothing else shows it
            pass
        go.set()
        closing.join(10)
        assert (ticket.done, events) == (True, ["order"])


def test_what_a_commit_has_left_counts_alone_for_the_next_flush() -> None:
    control = Control(flush_interval=1_000, idle_flush_interval=1_000, max_items=10)
    notes = Notes(flush_settings=control, batch_items_max=6)
    calls = [Note("a", items=6), Note("b", items=6)]
    with writing(notes) as writer:
        with held(writer):
            submit(writer, *calls)
            # It makes both be committed, one after the other.
            ticket = writer.order(lambda: None)
        ticket.wait(10)
        submit(writer, last := Note("c", items=6))
        with pytest.raises(OutcomeUnknownError):
            last.promise.wait(0.2)
        writer.close()
    assert notes.commits == [["a"], ["b"], ["c"]]


def test_a_writer_without_work_is_closed_without_a_thread() -> None:
    notes = Notes()
    with writing(notes) as writer:
        writer.close()
    assert (notes.commits, notes.is_released) == ([], True)


def test_a_call_without_room_is_refused_in_time_and_the_layout_hears_of_it() -> None:
    notes = Notes(flush_settings=Control(pending_bytes_max=10))
    first, third = Note("a", 8), Note("c", 8)
    with writing(notes) as writer:
        with held(writer):
            submit(writer, first)
            with pytest.raises(
                OverloadedError, match="too many bytes wait to be written, try again"
            ):
                writer.submit(Note("b", 8), Ticket(1, 1), 0.0)
            waiting = Thread(target=submit, args=(writer, third))
            waiting.start()
        waiting.join()
        assert outcomes(first, third) == ["stored"] * 2
    assert (notes.refusals, notes.commits) == (["b"], [["a"], ["c"]])


def test_a_call_that_is_larger_than_all_may_wait_alone() -> None:
    notes = Notes(flush_settings=Control(pending_bytes_max=10))
    call = Note("a", 800)
    with writing(notes) as writer:
        writer.submit(call, call.promise, 0.0)
        assert outcomes(call) == ["stored"]


def test_who_waits_for_room_makes_the_flush_begin() -> None:
    control = Control(flush_interval=1_000, idle_flush_interval=1_000, pending_bytes_max=10)
    notes = Notes(flush_settings=control)
    first = Note("a", 8)
    with writing(notes) as writer:
        submit(writer, first, Note("b", 8))
        assert outcomes(first) == ["stored"]
    assert notes.commits == [["a"], ["b"]]


def test_enough_items_make_the_flush_begin() -> None:
    control = Control(flush_interval=1_000, idle_flush_interval=1_000, max_items=10)
    notes = Notes(flush_settings=control)
    calls = [Note("a", items=4), Note("b", items=4), Note("c", items=4)]
    with writing(notes) as writer:
        submit(writer, *calls)
        assert outcomes(*calls) == ["stored"] * 3
    assert notes.commits == [["a", "b", "c"]]


def asleep(writer: ShardWriter[Note]) -> None:
    """Wait until the thread of the shard sleeps."""
    deadline = time.monotonic() + 10
    while not writer._is_asleep:  # noqa: SLF001 - nothing else shows it
        assert time.monotonic() < deadline


@pytest.mark.parametrize(
    ("flush_interval", "idle_flush_interval", "begins"),
    # The second call is 60 seconds old, the first one 120.
    [(1_000.0, 100.0, False), (1_000.0, 59.0, True), (100.0, 1_000.0, True), (121.0, 1e3, False)],
)
def test_a_flush_is_due_after_the_first_call_or_some_time_after_the_last(
    flush_interval: float, idle_flush_interval: float, *, begins: bool
) -> None:
    clock = ManualClock()
    control = Control(flush_interval=flush_interval, idle_flush_interval=idle_flush_interval)
    notes = Notes(flush_settings=control)
    writer: ShardWriter[Note] = ShardWriter("test", 7, notes, clock)
    with held(writer):
        submit(writer, Note("a"))
        clock.advance(60)
        submit(writer, Note("b"))
        clock.advance(60)
    asleep(writer)
    assert notes.commits == ([["a", "b"]] if begins else [])
    writer.close()
    assert notes.commits == [["a", "b"]]


def test_a_call_can_be_withdrawn_until_it_is_begun() -> None:
    notes = Notes(flush_settings=Control(pending_bytes_max=10))
    first, second, third = Note("a", 4), Note("b", 6), Note("c", 6)
    with writing(notes) as writer:
        with held(writer):
            submit(writer, first, second)
            assert writer.withdraw(second)
            assert not writer.withdraw(second)
            # The bytes of the withdrawn call are free again.
            writer.submit(third, third.promise, 0.0)
        assert outcomes(first, third) == ["stored"] * 2
        assert not writer.withdraw(first)
    assert notes.commits == [["a", "c"]]


def test_who_hears_of_a_failure_finds_the_writer_stopped() -> None:
    class Failing(Notes):
        def commit(self, batch: list[Note]) -> list[Outcome | Exception | None]:
            super().commit(batch)
            self.poisoned = True
            return [PoisonedError("a write failed")] * len(batch)

    refused: list[type[Exception]] = []

    def hear(_: Ticket) -> None:
        try:
            submit(writer, Note("next"))
        except PoisonedError as exc:
            refused.append(type(exc))

    notes = Failing()
    call = Note("a")
    with writing(notes) as writer:
        with held(writer):
            submit(writer, call)
            call.promise.on_done(hear)
        assert outcomes(call) == ["PoisonedError"]
        assert isinstance(writer.close(), PoisonedError)
    assert (refused, notes.commits) == ([PoisonedError], [["a"]])


def test_an_order_that_poisons_the_layout_stops_the_writer() -> None:
    notes = Notes()

    def fail() -> None:
        notes.poisoned = True

    with writing(notes) as writer:
        writer.order(fail).wait(10)
        with pytest.raises(PoisonedError):
            submit(writer, Note("a"))
        writer.close()
    assert notes.commits == []


def test_who_hears_of_an_order_that_poisoned_the_layout_finds_the_writer_stopped() -> None:
    notes = Notes()
    refused: list[type[Exception]] = []

    def fail() -> None:
        notes.poisoned = True

    def hear(_: Ticket) -> None:
        try:
            submit(writer, Note("next"))
        except PoisonedError as exc:
            refused.append(type(exc))

    with writing(notes) as writer:
        with held(writer):
            ticket = writer.order(fail)
            ticket.on_done(hear)
        ticket.wait(10)
        writer.close()
    assert (refused, notes.commits) == ([PoisonedError], [])


def test_maintenance_that_poisons_the_layout_stops_the_writer() -> None:
    done = Event()

    class Failing(Notes):
        def look_after(self) -> None:
            super().look_after()
            self.poisoned = True

        def idle_seconds(self) -> float | None:
            if self.poisoned:
                done.set()
            return super().idle_seconds()

    notes = Failing(idle=0.0)
    with writing(notes) as writer:
        writer.start()
        assert done.wait(10)
        with pytest.raises(PoisonedError):
            submit(writer, Note("a"))
        writer.close()
    assert notes.commits == []


def test_maintenance_that_fails_is_logged_once_and_the_writer_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Notes):
        def look_after(self) -> None:
            super().look_after()
            raise StorageFullError(PurePath("p"))

    calls = [Note("a"), Note("b")]
    with writing(Failing()) as writer:
        for call in calls:
            submit(writer, call)
            assert outcomes(call) == ["stored"]
    assert [record.message for record in caplog.records] == ["shard_upkeep_failed"]


def test_maintenance_that_fails_again_after_it_succeeded_is_logged_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(Notes):
        def look_after(self) -> None:
            super().look_after()
            if self.commits[-1:] != [["fine"]]:
                raise StorageFullError(PurePath("p"))

    with writing(Failing()) as writer:
        for name in ("a", "b", "fine", "c", "d"):
            submit(writer, call := Note(name))
            assert outcomes(call) == ["stored"]
            # The maintenance follows the commit.
            writer.order(lambda: None).wait(10)
    assert [record.message for record in caplog.records] == ["shard_upkeep_failed"] * 2


def test_a_call_that_waits_for_room_gets_the_room_of_a_withdrawn_one() -> None:
    notes = Notes(flush_settings=Control(pending_bytes_max=10))
    first, second = Note("a", 8), Note("b", 8)
    with writing(notes) as writer:
        with held(writer):
            submit(writer, first)
            waiting = Thread(target=submit, args=(writer, second))
            waiting.start()
            while not writer._waits_for_room:  # noqa: SLF001 - nothing else shows it
                pass
            assert writer.withdraw(first)
            waiting.join(10)
            assert not waiting.is_alive()
        assert outcomes(second) == ["stored"]
    assert notes.commits == [["b"]]


def test_a_call_gets_room_as_soon_as_it_is_exactly_enough() -> None:
    notes = Notes(flush_settings=Control(pending_bytes_max=10))
    first, second, third = Note("a", 4), Note("b", 6), Note("c", 6)
    with writing(notes) as writer:
        with held(writer):
            submit(writer, first, second)
            waiting = Thread(target=submit, args=(writer, third))
            waiting.start()
            while not writer._waits_for_room:  # noqa: SLF001 - nothing else shows it
                pass
            assert writer.withdraw(second)
            waiting.join(10)
            assert not waiting.is_alive()
        assert outcomes(first, third) == ["stored"] * 2
    assert notes.commits == [["a", "c"]]


def test_a_call_that_is_larger_than_all_waits_until_it_is_alone() -> None:
    notes = Notes(flush_settings=Control(pending_bytes_max=10))
    first, second = Note("a", 1), Note("b", 800)
    with writing(notes) as writer:
        with held(writer):
            submit(writer, first)
            waiting = Thread(target=submit, args=(writer, second))
            waiting.start()
            while not writer._waits_for_room:  # noqa: SLF001 - nothing else shows it
                pass
        waiting.join(10)
        assert not waiting.is_alive()
        assert outcomes(first, second) == ["stored"] * 2
    assert notes.commits == [["a"], ["b"]]


def test_maintenance_follows_a_commit_though_orders_came_with_it() -> None:
    notes = Notes()
    with writing(notes) as writer:
        with held(writer):
            submit(writer, Note("a"))
            ticket = writer.order(lambda: None)
        ticket.wait(10)
        # Orders alone need no maintenance.
        writer.order(lambda: None).wait(10)
    assert notes.looks == 1


def test_a_call_that_found_no_room_does_not_make_later_flushes_begin() -> None:
    control = Control(flush_interval=1_000, idle_flush_interval=1_000, pending_bytes_max=10)
    notes = Notes(flush_settings=control)
    first, second, last = Note("a", 8), Note("b", 8), Note("c", 8)
    with writing(notes) as writer:
        with held(writer):
            submit(writer, first)
            with pytest.raises(OverloadedError):
                writer.submit(second, second.promise, 0.0)
        submit(writer, last)
        assert outcomes(first) == ["stored"]
        with pytest.raises(OutcomeUnknownError):
            last.promise.wait(0.2)
        writer.close()
    assert notes.commits == [["a"], ["c"]]


def test_a_withdrawn_call_does_not_make_the_flush_begin() -> None:
    control = Control(flush_interval=1_000, idle_flush_interval=1_000, max_items=10)
    notes = Notes(flush_settings=control)
    first, second = Note("a", items=6), Note("b", items=6)
    with writing(notes) as writer:
        submit(writer, first)
        assert writer.withdraw(first)
        submit(writer, second)
        with pytest.raises(OutcomeUnknownError):
            second.promise.wait(0.2)
        writer.close()
    assert notes.commits == [["b"]]


def test_calls_that_a_full_commit_left_do_not_wait_anew() -> None:
    clock = ManualClock()
    control = Control(flush_interval=1_000, idle_flush_interval=1_000_000)
    notes = Notes(flush_settings=control, batch_items_max=1)
    calls = [Note(name) for name in "abc"]
    writer: ShardWriter[Note] = ShardWriter("test", 7, notes, clock)
    with held(writer):
        submit(writer, *calls)
        clock.advance(2_000)
    assert outcomes(*calls) == ["stored"] * 3
    writer.close()


def test_every_call_gets_an_outcome_even_from_a_layout_that_forgets_one() -> None:
    class Forgetful(Notes):
        def commit(self, batch: list[Note]) -> list[Outcome | Exception | None]:
            return super().commit(batch)[1:]

    calls = [Note(name) for name in "abc"]
    with writing(Forgetful()) as writer:
        with held(writer):
            submit(writer, *calls)
        assert outcomes(*calls) == ["OutcomeUnknownError"] * 3


def test_tickets_that_share_the_mutex_are_settled_before_any_is_told() -> None:
    notes = Notes()
    seen: list[bool] = []
    with writing(notes) as writer:
        first, second = Ticket(1, 1, mutex=writer.mutex), Ticket(1, 1, mutex=writer.mutex)
        first.on_done(lambda _: seen.append(second.done))
        with held(writer):
            writer.submit(Note("a"), first, None)
            writer.submit(Note("b"), second, None)
        second.wait(10)
    assert (seen, first.done) == ([True], True)


def test_a_call_lets_go_of_its_ticket() -> None:
    stored, withdrawn, refused = Note("a", 8), Note("b", 1), Note("c", 8)
    notes = Notes(flush_settings=Control(pending_bytes_max=10))
    with writing(notes) as writer:
        with held(writer):
            submit(writer, stored, withdrawn)
            assert writer.withdraw(withdrawn)
            with pytest.raises(OverloadedError):
                writer.submit(refused, refused.promise, 0.0)
        outcomes(stored)
    assert [call.ticket for call in (stored, withdrawn, refused)] == [None] * 3


def test_nobody_is_left_waiting_when_the_thread_ends_by_a_mistake(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notes = Notes(batch_items_max=1, mistake=ZeroDivisionError("mistake"))
    begun, waiting = Note("a"), Note("b")
    with writing(notes) as writer:
        with held(writer):
            submit(writer, begun, waiting)
            ticket = writer.order(lambda: None)
        assert outcomes(begun, waiting) == ["OutcomeUnknownError", "PoisonedError"]
        with pytest.raises(PoisonedError, match="the thread has ended"):
            ticket.wait(10)
        with pytest.raises(PoisonedError, match="the thread has ended"):
            submit(writer, Note("c"))
        assert not writer.withdraw(waiting)
    assert notes.is_released
    assert [record.getMessage() for record in caplog.records] == ["shard_failed"]


def test_an_order_that_ends_the_thread_by_a_mistake_changes_no_outcome_before_it() -> None:
    def fail() -> None:
        raise ZeroDivisionError("mistake")

    with writing(Notes()) as writer:
        with held(writer):
            tickets = [writer.order(act) for act in (lambda: None, fail, lambda: None)]
        tickets[0].wait(10)
        for ticket in tickets[1:]:
            with pytest.raises(PoisonedError, match="the thread has ended"):
                ticket.wait(10)
        assert [(ticket.done, ticket.error is None) for ticket in tickets] == [
            (True, True),
            (True, False),
            (True, False),
        ]


def test_a_call_that_waits_for_room_is_told_when_the_thread_ends_by_a_mistake() -> None:
    began, go = Event(), Event()

    class Failing(Notes):
        def commit(self, batch: list[Note]) -> list[Outcome | Exception | None]:
            began.set()
            go.wait()
            raise ZeroDivisionError("on purpose")

    # After the first commit is taken, the second call still needs the room of the third.
    notes = Failing(flush_settings=Control(pending_bytes_max=10), batch_items_max=1)
    found: list[str] = []

    def wait() -> None:
        try:
            submit(writer, Note("c", 8))
        except SiltstoneError as exc:
            found.append(type(exc).__name__)

    with writing(notes) as writer:
        with held(writer):
            submit(writer, first := Note("a", 5), second := Note("b", 5))
        began.wait()
        waiting = Thread(target=wait)
        waiting.start()
        deadline = time.monotonic() + 10
        while not writer._waits_for_room:  # noqa: SLF001 - nothing else shows it
            assert time.monotonic() < deadline
        go.set()
        waiting.join(10)
        assert found == ["PoisonedError"]
        assert outcomes(first, second) == ["OutcomeUnknownError", "PoisonedError"]


def test_a_call_that_comes_while_the_thread_fails_is_told_of_the_failure() -> None:
    late = Note("late")

    class Failing(Notes):
        def fail(self, cause: Exception) -> tuple[SiltstoneError, SiltstoneError]:
            # What the layout poisons here is known to all calls from now on.
            submit(writer, late)
            return super().fail(cause)

    notes = Failing(mistake=ZeroDivisionError("mistake"))
    with writing(notes) as writer:
        first = Note("first")
        submit(writer, first)
        assert outcomes(first, late) == ["OutcomeUnknownError", "PoisonedError"]


@pytest.mark.parametrize(
    ("now", "items", "delay"), [(10.0, 1, 1.0), (10.5, 1, 0.5), (11.0, 1, 0.0), (10.0, 100, 0.0)]
)
def test_a_flush_begins_at_the_first_bound(now: float, items: int, delay: float) -> None:
    control = Control(flush_interval=5.0, idle_flush_interval=1.0, max_items=100)
    found = flush_delay(control, now=now, first_at=8.0, last_at=10.0, items=items)
    assert found == delay


def here(writer: ShardWriter[Note], call: Note) -> bool:
    """Try to commit a call on this thread."""
    return writer.commit_here(call, call.promise)


def lent(writer: ShardWriter[Note], call: Note) -> None:
    """Commit a call on this thread, as soon as the thread of the shard sleeps."""
    deadline = time.monotonic() + 10
    while not here(writer, call):
        assert time.monotonic() < deadline, "the thread does not fall asleep"


class SlowClock(ManualClock):
    """A clock that moves on by `step` whenever it is read."""

    step = 0.0

    def monotonic(self) -> float:
        self.advance(self.step)
        return super().monotonic()


class TestCommitsOnTheThreadOfTheCaller:
    def test_the_call_is_committed_and_settled_when_it_returns(self) -> None:
        notes = Notes()
        with writing(notes) as writer:
            call = Note("early")
            assert not here(writer, call)
            writer.start()
            lent(writer, call)
            assert call.promise.done
            assert call.ticket is None
        assert notes.commits == [["early"]]

    def test_it_does_not_pass_work_that_waits_or_is_under_way(self) -> None:
        notes = Notes()
        with writing(notes) as writer:
            with held(writer):
                assert not here(writer, call := Note("b"))
                submit(writer, first := Note("a"))
                assert not here(writer, call)
            assert outcomes(first) == ["stored"]
        assert notes.commits == [["a"]]
        assert not call.promise.done

    def test_it_does_not_pass_a_call_that_waits_for_its_flush(self) -> None:
        control = Control(flush_interval=1_000, idle_flush_interval=1_000)
        notes = Notes(flush_settings=control)
        with writing(notes) as writer:
            writer.start()
            submit(writer, Note("a"))
            asleep(writer)
            assert not here(writer, Note("b"))
        assert notes.commits == [["a"]]

    def test_it_does_not_disturb_maintenance_whose_time_has_come(self) -> None:
        began, go = Event(), Event()

        class Slow(Notes):
            def look_after(self) -> None:
                super().look_after()
                began.set()
                go.wait()

        notes = Slow(idle=0.01)
        with writing(notes) as writer:
            writer.start()
            # Nobody has woken the thread.
            assert began.wait(10)
            is_lent = here(writer, Note("a"))
            go.set()
        assert not is_lent
        assert notes.commits == []

    def test_meanwhile_the_thread_of_the_shard_leaves_the_layout_alone(self) -> None:
        began, go = Event(), Event()
        names: list[str] = []

        class Slow(Notes):
            def commit(self, batch: list[Note]) -> list[Outcome | Exception | None]:
                names.append(threading.current_thread().name)
                if batch[0].name == "slow":
                    began.set()
                    go.wait()
                return super().commit(batch)

        notes = Slow()
        with writing(notes) as writer:
            writer.start()
            caller = Thread(target=lent, args=(writer, Note("slow")), name="caller")
            caller.start()
            began.wait()
            # Another thread may not borrow it either.
            is_shared = here(writer, Note("other"))
            submit(writer, call := Note("next"))
            order = writer.order(lambda: names.append("order"))
            assert not here(writer, Note("other"))
            assert not call.promise.done
            go.set()
            order.wait(10)
            caller.join()
            assert outcomes(call) == ["stored"]
        assert notes.commits == [["slow"], ["next"]]
        assert names == ["caller", "siltstone-test-7", "order"]
        assert not is_shared

    def test_slow_commits_make_the_thread_do_the_commits_of_the_next_second(self) -> None:
        clock = SlowClock()
        notes = Notes()
        writer: ShardWriter[Note] = ShardWriter("test", 7, notes, clock)
        try:
            writer.start()
            clock.step = 0.007
            lent(writer, Note("not so slow"))
            clock.step = 0.009
            lent(writer, Note("slow"))
            clock.step = 0.0
            writer.order(lambda: None).wait(10)
            for _ in range(1000):
                assert not here(writer, Note("refused"))
            clock.advance(1.01)
            lent(writer, Note("fast"))
        finally:
            writer.close()
        assert notes.commits == [["not so slow"], ["slow"], ["fast"]]

    def test_a_disk_that_stays_slow_is_tried_ever_more_rarely(self) -> None:
        clock = SlowClock()
        notes = Notes()
        writer: ShardWriter[Note] = ShardWriter("test", 7, notes, clock)

        def pauses_after_a_slow_commit(seconds: float) -> None:
            clock.step = 0.05
            lent(writer, Note("slow"))
            clock.step = 0.0
            writer.order(lambda: None).wait(10)
            clock.advance(seconds - 0.01)
            for _ in range(100):
                assert not here(writer, Note("refused"))
            clock.advance(0.1)
            lent(writer, Note("fast"))

        try:
            writer.start()
            for seconds in (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
                pauses_after_a_slow_commit(seconds)
            clock.advance(61.0)
            lent(writer, Note("fast"))
            pauses_after_a_slow_commit(1.0)
        finally:
            writer.close()

    @pytest.mark.parametrize("moves", [True, False])
    def test_maintenance_follows_the_last_commit_of_a_burst(self, moves: bool) -> None:
        stopped = ManualClock()
        stopped.advance(1)
        # With a clock that stands still, all commits are of one moment.
        clock: Clock = SystemClock() if moves else stopped
        seen: list[int] = []
        looked = Event()

        class Looking(Notes):
            def look_after(self) -> None:
                seen.append(len(self.commits))
                if len(self.commits) == 3:
                    looked.set()

        writer: ShardWriter[Note] = ShardWriter("test", 7, Looking(), clock)
        writer.start()
        for name in ("a", "b", "c"):
            lent(writer, Note(name))
        # Nothing is due later, so the thread would sleep for ever.
        assert looked.wait(10), seen
        # From now on it does.
        deadline = time.monotonic() + 10
        while writer._idle_delay() is not None:  # noqa: SLF001 - nothing else shows it
            assert time.monotonic() < deadline, seen
        writer.close()

    def test_maintenance_follows_a_commit_right_after_the_last_maintenance(self) -> None:
        looks: list[int] = []

        class Looking(Notes):
            def look_after(self) -> None:
                looks.append(len(self.commits))

        clock = ManualClock()
        clock.advance(1)
        writer: ShardWriter[Note] = ShardWriter("test", 7, Looking(), clock)
        writer.start()
        for count in (1, 2, 3):
            lent(writer, Note("a"))
            deadline = time.monotonic() + 10
            # The last maintenance is over, and none is due.
            while looks[-1:] != [count] or writer._idle_delay() is not None:  # noqa: SLF001
                assert time.monotonic() < deadline, looks
        writer.close()

    def test_a_failed_commit_stops_the_writer(self) -> None:
        class Failing(Notes):
            def commit(self, batch: list[Note]) -> list[Outcome | Exception | None]:
                self.poisoned = True
                return [PoisonedError("the sync failed")] * len(batch)

        with writing(Failing()) as writer:
            writer.start()
            lent(writer, call := Note("a"))
            assert outcomes(call) == ["PoisonedError"]
            asleep(writer)
            assert not here(writer, Note("b"))
            with pytest.raises(PoisonedError):
                submit(writer, Note("c"))

    def test_an_internal_error_ends_the_thread_and_settles_the_call(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        notes = Notes()
        with writing(notes) as writer:
            writer.start()
            notes.mistake = ZeroDivisionError("on purpose")
            lent(writer, call := Note("a"))
            assert outcomes(call) == ["OutcomeUnknownError"]
            with pytest.raises(PoisonedError):
                submit(writer, Note("b"))
        assert "shard_failed" in caplog.text

    def test_an_internal_error_is_told_though_no_maintenance_is_due(self) -> None:
        notes = Notes()
        # The clock stands still, so the maintenance after the first commit is not due yet.
        writer: ShardWriter[Note] = ShardWriter("test", 7, notes, ManualClock())
        writer.start()
        lent(writer, Note("a"))
        lent(writer, Note("b"))
        notes.mistake = ZeroDivisionError("on purpose")
        lent(writer, call := Note("c"))
        assert outcomes(call) == ["OutcomeUnknownError"]
        writer.close()

    def test_a_thread_that_wakes_up_meanwhile_gets_the_layout_back(self) -> None:
        began, go = Event(), Event()

        class Slow(Notes):
            def commit(self, batch: list[Note]) -> list[Outcome | Exception | None]:
                if batch[0].name == "slow":
                    began.set()
                    go.wait()
                return super().commit(batch)

        notes = Slow(idle=0.05)
        writer: ShardWriter[Note] = ShardWriter("test", 7, notes, ManualClock())
        writer.start()
        lent(writer, Note("a"))
        caller = Thread(target=lent, args=(writer, Note("slow")))
        notes.idle = 0.05
        caller.start()
        began.wait()
        deadline = time.monotonic() + 10
        while not writer._wants_back:  # noqa: SLF001 - nothing else shows it
            assert time.monotonic() < deadline, "the time of the maintenance has not come"
        go.set()
        caller.join()
        submit(writer, call := Note("next"))
        assert outcomes(call) == ["stored"]
        writer.close()
        assert notes.commits == [["a"], ["slow"], ["next"]]

    def test_an_interrupt_does_not_keep_the_layout(self) -> None:
        class Interrupted(Notes):
            def commit(self, batch: list[Note]) -> list[Outcome | Exception | None]:
                raise KeyboardInterrupt

        with writing(Interrupted()) as writer:
            writer.start()
            with pytest.raises(KeyboardInterrupt):
                lent(writer, call := Note("a"))
            assert outcomes(call) == ["OutcomeUnknownError"]

    def test_the_thread_does_the_maintenance(self) -> None:
        looked = Event()

        class Looking(Notes):
            def look_after(self) -> None:
                assert threading.current_thread().name == "siltstone-test-7"
                looked.set()

        with writing(Looking()) as writer:
            writer.start()
            lent(writer, Note("a"))
            assert looked.wait(10)
