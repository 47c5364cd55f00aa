"""What one site sends another about transactions comes back as it was."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.errors import (
    ConflictError,
    FencedError,
    OutcomeUnknownError,
    OverloadedError,
    PreconditionError,
    QuotaExceededError,
    RetryError,
    SiltstoneError,
    StorageFullError,
    Unmet,
    UsageError,
)
from siltstone.store.shard.replicated.kv.calls import (
    CallKind,
    CommittedCall,
    Point,
    decode_answer,
    decode_ask,
    decode_commit,
    encode_answer,
    encode_ask,
    encode_commit,
)
from siltstone.store.shard.replicated.port import NotLeaderError, UnknownVersionError
from siltstone.store.tx.commit.attempts import Attempt
from siltstone.store.tx.commit.conflicts import ReadRange
from siltstone.store.tx.operations import (
    COMMIT_SERIAL,
    MONOTONIC,
    Addition,
    CommitSerial,
    Deletion,
    Operations,
    Requirement,
)
from siltstone.topic.grammar import TopicFilter

ATTEMPT = Attempt(sender=b"s" * 16, number=7, term=3, lowest=5, given_up=(6,))
UNMET = (Unmet(topic="t", time_us=1, present=True, expected=b"\xff", found=None),)


def filled() -> Operations:
    operations = Operations(3, 2, True, b"i" * 16)  # noqa: FBT003 - compiled
    operations.size_bytes = 400
    operations.read_serial = 41
    operations.add_read(ReadRange(b"t/1", None, 0, 1 << 63))
    operations.add_read(ReadRange(b"", TopicFilter.parse("t/+"), 5, 9))
    operations.add_requirement(Requirement(b"t/2", 4, True, b"\x00\xff", True))  # noqa: FBT003 - compiled
    operations.add_requirement(Requirement(b"t/2", 4, False, None, False))  # noqa: FBT003 - compiled
    operations.add_deletion(Deletion(TopicFilter.parse("t/#"), 0, MONOTONIC))
    operations.deletes_by_wildcard = True
    operations.adds = True
    operations.writes = {
        ("t/ü".encode(), -1): b"value",
        (b"t/4", 0): COMMIT_SERIAL,
        (b"t/5", 0): Addition(-3, b"note"),
        (b"t/6", 8): b"",
    }
    return operations


def facts(operations: Operations) -> list[object]:
    """Return everything that the leader decides by."""
    return [
        (operations.term, operations.generation, operations.latest, operations.id_digest),
        (operations.size_bytes, operations.read_serial),
        [(r.topic, str(r), r.since_us, r.until_us, r.prefix) for r in operations.reads or ()],
        [(r.topic, r.time_us, r.present, r.value, r.guard) for r in operations.requirements or ()],
        [(d.filter.text, d.since_us, d.until_us) for d in operations.deletions or ()],
        (operations.deletes_by_wildcard, operations.adds),
        [
            (*row, (value.amount, value.note) if isinstance(value, Addition) else value)
            for row, value in operations.writes.items()
        ],
    ]


@pytest.mark.parametrize("operations", [filled(), Operations(0, 0, False, b"")])  # noqa: FBT003 - compiled
def test_an_attempt_arrives_as_it_was_sent(operations: Operations) -> None:
    kind, document, values = decode_ask(encode_commit(ATTEMPT, operations))
    assert kind is CallKind.COMMIT
    attempt, found = decode_commit(document, values)
    assert attempt == ATTEMPT
    assert facts(found) == facts(operations)


def test_the_value_that_stands_for_the_serial_stays_the_one_value() -> None:
    _, document, values = decode_ask(encode_commit(ATTEMPT, filled()))
    _, found = decode_commit(document, values)
    assert isinstance(found.writes[b"t/4", 0], CommitSerial)


def test_bytes_that_are_no_attempt_are_refused() -> None:
    data = encode_commit(ATTEMPT, filled())
    with pytest.raises(UsageError, match="cannot be read"):
        decode_ask(data[:4])
    with pytest.raises(UsageError, match="cannot be read"):
        decode_ask(data[:30])
    _, document, values = decode_ask(data)
    for wrong in (values[:-1], values + b"x"):
        with pytest.raises(UsageError, match="cannot be read"):
            decode_commit(document, wrong)
    with pytest.raises(UsageError, match="cannot be read"):
        decode_commit({}, b"")


def test_a_call_of_a_later_version_waits_until_this_site_was_upgraded() -> None:
    data = encode_ask(CallKind.CONTEXT, {})
    with pytest.raises(UnknownVersionError):
        decode_ask(b"\x02" + data[1:])
    with pytest.raises(UnknownVersionError):
        decode_ask(data[:1] + b"\x09" + data[2:])


@pytest.mark.parametrize("answer", [CommittedCall(7, duplicate=True), Point(3, 9), None])
def test_an_answer_arrives_as_it_was_given(answer: CommittedCall | Point | None) -> None:
    assert decode_answer(encode_answer(answer)) == answer


@pytest.mark.parametrize(
    "error",
    [
        NotLeaderError("n"),
        ConflictError("c"),
        OverloadedError("o"),
        RetryError("r"),
        UsageError("u"),
        OutcomeUnknownError("x"),
        QuotaExceededError("m", used_bytes=9, quota_bytes=4),
        StorageFullError(PurePath("/d"), needed_bytes=3),
        PreconditionError(UNMET),
        FencedError(UNMET),
    ],
)
def test_an_error_keeps_its_class_and_its_text(error: SiltstoneError) -> None:
    found = decode_answer(encode_answer(error))
    assert type(found) is type(error)
    assert str(found) == str(error)


def test_an_answer_that_cannot_be_read_leaves_the_outcome_unknown() -> None:
    assert isinstance(decode_answer(b"{"), OutcomeUnknownError)
    assert isinstance(decode_answer(b'{"error": "new", "text": "t"}'), OutcomeUnknownError)
    assert isinstance(decode_answer(b"[]"), OutcomeUnknownError)


def test_an_unmet_requirement_keeps_its_bytes() -> None:
    found = decode_answer(encode_answer(PreconditionError(UNMET)))
    assert isinstance(found, PreconditionError)
    assert found.unmet == UNMET
