"""Outcomes of published messages: collected from all parts, and translated for the client."""

from __future__ import annotations

from collections.abc import Callable

from siltstone.errors import RetryError, UsageError
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.reason import Reason


def reason_of(error: Exception) -> Reason:
    """Return the reason code for a publisher whose message could not be stored."""
    match error:
        case RetryError():
            return Reason.QUOTA_EXCEEDED
        case UsageError():
            return Reason.IMPLEMENTATION_SPECIFIC_ERROR
        case _:
            return Reason.UNSPECIFIED_ERROR


class Settling:
    """Counts the parts of a batch whose outcome is not known, and keeps the first error.

    `done` is called once, whatever the outcomes are. The first wait belongs to the caller, which
    ends it with `settled(None, …)` when it has counted all parts.
    """

    def __init__(self, done: Callable[[Exception | None], None] | None) -> None:
        self.waits = 1
        self._done = done
        self._error: Exception | None = None

    def settled(self, _part: PublishBatch | None, error: Exception | None) -> None:
        """Record the outcome of a part."""
        self._error = self._error or error
        self.waits -= 1
        if self.waits == 0 and self._done is not None:
            self._done(self._error)

    def give_up(self, error: Exception) -> None:
        """Call `done` with an error now: it is unknown which parts will still report an outcome."""
        self.waits = 1
        # Later outcomes count down from 0, so they never call `done` again.
        self.settled(None, error)
