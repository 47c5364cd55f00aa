"""Clocks: time is a parameter, so that tests control it. Compiled.

A GuardedClock does not trust a wall clock that jumps. Between runs it needs a Sighting, which is
the state of the clocks when they were last read. The store keeps the Sighting.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Lock
from typing import Final, NewType, Protocol

from mypy_extensions import mypyc_attr

from siltstone.units import SECOND_US

TimestampUs = NewType("TimestampUs", int)

# The defaults: a larger jump of the wall clock is not trusted, and the time that the clocks must
# agree before it is trusted again.
JUMP_SECONDS: Final = 60.0
CONFIRM_SECONDS: Final = 3600.0

_NOTHING: Final = range(0)
# CLOCK_BOOTTIME also runs while the machine is suspended, so a resume is not a jump of the wall
# clock.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """A source of time; wall time may jump, monotonic time never decreases."""

    def now_us(self) -> TimestampUs: ...

    def monotonic(self) -> float: ...

    def passed_us(self, since_us: int) -> int:
        """Return how much time has certainly passed since a time; negative if it is in the future.

        It is also negative if the time may be in the future. Deletion by age uses this value.
        """

    def held_us(self) -> range:
        """Return the span of time that may not have passed, which `passed_us` excludes.

        The span is empty when all time is certain.
        """


class SystemClock:
    """The clock of the machine."""

    def now_us(self) -> TimestampUs:
        return TimestampUs(time.time_ns() // 1000)

    def monotonic(self) -> float:
        return time.clock_gettime(_STEADY)

    def passed_us(self, since_us: int) -> int:
        return self.now_us() - since_us

    def held_us(self) -> range:
        return _NOTHING


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """The saved state of a GuardedClock, from which a later run continues.

    The monotonic time counts from the boot that `boot` names. If `boot` is empty, only the time is
    known.
    """

    time_us: int
    monotonic: float = 0.0
    boot: str = ""
    # Whether the clocks have agreed since the machine was started.
    is_anchored: bool = True
    # How far the wall clock was ahead (negative: behind), and since when in monotonic time.
    ahead_us: int = 0
    ahead_since: float = 0.0
    # The span of time that may not have passed, and since when the clocks have agreed after it.
    held_from_us: int = 0
    held_until_us: int = 0
    held_since: float = 0.0
    # Whether the time went back, so that saved times may be in the future.
    went_back: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockState:
    """The judgement of a GuardedClock about the wall clock; times are in µs.

    `ahead_us` is how far the wall clock is ahead of this clock, negative if it is behind. `held_us`
    is the time before the start that is not trusted. `left_seconds` is how long the clocks must
    still agree before the wall clock or the held time is trusted, None for never.
    """

    now_us: int
    wall_us: int
    ahead_us: int
    held_us: int
    since_seconds: float
    left_seconds: float | None

    @property
    def is_held(self) -> bool:
        """Whether something waits until the wall clock is trusted."""
        return bool(self.ahead_us or self.held_us)


class GuardedClock:
    """A clock that does not trust a jump of the wall clock at once; for any thread.

    While the wall clock and the monotonic clock agree, it returns wall time. When the wall clock
    differs by more than `jump_seconds`, it continues with the monotonic clock. It follows a jump
    forward after both clocks have agreed for `confirm_seconds` since. It does not follow a wall
    clock that was set back: data must not live longer than its expiry because of it. It returns
    wall time again when the two clocks meet.

    `resume` continues from an earlier run. Within one boot the monotonic clock tells how much time
    has passed, so a jump between two runs is treated as any other jump. After a reboot only the
    wall clock can tell. It is followed, because the machine may have been off. However, the time
    since the last run is held until both clocks have agreed for `confirm_seconds`.
    """

    def __init__(
        self, inner: Clock, *, jump_seconds: float, confirm_seconds: float, boot: str = ""
    ) -> None:
        self._inner = inner
        self.jump_us = round(jump_seconds * SECOND_US)
        self._confirm_seconds = confirm_seconds
        self._boot = boot
        self._lock = Lock()
        # The two clocks when they last agreed.
        self._agreed_us = int(inner.now_us())
        self._agreed_at = inner.monotonic()
        # Whether they have agreed since the machine was booted.
        self._is_anchored = True
        # How far the wall clock is ahead of this clock, and since when.
        self._ahead_us = 0
        self._ahead_since = 0.0
        # The span of time that may not have passed, and since when the clocks have agreed after it.
        self._held = _NOTHING
        self._held_since = 0.0
        self._went_back = False

    def resume(self, seen: Sighting) -> None:
        """Continue from an earlier run; call it before all other methods."""
        with self._lock:
            now = self._inner.monotonic()
            if seen.boot and seen.boot == self._boot and seen.monotonic <= now:
                self._agreed_us, self._agreed_at = seen.time_us, seen.monotonic
                self._ahead_us, self._ahead_since = seen.ahead_us, seen.ahead_since
                self._held = range(seen.held_from_us, seen.held_until_us)
                self._held_since = seen.held_since
                self._is_anchored = seen.is_anchored
            else:
                certain_us = seen.time_us - (seen.held_until_us - seen.held_from_us)
                self._agreed_us, self._agreed_at = certain_us, now
                self._is_anchored = False
            self._went_back = seen.went_back
            told_us = self._look()
            self._went_back |= told_us < seen.time_us - self.jump_us

    def sighting(self) -> Sighting:
        """Return the state that a later run needs to continue."""
        with self._lock:
            told_us = self._look()
            return Sighting(
                time_us=told_us,
                monotonic=self._inner.monotonic(),
                boot=self._boot,
                is_anchored=self._is_anchored,
                ahead_us=self._ahead_us,
                ahead_since=self._ahead_since,
                held_from_us=self._held.start,
                held_until_us=self._held.stop,
                held_since=self._held_since,
                went_back=self._went_back,
            )

    def state(self) -> ClockState:
        """Return the current judgement about the wall clock."""
        with self._lock:
            told_us = self._look()
            now = self._inner.monotonic()
            since = self._ahead_since if self._ahead_us else self._held_since
            is_held = bool(self._ahead_us or self._held)
            left = max(0.0, self._confirm_seconds - (now - since)) if is_held else 0.0
            return ClockState(
                now_us=told_us,
                wall_us=int(self._inner.now_us()),
                ahead_us=self._ahead_us,
                held_us=len(self._held),
                since_seconds=now - since if is_held else 0.0,
                left_seconds=None if self._ahead_us < 0 else left,
            )

    @property
    def went_back(self) -> bool:
        """Whether the time of this clock went back, so that saved times may be in the future."""
        self.now_us()
        return self._went_back

    def settle(self) -> None:
        """Record that saved times were corrected."""
        self._went_back = False

    def confirm(self) -> None:
        """Trust the wall clock from now on."""
        with self._lock:
            told_us = self._look()
            wall_us = int(self._inner.now_us())
            self._went_back |= wall_us < told_us
            self._held = _NOTHING
            self._agree(wall_us, self._inner.monotonic())

    def now_us(self) -> TimestampUs:
        with self._lock:
            return TimestampUs(self._look())

    def monotonic(self) -> float:
        return self._inner.monotonic()

    def passed_us(self, since_us: int) -> int:
        with self._lock:
            passed = self._look() - since_us
            return passed - len(self._held) if since_us < self._held.stop else passed

    def held_us(self) -> range:
        with self._lock:
            self._look()
            return self._held

    def _look(self) -> int:
        """Compare the clocks; return the time of this clock."""
        wall_us, now = int(self._inner.now_us()), self._inner.monotonic()
        told_us = self._agreed_us + round((now - self._agreed_at) * SECOND_US)
        ahead_us = wall_us - told_us
        if abs(ahead_us) <= self.jump_us:
            self._agree(wall_us, now)
            if self._held and now - self._held_since >= self._confirm_seconds:
                self._held = _NOTHING
        elif ahead_us > 0 and not self._is_anchored:
            self._hold(told_us, wall_us, now)
        elif ahead_us < 0 and self._held and wall_us >= told_us - len(self._held) - self.jump_us:
            # Held time was never trusted, so it is given up at once.
            self._went_back = True
            self._hold(told_us - len(self._held), wall_us, now)
        elif self._is_confirmed(ahead_us, now):
            self._held = _NOTHING
            self._agree(wall_us, now)
        else:
            return told_us
        return wall_us

    def _agree(self, wall_us: int, now: float) -> None:
        self._agreed_us, self._agreed_at = wall_us, now
        self._is_anchored = True
        self._ahead_us = 0

    def _hold(self, certain_us: int, wall_us: int, now: float) -> None:
        """Follow the wall clock, but hold the time since the last certain time."""
        self._held = _NOTHING
        if wall_us - certain_us > self.jump_us:
            self._held, self._held_since = range(certain_us, wall_us), now
        self._agree(wall_us, now)

    def _is_confirmed(self, ahead_us: int, now: float) -> bool:
        """Return whether the wall clock has been ahead by the same amount for long enough."""
        if self._ahead_us == 0 or abs(ahead_us - self._ahead_us) > self.jump_us:
            self._ahead_us, self._ahead_since = ahead_us, now
        # Only clocks that agree confirm the time before the start.
        self._held_since = now
        return ahead_us > 0 and now - self._ahead_since >= self._confirm_seconds


@mypyc_attr(allow_interpreted_subclasses=True)
class ManualClock:
    """A clock that moves only when it is told to."""

    def __init__(self, start_us: int = 1_700_000_000_000_000) -> None:
        self._now_us = start_us
        self._monotonic = 0.0

    def now_us(self) -> TimestampUs:
        return TimestampUs(self._now_us)

    def monotonic(self) -> float:
        return self._monotonic

    def passed_us(self, since_us: int) -> int:
        return self._now_us - since_us

    def held_us(self) -> range:
        return _NOTHING

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_us += round(seconds * SECOND_US)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator would."""
        self._now_us += round(seconds * SECOND_US)
