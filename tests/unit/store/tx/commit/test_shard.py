from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock, Thread
from typing import Any, cast

import pytest

from siltstone.clock import ManualClock, SystemClock
from siltstone.errors import (
    ClosedError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    SiltstoneError,
    UsageError,
)
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.writer.queue import flush_delay
from tests.support.tx_builders import World
from tests.support.tx_model import held, queue_of


def submit(world: World, topic: str, value: bytes = b"") -> CommitTicket:
    tx = world.database.transaction()
    tx.write(topic, value, 1)
    return tx.submit()


class TestFlushDelay:
    SETTINGS = KeyValueSettings(flush_interval=10.0, idle_flush_interval=2.0, max_items=5)

    @pytest.mark.parametrize(
        ("now", "first_at", "last_at", "items", "delay"),
        [
            (100.0, 100.0, 100.0, 1, 2.0),
            (101.0, 100.0, 100.0, 1, 1.0),
            (102.0, 100.0, 100.0, 1, 0.0),
            (109.0, 100.0, 108.5, 4, 1.0),
            (110.0, 100.0, 110.0, 4, 0.0),
            (100.0, 100.0, 100.0, 5, 0.0),
        ],
    )
    def test_the_first_bound_that_is_reached_flushes(
        self, now: float, first_at: float, last_at: float, items: int, delay: float
    ) -> None:
        found = flush_delay(self.SETTINGS, now=now, first_at=first_at, last_at=last_at, items=items)
        assert found == delay


class TestGroups:
    def test_what_waits_together_is_committed_together(self) -> None:
        with World() as world:
            writes = world.engine.writes
            with held(world.database):
                tickets = [submit(world, f"a/{n}") for n in range(50)]
            assert [ticket.wait().serial for ticket in tickets] == list(range(1, 51))
            assert world.engine.writes == writes + 1

    def test_no_more_than_max_items_are_committed_together(self) -> None:
        with World(max_items=20) as world:
            writes = world.engine.writes
            with held(world.database):
                tickets = [submit(world, f"a/{n}") for n in range(50)]
            for ticket in tickets:
                ticket.wait()
            assert world.engine.writes == writes + 3

    def test_a_full_group_is_not_waited_with(self) -> None:
        with World(max_items=3, flush_interval=3600.0, idle_flush_interval=3600.0) as world:
            tickets = [submit(world, f"a/{n}") for n in range(3)]
            assert [ticket.wait(10).serial for ticket in tickets] == [1, 2, 3]

    def test_the_end_of_the_interval_flushes(self) -> None:
        clock = SystemClock()
        with World(clock, flush_interval=0.001, idle_flush_interval=3600.0) as world:
            assert submit(world, "a").wait(10).serial == 1

    def test_one_that_fails_does_not_fail_the_others(self) -> None:
        with World() as world:
            with held(world.database):
                first = submit(world, "a")
                bad = world.database.transaction()
                bad.require_present("none", 1)
                refused = bad.submit()
                last = submit(world, "b")
            assert (first.wait().serial, last.wait().serial) == (1, 2)
            assert refused.error is not None


class TestRoom:
    def test_more_than_may_be_pending_waits_for_room(self) -> None:
        with World(pending_bytes_max=1_000) as world:
            with held(world.database):
                first = submit(world, "a", b"v" * 900)
                waiting: list[CommitTicket] = []
                thread = Thread(target=lambda: waiting.append(submit(world, "b", b"v" * 900)))
                thread.start()
            thread.join()
            assert (first.wait().serial, waiting[0].wait().serial) == (1, 2)

    def test_one_that_is_larger_than_all_may_be_pending_alone(self) -> None:
        with World(pending_bytes_max=10) as world:
            assert submit(world, "a", b"v" * 900).wait().serial == 1

    def test_who_finds_no_room_in_time_is_refused(self) -> None:
        with World(pending_bytes_max=1_000) as world:
            with held(world.database):
                submit(world, "a", b"v" * 900)
                tx = world.database.transaction(timeout=0.0)
                tx.write("b", b"v" * 900, 1)
                with pytest.raises(
                    OverloadedError,
                    match="too many bytes wait to be written, try again: pending_bytes",
                ):
                    tx.commit()
            world.database.outcome("any")
            assert [topic for topic, _, _ in world.rows()] == ["a"]


