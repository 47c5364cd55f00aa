r"""Rendering of messages as bytes: payloads, with or without topics, formats, JSON.

A format is text with fields:

    %t topic       %p payload       %x payload in hex    %l size of the payload in bytes
    %q QoS         %r retained      %d sent again        %m packet id
    %U seconds since 1970           %I time in ISO 8601  %j all of it as a JSON object
    %C content type    %R response topic    %D correlation data    %E expiry in seconds
    %P user properties, as key:value        %S subscription identifiers        %% a percent sign

and the escapes \n \t \r \0 \e \\. A property that a message does not have leaves its field empty.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from siltstone.errors import UsageError
from siltstone.mqtt.properties import NO_PROPERTIES, Properties, decode_properties
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.wire import PacketReader, PacketType, encode_variable
from siltstone.units import SECOND_US

# Renders messages that were received at a time in µs since 1970.
Render = Callable[[PublishBatch, int], bytes]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "e": b"\x1b", "\\": b"\\"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedMessage:
    """One received message."""

    topic: bytes
    payload: bytes
    flags: int
    packet_id: int
    encoded_properties: bytes
    time_us: int

    @property
    def properties(self) -> Properties:
        data = self.encoded_properties
        if not data:
            return NO_PROPERTIES
        return decode_properties(
            PacketReader(encode_variable(len(data)) + data), PacketType.PUBLISH
        )


def plain(end: bytes) -> Render:
    """Write payloads unchanged."""
    return lambda batch, _time_us: b"".join([payload + end for payload in batch.values])


def with_topics(end: bytes) -> Render:
    """Write each payload after its topic."""
    return lambda batch, _time_us: b"".join(
        [
            topic + b" " + payload + end
            for topic, payload in zip(batch.topics, batch.values, strict=True)
        ]
    )


def formatted(text: str, end: bytes) -> Render:
    """Write each message in a format. Raises: UsageError."""
    parts = [*_parse(text), end]

    def render(batch: PublishBatch, time_us: int) -> bytes:
        written: list[bytes] = []
        for index in range(len(batch.topics)):
            message = ReceivedMessage(
                topic=batch.topics[index],
                payload=batch.values[index],
                flags=batch.flags[index],
                packet_id=batch.packet_ids[index],
                encoded_properties=batch.properties[index] if batch.properties else b"",
                time_us=time_us,
            )
            written += [part if isinstance(part, bytes) else part(message) for part in parts]
        return b"".join(written)

    return render


def json_document(message: ReceivedMessage) -> dict[str, Any]:
    """Return a message in the JSON form of `siltstone read --json` and `siltstone append`."""
    document: dict[str, Any] = {
        "timestamp": _iso(message.time_us),
        "topic": message.topic.decode(),
        "qos": message.flags & 3,
        "retain": bool(message.flags & 4),
    }
    if message.encoded_properties:
        document["properties_base64"] = base64.b64encode(message.encoded_properties).decode()
    try:
        document["value"] = message.payload.decode()
    except UnicodeDecodeError:
        document["value_base64"] = base64.b64encode(message.payload).decode()
    return document


def _parse(text: str) -> list[bytes | Callable[[ReceivedMessage], bytes]]:
    """Split a format into text and fields."""
    parts: list[bytes | Callable[[ReceivedMessage], bytes]] = []
    characters = iter(text)
    for character in characters:
        if character not in {"%", "\\"}:
            parts.append(character.encode(errors="surrogateescape"))
            continue
        name = next(characters, "")
        part = _FIELDS.get(name) if character == "%" else _ESCAPES.get(name)
        if part is None:
            fields = " ".join(f"%{known}" for known in _FIELDS)
            escapes = " ".join(f"\\{known}" for known in _ESCAPES)
            raise UsageError(f"unknown field {character + name!r} (supported: {fields} {escapes})")
        parts.append(part)
    return parts


def _iso(time_us: int) -> str:
    moment = _EPOCH + timedelta(microseconds=time_us)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _json(message: ReceivedMessage) -> bytes:
    return json.dumps(json_document(message), ensure_ascii=False).encode()


def _user_properties(message: ReceivedMessage) -> bytes:
    return " ".join(f"{key}:{value}" for key, value in message.properties.user_properties).encode()


def _text(value: object) -> bytes:
    return b"" if value is None else str(value).encode()


_FIELDS: Final[Mapping[str, Callable[[ReceivedMessage], bytes] | bytes]] = {
    "t": lambda message: message.topic,
    "p": lambda message: message.payload,
    "x": lambda message: message.payload.hex().encode(),
    "l": lambda message: b"%d" % len(message.payload),
    "q": lambda message: b"%d" % (message.flags & 3),
    "r": lambda message: b"%d" % (message.flags >> 2 & 1),
    "d": lambda message: b"%d" % (message.flags >> 3 & 1),
    "m": lambda message: b"%d" % message.packet_id,
    "U": lambda message: b"%d.%06d" % divmod(message.time_us, SECOND_US),
    "I": lambda message: _iso(message.time_us).encode(),
    "j": _json,
    "C": lambda message: _text(message.properties.content_type),
    "R": lambda message: _text(message.properties.response_topic),
    "D": lambda message: message.properties.correlation_data or b"",
    "E": lambda message: _text(message.properties.message_expiry_interval),
    "P": _user_properties,
    "S": lambda message: b" ".join(
        b"%d" % number for number in message.properties.subscription_identifiers
    ),
    "%": b"%",
}
