"""MQTT 3.3.1.3 and 3.8.3.1: what is retained, and who is sent it."""

from __future__ import annotations

import pytest

from siltstone.mqtt.packets import PubAck
from siltstone.mqtt.wire import Version
from tests.conformance.versions import both_versions, kept
from tests.support.broker_core import V3, V5, Core, message


def retaining(*payloads: str, version: Version = V5) -> Core:
    """Return a broker to which a client has published these, retained, on one topic."""
    core = Core()
    publisher = core.connect("p", version=version)
    for payload in payloads:
        publisher.publish("t", payload, retain=True)
    return core


@both_versions
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_3_1_5_a_retained_message_replaces_the_one_before(
    version: Version, qos: int
) -> None:
    core = Core()
    publisher = core.connect("p", version=version)
    for number, payload in enumerate(("old", "new"), 1):
        publisher.publish("t", payload, qos, number if qos else 0, retain=True)
    late = core.connect("s", version=version)
    assert late.subscribe("t") == [message("t", "new", qos, min(qos, 1), retain=True)]


@both_versions
def test_mqtt_3_3_1_6_an_empty_payload_is_passed_on_and_clears(version: Version) -> None:
    core = retaining("old", version=version)
    live = core.connect("live", version=version)
    assert live.subscribe("t") == [message("t", "old", retain=True)]
    core.connect("q", version=version).publish("t", "", retain=True)
    assert live.take() == [message("t", "")]
    assert core.connect("late", version=version).subscribe("t") == []


@both_versions
def test_mqtt_3_3_1_7_an_empty_payload_is_not_retained(version: Version) -> None:
    core = retaining("", version=version)
    assert len(core.broker.retained) == 0


@both_versions
@pytest.mark.parametrize("payload", ["other", ""])
def test_mqtt_3_3_1_8_without_the_flag_nothing_is_retained_replaced_or_cleared(
    version: Version, payload: str
) -> None:
    core = retaining("kept", version=version)
    publisher = core.connect("q", version=version)
    publisher.publish("t", payload)
    publisher.publish("u", payload)
    assert core.connect("s", version=version).subscribe("#") == [message("t", "kept", retain=True)]


def test_mqtt_3_3_1_9_retain_handling_0_sends_them_at_every_subscribe() -> None:
    subscriber = retaining("m").connect("s")
    for _ in range(2):
        assert subscriber.subscribe("t", retain_handling=0) == [message("t", "m", retain=True)]


def test_mqtt_3_3_1_10_retain_handling_1_sends_them_to_a_new_subscription_alone() -> None:
    core = retaining("m")
    subscriber = core.connect("s")
    assert subscriber.subscribe("t", retain_handling=1) == [message("t", "m", retain=True)]
    assert subscriber.subscribe("t", retain_handling=1) == []
    # One that came with a session is not new.
    core.connect("k", **kept()).subscribe("t", retain_handling=2)
    assert core.connect("k", **kept()).subscribe("t", retain_handling=1) == []


def test_mqtt_3_3_1_11_retain_handling_2_sends_none() -> None:
    assert retaining("m").connect("s").subscribe("t", retain_handling=2) == []


def test_mqtt_3_3_1_12_and_13_the_flag_of_a_live_message_is_as_published_or_0() -> None:
    core = Core()
    plain, keeping = core.connect("plain"), core.connect("keeping")
    plain.subscribe("t", retain_as_published=False)
    keeping.subscribe("t", retain_as_published=True)
    publisher = core.connect("p")
    publisher.publish("t", "1", retain=True)
    publisher.publish("t", "2", retain=False)
    assert plain.take() == [message("t", "1"), message("t", "2")]
    assert keeping.take() == [message("t", "1", retain=True), message("t", "2")]


@both_versions
def test_mqtt311_3_3_1_6_every_matching_topic_is_sent_its_last_message(version: Version) -> None:
    core = Core()
    publisher = core.connect("p", version=version)
    for topic in ("a/1", "a/2", "b/1"):
        publisher.publish(topic, "old", retain=True)
        publisher.publish(topic, topic, retain=True)
    assert core.connect("s", version=version).subscribe("a/+") == [
        message("a/1", "a/1", retain=True),
        message("a/2", "a/2", retain=True),
    ]


def test_mqtt311_3_3_1_7_a_message_of_qos_0_replaces_one_of_any_qos() -> None:
    core = Core()
    publisher = core.connect("p", version=V3)
    publisher.publish("t", "old", 1, 1, retain=True)
    publisher.publish("t", "new", 0, retain=True)
    assert core.connect("s", version=V3).subscribe("t") == [message("t", "new", retain=True)]


def test_mqtt311_3_3_1_8_and_9_the_flag_tells_a_retained_message_from_a_live_one() -> None:
    core = retaining("before", version=V3)
    subscriber = core.connect("s", version=V3)
    assert subscriber.subscribe("t") == [message("t", "before", retain=True)]
    core.connect("q", version=V3).publish("t", "live", retain=True)
    assert subscriber.take() == [message("t", "live")]


@both_versions
def test_mqtt_3_8_4_4_a_subscription_that_is_made_again_loses_no_message(version: Version) -> None:
    core = retaining("kept", version=version)
    subscriber = core.connect("s", version=version)
    subscriber.subscribe("t", qos=1)
    publisher = core.connect("q", version=version)
    publisher.publish("t", "1", 1, 1)
    assert subscriber.take() == [message("t", "1", 1, 1)]
    assert subscriber.subscribe("t", qos=1) == [message("t", "kept", retain=True)]
    publisher.publish("t", "2", 1, 2)
    assert subscriber.take() == [message("t", "2", 1, 2)]


def test_retained_messages_are_sent_as_fast_as_the_client_takes_them() -> None:
    core = Core()
    publisher = core.connect("p")
    for number in (1, 2, 3):
        publisher.publish(f"t/{number}", "m", 1, number, retain=True)
    subscriber = core.connect("s", receive_maximum=1)
    assert subscriber.subscribe("t/#") == [message("t/1", "m", 1, 1, retain=True)]
    assert subscriber.exchange(PubAck(packet_id=1)) == [message("t/2", "m", 1, 2, retain=True)]
    assert subscriber.exchange(PubAck(packet_id=2)) == [message("t/3", "m", 1, 3, retain=True)]


def test_mqtt_3_3_1_9_what_a_lost_connection_left_unsent_is_sent_to_the_next() -> None:
    core = Core()
    publisher = core.connect("p")
    for number in (1, 2, 3):
        publisher.publish(f"t/{number}", "m", 1, number, retain=True)
    subscriber = core.connect("s", receive_maximum=1, **kept())
    assert subscriber.subscribe("t/#") == [message("t/1", "m", 1, 1, retain=True)]
    subscriber.drop()
    assert core.connect("s", **kept()).take() == [
        message("t/1", "m", 1, 1, retain=True, dup=True),
        message("t/2", "m", 1, 2, retain=True),
        message("t/3", "m", 1, 3, retain=True),
    ]
