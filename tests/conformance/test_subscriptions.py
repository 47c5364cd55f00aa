"""MQTT 3.8 to 3.11: subscribing and unsubscribing."""

from __future__ import annotations

import pytest

from siltstone.mqtt.packets import (
    PubAck,
    PubComp,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter
from tests.conformance.versions import both_versions, in_v5, kept, told
from tests.support.broker_core import V3, V5, Core, message


def subscribe(packet_id: int, *wanted: tuple[str, int]) -> Subscribe:
    return Subscribe(
        packet_id=packet_id,
        subscriptions=tuple(
            Subscription(filter=TopicFilter.parse(text), qos=qos) for text, qos in wanted
        ),
    )


def unsubscribe(packet_id: int, *filters: str) -> Unsubscribe:
    return Unsubscribe(
        packet_id=packet_id, filters=tuple(TopicFilter.parse(text) for text in filters)
    )


def unsubscribed(version: Version, packet_id: int, *reasons: Reason) -> UnsubAck:
    """Return UNSUBACK, which has no reasons in 3.1.1."""
    return UnsubAck(packet_id=packet_id, reasons=reasons if version is V5 else ())


@both_versions
@pytest.mark.parametrize("first", ["80", "81", "83", "8a"])
def test_mqtt_3_8_1_1_other_flags_of_subscribe_end_the_connection(
    version: Version, first: str
) -> None:
    wire = Core().connect("c", version=version)
    properties = "00" if version is V5 else ""
    body = bytes.fromhex(f"0001 {properties} 0001 74 00")
    wire.send_bytes(bytes.fromhex(first) + bytes([len(body)]) + body)
    assert told(wire) == in_v5(version, Reason.MALFORMED_PACKET)


@both_versions
@pytest.mark.parametrize("first", ["a0", "a1", "a3", "aa"])
def test_mqtt_3_10_1_1_other_flags_of_unsubscribe_end_the_connection(
    version: Version, first: str
) -> None:
    wire = Core().connect("c", version=version)
    body = bytes.fromhex(f"0001 {'00' if version is V5 else ''} 0001 74")
    wire.send_bytes(bytes.fromhex(first) + bytes([len(body)]) + body)
    assert told(wire) == in_v5(version, Reason.MALFORMED_PACKET)


@both_versions
@pytest.mark.parametrize(("first", "options"), [("82", "00"), ("a2", "")])
def test_mqtt_3_8_3_1_and_3_10_3_1_a_filter_is_a_string(
    version: Version, first: str, options: str
) -> None:
    wire = Core().connect("c", version=version)
    body = bytes.fromhex(f"0001 {'00' if version is V5 else ''} 0002 ff74 {options}")
    wire.send_bytes(bytes.fromhex(first) + bytes([len(body)]) + body)
    assert told(wire) == in_v5(version, Reason.MALFORMED_PACKET)


@both_versions
@pytest.mark.parametrize("first", ["82", "a2"])
def test_mqtt_3_8_3_2_and_3_10_3_2_no_filter_ends_the_connection(
    version: Version, first: str
) -> None:
    wire = Core().connect("c", version=version)
    body = bytes.fromhex(f"0001 {'00' if version is V5 else ''}")
    wire.send_bytes(bytes.fromhex(first) + bytes([len(body)]) + body)
    assert told(wire) == in_v5(version, Reason.PROTOCOL_ERROR)


@pytest.mark.parametrize("client_id", ["c", "other"])
def test_mqtt_3_8_3_3_no_local_keeps_a_clients_own_messages_from_it(client_id: str) -> None:
    core = Core()
    wire = core.connect("c")
    wire.subscribe("t", no_local=True)
    publisher = wire if client_id == "c" else core.connect(client_id)
    publisher.send(message("t", "m"))
    assert wire.take() == ([] if client_id == "c" else [message("t", "m")])


def test_mqtt_3_8_3_3_no_local_is_of_one_subscription() -> None:
    wire = Core().connect("c")
    wire.subscribe("t", no_local=True)
    wire.subscribe("+", qos=0)
    assert wire.exchange(message("t", "m", 1, 1)) == [message("t", "m"), PubAck(packet_id=1)]


def test_mqtt_3_8_3_3_a_message_that_waits_knows_its_publisher() -> None:
    core = Core()
    core.connect("c", **kept()).subscribe("t", no_local=True)
    core.connect("c", **kept()).publish("t", "own", 1, 1)
    assert core.connect("c", **kept()).take() == []


def test_mqtt_3_8_3_3_a_retained_message_of_its_own_is_kept_from_it_too() -> None:
    wire = Core().connect("c")
    wire.publish("t", "own", retain=True)
    assert wire.subscribe("t", no_local=True) == []


def test_mqtt_3_8_3_4_no_local_on_a_shared_subscription_ends_the_connection() -> None:
    wire = Core().connect("c")
    wire.send_bytes(bytes.fromhex("82 10 0001 00 000a 24736861 72652f67 2f74 04"))
    assert told(wire) == [Reason.PROTOCOL_ERROR]


@both_versions
@pytest.mark.parametrize("options", [0xC0, 0x80, 0x40, 0x03])
def test_mqtt_3_8_3_5_reserved_options_end_the_connection(version: Version, options: int) -> None:
    wire = Core().connect("c", version=version)
    body = bytes.fromhex(f"0001 {'00' if version is V5 else ''} 0001 74") + bytes([options])
    wire.send_bytes(b"\x82" + bytes([len(body)]) + body)
    reason = Reason.PROTOCOL_ERROR if options == 0x03 else Reason.MALFORMED_PACKET
    assert told(wire) == in_v5(version, reason)


@both_versions
def test_mqtt_3_8_4_1_and_2_subscribe_is_answered_under_its_packet_id(version: Version) -> None:
    wire = Core().connect("c", version=version)
    for packet_id in (1, 65_535):
        assert wire.exchange(subscribe(packet_id, ("t", 1))) == [
            SubAck(packet_id=packet_id, reasons=(Reason.GRANTED_QOS_1,))
        ]


@both_versions
def test_mqtt_2_2_1_6_suback_and_unsuback_have_the_packet_id_that_was_asked_with(
    version: Version,
) -> None:
    wire = Core().connect("c", version=version)
    assert wire.exchange(subscribe(300, ("t", 0)), unsubscribe(301, "t")) == [
        SubAck(packet_id=300, reasons=(Reason.GRANTED_QOS_0,)),
        unsubscribed(version, 301, Reason.SUCCESS),
    ]


@both_versions
def test_mqtt_3_8_4_3_the_same_filter_again_replaces_the_subscription(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    wire.subscribe("t", qos=2)
    wire.subscribe("t", qos=0)
    core.connect("p").publish("t", "m", 2, 1)
    assert wire.take() == [message("t", "m")]
    assert core.broker.registry.subscription_count == 1


def test_mqtt_3_8_4_3_every_option_and_the_identifier_are_replaced() -> None:
    core = Core()
    wire = core.connect("c")
    wire.subscribe("t", qos=1, identifier=1, no_local=True)
    wire.subscribe("t", qos=1, identifier=2, retain_as_published=True)
    assert wire.exchange(message("t", "m", retain=True)) == [
        message("t", "m", retain=True, subscription_identifiers=(2,))
    ]


@both_versions
def test_mqtt_3_8_4_5_many_filters_are_as_many_packets_with_one_answer(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    # The same filter twice: the later one holds.
    (answer,) = wire.exchange(subscribe(1, ("a", 0), ("b", 1), ("a", 2)))
    assert answer == SubAck(
        packet_id=1,
        reasons=(Reason.GRANTED_QOS_0, Reason.GRANTED_QOS_1, Reason.GRANTED_QOS_2),
    )
    publisher = core.connect("p")
    publisher.publish("a", "m", 2, 1)
    publisher.publish("b", "m", 2, 2)
    assert wire.take() == [message("a", "m", 2, 1), message("b", "m", 1, 2)]


@both_versions
def test_mqtt_3_8_4_6_and_7_each_filter_has_the_qos_it_was_granted_or_a_failure(
    version: Version,
) -> None:
    core = Core(subscriptions_max=2, topic_levels_max=3)
    wire = core.connect("c", version=version)
    (answer,) = wire.exchange(subscribe(1, ("a", 2), ("a/b/c/d", 0), ("b", 1), ("c", 1)))
    failures = (
        (Reason.TOPIC_FILTER_INVALID, Reason.QUOTA_EXCEEDED)
        if version is V5
        else (Reason.UNSPECIFIED_ERROR, Reason.UNSPECIFIED_ERROR)
    )
    assert answer == SubAck(
        packet_id=1,
        reasons=(Reason.GRANTED_QOS_2, failures[0], Reason.GRANTED_QOS_1, failures[1]),
    )


@both_versions
def test_mqtt_3_9_3_1_the_reasons_are_in_the_order_of_the_filters(version: Version) -> None:
    wire = Core().connect("c", version=version)
    (answer,) = wire.exchange(subscribe(1, ("c", 2), ("a", 0), ("b", 1)))
    assert isinstance(answer, SubAck)
    assert list(answer.reasons) == [2, 0, 1]


def test_mqtt311_3_9_3_2_a_failure_is_0x80_and_nothing_else() -> None:
    wire = Core(subscriptions_max=1, topic_levels_max=1).connect("c", version=V3)
    (answer,) = wire.exchange(subscribe(1, ("a/b", 0), ("a", 0), ("b", 0)))
    assert isinstance(answer, SubAck)
    assert list(answer.reasons) == [0x80, 0, 0x80]


@both_versions
def test_mqtt311_3_8_3_2_filters_with_wildcards_are_taken(version: Version) -> None:
    wire = Core().connect("c", version=version)
    assert wire.subscribe("#", "+", "a/+/b", "a/#") == []


@both_versions
def test_mqtt_3_10_4_1_a_filter_is_compared_character_by_character(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    wire.subscribe("t/+", "T/+", "t/x", "t/+/")
    assert wire.exchange(unsubscribe(2, "t/+", "t/#", "#")) == [
        unsubscribed(
            version,
            2,
            Reason.SUCCESS,
            Reason.NO_SUBSCRIPTION_EXISTED,
            Reason.NO_SUBSCRIPTION_EXISTED,
        )
    ]
    assert list(core.broker.registry.sessions["c"].subscriptions) == ["T/+", "t/x", "t/+/"]


@both_versions
def test_mqtt_3_10_4_2_after_unsubscribe_nothing_new_is_sent(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    wire.subscribe("t")
    wire.exchange(unsubscribe(2, "t"))
    core.connect("p").publish("t", "m", 1, 1)
    assert wire.take() == []


def test_mqtt_3_10_4_2_retained_messages_that_still_wait_are_not_sent_either() -> None:
    core = Core()
    publisher = core.connect("p")
    for number in (1, 2, 3):
        publisher.publish(f"t/{number}", "m", 1, number, retain=True)
    wire = core.connect("c", receive_maximum=1)
    assert wire.subscribe("t/#") == [message("t/1", "m", 1, 1, retain=True)]
    wire.exchange(unsubscribe(2, "t/#"))
    assert wire.exchange(PubAck(packet_id=1)) == []


@both_versions
def test_mqtt_3_10_4_3_what_is_under_way_is_completed(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    wire.subscribe("t")
    publisher = core.connect("p")
    publisher.publish("t", "1", 1, 1)
    publisher.publish("t", "2", 2, 2)
    assert wire.take() == [message("t", "1", 1, 1), message("t", "2", 2, 2)]
    wire.exchange(unsubscribe(2, "t"))
    assert wire.exchange(PubAck(packet_id=1), PubRec(packet_id=2)) == [PubRel(packet_id=2)]
    assert wire.exchange(PubComp(packet_id=2)) == []


@both_versions
def test_mqtt_3_10_4_3_what_is_under_way_is_sent_again_after_unsubscribe(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version, **kept(version))
    wire.subscribe("t")
    core.connect("p").publish("t", "m", 1, 1)
    assert wire.take() == [message("t", "m", 1, 1)]
    wire.exchange(unsubscribe(2, "t"))
    wire.drop()
    assert core.connect("c", version=version, **kept(version)).take() == [
        message("t", "m", 1, 1, dup=True)
    ]


@both_versions
def test_mqtt_3_10_4_4_and_5_unsubscribe_is_answered_though_nothing_was_subscribed(
    version: Version,
) -> None:
    wire = Core().connect("c", version=version)
    assert wire.exchange(unsubscribe(500, "t")) == [
        unsubscribed(version, 500, Reason.NO_SUBSCRIPTION_EXISTED)
    ]


@both_versions
def test_mqtt_3_10_4_6_many_filters_are_as_many_packets_with_one_answer(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    wire.subscribe("a", "b", "c")
    assert wire.exchange(unsubscribe(2, "a", "c", "a")) == [
        unsubscribed(version, 2, Reason.SUCCESS, Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED)
    ]
    assert list(core.broker.registry.sessions["c"].subscriptions) == ["b"]


def test_mqtt_3_11_3_1_and_2_the_reasons_are_in_the_order_of_the_filters() -> None:
    wire = Core().connect("c")
    wire.subscribe("b")
    assert wire.exchange(unsubscribe(2, "a", "b", "c")) == [
        UnsubAck(
            packet_id=2,
            reasons=(
                Reason.NO_SUBSCRIPTION_EXISTED,
                Reason.SUCCESS,
                Reason.NO_SUBSCRIPTION_EXISTED,
            ),
        )
    ]
