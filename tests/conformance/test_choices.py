"""What the standard leaves to the server, and what clients get for what is not supported."""

from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.broker.control.sys_topics import SysTopics
from siltstone.mqtt.packets import (
    ConnAck,
    PingReq,
    PingResp,
    PubAck,
    Publish,
    PubRec,
    SubAck,
    Subscribe,
    Subscription,
    Will,
)
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter
from tests.conformance.versions import both_versions, in_v5, kept, told
from tests.support.broker_core import V3, V5, Core, Wire, message, over_quota


def refused(wire: Wire, client_id: str = "c") -> list[Reason]:
    """Return the reasons of a CONNACK that must refuse, and close."""
    answer = wire.connect(client_id)
    assert wire.is_closed
    return [packet.reason for packet in answer if isinstance(packet, ConnAck)]


def paused(core: Core, client_id: str) -> Wire:
    """Return a subscriber to t that has stopped reading."""
    wire = core.connect(client_id)
    wire.subscribe("t")
    wire.client.pause_writing()
    return wire


def payloads(wire: Wire) -> list[bytes]:
    return [packet.payload for packet in wire.take() if isinstance(packet, Publish)]


@both_versions
def test_a_topic_of_the_server_is_not_for_clients(version: Version) -> None:
    core = Core()
    watcher = core.connect("w")
    watcher.subscribe("$SYS/#", "$other")
    wire = core.connect("c", version=version)
    assert wire.publish("$SYS/x", "m", 0) == []
    assert not wire.is_closed
    reason = Reason.NOT_AUTHORIZED if version is V5 else Reason.SUCCESS
    assert wire.publish("$other", "m", 1, 1) == [PubAck(packet_id=1, reason=reason)]
    assert wire.publish("$other", "m", 2, 2) == [PubRec(packet_id=2, reason=reason)]
    assert (watcher.take(), core.database.rows) == ([], [])


@both_versions
def test_a_will_on_a_topic_of_the_server_is_refused(version: Version) -> None:
    wire = Core().wire(version)
    answer = wire.connect("c", will=Will(topic=b"$SYS/x", payload=b""))
    reasons = [packet.reason for packet in answer if isinstance(packet, ConnAck)]
    assert (reasons, wire.is_closed) == (in_v5(version, Reason.TOPIC_NAME_INVALID), True)


@both_versions
def test_a_bridge_tells_its_state_on_a_topic_of_the_server(version: Version) -> None:
    core = Core()
    watcher = core.connect("w")
    watcher.subscribe("$SYS/broker/connection/#", retain_as_published=True)
    topic = b"$SYS/broker/connection/host.site/state"
    wire = core.connect(
        "c", version=version, will=Will(topic=topic, payload=b"0", qos=1, retain=True)
    )
    assert wire.publish(topic.decode(), "1", 1, 1, retain=True) == [PubAck(packet_id=1)]
    wire.drop()
    states = [packet for packet in watcher.take() if isinstance(packet, Publish)]
    assert [(each.topic, each.payload, each.retain) for each in states] == [
        (topic, b"1", True),
        (topic, b"0", True),
    ]


def test_a_bridge_of_3_1_1_gets_nothing_back_and_retained_messages_as_they_were_published() -> None:
    core = Core()
    bridge = core.connect("b", version=V3, is_bridge=True)
    plain = core.connect("p", version=V3)
    for wire in (bridge, plain):
        wire.subscribe("#", "$share/g/s")
    assert bridge.publish("own", "m", 0) == []
    core.connect("c").publish("kept", "m", 0, retain=True)
    kept = Publish(topic=b"kept", payload=b"m", retain=True)
    assert bridge.take() == [kept]
    assert plain.take() == [Publish(topic=b"own", payload=b"m"), replace(kept, retain=False)]


@both_versions
def test_too_many_clients_are_told_to_wait(version: Version) -> None:
    core = Core(connections_max=1)
    core.connect("other")
    expected = Reason.SERVER_BUSY if version is V5 else Reason.SERVER_UNAVAILABLE
    assert refused(core.wire(version)) == [expected]


