"""MQTT 3.1.2.4, 3.1.2.11, 4.1 and 4.4: what a session holds, how long, and what is sent again."""

from __future__ import annotations

from siltstone.mqtt.packets import (
    Disconnect,
    PubAck,
    PubComp,
    PubRec,
    PubRel,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.conformance.versions import both_versions, kept
from tests.support.broker_core import V3, V5, Core, Wire, message


def is_present(wire: Wire) -> bool:
    assert wire.accepted is not None
    return wire.accepted.session_present


@both_versions
def test_mqtt_3_1_2_4_a_clean_start_forgets_the_session_before(version: Version) -> None:
    core = Core()
    publisher = core.connect("p")
    before = core.connect("c", version=version, **kept(version))
    before.subscribe("t", qos=1)
    publisher.publish("t", "in flight", 1, 1)
    before.drop()
    publisher.publish("t", "waits", 1, 2)
    wire = core.connect("c", version=version, **kept(version) | {"clean_start": True})
    publisher.publish("t", "new", 1, 3)
    assert (is_present(wire), wire.take()) == (False, [])


@both_versions
def test_mqtt_3_1_2_5_a_session_goes_on_where_it_was(version: Version) -> None:
    core = Core()
    publisher = core.connect("p")
    before = core.connect("c", version=version, **kept(version))
    before.subscribe("t", qos=1)
    before.drop()
    publisher.publish("t", "while away", 1, 1)
    wire = core.connect("c", version=version, **kept(version))
    publisher.publish("t", "when back", 1, 2)
    assert is_present(wire)
    assert wire.take() == [message("t", "while away", 1, 1), message("t", "when back", 1, 2)]


@both_versions
def test_mqtt_3_1_2_6_without_a_session_a_new_one_begins(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version, **kept(version))
    wire.subscribe("t", qos=1)
    wire.drop()
    assert is_present(core.connect("c", version=version, **kept(version)))


def test_mqtt_3_1_2_23_the_session_is_kept_for_its_interval() -> None:
    core = Core()
    core.connect("c", **kept(V5, 100)).drop()
    core.advance(99.9)
    assert is_present(core.connect("c", **kept(V5, 100)))


def test_mqtt_3_1_2_23_the_interval_begins_when_the_connection_ends() -> None:
    core = Core()
    wire = core.connect("c", **kept(V5, 100))
    core.advance(1000)
    wire.drop()
    core.advance(99.9)
    assert is_present(core.connect("c", **kept(V5, 100)))


def test_an_interval_beyond_the_limit_is_cut_and_told() -> None:
    core = Core(session_expiry_max=50)
    wire = core.connect("c", **kept(V5, 100))
    assert wire.accepted is not None
    assert wire.accepted.properties.session_expiry_interval == 50
    wire.drop()
    core.advance(50.1)
    assert core.broker.registry.sessions == {}


def test_disconnect_may_change_the_interval() -> None:
    core = Core()
    wire = core.connect("c", **kept(V5, 100))
    wire.send(Disconnect(properties=Properties(session_expiry_interval=10)))
    core.advance(10.1)
    assert core.broker.registry.sessions == {}


def test_disconnect_may_not_keep_a_session_that_was_not_to_be_kept() -> None:
    wire = Core().connect("c")
    (told,) = wire.exchange(Disconnect(properties=Properties(session_expiry_interval=10)))
    assert isinstance(told, Disconnect)
    assert (told.reason, wire.is_closed) == (Reason.PROTOCOL_ERROR, True)


@both_versions
def test_mqtt_4_1_0_1_a_session_lasts_at_least_as_long_as_its_connection(version: Version) -> None:
    core = Core(session_expiry_max=1)
    wire = core.connect("c", version=version, **kept(version, 1))
    wire.subscribe("t", qos=1)
    core.advance(1_000_000)
    core.connect("p").publish("t", "still there", 1, 1)
    assert wire.take() == [message("t", "still there", 1, 1)]


def test_mqtt_4_1_0_2_a_session_is_discarded_when_its_interval_has_passed() -> None:
    core = Core()
    wire = core.connect("c", **kept(V5, 100))
    wire.subscribe("t", qos=1)
    wire.drop()
    core.advance(100.1)
    again = core.connect("c", **kept(V5, 100))
    core.connect("p").publish("t", "nobody", 1, 1)
    assert (is_present(again), again.take()) == (False, [])


def test_mqtt_4_1_0_2_without_an_interval_it_is_discarded_with_its_connection() -> None:
    core = Core()
    core.connect("c", clean_start=False).drop()
    assert core.broker.registry.sessions == {}


def test_mqtt311_3_1_2_4_a_session_that_is_not_clean_is_kept() -> None:
    core = Core()
    core.connect("c", version=V3, **kept(V3)).drop()
    core.advance(86_400)
    assert is_present(core.connect("c", version=V3, **kept(V3)))


def test_mqtt311_3_1_2_5_messages_of_qos_1_and_2_are_kept_for_who_is_away() -> None:
    core = Core()
    wire = core.connect("c", version=V3, **kept(V3))
    wire.subscribe("t", qos=2)
    wire.drop()
    publisher = core.connect("p", version=V3)
    for qos in (0, 1, 2):
        publisher.publish("t", f"qos {qos}", qos, qos)
    assert core.connect("c", version=V3, **kept(V3)).take() == [
        message("t", "qos 1", 1, 1),
        message("t", "qos 2", 2, 2),
    ]


def test_mqtt311_3_1_2_6_a_clean_session_ends_with_its_connection() -> None:
    core = Core()
    core.connect("c", version=V3).subscribe("t", qos=1)
    core.connect("c", version=V3).drop()
    assert core.broker.registry.sessions == {}
    assert not is_present(core.connect("c", version=V3, **kept(V3)))


@both_versions
def test_mqtt311_3_1_2_7_retained_messages_outlive_the_session(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    wire.publish("t", "stays", retain=True)
    wire.send(Disconnect())
    assert core.connect("s").subscribe("t") == [message("t", "stays", retain=True)]


@both_versions
def test_mqtt_4_4_0_1_what_is_not_acknowledged_is_sent_again_under_its_packet_id(
    version: Version,
) -> None:
    core = Core()
    publisher = core.connect("p")
    wire = core.connect("c", version=version, **kept(version))
    wire.subscribe("t", qos=2)
    for number, qos in enumerate((1, 2, 2, 1), 1):
        publisher.publish("t", f"{number}", qos, number)
    assert len(wire.take()) == 4
    assert wire.exchange(PubAck(packet_id=1), PubRec(packet_id=3)) == [PubRel(packet_id=3)]
    wire.drop()
    again = core.connect("c", version=version, **kept(version))
    assert again.take() == [
        PubRel(packet_id=3),
        message("t", "2", 2, 2, dup=True),
        message("t", "4", 1, 4, dup=True),
    ]


@both_versions
def test_mqtt_4_4_0_1_nothing_is_sent_again_while_the_connection_lasts(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version, **kept(version))
    wire.subscribe("t", qos=2)
    core.connect("p").publish("t", "once", 1, 1)
    assert wire.take() == [message("t", "once", 1, 1)]
    core.advance(1_000_000)
    assert wire.take() == []


def test_mqtt_4_4_0_2_what_the_receiver_refused_is_not_sent_again() -> None:
    core = Core()
    wire = core.connect("c", **kept(V5))
    wire.subscribe("t", qos=2)
    publisher = core.connect("p")
    publisher.publish("t", "1", 1, 1)
    publisher.publish("t", "2", 2, 2)
    assert len(wire.take()) == 2
    refused = Reason.QUOTA_EXCEEDED
    assert (
        wire.exchange(PubAck(packet_id=1, reason=refused), PubRec(packet_id=2, reason=refused))
        == []
    )
    wire.drop()
    assert core.connect("c", **kept(V5)).take() == []


@both_versions
def test_mqtt_3_1_4_4_the_session_of_a_client_that_is_taken_over_goes_on(version: Version) -> None:
    core = Core()
    first = core.connect("c", version=version, **kept(version))
    first.subscribe("t", qos=2)
    core.connect("p").publish("t", "m", 2, 1)
    assert first.take() == [message("t", "m", 2, 1)]
    second = core.connect("c", version=version, **kept(version))
    assert (is_present(second), second.take()) == (True, [message("t", "m", 2, 1, dup=True)])
    assert second.exchange(PubRec(packet_id=1)) == [PubRel(packet_id=1)]
    assert second.exchange(PubComp(packet_id=1)) == []


@both_versions
def test_mqtt_4_5_0_1_a_message_is_kept_for_every_session_that_wants_it(version: Version) -> None:
    core = Core()
    for name in ("one", "two"):
        wire = core.connect(name, version=version, **kept(version))
        wire.subscribe("t/#", qos=1)
        wire.drop()
    core.connect("other", version=version, **kept(version)).subscribe("u", qos=1)
    core.connect("p").publish("t/x", "m", 1, 1)
    found = {
        name: core.connect(name, version=version, **kept(version)).take()
        for name in ("one", "two", "other")
    }
    assert found == {
        "one": [message("t/x", "m", 1, 1)],
        "two": [message("t/x", "m", 1, 1)],
        "other": [],
    }
