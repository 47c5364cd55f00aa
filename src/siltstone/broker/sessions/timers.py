"""Timers of the broker: one heap, which the owner of the clock runs.

A timer never runs early. Cancelling is cheap: a cancelled timer is removed when its time comes, or
when the cancelled timers outnumber the others.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final

from siltstone.guard import contain

_SPARE: Final = 1000


class Timer:
    """One action, and the time when it is due."""

    __slots__ = ("act", "at", "number")

    def __init__(self, at: float, number: int, act: Callable[[], None]) -> None:
        self.at = at
        self.number = number
        self.act: Callable[[], None] | None = act

    def __lt__(self, other: Timer) -> bool:
        return (self.at, self.number) < (other.at, other.number)


class Timers:
    """All timers of a broker; `wake` is called with each new earliest time."""

    def __init__(self, wake: Callable[[float], None]) -> None:
        self._wake = wake
        self._heap: list[Timer] = []
        self._cancelled = 0
        self._number = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def at(self, at: float, act: Callable[[], None]) -> Timer:
        """Call `act` at a time or soon after; return the timer."""
        self._number += 1
        timer = Timer(at, self._number, act)
        heappush(self._heap, timer)
        if self._heap[0] is timer:
            self._wake(at)
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """Cancel the timer; a timer that has run is not changed."""
        if timer is None or timer.act is None:
            return
        timer.act = None
        self._cancelled += 1
        if self._cancelled > _SPARE and self._cancelled * 2 > len(self._heap):
            self._heap = [kept for kept in self._heap if kept.act is not None]
            heapify(self._heap)
            self._cancelled = 0

    def run(self, now: float) -> None:
        """Run all due timers, then call `wake` with the time of the next one."""
        while self._heap and self._heap[0].at <= now:
            timer = heappop(self._heap)
            act = timer.act
            if act is None:
                self._cancelled -= 1
                continue
            timer.act = None
            contain(act)
        if self._heap:
            self._wake(self._heap[0].at)
