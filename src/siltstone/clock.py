"""Where time comes from: a parameter, so that tests own it.

A GuardedClock does not believe a wall clock that jumps. What it must know for that across runs is a
Sighting: where the clocks stood when they were seen last. The store keeps it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Lock
from typing import Final, NewType, Protocol

TimestampUs = NewType("TimestampUs", int)

# How far the wall clock may jump before it is not believed, and how long it must go on so before it
# is, where nothing else was set.
JUMP_SECONDS: Final = 60.0
CONFIRM_SECONDS: Final = 3600.0

_US: Final = 1_000_000
_NOTHING: Final = range(0)
# Goes on while the machine sleeps, where there is one: to wake up is no jump of the wall clock.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Tells the time; wall time may jump, monotonic time never goes back."""

    def now_us(self) -> TimestampUs: ...

    def monotonic(self) -> float: ...

    def passed_us(self, since_us: int) -> int:
        """Return how much time has passed for certain since a time; below 0 when it is still to
        come, or may be. What is deleted by its age is deleted by this.
        """

    def held_us(self) -> range:
        """Return the span of time that may not have passed, which `passed_us` leaves out; empty
        when all has.
        """


class SystemClock:
    """The machine's clock."""

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
    """What a GuardedClock knew when it was seen last; all that it needs to go on.

    The monotonic time counts from the start of the machine that `boot` names; of a boot without a
    name nothing is known but the time.
    """

    time_us: int
    monotonic: float = 0.0
    boot: str = ""
    # Whether the clocks have agreed since the machine was started.
    is_anchored: bool = True
    # How far the wall clock was ahead, or below 0 behind, and since when in monotonic time.
    ahead_us: int = 0
    ahead_since: float = 0.0
    # The time that may not have passed, and since when the clocks have agreed behind it.
    held_from_us: int = 0
    held_until_us: int = 0
    held_since: float = 0.0
    # Whether the time went back, so that what was saved before may be of a later time.
    went_back: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockState:
    """What a GuardedClock makes of the wall clock; times are in µs.

    `ahead_us` is how far the wall clock is ahead of the time told, below 0 behind. `held_us` is the
    time that passed before the start and is not believed. `left_seconds` says how long the clocks
    must still agree before either is believed, None for never.
    """

    now_us: int
    wall_us: int
    ahead_us: int
    held_us: int
    since_seconds: float
    left_seconds: float | None

    @property
    def is_held(self) -> bool:
        """Whether anything waits for the wall clock to be believed."""
        return bool(self.ahead_us or self.held_us)


class GuardedClock:
    """A clock that does not believe a jump of the wall clock at once; for any thread.

    As long as the wall clock and the monotonic one agree, it tells wall time. When the wall clock
    leaves by more than `jump_seconds`, it goes on by itself. A jump ahead is followed when both
    clocks have agreed for `confirm_seconds` since. A clock that was set back is not followed: what
    expires must not live longer for it. It is wall time again when the two meet.

    `resume` takes over from an earlier run. Within one boot the monotonic clock tells how much time
    has passed, so that a jump between two runs is one like any other. After a boot only the wall
    clock can tell. It is followed, for the machine may have been off; but the time since the last
    run is held until both clocks have agreed for `confirm_seconds`.
    """

    def __init__(
        self, inner: Clock, *, jump_seconds: float, confirm_seconds: float, boot: str = ""
    ) -> None:
        self._inner = inner
        self.jump_us = round(jump_seconds * _US)
        self._confirm_seconds = confirm_seconds
        self._boot = boot
        self._lock = Lock()
        # Where the two clocks stood when they agreed last.
        self._agreed_us = int(inner.now_us())
        self._agreed_at = inner.monotonic()
        # Whether they have agreed since the machine was started.
        self._is_anchored = True
        # How far the wall clock is ahead of what is told, and since when.
        self._ahead_us = 0
        self._ahead_since = 0.0
        # Time that may not have passed, and since when the clocks have agreed behind it.
        self._held = _NOTHING
        self._held_since = 0.0
        self._went_back = False

    def resume(self, seen: Sighting) -> None:
        """Go on from an earlier run; before all else."""
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
        """Return what a later run needs to go on."""
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

    @property
    def ahead_seconds(self) -> float:
        """How far the wall clock is ahead, or below 0 behind, of the time that is told; 0 when it
        is believed.
        """
        return self.state().ahead_us / _US

    def state(self) -> ClockState:
        """Return what is believed of the wall clock now."""
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
        """Whether its time went back, so that times that were saved may be later than now."""
        self.now_us()
        return self._went_back

    def settle(self) -> None:
        """Hear that times that were saved are set right."""
        self._went_back = False

    def confirm(self) -> None:
        """Believe the wall clock from now on."""
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
        """Compare the clocks; return the time to tell."""
        wall_us, now = int(self._inner.now_us()), self._inner.monotonic()
        told_us = self._agreed_us + round((now - self._agreed_at) * _US)
        ahead_us = wall_us - told_us
        if abs(ahead_us) <= self.jump_us:
            self._agree(wall_us, now)
            if self._held and now - self._held_since >= self._confirm_seconds:
                self._held = _NOTHING
        elif ahead_us > 0 and not self._is_anchored:
            self._hold(told_us, wall_us, now)
        elif ahead_us < 0 and self._held and wall_us >= told_us - len(self._held) - self.jump_us:
            # What was never believed is given up at once.
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
        """Follow the wall clock, but for the time since the last that is certain."""
        self._held = _NOTHING
        if wall_us - certain_us > self.jump_us:
            self._held, self._held_since = range(certain_us, wall_us), now
        self._agree(wall_us, now)

    def _is_confirmed(self, ahead_us: int, now: float) -> bool:
        """Say whether the wall clock is ahead, and was as far ahead for long enough."""
        if self._ahead_us == 0 or abs(ahead_us - self._ahead_us) > self.jump_us:
            self._ahead_us, self._ahead_since = ahead_us, now
        # Only clocks that agree prove anything of the time before the start.
        self._held_since = now
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

    def passed_us(self, since_us: int) -> int:
        return self._now_us - since_us

    def held_us(self) -> range:
        return _NOTHING

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_us += round(seconds * 1_000_000)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator would."""
        self._now_us += round(seconds * 1_000_000)
