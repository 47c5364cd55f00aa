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
from siltstone.broker.deliver.subscribe import SubscriptionRights
from siltstone.broker.retained.log import Retained
from siltstone.broker.retained.spilled import encode_retained
from siltstone.errors import UsageError
from siltstone.fs.process import address_space_left_bytes
from siltstone.mqtt.packets import Subscription, Will
from siltstone.mqtt.properties import decode_properties
from siltstone.mqtt.publish import stored_properties
from siltstone.mqtt.wire import PacketReader, PacketType, encode_variable
from siltstone.rows.batch import RETAIN
from siltstone.session.sending.delivery import NEVER, Delivery, Run, Spilled, encode_run
from siltstone.session.session import Session
from siltstone.session.subscribed import Subscribed
from siltstone.snapshot.format.contents import BoundedContents, InFile
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

# The approximate memory of what is loaded, beside payloads, which count as contents: a retained
# message, a session, a subscription, and a waiting message beside its size.
_RETAINED_BYTES: Final = 400
_SESSION_BYTES: Final = 3000
_SUBSCRIPTION_BYTES: Final = 900
_MESSAGE_BYTES: Final = 100
# The largest number of messages and bytes of a run on disk. Its last message may exceed the bytes.
_RUN_MESSAGES: Final = 250
_RUN_BYTES: Final = 256 * 1024
# After this many records, check that a limit of the address space leaves room for the threads and
# buffers of a running broker. Compiled code cannot survive a failed allocation of a small object.
_CHECKED_RECORDS: Final = 1000
_NEEDED_BYTES: Final = 32 * 1024 * 1024
# Replaces an expiry time of 0, which would mean never.
_JUST_BEFORE: Final = -1e-9


class SnapshotLoad:
    """Applies records in order; call `finish` after the last one."""

    def __init__(self, broker: Broker, contents: BoundedContents) -> None:
        """Load payloads from `contents`. Take memory from it, and leave payloads that have no room
        in it.
        """
        self._broker = broker
        self._contents = contents
        self._now = broker.shell.now()
        self._now_us = broker.clock.now_us()
        self._session: Session | None = None
        self._rights: SubscriptionRights | None = None
        self._left_at = 0.0
        self._inflight: list[Delivery] = []
        self._waiting: list[Delivery] = []
        # Whether the session has no waiting message of QoS 1 or 2 yet.
        self._is_first = True
        # The messages after `_waiting` that are on disk, and those of the next run.
        self._runs: list[Run] = []
        self._run: list[Delivery] = []
        self._run_bytes = 0
        self._wills: list[tuple[Session, Will, Spilled | None]] = []
        self._records = 0
        self.sessions = 0
        self.messages = 0
        # The number of messages that stay on disk, whole or their payloads.
        self.spilled_messages = 0

    def apply(self, record: Record) -> None:
        """Apply one record.

        Raises: UsageError for a record that is not from a broker; MemoryError.
        """
        self._records += 1
        if self._records % _CHECKED_RECORDS == 0:
            left_bytes = address_space_left_bytes()
            if left_bytes is not None and left_bytes < _NEEDED_BYTES:
                raise MemoryError("the address space that is left is needed to run the broker")
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
                self._wills.append((self._current, self._will(record), _spilled(record.payload)))
            case _:
                raise UsageError(
                    f"the snapshot is a copy of a store, not the state of a broker: restore it "
                    f"with 'siltstone restore': record={type(record).__name__}"
                )

    def finish(self) -> None:
        """End the last session, and start the delays of the wills.

        Payloads that stay on disk are written before, because a will that is due is read at once.
        """
        self._end()
        self._contents.flush()
        for session, will, spilled in self._wills:
            self._broker.wills.leave(session, will, self._now, spilled)

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
        retained = self._broker.retained
        beside = len(record.topic) + len(message.properties) + len(record.publisher)
        place = None
        if not self._contents.take(_RETAINED_BYTES + beside):
            if retained.is_kept(record.topic):
                # The message that this one replaces is read.
                self._contents.flush()
            data = encode_retained(message)
            place = Spilled(*self._contents.put(data), len(data))
        retained.put_back(message, place)
        self.spilled_messages += spilled is not None or place is not None

    def _begin(self, record: SessionState) -> None:
        self._end()
        self._session = self._broker.registry.create(record.client_id, record.user)
        self._session.expiry_seconds = record.expiry_seconds
        self._rights = None
        # If the clock went back, the session counts as active now, not in the future.
        passed_us = max(0, self._broker.clock.passed_us(record.last_active_us))
        self._left_at = self._now - passed_us / SECOND_US
        self._contents.take(_SESSION_BYTES)
        self.sessions += 1

    def _end(self) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        if self._inflight:
            session.outbox.restore(0, [], self._inflight)
            self._inflight = []
        if self._waiting:
            self._end_run()
            session.outbox.wait_again(self._waiting, self._runs)
            self._waiting = []
            self._runs = []
            self._is_first = True
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
            self._rights = SubscriptionRights(
                may_subscribe=partial(broker.may_subscribe, identity),
                may_receive=None if broker.access.open else partial(broker.may_receive, identity),
            )
        saved = Subscribed(subscription=subscription, identifier=record.identifier)
        self._contents.take(_SUBSCRIPTION_BYTES)
        broker.subscriptions.put_back(session, saved, self._rights)

    def _queue(self, record: QueuedMessage) -> None:
        expires_at = NEVER
        if record.expires_us != NEVER_US:
            expires_at = self._time_of(record.expires_us) or _JUST_BEFORE
        properties = stored_properties(record.properties)
        spilled = _spilled(record.payload)
        payload = record.payload if spilled is None else b""
        delivery = Delivery(record.topic, payload, record.flags, properties, expires_at)
        delivery.spilled = spilled
        delivery.packet_id = record.packet_id
        self.messages += 1
        if record.packet_id == 0 and self._goes_to_disk(delivery):
            self.spilled_messages += 1
            self._run.append(delivery)
            self._run_bytes += delivery.size()
            if len(self._run) == _RUN_MESSAGES or self._run_bytes > _RUN_BYTES:
                self._end_run()
            return
        self.spilled_messages += spilled is not None
        (self._inflight if record.packet_id else self._waiting).append(delivery)

    def _goes_to_disk(self, delivery: Delivery) -> bool:
        """Take memory for a waiting message; return whether there is none left and the message may
        be in a run: after the first one of its session, and not with QoS 0.
        """
        size = delivery.size() - len(delivery.payload)
        has_room = self._contents.take(_MESSAGE_BYTES + size)
        if delivery.flags & 3 == 0:
            return False
        is_first, self._is_first = self._is_first, False
        return not has_room and not is_first

    def _end_run(self) -> None:
        run, self._run = self._run, []
        if run:
            data = encode_run(run)
            place = Spilled(*self._contents.put(data), len(data))
            self._runs.append(Run(place, len(run), self._run_bytes))
        self._run_bytes = 0

    def _shake_hands(self, record: Handshakes) -> None:
        self._current.received.packet_ids.update(record.received)
        for packet_id in record.released:
            delivery = Delivery(b"", b"", 2, b"", NEVER)
            delivery.packet_id = packet_id
            delivery.sent = delivery.released = True
            self._inflight.append(delivery)

    def _will(self, record: WaitingWill) -> Will:
        reader = PacketReader(encode_variable(len(record.properties)) + record.properties)
        left = max(0.0, -self._broker.clock.passed_us(record.due_us) / SECOND_US)
        return Will(
            topic=record.topic,
            payload=b"" if isinstance(record.payload, InFile) else record.payload,
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
