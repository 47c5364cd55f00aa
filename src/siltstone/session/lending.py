"""Distribution of the rows of a share group: each row is lent to one member at a time.

All members of a group share one position in the store. A row is lent to a member that can take it.
Rows that a member leaves unacknowledged are lent to other members, in order and with the DUP flag
if they were sent. A row is done when the member that it was lent to last has acknowledged it, so no
row is lost. A QoS 2 delivery that has begun ends with the member where it began: once a durable
session has saved the delivery, it belongs to that session.

Strategies: the least loaded member, in parts of a batch; each member in turn, row by row; a random
member; or always the same member for all rows of one publisher, or of one topic. The last two keep
the rows of one publisher and topic in order.

With the first strategy, a member is lent only as many rows as it acknowledges in a short time. It
begins with a few rows. The number doubles each time until more rows take the member longer. A slow
member therefore holds few rows of a backlog when the others are done. Members with the same load
take turns.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from heapq import heapify, heapreplace
from typing import Final

from siltstone.mqtt.publish import NO_EXPIRY, with_time_left
from siltstone.rows.batch import DUP
from siltstone.rows.stored import StoredBatch, rows_by_time
from siltstone.session.durable.progress import SessionProgress, ShardProgress
from siltstone.session.sending.delivery import NEVER, Delivery, Loan, left_us_of, properties_of
from siltstone.session.sending.outbox import Outbox
from siltstone.units import SECOND_US

LEAST_LOADED: Final = "least-loaded"
ROUND_ROBIN: Final = "round-robin"
RANDOM: Final = "random"
STICKY: Final = "sticky"
STICKY_TOPIC: Final = "sticky-topic"

# A member begins with _CREDIT_FIRST rows. Then it is lent as many rows as it acknowledges in
# _HORIZON_SECONDS plus the round trip of the first of them, but at least _CREDIT_MIN.
_CREDIT_FIRST: Final = 4
_CREDIT_MIN: Final = 2
_HORIZON_SECONDS: Final = 0.05
# A measurement that takes longer is abandoned: rows may have been taken back or have no answer.
_PROBE_SECONDS: Final = 2.0
_KEYS_MAX: Final = 100_000
_RIGHTS_MAX: Final = 10_000


class Member:
    """One session in a group, with the options of its subscription."""

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
        # The encoded subscription identifier, or empty.
        self.identifier = identifier
        self._guard = guard
        self._rights: dict[bytes, bool] = {}
        # The number of rows that this member may hold now; the limit is _credit_max.
        self.credit = credit
        self._credit_max = credit
        # The running measurement: the rows that the member held, the acknowledgements before it,
        # and its start time. Then the number and the time of the first acknowledgements.
        self._probe_rows = 0
        self._probe_acks = 0
        self._probe_at = 0.0
        self._first_acks = 0
        self._first_at = 0.0
        # Whether the member has acknowledged nothing for so long that other members get its rows.
        self.stalled = False
        self.seen_at = 0.0
        self.seen_acks = 0

    def load(self) -> int:
        """Return how many messages the member has queued or in flight."""
        return self.outbox.queued + self.outbox.inflight

    def begin_slowly(self) -> None:
        """Lend the member only a few rows until its speed is known."""
        self.credit = min(self.credit, _CREDIT_FIRST)

    def follow(self, former: Member) -> None:
        """Take over the credit, and with it the known speed, of the former subscription."""
        self.credit = min(former.credit, self._credit_max)

    def measure(self, now: float) -> None:
        """Begin to measure the speed of the member, unless a measurement is running."""
        if self._probe_rows == 0:
            self._probe_rows = self.load()
            self._probe_acks = self.outbox.completed
            self._probe_at = now
            self._first_acks = 0

    def learn(self, now: float) -> int:
        """Adapt the credit to the measured speed; return how many rows more the member may hold."""
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
        """Raise the credit of a member that holds all it may and acknowledges nothing.

        The member may acknowledge many rows at once. Return how many rows more it may hold.
        """
        return self._lend_up_to(self.credit * 2) if self.load() >= self.credit else 0

    def _lend_up_to(self, credit: int) -> int:
        before = self.credit
        self.credit = min(self._credit_max, max(_CREDIT_MIN, credit))
        return self.credit - before

    def _fitting(self, rows: int, acks: int, now: float) -> int:
        """Return the credit that fits a member which held `rows` and acknowledged `acks` by now."""
        took = now - self._first_at
        if acks == self._first_acks or took <= 0:
            # All acknowledgements came at once. The member may be faster than this shows, unless it
            # held few rows.
            return self.credit * 2 if rows > 1 and rows * 2 >= self.credit else self.credit
        # The time between acknowledgements depends on the member alone. The time to the first one
        # includes the round trip.
        each = took / (acks - self._first_acks)
        fitting = int((_HORIZON_SECONDS + self._first_at - self._probe_at) / each)
        return max(self.credit // 2, min(self.credit * 2, fitting))

    def may_receive(self, topic: bytes) -> bool:
        """Tell whether the session may read a topic."""
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
        """Clear the cached rights, so that they are checked again."""
        self._rights.clear()


class Lending:
    """The rows of one group, and the members that they are lent to."""

    def __init__(self, strategy: str, progress: SessionProgress) -> None:
        self.strategy = strategy
        self.progress = progress
        self.members: list[Member] = []
        self._by_outbox: dict[Outbox, Member] = {}
        # The members that can be lent rows; empty if the list must be computed again.
        self._able: list[Member] = []
        # The number of rows that all members together may hold.
        self._credit = 0
        self.expired = 0
        # Rows that no member may read.
        self.unreadable = 0
        # Credit of members that have left, or that have less credit now. Freed rows pay for it
        # first. It is negative if members have gained credit.
        self._debt = 0
        self._turn = 0
        # The member that receives the rows of a publisher or topic.
        self._keys: dict[bytes, Member] = {}
        # How many rows of this batch each member still gets.
        self._plan: list[tuple[Member, int]] = []

    def join(self, member: Member, now: float) -> None:
        """Add a member, or replace its former subscription by a new one."""
        member.seen_at = now
        self._able = []
        known = self._by_outbox.get(member.outbox)
        self._by_outbox[member.outbox] = member
        if known is not None:
            self.members[self.members.index(known)] = member
            member.follow(known)
            self._credit += member.credit - known.credit
            # The member has unacknowledged rows of these keys: later rows must go to the same
            # member.
            for key in [key for key, keeper in self._keys.items() if keeper is known]:
                self._keys[key] = member
            return
        if self.strategy == LEAST_LOADED:
            member.begin_slowly()
        self._credit += member.credit
        self.members.append(member)

    def credit(self) -> int:
        """Return how many rows all members together may hold."""
        return self._credit

    def begin(self) -> int:
        """Return the credit to begin a feed with: all credit, less the rows that are lent."""
        self.progress.freed = 0
        self._debt = 0
        lent = sum([lane.open_count() for lane in self.progress.lanes.values()])
        return max(1, self.credit() - lent)

    def has_lent(self) -> bool:
        """Tell whether any row is lent and not acknowledged."""
        return any(lane.is_open() for lane in self.progress.lanes.values())

    def leave(self, outbox: Outbox, now: float) -> list[Delivery]:
        """Remove a member and lend its rows to the others; return the rows if no member is left.

        The deliveries that stay in its outbox belong to the outbox from now on: their end changes
        nothing here. [MQTT-4.8.2-4], [MQTT-4.8.2-5]: a QoS 2 delivery that has begun goes to no
        other member.
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
            # The row stays open, and is read again when a member joins.
            delivery.lane = None
        return revoked

    def reset(self) -> None:
        """Forget all loans: the group continues at another position."""
        for member in self.members:
            for delivery in member.outbox.take_rows(self.progress):
                delivery.lane = None
        self.progress.lanes.clear()

    def freed(self) -> int:
        """Return the credit to give back to the feed; 0 while it is below an eighth of all."""
        owed = self.progress.freed - self._debt
        if owed <= 0 or owed * 8 < self.credit():
            return 0
        self.progress.freed = 0
        self._debt = 0
        return owed

    def pace(self, now: float) -> None:
        """Adjust the credit of each member to its speed."""
        if self.strategy == LEAST_LOADED:
            for member in self.members:
                self._lend_more(member.learn(now))

    def pace_one(self, outbox: Outbox, now: float) -> None:
        """Adjust the credit of one member, which has acknowledged something."""
        member = self._by_outbox.get(outbox)
        if member is not None and self.strategy == LEAST_LOADED:
            self._lend_more(member.learn(now))

    def _lend_more(self, rows: int) -> None:
        """Record that the members may hold `rows` more rows."""
        self._credit += rows
        self._debt -= rows

    def look_for_stalls(self, now: float, timeout: float) -> int:
        """Lend the rows of stalled members to others; return how many rows those were.

        A member has stalled if it holds messages and acknowledged none of them for `timeout`
        seconds.
        """
        stalled: list[Member] = []
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
                stalled.append(member)
        # Only when all stalled members are known: none of them may be lent the rows of another.
        count = 0
        for member in stalled:
            self._forget_keys(member)
            revoked = self._revoke(member.outbox)
            count += len(revoked)
            self._lend_again(revoked, now)
        return count

    def receive(self, batch: StoredBatch, rows: list[int] | None, now: float, wall_us: int) -> None:
        """Lend rows of a batch; None means all of them.

        The rows are recorded in the order of their serials and lent in the order of their
        timestamps, because a batch groups its rows by stream.
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
        self, batch: StoredBatch, index: int, lane: ShardProgress, now: float, wall_us: int
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
            expires_at = now + left_us / SECOND_US
        topic = batch.topics[index]
        member = self._choose(topic, batch.publishers[index])
        if member is None:
            self.unreadable += 1
            lane.complete(serial)
            return
        loan = Loan(batch.flags[index] & 7, properties, batch.publishers[index])
        # [MQTT-3.3.1-1]: the row was sent before, or may have been.
        is_again = serial < lane.doubtful_until
        _lend(member, topic, batch.values[index], loan, expires_at, lane, serial, is_again)

    def _shares(self, count: int) -> list[tuple[Member, int]]:
        """Return how many rows of a batch each member gets, in reverse order of turns.

        A member with a lower load gets more. No member gets more than its credit while others have
        room.
        """
        takers = self._takers()
        if self.strategy != LEAST_LOADED or not takers:
            return []
        members = len(takers)
        loads = [(takers[(self._turn + step) % members].load(), step) for step in range(members)]
        loads.sort()
        # Sorted by load. Members with the same load take turns.
        takers = [takers[(self._turn + step) % members] for _, step in loads]
        self._turn = (self._turn + count) % members
        shares = _filled([load for load, _ in loads], [each.credit for each in takers], count)
        plan = list(zip(takers, shares, strict=True))
        plan.reverse()
        return plan

    def _choose(self, topic: bytes, publisher: bytes) -> Member | None:
        """Return the member for the next row; None if no member may read it."""
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
        """Return the member for all rows of a key; a new key goes to the least loaded member."""
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
        """Return the members that can be lent rows: all members if all have stalled."""
        if not self._able:
            able = [member for member in self.members if not member.stalled]
            self._able = able or list(self.members)
        return self._able

    def _forget_keys(self, member: Member) -> None:
        self._keys = {key: known for key, known in self._keys.items() if known is not member}

    def _revoke(self, outbox: Outbox) -> list[Delivery]:
        """Take back this group's rows from an outbox, in order, except begun QoS 2 deliveries."""
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
    """Return how many of `count` rows each member gets, so that all loads become equal.

    No load exceeds its credit while another member has credit left. Rows beyond all credit are
    divided so that all loads have the same ratio to their credit. A remainder goes to the first
    members.
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
    """Return how many rows each member lacks to reach a level, limited by its credit."""
    return [max(0, min(level, credit) - load) for load, credit in zip(loads, credits_, strict=True)]


def _has_begun(delivery: Delivery) -> bool:
    """Tell whether a delivery must end where it began: it has QoS 2 and was sent."""
    return delivery.sent and delivery.flags & 3 == 2


def _end_loan(delivery: Delivery) -> None:
    """Mark the row of a delivery as done for the group; the delivery itself continues."""
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
    """Offer a row to a member, with the options of the member's subscription."""
    # [MQTT-3.8.4-8]: the lower QoS of the message and the subscription.
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
