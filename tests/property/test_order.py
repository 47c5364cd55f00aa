"""One publisher's messages come in their order, whatever their QoS and their durability.

However the messages are cut into reads, and however long commits take: a durable session, a
volatile one, a feed and a read of the store have those of each topic in the order in which the
publisher sent them, and the store has all of them in that order.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.broker.settings.storage import StoreRule
from siltstone.mqtt.packets import Disconnect, Packet, PubAck, PubComp, Publish, PubRec, PubRel
from tests.support.broker_core import Wire, message
from tests.support.durable_desk import DurableDesk, durable_desk
from tests.support.reading import read_rows

RULES = (
    StoreRule(filter="written", durability="written"),
    StoreRule(filter="none", durability="none"),
)


class Sent(NamedTuple):
    """A message, and whether the read of the socket ends behind it."""

    topic: str
    qos: int
    is_cut: bool


def sequences(*topics: str) -> st.SearchStrategy[list[Sent]]:
    return st.lists(
        st.builds(Sent, st.sampled_from(topics), st.integers(0, 2), st.booleans()),
        min_size=1,
        max_size=24,
    )


def answers(packets: list[Packet]) -> list[Packet]:
    """Return what a client says to what it got."""
    said: list[Packet] = []
    for packet in packets:
        match packet:
            case Publish(qos=1):
                said.append(PubAck(packet_id=packet.packet_id))
            case Publish(qos=2):
                said.append(PubRec(packet_id=packet.packet_id))
            case PubRec():
                said.append(PubRel(packet_id=packet.packet_id))
            case PubRel():
                said.append(PubComp(packet_id=packet.packet_id))
            case _:
                pass
    return said


def exchange(wire: Wire, got: list[tuple[str, int]]) -> bool:
    """Take what came, say what is to be said; tell whether anything came."""
    packets = wire.take()
    assert not any(isinstance(packet, Disconnect) for packet in packets)
    got += [
        (packet.topic.decode(), int(packet.payload))
        for packet in packets
        if isinstance(packet, Publish)
    ]
    said = answers(packets)
    if said:
        wire.send(*said)
    return bool(packets)


def send(publisher: Wire, sent: list[Sent]) -> None:
    chunk: list[Packet] = []
    for number, (topic, qos, is_cut) in enumerate(sent):
        chunk.append(message(topic, str(number), qos, number + 1 if qos else 0))
        if is_cut or number == len(sent) - 1:
            publisher.send(*chunk)
            chunk = []


def by_topic(got: list[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, number in got:
        found.setdefault(topic, []).append(number)
    return found


@settings(max_examples=60, deadline=None)
@given(
    sent=sequences("t", "written", "none"),
    publisher_is_durable=st.booleans(),
    is_held=st.booleans(),
    window=st.sampled_from([1, 3, 100]),
    subscribed_qos=st.sampled_from([2, 2, 1]),
)
def test_messages_of_one_publisher_keep_their_order_everywhere(
    sent: list[Sent],
    publisher_is_durable: bool,
    is_held: bool,
    window: int,
    subscribed_qos: int,
) -> None:
    expected = by_topic([(each.topic, number) for number, each in enumerate(sent)])
    with durable_desk(rules=RULES) as desk:
        wires = {
            "durable": desk.come("durable", receive_maximum=window),
            "volatile": desk.core.connect("volatile", receive_maximum=window),
        }
        got: dict[str, list[tuple[str, int]]] = {name: [] for name in wires}
        for wire in wires.values():
            wire.subscribe("#", qos=subscribed_qos)
        with desk.core.real.feed("#", position=None) as feed:
            publisher = desk.come("p") if publisher_is_durable else desk.core.connect("p")
            if is_held:
                # Everything is sent before any save of a session is done.
                with desk.core.held():
                    send(publisher, sent)
                    for name, wire in wires.items():
                        exchange(wire, got[name])
            else:
                send(publisher, sent)
            talk(desk, publisher, wires, got)
            fed: list[tuple[str, int]] = []
            while len(fed) < len(sent):
                read = feed.next(timeout=10)
                assert read is not None
                fed += [(row.topic, int(row.value)) for row in read.rows()]
        stored = [int(row.value) for row in read_rows(desk.core.real, "#")]
    assert stored == list(range(len(sent)))
    assert by_topic(fed) == expected
    assert by_topic(got["durable"]) == expected
    assert by_topic(got["volatile"]) == expected


def talk(
    desk: DurableDesk,
    publisher: Wire,
    wires: dict[str, Wire],
    got: dict[str, list[tuple[str, int]]],
) -> None:
    """Let everybody say what is to be said, until there is nothing more."""
    quiet = 0
    while quiet < 3:
        moved = exchange(publisher, [])
        for name, wire in wires.items():
            moved = exchange(wire, got[name]) or moved
        desk.core.advance(0.01)
        quiet = 0 if moved else quiet + 1
