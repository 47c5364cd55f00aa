from __future__ import annotations

from collections.abc import Callable

from siltstone.broker.sessions.timers import Timers


class Log:
    """What was done, and when to wake."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.wakes: list[float] = []
        self.timers = Timers(self.wakes.append)

    def note(self, name: str) -> Callable[[], None]:
        return lambda: self.done.append(name)


def test_what_is_due_is_done_in_order_of_time_then_of_asking() -> None:
    log = Log()
    for at, name in ((3.0, "c"), (1.0, "a"), (2.0, "b1"), (2.0, "b2"), (4.0, "d")):
        log.timers.at(at, log.note(name))
    log.timers.run(3.0)
    assert (log.done, len(log.timers)) == (["a", "b1", "b2", "c"], 1)


def test_nothing_is_done_early_and_nothing_twice() -> None:
    log = Log()
    log.timers.at(1.0, log.note("a"))
    log.timers.run(0.999)
    assert log.done == []
    log.timers.run(1.0)
    log.timers.run(2.0)
    assert log.done == ["a"]


def test_wake_is_asked_for_each_new_earliest_time_and_for_the_next_after_a_run() -> None:
    log = Log()
    for at in (5.0, 7.0, 3.0, 6.0):
        log.timers.at(at, log.note("x"))
    assert log.wakes == [5.0, 3.0]
    log.timers.run(5.0)
    assert log.wakes == [5.0, 3.0, 6.0]
    log.timers.run(7.0)
    assert log.wakes == [5.0, 3.0, 6.0]


def test_a_cancelled_timer_is_not_run_nor_counted() -> None:
    log = Log()
    kept = log.timers.at(1.0, log.note("kept"))
    cancelled = log.timers.at(1.0, log.note("cancelled"))
    log.timers.cancel(cancelled)
    log.timers.cancel(cancelled)
    log.timers.cancel(None)
    assert len(log.timers) == 1
    log.timers.run(1.0)
    assert (log.done, len(log.timers)) == (["kept"], 0)
    log.timers.cancel(kept)
    assert len(log.timers) == 0


def test_what_is_done_may_ask_for_more_and_cancel_others() -> None:
    log = Log()
    later = log.timers.at(2.0, log.note("never"))

    def act() -> None:
        log.timers.cancel(later)
        log.timers.at(1.0, log.note("at once"))
        log.timers.at(9.0, log.note("another time"))

    log.timers.at(1.0, act)
    log.timers.run(2.0)
    assert (log.done, len(log.timers), log.wakes[-1]) == (["at once"], 1, 9.0)


def test_one_that_fails_does_not_keep_the_others_from_their_time() -> None:
    log = Log()

    def fail() -> None:
        raise ValueError("on purpose")

    log.timers.at(1.0, fail)
    log.timers.at(1.0, log.note("next"))
    log.timers.run(1.0)
    assert log.done == ["next"]


def test_cancelled_timers_that_outnumber_the_others_are_thrown_away() -> None:
    log = Log()
    for at in (3.0, 1.0, 2.0):
        log.timers.at(at, log.note(f"{at}"))
    cancelled = [log.timers.at(0.5, log.note("no")) for _ in range(1001)]
    for timer in cancelled[:1000]:
        log.timers.cancel(timer)
    log.timers.run(0.1)
    # Whoever is still in the heap is woken for.
    assert (log.wakes[-1], len(log.timers)) == (0.5, 4)
    log.timers.cancel(cancelled[1000])
    log.timers.run(0.1)
    assert (log.wakes[-1], len(log.timers)) == (1.0, 3)
    log.timers.run(3.0)
    assert (log.done, len(log.timers)) == (["1.0", "2.0", "3.0"], 0)


def test_many_cancelled_timers_may_stay_among_more_that_are_not() -> None:
    log = Log()
    numbers = range(1, 2001)
    for number in numbers:
        log.timers.at(float(number), log.note(f"{number}"))
    for timer in [log.timers.at(0.5, log.note("no")) for _ in range(1500)]:
        log.timers.cancel(timer)
    log.timers.run(0.1)
    assert (log.wakes[-1], len(log.timers)) == (0.5, 2000)
    log.timers.run(2000.0)
    assert (log.done, len(log.timers)) == ([f"{number}" for number in numbers], 0)
