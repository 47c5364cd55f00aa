"""A capture is the state of one moment, however its pieces and the changes of others alternate."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.broker.snapshots.capture import Capture
from siltstone.mqtt.packets import (
    Disconnect,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    Unsubscribe,
)
from siltstone.snapshot.format.records import Record, RetainedMessage, SessionState
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import Wire
from tests.support.memory_core import MemoryCore
from tests.support.snapshots import in_memory

CLIENTS = ["c0", "c1", "c2", "c3"]
FILTERS = ["a", "b", "+", "$share/g/a"]
ACTIONS = [
    *("publish", "publish", "retain", "subscribe", "unsubscribe"),
    *("leave", "come", "begin", "answer", "answer", "pass time"),
]
Step = tuple[str, str, str, int]
steps = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.sampled_from(CLIENTS),
        st.sampled_from(FILTERS),
        st.integers(0, 2),
    ),
    max_size=30,
)


class World:
    """A broker and its clients."""

    def __init__(self, strategy: str = "round-robin") -> None:
        self.core = MemoryCore(inflight_max=2, strategy=strategy)
        self.publisher = self.core.connect("p")
        self.wires: dict[str, Wire] = {}
        self.number = 0
        # Some that are there with messages in flight, and some that are away, to begin with.
        for action, number, qos in (
            *(("come", number, 0) for number in range(4)),
            *(("subscribe", number, 2) for number in range(4)),
            ("leave", 0, 0),
            ("leave", 1, 0),
            *(("publish", 0, qos) for qos in (1, 2, 1, 2)),
        ):
            self.do((action, CLIENTS[number], FILTERS[number % 2], qos))
        # And a group, whose members have something to do already.
        for client_id in ("c2", "c3"):
            self.do(("subscribe", client_id, "$share/g/a", 1))
        for qos in (1, 2, 1):
            self.do(("publish", "p", "a", qos))

    def do(self, step: Step) -> None:
        action, client_id, text, qos = step
        wire = self.wires.get(client_id)
        self.number += 1
        if action in ("publish", "retain"):
            topic = "b" if text == "b" else "a"
            is_retained = action == "retain"
            packet_id = self.number if qos else 0
            self.publisher.publish(topic, str(self.number), qos, packet_id, retain=is_retained)
        elif action in ("come", "begin"):
            self.wires[client_id] = self.core.connect(
                client_id, clean_start=action == "begin", session_expiry_interval=50
            )
        elif action == "pass time":
            self.core.advance(20.0)
        elif wire is not None and not wire.is_closed:
            self.do_connected(wire, action, text, qos)
        self.core.run()

    def do_connected(self, wire: Wire, action: str, text: str, qos: int) -> None:
        if action == "subscribe":
            with suppress(AssertionError):  # Messages may come before SUBACK.
                wire.subscribe(text, qos=qos)
        elif action == "unsubscribe":
            wire.exchange(Unsubscribe(packet_id=1, filters=(TopicFilter.parse(text),)))
        elif action == "leave":
            wire.send(Disconnect())
        elif action == "answer":
            for packet in wire.take():
                match packet:
                    case Publish(qos=1):
                        wire.send(PubAck(packet_id=packet.packet_id))
                    case Publish(qos=2):
                        wire.send(PubRec(packet_id=packet.packet_id))
                    case PubRel():
                        wire.send(PubComp(packet_id=packet.packet_id))
                    case _:
                        pass


def grouped(records: list[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    key = ""
    for record in records:
        if isinstance(record, RetainedMessage):
            key = f"topic {record.topic!r}"
        elif isinstance(record, SessionState):
            key = f"client {record.client_id}"
        found.setdefault(key, []).append(record)
    return found


@settings(max_examples=150)
@given(
    # With the first of these, messages wait in groups.
    st.sampled_from(["least-loaded", "round-robin"]),
    steps,
    steps,
    st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_a_capture_is_what_there_was_when_it_began(
    strategy: str, before: list[Step], during: list[Step], turns: list[bool]
) -> None:
    world = World(strategy)
    for step in before:
        world.do(step)
    expected = world.core.state()
    capture = Capture(world.core.broker)
    found = list(capture.retained_records())
    for step, takes_a_piece in zip(during, turns, strict=False):
        if takes_a_piece:
            for captured in capture.step(1) or []:
                found.extend(capture.records(captured))
        world.do(step)
    while (taken := capture.step(2)) is not None:
        for captured in taken:
            found.extend(capture.records(captured))
    capture.close()
    assert grouped(found) == grouped(expected)


@settings(max_examples=100)
@given(steps, st.sampled_from([0, 10_000, 1 << 30]))
def test_what_is_loaded_is_what_was_saved(script: list[Step], memory_max: int) -> None:
    world = World()
    for step in script:
        world.do(step)
    for wire in (world.publisher, *world.wires.values()):
        if not wire.is_closed:
            wire.drop()
    saved = world.core.state()
    again = world.core.restarted(contents=in_memory(memory_max))
    assert grouped(again.state()) == grouped(saved)
