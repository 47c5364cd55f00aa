"""What a client publishes: judged, stored, dispatched, and acknowledged in its order.

Invariants: a message is acknowledged after its outcome is known, in the order of the messages, and
never when it was not kept; who publishes faster than the disk or a subscriber can take is read more
slowly.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Final, Protocol

from siltstone.broker.access import Identity
from siltstone.broker.bridge import Producer
from siltstone.broker.broker import QUIET_SECONDS, RETAIN, Broker
from siltstone.broker.outcomes import reason_of
from siltstone.broker.rate import Rate
from siltstone.broker.retained import Exchange
from siltstone.broker.taps import SettlePart
from siltstone.database import Durability
from siltstone.errors import SiltstoneError
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
from siltstone.session.outbox import Outbox
from siltstone.session.session import Session

_DUP: Final = 8
# The bit that only QoS 2 has.
QOS2: Final = 2
_ALLOWED_MAX: Final = 10_000
# So many messages in one read are bulk, which waits at most so long for a subscriber.
_BULK: Final = 256
_PACE_SECONDS: Final = 0.1


class Owner(Protocol):
    """The client whose messages these are."""

    ended: bool

    def end(self, reason: Reason, text: str = "") -> None:
        """Tell the client why, and close."""

    def stop(self) -> None:
        """Read no more until as many have said go on."""

    def go_on(self) -> None:
        """Read again, if nobody else says stop."""

    def report(
        self, level: int, event: str, reason: Reason, text: str, topic: bytes | None = None
    ) -> None:
        """Log something that happened to this client."""


class Intake:
    """The messages of one connection."""

    def __init__(
        self, broker: Broker, owner: Owner, session: Session, identity: Identity, version: Version
    ) -> None:
        self._broker = broker
        self._owner = owner
        self._session = session
        self._identity = identity
        self._version = version
        self._receipts = Receipts()
        self._rate = Rate(broker.limits.publish_rate_max)
        # What was decided for which topic, and by whom.
        self._may_publish: dict[bytes, bool] = {}
        self._judge = broker.access
        self._quiet_until = 0.0
        # What waits until it is on disk which messages of QoS 2 these are.
        self._line: deque[tuple[PublishBatch, Receipt | None]] = deque()

    def release(self, packet_ids: list[int]) -> None:
        """Take PUBREL."""
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
        """Take messages of the client, in their order."""
        broker = self._broker
        session = self._session
        broker.statistics.publishes_received += len(batch.topics)
        receipt = self._receipts.add(batch)
        if self._version is Version.V5 and len(self._receipts) > broker.limits.receive_max:
            # [MQTT-3.3.4-7].
            self._owner.end(Reason.RECEIVE_MAXIMUM_EXCEEDED)
            return
        if self._line or (session.durable is not None and find_flags(batch.flags, QOS2)):
            # What is behind it waits too, so that all stays in order.
            self._line.append((batch, receipt))
            session.unsettled += 1
            self._owner.stop()
            if len(self._line) == 1:
                self._announce(batch)
        else:
            self._take(session.received.take_new(batch), batch, receipt, None)
        self._hold_back(len(batch.topics))

    def _announce(self, batch: PublishBatch) -> None:
        """Say on disk which messages of QoS 2 are about to be stored, and as what."""
        session = self._session
        durable = session.durable
        assert durable is not None
        inbound = durable.inbound
        known: list[int] = []
        for index in find_flags(batch.flags, QOS2):
            packet_id = batch.packet_ids[index]
            doubt = inbound.settle(packet_id)
            if doubt is not None and self._broker.has_stored(
                doubt, batch.topics[index], session.publisher
            ):
                session.received.packet_ids.add(packet_id)
                inbound.keep(packet_id)
                known.append(index)
        fresh = session.received.take_new(batch)
        second = pick(fresh, find_flags(fresh.flags, QOS2))
        producers: dict[Durability | None, Producer] = {}
        for durability, part in self._broker.rules.split(second).items():
            if durability is None:
                for packet_id in part.packet_ids:
                    inbound.keep(packet_id)
            else:
                producers[durability] = inbound.expect(durability, part.packet_ids)
        then = partial(self._advance, fresh, producers)
        if known:
            told = pick(batch, known)
            then = partial(self._broker.taps.take_again, told, session.publisher, then)
        if second.topics:
            durable.save_received(then)
        else:
            then()

    def _advance(
        self, fresh: PublishBatch, producers: Mapping[Durability | None, Producer]
    ) -> None:
        """Take what was announced, then what is behind it as far as it need not be."""
        batch, receipt = self._line.popleft()
        self._take(fresh, batch, receipt, producers)
        self._passed()
        while self._line:
            batch, receipt = self._line[0]
            if find_flags(batch.flags, QOS2):
                self._announce(batch)
                return
            self._line.popleft()
            self._take(batch, batch, receipt, None)
            self._passed()

    def _passed(self) -> None:
        self._owner.go_on()
        self._session.settled()

    def _take(
        self,
        fresh: PublishBatch,
        batch: PublishBatch,
        receipt: Receipt | None,
        producers: Mapping[Durability | None, Producer] | None,
    ) -> None:
        """Take the messages of a batch that were not received before."""
        broker = self._broker
        session = self._session
        if receipt is not None:
            session.outbox.changing()
        settle = None if receipt is None else partial(self._settled, receipt)
        if receipt is not None and fresh is not batch:
            receipt.repeated = set(batch.packet_ids).difference(fresh.packet_ids)
        kept = self._permitted(fresh, receipt)
        waits, kept, exchanges = self._retain(kept, receipt, settle)
        if self._owner.ended:
            # Nothing of this is stored or was sent to anybody, nor shall it be retained.
            broker.forget_retained(exchanges)
            self._refuse(fresh, receipt, Reason.NOT_AUTHORIZED)
        elif kept.topics:
            waits += self._store(kept, settle, exchanges, producers)
            broker.dispatch(self._unseen(kept), session.outbox)
        if receipt is not None:
            session.unsettled += waits
            receipt.waits = waits
            if waits == 0:
                self._answer(receipt)

    def _store(
        self,
        batch: PublishBatch,
        settle: SettlePart | None,
        exchanges: list[Exchange],
        producers: Mapping[Durability | None, Producer] | None,
    ) -> int:
        """Store messages, those of QoS 2 as it was announced; return how often `settle` will be
        called.
        """
        broker = self._broker
        publisher = self._session.publisher
        if not producers:
            return broker.store(batch, publisher, settle, exchanges)
        indexes = find_flags(batch.flags, QOS2)
        waits = broker.store(pick(batch, indexes), publisher, settle, exchanges, producers)
        others = without(batch, indexes)
        if others.topics:
            waits += broker.store(others, publisher, settle, exchanges)
        return waits

    def _permitted(self, batch: PublishBatch, receipt: Receipt | None) -> PublishBatch:
        """Return the messages that the client may publish."""
        refused = self._forbidden(batch)
        if refused:
            return self._leave_out(batch, refused, receipt, Reason.NOT_AUTHORIZED)
        return batch

    def _retain(
        self, batch: PublishBatch, receipt: Receipt | None, settle: SettlePart | None
    ) -> tuple[int, PublishBatch, list[Exchange]]:
        """Keep what is to be retained; return how often `settle` will be called, the messages that
        are not refused, and what they changed.
        """
        if self._owner.ended:
            return 0, batch, []
        exchanges: list[Exchange] = []
        reason = Reason.QUOTA_EXCEEDED
        try:
            waits, beyond, exchanges = self._broker.retain(batch, self._session.publisher, settle)
        except SiltstoneError as exc:
            waits, beyond = 0, find_flags(batch.flags, RETAIN)
            reason = reason_of(exc)
        if beyond:
            batch = self._leave_out(batch, beyond, receipt, reason)
        return waits, batch, exchanges

    def _hold_back(self, count: int) -> None:
        """Read more slowly who publishes faster than others can take it."""
        broker = self._broker
        if broker.bridge.is_full:
            self._owner.stop()
            broker.bridge.when_room(self._owner.go_on)
        behind = broker.ready.behind
        if behind is not None:
            broker.ready.behind = None
            if count >= _BULK:
                self._wait_for(behind)
        if self._rate.per_second:
            self._slow_down(count)

    def _forbidden(self, batch: PublishBatch) -> list[int]:
        """Return the indexes of messages that the client may not publish."""
        refused = find_reserved(batch.topics)
        access = self._broker.access
        if access.open:
            return refused
        if access is not self._judge or len(self._may_publish) > _ALLOWED_MAX:
            # The rights were read anew, or there is no end to the topics.
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
        """Answer what may not be published; return the rest."""
        broker = self._broker
        broker.statistics.publishes_refused += len(refused)
        now = broker.shell.now()
        if now >= self._quiet_until:
            self._quiet_until = now + QUIET_SECONDS
            topic = batch.topics[refused[0]]
            self._owner.report(logging.WARNING, "publish refused", reason, "", topic=topic)
        if self._version is not Version.V5 and any(batch.flags[index] & 3 for index in refused):
            # [MQTT-3.3.5-2] of 3.1.1: acknowledge or close; an acknowledgement here means kept.
            self._owner.end(reason)
            return batch
        self._refuse(pick(batch, refused), receipt, reason)
        return without(batch, refused)

    def _refuse(self, part: PublishBatch, receipt: Receipt | None, reason: Reason) -> None:
        """Answer some messages of a batch with a reason, those that want an answer."""
        ids = set(part.packet_ids)
        ids.discard(0)
        if receipt is not None and ids:
            receipt.refuse(
                [index for index, known in enumerate(receipt.packet_ids) if known in ids], reason
            )

    def _unseen(self, batch: PublishBatch) -> PublishBatch:
        """Return the messages that subscribers do not have already.

        They have what was sent to them and could then not be stored. Its publisher, who does not
        know that, sends it again [MQTT-4.4.0-1].
        """
        dispatched = self._session.dispatched
        if not dispatched:
            return batch
        seen: list[int] = []
        for index, packet_id in enumerate(batch.packet_ids):
            known = dispatched.pop(packet_id, None)
            is_again = batch.flags[index] & 3 == 2 and batch.flags[index] & _DUP != 0
            if is_again and known == _hash_of(batch, index):
                seen.append(index)
        return without(batch, seen) if seen else batch

    def _settled(self, receipt: Receipt, part: PublishBatch, error: Exception | None) -> None:
        """Take note of the outcome of a batch, or of a part of it."""
        session = self._session
        if error is not None:
            earlier = set(receipt.refused())
            self._refuse(part, receipt, reason_of(error))
            for index, packet_id in enumerate(part.packet_ids):
                if part.flags[index] & 3 == 2 and packet_id not in earlier:
                    session.dispatched[packet_id] = _hash_of(part, index)
            if session.durable is not None:
                session.durable.inbound.renew()
        receipt.waits -= 1
        if receipt.waits == 0:
            self._answer(receipt)
        session.settled()

    def _answer(self, known: Receipt) -> None:
        """Acknowledge what is next in order, now that one more outcome is known."""
        # A message of QoS 2 that was not taken may come again under its packet id.
        refused = known.refused()
        if refused:
            self._session.received.packet_ids.difference_update(refused)
            if self._session.durable is not None:
                self._session.durable.inbound.release(refused)
        for receipt in self._receipts.take_settled():
            if self._owner.ended:
                return
            if receipt.reasons and self._version is not Version.V5:
                # 3.1.1 can only acknowledge or close.
                self._owner.end(Reason.QUOTA_EXCEEDED, "a message could not be stored")
                return
            self._receipts.complete(receipt.refused())
            self._session.outbox.write(receipt.encode())

    def _wait_for(self, behind: Outbox) -> None:
        """Let a subscriber that is far behind catch up, for a moment, before reading more.

        Only who publishes in bulk is made to wait, and never long: it goes on at a pace, and no
        other publisher notices.
        """
        now = self._broker.shell.now()
        if behind.is_stuck(now):
            return
        self._owner.stop()
        waiting = [self._owner.go_on]

        def go_on() -> None:
            if waiting:
                waiting.pop()()

        behind.when_relieved(go_on)
        self._broker.timers.at(now + _PACE_SECONDS, go_on)

    def _slow_down(self, count: int) -> None:
        wait = self._rate.take(count, self._broker.shell.now())
        if wait > 0:
            self._owner.stop()
            self._broker.timers.at(self._broker.shell.now() + wait, self._owner.go_on)


def _hash_of(batch: PublishBatch, index: int) -> int:
    return hash((batch.topics[index], batch.payloads[index]))
