"""Whether a client still lives: it must show it within one and a half times its keep alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from siltstone.broker.sessions.timers import Timer, Timers

_GRACE: Final = 1.5
# [MQTT-3.1.2-22] asks for whole packets; so much of a large one is a sign of life all the same.
PROGRESS_BYTES: Final = 1000


def _nothing() -> None:
    """Hear nothing."""


class KeepAlive:
    """Calls `silent` once when the client was silent for too long; 0 seconds are for ever."""

    __slots__ = ("_now", "_seconds", "_seen", "_silent", "_timer", "_timers", "is_deaf")

    def __init__(
        self, timers: Timers, now: Callable[[], float], silent: Callable[[], None]
    ) -> None:
        self._timers = timers
        self._now = now
        self._silent = silent
        self._seconds = 0.0
        self._seen = now()
        self._timer: Timer | None = None
        # Whether we do not read the client, so that its silence says nothing.
        self.is_deaf = False

    def begin(self, seconds: int) -> None:
        """Expect a sign of life so often from now on."""
        self._seen = self._now()
        if seconds:
            self._seconds = seconds * _GRACE
            self._timer = self._timers.at(self._seen + self._seconds, self._check)

    def seen(self) -> None:
        """Take note of a sign of life."""
        self._seen = self._now()

    def end(self) -> None:
        """Expect nothing any more, and let go of who would hear of silence."""
        self._timers.cancel(self._timer)
        self._silent = _nothing

    def _check(self) -> None:
        now = self._now()
        due = now + self._seconds if self.is_deaf else self._seen + self._seconds
        if due <= now:
            self._silent()
        else:
            self._timer = self._timers.at(due, self._check)
