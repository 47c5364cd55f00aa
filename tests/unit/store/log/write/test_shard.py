from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from typing import Any

import pytest

from siltstone.errors import (
    ClosedError,
    OverloadedError,
    PoisonedError,
    QuotaExceededError,
    RetryError,
    SiltstoneError,
    StorageFullError,
)
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.log.read.pieces import Batch
from siltstone.store.log.read.scan import Span, read_slab
from siltstone.store.log.write.committer import Committer
from siltstone.store.log.write.frame_builder import Call
from siltstone.store.log.write.layout import LogLayout
from siltstone.store.log.write.shard import LogShard
from siltstone.store.writer.queue import flush_delay
from siltstone.store.writer.replication.messages import ProducerCall
from siltstone.store.writer.ticket import Outcome, Ticket
from siltstone.topic.grammar import TopicFilter
from tests.support.builders import HELD, PATH, World, begun, call_on, reopened, settings_of

PRODUCER = b"p" * 16


def no_turn(committer: Committer) -> Committer:
    raise AssertionError(f"nobody asked for a turn: {committer.slab.id}")


def nothing() -> None:
    """Stand for housekeeping that finds nothing to do, and for admission."""


@contextmanager
def started(
    committer: Committer,
    world: World,
    *,
    turn_over: Callable[[Committer], Committer] = no_turn,
    admit: Callable[[int], SiltstoneError | None] = lambda _: None,
    housekeeping: Callable[[], None] = nothing,
) -> Iterator[LogShard]:
    layout = LogLayout(
        0, committer, world.clock, turn_over=turn_over, admit=admit, housekeeping=housekeeping
    )
    shard = LogShard(layout, world.clock)
    try:
        yield shard
    finally:
        shard.close()


def submit(shard: LogShard, call: Call, *, timeout: float | None = None) -> Ticket:
    ticket = Ticket(len(call.batch.topics), 1, waits=True)
    shard.submit(call, ticket, timeout)
    return ticket


def topics_of(committer: Committer) -> list[str]:
    slab = committer.slab
    frames = read_slab(slab, slab.match(TopicFilter.parse("#")), Span())
    rows = [row for pieces in frames for row in Batch(pieces, 0).rows()]
    return [row.topic for row in sorted(rows, key=lambda row: row.timestamp_us)]


def frames_of(committer: Committer) -> int:
    """Return how many frames with rows there are, in one segment."""
    (handle,) = committer.slab.handles()
    return sum(1 for rows in handle.segment().index.row_counts if rows)


class TestFlushDelay:
    @pytest.mark.parametrize(
        ("now", "first_at", "last_at", "rows", "delay"),
        [
            (10.0, 10.0, 10.0, 1, 0.25),  # just come: the idle interval
            (10.125, 10.0, 10.0, 1, 0.125),  # half of it has passed
            (10.25, 10.0, 10.0, 1, 0.0),  # nothing came for the idle interval
            (10.5, 10.0, 10.5, 2, 0.25),  # something came: the idle interval begins anew
            (10.875, 10.0, 10.875, 5, 0.125),  # but the first waits no longer than its interval
            (11.0, 10.0, 11.0, 5, 0.0),
            (12.0, 10.0, 11.9375, 5, -1.0),  # late
            (10.0, 10.0, 10.0, 99, 0.25),
            (10.0, 10.0, 10.0, 100, 0.0),  # enough rows: at once
            (10.0, 10.0, 10.0, 101, 0.0),
        ],
    )
    def test_it_is_the_shortest_of_three(
        self, now: float, first_at: float, last_at: float, rows: int, delay: float
    ) -> None:
        settings = settings_of(flush_interval=1.0, idle_flush_interval=0.25, max_items=100)
        assert (
            flush_delay(settings, now=now, first_at=first_at, last_at=last_at, items=rows) == delay
        )

    def test_without_an_idle_interval_nothing_waits(self) -> None:
        settings = settings_of(flush_interval=1.0, idle_flush_interval=0.0)
        assert flush_delay(settings, now=5.0, first_at=5.0, last_at=5.0, items=1) == 0.0


def commit_here(shard: LogShard, call: Call) -> Ticket:
    """Commit a call on this thread, as soon as the thread of the shard sleeps."""
    ticket = Ticket(len(call.batch.topics), 1, waits=True)
    deadline = time.monotonic() + 10
    while not shard.commit_here(call, ticket):
        assert time.monotonic() < deadline, "the thread does not fall asleep"
    return ticket


