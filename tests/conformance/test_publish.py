"""MQTT 3.3.1 and 3.3.2: the flags of a message, its topic, its aliases, its properties."""

from __future__ import annotations

from typing import Any

import pytest

from siltstone.mqtt.packets import PubAck, Publish, PubRec
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.conformance.versions import both_versions, in_v5, kept, told
from tests.support.broker_core import V3, V5, Core, Wire, message

PASSED_ON = Properties(
    payload_format_indicator=1,
    content_type="text/plain",
    response_topic="answers/1",
    correlation_data=b"\x00\xff",
    user_properties=(("b", "1"), ("a", "2"), ("b", "0")),
)


def pair(core: Core, topic_filter: str = "t/#", **fields: Any) -> tuple[Wire, Wire]:
    """Return a publisher, and a subscriber with these properties."""
    subscriber = core.connect("s", **fields)
    subscriber.subscribe(topic_filter)
    return core.connect("p"), subscriber


@both_versions
def test_mqtt_3_3_1_1_what_is_sent_again_has_dup(version: Version) -> None:
    core = Core()
    first = core.connect("s", version=version, **kept(version))
    first.subscribe("t", qos=1)
    core.connect("p").publish("t", "m", 1, 1)
    assert first.take() == [message("t", "m", 1, 1)]
    first.drop()
    assert core.connect("s", version=version, **kept(version)).take() == [
        message("t", "m", 1, 1, dup=True)
    ]


@both_versions
def test_mqtt_3_3_1_2_qos_0_never_has_dup(version: Version) -> None:
    core = Core()
    publisher, subscriber = pair(core)
    publisher.publish("t/x", "m", 0)
    assert subscriber.take() == [message("t/x", "m")]
    wrong = core.connect("wrong", version=version)
    wrong.send_bytes(b"\x38\x05\x00\x03t/x" if version is V3 else b"\x38\x06\x00\x03t/x\x00")
    assert told(wrong) == in_v5(version, Reason.MALFORMED_PACKET)


@both_versions
@pytest.mark.parametrize("qos", [1, 2])
def test_mqtt_3_3_1_3_the_dup_of_the_publisher_is_not_passed_on(version: Version, qos: int) -> None:
    core = Core()
    subscriber = core.connect("s", version=version)
    subscriber.subscribe("t", qos=qos)
    core.connect("p", version=version).publish("t", "m", qos, 9, dup=True)
    assert subscriber.take() == [message("t", "m", qos, 1)]


@both_versions
def test_mqtt_3_3_1_4_qos_3_ends_the_connection(version: Version) -> None:
    wire = Core().connect("c", version=version)
    wire.send_bytes(
        b"\x36\x05\x00\x01t\x00\x01" if version is V3 else b"\x36\x06\x00\x01t\x00\x01\x00"
    )
    assert told(wire) == in_v5(version, Reason.MALFORMED_PACKET)


@both_versions
@pytest.mark.parametrize(
    ("topic", "reason"),
    [
        (b"\xff", Reason.MALFORMED_PACKET),
        (b"a\x00", Reason.MALFORMED_PACKET),
        (b"\xed\xa0\x80", Reason.MALFORMED_PACKET),
        (b"a/+", Reason.TOPIC_NAME_INVALID),
        (b"#", Reason.TOPIC_NAME_INVALID),
    ],
)
def test_mqtt_3_3_2_1_and_2_a_topic_is_a_string_without_wildcards(
    version: Version, topic: bytes, reason: Reason
) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    body = len(topic).to_bytes(2, "big") + topic + (b"\x00" if version is V5 else b"")
    wire.send_bytes(bytes([0x30, len(body)]) + body)
    assert told(wire) == in_v5(version, reason)
    assert core.database.rows == []


