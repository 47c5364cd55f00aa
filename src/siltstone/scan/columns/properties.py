"""MQTT properties as a map of text and back; each distinct value is converted once.

MQTT's own properties have the prefix `mqtt.` and their name in the standard: mqtt.content_type,
mqtt.response_topic, mqtt.message_expiry_interval, mqtt.payload_format_indicator,
mqtt.subscription_identifiers, and mqtt.correlation_data in base64. User properties keep their
names; the values of a repeated name are joined, one on each line. A user property whose own name
begins with `mqtt.` is mqtt.user.<name>, so that it is not taken for one of MQTT's own. Bytes that
are not valid MQTT properties are kept as mqtt.undecoded, in base64.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from siltstone.errors import PeerError, UsageError
from siltstone.mqtt.properties import Properties, decode_properties, encode_properties
from siltstone.mqtt.publish import stored_properties
from siltstone.mqtt.wire import PacketReader, PacketType, Writer

_PREFIX: Final = "mqtt."
_USER: Final = "mqtt.user."
UNDECODED: Final = "mqtt.undecoded"
_NAMES: Final = (
    "payload_format_indicator",
    "message_expiry_interval",
    "content_type",
    "response_topic",
)
_EMPTY_ROWS: Final = 1 << 16


def property_maps(encoded: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a map for each row of encoded properties."""
    distinct = encoded.dictionary_encode()
    decoded = [list(decode(value)) for value in distinct.dictionary.to_pylist()]
    return pa.array(decoded, kind).take(distinct.indices)


def empty_maps(count: int, kind: pa.DataType) -> pa.Array:
    """Return count empty maps; up to a limit they share one buffer."""
    if count <= _EMPTY_ROWS:
        return _empty(kind).slice(0, count)
    return _empty(kind).take(pa.repeat(pa.scalar(0, pa.int8()), count))


@lru_cache(maxsize=4)
def _empty(kind: pa.DataType) -> pa.Array:
    offsets = pa.repeat(pa.scalar(0, pa.int32()), _EMPTY_ROWS + 1)
    keys, items = pa.nulls(0, kind.key_type), pa.nulls(0, kind.item_type)
    return pa.MapArray.from_arrays(offsets, keys, items, type=kind)


@lru_cache(maxsize=65_536)
def decode(encoded: bytes) -> tuple[tuple[str, str], ...]:
    """Return the names and values of stored properties, which have no length prefix."""
    if not encoded:
        return ()
    writer = Writer()
    writer.variable(len(encoded))
    writer.raw(encoded)
    try:
        properties = decode_properties(PacketReader(bytes(writer.data)), PacketType.PUBLISH)
    except PeerError:
        mended = stored_properties(encoded)
        if mended in (b"", encoded):
            return ((UNDECODED, b64encode(encoded).decode()),)
        return decode(mended)
    return tuple(_named(properties).items())


def _named(properties: Properties) -> dict[str, str]:
    named: dict[str, str] = {}
    for name in _NAMES:
        value = getattr(properties, name)
        if value is not None:
            named[_PREFIX + name] = str(value)
    if properties.correlation_data is not None:
        named[f"{_PREFIX}correlation_data"] = b64encode(properties.correlation_data).decode()
    if properties.subscription_identifiers:
        identifiers = ",".join(map(str, properties.subscription_identifiers))
        named[f"{_PREFIX}subscription_identifiers"] = identifiers
    for given, value in properties.user_properties:
        name = _USER + given if given.startswith(_PREFIX) else given
        named[name] = f"{named[name]}\n{value}" if name in named else value
    return named


@lru_cache(maxsize=65_536)
def encode(named: tuple[tuple[str, str], ...]) -> bytes:
    """Return the bytes of properties for a PUBLISH, without the length prefix. Raises: UsageError.

    Names without the prefix `mqtt.` are user properties, and so is the rest of mqtt.user.<name>.
    """
    if not named:
        return b""
    own = {
        name: value
        for name, value in named
        if name.startswith(_PREFIX) and not name.startswith(_USER)
    }
    fields: dict[str, Any] = {
        "user_properties": tuple(
            (name.removeprefix(_USER), value) for name, value in named if name not in own
        )
    }
    for name, value in own.items():
        field = name.removeprefix(_PREFIX)
        if field not in _READ:
            known = ", ".join(_PREFIX + each for each in _READ)
            raise UsageError(f"unknown property {name} (supported: {known})")
        fields[field] = _READ[field](name, value)
    writer = Writer()
    encode_properties(writer, Properties(**fields), PacketType.PUBLISH)
    reader = PacketReader(bytes(writer.data))
    reader.variable()
    return reader.rest()


def _as_number(name: str, value: str) -> int:
    if not value.isdecimal():
        raise UsageError(f"property {name} must be a number: {name}={value!r}")
    return int(value)


def _from_base64(name: str, value: str) -> bytes:
    try:
        return b64decode(value, validate=True)
    except ValueError as exc:
        raise UsageError(f"property {name} must be valid base64") from exc


def _as_text(_: str, value: str) -> str:
    return value


_READ: Final[Mapping[str, Callable[[str, str], object]]] = {
    "payload_format_indicator": _as_number,
    "message_expiry_interval": _as_number,
    "content_type": _as_text,
    "response_topic": _as_text,
    "correlation_data": _from_base64,
}
