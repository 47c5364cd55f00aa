"""Members of share groups in a test: the messages that they receive and acknowledge."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from siltstone.broker.sessions.groups import StoredShareGroups
from siltstone.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from siltstone.mqtt.wire import Version
from siltstone.session.archive.records import SavedGroup
from tests.support.broker_core import V5, Wire
from tests.support.durable_core import DurableCore

GROUP: Final = "$share/g/t/#"
NEVER: Final = 0xFFFF_FFFF


@contextmanager
def group_core(**others: Any) -> Iterator[DurableCore]:
    """Run a core whose sessions may be away for long."""
    core = make_core(**others)
    try:
        yield core
    finally:
        core.close()


def make_core(**others: Any) -> DurableCore:
    """Return this core; the test closes it, or the core that follows a crash."""
    defaults: dict[str, Any] = {"session_expiry_max": NEVER, "strategy": "least-loaded"}
    return DurableCore(**(defaults | others))


def groups_of(core: DurableCore) -> StoredShareGroups:
    groups = core.broker.subscriptions.groups
    assert groups is not None
    return groups


def join(
    core: DurableCore,
    client_id: str,
    text: str = GROUP,
    *,
    qos: int = 1,
    durable: bool = True,
    window: int = 65_535,
    version: Version = V5,
) -> Wire:
    """Connect and subscribe to a group."""
    wire = come(core, client_id, durable=durable, window=window, version=version)
    wire.arrived.extend(wire.subscribe(text, qos=qos))
    return wire


def come(
    core: DurableCore,
    client_id: str,
    *,
    durable: bool = True,
    window: int = 65_535,
    version: Version = V5,
) -> Wire:
    """Connect to the existing session, if there is one."""
    properties: dict[str, Any] = {}
    if version is V5:
        properties["receive_maximum"] = window
        if durable:
            properties["session_expiry_interval"] = NEVER
    return core.connect(client_id, clean_start=not durable, version=version, **properties)


def publish(core: DurableCore, *values: str, topic: str = "t/1", qos: int = 1) -> None:
    """Publish messages, which are stored when this returns."""
    publisher = core.connect("publisher")
    for number, value in enumerate(values, 1):
        publisher.publish(topic, value, qos, number if qos else 0)
        if qos == 2:
            publisher.exchange(PubRel(packet_id=number))
    core.run()
    publisher.drop()
    core.run()


def taken(wire: Wire) -> list[Publish]:
    """Return the messages that have arrived."""
    wire.core.run()
    packets = wire.take()
    assert all(isinstance(packet, Publish | PubRel) for packet in packets), packets
    for packet in packets:
        if isinstance(packet, PubRel):
            wire.send(PubComp(packet_id=packet.packet_id))
    return [packet for packet in packets if isinstance(packet, Publish)]


def values(wire: Wire) -> list[str]:
    return [packet.payload.decode() for packet in taken(wire)]


def acknowledge(wire: Wire, packets: list[Publish]) -> None:
    for packet in packets:
        if packet.qos:
            answer = PubAck if packet.qos == 1 else PubRec
            wire.send(answer(packet_id=packet.packet_id))
    wire.core.run()


def consume(wire: Wire) -> list[str]:
    """Take and acknowledge all messages, until no more arrive."""
    found: list[str] = []
    while packets := taken(wire):
        found += [packet.payload.decode() for packet in packets]
        acknowledge(wire, packets)
    return found


def saved(core: DurableCore, name: str = "g", topic_filter: str = "t/#") -> SavedGroup | None:
    """Return the stored state of a group."""
    core.run()
    return core.archive.peek_group(name, topic_filter)
