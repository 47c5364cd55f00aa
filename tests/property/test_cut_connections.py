"""A connection that is cut after every byte, and after every wait, on the desk.

Whatever the broker was about to do for the client: what it has begun comes to an end, no turn is
left, and the client gets in again, time after time with the session that its cuts have left.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.broker.settings.storage import StoreRule
from siltstone.errors import (
    OutcomeUnknownError,
    OverloadedError,
    SiltstoneError,
    StorageFullError,
)
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    ConnAck,
    Connect,
    Packet,
    PubComp,
    PubRec,
    PubRel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.wire import Version
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import V3, V5, Wire, message
from tests.support.durable_core import DurableCore

VERSIONS = (V3, V5)
STEPS_MAX = 10_000
TWO = message("a/b", "two", 2, 2, dup=True)
FILTERS = ("a/#", "$share/g/a/#")
RULES = {
    "all": (),
    "some": (StoreRule(filter="a/#", store="subscribed"),),
}


def conversation(
    version: Version, *, clean_start: bool = False, expiry_seconds: int = 300
) -> list[bytes]:
    """Return what a client sends that trusts its link, packet by packet."""
    is_5 = version is V5
    packets: list[Packet] = [
        Connect(
            version=version,
            client_id="radio",
            clean_start=clean_start,
            will=Will(topic=b"a/will", payload=b"gone", qos=1, retain=True),
            properties=Properties(session_expiry_interval=expiry_seconds if is_5 else None),
        ),
        Subscribe(
            packet_id=1,
            subscriptions=tuple(
                Subscription(filter=TopicFilter.parse(text), qos=2) for text in FILTERS
            ),
        ),
        TWO,
        message("a/b", "one", 1, 3, retain=True),
        message("a/b", "none", 0),
        message("a/c", "new", 2, 4),
        PubRel(packet_id=2),
        Unsubscribe(packet_id=5, filters=(TopicFilter.parse(FILTERS[1]),)),
    ]
    return [encode(version, packet) for packet in packets]


class Bench:
    """A broker whose every wait ends when it is told to, one after the other."""

    def __init__(self, **settings: Any) -> None:
        self.core = DurableCore(automatic=False, **settings)
        self.core.hold()
        # The outcome of the next appends.
        self.error: SiltstoneError | None = None

    def step(self) -> bool:
        """Let the next thing happen; tell whether there was any."""
        core = self.core
        shell = core.shell
        if shell.acts:
            shell.acts.popleft()()
        elif shell.works:
            work, then = shell.works.popleft()
            # It may wait for a commit of its own.
            core.let_go()
            work()
            core.hold()
            then()
        elif core.retained_log.pending:
            core.retained_log.settle(self.error)
        elif core.database.pending:
            core.database.settle(self.error)
        else:
            core.let_go()
            core.hold()
            return bool(shell.acts)
        return True

    def finish(self) -> int:
        """Let everything happen; return in how many steps."""
        steps = 0
        while self.step():
            steps += 1
            assert steps < STEPS_MAX, "the broker does not come to rest"
        return steps

    def pass_time(self, seconds: float) -> None:
        """Let the clock move on, and the timers that are due run."""
        self.core.clock.advance(seconds)
        self.core.broker.tick()

    def demand_rest(self) -> None:
        """See that nothing is left of a connection that was cut."""
        core = self.core
        turns = [turn.waits_for for turn in core.durables.turns.begun()]
        assert (turns, core.broker.clients, core.durables.sessions) == ([], {}, {})
        assert (core.broker.registry.sessions, core.broker.bridge.pending_bytes) == ({}, 0)
        assert core.broker.partial_bytes == 0

    def demand_entry(self, version: Version) -> None:
        """See that the client gets in, and its message of QoS 2 through."""
        fields = {"session_expiry_interval": 300} if version is V5 else {}
        wire = self.core.wire(version)
        answers = self._ask(wire, wire.connect, "radio", clean_start=False, **fields)
        assert [type(packet) for packet in answers if isinstance(packet, ConnAck)] == [ConnAck]
        assert PubRec(packet_id=2) in self._ask(wire, wire.exchange, TWO)
        assert PubComp(packet_id=2) in self._ask(wire, wire.exchange, PubRel(packet_id=2))
        wire.drop()
        self.finish()
        self.demand_rest()

    def _ask(self, wire: Wire, act: Any, *args: Any, **fields: Any) -> list[Packet]:
        answers: list[Packet] = act(*args, **fields)
        self.finish()
        return answers + wire.take()


@pytest.fixture(params=RULES)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = Bench(rules=RULES[request.param])
    yield made
    made.core.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_after_any_byte_the_client_gets_in_again(bench: Bench, version: Version) -> None:
    data = b"".join(conversation(version))
    for cut in range(len(data) + 1):
        wire = bench.core.wire(version)
        wire.send_bytes(data[:cut])
        if cut % 2:
            bench.finish()
        wire.drop()
        bench.finish()
        bench.demand_rest()
    bench.demand_entry(version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("is_split", [False, True])
def test_after_any_wait_the_client_gets_in_again(
    bench: Bench, version: Version, *, is_split: bool
) -> None:
    packets = conversation(version)
    steps, has_ended = 0, False
    while not has_ended:
        wire = bench.core.wire(version)
        for data in packets if is_split else [b"".join(packets)]:
            wire.send_bytes(data)
        for _ in range(steps):
            has_ended = not bench.step()
        wire.drop()
        bench.finish()
        bench.demand_rest()
        steps += 1
    assert steps > len(packets)
    bench.demand_entry(version)


def test_after_any_wait_the_session_may_expire_at_any_later_one(bench: Bench) -> None:
    data = b"".join(conversation(V5, expiry_seconds=1))
    steps, has_ended = 0, False
    while not has_ended:
        wire = bench.core.wire(V5)
        wire.send_bytes(data)
        for _ in range(steps):
            has_ended = not bench.step()
        wire.drop()
        # The end of the connection, the will and the save have waits of their own.
        for _ in range(steps % 5):
            bench.step()
        bench.pass_time(2.0)
        bench.finish()
        bench.pass_time(2.0)
        bench.finish()
        bench.demand_rest()
        assert bench.core.peek("radio") is None
        steps += 1
    assert steps > len(conversation(V5))
    bench.demand_entry(V5)


ERRORS = (
    OverloadedError("too many bytes wait"),
    StorageFullError(PurePath("/data"), needed_bytes=1),
    OutcomeUnknownError("an internal error"),
)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_after_any_wait_the_store_may_fail(
    bench: Bench, version: Version, error: SiltstoneError
) -> None:
    data = b"".join(conversation(version))
    steps, has_ended = 0, False
    while not has_ended:
        wire = bench.core.wire(version)
        wire.send_bytes(data)
        for _ in range(steps):
            has_ended = not bench.step()
        bench.error = error
        for _ in range(steps % 3):
            bench.step()
        wire.drop()
        bench.finish()
        bench.error = None
        bench.demand_rest()
        steps += 1
    assert steps > len(conversation(version))
    bench.demand_entry(version)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("clean_start", [False, True])
def test_after_any_wait_another_connection_takes_over(
    bench: Bench, version: Version, *, clean_start: bool
) -> None:
    first = b"".join(conversation(version))
    second = b"".join(conversation(version, clean_start=clean_start))
    steps, has_ended = 0, False
    while not has_ended:
        wires = [bench.core.wire(version) for _ in range(3)]
        wires[0].send_bytes(first)
        for _ in range(steps):
            has_ended = not bench.step()
        wires[1].send_bytes(second)
        for _ in range(steps // 2):
            bench.step()
        wires[2].send_bytes(first)
        bench.finish()
        assert [wire.is_closed for wire in wires] == [True, True, False]
        assert list(bench.core.broker.clients) == ["radio"]
        wires[2].drop()
        bench.finish()
        bench.demand_rest()
        steps += 1
    bench.demand_entry(version)


@dataclass(frozen=True, kw_only=True)
class Life:
    """One connection: what is sent, and what happens until it is cut.

    `pieces` are the ends of what is sent at once, each with the steps after it. `error` is the
    outcome of the appends of the last steps. An `overlapping` connection is not cut: the next one
    takes over.
    """

    version: Version
    clean_start: bool
    expiry_seconds: int
    cut: int
    pieces: list[tuple[int, int]]
    error: SiltstoneError | None
    last_steps: int
    overlapping: bool
    steps_after: int
    seconds_after: float


lives = st.builds(
    Life,
    version=st.sampled_from(VERSIONS),
    clean_start=st.sampled_from((False, False, False, True)),
    expiry_seconds=st.sampled_from((300, 300, 1, 0)),
    # All bytes are sent more often than a part of them.
    cut=st.integers(0, 600),
    pieces=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 12)), max_size=4),
    error=st.sampled_from((None, None, *ERRORS)),
    last_steps=st.integers(0, 12),
    overlapping=st.booleans(),
    steps_after=st.integers(0, 12),
    seconds_after=st.sampled_from((0.0, 0.0, 0.6, 2.0, 100.0)),
)


def live(bench: Bench, life: Life) -> Wire:
    """Let a connection happen up to its end; return it, cut or not."""
    wire = bench.core.wire(life.version)
    packets = conversation(
        life.version, clean_start=life.clean_start, expiry_seconds=life.expiry_seconds
    )
    data = b"".join(packets)[: life.cut]
    sent = 0
    for end, steps in [*sorted(life.pieces), (len(data), 0)]:
        stop = max(sent, min(end, len(data)))
        wire.send_bytes(data[sent:stop])
        sent = stop
        for _ in range(steps):
            bench.step()
    bench.error = life.error
    for _ in range(life.last_steps):
        bench.step()
    if not life.overlapping:
        wire.drop()
    for _ in range(life.steps_after):
        bench.step()
    bench.error = None
    bench.pass_time(life.seconds_after)
    return wire


@settings(max_examples=60)
@given(rule=st.sampled_from(sorted(RULES)), given_lives=st.lists(lives, min_size=1, max_size=8))
def test_after_any_history_of_cuts_the_client_gets_in_again(
    rule: str, given_lives: list[Life]
) -> None:
    bench = Bench(rules=RULES[rule])
    with closing(bench.core):
        wires = [live(bench, life) for life in given_lives]
        bench.finish()
        for wire in wires:
            wire.drop()
        bench.finish()
        # What a failed save left is tried again.
        bench.pass_time(1.0)
        bench.finish()
        bench.demand_rest()
        bench.demand_entry(given_lives[-1].version)
