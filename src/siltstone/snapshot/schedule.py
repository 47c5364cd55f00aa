"""Decides when to save: one snapshot at a time, at an interval and on request.

A request gets a snapshot that begins after the request: all requests during a save share the next
one. The first scheduled snapshot comes a whole interval after the start.
"""

from __future__ import annotations


class Schedule:
    """Decides when the next snapshot begins; an interval of 0 means only on request."""

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._due = now + interval
        self._is_asked = False
        self._is_saving = False

    def ask(self) -> None:
        """Request a snapshot; it begins as soon as none is being written."""
        self._is_asked = True

    def wait(self, now: float) -> float | None:
        """Return the seconds until the next snapshot begins; None: wait for `ask` or `end`."""
        if self._is_saving:
            return None
        if self._is_asked:
            return 0.0
        return max(0.0, self._due - now) if self._interval else None

    def begin(self, now: float) -> None:
        """Record that a snapshot begins."""
        assert not self._is_saving, "one at a time"
        self._is_saving = True
        self._is_asked = False
        self._due = now + self._interval

    def end(self) -> None:
        """Record that the snapshot was written or failed; this does not delay the next one."""
        self._is_saving = False
