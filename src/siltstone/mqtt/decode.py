"""Decoding of control packets, with every rule of MQTT 3.1.1 and 5.0 that concerns one packet.

Rules that depend on earlier packets are left to the connection: the order of packets, packet ids in
use, topic aliases, quotas, and which side may send a packet. The splitter checks the length of a
packet. It also decodes runs of PUBLISH itself, with the same result.

A rule that only one version has is checked for that version only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from siltstone.errors import MalformedPacketError, ProtocolError
from siltstone.mqtt.names import check_topic_name, parse_filter
from siltstone.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from siltstone.mqtt.properties import NO_PROPERTIES, Properties, decode_properties
from siltstone.mqtt.reason import ALLOWED, OF_RETURN_CODE, SUBACK_FAILURE, Reason
from siltstone.mqtt.wire import NO_BOUNDS, Bounds, PacketReader, PacketType, Version
from siltstone.topic.grammar import TopicFilter

PROTOCOL_NAME: Final = b"MQTT"
# Mosquitto sets this bit of the protocol level in the CONNECT of a bridge that speaks 3.1.1.
BRIDGE_BIT: Final = 0x80

# 2.1.3: the required lower half of the first byte. PUBLISH has its own flags there.
FIXED_FLAGS: Final[Mapping[int, int]] = {
    packet_type: 2
    if packet_type in {PacketType.PUBREL, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE}
    else 0
    for packet_type in PacketType
    if packet_type not in {PacketType.PUBLISH, PacketType.WILL}
}


def decode(version: Version, first: int, body: bytes, bounds: Bounds = NO_BOUNDS) -> Packet:
    """Decode the packet with this first byte and body. CONNECT contains its own version.

    A packet that exceeds the bounds is refused before the rest of it is read.

    Raises: MalformedPacketError, ProtocolError.
    """
    decoder = _DECODERS.get(first >> 4)
    if decoder is None or (first >> 4 == PacketType.AUTH and version is Version.V3_1_1):
        raise MalformedPacketError(f"packet type is reserved: first_byte={first:#04x}")
    # [MQTT-2.1.3-1] ([MQTT-2.2.2-1] in 3.1.1): reserved flags must have the listed value.
    if first & 0x0F != FIXED_FLAGS.get(first >> 4, first & 0x0F):
        raise MalformedPacketError(f"reserved flags are set: first_byte={first:#04x}")
    reader = PacketReader(body, bounds)
    packet = decoder(version, first, reader)
    reader.finish()
    return packet


def protocol_version(body: bytes) -> Version:
    """Return the version of a CONNECT: enough to answer one that is otherwise invalid.

    Raises: MalformedPacketError, ProtocolError.
    """
    return _read_version(PacketReader(body))[0]


def _read_version(reader: PacketReader) -> tuple[Version, bool]:
    """Return the version of a CONNECT, and whether the client declares itself a bridge."""
    name = reader.binary()
    # [MQTT-3.1.2-1]: the protocol name must be "MQTT".
    if name != PROTOCOL_NAME:
        raise ProtocolError(
            f"protocol name must be MQTT, got {name[:16]!r}",
            reason=Reason.UNSUPPORTED_PROTOCOL_VERSION,
        )
    level = reader.byte()
    if level == BRIDGE_BIT | Version.V3_1_1:
        return Version.V3_1_1, True
    try:
        return Version(level), False
    except ValueError as exc:
        # [MQTT-3.1.2-2]: a level that the server does not support ends in CONNACK and close.
        raise ProtocolError(
            f"unsupported protocol level {level} (supported: 4 for MQTT 3.1.1, 5 for MQTT 5)",
            reason=Reason.UNSUPPORTED_PROTOCOL_VERSION,
        ) from exc


def _connect(_version: Version, _first: int, reader: PacketReader) -> Connect:
    version, is_bridge = _read_version(reader)
    flags = reader.byte()
    _check_connect_flags(version, flags)
    keep_alive_seconds = reader.two()
    properties = _properties(version, reader, PacketType.CONNECT)
    _check_authentication(properties)
    client_id = reader.string()
    clean_start = bool(flags & 0x02)
    # [MQTT-3.1.3-7] and [MQTT-3.1.3-8] of 3.1.1: a session cannot be kept without a client id.
    if version is Version.V3_1_1 and not client_id and not clean_start:
        raise ProtocolError(
            "an empty client id needs clean session = 1",
            reason=Reason.CLIENT_IDENTIFIER_NOT_VALID,
        )
    return Connect(
        version=version,
        client_id=client_id,
        clean_start=clean_start,
        keep_alive_seconds=keep_alive_seconds,
        will=_will(version, flags, reader) if flags & 0x04 else None,
        username=reader.string() if flags & 0x80 else None,
        password=reader.binary() if flags & 0x40 else None,
        properties=properties,
        is_bridge=is_bridge,
    )


def _check_connect_flags(version: Version, flags: int) -> None:
    # [MQTT-3.1.2-3]: the reserved flag must be 0.
    if flags & 0x01:
        raise MalformedPacketError(f"reserved connect flag is set: flags={flags:#04x}")
    # [MQTT-3.1.2-11], [MQTT-3.1.2-13]: without a will its QoS and retain must be 0.
    if not flags & 0x04 and flags & 0x38:
        raise MalformedPacketError(
            f"will QoS or will retain is set without a will: flags={flags:#04x}"
        )
    # [MQTT-3.1.2-12] ([MQTT-3.1.2-14] in 3.1.1): the will's QoS must not be 3.
    if flags & 0x18 == 0x18:
        raise MalformedPacketError(f"will has QoS 3: flags={flags:#04x}")
    # [MQTT-3.1.2-22] of 3.1.1: no password without a user name. MQTT 5 allows it.
    if version is Version.V3_1_1 and flags & 0xC0 == 0x40:
        raise MalformedPacketError(f"password without a user name: flags={flags:#04x}")


def _will(version: Version, flags: int, reader: PacketReader) -> Will:
    properties = _properties(version, reader, PacketType.WILL)
    topic = reader.binary()
    check_topic_name(topic)
    return Will(
        topic=topic,
        payload=reader.binary(),
        qos=flags >> 3 & 3,
        retain=bool(flags & 0x20),
        properties=properties,
    )


def _connack(version: Version, _first: int, reader: PacketReader) -> ConnAck:
    flags = reader.byte()
    code = reader.byte()
    # [MQTT-3.2.2-1]: bits 7 to 1 of the flags are reserved.
    if flags & 0xFE:
        raise MalformedPacketError(f"reserved flags of CONNACK are set: flags={flags:#04x}")
    # [MQTT-3.2.2-6] ([MQTT-3.2.2-4] in 3.1.1): a refused connection has no session.
    if flags and code:
        raise ProtocolError(f"a CONNACK that refuses must not have session present: code={code}")
    if version is Version.V5:
        reason = _reason(PacketType.CONNACK, code)
    elif code in OF_RETURN_CODE:
        reason = OF_RETURN_CODE[code]
    else:
        raise ProtocolError(f"return code is reserved: code={code}")
    properties = _properties(version, reader, PacketType.CONNACK)
    _check_authentication(properties)
    return ConnAck(session_present=bool(flags), reason=reason, properties=properties)


def _publish(version: Version, first: int, reader: PacketReader) -> Publish:
    qos = first >> 1 & 3
    dup = bool(first & 0x08)
    # [MQTT-3.3.1-4]: both QoS bits must not be set.
    if qos == 3:
        raise MalformedPacketError(f"message has QoS 3: first_byte={first:#04x}")
    # [MQTT-3.3.1-2]: DUP must be 0 for QoS 0.
    if dup and qos == 0:
        raise MalformedPacketError(f"message with QoS 0 must not have DUP: first_byte={first:#04x}")
    topic = reader.binary()
    packet_id = _packet_id(reader) if qos else 0
    properties = _properties(version, reader, PacketType.PUBLISH)
    if topic or version is Version.V3_1_1:
        check_topic_name(topic)
    elif properties.topic_alias is None:
        raise ProtocolError("message has neither a topic nor a topic alias")
    return Publish(
        topic=topic,
        payload=reader.rest(),
        qos=qos,
        retain=bool(first & 0x01),
        dup=dup,
        packet_id=packet_id,
        properties=properties,
    )


def _acknowledgement(version: Version, first: int, reader: PacketReader) -> Packet:
    packet_type = PacketType(first >> 4)
    packet_id = _packet_id(reader)
    reason = Reason.SUCCESS
    properties = NO_PROPERTIES
    if version is Version.V5 and reader.remaining:
        reason = _reason(packet_type, reader.byte())
        # 3.4.2.2.1: a packet that ends after its reason has no properties.
        if reader.remaining:
            properties = _properties(version, reader, packet_type)
    build = _ACKNOWLEDGEMENTS[packet_type]
    return build(packet_id=packet_id, reason=reason, properties=properties)


def _subscribe(version: Version, _first: int, reader: PacketReader) -> Subscribe:
    packet_id = _packet_id(reader)
    properties = _properties(version, reader, PacketType.SUBSCRIBE)
    subscriptions: list[Subscription] = []
    while reader.remaining:
        _check_filter_count(reader, len(subscriptions))
        topic_filter = parse_filter(reader.binary())
        subscriptions.append(_subscription(version, topic_filter, reader.byte()))
    # [MQTT-3.8.3-2] ([MQTT-3.8.3-3] in 3.1.1): at least one filter.
    if not subscriptions:
        raise ProtocolError(f"SUBSCRIBE needs at least one filter: packet_id={packet_id}")
    return Subscribe(packet_id=packet_id, subscriptions=tuple(subscriptions), properties=properties)


def _subscription(version: Version, topic_filter: TopicFilter, options: int) -> Subscription:
    # [MQTT-3.8.3-5] ([MQTT-3.8.3-4] in 3.1.1): reserved bits must be 0.
    if options & (0xC0 if version is Version.V5 else 0xFC):
        raise MalformedPacketError(f"reserved subscription options are set: options={options:#04x}")
    subscription = Subscription(
        filter=topic_filter,
        qos=options & 3,
        no_local=bool(options & 0x04),
        retain_as_published=bool(options & 0x08),
        retain_handling=options >> 4 & 3,
    )
    if subscription.qos == 3:
        raise ProtocolError(f"subscription has QoS 3: filter={topic_filter}")
    if subscription.retain_handling == 3:
        raise ProtocolError(f"subscription has retain handling 3: filter={topic_filter}")
    # [MQTT-3.8.3-4]: no local is not allowed for a shared subscription.
    if subscription.no_local and topic_filter.group is not None:
        raise ProtocolError(
            f"shared subscription must not have the option no local: filter={topic_filter}"
        )
    return subscription


def _suback(version: Version, _first: int, reader: PacketReader) -> SubAck:
    packet_id = _packet_id(reader)
    properties = _properties(version, reader, PacketType.SUBACK)
    codes = reader.rest()
    # [MQTT-3.9.3-2] of 3.1.1: all other codes are reserved.
    if version is Version.V3_1_1 and set(codes) - {0, 1, 2, SUBACK_FAILURE}:
        raise ProtocolError(f"return code is reserved: packet_id={packet_id}")
    reasons = tuple(_reason(PacketType.SUBACK, code) for code in codes)
    if not reasons:
        raise ProtocolError(f"SUBACK needs at least one reason code: packet_id={packet_id}")
    return SubAck(packet_id=packet_id, reasons=reasons, properties=properties)


def _unsubscribe(version: Version, _first: int, reader: PacketReader) -> Unsubscribe:
    packet_id = _packet_id(reader)
    properties = _properties(version, reader, PacketType.UNSUBSCRIBE)
    filters: list[TopicFilter] = []
    while reader.remaining:
        _check_filter_count(reader, len(filters))
        filters.append(parse_filter(reader.binary()))
    # [MQTT-3.10.3-2]: at least one filter.
    if not filters:
        raise ProtocolError(f"UNSUBSCRIBE needs at least one filter: packet_id={packet_id}")
    return Unsubscribe(packet_id=packet_id, filters=tuple(filters), properties=properties)


def _check_filter_count(reader: PacketReader, count: int) -> None:
    """Refuse another filter if the packet already has the maximum."""
    if 0 < reader.bounds.filters_max <= count:
        raise ProtocolError(
            f"too many filters in one packet: max={reader.bounds.filters_max}",
            reason=Reason.QUOTA_EXCEEDED,
        )


def _unsuback(version: Version, _first: int, reader: PacketReader) -> UnsubAck:
    packet_id = _packet_id(reader)
    if version is Version.V3_1_1:
        return UnsubAck(packet_id=packet_id)
    properties = _properties(version, reader, PacketType.UNSUBACK)
    reasons = tuple(_reason(PacketType.UNSUBACK, code) for code in reader.rest())
    if not reasons:
        raise ProtocolError(f"UNSUBACK needs at least one reason code: packet_id={packet_id}")
    return UnsubAck(packet_id=packet_id, reasons=reasons, properties=properties)


def _pingreq(_version: Version, _first: int, _reader: PacketReader) -> PingReq:
    return PingReq()


def _pingresp(_version: Version, _first: int, _reader: PacketReader) -> PingResp:
    return PingResp()


def _disconnect(version: Version, _first: int, reader: PacketReader) -> Disconnect:
    if version is Version.V3_1_1 or not reader.remaining:
        return Disconnect()
    reason = _reason(PacketType.DISCONNECT, reader.byte())
    properties = NO_PROPERTIES
    # 3.14.2.2.1: a packet that ends after its reason has no properties.
    if reader.remaining:
        properties = _properties(version, reader, PacketType.DISCONNECT)
    return Disconnect(reason=reason, properties=properties)


def _auth(version: Version, _first: int, reader: PacketReader) -> Auth:
    if not reader.remaining:
        return Auth()
    reason = _reason(PacketType.AUTH, reader.byte())
    properties = _properties(version, reader, PacketType.AUTH)
    _check_authentication(properties)
    return Auth(reason=reason, properties=properties)


def _properties(version: Version, reader: PacketReader, packet_type: PacketType) -> Properties:
    if version is Version.V3_1_1:
        return NO_PROPERTIES
    return decode_properties(reader, packet_type)


def _reason(packet_type: PacketType, code: int) -> Reason:
    reason = ALLOWED.get((packet_type, code))
    if reason is None:
        raise ProtocolError(f"{packet_type.name} must not have this reason code: code={code:#04x}")
    return reason


def _packet_id(reader: PacketReader) -> int:
    packet_id = reader.two()
    # [MQTT-2.2.1-3] ([MQTT-2.3.1-1] in 3.1.1): a packet id is not zero.
    if packet_id == 0:
        raise ProtocolError("packet id must not be 0")
    return packet_id


def _check_authentication(properties: Properties) -> None:
    # 3.1.2.11.10: authentication data without a method is a protocol error.
    if properties.authentication_method is None and properties.authentication_data is not None:
        raise ProtocolError("authentication data needs an authentication method")


_ACKNOWLEDGEMENTS: Final[Mapping[PacketType, type[PubAck | PubRec | PubRel | PubComp]]] = {
    PacketType.PUBACK: PubAck,
    PacketType.PUBREC: PubRec,
    PacketType.PUBREL: PubRel,
    PacketType.PUBCOMP: PubComp,
}

_DECODERS: Final[Mapping[int, Callable[[Version, int, PacketReader], Packet]]] = {
    PacketType.CONNECT: _connect,
    PacketType.CONNACK: _connack,
    PacketType.PUBLISH: _publish,
    PacketType.PUBACK: _acknowledgement,
    PacketType.PUBREC: _acknowledgement,
    PacketType.PUBREL: _acknowledgement,
    PacketType.PUBCOMP: _acknowledgement,
    PacketType.SUBSCRIBE: _subscribe,
    PacketType.SUBACK: _suback,
    PacketType.UNSUBSCRIBE: _unsubscribe,
    PacketType.UNSUBACK: _unsuback,
    PacketType.PINGREQ: _pingreq,
    PacketType.PINGRESP: _pingresp,
    PacketType.DISCONNECT: _disconnect,
    PacketType.AUTH: _auth,
}
