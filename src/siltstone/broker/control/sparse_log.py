"""Events that clients can cause at any rate, told at most once in a while."""

from __future__ import annotations

import logging
from collections.abc import Callable

from siltstone.logs import log


class SparseLog:
    """Logs one event of those that come in so many seconds, and says how many it left out."""

    def __init__(
        self, logger: logging.Logger, now: Callable[[], float], seconds: float = 1.0
    ) -> None:
        self._logger = logger
        self._now = now
        self._seconds = seconds
        self._quiet_until = 0.0
        self._unlogged = 0

    def tell(self, level: int, event: str, **facts: object) -> None:
        """Log an event, unless another one was logged just now."""
        now = self._now()
        if now < self._quiet_until:
            self._unlogged += 1
            return
        if self._unlogged:
            facts["unlogged"] = self._unlogged
        log(self._logger, level, event, **facts)
        self._quiet_until = now + self._seconds
        self._unlogged = 0