class TestCommitsOnTheThreadOfTheCaller:
    def test_rows_of_both_threads_are_stored_in_one_order(self) -> None:
        world = World(MemoryFileSystem())
        committer = begun(world)
        with started(committer, world) as shard:
            tickets = [submit(shard, call_on("a")).wait()]
            tickets.append(commit_here(shard, call_on("b")))
            tickets.append(submit(shard, call_on("c")).wait())
            tickets.append(commit_here(shard, call_on("d")))
            assert [ticket.serials() for ticket in tickets] == [[0], [1], [2], [3]]
            assert topics_of(committer) == ["a", "b", "c", "d"]
        assert topics_of(reopened(world)[0]) == ["a", "b", "c", "d"]

    def test_what_it_acknowledged_survives_a_power_cut(self) -> None:
        fs = MemoryFileSystem()
        world = World(fs)
        committer = begun(world)
        with started(committer, world) as shard:
            submit(shard, call_on("a")).wait()
            commit_here(shard, call_on("b")).wait()
            survivor = World(fs.crash_clone())
            assert topics_of(reopened(survivor)[0]) == ["a", "b"]

    def test_a_failed_sync_poisons_the_shard(self) -> None:
        fs = FaultyFileSystem(MemoryFileSystem())
        world = World(fs)
        committer = begun(world)
        with started(committer, world) as shard:
            submit(shard, call_on("a")).wait()
            fs.add(Fault(operation="sync", errno=errno.EIO))
            ticket = commit_here(shard, call_on("b"))
            with pytest.raises(PoisonedError):
                ticket.wait()
            with pytest.raises(PoisonedError):
                submit(shard, call_on("c"))
            assert not shard.commit_here(call_on("d"), Ticket(1, 1))

    def test_rows_without_allocated_space_are_left_to_the_thread(self) -> None:
        world = World(MemoryFileSystem())
        committer = begun(world, segment_bytes=1 << 20)
        with started(committer, world) as shard:
            submit(shard, call_on("a")).wait()
            large = call_on("b")
            large.size_bytes = 100_000
            for _ in range(100):
                assert not shard.commit_here(large, Ticket(1, 1))

    def test_maintenance_allocates_space_ahead(self) -> None:
        world = World(MemoryFileSystem())
        committer = begun(world, segment_bytes=1 << 20)
        with started(committer, world) as shard:
            large = call_on("a")
            large.batch.values = [bytes(50_000)]
            submit(shard, large).wait()
            shard.sync()
            assert committer.size_bytes() == 128 * 1024


class TestFlush:
    def test_calls_that_wait_together_are_one_frame_in_order(self) -> None:
        world = World()
        committer = begun(world, **HELD)
        with started(committer, world) as shard:
            tickets = [submit(shard, call_on(f"t/{number}")) for number in range(5)]
            assert [ticket.done for ticket in tickets] == [False] * 5
            shard.sync()
            assert [ticket.done for ticket in tickets] == [True] * 5
            assert (topics_of(committer), frames_of(committer)) == (
                [f"t/{number}" for number in range(5)],
                1,
            )
            assert [ticket.timestamps()[0] for ticket in tickets] == sorted(
                ticket.timestamps()[0] for ticket in tickets
            )

    def test_enough_rows_are_flushed_at_once(self) -> None:
        world = World()
        committer = begun(world, max_items=3, **HELD)
        with started(committer, world) as shard:
            first = submit(shard, call_on("a", "b"))
            assert first.done is False
            second = submit(shard, call_on("c"))
            first.wait()
            second.wait()
            assert (topics_of(committer), frames_of(committer)) == (["a", "b", "c"], 1)

    def test_close_stores_what_is_queued(self) -> None:
        fs = MemoryFileSystem()
        world = World(fs)
        committer = begun(world, **HELD)
        with started(committer, world) as shard:
            ticket = submit(shard, call_on("synced"))
            unsynced = submit(shard, call_on("written", sync=False))
        assert (ticket.done, unsynced.done, ticket.error) == (True, True, None)
        again, _ = reopened(World(fs.crash_clone()))
        assert topics_of(again) == ["synced", "written"]

    def test_calls_that_are_too_much_for_one_frame_become_several_before_any_order(self) -> None:
        world = World()
        committer = begun(world, **HELD)
        with started(committer, world) as shard:
            for topic in "abcde":
                call = call_on(topic)
                call.size_bytes = 7 * 1024 * 1024
                submit(shard, call)
            shard.sync()
            assert (topics_of(committer), frames_of(committer)) == (list("abcde"), 3)

    def test_one_bad_call_fails_alone(self) -> None:
        world = World()
        committer = begun(world, **HELD)
        with started(committer, world) as shard:
            tickets = [submit(shard, call_on(topic)) for topic in ("a", "b/#", "c")]
            shard.sync()
            assert [ticket.error is None for ticket in tickets] == [True, False, True]
            assert topics_of(committer) == ["a", "c"]