@both_versions
def test_too_many_sessions_are_refused(version: Version) -> None:
    core = Core(sessions_max=1)
    core.connect("other", **kept()).drop()
    expected = Reason.QUOTA_EXCEEDED if version is V5 else Reason.SERVER_UNAVAILABLE
    assert refused(core.wire(version)) == [expected]


@both_versions
def test_who_says_nothing_is_closed_in_time_without_a_word(version: Version) -> None:
    core = Core(connect_timeout=10.0)
    wire = core.wire(version)
    wire.send_bytes(b"\x10")
    core.advance(9.9)
    assert not wire.is_closed
    core.advance(0.2)
    assert (wire.take(), wire.is_closed) == ([], True)


@both_versions
def test_too_many_levels_end_the_connection_of_a_publisher(version: Version) -> None:
    core = Core(topic_levels_max=3)
    wire = core.connect("c", version=version)
    assert wire.publish("a/b/c", "m", 1, 1) == [PubAck(packet_id=1)]
    wire.send(message("a/b/c/d", "m", 1, 2))
    assert told(wire) == in_v5(version, Reason.TOPIC_NAME_INVALID)


@both_versions
def test_too_many_levels_or_filters_are_refused_to_a_subscriber(version: Version) -> None:
    core = Core(topic_levels_max=3, subscriptions_max=1)
    wire = core.connect("c", version=version)
    wanted = tuple(
        Subscription(filter=TopicFilter.parse(text)) for text in ("a/b/c/d", "a/b/c", "b")
    )
    expected = (Reason.TOPIC_FILTER_INVALID, Reason.SUCCESS, Reason.QUOTA_EXCEEDED)
    if version is V3:
        expected = (Reason.UNSPECIFIED_ERROR, Reason.SUCCESS, Reason.UNSPECIFIED_ERROR)
    assert wire.exchange(Subscribe(packet_id=1, subscriptions=wanted)) == [
        SubAck(packet_id=1, reasons=expected)
    ]


@both_versions
def test_what_the_store_has_no_room_for_is_refused(version: Version) -> None:
    core = Core(automatic=False)
    wire = core.connect("c", version=version)
    wire.send(message("t", "m", 1, 1))
    core.settle(over_quota())
    if version is V5:
        assert wire.take() == [PubAck(packet_id=1, reason=Reason.QUOTA_EXCEEDED)]
    else:
        assert (wire.take(), wire.is_closed) == ([], False)
        core.advance(core.broker.limits.refusal_delay)
        assert (wire.take(), wire.is_closed) == ([], True)


@both_versions
def test_more_retained_messages_than_allowed_are_refused(version: Version) -> None:
    core = Core(retained_messages_max=1)
    wire = core.connect("c", version=version)
    assert wire.publish("a", "m", 1, 1, retain=True) == [PubAck(packet_id=1)]
    assert wire.publish("b", "m", 0, retain=True) == []
    answer = wire.publish("b", "m", 1, 2, retain=True)
    reason = Reason.QUOTA_EXCEEDED if version is V5 else Reason.SUCCESS
    assert answer == [PubAck(packet_id=2, reason=reason)]
    assert len(core.broker.retained) == 1
    # 3.1.1 is told nothing, but the message is kept, though not retained.
    not_retained = [] if version is V5 else [(b"b", b"m")] * 2
    assert core.database.rows == [(b"a", b"m"), *not_retained]


def test_who_publishes_too_fast_is_read_more_slowly_and_told_nothing() -> None:
    core = Core(publish_rate_max=10)
    wire = core.connect("c")
    wire.send(*(message("t", "m", 1, packet_id) for packet_id in range(1, 16)))
    assert wire.take() == [PubAck(packet_id=packet_id) for packet_id in range(1, 16)]
    assert wire.exchange(PingReq()) == []
    core.advance(0.4)
    assert wire.take() == []
    core.advance(0.2)
    assert wire.take() == [PingResp()]


