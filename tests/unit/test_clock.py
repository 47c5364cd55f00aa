from __future__ import annotations

import time

from siltstone.clock import ClockState, GuardedClock, ManualClock, Sighting, SystemClock
from siltstone.units import SECOND_US


def test_the_system_clock_tells_wall_time_in_microseconds() -> None:
    before = time.time_ns()
    now_us = SystemClock().now_us()
    after = time.time_ns()
    assert before // 1000 <= now_us <= after // 1000


def test_the_system_clock_tells_monotonic_time_in_seconds() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    now = SystemClock().monotonic()
    after = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= now <= after


def test_a_manual_clock_stands_still() -> None:
    clock = ManualClock(5)
    assert [(clock.now_us(), clock.monotonic()) for _ in range(2)] == [(5, 0.0), (5, 0.0)]


def test_advancing_moves_both_times() -> None:
    clock = ManualClock(5)
    clock.advance(1.5)
    assert (clock.now_us(), clock.monotonic()) == (1_500_005, 1.5)


def test_a_jump_moves_wall_time_only_and_may_go_back() -> None:
    clock = ManualClock(5_000_000)
    clock.jump(-2.0)
    assert (clock.now_us(), clock.monotonic()) == (3_000_000, 0.0)


DAY = 86_400.0
START_US = 1_000_000_000_000


def guarded() -> tuple[ManualClock, GuardedClock]:
    inner = ManualClock(START_US)
    return inner, GuardedClock(inner, jump_seconds=60, confirm_seconds=3600)


def told(clock: GuardedClock) -> tuple[float, float]:
    """Return the seconds since the start that a clock tells, and how far the wall is ahead."""
    return (clock.now_us() - START_US) / 1e6, clock.state().ahead_us / SECOND_US


def test_a_guarded_clock_tells_wall_time_and_follows_small_corrections() -> None:
    inner, clock = guarded()
    inner.advance(100)
    assert told(clock) == (100, 0)
    inner.jump(60)
    assert told(clock) == (160, 0)
    inner.jump(-60)
    assert told(clock) == (100, 0)
    inner.advance(DAY)
    assert (told(clock), clock.monotonic()) == ((100 + DAY, 0), 100 + DAY)


def test_a_jump_ahead_that_is_taken_back_was_never_told() -> None:
    inner, clock = guarded()
    inner.jump(3 * DAY)
    assert told(clock) == (0, 3 * DAY)
    inner.advance(20)
    assert told(clock) == (20, 3 * DAY)
    inner.jump(-3 * DAY)
    assert told(clock) == (20, 0)


def test_a_jump_ahead_is_believed_when_the_clocks_have_agreed_for_long_enough() -> None:
    inner, clock = guarded()
    inner.jump(3 * DAY)
    assert told(clock) == (0, 3 * DAY)
    inner.advance(3599)
    assert told(clock) == (3599, 3 * DAY)
    inner.advance(1)
    assert told(clock) == (3600 + 3 * DAY, 0)


def test_another_jump_begins_the_wait_anew() -> None:
    inner, clock = guarded()
    inner.jump(DAY)
    assert told(clock) == (0, DAY)
    inner.advance(3599)
    inner.jump(DAY)
    assert told(clock) == (3599, 2 * DAY)
    inner.advance(3599)
    assert told(clock) == (7198, 2 * DAY)
    inner.advance(1)
    assert told(clock) == (7199 + 2 * DAY, 0)


def test_a_clock_that_was_set_back_is_not_followed_until_it_has_caught_up() -> None:
    inner, clock = guarded()
    inner.jump(-DAY)
    assert told(clock) == (0, -DAY)
    inner.advance(2 * DAY)
    assert told(clock) == (2 * DAY, -DAY)
    inner.jump(DAY)
    assert told(clock) == (2 * DAY, 0)


def at_start() -> tuple[ManualClock, GuardedClock]:
    inner = ManualClock(START_US)
    return inner, GuardedClock(inner, jump_seconds=60, confirm_seconds=3600, boot="b")


def started(inner: ManualClock, seen: Sighting, boot: str) -> GuardedClock:
    """Return the clock of a later run, in this boot of the machine."""
    clock = GuardedClock(inner, jump_seconds=60, confirm_seconds=3600, boot=boot)
    clock.resume(seen)
    return clock


def resumed(inner: ManualClock, clock: GuardedClock, boot: str) -> GuardedClock:
    return started(inner, clock.sighting(), boot)


def passed(clock: GuardedClock, since_us: int = START_US) -> float:
    return clock.passed_us(since_us) / 1e6


def test_within_one_boot_a_pause_of_any_length_has_passed() -> None:
    inner, clock = at_start()
    seen = clock.sighting()
    inner.advance(3 * DAY)
    after = started(inner, seen, "b")
    assert (told(after), passed(after), after.state().is_held) == ((3 * DAY, 0), 3 * DAY, False)


def test_within_one_boot_a_jump_between_two_runs_is_a_jump() -> None:
    inner, clock = at_start()
    seen = clock.sighting()
    inner.advance(10)
    inner.jump(3 * DAY)
    after = started(inner, seen, "b")
    assert (told(after), passed(after)) == ((10, 3 * DAY), 10)
    # A restart does not make the wait longer.
    inner.advance(3000)
    again = resumed(inner, after, "b")
    inner.advance(600)
    assert told(again) == (3 * DAY + 3610, 0)


