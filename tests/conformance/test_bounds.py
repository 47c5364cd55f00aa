"""How much one packet may ask for: more is refused before it is read, and the work for what is not
refused is done in turns, so that one client does not keep the others waiting.
"""

from __future__ import annotations

from contextlib import closing
from itertools import pairwise

import pytest

from siltstone.broker.deliver.slices import SLICE_LEVELS
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
    Will,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter
from tests.conformance.modes import MakeCore, come, make_core
from tests.conformance.versions import both_versions, in_v5, told
from tests.support.broker_core import V3, V5, Core, Wire
from tests.support.durable_core import DurableCore

__all__ = ["make_core"]

FILTERS_MAX = 300
USERS_MAX = 5
SIZE_MAX = 1024
LIMITS = {
    "filters_max": FILTERS_MAX,
    "user_properties_max": USERS_MAX,
    "properties_size_max": SIZE_MAX,
    "control_size_max": 8192,
}


def subscribe(*texts: str, qos: int = 0, properties: Properties | None = None) -> Subscribe:
    subscriptions = [Subscription(filter=TopicFilter.parse(text), qos=qos) for text in texts]
    return Subscribe(
        packet_id=1,
        subscriptions=tuple(subscriptions),
        properties=properties or Properties(),
    )


def unsubscribe(*texts: str) -> Unsubscribe:
    return Unsubscribe(packet_id=2, filters=tuple(map(TopicFilter.parse, texts)))


def names(count: int, levels: int = 2) -> list[str]:
    return ["/".join([f"f{number}"] + ["x"] * (levels - 1)) for number in range(count)]


def users(count: int) -> Properties:
    return Properties(user_properties=(("k", "v"),) * count)


def with_properties(properties: Properties) -> list[Packet]:
    """Return a packet of every type that a connected client may send with properties."""
    return [
        Publish(topic=b"t", payload=b"", properties=properties),
        PubAck(packet_id=1, properties=properties),
        PubRec(packet_id=1, properties=properties),
        PubRel(packet_id=1, properties=properties),
        PubComp(packet_id=1, properties=properties),
        subscribe("a", properties=properties),
        Unsubscribe(packet_id=2, filters=(TopicFilter.parse("a"),), properties=properties),
        Disconnect(properties=properties),
        Auth(properties=properties),
    ]


BY_TYPE = pytest.mark.parametrize("index", range(len(with_properties(Properties()))))


@both_versions
def test_as_many_filters_as_allowed_are_taken_and_one_more_is_refused(
    make_core: MakeCore, version: Version
) -> None:
    core = make_core(**LIMITS)
    wire = come(core, "c", version)
    texts = names(FILTERS_MAX)
    granted = SubAck(packet_id=1, reasons=(Reason.GRANTED_QOS_1,) * FILTERS_MAX)
    assert wire.exchange(subscribe(*texts, qos=1)) == [granted]
    reasons = (Reason.SUCCESS,) * FILTERS_MAX if version is V5 else ()
    assert wire.exchange(unsubscribe(*texts)) == [UnsubAck(packet_id=2, reasons=reasons)]
    for packet in (subscribe(*texts, "more"), unsubscribe(*texts, "more")):
        wire = come(core, "c", version)
        wire.send(packet)
        assert told(wire) == in_v5(version, Reason.QUOTA_EXCEEDED)
    assert core.broker.registry.subscription_count == 0


@BY_TYPE
def test_user_properties_beyond_the_limit_are_refused(make_core: MakeCore, index: int) -> None:
    core = make_core(**LIMITS)
    wire = come(core, "c", V5)
    wire.send(with_properties(users(USERS_MAX + 1))[index])
    assert told(wire) == [Reason.QUOTA_EXCEEDED]
    wire = come(core, "c", V5)
    wire.send(with_properties(users(USERS_MAX))[index])
    answer = wire.take()
    assert not any(
        isinstance(packet, Disconnect) and packet.reason is Reason.QUOTA_EXCEEDED
        for packet in answer
    )


@BY_TYPE
def test_properties_beyond_their_size_are_refused(make_core: MakeCore, index: int) -> None:
    wire = come(make_core(**LIMITS), "c", V5)
    big = Properties(user_properties=(("k", "v" * SIZE_MAX),))
    wire.send(with_properties(big)[index])
    assert told(wire) == [Reason.QUOTA_EXCEEDED]


@pytest.mark.parametrize("place", ["connect", "will"])
@pytest.mark.parametrize("properties", [users(USERS_MAX + 1), users(1000)])
def test_connect_is_refused_for_its_properties(
    make_core: MakeCore, place: str, properties: Properties
) -> None:
    wire = make_core(**LIMITS).wire(V5)
    will = Will(topic=b"w", payload=b"", properties=properties)
    packet = Connect(version=V5, client_id="c")
    if place == "will":
        packet = Connect(version=V5, client_id="c", will=will)
    else:
        packet = Connect(version=V5, client_id="c", properties=properties)
    wire.send(packet)
    answer = wire.take()
    assert [packet.reason for packet in answer if isinstance(packet, ConnAck)] == [
        Reason.QUOTA_EXCEEDED
    ]
    assert wire.is_closed


