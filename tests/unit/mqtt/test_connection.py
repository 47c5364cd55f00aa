from __future__ import annotations

import pytest

from siltstone.errors import MalformedPacketError, PeerError, ProtocolError
from siltstone.mqtt.connection import Event, ServerConnection, State
from siltstone.mqtt.encode import encode
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
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.publish import PUBACK, AckBatch, PublishBatch
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter
from tests.support.packets import V3, V5, Message, messages_of

BOTH = pytest.mark.parametrize("version", [V3, V5])
CONNECT_SIZE_MAX = 200
PACKET_SIZE_MAX = 300
LEVELS_MAX = 3
ALIAS_MAX = 2
FILTER = TopicFilter.parse("a/#")


def connecting() -> ServerConnection:
    return ServerConnection(CONNECT_SIZE_MAX, LEVELS_MAX)


def connect(version: Version) -> Connect:
    return Connect(version=version, client_id="c")


def connected(version: Version) -> ServerConnection:
    """Return a connection whose CONNECT was accepted."""
    connection = connecting()
    assert list(connection.feed(encode(version, connect(version)))) == [connect(version)]
    assert list(connection.begin(ALIAS_MAX, PACKET_SIZE_MAX)) == []
    return connection


def refusal(events: list[Event]) -> tuple[type[PeerError], str, int]:
    """Return what the only event says, which is an error."""
    [error] = events
    assert isinstance(error, PeerError)
    return type(error), str(error), error.reason


@BOTH
def test_a_connection_waits_after_connect_until_it_is_told_to_begin(version: Version) -> None:
    connection = connecting()
    states = [connection.state]
    data = encode(version, connect(version))
    assert list(connection.feed(data[:5])) == []
    assert list(connection.feed(data[5:] + encode(version, PingReq()))) == [connect(version)]
    states.append(connection.state)
    assert connection.version is version
    assert list(connection.feed(encode(version, PingReq()))) == []
    assert list(connection.begin(ALIAS_MAX, PACKET_SIZE_MAX)) == [PingReq(), PingReq()]
    states.append(connection.state)
    assert states == [State.CONNECTING, State.WAITING, State.CONNECTED]


@BOTH
def test_events_come_in_the_order_of_the_wire(version: Version) -> None:
    subscribe = Subscribe(packet_id=1, subscriptions=(Subscription(filter=FILTER, qos=1),))
    packets: list[Packet] = [
        Publish(topic=b"a", payload=b"1"),
        Publish(topic=b"a", payload=b"2", qos=1, packet_id=1),
        PubAck(packet_id=5),
        subscribe,
        Publish(topic=b"b", payload=b"3"),
        Unsubscribe(packet_id=2, filters=(FILTER,)),
    ]
    data = b"".join(encode(version, packet) for packet in packets)
    first, acks, subscribed, second, unsubscribed = list(connected(version).feed(data))
    assert isinstance(first, PublishBatch)
    assert messages_of(first) == [
        Message(b"a", b"1", 0, 0, b"", -1),
        Message(b"a", b"2", 1, 1, b"", -1),
    ]
    assert isinstance(acks, AckBatch)
    assert (acks.first, acks.packet_ids) == (PUBACK, [5])
    assert isinstance(second, PublishBatch)
    assert messages_of(second) == [Message(b"b", b"3", 0, 0, b"", -1)]
    assert (subscribed, unsubscribed) == (subscribe, packets[-1])


@pytest.mark.parametrize(
    "packet",
    [
        PubAck(packet_id=1, reason=Reason.NO_MATCHING_SUBSCRIBERS),
        PubRec(packet_id=1, reason=Reason.QUOTA_EXCEEDED),
        PubRel(packet_id=1, reason=Reason.PACKET_IDENTIFIER_NOT_FOUND),
        PubComp(packet_id=1, reason=Reason.PACKET_IDENTIFIER_NOT_FOUND),
    ],
)
def test_an_acknowledgement_with_a_reason_is_a_packet(packet: Packet) -> None:
    assert list(connected(V5).feed(encode(V5, packet))) == [packet]


@BOTH
def test_mqtt_3_1_0_1_the_first_packet_is_connect(version: Version) -> None:
    connection = connecting()
    kind, _, reason = refusal(list(connection.feed(encode(version, PingReq()))))
    assert (kind, reason) == (ProtocolError, Reason.PROTOCOL_ERROR)
    assert connection.state is State.CLOSED


