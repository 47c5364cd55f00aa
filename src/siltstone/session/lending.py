"""The rows of a share group, lent to its members: each to one of them, until it is acknowledged.

All members of a group share one place in the store. A row is lent to a member that can take it;
what a member leaves unacknowledged is lent to the others, in order, as sent again. So a row is done
once whoever it was lent to last has acknowledged it, and none is ever forgotten. A delivery of
QoS 2 that has begun ends where it began: a durable member's is its own once it is saved with it.

Strategies: the member with the least to do, in parts of a batch; each in turn, row by row; at
random; or always the same member for the rows of a publisher, or of a topic, which keeps those of
a publisher and topic in order.

By the first strategy a member is lent what it acknowledges in a moment, and no more: it begins with
a few rows, then twice as many each time, until more rows take it longer. So one that is slow has
little of a backlog when the others are done. Among members that have as little to do, turns rotate.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heapify, heapreplace
from typing import Final

from siltstone.mqtt.publish import NO_EXPIRY, with_time_left
from siltstone.session.durable.progress import Progress, ShardProgress
from siltstone.session.sending.delivery import DUP, NEVER, Delivery, Loan, left_us_of, properties_of
from siltstone.session.sending.outbox import Outbox
from siltstone.store.feed.rows.batch import FeedBatch, rows_by_time

LEAST_LOADED: Final = "least-loaded"
ROUND_ROBIN: Final = "round-robin"
RANDOM: Final = "random"
STICKY: Final = "sticky"
STICKY_TOPIC: Final = "sticky-topic"

_US: Final = 1_000_000
# A member begins with so many rows, and is then lent what it acknowledges in so many seconds beside
# the time that the first of them takes there and back, but at least so many.
_CREDIT_FIRST: Final = 4
_CREDIT_MIN: Final = 2
_HORIZON_SECONDS: Final = 0.05
# What is not acknowledged by then tells nothing: it may have been taken back, or have no answer.
_PROBE_SECONDS: Final = 2.0
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
        # How many rows may be on their way to it, and how many at most.
        self.credit = credit
        self._credit_max = credit
        # What is being measured: how many rows it had, how many it had acknowledged before, and
        # since when; how many it acknowledged at first, and when.
        self._probe_rows = 0
        self._probe_acks = 0
        self._probe_at = 0.0
        self._first_acks = 0
        self._first_at = 0.0
        # It has taken nothing for so long that others get its rows.
        self.stalled = False
        self.seen_at = 0.0
        self.seen_acks = 0

    def load(self) -> int:
        """Return how much it has to do."""
        return self.outbox.queued + self.outbox.inflight

    def begin_slowly(self) -> None:
        """Let few rows be on their way until it is known how fast it is."""
        self.credit = min(self.credit, _CREDIT_FIRST)

    def follow(self, former: Member) -> None:
        """Take over what is known of how fast it is."""
        self.credit = min(former.credit, self._credit_max)

    def measure(self, now: float) -> None:
        """Begin to measure how long what it has takes, unless that is being done."""
        if self._probe_rows == 0:
            self._probe_rows = self.load()
            self._probe_acks = self.outbox.completed
            self._probe_at = now
            self._first_acks = 0

    def learn(self, now: float) -> int:
        """Lend more or less from now on, by what was measured; return how many rows more."""
        if self._probe_rows == 0:
            return 0
        acks = self.outbox.completed - self._probe_acks
        if acks and self._first_acks == 0:
            self._first_acks = acks
            self._first_at = now
        is_over = acks >= self._probe_rows or (
            acks > self._first_acks and now - self._first_at >= _HORIZON_SECONDS
        )
        if not is_over:
            if now - self._probe_at > _PROBE_SECONDS:
                self._probe_rows = 0
            return 0
        rows, self._probe_rows = self._probe_rows, 0
        return self._lend_up_to(self._fitting(rows, acks, now))

    def insist(self) -> int:
        """Lend more to one that has all it may have and acknowledges nothing: perhaps it does so
        for many at once; return how many rows more.
        """
        return self._lend_up_to(self.credit * 2) if self.load() >= self.credit else 0

    def _lend_up_to(self, credit: int) -> int:
        before = self.credit
        self.credit = min(self._credit_max, max(_CREDIT_MIN, credit))
        return self.credit - before

    def _fitting(self, rows: int, acks: int, now: float) -> int:
        """Return how many rows fit a member that had some and has acknowledged so many by now."""
        took = now - self._first_at
        if acks == self._first_acks or took <= 0:
            # All at once: it may be faster than this shows, if these were not few.
            return self.credit * 2 if rows > 1 and rows * 2 >= self.credit else self.credit
        # The time between acknowledgements is the member's own; that to the first one has the way
        # there and back in it.
        each = took / (acks - self._first_acks)
        fitting = int((_HORIZON_SECONDS + self._first_at - self._probe_at) / each)
        return max(self.credit // 2, min(self.credit * 2, fitting))

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
        self._by_outbox: dict[Outbox, Member] = {}
        # Who can be lent something; empty where that is to be found out anew.
        self._able: list[Member] = []
        # How many rows may be on their way to all members.
        self._credit = 0
        self.expired = 0
        # Rows that nobody may read.
        self.unreadable = 0
        # Credit of members that have gone, or have less now; what is freed pays for it first. It
        # is below 0 where members have more.
        self._debt = 0
        self._turn = 0
        # Who has the rows of a publisher or topic.
        self._keys: dict[bytes, Member] = {}
        # How many rows each member is to get of this batch yet.
        self._plan: list[tuple[Member, int]] = []

    def join(self, member: Member, now: float) -> None:
        """Add a member, or put its new subscription in place of its former one."""
        member.seen_at = now
        self._able = []
        known = self._by_outbox.get(member.outbox)
        self._by_outbox[member.outbox] = member
        if known is not None:
            self.members[self.members.index(known)] = member
            member.follow(known)
            self._credit += member.credit - known.credit
            # What it has of a key is not acknowledged yet: what follows must follow it.
            for key in [key for key, keeper in self._keys.items() if keeper is known]:
                self._keys[key] = member
            return
        if self.strategy == LEAST_LOADED:
            member.begin_slowly()
        self._credit += member.credit
        self.members.append(member)

    def credit(self) -> int:
        """Return how many rows may be on their way to all members."""
        return self._credit

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
        member = self._by_outbox.pop(outbox, None)
        if member is None:
            return []
        self.members.remove(member)
        self._able = []
        self._forget_keys(member)
        self._credit -= member.credit
        self._debt += member.credit
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
        owed = self.progress.freed - self._debt
        if owed <= 0 or owed * 8 < self.credit():
            return 0
        self.progress.freed = 0
        self._debt = 0
        return owed

    def pace(self, now: float) -> None:
        """Lend each member as much as fits it, by how fast it has acknowledged."""
        if self.strategy == LEAST_LOADED:
            for member in self.members:
                self._lend_more(member.learn(now))

    def pace_one(self, outbox: Outbox, now: float) -> None:
        """Do so for one member, which has acknowledged something."""
        member = self._by_outbox.get(outbox)
        if member is not None and self.strategy == LEAST_LOADED:
            self._lend_more(member.learn(now))

    def _lend_more(self, rows: int) -> None:
        """Take note that a member may have so many rows more."""
        self._credit += rows
        self._debt -= rows

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
                if member.stalled:
                    member.stalled = False
                    self._able = []
                continue
            if self.strategy == LEAST_LOADED:
                self._lend_more(member.insist())
            if not member.stalled and now - member.seen_at > timeout and len(self._takers()) > 1:
                member.stalled = True
                self._able = []
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
        self.pace(now)
        self._plan = self._shares(len(ordered))
        for index in ordered:
            self._lend_row(batch, index, lane, now, wall_us)
        for member in self.members:
            member.measure(now)

    def _lend_row(
        self, batch: FeedBatch, index: int, lane: ShardProgress, now: float, wall_us: int
    ) -> None:
        serial = batch.serials[index]
        properties = properties_of(batch, index)
        expires_at = NEVER
        left_us = left_us_of(properties, batch.came_us(index), wall_us)
        if left_us == 0:
            self.expired += 1
            lane.complete(serial)
            return
        if left_us != NO_EXPIRY:
            properties = with_time_left(properties, left_us)
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
        to do, and no more than fits, as far as that goes.
        """
        takers = self._takers()
        if self.strategy != LEAST_LOADED or not takers:
            return []
        members = len(takers)
        loads = [(takers[(self._turn + step) % members].load(), step) for step in range(members)]
        loads.sort()
        # In the order of their loads, those that are alike in turn.
        takers = [takers[(self._turn + step) % members] for _, step in loads]
        self._turn = (self._turn + count) % members
        shares = _filled([load for load, _ in loads], [each.credit for each in takers], count)
        plan = list(zip(takers, shares, strict=True))
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
        if not self._able:
            able = [member for member in self.members if not member.stalled]
            self._able = able or list(self.members)
        return self._able

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


def _filled(loads: list[int], credits_: list[int], count: int) -> list[int]:
    """Return how to divide rows: so that all have as much, but none more than its credit.

    What is beyond all credit is divided so that all have as much by their credit. What does not
    come out even goes to the first.
    """
    low, high = 0, max(loads) + count
    while low < high:
        level = (low + high + 1) // 2
        if sum(_below(loads, credits_, level)) <= count:
            low = level
        else:
            high = level - 1
    shares = _below(loads, credits_, low)
    left = count - sum(shares)
    for number, load in enumerate(loads):
        if left and load <= low and load + shares[number] < credits_[number]:
            shares[number] += 1
            left -= 1
    if left:
        fullest = [
            ((load + shares[number] + 1) / credits_[number], number)
            for number, load in enumerate(loads)
        ]
        heapify(fullest)
        for _ in range(left):
            part, number = fullest[0]
            shares[number] += 1
            heapreplace(fullest, (part + 1 / credits_[number], number))
    return shares


def _below(loads: list[int], credits_: list[int], level: int) -> list[int]:
    """Return what each lacks to a level, as far as its credit goes."""
    return [max(0, min(level, credit) - load) for load, credit in zip(loads, credits_, strict=True)]


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
    lane: ShardProgress,
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