class TestBackPressure:
    def test_a_call_waits_for_room_and_is_refused_when_its_time_is_up(self) -> None:
        world = World()
        committer = begun(world, pending_bytes_max=100, **HELD)
        with started(committer, world) as shard:
            submit(shard, call_on("a" * 60))
            with pytest.raises(OverloadedError) as caught:
                submit(shard, call_on("b" * 60), timeout=0)
            assert (
                str(caught.value)
                == "too many bytes wait to be written, try again: pending_bytes=77"
            )
            shard.sync()
            submit(shard, call_on("c" * 60), timeout=0)
        assert topics_of(committer) == ["a" * 60, "c" * 60]

    def test_a_producer_sends_again_what_found_no_room_before_anything_later(self) -> None:
        world = World()
        committer = begun(world, pending_bytes_max=100, **HELD)
        with started(committer, world) as shard:
            submit(shard, call_on("a" * 60, producer=PRODUCER, sequence=0))
            with pytest.raises(OverloadedError):
                submit(shard, call_on("b" * 60, producer=PRODUCER, sequence=1), timeout=0)
            later = submit(shard, call_on("c", producer=PRODUCER, sequence=2))
            shard.sync()
            assert str(later.error) == (
                "an earlier call of this producer was refused, repeat that call first: "
                "sequence=2 refused=1"
            )
            for topic, sequence in (("b", 1), ("c", 2)):
                submit(shard, call_on(topic, producer=PRODUCER, sequence=sequence))
                shard.sync()
        assert topics_of(committer) == ["a" * 60, "b", "c"]

    def test_a_repetition_of_what_is_stored_holds_up_nothing_when_it_finds_no_room(self) -> None:
        world = World()
        committer = begun(world, pending_bytes_max=100, **HELD)
        with started(committer, world) as shard:
            submit(shard, call_on("a" * 60, producer=PRODUCER, sequence=1))
            shard.sync()
            submit(shard, call_on("b" * 60))
            with pytest.raises(OverloadedError):
                submit(shard, call_on("a" * 60, producer=PRODUCER, sequence=1), timeout=0)
            submit(shard, call_on("c", producer=PRODUCER, sequence=2))
        assert topics_of(committer) == ["a" * 60, "b" * 60, "c"]

    def test_a_repetition_that_finds_no_room_holds_up_nothing_behind_what_is_queued(self) -> None:
        world = World()
        committer = begun(world, pending_bytes_max=100, **HELD)
        with started(committer, world) as shard:
            submit(shard, call_on("a" * 40, producer=PRODUCER, sequence=1))
            submit(shard, call_on("b", producer=PRODUCER, sequence=2))
            with pytest.raises(OverloadedError):
                submit(shard, call_on("a" * 40, producer=PRODUCER, sequence=1), timeout=0)
            shard.sync()
            submit(shard, call_on("c", producer=PRODUCER, sequence=3))
        assert topics_of(committer) == ["a" * 40, "b", "c"]

    def test_a_call_larger_than_the_queue_gets_in_when_the_queue_is_empty(self) -> None:
        world = World()
        committer = begun(world, pending_bytes_max=10)
        with started(committer, world) as shard:
            submit(shard, call_on("a" * 60)).wait()
        assert topics_of(committer) == ["a" * 60]

    def test_calls_as_large_as_the_queue_together_do_not_wait(self) -> None:
        world = World()
        calls = [call_on("a"), call_on("b")]
        committer = begun(world, pending_bytes_max=sum(c.size_bytes for c in calls), **HELD)
        with started(committer, world) as shard:
            for call in calls:
                submit(shard, call, timeout=0)
        assert topics_of(committer) == ["a", "b"]

    def test_a_full_queue_is_flushed_though_no_interval_has_passed(self) -> None:
        world = World()
        committer = begun(world, pending_bytes_max=100, **HELD)
        with started(committer, world) as shard:
            first = submit(shard, call_on("a" * 60))
            submit(shard, call_on("b" * 60), timeout=2)
            assert first.done


