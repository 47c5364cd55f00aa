"""Restores the state of a broker from the records of a snapshot, before clients connect.

Restored sessions are disconnected since they were last active. A session that has expired meanwhile
ends at the first tick. Messages in flight are sent again with their packet ids. Waiting messages
wait again, whatever the limits are now. Wills whose delay has passed are published when all
sessions are restored.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import ceil
from typing import Final

from siltstone.broker.access.access import Identity
from siltstone.broker.broker import Broker
from siltstone.broker.deliver.subscribe import Rights
from siltstone.broker.retained.log import Retained
from siltstone.errors import UsageError
from siltstone.mqtt.packets import Subscription, Will
from siltstone.mqtt.properties import decode_properties
from siltstone.mqtt.publish import stored_properties
from siltstone.mqtt.wire import PacketType, Reader, encode_variable
from siltstone.rows.batch import RETAIN
from siltstone.session.sending.delivery import NEVER, Delivery, Spilled
from siltstone.session.session import Session
from siltstone.session.subscribed import Subscribed
from siltstone.snapshot.format.contents import InFile
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
from siltstone.topic.grammar import TopicFilter
from siltstone.units import SECOND_US

# Replaces an expiry time of 0, which would mean never.
_JUST_BEFORE: Final = -1e-9


class SnapshotLoad:
    """Applies records in order; call `finish` after the last one."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._now = broker.shell.now()
        self._now_us = broker.clock.now_us()
        self._session: Session | None = None
        self._rights: Rights | None = None
        self._left_at = 0.0
        self._inflight: list[Delivery] = []
        self._waiting: list[Delivery] = []
        self._wills: list[tuple[Session, WaitingWill]] = []
        self.sessions = 0
        self.messages = 0
        # The number of messages whose payloads stay on disk.
        self.spilled_messages = 0

    def apply(self, record: Record) -> None:
        """Apply one record. Raises: UsageError for a record that is not from a broker."""
        match record:
            # The most frequent record first.
            case QueuedMessage():
                self._queue(record)
            case SubscriptionState():
                self._subscribe(record)
            case SessionState():
                self._begin(record)
            case RetainedMessage():
                self._retain(record)
            case Handshakes():
                self._shake_hands(record)
            case WaitingWill():
                self._wills.append((self._current, record))
            case _:
                raise UsageError(
                    f"the snapshot is a copy of a store, not the state of a broker: restore it "
                    f"with 'siltstone restore': record={type(record).__name__}"
                )

    def finish(self) -> None:
        """End the last session, and start the delays of the wills."""
        self._end()
        for session, record in self._wills:
            self._broker.wills.leave(session, self._will(record), self._now)

    @property
    def _current(self) -> Session:
        assert self._session is not None, "the loader has seen the session"
        return self._session

    def _retain(self, record: RetainedMessage) -> None:
        spilled = _spilled(record.payload)
        message = Retained(
            record.topic,
            record.payload if spilled is None else b"",
            record.flags,
            stored_properties(record.properties),
            record.stored_us,
            record.expires_us,
            record.publisher,
            spilled,
        )
        if message.is_over(self._broker.clock):
            return
        self._broker.retained.put_back(message)
        self.spilled_messages += spilled is not None

    def _begin(self, record: SessionState) -> None:
        self._end()
        self._session = self._broker.registry.create(record.client_id, record.user)
        self._session.expiry_seconds = record.expiry_seconds
        self._rights = None
        # If the clock went back, the session counts as active now, not in the future.
        passed_us = max(0, self._broker.clock.passed_us(record.last_active_us))
        self._left_at = self._now - passed_us / SECOND_US
        self.sessions += 1

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        if self._inflight:
            session.outbox.restore(0, [], self._inflight)
            self._inflight = []
        if self._waiting:
            session.outbox.wait_again(self._waiting)
            self._waiting = []
        self._broker.registry.leave(session, self._left_at)

    def _subscribe(self, record: SubscriptionState) -> None:
        session, broker = self._current, self._broker
        subscription = Subscription(
            filter=TopicFilter.parse(record.filter),
            qos=record.qos,
            no_local=record.no_local,
            retain_as_published=record.retain_as_published,
            retain_handling=record.retain_handling,
        )
        if self._rights is None:
            identity = Identity(user=session.user, client_id=session.client_id)
            self._rights = Rights(
                may_subscribe=partial(broker.may_subscribe, identity),
                may_receive=None if broker.access.open else partial(broker.may_receive, identity),
            )
        saved = Subscribed(subscription=subscription, identifier=record.identifier)
        broker.subscriptions.put_back(session, saved, self._rights)

    def _queue(self, record: QueuedMessage) -> None:
        expires_at = NEVER
        if record.expires_us != NEVER_US:
            expires_at = self._time_of(record.expires_us) or _JUST_BEFORE
        properties = stored_properties(record.properties)
        # What is in flight was sent before, so it is sent again at once.
        spilled = None if record.packet_id else _spilled(record.payload)
        payload = record.payload if spilled is None else b""
        delivery = Delivery(record.topic, payload, record.flags, properties, expires_at)
        delivery.spilled = spilled
        delivery.packet_id = record.packet_id
        self.spilled_messages += spilled is not None
        (self._inflight if record.packet_id else self._waiting).append(delivery)
        self.messages += 1

    def _shake_hands(self, record: Handshakes) -> None:
        self._current.received.packet_ids.update(record.received)
        for packet_id in record.released:
            delivery = Delivery(b"", b"", 2, b"", NEVER)
            delivery.packet_id = packet_id
            delivery.sent = delivery.released = True
            self._inflight.append(delivery)

    def _will(self, record: WaitingWill) -> Will:
        reader = Reader(encode_variable(len(record.properties)) + record.properties)
        left = max(0.0, -self._broker.clock.passed_us(record.due_us) / SECOND_US)
        return Will(
            topic=record.topic,
            payload=record.payload,
            qos=record.flags & 3,
            retain=bool(record.flags & RETAIN),
            properties=replace(
                decode_properties(reader, PacketType.PUBLISH),
                will_delay_interval=ceil(left) or None,
            ),
        )

    def _time_of(self, time_us: int) -> float:
        """Convert a time of the wall clock to a time of the loop."""
        return self._now + (time_us - self._now_us) / SECOND_US


def _spilled(payload: bytes) -> Spilled | None:
    """Return the place of a payload that does not fit into memory, None for any other payload."""
    if not isinstance(payload, InFile):
        return None
    return Spilled(payload.file, payload.start, len(payload))
