"""Subscriptions and share groups in memory: each message goes to one member of a group (4.8.2).

A member that can receive a message at once is preferred to a connected member with a queue, and
this one to a disconnected member. Among equal members the strategy decides: in turn, at random, the
member with the fewest messages under way, or always the same member for the messages of a publisher
or of a topic. With the last two, messages wait for a busy member, so that they stay in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from siltstone.session.sending.outbox import Outbox

ROUND_ROBIN: Final = "round-robin"
RANDOM: Final = "random"
LEAST_LOADED: Final = "least-loaded"
STICKY: Final = "sticky"
STICKY_TOPIC: Final = "sticky-topic"

# When a member can receive a message: at once, later, or after it connects again.
_CLEAR: Final = 3
_BUSY: Final = 2
_AWAY: Final = 1

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

    def may_receive(self, topic: bytes) -> bool:
        guard = self.guard
        return guard is None or guard(topic)

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


class ShareGroup:
    """The members of one group and filter, in the order in which they joined."""

    def __init__(self, name: str, strategy: str) -> None:
        self.name = name
        self.strategy = strategy
        self.members: list[Subscriber] = []
        # The index of the member that got the last message.
        self._last = 0

    def join(self, subscriber: Subscriber) -> None:
        """Add a member, or replace its earlier subscription."""
        for index, member in enumerate(self.members):
            if member.outbox is subscriber.outbox:
                self.members[index] = subscriber
                return
        self.members.append(subscriber)

    def leave(self, outbox: Outbox) -> None:
        """Remove a member."""
        for index, member in enumerate(self.members):
            if member.outbox is outbox:
                del self.members[index]
                if index <= self._last:
                    # The turn continues with the member that followed.
                    self._last -= 1
                return

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
            rank = self._rank(member.outbox)
            if rank < found_rank:
                continue
            load = _load(member.outbox) if is_by_load else 0
            if (rank > found_rank or load < found_load) and member.may_receive(topic):
                found, found_rank, found_load = index, rank, load
                if rank == _CLEAR and not is_by_load:
                    break
        return found

    def _at_random(self, topic: bytes) -> int:
        """Return any of the best members for a message."""
        best: list[int] = []
        best_rank = 0
        for index, member in enumerate(self.members):
            rank = self._rank(member.outbox)
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
            rank = self._rank(member.outbox)
            if rank < found_rank:
                continue
            order = _mixed(key, hash(member.outbox))
            if (rank > found_rank or order > found_order) and member.may_receive(topic):
                found, found_rank, found_order = index, rank, order
        return found

    def _rank(self, outbox: Outbox) -> int:
        if not outbox.attached:
            return _AWAY
        is_sticky = self.strategy == STICKY or self.strategy == STICKY_TOPIC  # noqa: PLR1714 - faster
        return _CLEAR if is_sticky or outbox.is_clear() else _BUSY


def _mixed(key: int, member: int) -> int:
    """Return a number for a key and a member. The hash of a tuple is not even enough here."""
    mixed = ((key ^ member * _MIX) & _MASK) * _MIX & _MASK
    return ((mixed ^ mixed >> 32) * _MIX & _MASK) >> 8


def _load(outbox: Outbox) -> int:
    return outbox.inflight + outbox.queued
