"""MQTT 3.3.4 to 3.7, 4.3, 4.6 and 4.9: messages to and from clients, acknowledged in order."""

from __future__ import annotations

from typing import Any

import pytest

from siltstone.broker.settings.storage import StoreRule
from siltstone.mqtt.packets import (
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
from siltstone.mqtt.publish import PUBACK
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.session.sending.delivery import NEVER
from siltstone.topic.grammar import TopicFilter
from tests.conformance.versions import both_versions, kept
from tests.support.broker_core import V3, V5, Core, Wire, message, over_quota


def subscribed(core: Core, *, version: Version = V5, qos: int = 2, **fields: Any) -> Wire:
    wire = core.connect("s", version=version, **fields)
    wire.subscribe("t", qos=qos)
    return wire


def ids_of(packets: list[Packet]) -> list[int]:
    """Return the packet ids of messages, all of which must be messages."""
    ids = []
    for packet in packets:
        assert isinstance(packet, Publish), packet
        ids.append(packet.packet_id)
    return ids


# From a client.


@both_versions
def test_mqtt_2_2_1_5_an_acknowledgement_has_the_packet_id_of_its_message(version: Version) -> None:
    wire = Core().connect("c", version=version)
    assert wire.publish("t", "1", 1, 65_535) == [PubAck(packet_id=65_535)]
    assert wire.publish("t", "2", 2, 1) == [PubRec(packet_id=1)]
    assert wire.exchange(PubRel(packet_id=1)) == [PubComp(packet_id=1)]


@both_versions
def test_mqtt_4_3_2_4_puback_comes_when_the_message_is_kept_and_not_before(
    version: Version,
) -> None:
    core = Core(automatic=False)
    wire = core.connect("c", version=version)
    assert wire.publish("t", "m", 1, 1) == []
    core.settle()
    assert (wire.take(), core.database.rows) == ([PubAck(packet_id=1)], [(b"t", b"m")])


@both_versions
def test_mqtt_4_3_2_5_after_puback_the_packet_id_is_of_a_new_message(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    for payload, dup in (("1", False), ("2", False), ("2", True)):
        assert wire.publish("t", payload, 1, 7, dup=dup) == [PubAck(packet_id=7)]
    assert core.database.rows == [(b"t", b"1"), (b"t", b"2"), (b"t", b"2")]


@both_versions
def test_mqtt_4_3_3_8_pubrec_comes_when_the_message_is_kept_and_not_before(
    version: Version,
) -> None:
    core = Core(automatic=False)
    wire = core.connect("c", version=version)
    assert wire.publish("t", "m", 2, 1) == []
    core.settle()
    assert (wire.take(), core.database.rows) == ([PubRec(packet_id=1)], [(b"t", b"m")])


def test_mqtt_4_3_3_9_after_a_refusal_the_packet_id_is_of_a_new_message() -> None:
    core = Core(automatic=False)
    wire = core.connect("c")
    wire.publish("t", "refused", 2, 1)
    core.settle(over_quota())
    assert wire.take() == [PubRec(packet_id=1, reason=Reason.QUOTA_EXCEEDED)]
    wire.publish("t", "kept", 2, 1)
    core.settle()
    assert (wire.take(), core.database.rows) == ([PubRec(packet_id=1)], [(b"t", b"kept")])


def test_what_a_closed_client_of_3_1_1_sends_again_is_new() -> None:
    core = Core(refused_publish="close")
    wire = core.connect("c", version=V3, clean_start=False)
    # One message of the piece may not be published: the client is closed without acknowledgement.
    wire.send(message("t", "m", 2, 1), message("$not/allowed", "n", 2, 2))
    core.advance(core.broker.limits.refusal_delay)
    assert (wire.take(), wire.is_closed, core.database.rows) == ([], True, [])
    again = core.connect("c", version=V3, clean_start=False)
    assert again.publish("t", "m", 2, 1, dup=True) == [PubRec(packet_id=1)]
    assert core.database.rows == [(b"t", b"m")]


@both_versions
def test_mqtt_4_3_3_10_until_pubrel_a_message_is_acknowledged_again_and_delivered_once(
    version: Version,
) -> None:
    core = Core()
    subscriber = subscribed(core)
    wire = core.connect("c", version=version, **kept(version))
    assert wire.publish("t", "m", 2, 5) == [PubRec(packet_id=5)]
    assert wire.publish("t", "m", 2, 5, dup=True) == [PubRec(packet_id=5)]
    wire.drop()
    again = core.connect("c", version=version, **kept(version))
    assert again.publish("t", "m", 2, 5, dup=True) == [PubRec(packet_id=5)]
    assert subscriber.take() == [message("t", "m", 2, 1)]
    assert core.database.rows == [(b"t", b"m")]


@both_versions
def test_mqtt_4_3_3_11_pubrel_is_answered_with_pubcomp(version: Version) -> None:
    wire = Core().connect("c", version=version)
    wire.publish("t", "m", 2, 5)
    assert wire.exchange(PubRel(packet_id=5)) == [PubComp(packet_id=5)]
    # Again, for the client may not have seen the answer.
    found = Reason.PACKET_IDENTIFIER_NOT_FOUND if version is V5 else Reason.SUCCESS
    assert wire.exchange(PubRel(packet_id=5)) == [PubComp(packet_id=5, reason=found)]


@both_versions
def test_mqtt_4_3_3_12_after_pubcomp_the_packet_id_is_of_a_new_message(version: Version) -> None:
    core = Core()
    wire = core.connect("c", version=version)
    for _ in range(2):
        assert wire.publish("t", "m", 2, 5) == [PubRec(packet_id=5)]
        assert wire.exchange(PubRel(packet_id=5)) == [PubComp(packet_id=5)]
    assert core.database.rows == [(b"t", b"m")] * 2


def test_mqtt_4_3_3_13_an_expired_message_is_acknowledged_to_its_end() -> None:
    core = Core()
    wire = core.connect("c")
    assert wire.publish("t", "m", 2, 5, message_expiry_interval=1) == [PubRec(packet_id=5)]
    core.advance(100)
    assert wire.exchange(PubRel(packet_id=5)) == [PubComp(packet_id=5)]


@both_versions
def test_acknowledgements_leave_in_the_order_of_the_messages(version: Version) -> None:
    core = Core(automatic=False, rules=[StoreRule(filter="w", durability="written")])
    wire = core.connect("c", version=version)
    wire.send(message("t", "1", 1, 3), message("t", "2", 2, 1), message("t", "3", 1, 2))
    core.run()
    wire.send(message("w", "4", 1, 9))
    core.run()
    # The later batch is on disk first.
    core.database.settle(index=1)
    assert wire.take() == []
    core.settle()
    assert wire.take() == [
        PubAck(packet_id=3),
        PubRec(packet_id=1),
        PubAck(packet_id=2),
        PubAck(packet_id=9),
    ]


def test_mqtt_3_3_4_7_more_than_the_receive_maximum_ends_the_connection() -> None:
    core = Core(automatic=False, receive_max=2)
    wire = core.connect("c")
    assert wire.accepted is not None
    assert wire.accepted.properties.receive_maximum == 2
    assert wire.exchange(message("t", "1", 1, 1), message("t", "2", 2, 2)) == []
    assert wire.publish("t", "3", 1, 3) == [Disconnect(reason=Reason.RECEIVE_MAXIMUM_EXCEEDED)]
    assert wire.is_closed


def test_a_message_of_qos_2_counts_until_pubcomp_and_then_no_more() -> None:
    wire = Core(receive_max=1).connect("c")
    for packet_id in (1, 2, 3):
        assert wire.publish("t", "m", 2, packet_id) == [PubRec(packet_id=packet_id)]
        assert wire.exchange(PubRel(packet_id=packet_id)) == [PubComp(packet_id=packet_id)]
    assert wire.publish("t", "m", 2, 4) == [PubRec(packet_id=4)]
    assert wire.publish("t", "m", 2, 5) == [Disconnect(reason=Reason.RECEIVE_MAXIMUM_EXCEEDED)]


def test_mqtt311_3_3_5_2_a_message_that_may_not_be_published_is_acknowledged_and_dropped() -> None:
    core = Core()
    wire = core.connect("c", version=V3)
    assert wire.publish("$not/allowed", "m", 1, 1) == [PubAck(packet_id=1)]
    assert wire.publish("$not/allowed", "m", 2, 2) == [PubRec(packet_id=2)]
    assert wire.publish("$not/allowed", "m", 2, 2, dup=True) == [PubRec(packet_id=2)]
    assert wire.exchange(PubRel(packet_id=2)) == [PubComp(packet_id=2)]
    assert (wire.is_closed, core.database.rows) == (False, [])


def test_mqtt311_3_3_5_2_it_closes_the_connection_where_that_is_set() -> None:
    core = Core(refused_publish="close")
    for qos in (1, 2):
        wire = core.connect("c", version=V3)
        assert wire.publish("$not/allowed", "m", qos, 1) == []
        core.advance(core.broker.limits.refusal_delay)
        assert (wire.take(), wire.is_closed) == ([], True)
    assert core.database.rows == []


@pytest.mark.parametrize(("qos", "kind"), [(1, PubAck), (2, PubRec)])
def test_mqtt_3_4_2_1_and_3_5_2_1_a_refusal_has_its_reason(
    qos: int, kind: type[PubAck | PubRec]
) -> None:
    core = Core(automatic=False, retained_messages_max=0)
    wire = core.connect("c")
    assert wire.publish("$x", "m", qos, 1) == [kind(packet_id=1, reason=Reason.NOT_AUTHORIZED)]
    assert wire.publish("t", "m", qos, 2, retain=True) == [
        kind(packet_id=2, reason=Reason.QUOTA_EXCEEDED)
    ]
    wire.publish("t", "m", qos, 3)
    core.settle(OSError("the disk is gone"))
    assert wire.take() == [kind(packet_id=3, reason=Reason.UNSPECIFIED_ERROR)]
    assert not wire.is_closed


def test_mqtt_3_6_2_1_and_3_7_2_1_an_unknown_packet_id_has_its_reason() -> None:
    wire = Core().connect("c")
    not_found = Reason.PACKET_IDENTIFIER_NOT_FOUND
    assert wire.exchange(PubRec(packet_id=9)) == [PubRel(packet_id=9, reason=not_found)]
    assert wire.exchange(PubRel(packet_id=9)) == [PubComp(packet_id=9, reason=not_found)]
    assert wire.exchange(PubAck(packet_id=9), PubComp(packet_id=9)) == []
    assert not wire.is_closed


@pytest.mark.parametrize("wanted", [0, 1])
def test_mqtt_3_1_2_29_acknowledgements_have_neither_reason_string_nor_user_properties(
    wanted: int,
) -> None:
    core = Core(subscriptions_max=1)
    wire = core.connect("c", request_problem_information=wanted, maximum_packet_size=100)
    filters = tuple(TopicFilter.parse(text) for text in ("t", "u"))
    answers = wire.exchange(
        message("$x", "m", 1, 1),
        message("$x", "m", 2, 2),
        PubRec(packet_id=3),
        PubRel(packet_id=4),
        Subscribe(packet_id=5, subscriptions=tuple(Subscription(filter=f) for f in filters)),
        Unsubscribe(packet_id=6, filters=filters),
    )
    assert answers == [
        PubAck(packet_id=1, reason=Reason.NOT_AUTHORIZED),
        PubRec(packet_id=2, reason=Reason.NOT_AUTHORIZED),
        PubRel(packet_id=3, reason=Reason.PACKET_IDENTIFIER_NOT_FOUND),
        PubComp(packet_id=4, reason=Reason.PACKET_IDENTIFIER_NOT_FOUND),
        SubAck(packet_id=5, reasons=(Reason.SUCCESS, Reason.QUOTA_EXCEEDED)),
        UnsubAck(packet_id=6, reasons=(Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED)),
    ]


# To a client.


@both_versions
def test_mqtt_2_2_1_2_a_message_of_qos_0_has_no_packet_id(version: Version) -> None:
    core = Core()
    subscriber = subscribed(core, version=version)
    core.connect("p").publish("t", "m", 0)
    assert subscriber.take() == [message("t", "m", 0, 0)]


def test_mqtt_2_2_1_4_a_new_message_has_a_packet_id_that_is_free_and_not_0() -> None:
    core = Core(inflight_max=3)
    subscriber = subscribed(core)
    outbox = core.broker.registry.sessions["s"].outbox
    outbox.offer(b"t", b"stays under way", 1, b"", NEVER)
    for packet_id in range(2, 65_536):
        outbox.offer(b"t", b"", 1, b"", NEVER)
        outbox.acknowledge(PUBACK, [packet_id], 0.0)
    assert outbox.take().count(b"\x32") >= 65_535
    outbox.offer(b"t", b"around", 1, b"", NEVER)
    assert subscriber.take() == [message("t", "around", 1, 2)]


@both_versions
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
def test_mqtt_3_8_4_8_a_message_has_the_lower_qos_of_its_own_and_the_granted(
    version: Version, published: int, granted: int
) -> None:
    core = Core()
    subscriber = subscribed(core, version=version, qos=granted)
    core.connect("p").publish("t", "m", published, published)
    qos = min(published, granted)
    assert subscriber.take() == [message("t", "m", qos, min(qos, 1))]


@both_versions
def test_mqtt_4_3_1_1_qos_0_is_sent_once_and_forgotten(version: Version) -> None:
    core = Core()
    wire = core.connect("s", version=version, **kept(version))
    wire.subscribe("t")
    core.connect("p").publish("t", "m", 0)
    assert wire.take() == [message("t", "m")]
    wire.drop()
    assert core.connect("s", version=version, **kept(version)).take() == []


@both_versions
def test_mqtt_4_3_2_1_2_3_qos_1_is_unacknowledged_until_puback(version: Version) -> None:
    core = Core(inflight_max=1)
    subscriber = subscribed(core, version=version)
    publisher = core.connect("p")
    for number in (1, 2):
        publisher.publish("t", f"{number}", 1, number)
    assert subscriber.take() == [message("t", "1", 1, 1)]
    # An acknowledgement of another packet id is none of this message.
    assert subscriber.exchange(PubAck(packet_id=2), PubComp(packet_id=2)) == []
    assert subscriber.exchange(PubAck(packet_id=1)) == [message("t", "2", 1, 2)]


@both_versions
def test_mqtt_4_3_3_1_to_5_qos_2_takes_four_packets(version: Version) -> None:
    core = Core(inflight_max=1)
    subscriber = subscribed(core, version=version)
    publisher = core.connect("p")
    for number in (1, 2):
        publisher.publish("t", f"{number}", 2, number)
    assert subscriber.take() == [message("t", "1", 2, 1)]
    assert subscriber.exchange(PubRec(packet_id=1)) == [PubRel(packet_id=1)]
    # PUBREL is unacknowledged until PUBCOMP, and so the message is.
    assert subscriber.take() == []
    assert subscriber.exchange(PubComp(packet_id=1)) == [message("t", "2", 2, 2)]


@both_versions
def test_mqtt_4_3_3_6_after_pubrel_the_message_is_not_sent_again(version: Version) -> None:
    core = Core()
    wire = core.connect("s", version=version, **kept(version))
    wire.subscribe("t")
    core.connect("p").publish("t", "m", 2, 1)
    wire.take()
    assert wire.exchange(PubRec(packet_id=1)) == [PubRel(packet_id=1)]
    for _ in range(2):
        wire.drop()
        wire = core.connect("s", version=version, **kept(version))
        assert wire.take() == [PubRel(packet_id=1)]
    assert wire.exchange(PubComp(packet_id=1)) == []
    wire.drop()
    assert core.connect("s", version=version, **kept(version)).take() == []


def test_mqtt_4_3_3_7_a_message_that_was_sent_does_not_expire() -> None:
    core = Core()
    wire = core.connect("s", **kept())
    wire.subscribe("t")
    core.connect("p").publish("t", "m", 2, 1, message_expiry_interval=10)
    assert len(wire.take()) == 1
    wire.drop()
    core.advance(100)
    (again,) = core.connect("s", **kept()).take()
    assert isinstance(again, Publish)
    assert (again.payload, again.packet_id, again.dup) == (b"m", 1, True)


def test_mqtt_3_3_4_9_and_4_9_0_2_no_more_than_the_receive_maximum_is_under_way() -> None:
    core = Core()
    subscriber = subscribed(core, receive_maximum=3)
    publisher = core.connect("p")
    publisher.send(*(message("t", f"{n}", 1 + n % 2, n) for n in range(1, 8)))
    publisher.take()
    assert ids_of(subscriber.take()) == [1, 2, 3]
    # PUBREC does not end a message.
    assert subscriber.exchange(PubRec(packet_id=1)) == [PubRel(packet_id=1)]
    assert ids_of(subscriber.exchange(PubAck(packet_id=2))) == [4]
    assert ids_of(subscriber.exchange(PubComp(packet_id=1))) == [5]
    refused = PubRec(packet_id=3, reason=Reason.QUOTA_EXCEEDED)
    assert ids_of(subscriber.exchange(refused)) == [6]
    assert ids_of(subscriber.exchange(PubAck(packet_id=4))) == [7]


@pytest.mark.parametrize(
    ("fields", "expected"), [({"receive_maximum": 1}, 1), ({"receive_maximum": 9}, 4), ({}, 4)]
)
def test_mqtt_4_9_0_1_the_quota_is_at_least_1_and_at_most_the_receive_maximum(
    fields: dict[str, Any], expected: int
) -> None:
    core = Core(inflight_max=4)
    subscriber = subscribed(core, **fields)
    publisher = core.connect("p")
    publisher.send(*(message("t", "m", 1, n) for n in range(1, 11)))
    publisher.take()
    assert len(subscriber.take()) == expected


def test_mqtt_3_3_4_10_and_4_9_0_3_other_packets_are_answered_whatever_the_quota() -> None:
    core = Core()
    wire = core.connect("s", receive_maximum=1)
    wire.subscribe("t")
    publisher = core.connect("p")
    for number in (1, 2):
        publisher.publish("t", f"{number}", 1, number)
    assert ids_of(wire.take()) == [1]
    assert wire.exchange(
        PingReq(),
        Unsubscribe(packet_id=5, filters=(TopicFilter.parse("none"),)),
        message("u", "m", 1, 6),
        message("u", "m", 2, 7),
    ) == [
        PingResp(),
        UnsubAck(packet_id=5, reasons=(Reason.NO_SUBSCRIPTION_EXISTED,)),
        PubAck(packet_id=6),
        PubRec(packet_id=7),
    ]
    assert wire.exchange(PubRel(packet_id=7)) == [PubComp(packet_id=7)]


def test_mqtt_3_3_4_10_pubrel_of_the_connection_before_does_not_wait_for_the_quota() -> None:
    core = Core()
    wire = core.connect("s", **kept())
    wire.subscribe("t")
    publisher = core.connect("p")
    publisher.publish("t", "1", 1, 1)
    publisher.publish("t", "2", 2, 2)
    wire.take()
    assert wire.exchange(PubRec(packet_id=2)) == [PubRel(packet_id=2)]
    wire.drop()
    again = core.connect("s", receive_maximum=1, **kept())
    assert PubRel(packet_id=2) in again.take()


def test_mqtt_3_1_2_24_and_25_what_is_too_large_for_the_client_is_left_out() -> None:
    core = Core()
    subscriber = subscribed(core, maximum_packet_size=100)
    publisher = core.connect("p")
    fits, too_large = "x" * (100 - 8), "x" * (100 - 7)
    for number, payload in enumerate((too_large, fits, too_large, "last"), 1):
        publisher.publish("t", payload, 1, number)
    # Nothing is under way for what was left out.
    assert subscriber.take() == [message("t", fits, 1, 1), message("t", "last", 1, 2)]
    assert subscriber.exchange(PubAck(packet_id=1), PubAck(packet_id=2)) == []


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_mqtt_3_1_2_25_what_fits_without_an_alias_is_sent_without_one(qos: int) -> None:
    core = Core()
    subscriber = subscribed(core, maximum_packet_size=100, topic_alias_maximum=5)
    fits = "x" * (100 - 6 - (2 if qos else 0))
    core.connect("p").publish("t", fits, qos, qos)
    (seen,) = subscriber.take()
    assert isinstance(seen, Publish)
    assert seen.payload == fits.encode()


def test_mqtt_3_1_2_24_an_answer_that_the_client_cannot_take_is_not_sent() -> None:
    core = Core()
    wire = core.connect("c", maximum_packet_size=60)
    wanted = tuple(Subscription(filter=TopicFilter.parse(f"t/{n}")) for n in range(60))
    answers = wire.exchange(Subscribe(packet_id=1, subscriptions=wanted))
    assert answers == [Disconnect(reason=Reason.PACKET_TOO_LARGE)]
    assert wire.is_closed


@both_versions
def test_mqtt_3_3_4_2_overlapping_subscriptions_give_one_message_with_the_highest_qos(
    version: Version,
) -> None:
    core = Core()
    wire = core.connect("s", version=version)
    wire.subscribe("t/#", qos=0)
    wire.subscribe("t/+", qos=2)
    wire.subscribe("+/x", qos=1)
    core.connect("p").publish("t/x", "m", 2, 1)
    assert wire.take() == [message("t/x", "m", 2, 1)]


def test_mqtt_3_3_4_3_4_5_one_message_has_the_identifiers_of_all_that_match() -> None:
    core = Core()
    wire = core.connect("s")
    wire.subscribe("t/#", identifier=1)
    wire.subscribe("t/+", identifier=268_435_455)
    wire.subscribe("t/x")
    wire.subscribe("u", identifier=3)
    core.connect("p").publish("t/x", "m")
    (seen,) = wire.take()
    assert isinstance(seen, Publish)
    assert sorted(seen.properties.subscription_identifiers) == [1, 268_435_455]


def test_mqtt_3_3_4_3_a_retained_message_has_the_identifier_too() -> None:
    core = Core()
    core.connect("p").publish("t", "m", retain=True)
    assert core.connect("s").subscribe("t", identifier=5) == [
        Publish(
            topic=b"t",
            payload=b"m",
            retain=True,
            properties=Properties(subscription_identifiers=(5,)),
        )
    ]


@both_versions
def test_mqtt_4_6_0_5_and_6_messages_come_in_the_order_of_their_publisher(version: Version) -> None:
    core = Core(inflight_max=3)
    subscriber = subscribed(core, version=version)
    publisher = core.connect("p", version=version)
    publisher.send(*(message("t", f"{n}", 1, n) for n in range(1, 11)))
    publisher.take()
    seen: list[bytes] = []
    while taken := subscriber.take():
        for packet in taken:
            assert isinstance(packet, Publish)
            seen.append(packet.payload)
            subscriber.send(PubAck(packet_id=packet.packet_id))
    assert seen == [f"{n}".encode() for n in range(1, 11)]


@both_versions
def test_mqtt311_4_6_0_1_what_is_sent_again_is_in_the_order_of_the_first_time(
    version: Version,
) -> None:
    core = Core()
    wire = core.connect("s", version=version, **kept(version))
    wire.subscribe("t")
    publisher = core.connect("p")
    for number in range(1, 7):
        publisher.publish("t", f"{number}", 1 + number % 2, number)
    wire.take()
    wire.exchange(PubAck(packet_id=2), PubRec(packet_id=3), PubComp(packet_id=3))
    wire.drop()
    publisher.publish("t", "7", 1, 7)
    again = core.connect("s", version=version, **kept(version)).take()
    assert [packet.payload for packet in again if isinstance(packet, Publish)] == [
        b"1",
        b"4",
        b"5",
        b"6",
        b"7",
    ]


@both_versions
def test_mqtt311_4_6_0_4_pubrel_leaves_in_the_order_of_pubrec(version: Version) -> None:
    core = Core()
    subscriber = subscribed(core, version=version)
    publisher = core.connect("p")
    for number in (1, 2, 3):
        publisher.publish("t", f"{number}", 2, number)
    subscriber.take()
    received = [PubRec(packet_id=packet_id) for packet_id in (2, 3, 1)]
    assert subscriber.exchange(*received) == [PubRel(packet_id=n) for n in (2, 3, 1)]
