"""Share groups of sessions in memory against a naive model, with snapshots.

Members connect, vanish, subscribe again, acknowledge some of their messages and leave for others;
the broker is started again from a snapshot. Whatever happens: every message is acknowledged by one
member in the end, and no message is sent to two members.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from siltstone.mqtt.packets import PubAck, Publish
from tests.support.broker_core import Wire
from tests.support.memory_core import MemoryCore

NAMES = ("a", "b", "c")
FILTER = "$share/g/t"
EXPIRY = 1_000_000
ROUNDS_MAX = 300

names = st.sampled_from(NAMES)


class LiveGroupMachine(RuleBasedStateMachine):
    """A broker without a store, and one group of sessions that outlive their connections."""

    @initialize(
        strategy=st.sampled_from(("least-loaded", "round-robin", "random", "sticky-topic")),
        credit=st.sampled_from((1, 3, 100)),
        queued=st.sampled_from((200, 100_000)),
    )
    def begin(self, strategy: str, credit: int, queued: int) -> None:
        # In the smaller queue all messages fit, but the queue gets long and publishers wait.
        self.limits: dict[str, Any] = {"inflight_max": credit, "queued_messages_max": queued}
        self.strategy = strategy
        self.core = MemoryCore(strategy=strategy, **self.limits)
        self.wires: dict[str, Wire] = {}
        self.held: dict[str, list[Publish]] = {name: [] for name in NAMES}
        # The member to which a payload was sent, and the payloads that were acknowledged.
        self.sent_to: dict[bytes, str] = {}
        self.acknowledged: set[bytes] = set()
        self.published = 0
        for name in NAMES:
            self.connect(name)
            self.wires[name].subscribe(FILTER, qos=1)

    @rule(name=names)
    def connect(self, name: str) -> None:
        """Connect a member; its earlier connection is taken over."""
        self.held[name] = []
        self.wires[name] = self.core.connect(
            name, clean_start=False, session_expiry_interval=EXPIRY
        )
        self.receive()

    @rule(name=names)
    def subscribe_again(self, name: str) -> None:
        if name in self.wires:
            self.collect(name, self.wires[name].subscribe(FILTER, qos=1))
            self.receive()

    @rule(name=names)
    def vanish(self, name: str) -> None:
        wire = self.wires.pop(name, None)
        if wire is not None:
            wire.drop()
            self.held[name] = []

    @rule(count=st.integers(1, 20))
    @precondition(lambda self: self.published < 180)
    def publish(self, count: int) -> None:
        publisher = self.core.connect("p")
        for _ in range(count):
            self.published += 1
            publisher.publish("t", f"{self.published}", 1, self.published)
        self.receive()

    @rule(name=names, count=st.integers(1, 10))
    def acknowledge(self, name: str, count: int) -> None:
        if name not in self.wires:
            return
        done, self.held[name] = self.held[name][:count], self.held[name][count:]
        for packet in done:
            self.acknowledged.add(packet.payload)
            self.wires[name].send(PubAck(packet_id=packet.packet_id or 0))
        self.receive()

    @rule(seconds=st.sampled_from((0.001, 0.06, 1.0, 3.0)))
    def wait(self, seconds: float) -> None:
        self.core.advance(seconds)
        self.receive()

    @rule()
    def start_again(self) -> None:
        self.core = self.core.restarted(strategy=self.strategy, **self.limits)
        self.wires = {}
        self.held = {name: [] for name in NAMES}

    def receive(self) -> None:
        for name, wire in self.wires.items():
            self.collect(name, wire.take())

    def collect(self, name: str, packets: list[object] | object) -> None:
        assert isinstance(packets, list)
        for packet in packets:
            assert isinstance(packet, Publish), packet
            assert self.sent_to.setdefault(packet.payload, name) == name
            assert packet.payload not in self.acknowledged
            self.held[name].append(packet)

    @invariant()
    def messages_wait_only_while_no_connected_member_is_idle(self) -> None:
        for group in self.core.broker.router.waiting_groups():
            for member in group.members:
                outbox = member.outbox
                assert not (outbox.attached and outbox.inflight + outbox.queued == 0)

    def teardown(self) -> None:
        if not hasattr(self, "core"):
            return
        for name in NAMES:
            if name not in self.wires:
                self.connect(name)
        for _ in range(ROUNDS_MAX):
            if not any(self.held.values()):
                break
            for name in NAMES:
                self.acknowledge(name, 1_000)
        assert self.acknowledged == {f"{each}".encode() for each in range(1, self.published + 1)}
        assert self.core.broker.registry.budget.used == 0


LiveGroupMachine.TestCase.settings = settings(stateful_step_count=40)
TestLiveGroups = LiveGroupMachine.TestCase
