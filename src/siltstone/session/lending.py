"""The rows of a share group, lent to its members: each to one of them, until it is acknowledged.

All members of a group share one place in the store. A row is lent to a member that can take it;
what a member leaves unacknowledged is lent to the others, in order, as sent again. So a row is done
once whoever it was lent to last has acknowledged it, and none is ever forgotten. A delivery of
QoS 2 that has begun ends where it began: a durable member's is its own once it is saved with it.

Strategies: the member with the least to do, in parts of a batch; each in turn, row by row; at
random; or always the same member for the rows of a publisher, or of a topic, which keeps those of
a publisher and topic in order.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

from siltstone.feed.batch import FeedBatch, rows_by_time
from siltstone.mqtt.publish import NO_EXPIRY, with_expiry
from siltstone.session.delivery import DUP, NEVER, Delivery, Loan, left_us_of
from siltstone.session.outbox import Outbox
from siltstone.session.progress import Lane, Progress

LEAST_LOADED: Final = "least-loaded"
ROUND_ROBIN: Final = "round-robin"
RANDOM: Final = "random"
STICKY: Final = "sticky"
STICKY_TOPIC: Final = "sticky-topic"

_US: Final = 1_000_000
_KEYS_MAX: Final = 100_000
_RIGHTS_MAX: Final = 10_000


class Member:
    """One session in a group, by its subscription."""

    def __init__(
        self,
        outbox: Outbox,
        qos: int,
        keeps_retain: bool,
        identifier: bytes,
        guard: Callable[[bytes], bool] | None,
        credit: int,
    ) -> None:
        self.outbox = outbox
        self.qos = qos
        self.keeps_retain = keeps_retain
        # The encoded property, or nothing.
        self.identifier = identifier
        self._guard = guard
        self._rights: dict[bytes, bool] = {}
        # How many rows may be on their way to it.
        self.credit = credit
        # It has taken nothing for so long that others get its rows.
        self.stalled = False
        self.seen_at = 0.0
        self.seen_acks = 0

    def load(self) -> int:
        """Return how much it has to do."""
        return self.outbox.queued + self.outbox.inflight

    def may_receive(self, topic: bytes) -> bool:
        """Tell whether its session may read a topic."""
        guard = self._guard
        if guard is None:
            return True
        known = self._rights.get(topic)
        if known is None:
            if len(self._rights) >= _RIGHTS_MAX:
                self._rights.clear()
            known = guard(topic)
            self._rights[topic] = known
        return known

    def forget_rights(self) -> None:
        """Ask anew what the session may read."""
        self._rights.clear()


class Lending:
    """The rows of one group and who has them."""

    def __init__(self, strategy: str, progress: Progress) -> None:
        self.strategy = strategy
        self.progress = progress
        self.members: list[Member] = []
        self.expired = 0
        # Rows that nobody may read.
        self.unreadable = 0
        # Credit of members that have gone; what is freed pays for it first.
        self._debt = 0
        self._turn = 0
        # Who has the rows of a publisher or topic.
        self._keys: dict[bytes, Member] = {}
        # How many rows each member is to get of this batch yet.
        self._plan: list[tuple[Member, int]] = []

    def join(self, member: Member, now: float) -> None:
        """Add a member, or put its new subscription in place of its former one."""
        member.seen_at = now
        for index, known in enumerate(self.members):
            if known.outbox is member.outbox:
                self.members[index] = member
                # What it has of a key is not acknowledged yet: what follows must follow it.
                for key in [key for key, keeper in self._keys.items() if keeper is known]:
                    self._keys[key] = member
                return
        self.members.append(member)

    def credit(self) -> int:
        """Return how many rows may be on their way to all members."""
        return sum([member.credit for member in self.members])

    def begin(self) -> int:
        """Return how many rows may come by beside those that are lent, to begin a feed with."""
        self.progress.freed = 0
        self._debt = 0
        lent = sum([lane.open_count() for lane in self.progress.lanes.values()])
        return max(1, self.credit() - lent)

    def has_lent(self) -> bool:
        """Tell whether anything is to be acknowledged yet."""
        return any(lane.is_open() for lane in self.progress.lanes.values())

    def leave(self, outbox: Outbox, now: float) -> list[Delivery]:
        """Take a member out and lend what it had to the others; return that where there are none.

        The deliveries of its outbox are its own from now on: their end means nothing here.
        [MQTT-4.8.2-4], [MQTT-4.8.2-5]: one of QoS 2 that has begun goes to nobody else.
        """
        for member in self.members:
            if member.outbox is outbox:
                self.members.remove(member)
                self._forget_keys(member)
                self._debt += member.credit
                break
        else:
            return []
        revoked: list[Delivery] = []
        for delivery in outbox.take_rows(self.progress):
            if _has_begun(delivery):
                _end_loan(delivery)
            else:
                revoked.append(delivery)
        if self.members:
            self._lend_again(revoked, now)
            return []
        for delivery in revoked:
            # It stays open, and comes by again when somebody joins.
            delivery.lane = None
        return revoked

    def reset(self) -> None:
        """Forget what was lent: the group begins elsewhere."""
        for member in self.members:
            for delivery in member.outbox.take_rows(self.progress):
                delivery.lane = None
        self.progress.lanes.clear()

    def freed(self) -> int:
        """Return how much credit the feed is owed, if it is worth telling; else 0."""
        freed = self.progress.freed
        if freed * 8 < self.credit():
            return 0
        self.progress.freed = 0
        paid = min(freed, self._debt)
        self._debt -= paid
        return freed - paid

    def look_for_stalls(self, now: float, timeout: float) -> int:
        """Lend on what members have had for too long without acknowledging anything; return how
        many rows that were.
        """
        count = 0
        for member in self.members:
            acks = member.outbox.completed
            if acks != member.seen_acks or member.load() == 0:
                member.seen_acks = acks
                member.seen_at = now
                member.stalled = False
            elif not member.stalled and now - member.seen_at > timeout and len(self._takers()) > 1:
                member.stalled = True
                self._forget_keys(member)
                revoked = self._revoke(member.outbox)
                count += len(revoked)
                self._lend_again(revoked, now)
        return count

    def receive(self, batch: FeedBatch, rows: list[int] | None, now: float, wall_us: int) -> None:
        """Lend the rows of a batch, all of them for None.

        They are noted in the order of their serials, and lent in that of their times, in which
        they came: in a batch, rows of one stream stand together.
        """
        lane = self.progress.lane(batch.shard)
        ordered = rows_by_time(batch, rows)
        left_out: list[int] = []
        if lane.done:
            known = [index for index in ordered if batch.serials[index] in lane.done]
            left_out = [batch.serials[index] for index in known]
            ordered = [index for index in ordered if batch.serials[index] not in lane.done]
            self.progress.freed += len(left_out)
        lane.come_by([batch.serials[index] for index in ordered], left_out)
        self._plan = self._shares(len(ordered))
        for index in ordered:
            self._lend_row(batch, index, lane, now, wall_us)

    def _lend_row(self, batch: FeedBatch, index: int, lane: Lane, now: float, wall_us: int) -> None:
        serial = batch.serials[index]
        properties = batch.properties[index] if batch.properties else b""
        expires_at = NEVER
        left_us = left_us_of(properties, batch.timestamps[index], wall_us)
        if left_us == 0:
            self.expired += 1
            lane.complete(serial)
            return
        if left_us != NO_EXPIRY:
            properties = with_expiry(properties, max(1, left_us // _US))
            expires_at = now + left_us / _US
        topic = batch.topics[index]
        member = self._choose(topic, batch.publishers[index])
        if member is None:
            self.unreadable += 1
            lane.complete(serial)
            return
        loan = Loan(batch.flags[index] & 7, properties, batch.publishers[index])
        # [MQTT-3.3.1-1]: somebody was sent it, or may have been.
        is_again = serial < lane.doubtful_until
        _lend(member, topic, batch.values[index], loan, expires_at, lane, serial, is_again)

    def _shares(self, count: int) -> list[tuple[Member, int]]:
        """Return how many rows of a batch each member gets, the last one first: more where less is
        to do.
        """
        if self.strategy != LEAST_LOADED:
            return []
        takers = self._takers()
        loads = [(member.load(), number) for number, member in enumerate(takers)]
        loads.sort()
        plan: list[tuple[Member, int]] = []
        left = count
        for place, (load, number) in enumerate(loads):
            # Up to the level at which the following ones begin to get their part.
            rest = len(loads) - place
            level = (sum(each for each, _ in loads[place:]) + left) // rest
            share = min(left, max(0, level - load))
            if place == len(loads) - 1:
                share = left
            plan.append((takers[number], share))
            left -= share
        plan.reverse()
        return plan

    def _choose(self, topic: bytes, publisher: bytes) -> Member | None:
        """Return who gets the next row; None where nobody may read it."""
        member = self._preferred(topic, publisher)
        if member is not None and member.may_receive(topic):
            return member
        for other in self._takers():
            if other.may_receive(topic):
                return other
        return None

    def _preferred(self, topic: bytes, publisher: bytes) -> Member | None:
        strategy = self.strategy
        if strategy == LEAST_LOADED:
            while self._plan:
                member, left = self._plan[-1]
                if left > 0:
                    self._plan[-1] = (member, left - 1)
                    return member
                self._plan.pop()
        if strategy in (STICKY, STICKY_TOPIC):
            return self._keeper_of(topic if strategy == STICKY_TOPIC else publisher)
        takers = self._takers()
        if not takers:
            return None
        if strategy == RANDOM:
            return takers[random.randrange(len(takers))]  # noqa: S311 - no secret
        self._turn = (self._turn + 1) % len(takers)
        return takers[self._turn]

    def _keeper_of(self, key: bytes) -> Member | None:
        """Return the member that has all rows of a key; a new key goes to who has least to do."""
        member = self._keys.get(key)
        if member is None:
            takers = self._takers()
            if not takers:
                return None
            member = min(takers, key=_load)
            if len(self._keys) >= _KEYS_MAX:
                self._keys.clear()
            self._keys[key] = member
        return member

    def _takers(self) -> list[Member]:
        """Return who can be lent something: everybody, where all have stalled."""
        takers = [member for member in self.members if not member.stalled]
        return takers or self.members

    def _forget_keys(self, member: Member) -> None:
        self._keys = {key: known for key, known in self._keys.items() if known is not member}

    def _revoke(self, outbox: Outbox) -> list[Delivery]:
        """Take back what an outbox has of this group, in order, but for what must end there."""
        return [each for each in outbox.take_rows(self.progress) if not _has_begun(each)]

    def _lend_again(self, revoked: list[Delivery], now: float) -> None:
        self._plan = self._shares(len(revoked))
        for old in revoked:
            lane, loan = old.lane, old.loan
            assert lane is not None
            assert loan is not None
            old.lane = None
            member = self._choose(old.topic, loan.publisher)
            if member is None or (old.expires_at != NEVER and old.expires_at <= now):
                lane.complete(old.serial)
                continue
            is_again = old.sent or old.flags & DUP != 0
            _lend(member, old.topic, old.payload, loan, old.expires_at, lane, old.serial, is_again)


def _has_begun(delivery: Delivery) -> bool:
    """Tell whether it must end where it has begun: it has QoS 2, and was sent."""
    return delivery.sent and delivery.flags & 3 == 2


def _end_loan(delivery: Delivery) -> None:
    """Let a row be done here, and the delivery go on by itself."""
    lane = delivery.lane
    assert lane is not None
    lane.complete(delivery.serial)
    delivery.lane = None


def _lend(
    member: Member,
    topic: bytes,
    payload: bytes,
    loan: Loan,
    expires_at: float,
    lane: Lane,
    serial: int,
    is_again: bool,
) -> None:
    """Offer a row to a member as its subscription asks for it."""
    # [MQTT-3.8.4-8]: the lower one of the message's and the subscription's.
    qos = min(loan.flags & 3, member.qos)
    flags = qos | (loan.flags & 4 if member.keeps_retain else 0)
    properties = loan.properties + member.identifier
    if qos == 0:
        member.outbox.offer(topic, payload, flags, properties, expires_at)
        lane.complete(serial)
        return
    if is_again:
        flags |= DUP
    delivery = Delivery(topic, payload, flags, properties, expires_at)
    delivery.loan = loan
    member.outbox.offer_row(delivery, lane, serial)


def _load(member: Member) -> int:
    return member.load()
