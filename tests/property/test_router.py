"""The router against a naive model: who gets which message, how, and that it comes once.

Subscriptions overlap, change while routes are remembered, and may be refused by guards; share
groups come and go with their members. The model asks every filter, for every message.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from siltstone.broker.deliver.router import Router
from siltstone.broker.deliver.shares import LEAST_LOADED, RANDOM, ROUND_ROBIN, STICKY, Subscriber
from siltstone.mqtt.publish import PUBACK, PUBREC, PublishBatch
from siltstone.session.sending.outbox import Outbox
from siltstone.topic.grammar import TopicFilter
from tests.support.packets import Message
from tests.support.receiver import Receiver, make_outbox

SESSIONS = 3
RETAIN = 4

# Few, so that most filters match most of them, and topics come again while routes are remembered.
TOPIC_NAMES = (b"a", b"a/b", b"b/b", b"/b", b"$x/b")
TOPICS = st.sampled_from(TOPIC_NAMES)
FILTERS = st.sampled_from(
    ("#", "+/b", "+/+", "a", "a/#", "a/+", "a/b", "a/b/#", "b/b", "/+", "$x/#")
)
SESSION_INDEXES = st.integers(0, SESSIONS - 1)
GROUPS = st.sampled_from(("g", "h"))
MESSAGES = st.lists(
    st.tuples(TOPICS, st.integers(0, 2), st.booleans(), st.sampled_from((-1, -1, 7))),
    min_size=1,
    max_size=6,
)


@dataclass(frozen=True)
class Asked:
    """How a subscription wants its messages."""

    qos: int
    no_local: bool
    keeps_retain: bool
    # 0 for none.
    identifier: int


ASKED = st.builds(
    Asked,
    qos=st.integers(0, 2),
    no_local=st.booleans(),
    keeps_retain=st.booleans(),
    identifier=st.integers(0, 3),
)


@dataclass
class Session:
    """A session with its subscriptions by filter; what it may not read is in `forbidden`."""

    outbox: Outbox
    receiver: Receiver
    direct: dict[str, Asked] = field(default_factory=dict)
    shared: dict[tuple[str, str], Asked] = field(default_factory=dict)
    forbidden: set[bytes] = field(default_factory=set)

    def may_receive(self, topic: bytes) -> bool:
        return topic not in self.forbidden


# A message as a session gets it: payload, flags, properties and identifiers in any order.
Copy = tuple[bytes, int, bytes, tuple[int, ...]]


def copy_of(message: Message) -> Copy:
    """Return what a session got, and take its identifiers apart from the other properties."""
    properties, identifiers = message.properties, []
    while len(properties) >= 2 and properties[-2] == 0x0B:
        identifiers.append(properties[-1])
        properties = properties[:-2]
    return message.payload, message.flags, properties, tuple(sorted(identifiers))


def expected_copy(
    payload: bytes, properties: bytes, *, qos: int, retain: bool, asked: list[Asked]
) -> Copy:
    """Return what one session gets by all these subscriptions together."""
    flags = min(qos, max(one.qos for one in asked))
    if retain and any(one.keeps_retain for one in asked):
        flags |= RETAIN
    identifiers = tuple(sorted(one.identifier for one in asked if one.identifier))
    return payload, flags, properties, identifiers


class RouterMachine(RuleBasedStateMachine):
    """A router and its sessions, all of them connected."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = count()
        self.joins = count()
        self.sessions: list[Session] = []

    @initialize(
        strategy=st.sampled_from((ROUND_ROBIN, RANDOM, LEAST_LOADED, STICKY)),
        routes_bytes_max=st.sampled_from((1_000, 100_000)),
        guarded=st.booleans(),
    )
    def create(self, strategy: str, routes_bytes_max: int, guarded: bool) -> None:
        self.strategy = strategy
        self.guarded = guarded
        self.router = Router(routes_bytes_max=routes_bytes_max)
        for _ in range(SESSIONS):
            outbox = make_outbox()
            self.sessions.append(Session(outbox, Receiver(outbox, window=65_535)))

    def subscriber(self, session: Session, asked: Asked) -> Subscriber:
        guard: Callable[[bytes], bool] | None = session.may_receive if self.guarded else None
        identifier = bytes([0x0B, asked.identifier]) if asked.identifier else b""
        return Subscriber(
            session.outbox, asked.qos, asked.no_local, asked.keeps_retain, identifier, guard
        )

    @rule(index=SESSION_INDEXES, text=FILTERS, asked=ASKED)
    def subscribe(self, index: int, text: str, asked: Asked) -> None:
        session = self.sessions[index]
        session.direct[text] = asked
        self.router.subscribe(TopicFilter.parse(text).levels, self.subscriber(session, asked))
        self.publish_everywhere(index)

    @rule(index=SESSION_INDEXES, text=FILTERS, number=st.integers(0, 10))
    def unsubscribe(self, index: int, text: str, number: int) -> None:
        """Drop one that there is, or else one that there may not be."""
        session = self.sessions[index]
        known = list(session.direct)
        text = known[number % len(known)] if known else text
        session.direct.pop(text, None)
        self.router.unsubscribe(TopicFilter.parse(text).levels, session.outbox)
        self.publish_everywhere(index)

    @rule(index=SESSION_INDEXES, name=GROUPS, text=FILTERS, asked=ASKED)
    def join(self, index: int, name: str, text: str, asked: Asked) -> None:
        session = self.sessions[index]
        # Its own number, so that what comes through a group is told from all else.
        identifier = 64 + next(self.joins) % 64
        asked = Asked(
            asked.qos, no_local=False, keeps_retain=asked.keeps_retain, identifier=identifier
        )
        session.shared[name, text] = asked
        levels = TopicFilter.parse(text).levels
        self.router.join(name, levels, self.subscriber(session, asked), self.strategy)
        self.publish_everywhere(index)

    @rule(index=SESSION_INDEXES, name=GROUPS, text=FILTERS, number=st.integers(0, 10))
    def leave(self, index: int, name: str, text: str, number: int) -> None:
        session = self.sessions[index]
        known = list(session.shared)
        name, text = known[number % len(known)] if known else (name, text)
        session.shared.pop((name, text), None)
        self.router.leave(name, TopicFilter.parse(text).levels, session.outbox)
        self.publish_everywhere(index)

    @rule(index=SESSION_INDEXES, topic=TOPICS)
    def forbid_or_allow(self, index: int, topic: bytes) -> None:
        if self.guarded:
            self.sessions[index].forbidden ^= {topic}
            self.router.forget_routes()
            self.publish_everywhere(index)

    def publish_everywhere(self, source: int) -> None:
        """Hold every route against the model, and have them remembered until the next change."""
        self.publish(source, [(topic, 2, True, -1) for topic in TOPIC_NAMES])

    @rule(source=st.none() | SESSION_INDEXES, messages=MESSAGES)
    def publish(self, source: int | None, messages: list[tuple[bytes, int, bool, int]]) -> None:
        batch = PublishBatch()
        is_expiring = any(expiry != -1 for *_, expiry in messages)
        for topic, qos, retain, expiry in messages:
            batch.topics.append(topic)
            batch.values.append(b"%d" % next(self.numbers))
            batch.flags.append(qos | retain << 2 | (8 if qos else 0))
            batch.packet_ids.append(1 if qos else 0)
            if is_expiring:
                batch.properties.append(b"" if expiry == -1 else b"\2" + expiry.to_bytes(4))
                batch.expiries.append(expiry)
        outbox = None if source is None else self.sessions[source].outbox
        self.router.dispatch(batch, outbox, 100.0)
        copies = [self.received(session) for session in self.sessions]
        for index, (topic, qos, retain, _) in enumerate(messages):
            payload = batch.values[index]
            properties = batch.properties[index] if is_expiring else b""
            for number, session in enumerate(self.sessions):
                asked = self.direct(session, topic, is_own=number == source)
                if asked:
                    copy = expected_copy(payload, properties, qos=qos, retain=retain, asked=asked)
                    copies[number].remove(copy)
            for members in self.members(topic):
                candidates = [
                    (
                        number,
                        expected_copy(payload, properties, qos=qos, retain=retain, asked=[asked]),
                    )
                    for number, asked in members
                ]
                [(number, copy)] = [
                    (number, copy) for number, copy in candidates if copy in copies[number]
                ]
                copies[number].remove(copy)
        assert copies == [[], [], []]

    def received(self, session: Session) -> list[Copy]:
        """Return what a session got, and acknowledge it; it comes in the order of the batch."""
        messages = session.receiver.messages()
        copies = [copy_of(message) for message in messages]
        assert [int(copy[0]) for copy in copies] == sorted(int(copy[0]) for copy in copies)
        for message in messages:
            if message.flags & 3 == 1:
                session.outbox.acknowledge(PUBACK, [message.packet_id], 0.0)
            elif message.flags & 3 == 2:
                session.outbox.refuse(PUBREC, message.packet_id, 0.0)
        return copies

    def direct(self, session: Session, topic: bytes, *, is_own: bool) -> list[Asked]:
        """Return the subscriptions by which a session gets a message."""
        if self.guarded and not session.may_receive(topic):
            return []
        return [
            asked
            for text, asked in session.direct.items()
            if TopicFilter.parse(text).matches(topic) and not (is_own and asked.no_local)
        ]

    def members(self, topic: bytes) -> list[list[tuple[int, Asked]]]:
        """Return who may get a message, for each group that gets it."""
        groups: dict[tuple[str, str], list[tuple[int, Asked]]] = {}
        for number, session in enumerate(self.sessions):
            if self.guarded and not session.may_receive(topic):
                continue
            for (name, text), asked in session.shared.items():
                if TopicFilter.parse(text).matches(topic):
                    groups.setdefault((name, text), []).append((number, asked))
        return list(groups.values())

    @invariant()
    def it_counts_subscriptions_and_groups(self) -> None:
        if self.sessions:
            groups = {key for session in self.sessions for key in session.shared}
            direct = sum(len(session.direct) for session in self.sessions)
            assert len(self.router) == direct + len(groups)


RouterMachine.TestCase.settings = settings(stateful_step_count=40)
TestRouter = RouterMachine.TestCase
