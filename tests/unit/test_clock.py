from __future__ import annotations

import time

from siltstone.clock import ManualClock, SystemClock


def test_the_system_clock_tells_wall_time_in_microseconds() -> None:
    before = time.time_ns()
    now_us = SystemClock().now_us()
    after = time.time_ns()
    assert before // 1000 <= now_us <= after // 1000


def test_the_system_clock_tells_monotonic_time_in_seconds() -> None:
    before = time.monotonic()
    now = SystemClock().monotonic()
    after = time.monotonic()
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
