"""MQTT 4.8.2: shared subscriptions."""

from __future__ import annotations

from collections import Counter

import pytest

from siltstone.mqtt.packets import PubAck, Publish, PubRec, PubRel
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.conformance.modes import MakeCore, make_core
from tests.conformance.versions import both_versions, in_v5, kept, told
from tests.support.broker_core import V5, Core, message

__all__ = ["make_core"]


@both_versions
@pytest.mark.parametrize("text", ["$share//t", "$share/+/t", "$share/g#/t", "$share/a+b/t"])
def test_mqtt_4_8_2_1_and_2_a_share_name_is_a_word_without_wildcards(
    version: Version, text: str
) -> None:
    wire = Core().connect("c", version=version)
    encoded = text.encode()
    body = b"\x00\x01" + (b"\x00" if version is V5 else b"")
    body += len(encoded).to_bytes(2, "big") + encoded + b"\x00"
    wire.send_bytes(bytes([0x82, len(body)]) + body)
    assert told(wire) == in_v5(version, Reason.TOPIC_FILTER_INVALID)


@pytest.mark.parametrize("text", ["$share/g", "$share/g/"])
def test_mqtt_4_8_2_2_a_filter_follows_the_share_name(text: str) -> None:
    wire = Core().connect("c")
    encoded = text.encode()
    body = b"\x00\x01\x00" + len(encoded).to_bytes(2, "big") + encoded + b"\x00"
    wire.send_bytes(bytes([0x82, len(body)]) + body)
    assert told(wire) == [Reason.TOPIC_FILTER_INVALID]


@pytest.mark.parametrize("strategy", ["round-robin", "random", "least-loaded", "sticky"])
def test_each_message_goes_to_one_member_of_each_group(strategy: str) -> None:
    core = Core(strategy=strategy)
    groups = {
        group: [core.connect(f"{group}{number}") for number in (1, 2, 3)] for group in ("a", "b")
    }
    for group, members in groups.items():
        for member in members:
            member.subscribe(f"$share/{group}/t/#")
    alone = core.connect("alone")
    alone.subscribe("t/#")
    publisher = core.connect("p")
    sent = [f"{number}".encode() for number in range(30)]
    for payload in sent:
        publisher.publish("t/x", payload.decode())
    for members in groups.values():
        taken: Counter[bytes] = Counter()
        for member in members:
            taken.update(p.payload for p in member.take() if isinstance(p, Publish))
        assert taken == Counter(sent)
    assert len(alone.take()) == len(sent)


@pytest.mark.parametrize(("granted", "qos"), [(0, 0), (1, 1), (2, 2)])
def test_mqtt_4_8_2_3_the_qos_that_a_member_was_granted_is_kept(granted: int, qos: int) -> None:
    core = Core()
    member = core.connect("m")
    member.subscribe("$share/g/t", qos=granted)
    core.connect("p").publish("t", "m", 2, 1)
    assert member.take() == [message("t", "m", qos, min(qos, 1))]


def test_mqtt_4_8_2_4_what_is_under_way_is_completed_with_the_same_member() -> None:
    core = Core()
    member = core.connect("one", **kept())
    member.subscribe("$share/g/t")
    core.connect("p").publish("t", "m", 2, 1)
    assert member.take() == [message("t", "m", 2, 1)]
    other = core.connect("two")
    other.subscribe("$share/g/t")
    member.drop()
    assert other.take() == []
    again = core.connect("one", **kept())
    assert again.take() == [message("t", "m", 2, 1, dup=True)]
    assert again.exchange(PubRec(packet_id=1)) == [PubRel(packet_id=1)]


def test_mqtt_4_8_2_5_a_message_of_qos_2_is_not_sent_to_another_when_the_session_ends() -> None:
    core = Core()
    member = core.connect("one", **kept(seconds=60))
    member.subscribe("$share/g/t")
    core.connect("p").publish("t", "m", 2, 1)
    assert member.take() == [message("t", "m", 2, 1)]
    other = core.connect("two")
    other.subscribe("$share/g/t")
    member.drop()
    core.advance(61)
    assert (list(core.broker.clients), other.take()) == (["p", "two"], [])


@pytest.mark.parametrize(
    ("qos", "refusal"),
    [
        (1, PubAck(packet_id=1, reason=Reason.QUOTA_EXCEEDED)),
        (2, PubRec(packet_id=1, reason=Reason.QUOTA_EXCEEDED)),
    ],
)
def test_mqtt_4_8_2_6_what_a_member_refuses_is_sent_to_nobody_else(
    qos: int, refusal: PubAck | PubRec
) -> None:
    core = Core()
    members = [core.connect("one"), core.connect("two")]
    for member in members:
        member.subscribe("$share/g/t")
    core.connect("p").publish("t", "m", qos, 1)
    chosen = [member for member in members if member.take()]
    assert len(chosen) == 1
    assert chosen[0].exchange(refusal) == []
    assert [member.take() for member in members] == [[], []]


def test_a_shared_subscription_is_sent_no_retained_message() -> None:
    core = Core()
    core.connect("p").publish("t", "m", retain=True)
    assert core.connect("s").subscribe("$share/g/t") == []


def test_members_that_are_away_do_not_disturb_the_turns_of_the_others(make_core: MakeCore) -> None:
    core = make_core(strategy="least-loaded")
    members = []
    for number in range(8):
        wire = core.connect(f"c{number}", **kept(seconds=60))
        wire.subscribe("$share/g/t", qos=1)
        if number % 2 == 0:
            wire.drop()
        else:
            members.append(wire)
    publisher = core.connect("p")
    counts = [0] * len(members)
    for packet_id in range(1, 81):
        publisher.publish("t", "m", 1, packet_id)
        core.settle()
        for index, member in enumerate(members):
            for packet in member.take():
                assert isinstance(packet, Publish)
                counts[index] += 1
                member.send(PubAck(packet_id=packet.packet_id or 0))
    assert counts == [20, 20, 20, 20]


def test_a_slow_member_holds_a_small_part_of_a_burst(make_core: MakeCore) -> None:
    core = make_core(strategy="least-loaded")
    members = []
    for number in range(3):
        wire = core.connect(f"c{number}")
        wire.subscribe("$share/g/t", qos=1)
        members.append(wire)
    slow, *others = members
    publisher = core.connect("p")
    for packet_id in range(1, 301):
        publisher.publish("t", f"{packet_id}", 1, packet_id)
    core.settle()
    kept_by_slow = [packet for packet in slow.take() if isinstance(packet, Publish)]
    got = [packet.payload for packet in kept_by_slow]
    while any(fresh := [member.take() for member in others]):
        core.advance(0.001)
        for member, packets in zip(others, fresh, strict=True):
            for packet in packets:
                assert isinstance(packet, Publish)
                got.append(packet.payload)
                member.send(PubAck(packet_id=packet.packet_id or 0))
        core.settle()
    assert sorted(got, key=int) == [f"{number}".encode() for number in range(1, 301)]
    assert len(kept_by_slow) == 4


def test_a_member_that_acknowledges_in_batches_gets_more_each_second(make_core: MakeCore) -> None:
    core = make_core(strategy="least-loaded")
    member = core.connect("c")
    member.subscribe("$share/g/t", qos=1)
    publisher = core.connect("p")
    for packet_id in range(1, 101):
        publisher.publish("t", "m", 1, packet_id)
    core.settle()
    counts = [len(member.take())]
    for _ in range(5):
        core.advance(1.0)
        core.settle()
        counts.append(len(member.take()))
    assert counts == [4, 4, 8, 16, 32, 36]
