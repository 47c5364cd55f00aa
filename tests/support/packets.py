"""Packets with their bytes, strategies of packets, and the events of a splitter as rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any, NamedTuple

from hypothesis import strategies as st

from siltstone.errors import PeerError
from siltstone.mqtt.decode import decode
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
from siltstone.mqtt.properties import NO_PROPERTIES, RULES, Allowed, Properties, PropertyEncoding
from siltstone.mqtt.publish import AckBatch, PublishBatch
from siltstone.mqtt.reason import OF_RETURN_CODE, PACKETS_WITH, Reason, return_code
from siltstone.mqtt.splitter import Event, RawPacket
from siltstone.mqtt.wire import PacketReader, PacketType, Version
from siltstone.topic.grammar import TopicFilter

V3, V5 = Version.V3_1_1, Version.V5


class Example(NamedTuple):
    version: Version
    packet: Packet
    data: bytes


def _example(version: Version, packet: Packet, text: str) -> Example:
    return Example(version, packet, bytes.fromhex(text))


_AB = TopicFilter.parse("a/b")
_CD = TopicFilter.parse("c/d")

# The comments have the section numbers of examples in the specifications.
EXAMPLES = (
    # The CONNECT of a Mosquitto bridge: bit 7 of the level.
    _example(
        V3,
        Connect(version=V3, client_id="c", is_bridge=True),
        "10 0d 0004 4d515454 84 02 0000 0001 63",
    ),
    # 3.1.2.12 (3.1.2.11 in 3.1.1), with a payload.
    _example(
        V3,
        Connect(
            version=V3,
            client_id="c",
            keep_alive_seconds=10,
            will=Will(topic=b"w", payload=b"gone", qos=1),
            username="u",
            password=b"p",
        ),
        "10 1c 0004 4d515454 04 ce 000a 0001 63 0001 77 0004 676f6e65 0001 75 0001 70",
    ),
    _example(
        V5,
        Connect(
            version=V5,
            client_id="c",
            keep_alive_seconds=10,
            will=Will(topic=b"w", payload=b"gone", qos=1),
            username="u",
            password=b"p",
            properties=Properties(session_expiry_interval=10),
        ),
        "10 23 0004 4d515454 05 ce 000a 05 11 0000000a 0001 63 00 0001 77 0004 676f6e65"
        " 0001 75 0001 70",
    ),
    _example(V3, Connect(version=V3, client_id=""), "10 0c 0004 4d515454 04 02 0000 0000"),
    _example(
        V5,
        Connect(version=V5, client_id="", clean_start=False, password=b"\xff"),
        "10 10 0004 4d515454 05 40 0000 00 0000 0001 ff",
    ),
    _example(
        V5,
        Connect(
            version=V5,
            client_id="c",
            will=Will(
                topic=b"w",
                payload=b"",
                qos=2,
                retain=True,
                properties=Properties(will_delay_interval=5),
            ),
        ),
        "10 19 0004 4d515454 05 36 0000 00 0001 63 05 18 00000005 0001 77 0000",
    ),
    _example(V3, ConnAck(session_present=True), "20 02 01 00"),
    _example(V3, ConnAck(reason=Reason.NOT_AUTHORIZED), "20 02 00 05"),
    _example(V5, ConnAck(), "20 03 00 00 00"),
    _example(
        V5,
        ConnAck(reason=Reason.BANNED, properties=Properties(reason_string="no")),
        "20 08 00 8a 05 1f 0002 6e6f",
    ),
    # 3.3.2.4 (3.3.2.3 in 3.1.1), with a payload.
    _example(
        V3, Publish(topic=b"a/b", payload=b"hi", qos=1, packet_id=10), "32 09 0003 612f62 000a 6869"
    ),
    _example(
        V5,
        Publish(topic=b"a/b", payload=b"hi", qos=1, packet_id=10),
        "32 0a 0003 612f62 000a 00 6869",
    ),
    _example(V3, Publish(topic=b"a/b", payload=b"", retain=True), "31 05 0003 612f62"),
    _example(
        V5,
        Publish(
            topic=b"",
            payload=b"x",
            qos=2,
            dup=True,
            retain=True,
            packet_id=65_535,
            properties=Properties(topic_alias=3),
        ),
        "3d 09 0000 ffff 03 23 0003 78",
    ),
    _example(V3, PubAck(packet_id=258), "40 02 0102"),
    _example(V5, PubAck(packet_id=258), "40 02 0102"),
    _example(V5, PubAck(packet_id=1, reason=Reason.NO_MATCHING_SUBSCRIBERS), "40 03 0001 10"),
    _example(V3, PubRec(packet_id=1), "50 02 0001"),
    _example(V5, PubRec(packet_id=1, reason=Reason.QUOTA_EXCEEDED), "50 03 0001 97"),
    _example(V3, PubRel(packet_id=1), "62 02 0001"),
    _example(
        V5,
        PubRel(packet_id=1, properties=Properties(user_properties=(("k", "v"),))),
        "62 0b 0001 00 07 26 0001 6b 0001 76",
    ),
    _example(V3, PubComp(packet_id=1), "70 02 0001"),
    _example(V5, PubComp(packet_id=1, reason=Reason.PACKET_IDENTIFIER_NOT_FOUND), "70 03 0001 92"),
    # 3.8.2 and 3.8.3.
    _example(
        V3,
        Subscribe(
            packet_id=10,
            subscriptions=(Subscription(filter=_AB, qos=1), Subscription(filter=_CD, qos=2)),
        ),
        "82 0e 000a 0003 612f62 01 0003 632f64 02",
    ),
    _example(
        V5,
        Subscribe(
            packet_id=10,
            subscriptions=(
                Subscription(filter=_AB, qos=1),
                Subscription(
                    filter=_CD, qos=2, no_local=True, retain_as_published=True, retain_handling=2
                ),
            ),
            properties=Properties(subscription_identifiers=(268_435_455,)),
        ),
        "82 14 000a 05 0b ffffff7f 0003 612f62 01 0003 632f64 2e",
    ),
    _example(
        V3,
        SubAck(packet_id=10, reasons=(Reason.GRANTED_QOS_1, Reason.UNSPECIFIED_ERROR)),
        "90 04 000a 01 80",
    ),
    _example(
        V5,
        SubAck(packet_id=10, reasons=(Reason.GRANTED_QOS_2, Reason.TOPIC_FILTER_INVALID)),
        "90 05 000a 00 02 8f",
    ),
    # 3.10.2 and 3.10.3.
    _example(
        V3, Unsubscribe(packet_id=10, filters=(_AB, _CD)), "a2 0c 000a 0003 612f62 0003 632f64"
    ),
    _example(
        V5, Unsubscribe(packet_id=10, filters=(_AB, _CD)), "a2 0d 000a 00 0003 612f62 0003 632f64"
    ),
    _example(V3, UnsubAck(packet_id=10), "b0 02 000a"),
    _example(
        V5,
        UnsubAck(packet_id=10, reasons=(Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED)),
        "b0 05 000a 00 00 11",
    ),
    _example(V3, PingReq(), "c0 00"),
    _example(V5, PingReq(), "c0 00"),
    _example(V3, PingResp(), "d0 00"),
    _example(V5, PingResp(), "d0 00"),
    _example(V3, Disconnect(), "e0 00"),
    _example(V5, Disconnect(), "e0 00"),
    _example(V5, Disconnect(reason=Reason.SESSION_TAKEN_OVER), "e0 01 8e"),
    _example(
        V5,
        Disconnect(properties=Properties(session_expiry_interval=0)),
        "e0 07 00 05 11 00000000",
    ),
    _example(V5, Auth(), "f0 00"),
    _example(
        V5,
        Auth(
            reason=Reason.CONTINUE_AUTHENTICATION,
            properties=Properties(authentication_method="m", authentication_data=b"\0"),
        ),
        "f0 0a 18 08 15 0001 6d 16 0001 00",
    ),
)

STRINGS = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8)
WORDS = st.text(st.characters(exclude_characters="\0+#/$", codec="utf-8"), max_size=4)
TOPICS = st.lists(WORDS, min_size=1, max_size=4).map("/".join).filter(bool).map(str.encode)
FILTERS = st.builds(
    lambda share, words, tail: TopicFilter.parse(share + "/".join([*words, tail])),
    st.sampled_from(["", "$share/g/"]),
    st.lists(WORDS | st.just("+"), max_size=3),
    st.sampled_from(["a", "+", "#"]),
)
PACKET_IDS = st.integers(1, 65_535)

_VALUES: dict[PropertyEncoding, st.SearchStrategy[Any]] = {
    PropertyEncoding.FLAG: st.integers(0, 1),
    PropertyEncoding.TWO: st.integers(0, 0xFFFF),
    PropertyEncoding.FOUR: st.integers(0, 0xFFFF_FFFF),
    PropertyEncoding.VARIABLE: st.integers(1, 268_435_455),
    PropertyEncoding.STRING: STRINGS,
    PropertyEncoding.BINARY: st.binary(max_size=8),
    PropertyEncoding.PAIR: st.tuples(STRINGS, STRINGS),
}


@st.composite
def properties_of(draw: st.DrawFn, packet_type: PacketType) -> Properties:
    """Draw properties that are allowed in this packet."""
    values: dict[str, Any] = {}
    for rule in RULES:
        if packet_type not in rule.packets or not draw(st.booleans()):
            continue
        value = _VALUES[rule.kind]
        if rule.allowed is Allowed.NOT_ZERO:
            value = value.filter(bool)
        elif rule.allowed is Allowed.TOPIC:
            value = TOPICS.map(bytes.decode)
        if rule.repeats_in:
            size = 3 if packet_type in rule.repeats_in else 1
            value = st.lists(value, max_size=size).map(tuple)
        values[rule.name] = draw(value)
    if "authentication_data" in values:
        values.setdefault("authentication_method", "m")
    return Properties(**values)


def _reasons(packet_type: PacketType) -> st.SearchStrategy[Reason]:
    return st.sampled_from([r for r, types in PACKETS_WITH.items() if packet_type in types])


@st.composite
def _wills(draw: st.DrawFn) -> Will:
    return Will(
        topic=draw(TOPICS),
        payload=draw(st.binary(max_size=8)),
        qos=draw(st.integers(0, 2)),
        retain=draw(st.booleans()),
        properties=draw(properties_of(PacketType.WILL)),
    )


@st.composite
def _publishes(draw: st.DrawFn) -> Publish:
    qos = draw(st.integers(0, 2))
    properties = draw(properties_of(PacketType.PUBLISH))
    return Publish(
        topic=draw(TOPICS if properties.topic_alias is None else TOPICS | st.just(b"")),
        payload=draw(st.binary(max_size=200)),
        qos=qos,
        retain=draw(st.booleans()),
        dup=draw(st.booleans()) if qos else False,
        packet_id=draw(PACKET_IDS) if qos else 0,
        properties=properties,
    )


def _acknowledgements(
    build: type[PubAck | PubRec | PubRel | PubComp], packet_type: PacketType
) -> st.SearchStrategy[Packet]:
    return st.builds(
        build,
        packet_id=PACKET_IDS,
        reason=_reasons(packet_type),
        properties=properties_of(packet_type),
    )


SUBSCRIPTIONS = st.builds(
    Subscription,
    filter=FILTERS,
    qos=st.integers(0, 2),
    no_local=st.booleans(),
    retain_as_published=st.booleans(),
    retain_handling=st.integers(0, 2),
).filter(lambda subscription: not (subscription.no_local and subscription.filter.group))

PACKETS_5: st.SearchStrategy[Packet] = st.one_of(
    st.builds(
        Connect,
        version=st.just(V5),
        client_id=STRINGS,
        clean_start=st.booleans(),
        keep_alive_seconds=st.integers(0, 0xFFFF),
        username=st.none() | STRINGS,
        password=st.none() | st.binary(max_size=8),
        will=st.none() | _wills(),
        properties=properties_of(PacketType.CONNECT),
    ),
    st.builds(
        ConnAck,
        reason=_reasons(PacketType.CONNACK),
        properties=properties_of(PacketType.CONNACK),
    ),
    st.builds(ConnAck, session_present=st.booleans()),
    _publishes(),
    _acknowledgements(PubAck, PacketType.PUBACK),
    _acknowledgements(PubRec, PacketType.PUBREC),
    _acknowledgements(PubRel, PacketType.PUBREL),
    _acknowledgements(PubComp, PacketType.PUBCOMP),
    st.builds(
        Subscribe,
        packet_id=PACKET_IDS,
        subscriptions=st.lists(SUBSCRIPTIONS, min_size=1, max_size=4).map(tuple),
        properties=properties_of(PacketType.SUBSCRIBE),
    ),
    st.builds(
        SubAck,
        packet_id=PACKET_IDS,
        reasons=st.lists(_reasons(PacketType.SUBACK), min_size=1, max_size=4).map(tuple),
        properties=properties_of(PacketType.SUBACK),
    ),
    st.builds(
        Unsubscribe,
        packet_id=PACKET_IDS,
        filters=st.lists(FILTERS, min_size=1, max_size=4).map(tuple),
        properties=properties_of(PacketType.UNSUBSCRIBE),
    ),
    st.builds(
        UnsubAck,
        packet_id=PACKET_IDS,
        reasons=st.lists(_reasons(PacketType.UNSUBACK), min_size=1, max_size=4).map(tuple),
        properties=properties_of(PacketType.UNSUBACK),
    ),
    st.just(PingReq()),
    st.just(PingResp()),
    st.builds(
        Disconnect,
        reason=_reasons(PacketType.DISCONNECT),
        properties=properties_of(PacketType.DISCONNECT),
    ),
    st.builds(Auth, reason=_reasons(PacketType.AUTH), properties=properties_of(PacketType.AUTH)),
)


class Message(NamedTuple):
    """One row of a batch."""

    topic: bytes
    payload: bytes
    flags: int
    packet_id: int
    properties: bytes
    expiry: int


class Ack(NamedTuple):
    """One acknowledgement of a run."""

    first: int
    packet_id: int


class Raw(NamedTuple):
    """Any other packet."""

    first: int
    body: bytes


class Refused(NamedTuple):
    """The error that ends a connection."""

    kind: str
    reason: int


def messages_of(batch: PublishBatch) -> list[Message]:
    """Return the rows of a batch, and check its invariants."""
    count = len(batch.topics)
    assert count > 0, "a batch is never empty"
    properties = batch.properties or [b""] * count
    expiries = batch.expiries or [-1] * count
    columns = (batch.topics, batch.values, batch.flags, batch.packet_ids, properties, expiries)
    return [Message(*row) for row in zip(*columns, strict=True)]


def flat(events: Iterable[Event]) -> list[Message | Ack | Raw | Refused]:
    """Return one item for each packet, without the borders of runs."""
    items: list[Message | Ack | Raw | Refused] = []
    for event in events:
        match event:
            case PublishBatch():
                items += messages_of(event)
            case AckBatch():
                items += [Ack(event.first, packet_id) for packet_id in event.packet_ids]
            case RawPacket():
                items.append(Raw(event.first, event.body))
            case PeerError():
                items.append(Refused(type(event).__name__, event.reason))
    return items


def decode_whole(version: Version, data: bytes) -> Packet:
    """Decode one packet with its fixed header."""
    reader = PacketReader(data)
    first = reader.byte()
    body = reader.take(reader.variable())
    reader.finish()
    return decode(version, first, body)


def as_version_3(packet: Any) -> Packet:
    """Return the part of an MQTT 5 packet that exists in 3.1.1."""
    kept: dict[str, Any] = {field.name: getattr(packet, field.name) for field in fields(packet)}
    if "properties" in kept:
        kept["properties"] = NO_PROPERTIES
    if isinstance(packet, Connect):
        kept["version"] = V3
        if packet.will is not None:
            kept["will"] = as_version_3(packet.will)
    if isinstance(packet, Subscribe):
        kept["subscriptions"] = tuple(
            Subscription(filter=s.filter, qos=s.qos) for s in packet.subscriptions
        )
    if isinstance(packet, SubAck):
        kept["reasons"] = tuple(
            Reason.UNSPECIFIED_ERROR if reason >= 0x80 else reason for reason in packet.reasons
        )
    if isinstance(packet, UnsubAck):
        kept["reasons"] = ()
    if isinstance(packet, ConnAck):
        code = return_code(packet.reason)
        kept["reason"] = packet.reason if code is None else OF_RETURN_CODE[code]
    if isinstance(packet, PubAck | PubRec | PubRel | PubComp | Disconnect):
        kept["reason"] = Reason.SUCCESS
    kept_packet: Packet = type(packet)(**kept)
    return kept_packet
