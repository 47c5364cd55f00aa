from __future__ import annotations

import json
from pathlib import PurePath

import pytest

from siltstone import errors
from siltstone.errors import SiltstoneError, Unmet
from siltstone.manage.wire import decode_error, encode_error

UNMET = (
    Unmet(topic="a", time_us=7, present=True, expected=b"\xff", found=None),
    Unmet(topic="b", time_us=0, present=False, expected=None, found=b""),
)


@pytest.mark.parametrize(
    "error",
    [
        errors.ClosedError("closed"),
        errors.ConflictError("a conflict"),
        errors.CorruptionError("torn", path=PurePath("/d/a"), offset=7),
        errors.DiskError(PurePath("/d/a"), "open", "no", errno=13),
        errors.ExistsError("exists"),
        errors.FencedError(UNMET),
        errors.InvalidTopicError("topic"),
        errors.LockedError("locked"),
        errors.NotFoundError("absent"),
        errors.OutcomeUnknownError("unknown"),
        errors.OverloadedError("slow down"),
        errors.PoisonedError("failed"),
        errors.PreconditionError(UNMET),
        errors.QuotaExceededError("x", used_bytes=2, quota_bytes=1),
        errors.QuotaExceededError("x", used_bytes=1, quota_bytes=2, needed_bytes=3),
        errors.RetryError("again"),
        errors.SlabDroppedError("dropped"),
        errors.StorageFullError(PurePath("/d"), needed_bytes=5),
        errors.UsageError("wrong"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_arrives_as_it_was_raised(error: SiltstoneError) -> None:
    line = encode_error(error)
    assert (line.count(b"\n"), line[-1:]) == (1, b"\n")
    found = decode_error(json.loads(line))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))


def test_a_message_that_was_completed_stays_complete() -> None:
    error = errors.DiskError(PurePath("/d/a"), "open", "no", errno=13)
    error.args = (f"{error}; remove it",)
    assert str(decode_error(json.loads(encode_error(error)))) == str(error)


@pytest.mark.parametrize(
    ("document", "kind"),
    [
        ({"error": "no"}, errors.UsageError),
        ({"error": "no", "failed": True}, errors.RetryError),
        ({"error": "no", "kind": "LaterError"}, errors.UsageError),
        ({"error": "no", "kind": "LaterError", "failed": True}, SiltstoneError),
    ],
)
def test_an_error_of_another_version_keeps_its_meaning(
    document: dict[str, object], kind: type[SiltstoneError]
) -> None:
    found = decode_error(document)
    assert (type(found), str(found)) == (kind, "no")
