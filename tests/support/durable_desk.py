"""A broker with durable sessions under control of a test, and scripted clients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

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
from siltstone.session.archive.records import SavedSession
from tests.support.broker_core import V3, V5, Wire, message
from tests.support.durable_core import DurableCore


class Got(NamedTuple):
    """A message as a client receives it."""

    payload: str
    qos: int = 1
    dup: bool = False


class DurableDesk:
    """One disk, and the broker that runs on it."""

    def __init__(self, core: DurableCore) -> None:
        self.core = core
        self._packet_id = 0

    def come(self, client_id: str = "s", **fields: Any) -> Wire:
        """Connect with a durable session."""
        if fields.get("version", V5) is V5:
            fields.setdefault("session_expiry_interval", 100)
        return self.core.connect(client_id, **({"clean_start": False} | fields))

    def publish(self, topic: str, *payloads: str, qos: int = 1, **fields: Any) -> None:
        """Publish as another client, and check that it is acknowledged."""
        wire = self.core.connect("publisher")
        for payload in payloads:
            self._packet_id += 1
            packet_id = self._packet_id if qos else 0
            found = wire.exchange(message(topic, payload, qos, packet_id, **fields))
            expected = {0: [], 1: [PubAck(packet_id=packet_id)], 2: [PubRec(packet_id=packet_id)]}
            assert found == expected[qos]
        wire.send(Disconnect())
        self.core.run()

    def crash(self, **changes: Any) -> None:
        """Cut the power, and start again."""
        self.core = self.core.crash(**changes)

    def wait(self, seconds: int = 1) -> None:
        """Advance the time in steps of a tenth of a second."""
        for _ in range(seconds * 10):
            self.core.advance(0.1)

    def saved(self, client_id: str = "s") -> SavedSession:
        """Return the stored state of a session."""
        found = self.core.peek(client_id)
        assert found is not None
        return found


def got(packets: list[Packet]) -> list[Got]:
    """Return the messages of packets that are all PUBLISH."""
    found = []
    for packet in packets:
        assert isinstance(packet, Publish), packet
        found.append(Got(packet.payload.decode(), packet.qos, packet.dup))
    return found


def news(wire: Wire) -> list[Got]:
    """Return the messages that have arrived."""
    return got(wire.take())


def consume(wire: Wire) -> list[Got]:
    """Return all messages, and acknowledge them until no more arrive."""
    found: list[Got] = []
    while packets := wire.take():
        answers: list[Packet] = []
        for packet in packets:
            if isinstance(packet, PubRel):
                answers.append(PubComp(packet_id=packet.packet_id))
            else:
                assert isinstance(packet, Publish), packet
                found.append(Got(packet.payload.decode(), packet.qos, packet.dup))
                if packet.qos:
                    kind = PubAck if packet.qos == 1 else PubRec
                    answers.append(kind(packet_id=packet.packet_id))
        if answers:
            wire.send(*answers)
    return found


def leave(wire: Wire, expiry: int | None = None) -> None:
    """Send DISCONNECT."""
    wire.send(Disconnect(properties=Properties(session_expiry_interval=expiry)))
    wire.core.run()


def lose(wire: Wire) -> None:
    """Lose the connection."""
    wire.drop()
    wire.core.run()


def will(payload: str = "gone", *, delay: int = 0, **fields: Any) -> Will:
    """Return a QoS 1 will on the topic will."""
    return Will(
        topic=b"will",
        payload=payload.encode(),
        qos=1,
        properties=Properties(will_delay_interval=delay or None),
        **fields,
    )


@contextmanager
def durable_desk(**settings: Any) -> Iterator[DurableDesk]:
    """Run a broker under control of the test; its threads end at the end."""
    desk = DurableDesk(DurableCore(**settings))
    try:
        yield desk
    finally:
        desk.core.close()


VERSIONS = (V3, V5)