@both_versions
def test_mqtt_3_3_2_3_the_topic_that_is_sent_matches_the_filter(version: Version) -> None:
    core = Core()
    subscriber = core.connect("s", version=version)
    subscriber.subscribe("t/+/x", "exact")
    publisher = core.connect("p")
    for topic in ("t/1/x", "t/1", "t/1/x/y", "exact", "exact/no", "T/1/x"):
        publisher.publish(topic, topic)
    assert subscriber.take() == [message("t/1/x", "t/1/x"), message("exact", "exact")]


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_3_2_4_15_16_17_18_20_what_the_publisher_says_is_passed_on_unaltered(
    qos: int,
) -> None:
    publisher, subscriber = pair(Core())
    publisher.exchange(
        Publish(topic=b"t/x", payload=b"m", qos=qos, packet_id=qos, properties=PASSED_ON)
    )
    (seen,) = subscriber.take()
    assert isinstance(seen, Publish)
    assert (seen.payload, seen.qos, seen.properties) == (b"m", qos, PASSED_ON)


def test_what_a_message_waited_for_is_passed_on_unaltered_too() -> None:
    core = Core()
    wire = core.connect("s", **kept())
    wire.subscribe("t/#")
    wire.drop()
    core.connect("p").exchange(
        Publish(topic=b"t/x", payload=b"m", qos=1, packet_id=1, retain=True, properties=PASSED_ON)
    )
    (waited,) = core.connect("s", **kept()).take()
    (retained,) = core.connect("late").subscribe("t/#")
    assert isinstance(waited, Publish)
    assert isinstance(retained, Publish)
    assert (waited.properties, retained.properties) == (PASSED_ON, PASSED_ON)


def test_mqtt_3_3_2_5_a_message_that_waited_too_long_is_not_sent() -> None:
    core = Core()
    wire = core.connect("s", **kept())
    wire.subscribe("t")
    wire.drop()
    publisher = core.connect("p")
    publisher.publish("t", "short", 1, 1, message_expiry_interval=10)
    publisher.publish("t", "long", 1, 2, message_expiry_interval=100)
    core.advance(10)
    assert core.connect("s", **kept()).take() == [
        message("t", "long", 1, 1, message_expiry_interval=90)
    ]


def test_mqtt_3_3_2_5_a_retained_message_that_is_too_old_is_not_sent() -> None:
    core = Core()
    core.connect("p").publish("t", "m", retain=True, message_expiry_interval=10)
    core.advance(10)
    assert core.connect("s").subscribe("t") == []


def test_mqtt_3_3_2_6_the_time_that_a_message_has_waited_is_taken_off() -> None:
    core = Core()
    wire = core.connect("s", **kept())
    wire.subscribe("t")
    publisher = core.connect("p")
    publisher.publish("t", "at once", 0, message_expiry_interval=100)
    assert wire.take() == [message("t", "at once", message_expiry_interval=100)]
    wire.drop()
    publisher.publish("t", "waits", 1, 1, message_expiry_interval=100)
    core.advance(40)
    again = core.connect("s", **kept())
    assert again.take() == [message("t", "waits", 1, 1, message_expiry_interval=60)]
    again.drop()
    core.advance(20)
    assert core.connect("s", **kept()).take() == [
        message("t", "waits", 1, 1, dup=True, message_expiry_interval=40)
    ]


def test_mqtt_3_3_2_6_a_retained_message_grows_old_too() -> None:
    core = Core()
    core.connect("p").publish("t", "m", retain=True, message_expiry_interval=100)
    core.advance(40)
    assert core.connect("s").subscribe("t") == [
        message("t", "m", retain=True, message_expiry_interval=60)
    ]


def test_mqtt_3_3_2_7_aliases_are_of_one_connection() -> None:
    core = Core()
    wire = core.connect("p", **kept())
    wire.publish("t", "sets", topic_alias=1)
    wire.drop()
    again = core.connect("p", **kept())
    again.send(Publish(topic=b"", payload=b"uses", properties=Properties(topic_alias=1)))
    assert told(again) == [Reason.PROTOCOL_ERROR]
    assert core.database.rows == [(b"t", b"sets")]


def test_mqtt_3_3_2_7_the_server_begins_anew_with_its_aliases() -> None:
    core = Core()
    publisher = core.connect("p")
    for _ in range(2):
        subscriber = core.connect("s", topic_alias_maximum=5)
        subscriber.subscribe("t")
        publisher.publish("t", "m")
        assert subscriber.take() == [message("t", "m", topic_alias=1)]


