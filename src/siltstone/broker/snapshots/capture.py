"""The state of a broker in memory at one moment, captured piece by piece.

Retained messages are immutable, so a list of them is a copy. A session is captured when its turn
comes, or just before its first change, whichever is earlier. The capture therefore has the state at
its start, and the loop never does more than a small piece of it at once. Sessions that began later
are not included.

Messages that wait in a share group belong to no session yet. They are captured with one member of
the group, which is chosen at the start. Like a session, they are copied at their turn or just
before they change. The turns of all groups come before those of the sessions.

State that ends with a connection is left out: clients, windows, keep alives, the wills of connected
clients, messages of QoS 0, and sessions that end with their connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from siltstone.broker.broker import Broker
from siltstone.broker.deliver.shares import ShareGroup, Subscriber
from siltstone.broker.retained.log import Retained
from siltstone.broker.retained.spilled import whole
from siltstone.mqtt.encode import encode_message_properties
from siltstone.mqtt.packets import Will
from siltstone.rows.batch import RETAIN
from siltstone.session.sending.delivery import NEVER, Delivery, Run, Spilled
from siltstone.session.sending.outbox import Outbox
from siltstone.session.session import Session
from siltstone.session.subscribed import Subscribed
from siltstone.snapshot.format.records import (
    NEVER_US,
    Handshakes,
    QueuedMessage,
    Record,
    RetainedMessage,
    SessionState,
    SubscriptionState,
    WaitingWill,
)
from siltstone.units import SECOND_US

_ROW_FLAGS: Final = 7
# This many messages take about as long to capture as one session.
_INFLIGHT_PER_COUNT: Final = 8
_QUEUED_PER_COUNT: Final = 250


class CapturedInflight(NamedTuple):
    """A message in flight, as it was when captured."""

    delivery: Delivery
    properties: bytes
    packet_id: int


class Shared:
    """The messages that waited in a share group, once they are copied, and who gets them."""

    def __init__(self, member: Subscriber) -> None:
        self.member = member
        self.waiting: list[Delivery] = []


class Captured(NamedTuple):
    """A session as it was; waiting messages and the payload of the will are read and encoded
    later, because they do not change.
    """

    client_id: str
    user: str
    expiry_seconds: int
    last_active: float
    subscriptions: list[Subscribed]
    inflight: list[CapturedInflight]
    waiting: list[Delivery | Run]
    received: tuple[int, ...]
    released: tuple[int, ...]
    will: tuple[Will, Spilled | None, float] | None
    shared: list[Shared]


class Capture:
    """The state of a broker at one moment.

    `step` and `close` are called on the loop, `records` on any thread.
    """

    def __init__(self, broker: Broker) -> None:
        assert broker.ready.watch is None, "one at a time"
        self._broker = broker
        self._now = broker.shell.now()
        self._now_us = broker.clock.now_us()
        self.retained = broker.retained.all()
        # Reversed, so that `pop` releases each session at its turn: releasing all of them at the
        # end would block the loop.
        self._sessions = list(broker.registry.sessions.values())
        self._sessions.reverse()
        self._taken: list[Captured] = []
        # By the client id of the member; and those whose messages are not copied yet.
        self._shared: dict[str, list[Shared]] = {}
        self._uncopied: dict[ShareGroup, Shared] = {}
        for group in broker.router.waiting_groups():
            self._assign(group)
        broker.ready.epoch += 1
        broker.ready.watch = self._take

    def step(self, count: int) -> list[Captured] | None:
        """Capture up to `count` more groups and sessions, fewer if they have many messages.

        Return the sessions captured since the last call, possibly none. None means that all were
        returned.
        """
        uncopied = self._uncopied
        while count > 0 and uncopied:
            group, shared = uncopied.popitem()
            _copy(group, shared)
            count -= 1 + len(shared.waiting) // _QUEUED_PER_COUNT
        if uncopied:
            # Sessions that were captured before their turn may still miss messages of groups.
            return []
        sessions = self._sessions
        if not sessions and not self._taken:
            return None
        while count > 0 and sessions:
            outbox = sessions.pop().outbox
            outbox.changing()
            count -= 1 + outbox.inflight // _INFLIGHT_PER_COUNT + outbox.queued // _QUEUED_PER_COUNT
        taken, self._taken = self._taken, []
        return taken

    def close(self) -> None:
        """Stop watching for changes of sessions and groups."""
        self._broker.ready.watch = None
        for group in self._uncopied:
            group.watch = None
        self._uncopied.clear()
        self._sessions.clear()
        self._taken.clear()

    def _assign(self, group: ShareGroup) -> None:
        """Assign the messages that wait in a group to the kept member with the highest QoS."""
        keeper: Subscriber | None = None
        for member in group.members:
            session = self._broker.registry.sessions.get(member.outbox.client_id)
            is_kept = session is not None and session.expiry_seconds and session.durable is None
            if is_kept and member.qos > (0 if keeper is None else keeper.qos):
                keeper = member
        if keeper is not None:
            shared = Shared(keeper)
            self._shared.setdefault(keeper.outbox.client_id, []).append(shared)
            self._uncopied[group] = shared
            group.watch = self._take_group

    def _take_group(self, group: ShareGroup) -> None:
        _copy(group, self._uncopied.pop(group))

    def _take(self, outbox: Outbox) -> None:
        session = self._broker.registry.sessions.get(outbox.client_id)
        if session is not None and session.expiry_seconds and session.durable is None:
            self._taken.append(self._captured(session))

    def _captured(self, session: Session) -> Captured:
        outbox = session.outbox
        inflight = outbox.deliveries()
        left_at = self._broker.registry.left_at(session)
        return Captured(
            session.client_id,
            session.user,
            session.expiry_seconds,
            self._now if left_at is None else left_at,
            list(session.subscriptions.values()),
            [
                CapturedInflight(each, each.properties, each.packet_id)
                for each in inflight
                if not each.released
            ],
            outbox.waiting_parts(),
            tuple(session.received.packet_ids),
            tuple([each.packet_id for each in inflight if each.released]),
            self._broker.wills.waiting(session.client_id),
            self._shared.pop(session.client_id, []),
        )

    def retained_records(self) -> Iterator[Record]:
        """Yield the retained messages."""
        for kept in self.retained:
            message = whole(kept)
            if not message.is_over(self._broker.clock):
                yield _retained_record(message)

    def records(self, captured: Captured) -> Iterator[Record]:
        """Yield the records of a session."""
        yield SessionState(
            client_id=captured.client_id,
            user=captured.user,
            expiry_seconds=captured.expiry_seconds,
            last_active_us=self._wall_us(captured.last_active),
        )
        for subscribed in captured.subscriptions:
            yield _subscription_record(subscribed)
        for delivery, properties, packet_id in captured.inflight:
            yield self._message(delivery, delivery.flags, properties, packet_id)
        for part in captured.waiting:
            for delivery in part.read() if isinstance(part, Run) else (part,):
                if delivery.flags & 3:
                    yield self._message(delivery, delivery.flags, delivery.properties, 0)
        for shared in captured.shared:
            member = shared.member
            for delivery in shared.waiting:
                flags = member.flags_of(delivery.flags)
                properties = delivery.properties + member.identifier
                yield self._message(delivery, flags, properties, 0)
        if captured.received or captured.released:
            yield Handshakes(received=captured.received, released=captured.released)
        if captured.will is not None:
            will, spilled, due = captured.will
            yield WaitingWill(
                topic=will.topic,
                payload=will.payload if spilled is None else spilled.read(),
                flags=will.qos | (RETAIN if will.retain else 0),
                properties=encode_message_properties(will.properties),
                due_us=self._wall_us(due),
            )

    def _message(
        self, delivery: Delivery, flags: int, properties: bytes, packet_id: int
    ) -> QueuedMessage:
        expires_at = delivery.expires_at
        return QueuedMessage(
            topic=delivery.topic,
            payload=delivery.body(),
            flags=flags & _ROW_FLAGS,
            properties=properties,
            expires_us=NEVER_US if expires_at == NEVER else self._wall_us(expires_at),
            packet_id=packet_id,
        )

    def _wall_us(self, at: float) -> int:
        """Convert a time of the loop to a time of the wall clock."""
        return self._now_us + round((at - self._now) * SECOND_US)


def _copy(group: ShareGroup, shared: Shared) -> None:
    group.watch = None
    shared.waiting = group.waiting()


def _retained_record(message: Retained) -> RetainedMessage:
    return RetainedMessage(
        topic=message.topic,
        payload=message.body(),
        flags=message.flags,
        properties=message.properties,
        stored_us=message.stored_us,
        expires_us=message.expires_us,
        publisher=message.publisher,
    )


def _subscription_record(subscribed: Subscribed) -> SubscriptionState:
    subscription = subscribed.subscription
    return SubscriptionState(
        filter=subscription.filter.text,
        qos=subscription.qos,
        no_local=subscription.no_local,
        retain_as_published=subscription.retain_as_published,
        retain_handling=subscription.retain_handling,
        identifier=subscribed.identifier,
    )
