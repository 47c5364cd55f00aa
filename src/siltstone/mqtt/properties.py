"""The properties of MQTT 5 (2.2.2): their names, the packets that may have them, their encoding.

    variable byte integer   length of the properties
    variable byte integer   identifier, all of them below 0x80   } for each property
    value                   encoded by its kind                  }

RULES is the complete table of 2.2.2.2. A property occurs at most once, except user properties, and
subscription identifiers in PUBLISH. User properties keep their order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from siltstone.errors import MalformedPacketError, PeerError, ProtocolError, UsageError
from siltstone.mqtt.names import check_topic_name
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import PacketReader, PacketType, Writer


class PropertyEncoding(Enum):
    """The encodings of property values."""

    FLAG = auto()
    TWO = auto()
    FOUR = auto()
    VARIABLE = auto()
    STRING = auto()
    BINARY = auto()
    PAIR = auto()


class Allowed(Enum):
    """The values of its kind that a property may have."""

    ANY = auto()
    NOT_ZERO = auto()
    TOPIC = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Properties:
    """The properties of a packet; None means absent."""

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifiers: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = None
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_properties: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None


NO_PROPERTIES: Final = Properties()


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyRule:
    """One row of the table: field, kind, values, and the packets that may have the property."""

    id: int
    name: str
    kind: PropertyEncoding
    packets: frozenset[PacketType]
    allowed: Allowed
    repeats_in: frozenset[PacketType]


_T: Final = PacketType
_MESSAGE: Final = frozenset({_T.PUBLISH, _T.WILL})
_PUBLISH: Final = frozenset({_T.PUBLISH})
_CONNECT: Final = frozenset({_T.CONNECT})
_CONNACK: Final = frozenset({_T.CONNACK})
_BOTH: Final = _CONNECT | _CONNACK
_AUTH: Final = _BOTH | {_T.AUTH}
_EVERY: Final = frozenset(_T) - {_T.PINGREQ, _T.PINGRESP}
_REASONED: Final = _EVERY - {_T.CONNECT, _T.WILL, _T.PUBLISH, _T.SUBSCRIBE, _T.UNSUBSCRIBE}


def _rule(
    identifier: int,
    name: str,
    kind: PropertyEncoding,
    packets: frozenset[PacketType],
    allowed: Allowed = Allowed.ANY,
    repeats_in: frozenset[PacketType] = frozenset(),
) -> PropertyRule:
    return PropertyRule(
        id=identifier,
        name=name,
        kind=kind,
        packets=packets,
        allowed=allowed,
        repeats_in=repeats_in,
    )


RULES: Final = (
    _rule(0x01, "payload_format_indicator", PropertyEncoding.FLAG, _MESSAGE),
    _rule(0x02, "message_expiry_interval", PropertyEncoding.FOUR, _MESSAGE),
    _rule(0x03, "content_type", PropertyEncoding.STRING, _MESSAGE),
    _rule(0x08, "response_topic", PropertyEncoding.STRING, _MESSAGE, Allowed.TOPIC),
    _rule(0x09, "correlation_data", PropertyEncoding.BINARY, _MESSAGE),
    _rule(
        0x0B,
        "subscription_identifiers",
        PropertyEncoding.VARIABLE,
        _PUBLISH | {_T.SUBSCRIBE},
        Allowed.NOT_ZERO,
        _PUBLISH,
    ),
    _rule(0x11, "session_expiry_interval", PropertyEncoding.FOUR, _BOTH | {_T.DISCONNECT}),
    _rule(0x12, "assigned_client_identifier", PropertyEncoding.STRING, _CONNACK),
    _rule(0x13, "server_keep_alive", PropertyEncoding.TWO, _CONNACK),
    _rule(0x15, "authentication_method", PropertyEncoding.STRING, _AUTH),
    _rule(0x16, "authentication_data", PropertyEncoding.BINARY, _AUTH),
    _rule(0x17, "request_problem_information", PropertyEncoding.FLAG, _CONNECT),
    _rule(0x18, "will_delay_interval", PropertyEncoding.FOUR, frozenset({_T.WILL})),
    _rule(0x19, "request_response_information", PropertyEncoding.FLAG, _CONNECT),
    _rule(0x1A, "response_information", PropertyEncoding.STRING, _CONNACK),
    _rule(0x1C, "server_reference", PropertyEncoding.STRING, _CONNACK | {_T.DISCONNECT}),
    _rule(0x1F, "reason_string", PropertyEncoding.STRING, _REASONED),
    _rule(0x21, "receive_maximum", PropertyEncoding.TWO, _BOTH, Allowed.NOT_ZERO),
    _rule(0x22, "topic_alias_maximum", PropertyEncoding.TWO, _BOTH),
    _rule(0x23, "topic_alias", PropertyEncoding.TWO, _PUBLISH, Allowed.NOT_ZERO),
    _rule(0x24, "maximum_qos", PropertyEncoding.FLAG, _CONNACK),
    _rule(0x25, "retain_available", PropertyEncoding.FLAG, _CONNACK),
    _rule(0x26, "user_properties", PropertyEncoding.PAIR, _EVERY, Allowed.ANY, _EVERY),
    _rule(0x27, "maximum_packet_size", PropertyEncoding.FOUR, _BOTH, Allowed.NOT_ZERO),
    _rule(0x28, "wildcard_subscription_available", PropertyEncoding.FLAG, _CONNACK),
    _rule(0x29, "subscription_identifier_available", PropertyEncoding.FLAG, _CONNACK),
    _rule(0x2A, "shared_subscription_available", PropertyEncoding.FLAG, _CONNACK),
)

_BY_ID: Final[Mapping[int, PropertyRule]] = {rule.id: rule for rule in RULES}


def _read_pair(reader: PacketReader) -> tuple[str, str]:
    return reader.string(), reader.string()


def _write_pair(writer: Writer, pair: tuple[str, str]) -> None:
    for text in pair:
        writer.string(text)


_READERS: Final[Mapping[PropertyEncoding, Callable[[PacketReader], object]]] = {
    PropertyEncoding.FLAG: PacketReader.byte,
    PropertyEncoding.TWO: PacketReader.two,
    PropertyEncoding.FOUR: PacketReader.four,
    PropertyEncoding.VARIABLE: PacketReader.variable,
    PropertyEncoding.STRING: PacketReader.string,
    PropertyEncoding.BINARY: PacketReader.binary,
    PropertyEncoding.PAIR: _read_pair,
}

_WRITERS: Final[Mapping[PropertyEncoding, Callable[[Writer, Any], None]]] = {
    PropertyEncoding.FLAG: Writer.byte,
    PropertyEncoding.TWO: Writer.two,
    PropertyEncoding.FOUR: Writer.four,
    PropertyEncoding.VARIABLE: Writer.variable,
    PropertyEncoding.STRING: Writer.string,
    PropertyEncoding.BINARY: Writer.binary,
    PropertyEncoding.PAIR: _write_pair,
}


def decode_properties(reader: PacketReader, packet_type: PacketType) -> Properties:
    """Decode the properties at the position of the reader.

    Raises: MalformedPacketError, ProtocolError.
    """
    size = reader.variable()
    if size == 0:
        return NO_PROPERTIES
    bounds = reader.bounds
    if 0 < bounds.properties_size_max < size:
        raise ProtocolError(
            f"properties are too large: size_bytes={size} max_bytes={bounds.properties_size_max}",
            reason=Reason.QUOTA_EXCEEDED,
        )
    part = reader.part(size)
    # The fields of Properties by name. The dataclass restores their types.
    values: dict[str, Any] = {}
    while part.remaining:
        identifier = part.variable()
        rule = _BY_ID.get(identifier)
        # 2.2.2.2: an identifier that is not valid for its packet type makes the packet malformed.
        if rule is None or packet_type not in rule.packets:
            raise MalformedPacketError(
                f"{packet_type.name} must not have this property: id={identifier:#04x}"
            )
        if rule.name in values and packet_type not in rule.repeats_in:
            raise ProtocolError(f"property must not be repeated: property={rule.name}")
        value = _decode_value(part, rule)
        if rule.repeats_in:
            known = values.setdefault(rule.name, [])
            # Of the properties that repeat, the size of a packet alone limits subscription
            # identifiers.
            if rule.kind is PropertyEncoding.PAIR and 0 < bounds.user_properties_max <= len(known):
                raise ProtocolError(
                    f"too many user properties: max={bounds.user_properties_max}",
                    reason=Reason.QUOTA_EXCEEDED,
                )
            known.append(value)
        else:
            values[rule.name] = value
    for name in ("subscription_identifiers", "user_properties"):
        if name in values:
            values[name] = tuple(values[name])
    return Properties(**values)


def encode_properties(writer: Writer, properties: Properties, packet_type: PacketType) -> None:
    """Write the properties with their length.

    Raises: UsageError for a property that this packet must not have.
    """
    if properties is NO_PROPERTIES:
        writer.byte(0)
        return
    part = Writer()
    for rule in RULES:
        value = getattr(properties, rule.name)
        if value is None or value == ():
            continue
        if packet_type not in rule.packets:
            raise UsageError(f"{packet_type.name} must not have this property: {rule.name}")
        values = value if rule.repeats_in else (value,)
        if len(values) > 1 and packet_type not in rule.repeats_in:
            raise UsageError(f"property must not be repeated: property={rule.name}")
        for item in values:
            try:
                _check_value(rule, item)
            except PeerError as exc:
                raise UsageError(str(exc)) from exc
            part.byte(rule.id)
            _WRITERS[rule.kind](part, item)
    writer.variable(len(part.data))
    writer.raw(part.data)


def _decode_value(part: PacketReader, rule: PropertyRule) -> object:
    value = _READERS[rule.kind](part)
    _check_value(rule, value)
    return value


def _check_value(rule: PropertyRule, value: object) -> None:
    """Check the values that the specification allows for a property."""
    if rule.kind is PropertyEncoding.FLAG and value not in {0, 1}:
        raise ProtocolError(f"property must be 0 or 1: property={rule.name} value={value}")
    if rule.allowed is Allowed.NOT_ZERO and value == 0:
        # [MQTT-3.3.2-8]: a topic alias of zero has its own reason code.
        reason = Reason.PROTOCOL_ERROR
        if rule.name == "topic_alias":
            reason = Reason.TOPIC_ALIAS_INVALID
        raise ProtocolError(f"property must not be 0: property={rule.name}", reason=reason)
    if rule.allowed is Allowed.TOPIC:
        # [MQTT-3.3.2-14]: the response topic must not contain wildcard characters.
        check_topic_name(str(value).encode())