@pytest.mark.parametrize("alias", [0, 11])
def test_mqtt_3_3_2_8_and_9_an_alias_out_of_range_ends_the_connection(alias: int) -> None:
    wire = Core(topic_alias_max=10).connect("c")
    wire.send_bytes(b"\x30\x07\x00\x01t\x03\x23\x00" + bytes([alias]))
    assert told(wire) == [Reason.TOPIC_ALIAS_INVALID]


def test_mqtt_3_3_2_12_every_alias_up_to_the_maximum_is_taken() -> None:
    core = Core(topic_alias_max=10)
    wire = core.connect("c")
    assert wire.accepted is not None
    assert wire.accepted.properties.topic_alias_maximum == 10
    for alias in range(1, 11):
        wire.publish(f"t/{alias}", "by name", topic_alias=alias)
    for alias in range(1, 11):
        wire.send(Publish(topic=b"", payload=b"by alias", properties=Properties(topic_alias=alias)))
    wire.take()
    assert core.database.rows == [
        (f"t/{alias}".encode(), said)
        for said in (b"by name", b"by alias")
        for alias in range(1, 11)
    ]


def test_mqtt_3_1_2_26_and_3_3_2_11_the_server_stays_within_the_aliases_of_the_client() -> None:
    publisher, subscriber = pair(Core(), topic_alias_maximum=2)
    for _ in range(2):
        for topic in ("t/1", "t/2", "t/3"):
            publisher.publish(topic, "m")
    assert subscriber.take() == [
        message("t/1", "m", topic_alias=1),
        message("t/2", "m", topic_alias=2),
        message("t/3", "m"),
        Publish(topic=b"", payload=b"m", properties=Properties(topic_alias=1)),
        Publish(topic=b"", payload=b"m", properties=Properties(topic_alias=2)),
        message("t/3", "m"),
    ]


@pytest.mark.parametrize("fields", [{}, {"topic_alias_maximum": 0}])
def test_mqtt_3_1_2_27_who_allows_no_alias_gets_none(fields: dict[str, Any]) -> None:
    publisher, subscriber = pair(Core(), **fields)
    for _ in range(2):
        publisher.publish("t/1", "m")
    assert subscriber.take() == [message("t/1", "m")] * 2


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        # A response topic that is no string, or has a wildcard; a content type that is no string.
        ("08 0001 ff", Reason.MALFORMED_PACKET),
        ("08 0003 612f23", Reason.TOPIC_NAME_INVALID),
        ("03 0001 ff", Reason.MALFORMED_PACKET),
        ("26 0001 61 0001 00", Reason.MALFORMED_PACKET),
    ],
)
def test_mqtt_3_3_2_13_14_19_properties_against_the_rules_end_the_connection(
    properties: str, reason: Reason
) -> None:
    core = Core()
    wire = core.connect("c")
    encoded = bytes.fromhex(properties)
    body = b"\x00\x01t" + bytes([len(encoded)]) + encoded
    wire.send_bytes(bytes([0x30, len(body)]) + body)
    assert (told(wire), core.database.rows) == ([reason], [])


def test_mqtt_3_3_4_6_a_subscription_identifier_of_a_client_ends_the_connection() -> None:
    wire = Core().connect("c")
    wire.send_bytes(bytes.fromhex("30 06 0001 74 02 0b01"))
    assert told(wire) == [Reason.PROTOCOL_ERROR]


def test_a_message_for_3_1_1_has_no_properties() -> None:
    core = Core()
    subscriber = core.connect("s", version=V3)
    subscriber.subscribe("t")
    core.connect("p").exchange(
        Publish(topic=b"t", payload=b"m", qos=2, packet_id=1, properties=PASSED_ON)
    )
    assert subscriber.take() == [message("t", "m", 2, 1)]


@both_versions
def test_mqtt_3_3_4_1_each_qos_has_its_answer(version: Version) -> None:
    wire = Core().connect("c", version=version)
    assert wire.publish("t", "0", 0) == []
    assert wire.publish("t", "1", 1, 7) == [PubAck(packet_id=7)]
    assert wire.publish("t", "2", 2, 8) == [PubRec(packet_id=8)]
