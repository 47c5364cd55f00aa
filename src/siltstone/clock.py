"""Where time comes from: a parameter, so that tests own it."""

from __future__ import annotations

import time
from typing import NewType, Protocol

TimestampUs = NewType("TimestampUs", int)


class Clock(Protocol):
    """Tells the time; wall time may jump, monotonic time never goes back."""

    def now_us(self) -> TimestampUs: ...

    def monotonic(self) -> float: ...


class SystemClock:
    """The machine's clock."""

    def now_us(self) -> TimestampUs:
        return TimestampUs(time.time_ns() // 1000)

    def monotonic(self) -> float:
        return time.monotonic()


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
