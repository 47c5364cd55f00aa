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
        self._turn = 0

    def join(self, subscriber: Subscriber) -> None:
        """Add a member, or replace its earlier subscription."""
        for index, member in enumerate(self.members):
            if member.outbox is subscriber.outbox:
                self.members[index] = subscriber
                return
        self.members.append(subscriber)

    def leave(self, outbox: Outbox) -> None:
        """Remove a member."""
        self.members = [member for member in self.members if member.outbox is not outbox]

    def choose(self, topic: bytes, source: Outbox | None) -> Subscriber | None:
        """Return the member that gets the next message; None if no member may read it."""
        count = len(self.members)
        start = self._start(topic, source, count)
        found: Subscriber | None = None
        found_rank = 0
        for step in range(count):
            member = self.members[(start + step) % count]
            rank = self._rank(member.outbox)
            if rank <= found_rank or not member.may_receive(topic):
                continue
            found = member
            found_rank = rank
            # The first member in turn that can receive the message at once gets it.
            if rank == _CLEAR and self.strategy != LEAST_LOADED:
                break
        if self.strategy == LEAST_LOADED and found is not None:
            found = self._least_loaded(topic, found_rank)
        return found

    def _start(self, topic: bytes, source: Outbox | None, count: int) -> int:
        if self.strategy == RANDOM:
            return random.randrange(count)  # noqa: S311 - it spreads load and guards nothing
        if self.strategy == STICKY_TOPIC:
            return hash(topic) % count
        if self.strategy == STICKY:
            return hash(topic if source is None else source) % count
        self._turn += 1
        return self._turn % count

    def _rank(self, outbox: Outbox) -> int:
        if not outbox.attached:
            return _AWAY
        is_sticky = self.strategy == STICKY or self.strategy == STICKY_TOPIC  # noqa: PLR1714 - faster
        return _CLEAR if is_sticky or outbox.is_clear() else _BUSY

    def _least_loaded(self, topic: bytes, rank: int) -> Subscriber | None:
        """Return the member of this rank with the fewest messages under way.

        Among equal members the first in turn is returned.
        """
        best: Subscriber | None = None
        count = len(self.members)
        for step in range(count):
            member = self.members[(self._turn + step) % count]
            if self._rank(member.outbox) != rank or not member.may_receive(topic):
                continue
            if best is None or _load(member.outbox) < _load(best.outbox):
                best = member
        return best


def _load(outbox: Outbox) -> int:
    return outbox.inflight + outbox.queued
