"""What the store's errors mean to a client."""

from __future__ import annotations

from siltstone.errors import RetryError, UsageError
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
