"""The byte format of each record: one table of fields, for encoding and decoding.

    u8 u16 u32 u64 i64   integers, little-endian
    bool                 u8, 0 or 1
    text                 u32 length, UTF-8
    bytes                u32 length, bytes
    ids                  u32 count, u16 each
    content              u32 number of an earlier content; 0 is the empty one

Numbers of kinds are never reused. A record ends after its last field. Adjacent fields of fixed
size are packed together.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields
from itertools import groupby
from typing import Any, Final

from siltstone.snapshot.format.records import (
    About,
    FilePart,
    Handshakes,
    KeyValueFamily,
    KeyValuePair,
    LearnedStructure,
    QueuedMessage,
    ReaderPosition,
    Record,
    RetainedMessage,
    SessionState,
    StoredFile,
    SubscriptionState,
    WaitingWill,
)

ABOUT: Final = 1
CONTENT: Final = 2
END: Final = 255

_MESSAGE: Final = {"topic": "bytes", "payload": "content", "flags": "u8", "properties": "content"}

# The fields of each kind are those of its class, in the same order.
FIELDS: Final[dict[int, tuple[type[About | Record], dict[str, str]]]] = {
    ABOUT: (About, {"serial": "u64", "created_us": "i64", "source": "text", "writer": "text"}),
    3: (
        RetainedMessage,
        _MESSAGE | {"stored_us": "i64", "expires_us": "i64", "publisher": "bytes"},
    ),
    4: (
        SessionState,
        {"client_id": "text", "user": "text", "expiry_seconds": "u32", "last_active_us": "i64"},
    ),
    5: (
        SubscriptionState,
        {
            "filter": "text",
            "qos": "u8",
            "no_local": "bool",
            "retain_as_published": "bool",
            "retain_handling": "u8",
            "identifier": "u32",
        },
    ),
    6: (QueuedMessage, _MESSAGE | {"expires_us": "i64", "packet_id": "u16"}),
    7: (Handshakes, {"received": "ids", "released": "ids"}),
    8: (WaitingWill, _MESSAGE | {"due_us": "i64"}),
    9: (ReaderPosition, {"owner": "text", "name": "text", "value": "content"}),
    10: (
        LearnedStructure,
        {
            "database": "text",
            "shard": "u32",
            "generation": "u32",
            "stream_id": "u64",
            "pattern": "text",
            "rows": "u64",
        },
    ),
    11: (StoredFile, {"path": "text", "size_bytes": "u64"}),
    12: (FilePart, {"offset": "u64", "data": "content"}),
    13: (KeyValueFamily, {"database": "text", "family": "text"}),
    14: (KeyValuePair, {"key": "bytes", "value": "content"}),
}
KINDS: Final[dict[type[About | Record], int]] = {kind[0]: code for code, kind in FIELDS.items()}

_FIXED: Final = {
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "i64": "q",
    "bool": "?",
    "content": "I",
}
_LENGTH: Final = struct.Struct("<I")
_LENGTH_BYTES: Final = 4
_ID_BYTES: Final = 2

# The form of a step: several fields of fixed size, or one field of another type.
_PACKED: Final = 0
_TEXT: Final = 1
_BYTES: Final = 2
_IDS: Final = 3
_FORMS: Final = {"text": _TEXT, "bytes": _BYTES, "ids": _IDS}

# Returns the number of a content, or the content of a number.
Number = Callable[[bytes], int]
Content = Callable[[int], bytes]


class RecordError(ValueError):
    """The bytes are not a valid record of this kind."""


class FieldRun:
    """Fields that are read and written together; `contents` are the indexes of the contents."""

    def __init__(self, form: int, known: list[tuple[str, str]]) -> None:
        self.form = form
        self.names = [name for name, _ in known]
        self.contents = [index for index, (_, code) in enumerate(known) if code == "content"]
        self.packed = struct.Struct("<" + "".join(_FIXED.get(code, "") for _, code in known))
        self.size: int = self.packed.size


class RecordCodec:
    """How the records of one kind are encoded and decoded."""

    def __init__(self, kind: int, record: type[About | Record], known: dict[str, str]) -> None:
        self.kind = kind
        self.record = record
        # The setters of the fields: a call of the class with keyword arguments takes three times as
        # long.
        self.setters: list[Callable[[Any, Any], None]] = [
            record.__dict__[name].__set__ for name in known
        ]
        self.steps: list[FieldRun] = []
        for is_fixed, run in groupby(known.items(), key=_is_fixed):
            if is_fixed:
                self.steps.append(FieldRun(_PACKED, list(run)))
            else:
                self.steps.extend([FieldRun(_FORMS[each[1]], [each]) for each in run])


def _is_fixed(known: tuple[str, str]) -> bool:
    return known[1] in _FIXED


_PLANS: Final[dict[int, RecordCodec]] = {
    kind: RecordCodec(kind, record, known) for kind, (record, known) in FIELDS.items()
}
_PLAN_OF: Final[dict[type[About | Record], RecordCodec]] = {
    plan.record: plan for plan in _PLANS.values()
}


def encode_record(record: About | Record, number: Number) -> tuple[int, bytes]:
    """Return the kind and the body of a record; `number` returns the number of each content."""
    plan = _PLAN_OF[type(record)]
    parts: list[bytes] = []
    for step in plan.steps:
        form = step.form
        if form == _PACKED:
            values = [getattr(record, name) for name in step.names]
            for index in step.contents:
                values[index] = number(values[index])
            parts.append(step.packed.pack(*values))
            continue
        value = getattr(record, step.names[0])
        if form == _IDS:
            parts.append(struct.pack(f"<I{len(value)}H", len(value), *value))
            continue
        # Text was decoded from UTF-8, so it can be encoded: it never has a lone surrogate.
        data: bytes = value.encode() if form == _TEXT else value
        parts.append(_LENGTH.pack(len(data)))
        parts.append(data)
    return plan.kind, b"".join(parts)


def decode_record(kind: int, body: bytes, content: Content) -> About | Record:
    """Decode a record. Raises: RecordError."""
    values = decode_values(kind, body, content)
    plan = _PLANS[kind]
    record: About | Record = object.__new__(plan.record)
    for setter, value in zip(plan.setters, values, strict=True):
        setter(record, value)
    return record


def decode_values(kind: int, body: bytes, content: Content) -> list[Any]:
    """Return the fields of a body in order, without creating a record. Raises: RecordError."""
    plan = _PLANS.get(kind)
    if plan is None:
        raise RecordError(f"unknown kind of record {kind}")
    values: list[Any] = []
    position = 0
    try:
        for step in plan.steps:
            if step.form == _PACKED:
                run = list(step.packed.unpack_from(body, position))
                position += step.size
                for index in step.contents:
                    run[index] = content(run[index])
                values.extend(run)
                continue
            (length,) = _LENGTH.unpack_from(body, position)
            start = position + _LENGTH_BYTES
            position = start + length * (_ID_BYTES if step.form == _IDS else 1)
            if position > len(body):
                raise RecordError("a field is longer than its record")
            if step.form == _IDS:
                values.append(struct.unpack_from(f"<{length}H", body, start))
            elif step.form == _TEXT:
                values.append(body[start:position].decode())
            else:
                values.append(body[start:position])
    except (struct.error, UnicodeDecodeError) as exc:
        raise RecordError(f"a record is damaged: kind={kind}") from exc
    if position != len(body):
        raise RecordError(f"the length of a record does not match its fields: kind={kind}")
    return values


assert all(
    [field.name for field in fields(record)] == list(known) for record, known in FIELDS.values()
), "every field of a record has its bytes"