@both_versions
def test_messages_of_qos_0_are_not_kept_for_who_is_away(version: Version) -> None:
    core = Core()
    wire = core.connect("s", version=version, **kept(version))
    wire.subscribe("t", qos=2)
    wire.drop()
    publisher = core.connect("p")
    publisher.publish("t", "0", 0)
    publisher.publish("t", "1", 1, 1)
    assert core.connect("s", version=version, **kept(version)).take() == [message("t", "1", 1, 1)]


@pytest.mark.parametrize(("policy", "seen"), [("drop-old", "23"), ("drop-new", "12")])
def test_a_full_queue_gives_up_the_oldest_or_the_newest(policy: str, seen: str) -> None:
    core = Core(queue_policy=policy, queued_messages_max=2)
    slow = paused(core, "slow")
    publisher = core.connect("p")
    for number in (1, 2, 3):
        assert publisher.publish("t", f"{number}", 1, number) == [PubAck(packet_id=number)]
    slow.client.resume_writing()
    assert payloads(slow) == [f"{number}".encode() for number in seen]
    assert not slow.is_closed


def test_a_full_queue_gives_up_no_message_of_qos_1_for_one_of_qos_0() -> None:
    core = Core(queue_policy="drop-old", queued_messages_max=3)
    slow = paused(core, "slow")
    publisher = core.connect("p")
    for number, qos in enumerate((1, 0, 1, 0, 0), start=1):
        publisher.publish("t", f"{number}", qos, number * qos)
    slow.client.resume_writing()
    assert payloads(slow) == [b"1", b"3", b"5"]


def test_a_slow_subscriber_holds_up_nobody_else() -> None:
    core = Core(queued_messages_max=2)
    paused(core, "slow")
    quick = core.connect("quick")
    quick.subscribe("t")
    publisher = core.connect("p")
    for number in range(10):
        publisher.publish("t", f"{number}")
    assert payloads(quick) == [f"{number}".encode() for number in range(10)]


def test_a_bulk_publisher_waits_a_tenth_of_a_second_for_a_subscriber_that_is_behind() -> None:
    core = Core(queued_messages_max=400)
    slow = paused(core, "slow")
    ordinary, bulk = core.connect("ordinary"), core.connect("bulk")
    bulk.send(*(message("t", "m") for _ in range(300)))
    assert bulk.exchange(PingReq()) == []
    assert ordinary.exchange(message("t", "m"), PingReq()) == [PingResp()]
    core.advance(0.09)
    assert bulk.take() == []
    core.advance(0.02)
    assert bulk.take() == [PingResp()]
    slow.client.resume_writing()
    assert len(slow.take()) == 301


def test_a_message_that_waits_for_a_member_ends_with_the_session_of_it() -> None:
    core = Core()
    member = core.connect("one", **kept(seconds=60))
    member.subscribe("$share/g/t", qos=1)
    member.drop()
    core.connect("p").publish("t", "m", 1, 1)
    other = core.connect("two")
    other.subscribe("$share/g/t", qos=1)
    core.advance(61)
    assert other.take() == []


@both_versions
def test_shared_subscriptions_are_for_both_versions(version: Version) -> None:
    core = Core()
    members = [core.connect(name, version=version) for name in ("one", "two")]
    for member in members:
        member.subscribe("$share/g/t")
    publisher = core.connect("p")
    for number in range(4):
        publisher.publish("t", f"{number}")
    assert [len(payloads(member)) for member in members] == [2, 2]


def test_every_topic_of_the_server_is_sent_live_and_retained() -> None:
    core = Core()
    watcher = core.connect("w")
    watcher.subscribe("$SYS/#")
    sys_topics = SysTopics(core.broker)
    sys_topics.publish(10.0)
    live = {packet.topic for packet in watcher.take() if isinstance(packet, Publish)}
    late = core.connect("late").subscribe("$SYS/#")
    retained = {packet.topic for packet in late if isinstance(packet, Publish) and packet.retain}
    names = {b"$SYS/broker/" + name for name in sys_topics.values(10.0)}
    assert live == retained == names
    # What has not changed is not sent again.
    sys_topics.publish(10.0)
    again = {packet.topic for packet in watcher.take() if isinstance(packet, Publish)}
    assert b"$SYS/broker/version" not in again
