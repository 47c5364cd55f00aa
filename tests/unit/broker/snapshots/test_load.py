from __future__ import annotations

from typing import Any

import pytest

from siltstone.broker.snapshots.load import SnapshotLoad
from siltstone.errors import UsageError
from siltstone.mqtt.packets import (
    Disconnect,
    Packet,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Will,
)
from siltstone.mqtt.properties import Properties
from siltstone.snapshot.format.records import StoredFile
from tests.support.broker_core import Wire
from tests.support.memory_core import MemoryCore
from tests.support.snapshots import in_memory

KEPT: dict[str, Any] = {"session_expiry_interval": 100}


def away(core: MemoryCore, client_id: str, text: str = "a", **options: object) -> None:
    wire = core.connect(client_id, **KEPT)
    wire.subscribe(text, **options)  # type: ignore[arg-type]
    wire.send(Disconnect())


def published(core: MemoryCore, *payloads: str, **fields: object) -> None:
    wire = core.connect("p")
    for number, payload in enumerate(payloads, 1):
        wire.publish("a", payload, 1, number, **fields)
    wire.send(Disconnect())


def come_back(core: MemoryCore, client_id: str) -> tuple[Wire, list[Packet]]:
    """Return the connection of a session that is there, and what it is sent."""
    wire = core.connect(client_id, clean_start=False, **KEPT)
    assert wire.accepted is not None
    assert wire.accepted.session_present
    return wire, wire.take()


def payloads(packets: list[Packet]) -> list[bytes]:
    return [packet.payload for packet in packets if isinstance(packet, Publish)]


def test_the_state_of_the_next_broker_is_that_of_the_last() -> None:
    core = MemoryCore(inflight_max=2)
    away(core, "away")
    wire = core.connect("there", **KEPT)
    wire.subscribe("a", "$share/g/+")
    published(core, "1", "2", "3", retain=True)
    wire.take()
    wire.publish("x", "y", qos=2, packet_id=7)
    wire.drop()
    before = core.state()
    assert core.restarted().state() == before


def test_messages_that_waited_are_sent_in_order() -> None:
    core = MemoryCore()
    away(core, "c")
    published(core, "1", "2", "3")
    _, found = come_back(core.restarted(), "c")
    assert payloads(found) == [b"1", b"2", b"3"]


def test_messages_in_flight_are_sent_again_with_their_packet_ids() -> None:
    core = MemoryCore()
    wire = core.connect("c", **KEPT)
    wire.subscribe("a")
    published(core, "1", "2")
    sent = [packet.packet_id for packet in wire.take() if isinstance(packet, Publish)]
    again = core.restarted()
    wire, found = come_back(again, "c")
    assert [(p.packet_id, p.dup) for p in found if isinstance(p, Publish)] == [
        (packet_id, True) for packet_id in sent
    ]
    published(again, "3")
    (new,) = wire.take()
    assert isinstance(new, Publish)
    assert new.packet_id not in sent


def test_queue_limits_of_today_drop_nothing_that_was_loaded() -> None:
    core = MemoryCore()
    away(core, "c")
    published(core, *map(str, range(20)))
    again = core.restarted(queued_messages_max=3, queued_bytes_total_max=1024)
    assert payloads(come_back(again, "c")[1]) == [b"%d" % number for number in range(20)]


def test_a_released_message_of_qos_2_is_completed() -> None:
    core = MemoryCore()
    wire = core.connect("c", **KEPT)
    wire.subscribe("a")
    core.connect("p").publish("a", "1", qos=2, packet_id=1)
    (sent,) = wire.take()
    assert isinstance(sent, Publish)
    wire.exchange(PubRec(packet_id=sent.packet_id))
    again = core.restarted()
    wire, found = come_back(again, "c")
    assert found == [PubRel(packet_id=sent.packet_id)]
    wire.exchange(PubComp(packet_id=sent.packet_id))
    assert len(again.state()) == 2