def test_after_a_boot_the_wall_clock_is_told_and_the_pause_is_held() -> None:
    inner, clock = at_start()
    seen = clock.sighting()
    inner.jump(3 * DAY)
    after = started(inner, seen, "c")
    assert (told(after), passed(after)) == ((3 * DAY, 0), 0)
    assert after.held_us() == range(START_US, inner.now_us())
    left_us = inner.now_us()
    inner.advance(100)
    # What began in this run is as old as it is.
    assert (passed(after), passed(after, left_us)) == (100, 100)
    inner.advance(3499)
    assert passed(after) == 3599
    inner.advance(1)
    assert (passed(after), after.held_us()) == (3 * DAY + 3600, range(0))


def test_after_a_boot_a_short_pause_is_not_held() -> None:
    inner, clock = at_start()
    seen = clock.sighting()
    inner.jump(60)
    after = started(inner, seen, "c")
    assert (told(after), passed(after), after.state().is_held) == ((60, 0), 60, False)


def test_after_a_boot_a_clock_that_is_behind_goes_on_from_the_last_time_seen() -> None:
    inner, clock = at_start()
    seen = clock.sighting()
    inner.jump(-3 * DAY)
    after = started(inner, seen, "c")
    inner.advance(100)
    assert (told(after), passed(after)) == ((100, -3 * DAY), 100)
    assert after.state().left_seconds is None
    # The network tells the time late: the machine was off for a day.
    inner.jump(4 * DAY)
    assert (told(after), passed(after)) == ((DAY + 100, 0), 100)


def test_a_clock_that_was_never_believed_is_given_up_at_once() -> None:
    inner, clock = at_start()
    seen = clock.sighting()
    inner.jump(365 * DAY)
    after = started(inner, seen, "c")
    assert (told(after), after.went_back) == ((365 * DAY, 0), False)
    inner.advance(20)
    inner.jump(-365 * DAY)
    assert (told(after), passed(after), after.went_back) == ((20, 0), 20, True)
    assert not after.state().is_held
    after.settle()
    assert not after.went_back


def test_a_jump_while_a_pause_is_held_makes_the_wait_longer() -> None:
    inner, clock = at_start()
    seen = clock.sighting()
    inner.jump(DAY)
    after = started(inner, seen, "c")
    inner.advance(3000)
    inner.jump(-2 * DAY)
    assert told(after) == (DAY + 3000, -2 * DAY)
    inner.jump(2 * DAY)
    inner.advance(3599)
    assert (told(after), passed(after)) == ((DAY + 6599, 0), 6599)
    inner.advance(1)
    assert passed(after) == DAY + 6600


def test_a_pause_that_is_held_stays_so_in_the_next_run_and_the_next_boot() -> None:
    inner, clock = at_start()
    seen = clock.sighting()
    inner.jump(DAY)
    first = started(inner, seen, "c")
    inner.advance(3000)
    second = resumed(inner, first, "c")
    assert (told(second), passed(second)) == ((DAY + 3000, 0), 3000)
    third = resumed(inner, second, "d")
    inner.advance(599)
    assert (told(third), passed(third)) == ((DAY + 3599, 0), 3599)
    inner.advance(1)
    assert (passed(second), passed(third)) == (DAY + 3600, 3600)


def test_confirming_believes_the_wall_clock_at_once() -> None:
    inner, clock = at_start()
    inner.jump(DAY)
    clock.confirm()
    assert (told(clock), passed(clock), clock.went_back) == ((DAY, 0), DAY, False)
    inner.jump(-2 * DAY)
    clock.confirm()
    assert (told(clock), clock.went_back) == ((-DAY, 0), True)
    # The next run has to know.
    assert resumed(inner, clock, "b").went_back
    held = resumed(inner, at_start()[1], "c")
    assert held.state().ahead_us == -DAY * 1e6
    held.confirm()
    assert (held.state().is_held, held.went_back) == (False, True)


def test_the_state_tells_how_long_it_is_still_to_be_waited() -> None:
    inner, clock = at_start()
    assert clock.state() == ClockState(
        now_us=START_US,
        wall_us=START_US,
        ahead_us=0,
        held_us=0,
        since_seconds=0.0,
        left_seconds=0.0,
    )
    inner.jump(DAY)
    clock.now_us()
    inner.advance(600)
    assert clock.state() == ClockState(
        now_us=START_US + 600_000_000,
        wall_us=inner.now_us(),
        ahead_us=round(DAY * 1e6),
        held_us=0,
        since_seconds=600.0,
        left_seconds=3000.0,
    )


def test_other_clocks_hold_nothing() -> None:
    manual = ManualClock(5_000_000)
    assert (manual.passed_us(2_000_000), manual.held_us()) == (3_000_000, range(0))
    system = SystemClock()
    since_us = system.now_us() - 5
    assert (system.passed_us(since_us) >= 5, system.held_us()) == (True, range(0))