@BOTH
def test_mqtt_3_1_0_2_a_second_connect_ends_the_connection(version: Version) -> None:
    # Whatever it says, even nothing that can be read.
    for second in (encode(version, connect(version)), b"\x10\x00", b"\x1f\x01\xff"):
        connection = connected(version)
        events = list(connection.feed(second + encode(version, PingReq())))
        assert refusal(events) == (
            ProtocolError,
            "a client must send CONNECT once, got a second one",
            Reason.PROTOCOL_ERROR,
        )
        assert connection.state is State.CLOSED
        assert list(connection.feed(encode(version, PingReq()))) == []


@BOTH
@pytest.mark.parametrize(
    "packet",
    [
        ConnAck(),
        SubAck(packet_id=1, reasons=(Reason.SUCCESS,)),
        UnsubAck(packet_id=1, reasons=(Reason.SUCCESS,)),
        PingResp(),
    ],
)
def test_what_only_a_server_sends_ends_the_connection(version: Version, packet: Packet) -> None:
    connection = connected(version)
    name = type(packet).__name__
    expected = (ProtocolError, f"unexpected {name} while CONNECTED", Reason.PROTOCOL_ERROR)
    assert refusal(list(connection.feed(encode(version, packet)))) == expected
    assert connection.state is State.CLOSED


def test_auth_without_a_method_ends_the_connection() -> None:
    properties = Properties(authentication_method="m")
    packet = Auth(reason=Reason.CONTINUE_AUTHENTICATION, properties=properties)
    for data in (encode(V5, Auth()), encode(V5, packet)):
        kind, text, reason = refusal(list(connected(V5).feed(data)))
        assert (kind, text) == (ProtocolError, "AUTH without an authentication method")
        assert reason == Reason.PROTOCOL_ERROR


@BOTH
def test_after_disconnect_nothing_is_read(version: Version) -> None:
    connection = connected(version)
    ping = encode(version, PingReq())
    events = list(connection.feed(ping + encode(version, Disconnect()) + ping))
    assert events == [PingReq(), Disconnect()]
    assert connection.state is State.CLOSED
    assert list(connection.feed(ping)) == []


@BOTH
def test_what_cannot_be_read_is_the_last_event(version: Version) -> None:
    connection = connected(version)
    ping = encode(version, PingReq())
    first, error = list(connection.feed(ping + b"\xc1\x00" + ping))
    assert first == PingReq()
    assert isinstance(error, MalformedPacketError)
    assert connection.state is State.CLOSED


@BOTH
def test_an_error_of_the_splitter_closes_too(version: Version) -> None:
    connection = connected(version)
    kind, _, reason = refusal(list(connection.feed(b"\x36\x00")))
    assert (kind, reason) == (MalformedPacketError, Reason.MALFORMED_PACKET)
    assert connection.state is State.CLOSED


def test_who_was_closed_reads_nothing() -> None:
    connection = connected(V5)
    connection.close()
    assert list(connection.feed(encode(V5, PingReq()))) == []


