"""A rate limit for log events that clients can cause at any rate."""

from __future__ import annotations

import logging
from collections.abc import Callable

from siltstone.logs import log


class SparseLog:
    """Logs at most one event per `seconds`, with the number of events that it left out."""

    def __init__(
        self, logger: logging.Logger, now: Callable[[], float], seconds: float = 1.0
    ) -> None:
        self._logger = logger
        self._now = now
        self._seconds = seconds
        self._quiet_until = 0.0
        self._unlogged = 0

    def tell(self, level: int, event: str, **facts: object) -> None:
        """Log an event, or only count it if another one was logged within `seconds`."""
        now = self._now()
        if now < self._quiet_until:
            self._unlogged += 1
            return
        if self._unlogged:
            facts["unlogged"] = self._unlogged
        log(self._logger, level, event, **facts)
        self._quiet_until = now + self._seconds
        self._unlogged = 0