class TestWithdrawal:
    def test_only_what_was_not_begun_can_be_taken_back(self) -> None:
        with World() as world:
            queue = queue_of(world.database)
            with held(world.database):
                first, second = submit(world, "a"), submit(world, "b")
                assert queue.withdraw(first)
                assert not queue.withdraw(first)
            assert second.wait().serial == 1
            assert not queue.withdraw(second)
            assert [topic for topic, _, _ in world.rows()] == ["b"]


class TestOrders:
    def test_an_order_is_obeyed_behind_everything_queued_before(self) -> None:
        with World() as world:
            queue = queue_of(world.database)
            seen: list[list[str]] = []
            with held(world.database):
                submit(world, "a")
                thread = Thread(
                    target=lambda: queue.order(
                        lambda: seen.append([topic for topic, _, _ in world.rows()])
                    )
                )
                thread.start()
            thread.join()
            assert seen == [["a"]]

    def test_what_an_order_raises_is_raised_to_who_gave_it(self) -> None:
        with World() as world:
            queue = queue_of(world.database)

            def fail() -> None:
                raise UsageError("wrong")

            with pytest.raises(UsageError, match="wrong"):
                queue.order(fail)
            assert submit(world, "a").wait().serial == 1


class TestEnds:
    def test_closing_commits_what_is_queued_and_refuses_more(self) -> None:
        world = World()
        with held(world.database):
            ticket = submit(world, "a")
            closing = Thread(target=world.database.close)
            closing.start()
        closing.join()
        assert ticket.wait().serial == 1
        for call in (lambda: submit(world, "b"), lambda: world.database.outcome("any")):
            with pytest.raises(ClosedError):
                call()

    def test_a_poisoned_shard_takes_nothing_more_in(self) -> None:
        with World() as world:
            world.fail_write()
            with pytest.raises(OutcomeUnknownError):
                submit(world, "a").wait()
            tx = world.database.transaction()
            tx.write("b", b"")
            with pytest.raises(PoisonedError):
                tx.submit()

    def test_what_waits_when_a_shard_is_poisoned_is_told(self) -> None:
        with World(max_items=1) as world:
            world.fail_write()
            with held(world.database):
                tickets = [submit(world, f"a/{n}") for n in range(3)]
            errors = []
            for ticket in tickets:
                with pytest.raises((OutcomeUnknownError, PoisonedError)) as caught:
                    ticket.wait(10)
                errors.append(type(caught.value))
            assert errors == [OutcomeUnknownError, PoisonedError, PoisonedError]

    def test_nobody_is_left_waiting_when_the_thread_ends_by_a_mistake(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with World(max_items=2) as world:

            def mistake(changes: object) -> None:
                raise ZeroDivisionError

            cast("Any", world.memory).write = mistake
            ordered: list[SiltstoneError] = []

            def order() -> None:
                try:
                    world.database.outcome("x")
                except SiltstoneError as exc:
                    ordered.append(exc)

            ordering = Thread(target=order)
            with held(world.database):
                tickets = [submit(world, f"a/{n}") for n in range(3)]
                ordering.start()
            ordering.join()
            errors = []
            for ticket in tickets:
                with pytest.raises((OutcomeUnknownError, PoisonedError)) as caught:
                    ticket.wait(10)
                errors.append(type(caught.value))
            assert errors == [OutcomeUnknownError, OutcomeUnknownError, PoisonedError]
            assert [type(error) for error in ordered] == [PoisonedError]
            with pytest.raises(PoisonedError, match="close the database and open it again"):
                submit(world, "b")
        (told,) = caplog.records
        assert told.exc_info is not None
        assert (told.getMessage(), told.exc_info[0]) == ("shard_failed", ZeroDivisionError)


def test_a_clock_that_stands_still_does_not_keep_anything_from_being_committed() -> None:
    with World() as world:
        assert isinstance(world.clock, ManualClock)
        assert submit(world, "a").wait(10).serial == 1


def test_many_threads_hand_in_at_once() -> None:
    with World() as world:
        go, lock = Event(), Lock()
        serials: list[int] = []

        def work(number: int) -> None:
            go.wait()
            for n in range(20):
                serial = submit(world, f"{number}/{n}").wait().serial
                with lock:
                    serials.append(serial)

        threads = [Thread(target=work, args=(number,)) for number in range(8)]
        starts: list[Callable[[], None]] = [thread.start for thread in threads]
        for start in starts:
            start()
        go.set()
        for thread in threads:
            thread.join()
        assert sorted(serials) == list(range(1, 161))
        assert len(world.rows()) == 160
