from __future__ import annotations

import time

from siltstone.clock import GuardedClock, ManualClock, SystemClock


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
    return (clock.now_us() - START_US) / 1e6, clock.ahead_seconds


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