class TestSync:
    def test_written_rows_are_synced_when_their_interval_has_passed(self) -> None:
        fs = MemoryFileSystem()
        world = World(fs)
        world.clock.advance(100)
        committer = begun(world, sync_interval=5.0)
        with started(committer, world) as shard:
            states = []
            for seconds in (0.0, 4.9, 0.2, 1.0):
                world.clock.advance(seconds)
                submit(shard, call_on("t", sync=False)).wait()
                # An order is obeyed after the shard has looked after what it wrote.
                shard.configure(committer.settings)
                states.append(committer.unsynced)
            assert states == [True, True, False, True]
            durable, _ = reopened(World(fs.crash_clone()))
            assert topics_of(durable) == ["t"] * 3

    def test_written_rows_are_synced_by_an_idle_shard(self) -> None:
        world = World()
        committer = begun(world, sync_interval=0.0)
        synced = Event()

        def housekeeping() -> None:
            if not committer.unsynced:
                synced.set()

        with started(committer, world, housekeeping=housekeeping) as shard:
            submit(shard, call_on("t", sync=False)).wait()
            assert synced.wait(10)

    def test_the_header_of_the_segment_is_durable_a_second_after_the_rows(self) -> None:
        fs = MemoryFileSystem()
        world = World(fs)
        world.clock.advance(100)
        committer = begun(world)
        with started(committer, world) as shard:
            states = []
            for seconds in (0.0, 0.5, 0.4, 0.2):
                world.clock.advance(seconds)
                submit(shard, call_on("t")).wait()
                # An order is obeyed after the shard has looked after what it wrote.
                shard.configure(committer.settings)
                states.append(committer.has_old_marks)
        assert states == [True, True, True, False]

    def test_the_header_of_the_segment_is_durable_soon_if_the_shard_is_idle(self) -> None:
        world = World()
        committer = begun(world)
        renewed = Event()

        def housekeeping() -> None:
            world.clock.advance(1.0)
            if not committer.has_old_marks:
                renewed.set()

        with started(committer, world, housekeeping=housekeeping) as shard:
            submit(shard, call_on("t")).wait()
            submit(shard, call_on("t")).wait()
            renewed.clear()
            assert renewed.wait(10)

    def test_sync_makes_everything_before_it_durable(self) -> None:
        fs = MemoryFileSystem()
        world = World(fs)
        committer = begun(world, **HELD)
        with started(committer, world) as shard:
            submit(shard, call_on("t", sync=False))
            shard.sync()
            durable, _ = reopened(World(fs.crash_clone()))
            assert topics_of(durable) == ["t"]


