"""The bytes of a transaction that one site sends to another, and of its answer.

    0   1  version: 1
    1   1  kind: 1 COMMIT, 2 CONTEXT, 3 MANAGE
    2   4  length of the JSON document
    6      the document, then the values of the transaction, one behind the other

Integers are little endian. COMMIT has an attempt and the operations of a transaction. CONTEXT asks
the leader for its term and for the serial of its last commit. MANAGE has a change of generations or
settings, which only the leader makes. An answer is JSON, either a result or an error.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import PurePath
from typing import Any, Final

from siltstone.errors import (
    ConflictError,
    FencedError,
    NotFoundError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    PreconditionError,
    QuotaExceededError,
    RetryError,
    SiltstoneError,
    SlabDroppedError,
    StorageFullError,
    Unmet,
    UsageError,
)
from siltstone.store.shard.replicated.port import NotLeaderError, UnknownVersionError
from siltstone.store.tx.commit.attempts import Attempt
from siltstone.store.tx.commit.conflicts import ReadRange
from siltstone.store.tx.operations import (
    COMMIT_SERIAL,
    Addition,
    CommitSerial,
    Deletion,
    Operations,
    Requirement,
    Value,
)
from siltstone.topic.grammar import TopicFilter

VERSION: Final = 1
_HEAD: Final = struct.Struct("<BBI")
# The kinds of values of a write.
_BYTES: Final = 0
_SERIAL: Final = 1
_ADDITION: Final = 2
# The most specific class comes first.
_ERRORS: Final[Mapping[str, type[SiltstoneError]]] = {
    "unknown_version": UnknownVersionError,
    "not_leader": NotLeaderError,
    "conflict": ConflictError,
    "overloaded": OverloadedError,
    "retry": RetryError,
    "slab_dropped": SlabDroppedError,
    "not_found": NotFoundError,
    "usage": UsageError,
    "poisoned": PoisonedError,
}


class CallKind(IntEnum):
    """The kinds of calls to a leader."""

    COMMIT = 1
    CONTEXT = 2
    MANAGE = 3


@dataclass(frozen=True, slots=True)
class CommittedCall:
    """The outcome of a transaction that was committed."""

    serial: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class Point:
    """The term of a leader, and the serial of its last commit."""

    term: int
    serial: int


def encode_commit(attempt: Attempt, operations: Operations) -> bytes:
    """Return the bytes of an attempt to commit a transaction."""
    values: list[bytes] = []
    document = {
        "attempt": [
            attempt.sender.hex(),
            attempt.number,
            attempt.term,
            attempt.lowest,
            list(attempt.given_up),
        ],
        "context": [operations.term, operations.generation, operations.latest],
        "id": operations.id_digest.hex(),
        "size_bytes": operations.size_bytes,
        "read_serial": operations.read_serial,
        "reads": [_read(each) for each in operations.reads or ()],
        "requirements": [_requirement(each, values) for each in operations.requirements or ()],
        "deletions": [
            [each.filter.text, each.since_us, each.until_us] for each in operations.deletions or ()
        ],
        "by_wildcard": operations.deletes_by_wildcard,
        "writes": [
            [topic.decode(), time_us, *_value(value, values)]
            for (topic, time_us), value in operations.writes.items()
        ],
    }
    return encode_ask(CallKind.COMMIT, document, b"".join(values))


def encode_ask(kind: CallKind, document: Mapping[str, Any], values: bytes = b"") -> bytes:
    """Return the bytes of a call."""
    encoded = json.dumps(document).encode()
    return _HEAD.pack(VERSION, kind, len(encoded)) + encoded + values


def decode_ask(data: bytes) -> tuple[CallKind, dict[str, Any], bytes]:
    """Return the kind of a call, its document and its values.

    Raises: UnknownVersionError, UsageError.
    """
    try:
        version, kind, length = _HEAD.unpack_from(data)
        if version != VERSION or kind not in list(CallKind):
            raise UnknownVersionError(
                f"a transaction of another site has an unknown version: version={version} "
                f"kind={kind} supported={VERSION}"
            )
        end = _HEAD.size + length
        document = json.loads(data[_HEAD.size : end])
    except (struct.error, ValueError) as exc:
        raise UsageError(f"a transaction of another site cannot be read: {exc}") from exc
    if not isinstance(document, dict):
        raise UsageError("a transaction of another site cannot be read: it is not a document")
    return CallKind(kind), document, data[end:]


def decode_commit(document: Mapping[str, Any], values: bytes) -> tuple[Attempt, Operations]:
    """Return the attempt and the operations of a call. Raises: UsageError."""
    try:
        return _decode_commit(document, values)
    except (ValueError, KeyError, TypeError) as exc:
        raise UsageError(f"a transaction of another site cannot be read: {exc}") from exc


def _decode_commit(document: Mapping[str, Any], values: bytes) -> tuple[Attempt, Operations]:
    sender, number, term, lowest, given_up = document["attempt"]
    attempt = Attempt(
        sender=bytes.fromhex(sender),
        number=number,
        term=term,
        lowest=lowest,
        given_up=tuple(given_up),
    )
    term, generation, latest = document["context"]
    operations = Operations(term, generation, latest, bytes.fromhex(document["id"]))
    operations.size_bytes = document["size_bytes"]
    operations.read_serial = document["read_serial"]
    for topic, text, since_us, until_us in document["reads"]:
        parsed = None if text is None else TopicFilter.parse(text)
        operations.add_read(ReadRange(topic.encode(), parsed, since_us, until_us))
    rest = _Rest(values)
    for topic, time_us, present, size, guard in document["requirements"]:
        wanted = None if size is None else rest.take(size)
        operations.add_requirement(Requirement(topic.encode(), time_us, present, wanted, guard))
    for text, since_us, until_us in document["deletions"]:
        operations.add_deletion(Deletion(TopicFilter.parse(text), since_us, until_us))
    operations.deletes_by_wildcard = document["by_wildcard"]
    for topic, time_us, kind, size, amount in document["writes"]:
        value: Value = rest.take(size)
        if kind == _SERIAL:
            value = COMMIT_SERIAL
        elif kind == _ADDITION:
            assert isinstance(value, bytes)
            value = Addition(amount, value)
            operations.adds = True
        operations.writes[topic.encode(), time_us] = value
    if rest.left:
        raise ValueError(f"its values have {rest.left} bytes too many")
    return attempt, operations


class _Rest:
    """The values that were not taken yet."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._data) - self._at

    def take(self, size: int) -> bytes:
        if not 0 <= size <= self.left:
            raise ValueError("its values are cut short")
        self._at += size
        return self._data[self._at - size : self._at]


