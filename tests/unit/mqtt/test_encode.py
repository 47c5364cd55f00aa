from __future__ import annotations

import pytest

from siltstone.errors import UsageError
from siltstone.mqtt.encode import encode, encode_message_properties
from siltstone.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PubAck,
    Publish,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
    Will,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter
from tests.support.packets import EXAMPLES, V3, V5, Example

FILTER = TopicFilter.parse("a")
SHARED = TopicFilter.parse("$share/g/a")


@pytest.mark.parametrize("example", EXAMPLES)
def test_a_packet_has_the_bytes_that_the_specification_shows(example: Example) -> None:
    assert encode(example.version, example.packet).hex(" ") == example.data.hex(" ")


def test_3_1_1_leaves_out_what_it_has_no_bytes_for() -> None:
    publish = Publish(topic=b"a", payload=b"x", properties=Properties(content_type="t"))
    assert encode(V3, publish) == b"\x30\x04\0\1ax"
    subscription = Subscription(filter=FILTER, qos=1, no_local=True, retain_handling=2)
    subscribe = Subscribe(packet_id=1, subscriptions=(subscription,))
    assert encode(V3, subscribe) == b"\x82\x06\0\1\0\1a\1"
    ack = PubAck(packet_id=1, reason=Reason.NO_MATCHING_SUBSCRIBERS)
    assert encode(V3, ack) == b"\x40\x02\0\1"
    suback = SubAck(packet_id=1, reasons=(Reason.QUOTA_EXCEEDED,))
    assert encode(V3, suback) == b"\x90\x03\0\1\x80"


@pytest.mark.parametrize(
    "packet",
    [
        PubAck(packet_id=1, reason=Reason.QUOTA_EXCEEDED),
        PubRel(packet_id=1, reason=Reason.PACKET_IDENTIFIER_NOT_FOUND),
        ConnAck(reason=Reason.MALFORMED_PACKET),
        Disconnect(reason=Reason.SERVER_SHUTTING_DOWN),
        Auth(),
        Connect(version=V3, client_id="c", password=b"p"),
        Connect(version=V3, client_id="", clean_start=False),
        Publish(topic=b"", payload=b"", properties=Properties(topic_alias=1)),
    ],
)
def test_what_3_1_1_cannot_say_is_refused_and_never_left_out(packet: Packet) -> None:
    with pytest.raises(UsageError):
        encode(V3, packet)


@pytest.mark.parametrize("version", [V3, V5])
@pytest.mark.parametrize(
    "packet",
    [
        ConnAck(session_present=True, reason=Reason.NOT_AUTHORIZED),
        Connect(version=V5, client_id="c", will=Will(topic=b"#", payload=b"")),
        Connect(version=V5, client_id="c", will=Will(topic=b"w", payload=b"", qos=3)),
        Connect(version=V5, client_id="c", keep_alive_seconds=65_536),
        Publish(topic=b"", payload=b""),
        Publish(topic=b"+", payload=b""),
        Publish(topic=b"a", payload=b"", qos=3, packet_id=1),
        Publish(topic=b"a", payload=b"", qos=1),
        Publish(topic=b"a", payload=b"", packet_id=1),
        Publish(topic=b"a", payload=b"", dup=True),
        PubAck(packet_id=0),
        PubAck(packet_id=65_536),
        Subscribe(packet_id=1, subscriptions=()),
        Subscribe(packet_id=1, subscriptions=(Subscription(filter=FILTER, qos=3),)),
        Subscribe(packet_id=1, subscriptions=(Subscription(filter=FILTER, retain_handling=3),)),
        Subscribe(packet_id=1, subscriptions=(Subscription(filter=SHARED, no_local=True),)),
        SubAck(packet_id=1, reasons=()),
        SubAck(packet_id=1, reasons=(Reason.NO_SUBSCRIPTION_EXISTED,)),
        Unsubscribe(packet_id=1, filters=()),
    ],
)
def test_what_no_packet_may_hold_is_refused(version: Version, packet: Packet) -> None:
    with pytest.raises(UsageError):
        encode(version, packet)


@pytest.mark.parametrize(
    "packet",
    [
        UnsubAck(packet_id=1),
        PubAck(packet_id=1, reason=Reason.MALFORMED_PACKET),
        ConnAck(reason=Reason.SERVER_SHUTTING_DOWN),
        Disconnect(reason=Reason.BANNED),
        ConnAck(properties=Properties(topic_alias=1)),
    ],
)
def test_what_mqtt_5_may_not_hold_is_refused(packet: Packet) -> None:
    with pytest.raises(UsageError):
        encode(V5, packet)


def test_a_long_packet_has_a_long_length() -> None:
    data = encode(V3, Publish(topic=b"a", payload=b"x" * 16_381))
    assert (data[:7], len(data)) == (b"\x30\x80\x80\x01\0\1a", 4 + 16_384)


def test_a_message_has_the_properties_of_its_will_but_for_the_delay() -> None:
    properties = Properties(
        will_delay_interval=5,
        payload_format_indicator=1,
        message_expiry_interval=2,
        content_type="t",
        response_topic="r",
        correlation_data=b"\0",
        user_properties=(("k", "v"), ("k", "w")),
    )
    assert encode_message_properties(properties).hex(" ") == bytes.fromhex(
        "01 01 02 00000002 03 0001 74 08 0001 72 09 0001 00 26 0001 6b 0001 76 26 0001 6b 0001 77"
    ).hex(" ")
    assert encode_message_properties(Properties(will_delay_interval=5)) == b""


def test_many_properties_of_a_will_lose_their_length_too() -> None:
    pair = ("k" * 100, "v" * 100)
    encoded = b"\x26\0\x64" + b"k" * 100 + b"\0\x64" + b"v" * 100
    assert encode_message_properties(Properties(user_properties=(pair, pair))) == encoded * 2
