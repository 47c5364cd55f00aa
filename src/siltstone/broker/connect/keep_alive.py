"""The keep alive timeout: a client must send something within 1.5 times its keep alive."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from siltstone.broker.sessions.timers import Timer, Timers

_GRACE: Final = 1.5
# [MQTT-3.1.2-22] asks for whole packets. A read of at least this many bytes of a large packet
# resets the timeout too.
PROGRESS_BYTES: Final = 1000


def _nothing() -> None:
    """Do nothing."""


class KeepAlive:
    """Calls `silent` once when the client was silent for too long; 0 seconds mean no timeout."""

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
        # Whether the broker does not read from the client, so that silence means nothing.
        self.is_deaf = False

    def begin(self, seconds: int) -> None:
        """Start the timeout, with the keep alive of the client."""
        self._seen = self._now()
        if seconds:
            self._seconds = seconds * _GRACE
            self._timer = self._timers.at(self._seen + self._seconds, self._check)

    def seen(self) -> None:
        """Restart the timeout, because the client sent something."""
        self._seen = self._now()

    def end(self) -> None:
        """Cancel the timeout, and drop the reference to the callback."""
        self._timers.cancel(self._timer)
        self._silent = _nothing

    def _check(self) -> None:
        now = self._now()
        due = now + self._seconds if self.is_deaf else self._seen + self._seconds
        if due <= now:
            self._silent()
        else:
            self._timer = self._timers.at(due, self._check)
