"""One outbox against a naive model: any offers, acknowledgements, connections and limits.

The model knows what waits and what is in flight; the machine reads every byte that is written and
holds it against the model: messages of any QoS leave in the order in which they were offered, at
most `window` of them are unacknowledged, their packet ids are unique, DUP stands exactly on what is
sent again, nothing that could be sent waits, and nothing is lost without being counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from math import ceil

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from siltstone.mqtt.publish import PUBACK, PUBCOMP, PUBREC, PUBREL, publish_size
from siltstone.mqtt.wire import Version
from siltstone.session.sending.delivery import NEVER, Budget, Delivery
from siltstone.session.sending.outbox import Outbox, Ready
from tests.support.packets import V5, Ack, Message, Raw
from tests.support.receiver import PLENTY, Receiver

DUP = 8
# What a waiting message takes beside its bytes.
OVERHEAD = Delivery(b"", b"", 0, b"", NEVER).size()
BYTES_MAX = 4 * OVERHEAD

TOPICS = st.sampled_from((b"t", b"a/long/topic/with/levels", b"b"))
SIZES = st.sampled_from((4, 4, 4, 4, 100, 2 * OVERHEAD, BYTES_MAX + 1))
EXPIRIES = st.sampled_from((None, None, 0, 1, 5, 100))
OFFERS = st.lists(
    st.tuples(st.integers(0, 2), TOPICS, SIZES, EXPIRIES, st.booleans()), min_size=1, max_size=8
)
INDEXES = st.integers(0, 1_000)


@dataclass
class Item:
    """One message, as the model knows it."""

    number: int
    topic: bytes
    payload: bytes
    flags: int
    expiry: int | None
    expires_at: float
    packet_id: int = 0
    is_released: bool = False

    @property
    def qos(self) -> int:
        return self.flags & 3

    def properties(self, seconds: int | None) -> bytes:
        return b"" if seconds is None else b"\2" + seconds.to_bytes(4)

    @property
    def size(self) -> int:
        if self.is_released:
            return OVERHEAD + len(self.topic)
        return OVERHEAD + len(self.topic) + len(self.payload) + len(self.properties(self.expiry))

    def left(self, now: float) -> int | None:
        """Return the interval that it must say when it is sent late."""
        if self.expiry is None:
            return None
        left_us = round((self.expires_at - now) * 1_000_000)
        # A second is taken off when it has passed whole; the last one never is.
        return min(self.expiry, max(1, ceil(left_us / 1_000_000)))


@dataclass
class Connection:
    """What one connection agreed on."""

    receiver: Receiver
    version: Version
    window: int
    packet_size_max: int


class OutboxMachine(RuleBasedStateMachine):
    """One session, connected or not, among others that hold bytes too."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000.0
        self.numbers = count()
        self.waiting: list[Item] = []
        self.inflight: dict[int, Item] = {}
        self.connection: Connection | None = None
        # In flight and sent on this connection; and in flight, but not sent again yet.
        self.unacknowledged: set[int] = set()
        self.again: list[Item] = []
        self.others_bytes = 0
        # Since the last look at what was written.
        self.direct: list[Item] = []

    @initialize(
        messages_max=st.sampled_from((1, 3, 100)),
        budget=st.sampled_from((3 * OVERHEAD, PLENTY)),
        drop_old=st.booleans(),
    )
    def create(self, messages_max: int, budget: int, drop_old: bool) -> None:
        self.messages_max = messages_max
        self.drop_old = drop_old
        self.budget = Budget(budget)
        self.begin_session()

    def begin_session(self) -> None:
        self.outbox = Outbox(
            Ready(lambda: None), self.budget, self.messages_max, BYTES_MAX, self.drop_old
        )

    # What happens.

    @rule(offers=OFFERS)
    def offer(self, offers: list[tuple[int, bytes, int, int | None, bool]]) -> None:
        for qos, topic, size, expiry, retain in offers:
            number = next(self.numbers)
            item = Item(
                number=number,
                topic=topic,
                payload=b"%d".ljust(size, b".") % number,
                flags=qos | retain << 2,
                expiry=expiry,
                expires_at=NEVER if expiry is None else self.now + expiry,
            )
            self.offer_one(item)
        self.flush()

    def offer_one(self, item: Item) -> None:
        outbox = self.outbox
        sent, dropped, queued = outbox.sent, outbox.dropped, outbox.queued
        may_be_sent = self.connection is not None and not self.waiting and not self.again
        properties = item.properties(item.expiry)
        outbox.offer(item.topic, item.payload, item.flags, properties, item.expires_at)
        lost = outbox.dropped - dropped
        if outbox.sent > sent:
            assert may_be_sent
            assert (outbox.sent, lost, outbox.queued) == (sent + 1, 0, 0)
            self.direct.append(item)
        elif item.qos == 0 and self.connection is None:
            assert (lost, outbox.queued) == (0, queued)
        elif may_be_sent and lost and self.exceeds(item):
            assert (lost, outbox.queued) == (1, queued)
        else:
            self.queue(item, lost)

    def queue(self, item: Item, lost: int) -> None:
        """Hold what was dropped against the limits, and take the rest over."""
        # QoS 0 takes the place of QoS 0 only.
        old = [other for other in self.waiting if item.qos or not other.qos]
        old = old if self.drop_old else []
        for drop in range(len(old) + 1):
            kept = [other for other in self.waiting if other not in old[:drop]]
            if self.has_room(item, kept, old[:drop]):
                # No more is dropped than makes room.
                assert lost == drop
                self.waiting = [*kept, item]
                break
        else:
            # The newest is refused, and nothing dropped for it in vain.
            assert lost == 1

    def has_room(self, item: Item, waiting: list[Item], dropped: list[Item]) -> bool:
        own = sum(other.size for other in waiting)
        sent = [direct for direct in self.direct if direct.qos]
        total = own + sum(other.size for other in (*self.inflight.values(), *sent))
        return (
            len(waiting) < self.messages_max
            and own + item.size <= BYTES_MAX
            and (
                sum(other.size for other in dropped) >= item.size
                or self.others_bytes + total + item.size <= self.budget.bytes_max
            )
        )

    def exceeds(self, item: Item) -> bool:
        connection = self.connection
        assert connection is not None
        size = publish_size(
            connection.version,
            item.topic,
            item.payload,
            item.flags,
            item.properties(item.expiry),
        )
        return 0 < connection.packet_size_max < size

    @rule(
        version=st.sampled_from(Version),
        window=st.sampled_from((1, 2, 3, 10)),
        packet_size_max=st.sampled_from((0, 0, 0, 20, 120)),
        buffer_max=st.sampled_from((1, 40, PLENTY, PLENTY)),
        alias_max=st.sampled_from((0, 1, 10)),
    )
    def attach(
        self, version: Version, window: int, packet_size_max: int, buffer_max: int, alias_max: int
    ) -> None:
        if self.connection is not None:
            self.detach()
        self.again = [item for item in self.inflight.values() if not item.is_released]
        released = [item.packet_id for item in self.inflight.values() if item.is_released]
        self.unacknowledged = set(released)
        receiver = Receiver(
            self.outbox,
            version=version,
            window=window,
            packet_size_max=packet_size_max,
            buffer_max=buffer_max,
            alias_max=alias_max if version is V5 else 0,
            now=self.now,
        )
        self.connection = Connection(receiver, version, window, packet_size_max)
        # PUBREL waits for no window, and holds a place in it.
        self.flush([Ack(PUBREL, packet_id) for packet_id in released])

    @precondition(lambda self: self.connection is not None)
    @rule()
    def detach(self) -> None:
        self.outbox.detach()
        self.connection = None
        self.unacknowledged = set()
        self.again = []
        self.waiting = [item for item in self.waiting if item.qos]

    @precondition(lambda self: self.connection is not None)
    @rule()
    def pause_or_resume(self) -> None:
        self.outbox.paused = not self.outbox.paused
        if not self.outbox.paused:
            self.outbox.pump(self.now)
            self.flush()

    @rule(seconds=st.sampled_from((0.25, 1.0, 3.0, 50.0)))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(used=st.sampled_from((0, 2 * OVERHEAD, 20 * OVERHEAD)))
    def others_hold(self, used: int) -> None:
        self.budget.used += used - self.others_bytes
        self.others_bytes = used

    @precondition(lambda self: self.unacknowledged)
    @rule(indexes=st.lists(INDEXES, min_size=1, max_size=4))
    def acknowledge(self, indexes: list[int]) -> None:
        """Take the next step of some messages, in any order, those of one kind together."""
        known = sorted(self.unacknowledged)
        steps: dict[int, list[int]] = {}
        for packet_id in dict.fromkeys(known[index % len(known)] for index in indexes):
            item = self.inflight[packet_id]
            first = PUBACK if item.qos == 1 else PUBCOMP if item.is_released else PUBREC
            steps.setdefault(first, []).append(packet_id)
        for first, packet_ids in steps.items():
            self.outbox.acknowledge(first, packet_ids, self.now)
            answers: list[Ack] = []
            for packet_id in packet_ids:
                if first == PUBREC:
                    self.inflight[packet_id].is_released = True
                    answers.append(Ack(PUBREL, packet_id))
                else:
                    self.end(packet_id)
            self.flush(answers)

    @precondition(lambda self: self.unacknowledged)
    @rule(index=INDEXES)
    def refuse(self, index: int) -> None:
        known = sorted(self.unacknowledged)
        packet_id = known[index % len(known)]
        first = PUBACK if self.inflight[packet_id].qos == 1 else PUBREC
        assert self.outbox.refuse(first, packet_id, self.now) == 0
        if not self.inflight[packet_id].is_released:
            self.end(packet_id)
        self.flush()

    @precondition(lambda self: self.connection is not None)
    @rule(first=st.sampled_from((PUBACK, PUBREC, PUBCOMP)), index=INDEXES)
    def acknowledge_wrongly(self, first: int, index: int) -> None:
        """Acknowledge what is unknown, not sent again yet, of another QoS, or at another step."""
        known = [item.packet_id for item in self.again] or [*self.inflight, 65_535]
        packet_id = known[index % len(known)]
        wrong = packet_id if packet_id in self.unacknowledged else 0
        if wrong:
            item = self.inflight[packet_id]
            right = PUBACK if item.qos == 1 else PUBCOMP if item.is_released else PUBREC
            # A PUBREC that comes twice is answered twice.
            if first == right or (first == PUBREC and item.qos == 2):
                return
        assert self.outbox.acknowledge(first, [packet_id], self.now) == wrong
        assert self.connection is not None
        answers: list[Ack] | list[Raw] = []
        if first == PUBREC and not wrong:
            unknown = Raw(PUBREL, packet_id.to_bytes(2) + b"\x92")
            answers = [unknown] if self.connection.version is V5 else [Ack(PUBREL, packet_id)]
        self.flush(answers)

    def end(self, packet_id: int) -> None:
        del self.inflight[packet_id]
        self.unacknowledged.remove(packet_id)

    # What is written.

    def flush(self, answers: Sequence[Ack | Raw] = ()) -> None:
        """Read what is written, turn by turn, as long as there is any; answers come first."""
        if self.connection is None:
            return
        expected = list(answers)
        while self.outbox.touched:
            for item in self.connection.receiver.read():
                if expected:
                    assert item == expected.pop(0)
                else:
                    assert isinstance(item, Message)
                    self.sent(item)
            if self.outbox.waits:
                self.outbox.pump(self.now)
        assert (expected, self.direct) == ([], [])
        self.forget_what_ended()

    def sent(self, message: Message) -> None:
        connection = self.connection
        assert connection is not None
        number = int(message.payload.rstrip(b"."))
        if message.flags & DUP:
            item = self.next_again(number)
            seconds = item.left(self.now)
        elif self.direct:
            item = self.direct.pop(0)
            seconds = item.expiry
        else:
            item = self.next_waiting(number)
            seconds = item.left(self.now)
        if connection.version is not V5:
            seconds = None
        assert message == Message(
            item.topic,
            item.payload,
            item.flags | message.flags & DUP,
            message.packet_id,
            item.properties(seconds),
            -1 if seconds is None else seconds,
        )
        assert not self.exceeds(item)
        if item.qos == 0:
            assert message.packet_id == 0
            return
        if message.flags & DUP:
            assert message.packet_id == item.packet_id
        else:
            assert message.packet_id not in self.inflight
            item.packet_id = message.packet_id
            self.inflight[item.packet_id] = item
        self.unacknowledged.add(item.packet_id)
        assert len(self.unacknowledged) <= connection.window

    def next_again(self, number: int) -> Item:
        self.drop_what_exceeds()
        item = self.again.pop(0)
        assert item.number == number
        return item

    def drop_what_exceeds(self) -> None:
        """End what is to be sent again, but is too large for this connection."""
        while self.again and self.exceeds(self.again[0]):
            del self.inflight[self.again.pop(0).packet_id]

    def next_waiting(self, number: int) -> Item:
        self.drop_what_exceeds()
        assert self.again == []
        while self.waiting[0].number != number:
            self.pass_over(self.waiting.pop(0))
        item = self.waiting.pop(0)
        assert item.expiry is None or item.expires_at > self.now
        return item

    def pass_over(self, item: Item) -> None:
        is_expired = item.expiry is not None and item.expires_at <= self.now
        assert is_expired or self.exceeds(item)

    def forget_what_ended(self) -> None:
        """Take over what was passed over behind the last message that was sent."""
        queued = self.outbox.queued
        if self.outbox.inflight < len(self.inflight):
            self.drop_what_exceeds()
        while len(self.waiting) > queued:
            self.pass_over(self.waiting.pop(0))

    # What always holds.

    @invariant()
    def counts_agree(self) -> None:
        assert (self.outbox.queued, self.outbox.inflight) == (
            len(self.waiting),
            len(self.inflight),
        )
        held = sum(item.size for item in (*self.waiting, *self.inflight.values()))
        assert self.budget.used == self.others_bytes + held
        assert len(self.waiting) <= self.messages_max

    @invariant()
    def nothing_waits_that_could_be_sent(self) -> None:
        connection = self.connection
        if connection is None or self.outbox.paused:
            return
        is_open = len(self.unacknowledged) < connection.window
        assert not self.again or not is_open
        if self.waiting and not self.again:
            held = sum(item.size for item in self.inflight.values())
            assert self.waiting[0].qos
            assert not is_open or held >= BYTES_MAX
        assert self.outbox.is_clear() is (
            not self.waiting
            and not self.again
            and is_open
            and sum(item.size for item in self.inflight.values()) < BYTES_MAX
        )

    @rule(chance=st.integers(0, 7))
    def drain(self, chance: int) -> None:
        """Acknowledge everything, on a connection that takes everything, and end the session."""
        if chance:
            return
        self.attach(V5, 5, 0, PLENTY, 0)
        for _ in range(2 * (len(self.waiting) + len(self.inflight))):
            if self.unacknowledged:
                self.acknowledge([0])
        assert (self.waiting, self.inflight) == ([], {})
        assert self.budget.used == self.others_bytes
        self.offer([(qos, b"t", 4, None, False) for qos in (1, 2, 1, 2, 1, 2)])
        self.detach()
        self.outbox.discard()
        assert self.budget.used == self.others_bytes
        self.outbox.offer(b"t", b"late", 1, b"", NEVER)
        assert (self.outbox.queued, self.budget.used) == (0, self.others_bytes)
        self.waiting = []
        self.inflight = {}
        self.begin_session()


OutboxMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestOutbox = OutboxMachine.TestCase
