from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.broker.publish.outcomes import Settling, reason_of
from siltstone.errors import (
    ClosedError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    QuotaExceededError,
    RetryError,
    StorageFullError,
    UsageError,
)
from siltstone.mqtt.reason import Reason


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (QuotaExceededError("d", used_bytes=2, quota_bytes=1), Reason.QUOTA_EXCEEDED),
        (StorageFullError(PurePath("/d")), Reason.QUOTA_EXCEEDED),
        (OverloadedError("much waits"), Reason.QUOTA_EXCEEDED),
        (RetryError("send the earlier one first"), Reason.QUOTA_EXCEEDED),
        (UsageError("too large"), Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        (ClosedError("closed"), Reason.IMPLEMENTATION_SPECIFIC_ERROR),
        (PoisonedError("a sync failed"), Reason.UNSPECIFIED_ERROR),
        (OutcomeUnknownError("who knows"), Reason.UNSPECIFIED_ERROR),
        (ValueError("a mistake"), Reason.UNSPECIFIED_ERROR),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_has_the_reason_that_tells_the_client_what_to_do(
    error: Exception, reason: Reason
) -> None:
    assert reason_of(error) is reason


class TestSettling:
    def test_the_last_part_tells_of_the_first_error(self) -> None:
        heard: list[Exception | None] = []
        first, second = OverloadedError("first"), OverloadedError("second")
        settling = Settling(heard.append)
        settling.waits += 3
        for error in (None, first, second):
            settling.settled(None, error)
        assert heard == []
        settling.settled(None, None)
        assert heard == [first]

    def test_what_comes_behind_the_end_is_not_heard(self) -> None:
        heard: list[Exception | None] = []
        error = OutcomeUnknownError("a mistake")
        settling = Settling(heard.append)
        settling.waits += 2
        settling.give_up(error)
        for _ in range(4):
            settling.settled(None, None)
        assert heard == [error]