@both_versions
def test_a_packet_that_is_too_large_for_its_type_is_refused_by_its_first_bytes(
    make_core: MakeCore, version: Version
) -> None:
    wire = come(make_core(**LIMITS), "c", version)
    data = encode(version, subscribe("a" * 9000))
    wire.send_bytes(data[:5])
    assert told(wire) == in_v5(version, Reason.QUOTA_EXCEEDED)


@both_versions
def test_a_message_may_be_larger_than_other_packets(make_core: MakeCore, version: Version) -> None:
    wire = come(make_core(**LIMITS), "c", version)
    sent = Publish(topic=b"t", payload=bytes(20_000), qos=1, packet_id=1)
    assert [type(packet) for packet in wire.exchange(sent)] == [PubAck]


def turns(core: Core, wire: Wire, *packets: Packet) -> list[int]:
    """Send packets, turn the loop step by step, and return how many filters each step changed."""
    registry = core.broker.registry
    counts = [registry.subscription_count]
    wire.send(*packets)
    counts.append(registry.subscription_count)
    while core.shell.acts:
        core.shell.acts.popleft()()
        counts.append(registry.subscription_count)
    return [abs(after - before) for before, after in pairwise(counts)]


@both_versions
@pytest.mark.parametrize("levels", [1, 2, 100])
def test_the_filters_of_a_packet_are_taken_in_turns(
    make_core: MakeCore, version: Version, levels: int
) -> None:
    core = make_core(filters_max=FILTERS_MAX)
    wire = come(core, "c", version)
    texts = names(FILTERS_MAX, levels)
    a_turn = -(-SLICE_LEVELS // (levels + 1))
    for packet in (subscribe(*texts), unsubscribe(*texts)):
        changed = [count for count in turns(core, wire, packet) if count]
        assert sum(changed) == FILTERS_MAX
        assert max(changed) == a_turn
    core.run()


@both_versions
def test_packets_behind_a_long_one_wait_for_it(make_core: MakeCore, version: Version) -> None:
    core = make_core(filters_max=FILTERS_MAX)
    wire = come(core, "c", version)
    texts = names(FILTERS_MAX)
    wire.send(subscribe(*texts), unsubscribe(*texts[1:]), PingReq())
    wire.send(Publish(topic=b"f0/x", payload=b"m"), PingReq())
    kinds = [type(packet).__name__ for packet in wire.take()]
    # What is kept on disk is answered when it is there, but in order.
    assert sorted(kinds) == ["PingResp", "PingResp", "Publish", "SubAck", "UnsubAck"]
    assert kinds.index("SubAck") < kinds.index("UnsubAck")
    assert kinds.index("PingResp") < kinds.index("Publish")


@both_versions
def test_a_connection_that_ends_between_turns_takes_no_more_filters(
    make_core: MakeCore, version: Version
) -> None:
    core = make_core(filters_max=FILTERS_MAX)
    wire = come(core, "c", version)
    wire.send(subscribe(*names(FILTERS_MAX)))
    taken = core.broker.registry.subscription_count
    assert 0 < taken < FILTERS_MAX
    wire.drop()
    core.run()
    assert core.broker.registry.subscription_count <= taken
    again = come(core, "c", version)
    assert again.exchange(PingReq()) == [PingResp()]


def test_each_subscribe_of_many_has_a_turn_of_its_own() -> None:
    core = Core()
    wire = core.connect("c", version=V3)
    changed = turns(core, wire, *(subscribe(text) for text in names(20)))
    assert [count for count in changed if count] == [1] * 20


@pytest.mark.parametrize("ends", [False, True])
def test_a_session_of_many_filters_returns_in_turns_and_is_greeted_then(*, ends: bool) -> None:
    with closing(DurableCore(filters_max=FILTERS_MAX)) as core:
        texts = names(FILTERS_MAX)
        wire = core.connect("c", clean_start=False, session_expiry_interval=300)
        wire.send(subscribe(*texts, qos=1))
        core.run()
        wire.drop()
        core.run()
        registry = core.broker.registry
        assert registry.subscription_count == 0
        again = core.wire()
        again.send(
            Connect(
                version=V5,
                client_id="c",
                clean_start=False,
                properties=Properties(session_expiry_interval=300),
            )
        )
        while registry.subscription_count == 0:
            core.flush_commits()
            if core.shell.acts:
                core.shell.acts.popleft()()
            elif core.shell.works:
                work, then = core.shell.works.popleft()
                work()
                then()
        a_turn = -(-SLICE_LEVELS // 3)
        assert (again.overhear(), registry.subscription_count) == ([], a_turn)
        if ends:
            again.drop()
        core.run()
        assert registry.subscription_count == (0 if ends else FILTERS_MAX)
        assert [type(packet) for packet in again.take()] == ([] if ends else [ConnAck])
        third = core.connect("c", clean_start=False)
        core.run()
        assert (core.peek("c") is not None, registry.subscription_count) == (True, FILTERS_MAX)
        assert third.exchange(PingReq()) == [PingResp()]
