"""MQTT 3.1.2.5, 3.1.3.2 and 3.14.4: when a will is published, when not, and as what."""

from __future__ import annotations

from siltstone.mqtt.packets import Disconnect, Packet, PingReq, Publish, Will
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.conformance.versions import both_versions, kept
from tests.support.broker_core import V3, Core, Wire, message

WILL = Will(topic=b"will", payload=b"gone")
SEEN = message("will", "gone")


def watched(core: Core) -> Wire:
    """Return a client that sees every will."""
    watcher = core.connect("watcher")
    watcher.subscribe("will")
    return watcher


def delayed(seconds: int) -> Will:
    return Will(topic=b"will", payload=b"gone", properties=Properties(will_delay_interval=seconds))


@both_versions
def test_mqtt_3_1_2_7_a_will_is_kept_with_the_session_until_it_is_needed(version: Version) -> None:
    core = Core()
    watcher = watched(core)
    client = core.connect("c", version=version, will=WILL)
    client.exchange(PingReq())
    core.advance(1000)
    assert watcher.take() == []
    client.drop()
    assert watcher.take() == [SEEN]


@both_versions
def test_mqtt_3_1_2_8_a_will_is_published_when_the_connection_is_lost(version: Version) -> None:
    core = Core()
    watcher = watched(core)
    core.connect("c", version=version, will=WILL).drop()
    assert watcher.take() == [SEEN]


@both_versions
def test_mqtt_3_1_2_8_a_will_is_published_when_the_keep_alive_has_passed(version: Version) -> None:
    core = Core()
    watcher = watched(core)
    core.connect("c", version=version, will=WILL, keep_alive_seconds=10)
    core.advance(14)
    assert watcher.take() == []
    core.advance(2)
    assert watcher.take() == [SEEN]


@both_versions
def test_mqtt_3_1_2_8_a_will_is_published_when_the_client_breaks_the_rules(
    version: Version,
) -> None:
    core = Core()
    watcher = watched(core)
    client = core.connect("c", version=version, will=WILL)
    client.send_bytes(b"\x00\x00")
    assert (watcher.take(), client.is_closed) == ([SEEN], True)


@both_versions
def test_mqtt_3_1_2_8_a_will_is_published_when_another_takes_the_client_id(
    version: Version,
) -> None:
    core = Core()
    watcher = watched(core)
    core.connect("c", version=version, will=WILL)
    core.connect("c", version=version)
    assert watcher.take() == [SEEN]


def test_mqtt_3_1_2_8_a_will_is_published_on_the_wish_of_the_client() -> None:
    core = Core()
    watcher = watched(core)
    client = core.connect("c", will=WILL)
    client.send(Disconnect(reason=Reason.DISCONNECT_WITH_WILL_MESSAGE))
    assert watcher.take() == [SEEN]


def test_mqtt_3_1_2_8_a_will_waits_for_its_delay_and_is_never_early() -> None:
    core = Core()
    watcher = watched(core)
    core.connect("c", will=delayed(30), **kept(seconds=60)).drop()
    core.advance(29.9)
    assert watcher.take() == []
    core.advance(0.2)
    assert watcher.take() == [SEEN]


def test_mqtt_3_1_2_8_the_end_of_the_session_cuts_the_delay() -> None:
    core = Core()
    watcher = watched(core)
    core.connect("c", will=delayed(30), **kept(seconds=10)).drop()
    core.advance(9.9)
    assert watcher.take() == []
    core.advance(0.2)
    assert watcher.take() == [SEEN]


def test_mqtt_3_1_2_8_a_session_that_ends_with_its_connection_has_no_delay() -> None:
    core = Core()
    watcher = watched(core)
    core.connect("c", will=delayed(30)).drop()
    assert watcher.take() == [SEEN]


def test_mqtt_3_1_2_8_a_clean_start_ends_the_session_and_so_the_delay() -> None:
    core = Core()
    watcher = watched(core)
    core.connect("c", will=delayed(30), **kept(seconds=60)).drop()
    core.connect("c", clean_start=True)
    assert watcher.take() == [SEEN]


@both_versions
def test_mqtt_3_1_2_10_a_published_will_is_forgotten(version: Version) -> None:
    core = Core()
    watcher = watched(core)
    core.connect("c", version=version, will=WILL, **kept(version)).drop()
    assert watcher.take() == [SEEN]
    core.connect("c", version=version, **kept(version)).drop()
    core.advance(1_000_000)
    assert watcher.take() == []


@both_versions
def test_mqtt_3_1_2_10_disconnect_takes_the_will_with_it(version: Version) -> None:
    core = Core()
    watcher = watched(core)
    client = core.connect("c", version=version, will=WILL)
    client.send(Disconnect())
    client.client.lost()
    core.advance(1_000_000)
    assert (watcher.take(), client.is_closed) == ([], True)


@both_versions
def test_mqtt_3_14_4_3_after_disconnect_the_will_is_not_published(version: Version) -> None:
    core = Core()
    watcher = watched(core)
    core.connect("c", version=version, will=WILL).send(Disconnect())
    assert (watcher.take(), len(core.broker.wills)) == ([], 0)


@both_versions
def test_mqtt311_3_1_2_12_without_a_will_nothing_is_published(version: Version) -> None:
    core = Core()
    watcher = core.connect("watcher")
    watcher.subscribe("#")
    core.connect("c", version=version).drop()
    assert watcher.take() == []


@both_versions
def test_mqtt_3_1_2_14_a_will_is_not_retained_unless_it_says_so(version: Version) -> None:
    core = Core()
    core.connect("c", version=version, will=WILL).drop()
    assert watched(core).take() == []


@both_versions
def test_mqtt_3_1_2_15_a_will_is_retained_if_it_says_so(version: Version) -> None:
    core = Core()
    core.connect("c", version=version, will=Will(topic=b"will", payload=b"x", retain=True)).drop()
    late = core.connect("late")
    assert late.subscribe("will") == [message("will", "x", retain=True)]


def test_mqtt_3_1_3_9_who_comes_back_within_the_delay_has_no_will_published() -> None:
    core = Core()
    watcher = watched(core)
    core.connect("c", will=delayed(30), **kept()).drop()
    core.advance(29)
    core.connect("c", **kept())
    core.advance(1_000_000)
    assert watcher.take() == []


def test_mqtt_3_1_3_10_the_properties_of_a_will_are_those_of_the_message() -> None:
    core = Core()
    watcher = watched(core)
    properties = Properties(
        will_delay_interval=0,
        payload_format_indicator=1,
        message_expiry_interval=100,
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"\x01",
        user_properties=(("b", "1"), ("a", "2"), ("b", "0")),
    )
    core.connect("c", will=Will(topic=b"will", payload=b"gone", properties=properties)).drop()
    expected: list[Packet] = [
        Publish(
            topic=b"will",
            payload=b"gone",
            properties=Properties(
                payload_format_indicator=1,
                message_expiry_interval=100,
                content_type="text/plain",
                response_topic="answers",
                correlation_data=b"\x01",
                user_properties=(("b", "1"), ("a", "2"), ("b", "0")),
            ),
        )
    ]
    assert watcher.take() == expected


def test_mqtt311_3_1_2_8_a_will_of_a_kept_session_is_published_at_once() -> None:
    core = Core()
    watcher = watched(core)
    core.connect("c", version=V3, will=WILL, clean_start=False).drop()
    assert watcher.take() == [SEEN]
