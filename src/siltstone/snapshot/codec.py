"""The bytes of each record: one table of fields, read in both directions.

    u8 u16 u32 u64 i64   integers, little-endian
    bool                 u8, 0 or 1
    text                 u32 length, UTF-8
    bytes                u32 length, bytes
    ids                  u32 count, u16 each
    content              u32 number of a content that came before; 0 is the empty one

Numbers of kinds are never used again for something else. A record ends where its last field ends.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import fields
from typing import Any, Final

from siltstone.snapshot.records import (
    About,
    FilePart,
    Handshakes,
    KeyValueFamily,
    KeyValuePair,
    LearnedStructure,
    Position,
    QueuedMessage,
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

# The fields of each kind are those of its class, in that order.
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
    9: (Position, {"owner": "text", "name": "text", "value": "content"}),
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

_INTEGERS: Final = {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q", "i64": "<q", "bool": "<?"}
_LENGTH: Final = struct.Struct("<I")

# Gives a content its number, or a number its content.
Number = Callable[[bytes], int]
Content = Callable[[int], bytes]
Write = Callable[[Any], bytes]
Read = Callable[[bytes, int], tuple[Any, int]]


class RecordError(ValueError):
    """The bytes are no record of this kind."""


def encode_record(record: About | Record, number: Number) -> tuple[int, bytes]:
    """Return the kind and the body of a record; each content is given its number."""
    kind = KINDS[type(record)]
    parts = []
    for name, code, write in _WRITERS[kind]:
        value = getattr(record, name)
        parts.append(_LENGTH.pack(number(value)) if code == "content" else write(value))
    return kind, b"".join(parts)


def decode_record(kind: int, body: bytes, content: Content) -> About | Record:
    """Return the record of a body. Raises: RecordError."""
    known = _DECODERS.get(kind)
    if known is None:
        raise RecordError(f"unknown kind of record: kind={kind}")
    record, readers = known
    values: dict[str, Any] = {}
    position = 0
    try:
        for name, is_content, read in readers:
            value, position = read(body, position)
            values[name] = content(value) if is_content else value
    except (struct.error, UnicodeDecodeError) as exc:
        raise RecordError(f"a record is damaged: kind={kind}") from exc
    if position != len(body):
        raise RecordError(f"a record has another length than its fields: kind={kind}")
    return record(**values)


def _write_bytes(value: bytes) -> bytes:
    return _LENGTH.pack(len(value)) + value


def _write_text(value: str) -> bytes:
    # What came as UTF-8 goes as UTF-8; a lone surrogate has none and no way in.
    return _write_bytes(value.encode())


def _write_ids(value: tuple[int, ...]) -> bytes:
    return struct.pack(f"<I{len(value)}H", len(value), *value)


def _read_bytes(body: bytes, position: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack_from(body, position)
    end = position + _LENGTH.size + length
    if end > len(body):
        raise RecordError("a field reaches past its record")
    return body[position + _LENGTH.size : end], end


def _read_text(body: bytes, position: int) -> tuple[str, int]:
    value, end = _read_bytes(body, position)
    return value.decode(), end


def _read_ids(body: bytes, position: int) -> tuple[tuple[int, ...], int]:
    (count,) = _LENGTH.unpack_from(body, position)
    if count * 2 > len(body):
        raise RecordError("a field reaches past its record")
    values = struct.unpack_from(f"<{count}H", body, position + _LENGTH.size)
    return values, position + _LENGTH.size + 2 * count


def _reader(form: str) -> Read:
    packed = struct.Struct(form)

    def read(body: bytes, position: int) -> tuple[Any, int]:
        return packed.unpack_from(body, position)[0], position + packed.size

    return read


_READERS: Final[dict[str, Read]] = {
    "text": _read_text,
    "bytes": _read_bytes,
    "ids": _read_ids,
    "content": _reader("<I"),
    **{code: _reader(form) for code, form in _INTEGERS.items()},
}
_WRITE: Final[dict[str, Write]] = {
    "text": _write_text,
    "bytes": _write_bytes,
    "ids": _write_ids,
    "content": _LENGTH.pack,
    **{code: struct.Struct(form).pack for code, form in _INTEGERS.items()},
}
_DECODERS: Final[dict[int, tuple[type[About | Record], list[tuple[str, bool, Read]]]]] = {
    kind: (record, [(name, code == "content", _READERS[code]) for name, code in known.items()])
    for kind, (record, known) in FIELDS.items()
}
_WRITERS: Final[dict[int, list[tuple[str, str, Write]]]] = {
    kind: [(name, code, _WRITE[code]) for name, code in known.items()]
    for kind, (_, known) in FIELDS.items()
}

assert all(
    [field.name for field in fields(record)] == list(known) for record, known in FIELDS.values()
), "every field of a record has its bytes"