def test_a_message_of_qos_2_that_was_received_is_not_delivered_again() -> None:
    core = MemoryCore()
    away(core, "listener")
    core.connect("c", **KEPT).publish("a", "once", qos=2, packet_id=9)
    again = core.restarted()
    wire, _ = come_back(again, "c")
    wire.publish("a", "once", qos=2, packet_id=9, dup=True)
    assert payloads(come_back(again, "listener")[1]) == [b"once"]
    assert wire.exchange(PubRel(packet_id=9)) == [PubComp(packet_id=9)]


@pytest.mark.parametrize(("seconds", "is_there"), [(99, True), (100, False), (1_000, False)])
def test_time_goes_on_while_the_broker_is_down(seconds: float, is_there: bool) -> None:
    core = MemoryCore()
    away(core, "c")
    again = core.restarted(after=seconds)
    again.advance(0)
    assert ("c" in again.broker.registry.sessions) is is_there


def test_a_session_that_was_connected_has_all_its_time() -> None:
    core = MemoryCore()
    core.connect("c", **KEPT)
    core.advance(1000)
    again = core.restarted(after=99)
    again.advance(0)
    assert list(again.broker.registry.sessions) == ["c"]
    again.advance(1)
    assert list(again.broker.registry.sessions) == []


def test_a_clock_that_went_back_makes_no_session_live_longer() -> None:
    core = MemoryCore()
    away(core, "c")
    again = core.restarted(after=-5000)
    again.advance(100)
    assert list(again.broker.registry.sessions) == []


def test_messages_that_expired_meanwhile_are_not_sent() -> None:
    core = MemoryCore()
    away(core, "c")
    published(core, "short", message_expiry_interval=10)
    published(core, "long", message_expiry_interval=50)
    _, (found,) = come_back(core.restarted(after=20), "c")
    assert isinstance(found, Publish)
    assert (found.payload, found.properties.message_expiry_interval) == (b"long", 30)


def test_a_retained_message_that_expired_meanwhile_is_gone() -> None:
    core = MemoryCore()
    published(core, "1", retain=True, message_expiry_interval=10)
    assert len(core.restarted(after=9).broker.retained) == 1
    assert len(core.restarted(after=10).broker.retained) == 0


def test_subscriptions_work_without_the_client_acting() -> None:
    core = MemoryCore()
    away(core, "c", identifier=5)
    again = core.restarted()
    published(again, "new")
    _, (found,) = come_back(again, "c")
    assert isinstance(found, Publish)
    assert (found.payload, found.properties.subscription_identifiers) == (b"new", (5,))
    assert again.broker.registry.subscription_count == 1


@pytest.mark.parametrize(("seconds", "is_published"), [(0, False), (20, True), (500, True)])
def test_a_will_keeps_its_time(seconds: float, is_published: bool) -> None:
    core = MemoryCore()
    listener = core.connect("listener", session_expiry_interval=10_000)
    listener.subscribe("w")
    will = Will(topic=b"w", payload=b"gone", qos=1, properties=Properties(will_delay_interval=20))
    core.connect("dying", will=will, session_expiry_interval=10_000).drop()
    again = core.restarted(after=seconds)
    again.advance(0)
    _, found = come_back(again, "listener")
    assert payloads(found) == ([b"gone"] if is_published else [])
    again.advance(20)
    assert len(again.broker.wills) == 0


def test_a_session_that_comes_back_in_time_cancels_its_will() -> None:
    core = MemoryCore()
    will = Will(topic=b"w", payload=b"gone", properties=Properties(will_delay_interval=20))
    core.connect("dying", will=will, **KEPT).drop()
    again = core.restarted()
    come_back(again, "dying")
    assert len(again.broker.wills) == 0


def test_records_of_a_store_are_refused() -> None:
    with pytest.raises(UsageError, match="with 'siltstone restore': record=StoredFile"):
        SnapshotLoad(MemoryCore().broker, in_memory()).apply(
            StoredFile(path="data/x", size_bytes=0)
        )


def test_an_acknowledgement_ends_a_message_that_was_loaded() -> None:
    core = MemoryCore()
    away(core, "c")
    published(core, "1")
    again = core.restarted()
    wire, (found,) = come_back(again, "c")
    assert isinstance(found, Publish)
    wire.exchange(PubAck(packet_id=found.packet_id))
    assert again.broker.registry.budget.used == 0
