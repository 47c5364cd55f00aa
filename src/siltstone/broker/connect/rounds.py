"""Calls in short rounds of the event loop. Thousands of connections may end at the same moment, and
other clients must be served meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Final

from siltstone.guard import contain

ROUND_SECONDS: Final = 0.01


class Rounds:
    """Runs calls in order: at once, or in a later round when the current one has used its time."""

    def __init__(
        self, soon: Callable[[Callable[[], None]], None], now: Callable[[], float] = perf_counter
    ) -> None:
        self._soon = soon
        self._now = now
        self._waiting: deque[Callable[[], None]] = deque()
        self._used_seconds = 0.0
        self._is_begun = False

    def run(self, act: Callable[[], None]) -> None:
        """Run `act` now or in a later round. Its errors are logged."""
        if self._waiting or self._used_seconds >= ROUND_SECONDS:
            self._waiting.append(act)
        else:
            self._run(act)
        if not self._is_begun:
            self._is_begun = True
            self._soon(self._begin_next)

    def _begin_next(self) -> None:
        self._used_seconds = 0.0
        while self._waiting and self._used_seconds < ROUND_SECONDS:
            self._run(self._waiting.popleft())
        # Also if nothing waits: the next call must not find the time of this round used.
        self._is_begun = self._used_seconds > 0
        if self._is_begun:
            self._soon(self._begin_next)

    def _run(self, act: Callable[[], None]) -> None:
        start = self._now()
        contain(act)
        self._used_seconds += self._now() - start
