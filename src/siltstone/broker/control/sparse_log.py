"""A rate limit for log events that clients can cause at any rate.

Invariants: every event is logged, or counted in `unlogged` of a later one, at the latest by
`flush`. Memory and the number of lines are limited, whatever keys the events have.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from siltstone.logs import log

# Keys that have lines of their own at the same time; events of further keys share theirs.
KEYS_MAX: Final = 100
_OTHERS: Final = "others"

Later = Callable[[float, Callable[[], None]], object]


class _Window:
    """The events of one key since its last summary."""

    __slots__ = ("event", "facts", "level", "lines_left", "waiting")

    def __init__(self, lines: int) -> None:
        self.lines_left = lines
        # The number of events that are not logged yet, and the last one of them.
        self.waiting = 0
        self.level = 0
        self.event = ""
        self.facts: dict[str, object] = {}


class SparseLog:
    """Logs the first `lines` events of a key, then one per `seconds`, which counts the others.

    `later` calls a function at a time. A key starts again with single lines after `seconds` without
    an event.
    """

    def __init__(
        self,
        logger: logging.Logger,
        now: Callable[[], float],
        later: Later,
        *,
        seconds: float = 1.0,
        lines: int = 1,
    ) -> None:
        self._logger = logger
        self._now = now
        self._later = later
        self._seconds = seconds
        self._lines = lines
        self._windows: dict[str, _Window] = {}

    def tell(self, level: int, event: str, facts: dict[str, object], key: str = "") -> None:
        """Log an event, or keep it for the summary of its key."""
        if not self._logger.isEnabledFor(level):
            return
        window = self._windows.get(key)
        if window is None:
            key, window = self._begin(key)
        if window.lines_left:
            window.lines_left -= 1
            log(self._logger, level, event, **facts)
            return
        window.waiting += 1
        window.level, window.event, window.facts = level, event, facts

    def flush(self) -> None:
        """Log the summaries of all keys now."""
        for window in self._windows.values():
            self._sum_up(window)

    def _begin(self, key: str) -> tuple[str, _Window]:
        if len(self._windows) >= KEYS_MAX:
            key = _OTHERS
            window = self._windows.get(key)
            if window is not None:
                return key, window
        window = self._windows[key] = _Window(self._lines)
        self._later(self._now() + self._seconds, partial(self._end, key))
        return key, window

    def _end(self, key: str) -> None:
        """End a window after its time: log its summary and wait again, or forget the key."""
        window = self._windows[key]
        if not window.waiting:
            del self._windows[key]
            return
        self._sum_up(window)
        self._later(self._now() + self._seconds, partial(self._end, key))

    def _sum_up(self, window: _Window) -> None:
        if not window.waiting:
            return
        if window.waiting > 1:
            window.facts["unlogged"] = window.waiting - 1
        window.waiting = window.lines_left = 0
        log(self._logger, window.level, window.event, **window.facts)