class TestLimits:
    @BOTH
    def test_connect_has_a_limit_of_its_own(self, version: Version) -> None:
        long = Connect(version=version, client_id="c" * CONNECT_SIZE_MAX)
        _, _, reason = refusal(list(connecting().feed(encode(version, long))))
        assert reason == Reason.PACKET_TOO_LARGE

    @BOTH
    @pytest.mark.parametrize("cut", [1, 2, 4, 5, 10, 11, 1000])
    def test_connect_beyond_its_limit_is_refused_in_its_own_version(
        self, version: Version, cut: int
    ) -> None:
        data = encode(version, Connect(version=version, client_id="c", username="u" * 60_000))
        connection = ServerConnection(50_000, 200)
        events = [*connection.feed(data[:cut]), *connection.feed(data[cut:1000])]
        _, _, reason = refusal(events)
        assert (connection.version, reason) == (version, Reason.PACKET_TOO_LARGE)

    @BOTH
    def test_packets_after_connect_have_another(self, version: Version) -> None:
        payload = bytes(CONNECT_SIZE_MAX)
        [batch] = list(
            connected(version).feed(encode(version, Publish(topic=b"a", payload=payload)))
        )
        assert isinstance(batch, PublishBatch)
        too_large = Publish(topic=b"a", payload=bytes(PACKET_SIZE_MAX))
        _, _, reason = refusal(list(connected(version).feed(encode(version, too_large))))
        assert reason == Reason.PACKET_TOO_LARGE

    @BOTH
    def test_topics_have_so_many_levels_at_most(self, version: Version) -> None:
        [batch] = list(
            connected(version).feed(encode(version, Publish(topic=b"a/b/c", payload=b"")))
        )
        assert isinstance(batch, PublishBatch)
        data = encode(version, Publish(topic=b"a/b/c/d", payload=b""))
        kind, _, reason = refusal(list(connected(version).feed(data)))
        assert (kind, reason) == (ProtocolError, Reason.TOPIC_NAME_INVALID)

    def test_topic_aliases_are_taken_as_far_as_they_were_allowed(self) -> None:
        allowed = Publish(topic=b"a", payload=b"", properties=Properties(topic_alias=ALIAS_MAX))
        [batch] = list(connected(V5).feed(encode(V5, allowed)))
        assert isinstance(batch, PublishBatch)
        beyond = Publish(topic=b"a", payload=b"", properties=Properties(topic_alias=ALIAS_MAX + 1))
        _, _, reason = refusal(list(connected(V5).feed(encode(V5, beyond))))
        assert reason == Reason.TOPIC_ALIAS_INVALID


class TestVersion:
    """In which version a CONNECT is answered that cannot be taken."""

    # The name with its length, the level, then flags and what follows.
    @pytest.mark.parametrize(
        ("body", "version"),
        [
            (b"\0\4MQTT\6\2\0\0\0\0\1c", V5),
            (b"\0\4MQTT\x7f\2\0\0\0\0\1c", V5),
            # The bridge bit of Mosquitto, on levels that it is not taken with.
            (b"\0\4MQTT\xff\2\0\0\0\1c", V3),
            (b"\0\4MQTT\x85\2\0\0\0\1c", V3),
            (b"\0\6MQIsdp\x83\2\0\0\0\1c", V3),
            (b"\0\4MQTT\3\2\0\0\0\1c", V3),
            (b"\0\4MQTT\0\2\0\0\0\1c", V3),
            # MQTT 3.1, and its name with a level that it never had.
            (b"\0\6MQIsdp\3\2\0\0\0\1c", V3),
            (b"\0\6MQIsdp\5\2\0\0\0\0\1c", V5),
            (b"\0\4MQTX", V3),
            (b"\0\0", V3),
        ],
    )
    def test_a_version_that_is_not_spoken_is_answered_in_the_nearest(
        self, body: bytes, version: Version
    ) -> None:
        connection = connecting()
        kind, _, reason = refusal(list(connection.feed(bytes([0x10, len(body)]) + body)))
        assert (kind, reason) == (ProtocolError, Reason.UNSUPPORTED_PROTOCOL_VERSION)
        assert (connection.version, connection.state) == (version, State.CLOSED)

    @pytest.mark.parametrize(
        ("body", "version"),
        [(b"", V3), (b"\0\4MQ", V3), (b"\0\4MQTT", V3), (b"\0\4MQTT\4", V3), (b"\0\4MQTT\5", V5)],
    )
    def test_what_is_cut_short_is_answered_in_the_version_that_it_says(
        self, body: bytes, version: Version
    ) -> None:
        connection = connecting()
        kind, _, reason = refusal(list(connection.feed(bytes([0x10, len(body)]) + body)))
        assert (kind, reason) == (MalformedPacketError, Reason.MALFORMED_PACKET)
        assert (connection.version, connection.state) == (version, State.CLOSED)


@BOTH
def test_it_tells_how_much_of_a_packet_has_not_arrived_whole(version: Version) -> None:
    connection = connecting()
    start = encode(version, connect(version))
    data = encode(version, Publish(topic=b"a", payload=b"1" * 100))
    held = []
    for chunk in (start[:3], start[3:] + data[:50]):
        list(connection.feed(chunk))
        held.append(connection.held_bytes)
    list(connection.begin(ALIAS_MAX, PACKET_SIZE_MAX))
    for chunk in (data[50:60], data[60:]):
        list(connection.feed(chunk))
        held.append(connection.held_bytes)
    assert held == [3, 50, 60, 0]
