"""Subscriptions and share groups in memory: each message goes to one member of a group (4.8.2).

A member that can receive a message at once is preferred to a connected member with a queue, and
this one to a disconnected member. Among equal members the strategy decides: in turn, at random, the
member with the fewest messages under way, or always the same member for the messages of a publisher
or of a topic. With the last two, messages wait for a busy member, so that they stay in order.

With `least-loaded`, a member gets as many messages of QoS 1 and 2 as it acknowledges in a short
time, as in a group that reads the store: `Member` measures that. The others wait in the queue of
the group until a member acknowledges something.

Invariants: messages wait in the group only while each connected member has all that it may hold, or
no member is connected. The queue of the group has the limits of a session. When it is full, its
oldest messages go to the queues of members, where the limits and the drop policy of sessions apply.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from siltstone.mqtt.publish import with_time_left
from siltstone.session.lending import Member
from siltstone.session.sending.delivery import NEVER, Budget, Delivery
from siltstone.session.sending.outbox import Outbox, Ready
from siltstone.session.sending.waiting import Waiting
from siltstone.units import SECOND_US

ROUND_ROBIN: Final = "round-robin"
RANDOM: Final = "random"
LEAST_LOADED: Final = "least-loaded"
STICKY: Final = "sticky"
STICKY_TOPIC: Final = "sticky-topic"

# When a member can receive a message: at once, later, or after it connects again.
_CLEAR: Final = 3
_BUSY: Final = 2
_AWAY: Final = 1

_STUCK_SECONDS: Final = 1.0
_RELIEVED_MAX: Final = 1_000
# The flags of a message that its receivers may see: QoS and retain.
_MESSAGE_FLAGS: Final = 7
# Loads are compared in this part of the credit.
_FULL: Final = 1 << 20
_MASK: Final = (1 << 64) - 1
_MIX: Final = 0x9E37_79B9_7F4A_7C15


class Subscriber:
    """One subscription of one session, as the router needs it."""

    def __init__(
        self,
        outbox: Outbox,
        qos: int,
        no_local: bool,
        keeps_retain: bool,
        identifier: bytes,
        guard: Callable[[bytes], bool] | None,
    ) -> None:
        self.outbox = outbox
        self.qos = qos
        self.no_local = no_local
        self.keeps_retain = keeps_retain
        # The encoded property, or empty.
        self.identifier = identifier
        # Returns whether the session may read a topic; None if it may read all topics.
        self.guard = guard
        # How fast the session acknowledges; None if its group sends everything at once.
        self.pace: Member | None = None

    def may_receive(self, topic: bytes) -> bool:
        guard = self.guard
        return guard is None or guard(topic)

    def flags_of(self, flags: int) -> int:
        """Return the flags with which the session gets a message that has these flags."""
        # [MQTT-3.8.4-8]; [MQTT-3.3.1-12], [MQTT-3.3.1-13].
        return min(flags & 3, self.qos) | (flags & 4 if self.keeps_retain else 0)

    def send(
        self, topic: bytes, payload: bytes, flags: int, properties: bytes, expires_at: float
    ) -> None:
        """Offer a message with the options of this subscription."""
        offer_message(
            self.outbox,
            self.qos,
            self.keeps_retain,
            self.identifier,
            topic,
            payload,
            flags,
            properties,
            expires_at,
        )


def offer_message(
    outbox: Outbox,
    qos_max: int,
    keeps_retain: bool,
    identifiers: bytes,
    topic: bytes,
    payload: bytes,
    flags: int,
    properties: bytes,
    expires_at: float,
) -> None:
    """Offer a message with the QoS, retain flag and identifiers of the subscriptions."""
    qos = flags & 3
    # [MQTT-3.8.4-8]: the lower QoS of the message and the subscription.
    qos = min(qos, qos_max)
    # [MQTT-3.3.1-12], [MQTT-3.3.1-13].
    if keeps_retain:
        qos |= flags & 4
    if identifiers:
        properties += identifiers
    outbox.offer(topic, payload, qos, properties, expires_at)


class LendingTerms:
    """The limits of the queue of a group, and of the messages that one member may hold."""

    def __init__(
        self, ready: Ready, budget: Budget, messages_max: int, bytes_max: int, credit_max: int
    ) -> None:
        self.ready = ready
        self.budget = budget
        self.messages_max = messages_max
        self.bytes_max = bytes_max
        self.credit_max = credit_max


class ShareGroup:
    """The members of one group and filter, in the order in which they joined.

    Without terms, messages do not wait in the group.
    """

    def __init__(self, name: str, strategy: str, terms: LendingTerms | None = None) -> None:
        self.name = name
        self.strategy = strategy
        self._terms = terms if strategy == LEAST_LOADED else None
        self._queue: Waiting | None = None
        if terms is not None and strategy == LEAST_LOADED:
            self._queue = Waiting(terms.budget, terms.messages_max, terms.bytes_max, False)  # noqa: FBT003 - by position
        # Called before the next change of the queue.
        self.watch: Callable[[ShareGroup], None] | None = None
        # Callbacks for the time when the queue is short again.
        self._relieved: list[Callable[[], None]] = []
        # The number of messages that left the queue, its value when `is_stuck` last saw it change,
        # and the time of that.
        self._lent = 0
        self._looked_lent = -1
        self._looked_at = 0.0
        # When the member that `_next` found can receive a message.
        self._found_rank = 0
        self.members: list[Subscriber] = []
        # The index of the member that got the last message.
        self._last = 0

    def join(self, subscriber: Subscriber) -> None:
        """Add a member, or replace its earlier subscription."""
        for index, member in enumerate(self.members):
            if member.outbox is subscriber.outbox:
                subscriber.pace = member.pace
                self.members[index] = subscriber
                return
        terms = self._terms
        if terms is not None:
            pace = Member(subscriber.outbox, 0, False, b"", None, terms.credit_max)  # noqa: FBT003 - by position
            pace.begin_slowly()
            subscriber.pace = pace
        self.members.append(subscriber)

    def leave(self, outbox: Outbox) -> None:
        """Remove a member."""
        for index, member in enumerate(self.members):
            if member.outbox is outbox:
                del self.members[index]
                if index <= self._last:
                    # The turn continues with the member that followed.
                    self._last -= 1
                break
        queue = self._queue
        if not self.members and queue is not None:
            # [MQTT-3.10.4-2]: the group ends, and nothing that was not sent is sent any more.
            self._changing()
            queue.clear()
            self._relieve()

    @property
    def queued(self) -> int:
        """The number of messages that wait until a member can take them."""
        queue = self._queue
        return 0 if queue is None else len(queue)

    def waiting(self) -> list[Delivery]:
        """Return the messages that wait, in order, without the options of a subscription."""
        queue = self._queue
        return [] if queue is None else queue.messages()

    def offer(
        self,
        topic: bytes,
        payload: bytes,
        flags: int,
        properties: bytes,
        expires_at: float,
        source: Outbox | None,
        now: float,
    ) -> bool:
        """Send a message to a member, or let it wait; return whether messages wait."""
        queue = self._queue
        if queue is None or flags & 3 == 0:
            self._send_on(topic, payload, flags, properties, expires_at, source)
            return False
        if not queue:
            index = self._next(topic)
            if index < 0:
                return False
            if self._found_rank != _BUSY or not self._may_all_receive(topic):
                self._last = index
                self.members[index].send(topic, payload, flags, properties, expires_at)
                return False
            self._measure(now)
        elif not self._may_all_receive(topic):
            self._send_on(topic, payload, flags, properties, expires_at, source)
            return True
        delivery = Delivery(topic, payload, flags & _MESSAGE_FLAGS, properties, expires_at)
        self._wait(queue, delivery, now)
        return len(queue) > 0

    def _send_on(
        self,
        topic: bytes,
        payload: bytes,
        flags: int,
        properties: bytes,
        expires_at: float,
        source: Outbox | None,
    ) -> None:
        member = self.choose(topic, source)
        if member is not None:
            member.send(topic, payload, flags, properties, expires_at)

    def replenish(self, outbox: Outbox, now: float) -> None:
        """Send waiting messages, after a member has acknowledged something or has connected."""
        for member in self.members:
            pace = member.pace
            if member.outbox is outbox and pace is not None:
                pace.learn(now)
                self._lend(now)
                return

    def look(self, now: float) -> None:
        """Raise the credit of members that hold all they may and acknowledged nothing for long.

        Called once a second while messages wait.
        """
        for member in self.members:
            pace = member.pace
            if pace is None:
                continue
            pace.learn(now)
            acks = pace.outbox.completed
            if acks == pace.seen_acks and pace.load() > 0:
                pace.insist()
            pace.seen_acks = acks
        self._lend(now)

    def when_relieved(self, act: Callable[[], None]) -> None:
        """Call `act` once, when most of the queue was sent or the group has ended."""
        self._relieved.append(act)
        if len(self._relieved) > _RELIEVED_MAX:
            # Most of these callers have stopped waiting long ago.
            self._relieve()

    def is_stuck(self, now: float) -> bool:
        """Tell whether waiting is useless: no member reads, or nothing was sent for a second."""
        if not self._has_connected():
            return True
        if self._lent != self._looked_lent:
            self._looked_lent = self._lent
            self._looked_at = now
        return now - self._looked_at > _STUCK_SECONDS

    def _may_all_receive(self, topic: bytes) -> bool:
        """Tell whether all connected members may read a topic.

        Other messages do not wait in the group, because they could hold up later ones.
        """
        for member in self.members:
            if member.outbox.attached and not member.may_receive(topic):
                return False
        return True

    def _wait(self, queue: Waiting, delivery: Delivery, now: float) -> None:
        """Add a message to the queue; make room by giving the oldest ones to members."""
        self._changing()
        size = delivery.size()
        terms = self._terms
        assert terms is not None
        # If there is still no room then, the budget of all sessions is used up, or the message is
        # too large. Moving more messages would not help.
        left = size if size <= terms.bytes_max else 0
        while queue and left > 0 and not queue.has_room(size):
            oldest = queue.pop()
            left -= oldest.size()
            self._give(oldest, self._next(oldest.topic), now)
        if queue.has_room(size):
            queue.add_row(delivery)
        else:
            self._give(delivery, self._next(delivery.topic), now)
        if queue.is_long():
            terms.ready.behind = self

    def _lend(self, now: float) -> None:
        """Send waiting messages to the members that can take them."""
        queue = self._queue
        if queue is None:
            return
        while queue:
            index = self._next(queue.first_topic())
            # If rights have changed, connected members may not read some waiting messages. These
            # are not kept.
            if index >= 0 and (
                self._found_rank == _BUSY
                or (self._found_rank == _AWAY and not self._has_connected())
            ):
                break
            self._changing()
            self._give(queue.pop(), index, now)
        self._measure(now)
        if self._relieved and queue.is_short():
            self._relieve()

    def _give(self, delivery: Delivery, index: int, now: float) -> None:
        """Send a message that has waited to the member that `_next` found; -1 means none."""
        self._lent += 1
        if index < 0:
            return
        self._last = index
        member = self.members[index]
        expires_at = delivery.expires_at
        properties = delivery.properties
        if expires_at != NEVER:
            if expires_at <= now:
                member.outbox.expired += 1
                return
            # [MQTT-3.3.2-6]. The message itself stays as it is: a snapshot may still need it.
            properties = with_time_left(properties, round((expires_at - now) * SECOND_US))
        member.send(delivery.topic, delivery.payload, delivery.flags, properties, expires_at)

    def _measure(self, now: float) -> None:
        for member in self.members:
            pace = member.pace
            if pace is not None and member.outbox.attached:
                pace.measure(now)

    def _has_connected(self) -> bool:
        return any(member.outbox.attached for member in self.members)

    def _changing(self) -> None:
        watch = self.watch
        if watch is not None:
            watch(self)

    def _relieve(self) -> None:
        relieved, self._relieved = self._relieved, []
        for act in relieved:
            act()

    def choose(self, topic: bytes, source: Outbox | None) -> Subscriber | None:
        """Return the member that gets the next message; None if no member may read it."""
        if self.strategy == RANDOM:
            index = self._at_random(topic)
        elif self.strategy == STICKY_TOPIC or (source is None and self.strategy == STICKY):
            index = self._keeper(topic, hash(topic))
        elif self.strategy == STICKY:
            index = self._keeper(topic, hash(source))
        else:
            index = self._next(topic)
        if index < 0:
            return None
        # The next turn begins behind the member that got the message. If it began behind an absent
        # member, its successor would get the messages of both.
        self._last = index
        return self.members[index]

    def _next(self, topic: bytes) -> int:
        """Return the best member for a message; the first in turn among equal members."""
        count = len(self.members)
        is_by_load = self.strategy == LEAST_LOADED
        found = -1
        found_rank = 0
        found_load = 0
        for step in range(1, count + 1):
            index = (self._last + step) % count
            member = self.members[index]
            rank = self._rank(member)
            if rank < found_rank:
                continue
            load = _load(member, rank) if is_by_load else 0
            if (rank > found_rank or load < found_load) and member.may_receive(topic):
                found, found_rank, found_load = index, rank, load
                if rank == _CLEAR and not is_by_load:
                    break
        self._found_rank = found_rank
        return found

    def _at_random(self, topic: bytes) -> int:
        """Return any of the best members for a message."""
        best: list[int] = []
        best_rank = 0
        for index, member in enumerate(self.members):
            rank = self._rank(member)
            if rank < best_rank or not member.may_receive(topic):
                continue
            if rank > best_rank:
                best, best_rank = [], rank
            best.append(index)
        if not best:
            return -1
        return best[random.randrange(len(best))]  # noqa: S311 - it spreads load and guards nothing

    def _keeper(self, topic: bytes, key: int) -> int:
        """Return the member for all messages of a key.

        Each key has its own order of members. Its first member that is connected gets the messages,
        so the keys of an absent member are spread over all others, and no other key moves.
        """
        found = -1
        found_rank = 0
        found_order = -1
        for index, member in enumerate(self.members):
            rank = self._rank(member)
            if rank < found_rank:
                continue
            order = _mixed(key, hash(member.outbox))
            if (rank > found_rank or order > found_order) and member.may_receive(topic):
                found, found_rank, found_order = index, rank, order
        return found

    def _rank(self, member: Subscriber) -> int:
        outbox = member.outbox
        if not outbox.attached:
            return _AWAY
        is_sticky = self.strategy == STICKY or self.strategy == STICKY_TOPIC  # noqa: PLR1714 - faster
        pace = member.pace
        if pace is not None and pace.load() >= pace.credit:
            return _BUSY
        return _CLEAR if is_sticky or outbox.is_clear() else _BUSY


def _mixed(key: int, member: int) -> int:
    """Return a number for a key and a member. The hash of a tuple is not even enough here."""
    mixed = ((key ^ member * _MIX) & _MASK) * _MIX & _MASK
    return ((mixed ^ mixed >> 32) * _MIX & _MASK) >> 8


def _load(member: Subscriber, rank: int) -> int:
    """Return how much a member has to do. Beyond the credit, the part of its credit counts."""
    outbox = member.outbox
    load = outbox.inflight + outbox.queued
    pace = member.pace
    return load if pace is None or rank == _CLEAR else (load + 1) * _FULL // pace.credit
