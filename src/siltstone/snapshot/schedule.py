"""When to save: one snapshot at a time, by the clock and whenever somebody asks.

Whoever asks gets a snapshot that begins after that: those who ask while one is being written share
the next one. The first by the clock comes a whole interval after the start.
"""

from __future__ import annotations


class Schedule:
    """Decides when the next snapshot begins; an interval of 0 is never by the clock."""

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._due = now + interval
        self._is_asked = False
        self._is_saving = False

    def ask(self) -> None:
        """Let a snapshot begin as soon as none is being written."""
        self._is_asked = True

    def wait(self, now: float) -> float | None:
        """Return the seconds until a snapshot is to begin; None: not before something happens."""
        if self._is_saving:
            return None
        if self._is_asked:
            return 0.0
        return max(0.0, self._due - now) if self._interval else None

    def begin(self, now: float) -> None:
        """Take note that a snapshot begins."""
        assert not self._is_saving, "one at a time"
        self._is_saving = True
        self._is_asked = False
        self._due = now + self._interval

    def end(self) -> None:
        """Take note that it was written, or failed: the next one is not put off by that."""
        self._is_saving = False