def _read(read: ReadRange) -> list[Any]:
    text = None if read.filter is None else read.filter.text
    return [read.topic.decode(), text, read.since_us, read.until_us]


def _requirement(each: Requirement, values: list[bytes]) -> list[Any]:
    size = None
    if each.value is not None:
        size = len(each.value)
        values.append(each.value)
    return [each.topic.decode(), each.time_us, each.present, size, each.guard]


def _value(value: Value, values: list[bytes]) -> tuple[int, int, int]:
    """Add the bytes of a value; return its kind, its size, and the amount of an addition."""
    match value:
        case CommitSerial():
            return _SERIAL, 0, 0
        case Addition(amount=amount, note=note):
            values.append(note)
            return _ADDITION, len(note), amount
        case _:
            values.append(value)
            return _BYTES, len(value), 0


def encode_answer(answer: CommittedCall | Point | Exception | None) -> bytes:
    """Return the bytes of an answer; None is the answer to a managing call."""
    values: dict[str, Any]
    match answer:
        case None:
            values = {}
        case CommittedCall():
            values = {"serial": answer.serial, "duplicate": answer.duplicate}
        case Point():
            values = {"term": answer.term, "serial": answer.serial}
        case PreconditionError():
            kind = "fenced" if isinstance(answer, FencedError) else "precondition"
            values = {"error": kind, "unmet": [_unmet_values(each) for each in answer.unmet]}
        case QuotaExceededError():
            values = {
                "error": "quota",
                "facts": [answer.database, answer.used_bytes, answer.quota_bytes],
            }
        case StorageFullError():
            values = {"error": "full", "facts": [str(answer.path), answer.needed_bytes]}
        case _:
            kinds = (kind for kind, known in _ERRORS.items() if isinstance(answer, known))
            values = {"error": next(kinds, "unknown"), "text": str(answer)}
    return json.dumps(values).encode()


def decode_answer(data: bytes) -> CommittedCall | Point | SiltstoneError | None:
    """Return the answer that these bytes encode; one that cannot be read is an unknown outcome."""
    try:
        values = json.loads(data)
        match values:
            case {"error": "precondition" | "fenced" as kind, "unmet": unmet}:
                found = tuple(_unmet(each) for each in unmet)
                return FencedError(found) if kind == "fenced" else PreconditionError(found)
            case {"error": "quota", "facts": [database, used, quota]}:
                return QuotaExceededError(database, used_bytes=used, quota_bytes=quota)
            case {"error": "full", "facts": [path, needed]}:
                return StorageFullError(PurePath(path), needed_bytes=needed)
            case {"error": kind, "text": text}:
                return _ERRORS.get(kind, OutcomeUnknownError)(text)
            case {"duplicate": duplicate, "serial": serial}:
                return CommittedCall(serial, duplicate)
            case {"term": term, "serial": serial}:
                return Point(term, serial)
            case {}:
                return None
            case _:
                raise ValueError("an unknown answer")
    except (ValueError, TypeError, KeyError) as exc:
        return OutcomeUnknownError(f"an answer of another site cannot be read: {exc}")


def _unmet_values(unmet: Unmet) -> list[Any]:
    return [
        unmet.topic,
        unmet.time_us,
        unmet.present,
        _text(unmet.expected),
        _text(unmet.found),
    ]


def _unmet(values: list[Any]) -> Unmet:
    topic, time_us, present, expected, found = values
    return Unmet(
        topic=topic,
        time_us=time_us,
        present=present,
        expected=_bytes(expected),
        found=_bytes(found),
    )


def _text(value: bytes | None) -> str | None:
    return None if value is None else b64encode(value).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else b64decode(text)
