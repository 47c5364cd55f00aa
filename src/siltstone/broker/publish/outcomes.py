"""What becomes of a message: when all of its parts are known, and what errors mean to a client."""

from __future__ import annotations

from collections.abc import Callable

from siltstone.errors import RetryError, UsageError
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.reason import Reason


def reason_of(error: Exception) -> Reason:
    """Return what a publisher is told when its message could not be kept."""
    match error:
        case RetryError():
            return Reason.QUOTA_EXCEEDED
        case UsageError():
            return Reason.IMPLEMENTATION_SPECIFIC_ERROR
        case _:
            return Reason.UNSPECIFIED_ERROR


class Settling:
    """Counts the parts of a batch whose outcome is not known, and keeps the first error.

    `done` hears once, whatever the parts do. The first wait is that of the caller, which ends it
    with `settled(None, …)` when all parts are counted.
    """

    def __init__(self, done: Callable[[Exception | None], None] | None) -> None:
        self.waits = 1
        self._done = done
        self._error: Exception | None = None

    def settled(self, _part: PublishBatch | None, error: Exception | None) -> None:
        """Take the outcome of a part."""
        self._error = self._error or error
        self.waits -= 1
        if self.waits == 0 and self._done is not None:
            self._done(self._error)

    def give_up(self, error: Exception) -> None:
        """Wait for no part any more: it is not known which of them will be heard of."""
        self.waits = 1
        # What comes behind counts down from 0.
        self.settled(None, error)
