"""Messages that a client publishes: checked, stored, dispatched, and acknowledged in order.

Invariants: a message is acknowledged after its outcome is known, in the order of the messages. A
message that the client may publish is never acknowledged if it was not stored. For each increment
of `session.unsettled`, `session.settled()` is called exactly once, also after an internal error
that ended the connection.

MQTT 3.1.1 has no negative acknowledgement. By default (`refused_publish`), the broker acknowledges
and drops a message that the client may never publish, because the client would send it again
forever. If a message cannot be stored, the broker stops reading from the client and closes the
connection after `refusal_delay`. The client may then connect and send the message again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from mypy_extensions import mypyc_attr

from siltstone.broker.access.access import Identity
from siltstone.broker.broker import Broker
from siltstone.broker.deliver.backpressure import Backpressure
from siltstone.broker.listen.outlet import Owner
from siltstone.broker.publish.append import Producer
from siltstone.broker.publish.observers import SettlePart
from siltstone.broker.publish.outcomes import reason_of
from siltstone.broker.retained.messages import Exchange
from siltstone.broker.sessions.timers import Timer
from siltstone.errors import SiltstoneError
from siltstone.guard import contain
from siltstone.mqtt.flow import (
    Receipt,
    Receipts,
    find_flags,
    find_reserved,
    pick,
    without,
)
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.rows.batch import DUP, RETAIN
from siltstone.session.session import Session

# The bit that only QoS 2 has.
QOS2: Final = 2
_ALLOWED_MAX: Final = 10_000
# At most one line for each client, event, reason and interval reports refused messages.
_REFUSAL_QUIET_SECONDS: Final = 10.0


class _Refusals:
    """Refused messages of one event and reason that no line reports yet."""

    __slots__ = ("timer", "topic", "untold")

    def __init__(self) -> None:
        self.untold = 0
        self.topic = b""
        self.timer: Timer | None = None


@mypyc_attr(acyclic=True)
class _Settled:
    """The callback for the outcomes of a batch; a class for the same reason as in the broker."""

    def __init__(self, receiver: PublishReceiver, receipt: Receipt) -> None:
        self._receiver = receiver
        self._receipt = receipt

    def __call__(self, part: PublishBatch, error: Exception | None) -> None:
        self._receiver.settled(self._receipt, part, error)


class PublishReceiver:
    """The messages of one connection."""

    def __init__(
        self, broker: Broker, owner: Owner, session: Session, identity: Identity, version: Version
    ) -> None:
        self._broker = broker
        self._owner = owner
        self._session = session
        self._identity = identity
        self._is_v5 = version is Version.V5
        self._version = version
        self._receipts = Receipts()
        self._backpressure = Backpressure(broker, owner)
        # Cached rights by topic, and the Access object that decided them.
        self._may_publish: dict[bytes, bool] = {}
        self._judge = broker.access
        self._refusals: dict[tuple[str, Reason], _Refusals] = {}
        # No more messages are accepted; the connection ends soon.
        self._is_held = False
        limits = broker.limits
        self._acknowledges_refused = not self._is_v5 and (limits.refused_publish == "acknowledge")
        # Batches that wait until their QoS 2 messages are announced on disk.
        self._line: deque[tuple[PublishBatch, Receipt | None]] = deque()
        # The next step for the first batch in the line, and whether steps are running.
        self._step: Callable[[], None] | None = None
        self._is_stepping = False
        # Whether processing of the line has ended: its batches will not be stored.
        self._has_failed = False

    def release(self, packet_ids: list[int]) -> None:
        """Process PUBREL."""
        self._session.outbox.changing()
        session = self._session
        self._receipts.complete(packet_ids)
        durable = session.durable
        if durable is not None:
            session.received.packet_ids |= durable.inbound.trust(packet_ids)
        answer = session.received.release(packet_ids, self._version)
        if durable is None:
            session.outbox.write(answer)
        else:
            # The client may use the packet id for another message once it has this answer.
            durable.inbound.release(packet_ids)
            durable.save_received(partial(session.outbox.write, answer))

    def take(self, batch: PublishBatch) -> None:
        """Process messages of the client, in their order."""
        if self._is_held:
            return
        broker = self._broker
        session = self._session
        broker.statistics.publishes_received += len(batch.topics)
        receipt = self._receipts.add(batch)
        if self._is_v5 and len(self._receipts) > broker.limits.receive_max:
            # [MQTT-3.3.4-7].
            self._owner.end(Reason.RECEIVE_MAXIMUM_EXCEEDED)
            return
        if self._line or (session.durable is not None and find_flags(batch, QOS2)):
            # Later batches wait too, so that all messages stay in order.
            self._line.append((batch, receipt))
            session.unsettled += 1
            self._owner.stop()
            if len(self._line) == 1:
                self._go_on_with(partial(self._announce, batch))
        else:
            self._take(session.received.take_new(batch), batch, receipt, None)
        self._backpressure.hold_back(len(batch.topics))

    def _go_on_with(self, step: Callable[[], None]) -> None:
        """Run the next step for the first batch in the line.

        A step that is set while another runs is run after it, not inside it: a client may have
        thousands of batches in the line, and recursion would overflow the stack.
        """
        self._step = step
        if not self._is_stepping:
            contain(self._do_steps, self._fail)

    def _do_steps(self) -> None:
        self._is_stepping = True
        try:
            while self._step is not None and not self._has_failed:
                step, self._step = self._step, None
                step()
        finally:
            self._is_stepping = False

    def _announce(self, batch: PublishBatch) -> None:
        """Find out which QoS 2 messages of a batch are stored already, and announce the others."""
        session = self._session
        durable = session.durable
        assert durable is not None
        inbound = durable.inbound
        received = session.received.packet_ids
        known: list[int] = []
        for index in find_flags(batch, QOS2):
            packet_id = batch.packet_ids[index]
            doubt = None if packet_id in received else inbound.doubt_of(packet_id)
            if doubt is None:
                continue
            if self._broker.has_stored(doubt, batch.topics[index], session.publisher):
                received.add(packet_id)
                known.append(index)
            else:
                inbound.release([packet_id])
        fresh = session.received.take_new(batch)
        if known:
            told = pick(batch, known)
            then = partial(self._hear_again, told, fresh)
            self._broker.taps.take_again(told, session.publisher, then)
        else:
            self._expect(fresh)

    def _hear_again(self, told: PublishBatch, fresh: PublishBatch, error: Exception | None) -> None:
        """Continue when the bridges have the messages that were stored before, or on an error."""
        self._go_on_with(partial(self._told_again, told, fresh, error))

    def _told_again(self, told: PublishBatch, fresh: PublishBatch, error: Exception | None) -> None:
        durable = self._session.durable
        assert durable is not None
        if error is None:
            durable.inbound.confirm(told.packet_ids)
            self._expect(fresh)
            return
        # The messages stay doubtful. If they were refused, the client would send them as new
        # messages, and they would be stored twice.
        reason = reason_of(error)
        self._tell_refused("publish_refused", told, list(range(len(told.topics))), reason)
        self._forget_line()
        self._hold(reason, "a message could not be kept for a bridge")

    def _expect(self, fresh: PublishBatch) -> None:
        """Save the producer and sequence of the new QoS 2 messages, then process the batch.

        After a crash, these tell whether a message that the client sends again was stored.
        """
        durable = self._session.durable
        assert durable is not None
        inbound = durable.inbound
        second = pick(fresh, find_flags(fresh, QOS2))
        producer: Producer | None = None
        announced: list[int] = []
        for durability, part in self._broker.rules.split(second).items():
            if durability is None:
                for packet_id in part.packet_ids:
                    inbound.keep(packet_id)
            else:
                announced = part.packet_ids
                producer = inbound.expect(announced)
        then = partial(self._go_on_with, partial(self._advance, fresh, producer, announced))
        if second.topics:
            durable.save_received(then)
        else:
            then()

    def _advance(
        self, fresh: PublishBatch, producer: Producer | None, announced: list[int]
    ) -> None:
        """Process the announced batch, then the following ones up to the next QoS 2 message."""
        if not self._is_as_announced(fresh, announced):
            self._expect(fresh)
            return
        self._take_first(fresh, producer)
        while self._line:
            batch, _ = self._line[0]
            if find_flags(batch, QOS2):
                self._go_on_with(partial(self._announce, batch))
                return
            self._take_first(batch, None)

    def _take_first(self, fresh: PublishBatch, producer: Producer | None) -> None:
        """Process the new messages of the first batch in the line."""
        batch, receipt = self._line.popleft()
        try:
            self._take(fresh, batch, receipt, producer)
        finally:
            self._owner.go_on()
            self._session.settled()

    def _is_as_announced(self, fresh: PublishBatch, announced: list[int]) -> bool:
        """Return whether the rules still store no QoS 2 messages except the announced ones.

        Rules may depend on subscribers, which may change while the announcement is saved.
        """
        rules = self._broker.rules
        if not rules.leaves_out:
            return True
        second = pick(fresh, find_flags(fresh, QOS2))
        return all(
            durability is None or set(announced).issuperset(part.packet_ids)
            for durability, part in rules.split(second).items()
        )

    def _fail(self) -> None:
        """End the connection after an internal error, and drop the batches in the line."""
        self._forget_line()
        self._owner.end(Reason.UNSPECIFIED_ERROR, "internal error: see the log of the broker")

    def _forget_line(self) -> None:
        """Drop the batches in the line; they count as settled and are not stored."""
        self._has_failed = True
        while self._line:
            self._line.popleft()
            self._session.settled()

    def _take(
        self,
        fresh: PublishBatch,
        batch: PublishBatch,
        receipt: Receipt | None,
        producer: Producer | None,
    ) -> None:
        """Process the messages of a batch that were not received before."""
        if receipt is None:
            self._take_fresh(fresh, None, None, producer)
            return
        session = self._session
        session.outbox.changing()
        session.unsettled += 1
        if fresh is not batch:
            receipt.repeated = set(batch.packet_ids).difference(fresh.packet_ids)
        try:
            self._take_fresh(fresh, receipt, _Settled(self, receipt), producer)
        except BaseException:
            self._abandon(receipt)
            raise
        self._hear(receipt)

    def _take_fresh(
        self,
        fresh: PublishBatch,
        receipt: Receipt | None,
        settle: SettlePart | None,
        producer: Producer | None,
    ) -> None:
        broker = self._broker
        kept = self._bridgeable(self._permitted(fresh, receipt), receipt)
        waits, kept, exchanges = self._retain(kept, receipt, settle)
        if receipt is not None:
            receipt.waits += waits
        if self._owner.ended or self._is_held:
            # No message of this batch was stored or sent, so none may be retained.
            broker.forget_retained(exchanges)
            self._refuse(fresh, receipt, Reason.NOT_AUTHORIZED)
        elif kept.topics:
            # Messages of all QoS form one append: separate appends would change their order.
            waits = broker.store(kept, self._session.publisher, settle, exchanges, producer)
            if receipt is not None:
                receipt.waits += waits
            broker.dispatch(self._unseen(kept), self._session.outbox)

    def _hear(self, receipt: Receipt) -> None:
        """Count one known outcome of a batch; acknowledge the batch when all are known."""
        receipt.waits -= 1
        if receipt.waits == 0:
            try:
                self._answer(receipt)
            finally:
                self._session.settled()

    def _abandon(self, receipt: Receipt) -> None:
        """Stop waiting for a batch after an internal error.

        It is unknown which of its outcomes will be reported.
        """
        # Later outcomes count down from -1, so they never reach 0.
        receipt.waits = -1
        session = self._session
        if session.durable is not None:
            session.durable.inbound.doubt()
        session.settled()

    def _permitted(self, batch: PublishBatch, receipt: Receipt | None) -> PublishBatch:
        """Return the messages that the client may publish."""
        refused = self._forbidden(batch)
        if refused:
            self._tell_refused("publish_refused", batch, refused, Reason.NOT_AUTHORIZED)
            if self._acknowledges_refused:
                return without(batch, refused)
            return self._leave_out(batch, refused, receipt, Reason.NOT_AUTHORIZED)
        return batch

    def _bridgeable(self, batch: PublishBatch, receipt: Receipt | None) -> PublishBatch:
        """Return the messages that the bridges have room for.

        The client sends the others again, so they must not be stored or delivered now.
        """
        taps = self._broker.taps
        refused = taps.refused(batch, self._session.publisher) if len(taps) > 0 else None
        if not refused:
            return batch
        self._tell_refused("publish_refused", batch, refused, Reason.QUOTA_EXCEEDED)
        return self._leave_out(batch, refused, receipt, Reason.QUOTA_EXCEEDED)

    def _retain(
        self, batch: PublishBatch, receipt: Receipt | None, settle: SettlePart | None
    ) -> tuple[int, PublishBatch, list[Exchange]]:
        """Keep the retained messages of a batch.

        Return how often `settle` will be called, the messages that are not refused, and the
        changes to the retained messages.
        """
        if self._owner.ended or self._is_held:
            return 0, batch, []
        try:
            waits, beyond, exchanges = self._broker.retain(batch, self._session.publisher, settle)
        except SiltstoneError as exc:
            refused = find_flags(batch, RETAIN)
            self._tell_refused("publish_refused", batch, refused, reason_of(exc))
            return 0, self._leave_out(batch, refused, receipt, reason_of(exc)), []
        if beyond and self._acknowledges_refused:
            # The message is still stored and sent to subscribers; it is only not retained.
            self._tell_refused("publish_not_retained", batch, beyond, Reason.QUOTA_EXCEEDED)
        elif beyond:
            self._tell_refused("publish_refused", batch, beyond, Reason.QUOTA_EXCEEDED)
            batch = self._leave_out(batch, beyond, receipt, Reason.QUOTA_EXCEEDED)
        return waits, batch, exchanges

    def _forbidden(self, batch: PublishBatch) -> list[int]:
        """Return the indexes of messages that the client may not publish."""
        refused = find_reserved(batch)
        access = self._broker.access
        if access.open:
            return refused
        if access is not self._judge or len(self._may_publish) > _ALLOWED_MAX:
            # The rights were reloaded, or the cache is full.
            self._judge = access
            self._may_publish = {}
        known = self._may_publish
        for topic in set(batch.topics).difference(known):
            known[topic] = access.may_publish(self._identity, topic)
        denied = {index for index, topic in enumerate(batch.topics) if not known[topic]}
        return sorted(denied.union(refused))

    def _leave_out(
        self, batch: PublishBatch, refused: list[int], receipt: Receipt | None, reason: Reason
    ) -> PublishBatch:
        """Refuse some messages of a batch; return the others."""
        if not self._is_v5 and any(batch.flags[index] & 3 for index in refused):
            # [MQTT-3.3.5-2] of 3.1.1: the server must acknowledge or close the connection. Here
            # an acknowledgement means that the message is stored, so the connection is closed.
            self._hold(reason, "")
            return batch
        self._refuse(pick(batch, refused), receipt, reason)
        return without(batch, refused)

    def _tell_refused(
        self, event: str, batch: PublishBatch, refused: list[int], reason: Reason
    ) -> None:
        """Count refused messages and log them: the first at once, the others every
        `_REFUSAL_QUIET_SECONDS` and at the end of the connection.
        """
        broker = self._broker
        broker.statistics.publishes_refused += len(refused)
        kind = (event, reason)
        known = self._refusals.get(kind)
        is_first = known is None
        if known is None:
            known = _Refusals()
            self._refusals[kind] = known
        known.untold += len(refused)
        known.topic = batch.topics[refused[0]]
        if self._owner.ended:
            self.tell_rest()
        elif is_first:
            self._tell_kind(kind)

    def _tell_kind(self, kind: tuple[str, Reason]) -> None:
        """Log the refusals of one kind since its last line, and wait; forget it if none came."""
        known = self._refusals[kind]
        if not known.untold:
            del self._refusals[kind]
            return
        self._log_refusals(kind, known)
        broker = self._broker
        known.timer = broker.timers.at(
            broker.shell.now() + _REFUSAL_QUIET_SECONDS, partial(self._tell_kind, kind)
        )

    def tell_rest(self) -> None:
        """Log the refusals that no line reports yet, because the connection ends."""
        refusals, self._refusals = self._refusals, {}
        for kind, known in refusals.items():
            self._broker.timers.cancel(known.timer)
            if known.untold:
                self._log_refusals(kind, known)

    def _log_refusals(self, kind: tuple[str, Reason], known: _Refusals) -> None:
        event, reason = kind
        text = f"messages since the last line: {known.untold}"
        known.untold = 0
        self._owner.report(logging.WARNING, event, reason, text, topic=known.topic)

    def _hold(self, reason: Reason, text: str) -> None:
        """Stop reading, and end the connection after `refusal_delay` seconds.

        If the connection ended at once, the client would connect again at once and send the same
        message.
        """
        if self._is_held:
            return
        self._is_held = True
        self._owner.stop()
        broker = self._broker
        broker.timers.at(
            broker.shell.now() + broker.limits.refusal_delay,
            partial(self._owner.end, reason, text),
        )

    def _refuse(self, part: PublishBatch, receipt: Receipt | None, reason: Reason) -> None:
        """Set the reason code of some messages of a batch; QoS 0 messages have no answer."""
        ids = set(part.packet_ids)
        ids.discard(0)
        if receipt is not None and ids:
            receipt.refuse(
                [index for index, known in enumerate(receipt.packet_ids) if known in ids], reason
            )

    def _unseen(self, batch: PublishBatch) -> PublishBatch:
        """Return the messages that were not sent to subscribers before.

        A QoS 2 message that could not be stored was sent to subscribers nevertheless. Its publisher
        sends it again [MQTT-4.4.0-1]; subscribers must not receive it twice.
        """
        dispatched = self._session.dispatched
        if not dispatched:
            return batch
        seen: list[int] = []
        for index, packet_id in enumerate(batch.packet_ids):
            known = dispatched.pop(packet_id, None)
            is_again = batch.flags[index] & 3 == 2 and batch.flags[index] & DUP != 0
            if is_again and known == _hash_of(batch, index):
                seen.append(index)
        return without(batch, seen) if seen else batch

    def settled(self, receipt: Receipt, part: PublishBatch, error: Exception | None) -> None:
        """Record the outcome of a batch, or of a part of it."""
        session = self._session
        try:
            if error is not None:
                earlier = set(receipt.refused())
                self._refuse(part, receipt, reason_of(error))
                for index, packet_id in enumerate(part.packet_ids):
                    if part.flags[index] & 3 == 2 and packet_id not in earlier:
                        session.dispatched[packet_id] = _hash_of(part, index)
                if session.durable is not None:
                    session.durable.inbound.renew()
        finally:
            self._hear(receipt)

    def _answer(self, known: Receipt) -> None:
        """Acknowledge the batches that are next in order, after the outcome of one is known."""
        # The client may send a refused QoS 2 message again with the same packet id.
        refused = known.refused() if known.reasons else None
        if refused:
            self._session.received.packet_ids.difference_update(refused)
            if self._session.durable is not None:
                self._session.durable.inbound.release(refused)
        for receipt in self._receipts.take_settled():
            if self._owner.ended or self._is_held:
                return
            if receipt.reasons and not self._is_v5:
                # 3.1.1 can only acknowledge or close.
                self._hold(Reason.QUOTA_EXCEEDED, "a message could not be stored")
                return
            if receipt.reasons:
                self._receipts.complete(receipt.refused())
            self._session.outbox.write(receipt.encode())


def _hash_of(batch: PublishBatch, index: int) -> int:
    return hash((batch.topics[index], batch.values[index]))