class TestOrders:
    def test_a_turn_comes_behind_everything_queued_and_before_everything_later(self) -> None:
        world = World()
        old, new = begun(world, shard=0, **HELD), begun(world, shard=1, **HELD)
        with started(old, world, turn_over=lambda _: new) as shard:
            submit(shard, call_on("before"))
            shard.seal()
            submit(shard, call_on("after"))
            shard.sync()
            assert shard.committer is new
        assert (topics_of(old), topics_of(new)) == (["before"], ["after"])
        old.close()

    def test_settings_come_into_force_behind_everything_queued(self) -> None:
        world = World()
        committer = begun(world, max_items=100, **HELD)
        settings = settings_of(max_items=1, **HELD)
        with started(committer, world) as shard:
            waiting = submit(shard, call_on("before"))
            shard.configure(settings)
            assert (waiting.done, committer.settings) == (True, settings)
            submit(shard, call_on("after")).wait()

    def test_an_order_that_fails_says_so_and_the_shard_goes_on(self) -> None:
        world = World()
        full = StorageFullError(PATH)

        def turn_over(committer: Committer) -> Committer:
            raise full

        committer = begun(world)
        with started(committer, world, turn_over=turn_over) as shard:
            with pytest.raises(StorageFullError) as caught:
                shard.seal()
            assert caught.value is full
            submit(shard, call_on("t")).wait()
        assert topics_of(committer) == ["t"]

    def test_housekeeping_that_meets_a_full_disk_does_not_end_the_shard_and_is_told_once(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        world = World()
        full = StorageFullError(PATH)

        def housekeeping() -> None:
            raise full

        committer = begun(world)
        with started(committer, world, housekeeping=housekeeping) as shard:
            submit(shard, call_on("a")).wait()
            submit(shard, call_on("b")).wait()
        assert topics_of(committer) == ["a", "b"]
        (record,) = caplog.records
        assert record.message == "shard_upkeep_failed"
        assert record.__dict__["facts"] == {"shard": 0, "error": str(full)}

    def test_upkeep_that_a_close_ends_is_not_a_failure(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        def housekeeping() -> None:
            raise ClosedError("the database is closed")

        world = World()
        with started(begun(world), world, housekeeping=housekeeping) as shard:
            submit(shard, call_on("a")).wait()
        assert caplog.records == []


class TestRefusal:
    def test_what_does_not_fit_is_refused_by_the_call_and_not_stored(self) -> None:
        world = World()
        refused = QuotaExceededError("db", used_bytes=2, quota_bytes=1)
        committer = begun(world, **HELD)
        size = call_on("a").size_bytes
        room = [2 * size, 10 * size]

        def admit(size_bytes: int) -> SiltstoneError | None:
            return refused if size_bytes > room[0] else None

        with started(committer, world, admit=admit) as shard:
            tickets = [submit(shard, call_on(topic)) for topic in ("a", "b", "c")]
            shard.sync()
            assert [ticket.error for ticket in tickets] == [None, None, refused]
            room.pop(0)
            submit(shard, call_on("d"))
            shard.sync()
        assert topics_of(committer) == ["a", "b", "d"]

    def test_a_full_disk_fails_the_calls_of_its_flush_and_no_later_one(self) -> None:
        fs = FaultyFileSystem(MemoryFileSystem())
        world = World(fs)
        committer = begun(world, **HELD)
        with started(committer, world) as shard:
            fs.add(Fault(operation="write_at", errno=errno.ENOSPC))
            tickets = [submit(shard, call_on("a")), submit(shard, call_on("b"))]
            shard.sync()
            assert [type(ticket.error) for ticket in tickets] == [StorageFullError] * 2
            fs.clear()
            submit(shard, call_on("c"))
            shard.sync()
        assert topics_of(committer) == ["c"]

    def test_a_failed_sync_poisons_the_shard(self) -> None:
        fs = FaultyFileSystem(MemoryFileSystem())
        world = World(fs)
        committer = begun(world, **HELD)
        with started(committer, world) as shard:
            fs.add(Fault(operation="sync", errno=errno.EIO))
            ticket = submit(shard, call_on("a"))
            with pytest.raises(PoisonedError):
                shard.sync()
            assert isinstance(ticket.error, PoisonedError)
            for refused in (
                lambda: submit(shard, call_on("b")),
                shard.sync,
                shard.seal,
                lambda: shard.configure(settings_of()),
            ):
                with pytest.raises(PoisonedError):
                    refused()

    def test_a_closed_shard_refuses_everything(self) -> None:
        world = World()
        with started(begun(world), world) as shard:
            pass
        actions: list[Callable[[], Any]] = [
            lambda: submit(shard, call_on("t")),
            shard.sync,
            shard.seal,
            lambda: shard.configure(settings_of()),
        ]
        for refused in actions:
            with pytest.raises(ClosedError, match="the database is closed"):
                refused()
        shard.close()

    def test_a_mistake_of_ours_ends_the_shard_and_leaves_nobody_waiting(self) -> None:
        world = World()

        def turn_over(committer: Committer) -> Committer:
            raise ZeroDivisionError("a mistake")

        committer = begun(world, **HELD)
        with started(committer, world, turn_over=turn_over) as shard:
            with pytest.raises(PoisonedError, match="cause=a mistake"):
                shard.seal()
            with pytest.raises(PoisonedError):
                submit(shard, call_on("t"))


def in_order(calls: Sequence[Call]) -> list[Outcome | Exception | None]:
    """Examine calls as a replicated log does: each names the one before it."""
    last = 0
    found: list[Outcome | Exception | None] = []
    for call in calls:
        assert call.claim is not None
        if call.claim.previous == last:
            last = call.claim.number
            found.append(None)
        else:
            found.append(RetryError("an earlier call is not stored"))
    return found


def test_a_call_is_not_stored_if_the_call_before_it_is_refused_for_lack_of_space() -> None:
    world = World(MemoryFileSystem())
    committer = begun(world)
    full = StorageFullError(PATH, needed_bytes=1)
    answers = iter([None, full, None, None])
    layout = LogLayout(
        0,
        committer,
        world.clock,
        turn_over=no_turn,
        admit=lambda _: next(answers),
        housekeeping=nothing,
        examine=in_order,
    )
    calls = [call_on(topic) for topic in ("a", "b", "c", "d")]
    for number, call in enumerate(calls, 1):
        call.claim = ProducerCall(producer=PRODUCER, number=number, previous=number - 1)
    first, *others = layout.commit(calls)
    assert isinstance(first, Outcome)
    assert [type(outcome) for outcome in others] == [StorageFullError, RetryError, RetryError]
    assert topics_of(committer) == ["a"]
