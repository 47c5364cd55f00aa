"""The delay before a lost connection is tried again."""

from __future__ import annotations

from collections.abc import Callable
from secrets import SystemRandom
from typing import Final

FIRST_SECONDS: Final = 0.1
LONGEST_SECONDS: Final = 5.0


class Backoff:
    """Delays that double, each shortened by a random part so that clients do not all return at
    once.

    They start again after a connection that lasted. A client that cannot connect for
    `give_up_seconds` gives up; None means never.
    """

    def __init__(
        self, give_up_seconds: float | None, *, random: Callable[[], float] | None = None
    ) -> None:
        self._give_up_seconds = give_up_seconds
        self._random = random or SystemRandom().random
        self._wait = FIRST_SECONDS
        self._away_since: float | None = None
        self._connected_at: float | None = None

    def connected(self, now: float) -> None:
        """Record that the server has accepted the connection."""
        self._connected_at = now
        self._away_since = None

    def lost(self, now: float) -> float | None:
        """Return how long to wait before the next attempt; None to give up."""
        if self._connected_at is not None and now - self._connected_at >= LONGEST_SECONDS:
            self._wait = FIRST_SECONDS
        self._connected_at = None
        if self._away_since is None:
            self._away_since = now
        wait = self._wait * (1 - self._random() / 2)
        self._wait = min(self._wait * 2, LONGEST_SECONDS)
        if self._give_up_seconds is None:
            return wait
        left = self._away_since + self._give_up_seconds - now
        return min(wait, left) if left > 0 else None
