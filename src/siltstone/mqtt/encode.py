"""Encoding of control packets, for each version.

Fields that 3.1.1 cannot express are left out: properties, options of subscriptions, reason codes
for success, and all reason codes of UNSUBACK. A failure in another packet is never left out: if
3.1.1 cannot express it, encoding raises an error, so a refused request is never acknowledged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, assert_never

from siltstone.errors import UsageError
from siltstone.mqtt.decode import BRIDGE_BIT, PROTOCOL_NAME
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
    UnsubAck,
    Unsubscribe,
    Will,
)
from siltstone.mqtt.properties import NO_PROPERTIES, Properties, encode_properties
from siltstone.mqtt.reason import ALLOWED, ERROR, SUBACK_FAILURE, Reason, return_code
from siltstone.mqtt.wire import PacketReader, PacketType, Version, Writer, encode_variable
from siltstone.topic.grammar import check_topic

_PINGREQ: Final = b"\xc0\x00"
_PINGRESP: Final = b"\xd0\x00"

# The first byte, with the flags of 2.1.3.
_ACKNOWLEDGEMENTS: Final[Mapping[type[PubAck | PubRec | PubRel | PubComp], int]] = {
    PubAck: 0x40,
    PubRec: 0x50,
    PubRel: 0x62,
    PubComp: 0x70,
}


def encode(version: Version, packet: Packet) -> bytes:  # noqa: C901, PLR0912 - a table of types
    """Return the bytes of a packet. CONNECT contains its own version.

    Raises: UsageError for a field that this version does not allow in the packet.
    """
    match packet:
        case Publish():
            return _publish(version, packet)
        case PubAck() | PubRec() | PubRel() | PubComp():
            return _acknowledgement(version, packet)
        case PingReq():
            return _PINGREQ
        case PingResp():
            return _PINGRESP
        case Connect():
            return _connect(packet)
        case ConnAck():
            return _connack(version, packet)
        case Subscribe():
            return _subscribe(version, packet)
        case SubAck():
            return _suback(version, packet)
        case Unsubscribe():
            return _unsubscribe(version, packet)
        case UnsubAck():
            return _unsuback(version, packet)
        case Disconnect():
            return _disconnect(version, packet)
        case Auth():
            return _auth(version, packet)
        case _:
            assert_never(packet)


def encode_message_properties(properties: Properties) -> bytes:
    """Return the encoded properties of a will message, without their length.

    The will delay is for the server and not part of the message (3.1.3.2.2).
    """
    writer = Writer()
    encode_properties(writer, replace(properties, will_delay_interval=None), PacketType.PUBLISH)
    reader = PacketReader(bytes(writer.data))
    reader.variable()
    return reader.rest()


def _packet(first: int, writer: Writer) -> bytes:
    return bytes([first]) + encode_variable(len(writer.data)) + writer.data


def _connect(packet: Connect) -> bytes:
    will = packet.will
    if packet.version is Version.V5 and packet.is_bridge:
        raise UsageError(
            "the bridge bit does not exist in MQTT 5: set the options of subscriptions"
        )
    if packet.version is Version.V3_1_1:
        if packet.password is not None and packet.username is None:
            raise UsageError("MQTT 3.1.1: a password needs a user name")
        if not packet.client_id and not packet.clean_start:
            raise UsageError("MQTT 3.1.1: an empty client id needs clean session = 1")
    flags = 0x02 if packet.clean_start else 0
    if will is not None:
        _check_qos(will.qos)
        flags |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
    if packet.password is not None:
        flags |= 0x40
    if packet.username is not None:
        flags |= 0x80
    writer = Writer()
    writer.binary(PROTOCOL_NAME)
    writer.byte(packet.version | (BRIDGE_BIT if packet.is_bridge else 0))
    writer.byte(flags)
    writer.two(packet.keep_alive_seconds)
    _properties(packet.version, writer, packet.properties, PacketType.CONNECT)
    writer.string(packet.client_id)
    if will is not None:
        _will(packet.version, writer, will)
    if packet.username is not None:
        writer.string(packet.username)
    if packet.password is not None:
        writer.binary(packet.password)
    return _packet(0x10, writer)


def _will(version: Version, writer: Writer, will: Will) -> None:
    check_topic(will.topic)
    _properties(version, writer, will.properties, PacketType.WILL)
    writer.binary(will.topic)
    writer.binary(will.payload)


def _connack(version: Version, packet: ConnAck) -> bytes:
    if packet.session_present and packet.reason:
        raise UsageError(
            f"a CONNACK that refuses must not have session present: reason={packet.reason.name}"
        )
    writer = Writer()
    writer.byte(packet.session_present)
    if version is Version.V5:
        _reason(writer, PacketType.CONNACK, packet.reason)
    else:
        code = return_code(packet.reason)
        if code is None:
            raise UsageError(
                f"the reason does not have a return code in MQTT 3.1.1: reason={packet.reason.name}"
            )
        writer.byte(code)
    _properties(version, writer, packet.properties, PacketType.CONNACK)
    return _packet(0x20, writer)


def _publish(version: Version, packet: Publish) -> bytes:
    _check_qos(packet.qos)
    if (packet.qos > 0) != (packet.packet_id > 0) or (packet.dup and not packet.qos):
        raise UsageError(
            "only messages with QoS 1 and 2 have a packet id and DUP: "
            f"qos={packet.qos} packet_id={packet.packet_id} dup={packet.dup}"
        )
    # In MQTT 5 a topic alias may replace the topic.
    if packet.topic or version is Version.V3_1_1 or packet.properties.topic_alias is None:
        check_topic(packet.topic)
    writer = Writer()
    writer.binary(packet.topic)
    if packet.qos:
        writer.two(packet.packet_id)
    _properties(version, writer, packet.properties, PacketType.PUBLISH)
    writer.raw(packet.payload)
    return _packet(0x30 | packet.dup << 3 | packet.qos << 1 | packet.retain, writer)


def _acknowledgement(version: Version, packet: PubAck | PubRec | PubRel | PubComp) -> bytes:
    first = _ACKNOWLEDGEMENTS[type(packet)]
    writer = Writer()
    _packet_id(writer, packet.packet_id)
    if version is Version.V3_1_1:
        if packet.reason >= ERROR:
            raise UsageError(
                f"an acknowledgement in MQTT 3.1.1 cannot refuse: reason={packet.reason.name}"
            )
        return _packet(first, writer)
    if packet.reason or packet.properties != NO_PROPERTIES:
        _reason(writer, PacketType(first >> 4), packet.reason)
    if packet.properties != NO_PROPERTIES:
        encode_properties(writer, packet.properties, PacketType(first >> 4))
    return _packet(first, writer)


def _subscribe(version: Version, packet: Subscribe) -> bytes:
    if not packet.subscriptions:
        raise UsageError(f"SUBSCRIBE needs a filter: packet_id={packet.packet_id}")
    writer = Writer()
    _packet_id(writer, packet.packet_id)
    _properties(version, writer, packet.properties, PacketType.SUBSCRIBE)
    for subscription in packet.subscriptions:
        _check_qos(subscription.qos)
        if not 0 <= subscription.retain_handling <= 2:
            raise UsageError(
                f"retain handling must be 0, 1 or 2, got {subscription.retain_handling}"
            )
        if subscription.no_local and subscription.filter.group is not None:
            raise UsageError(
                f"shared subscription must not have the option no local: "
                f"filter={subscription.filter}"
            )
        writer.string(subscription.filter.text)
        options = subscription.qos
        if version is Version.V5:
            options |= subscription.no_local << 2 | subscription.retain_as_published << 3
            options |= subscription.retain_handling << 4
        writer.byte(options)
    return _packet(0x82, writer)


def _suback(version: Version, packet: SubAck) -> bytes:
    if not packet.reasons:
        raise UsageError(f"SUBACK needs a reason: packet_id={packet.packet_id}")
    writer = Writer()
    _packet_id(writer, packet.packet_id)
    _properties(version, writer, packet.properties, PacketType.SUBACK)
    for reason in packet.reasons:
        if version is Version.V3_1_1 and reason >= ERROR:
            writer.byte(SUBACK_FAILURE)
        else:
            _reason(writer, PacketType.SUBACK, reason)
    return _packet(0x90, writer)


def _unsubscribe(version: Version, packet: Unsubscribe) -> bytes:
    if not packet.filters:
        raise UsageError(f"UNSUBSCRIBE needs a filter: packet_id={packet.packet_id}")
    writer = Writer()
    _packet_id(writer, packet.packet_id)
    _properties(version, writer, packet.properties, PacketType.UNSUBSCRIBE)
    for topic_filter in packet.filters:
        writer.string(topic_filter.text)
    return _packet(0xA2, writer)


def _unsuback(version: Version, packet: UnsubAck) -> bytes:
    writer = Writer()
    _packet_id(writer, packet.packet_id)
    if version is Version.V5:
        if not packet.reasons:
            raise UsageError(f"UNSUBACK needs a reason: packet_id={packet.packet_id}")
        encode_properties(writer, packet.properties, PacketType.UNSUBACK)
        for reason in packet.reasons:
            _reason(writer, PacketType.UNSUBACK, reason)
    return _packet(0xB0, writer)


def _disconnect(version: Version, packet: Disconnect) -> bytes:
    writer = Writer()
    if version is Version.V5 and (packet.reason or packet.properties != NO_PROPERTIES):
        _reason(writer, PacketType.DISCONNECT, packet.reason)
        if packet.properties != NO_PROPERTIES:
            encode_properties(writer, packet.properties, PacketType.DISCONNECT)
    elif packet.reason:
        raise UsageError(
            f"DISCONNECT does not have a reason in MQTT 3.1.1: reason={packet.reason.name}"
        )
    return _packet(0xE0, writer)


def _auth(version: Version, packet: Auth) -> bytes:
    if version is Version.V3_1_1:
        raise UsageError("AUTH does not exist in MQTT 3.1.1")
    writer = Writer()
    if packet.reason or packet.properties != NO_PROPERTIES:
        _reason(writer, PacketType.AUTH, packet.reason)
        encode_properties(writer, packet.properties, PacketType.AUTH)
    return _packet(0xF0, writer)


def _properties(
    version: Version, writer: Writer, properties: Properties, packet_type: PacketType
) -> None:
    if version is Version.V5:
        encode_properties(writer, properties, packet_type)


def _reason(writer: Writer, packet_type: PacketType, reason: Reason) -> None:
    if (packet_type, reason) not in ALLOWED:
        raise UsageError(f"{packet_type.name} must not have this reason: {reason.name}")
    writer.byte(reason)


def _packet_id(writer: Writer, packet_id: int) -> None:
    if packet_id == 0:
        raise UsageError("packet id must not be 0")
    writer.two(packet_id)


def _check_qos(qos: int) -> None:
    if not 0 <= qos <= 2:
        raise UsageError(f"qos must be 0, 1 or 2, got {qos}")
