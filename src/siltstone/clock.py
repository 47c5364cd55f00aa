"""Where time comes from: a parameter, so that tests own it."""

from __future__ import annotations

import time
from threading import Lock
from typing import Final, NewType, Protocol

TimestampUs = NewType("TimestampUs", int)

_US: Final = 1_000_000
# Goes on while the machine sleeps, where there is one: to wake up is no jump of the wall clock.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Tells the time; wall time may jump, monotonic time never goes back."""

    def now_us(self) -> TimestampUs: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> TimestampUs:
        return TimestampUs(time.time_ns() // 1000)

    def monotonic(self) -> float:
        return time.clock_gettime(_STEADY)


class GuardedClock:
    """A clock that does not believe a jump of the wall clock at once; for any thread.

    As long as the wall clock and the monotonic one agree, it tells wall time. When the wall clock
    leaves by more than `jump_seconds`, it goes on by itself. A jump ahead is followed when both
    clocks have agreed for `confirm_seconds` since. A clock that was set back is not followed: what
    expires must not live longer for it. It is wall time again when the two meet.
    """

    def __init__(self, inner: Clock, *, jump_seconds: float, confirm_seconds: float) -> None:
        self._inner = inner
        self._jump_us = round(jump_seconds * _US)
        self._confirm_seconds = confirm_seconds
        self._lock = Lock()
        # Where the two clocks stood when they agreed last.
        self._agreed_us = int(inner.now_us())
        self._agreed_at = inner.monotonic()
        # How far the wall clock is ahead of what is told, and since when.
        self._ahead_us = 0
        self._ahead_since = 0.0

    @property
    def ahead_seconds(self) -> float:
        """How far the wall clock is ahead, or below 0 behind, of the time that is told; 0 when it
        is believed.
        """
        self.now_us()
        return self._ahead_us / _US

    def now_us(self) -> TimestampUs:
        with self._lock:
            wall_us, now = int(self._inner.now_us()), self._inner.monotonic()
            told_us = self._agreed_us + round((now - self._agreed_at) * _US)
            ahead_us = wall_us - told_us
            if abs(ahead_us) > self._jump_us and not self._is_confirmed(ahead_us, now):
                return TimestampUs(told_us)
            self._agreed_us, self._agreed_at = wall_us, now
            self._ahead_us = 0
            return TimestampUs(wall_us)

    def monotonic(self) -> float:
        return self._inner.monotonic()

    def _is_confirmed(self, ahead_us: int, now: float) -> bool:
        """Say whether the wall clock is ahead, and was as far ahead for long enough."""
        if self._ahead_us == 0 or abs(ahead_us - self._ahead_us) > self._jump_us:
            self._ahead_us, self._ahead_since = ahead_us, now
        return ahead_us > 0 and now - self._ahead_since >= self._confirm_seconds


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = start_us
        self._monotonic = 0.0

    def now_us(self) -> TimestampUs:
        return TimestampUs(self._now_us)

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_us += round(seconds * 1_000_000)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator would."""
        self._now_us += round(seconds * 1_000_000)
