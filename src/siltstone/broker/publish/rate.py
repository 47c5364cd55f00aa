"""The rate limit for the messages that one client publishes: a token bucket."""

from __future__ import annotations


class Rate:
    """A token bucket for `per_second` messages per second and per burst; 0 means no limit."""

    __slots__ = ("_at", "_left", "per_second")

    def __init__(self, per_second: int) -> None:
        self.per_second = per_second
        self._left = float(per_second)
        self._at: float | None = None

    def take(self, count: int, now: float) -> float:
        """Count received messages; return for how many seconds to stop reading."""
        if self.per_second == 0:
            return 0.0
        if self._at is not None:
            filled = self._left + (now - self._at) * self.per_second
            self._left = min(float(self.per_second), filled)
        self._at = now
        self._left -= count
        return max(0.0, -self._left / self.per_second)
