from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from siltstone.rows.batch import DUP
from siltstone.session.durable.progress import SessionProgress
from siltstone.session.lending import (
    LEAST_LOADED,
    RANDOM,
    ROUND_ROBIN,
    STICKY,
    STICKY_TOPIC,
    Lending,
    Member,
    _filled,
)
from tests.support.lent_rows import acknowledge, has, member_of, outbox_of, rows_of

SECOND = 1_000_000


def lending_of(strategy: str, *members: Member) -> Lending:
    lending = Lending(strategy, SessionProgress())
    for member in members:
        lending.join(member, 0.0)
    return lending


def receive(lending: Lending, first: int, topics: list[bytes], **fields: Any) -> None:
    lending.receive(rows_of(first, topics, **fields), None, 0.0, 0)


def values(*serials: int) -> list[bytes]:
    return [b"%d" % serial for serial in serials]


def test_each_row_is_lent_to_one_member_in_turn() -> None:
    members = [member_of() for _ in range(3)]
    lending = lending_of(ROUND_ROBIN, *members)
    receive(lending, 0, [b"a"] * 7)
    assert [has(member) for member in members] == [values(2, 5), values(0, 3, 6), values(1, 4)]


def test_who_has_least_to_do_gets_most_until_all_have_the_same() -> None:
    busy, idle = member_of(), member_of()
    lending = lending_of(LEAST_LOADED, busy)
    receive(lending, 0, [b"a"] * 4)
    lending.join(idle, 0.0)
    receive(lending, 4, [b"a"] * 6)
    assert (has(busy), has(idle)) == (values(0, 1, 2, 3, 9), values(4, 5, 6, 7, 8))


def test_at_random_everybody_gets_some() -> None:
    members = [member_of(outbox_of(window=1000), credit=1000) for _ in range(2)]
    lending = lending_of(RANDOM, *members)
    receive(lending, 0, [b"a"] * 200)
    counts = [len(has(member)) for member in members]
    assert sum(counts) == 200
    assert min(counts) > 20


@pytest.mark.parametrize("strategy", [STICKY, STICKY_TOPIC])
def test_rows_of_a_key_stay_with_their_member_when_another_joins(strategy: str) -> None:
    keys = [b"x", b"y", b"x", b"y"]
    topics, publishers = (keys, [b"p"] * 4) if strategy == STICKY_TOPIC else ([b"t"] * 4, keys)
    first, second, third = member_of(), member_of(), member_of()
    lending = lending_of(strategy, first, second)
    receive(lending, 0, topics, publishers=publishers)
    lending.join(third, 0.0)
    receive(lending, 4, topics, publishers=publishers)
    assert (has(first), has(second), has(third)) == (
        values(0, 2, 4, 6),
        values(1, 3, 5, 7),
        [],
    )


def test_what_a_member_leaves_goes_to_the_others_in_order_as_sent_again() -> None:
    leaving, staying = member_of(outbox_of(window=2)), member_of()
    lending = lending_of(STICKY, leaving)
    receive(lending, 0, [b"a"] * 4)
    acknowledge(leaving, 1)
    lending.join(staying, 0.0)
    left = lending.leave(leaving.outbox, 0.0)
    assert (left, has(staying)) == ([], values(1, 2, 3))
    again = [each.flags & DUP != 0 for each in staying.outbox.deliveries()]
    assert again == [True, True, False]
    acknowledge(staying, 3)
    assert lending.progress.position() == {0: 0}
    lending.progress.lane(0).pass_by(4)
    assert lending.progress.position() == {0: 4}


def test_what_the_last_member_leaves_stays_open() -> None:
    only = member_of()
    lending = lending_of(ROUND_ROBIN, only)
    receive(lending, 5, [b"a"] * 3)
    acknowledge(only, 1)
    lending.progress.lane(0).pass_by(8)
    left = lending.leave(only.outbox, 0.0)
    assert [each.payload for each in left] == values(6, 7)
    assert (lending.progress.position(), lending.members) == ({0: 6}, [])


def test_an_acknowledgement_that_comes_too_late_ends_nothing() -> None:
    slow, quick = member_of(), member_of()
    lending = lending_of(STICKY, slow)
    receive(lending, 0, [b"a"])
    lending.join(quick, 0.0)
    assert lending.look_for_stalls(11.0, 10.0) == 1
    lending.progress.lane(0).pass_by(1)
    slow.outbox.acknowledge(0x40, [1], 0.0)
    assert (lending.progress.position(), has(quick)) == ({0: 0}, values(0))
    acknowledge(quick, 1)
    assert lending.progress.position() == {0: 1}


def test_who_acknowledges_anything_in_time_does_not_stall() -> None:
    member, other = member_of(), member_of()
    lending = lending_of(STICKY, member)
    receive(lending, 0, [b"a"] * 3)
    lending.join(other, 0.0)
    acknowledge(member, 1)
    assert (lending.look_for_stalls(9.0, 10.0), lending.look_for_stalls(18.0, 10.0)) == (0, 0)
    assert lending.look_for_stalls(20.0, 10.0) == 2
    assert (member.stalled, has(other)) == (True, values(1, 2))


def test_rows_of_a_stalled_member_do_not_go_to_another_that_stalls_at_the_same_time() -> None:
    first, second, third = member_of(), member_of(), member_of()
    lending = lending_of(ROUND_ROBIN, first, second, third)
    receive(lending, 0, [b"a"] * 6)
    acknowledge(third, 1)
    lending.look_for_stalls(5.0, 10.0)
    assert lending.look_for_stalls(11.0, 10.0) == 4
    assert (has(first), has(second)) == (values(2, 5), values(0, 3))
    assert sorted(has(third)) == values(0, 2, 3, 4, 5)


def test_a_member_that_stalled_gets_rows_again_when_it_acknowledges() -> None:
    member, other = member_of(), member_of()
    lending = lending_of(ROUND_ROBIN, member, other)
    receive(lending, 0, [b"a"] * 2)
    acknowledge(other, 1)
    lending.look_for_stalls(1.0, 10.0)
    acknowledge(other, 1)
    assert lending.look_for_stalls(11.5, 10.0) == 1
    receive(lending, 2, [b"a"] * 2)
    assert has(other) == values(1, 2, 3)
    member.outbox.acknowledge(0x40, [1], 0.0)
    acknowledge(other, 3)
    lending.look_for_stalls(12.0, 10.0)
    receive(lending, 4, [b"a"] * 2)
    assert (len(has(member)), len(has(other))) == (1, 1)


def test_the_only_member_keeps_what_it_has_however_long_it_takes() -> None:
    member = member_of()
    lending = lending_of(ROUND_ROBIN, member)
    receive(lending, 0, [b"a"])
    assert (lending.look_for_stalls(1000.0, 10.0), has(member)) == (0, values(0))


def test_a_row_goes_to_who_may_read_it_and_is_done_where_nobody_may() -> None:
    member = member_of(guard=lambda topic: topic == b"open")
    other = member_of(guard=lambda topic: topic != b"secret")
    lending = lending_of(ROUND_ROBIN, member, other)
    receive(lending, 0, [b"secret", b"half", b"half", b"open"])
    lending.progress.lane(0).pass_by(4)
    assert (has(other), has(member), lending.unreadable) == (values(1, 2), values(3), 1)
    acknowledge(other, 2)
    acknowledge(member, 1)
    assert lending.progress.position() == {0: 4}


def test_rights_are_asked_once_for_each_topic_until_they_are_forgotten() -> None:
    asked: list[bytes] = []

    def guard(topic: bytes) -> bool:
        asked.append(topic)
        return True

    member = member_of(guard=guard)
    lending = lending_of(ROUND_ROBIN, member)
    receive(lending, 0, [b"a", b"a", b"b"])
    member.forget_rights()
    receive(lending, 3, [b"a"])
    assert asked == [b"a", b"b", b"a"]


def test_a_member_gets_a_row_as_its_own_subscription_asks() -> None:
    plain = member_of(qos=1, identifier=b"\x0b\x07")
    lending = lending_of(STICKY, plain)
    receive(lending, 0, [b"a"], qos=2 | 4)
    keeping = member_of(qos=2, keeps_retain=True)
    [first] = plain.outbox.deliveries()
    lending.join(keeping, 0.0)
    lending.leave(plain.outbox, 0.0)
    # It waits until its packet id is saved only in a durable session; here it was sent.
    [second] = keeping.outbox.deliveries()
    assert (first.flags, first.properties) == (1, b"\x0b\x07")
    assert (second.flags, second.properties) == (2 | 4 | DUP, b"")


def test_what_is_wanted_with_qos_0_is_done_when_it_is_sent() -> None:
    member = member_of(qos=0)
    lending = lending_of(ROUND_ROBIN, member)
    receive(lending, 0, [b"a"] * 2)
    lending.progress.lane(0).pass_by(2)
    assert (member.outbox.sent, lending.progress.position()) == (2, {0: 2})


def test_what_has_expired_is_not_lent() -> None:
    member = member_of()
    lending = lending_of(ROUND_ROBIN, member)
    expiry = b"\x02\x00\x00\x00\x05"
    batch = rows_of(0, [b"a", b"b"], properties=[expiry, b""], arrived_us=0)
    lending.receive(batch, None, 100.0, 5 * SECOND)
    assert (has(member), lending.expired, lending.progress.freed) == (values(1), 1, 1)


def test_what_is_left_of_an_interval_is_told_and_kept_when_lent_again() -> None:
    member, other = member_of(), member_of()
    lending = lending_of(STICKY, member)
    batch = rows_of(0, [b"a"], properties=[b"\x02\x00\x00\x00\x09"], arrived_us=0)
    lending.receive(batch, None, 100.0, 4 * SECOND)
    [sent] = member.outbox.deliveries()
    assert (sent.properties, sent.expires_at) == (b"\x02\x00\x00\x00\x05", 105.0)
    lending.join(other, 0.0)
    lending.leave(member.outbox, 105.0)
    assert (has(other), lending.progress.freed) == ([], 1)


def test_rows_that_were_done_before_are_left_out() -> None:
    member = member_of()
    lending = lending_of(ROUND_ROBIN, member)
    lending.progress.start(0, 0, [1])
    lending.progress.lane(0).doubtful_until = 2
    receive(lending, 0, [b"a"] * 3)
    assert has(member) == values(0, 2)
    assert [each.flags & DUP for each in member.outbox.deliveries()] == [DUP, 0]
    acknowledge(member, 1)
    lending.progress.lane(0).pass_by(3)
    assert lending.progress.position() == {0: 2}


def test_a_new_subscription_of_a_member_takes_the_place_of_its_former_one() -> None:
    outbox = outbox_of()
    lending = lending_of(ROUND_ROBIN, member_of(outbox, qos=1))
    lending.join(member_of(outbox, qos=0), 0.0)
    receive(lending, 0, [b"a"])
    assert (len(lending.members), outbox.inflight) == (1, 0)


def test_credit_of_who_left_is_paid_back_first() -> None:
    leaving, staying = member_of(credit=10), member_of(credit=20)
    lending = lending_of(ROUND_ROBIN, leaving, staying)
    receive(lending, 0, [b"a"] * 24)
    lending.leave(leaving.outbox, 0.0)
    acknowledge(staying, 2)
    assert (lending.freed(), lending.progress.freed) == (0, 2)
    acknowledge(staying, 13)
    assert (lending.freed(), lending.progress.freed) == (5, 0)


def test_a_group_that_begins_elsewhere_knows_nothing_of_what_it_lent() -> None:
    member = member_of(outbox_of(window=1))
    lending = lending_of(ROUND_ROBIN, member)
    receive(lending, 0, [b"a"] * 2)
    lending.reset()
    lending.progress.start(0, 100, [])
    acknowledge(member, 1)
    assert (lending.progress.position(), member.outbox.queued) == ({0: 100}, 0)


def test_mqtt_4_8_2_4_what_has_begun_with_qos_2_stays_with_a_member_that_stalls() -> None:
    slow, other = member_of(outbox_of(window=1)), member_of()
    lending = lending_of(STICKY, slow)
    receive(lending, 0, [b"a"] * 2, qos=2)
    lending.join(other, 0.0)
    assert lending.look_for_stalls(11.0, 10.0) == 1
    assert (has(slow), has(other)) == (values(0), values(1))
    slow.outbox.acknowledge(0x50, [1], 0.0)
    lending.progress.lane(0).pass_by(2)
    assert lending.progress.position() == {0: 1}


def test_mqtt_4_8_2_5_what_has_begun_with_qos_2_goes_to_nobody_else() -> None:
    leaving, staying = member_of(outbox_of(window=1)), member_of()
    lending = lending_of(STICKY, leaving)
    receive(lending, 0, [b"a"] * 2, qos=2)
    lending.join(staying, 0.0)
    lending.leave(leaving.outbox, 0.0)
    lending.progress.lane(0).pass_by(2)
    assert (has(staying), lending.progress.position()) == (values(1), {0: 1})


def test_what_the_last_member_acknowledges_after_it_left_ends_nothing() -> None:
    only = member_of()
    lending = lending_of(ROUND_ROBIN, only)
    receive(lending, 0, [b"a"])
    lending.leave(only.outbox, 0.0)
    lending.progress.lane(0).pass_by(1)
    acknowledge(only, 1)
    assert lending.progress.position() == {0: 0}


def test_a_feed_begins_with_the_credit_that_is_not_lent_and_without_debts() -> None:
    leaving, staying = member_of(credit=10), member_of(credit=20)
    lending = lending_of(STICKY, staying)
    lending.join(leaving, 0.0)
    lending.leave(leaving.outbox, 0.0)
    receive(lending, 0, [b"a"] * 4)
    assert lending.begin() == 16
    acknowledge(staying, 3)
    assert lending.freed() == 3
    receive(lending, 4, [b"a"] * 40)
    assert lending.begin() == 1


def test_rows_of_many_streams_are_lent_in_the_order_of_their_times() -> None:
    member = member_of()
    lending = lending_of(ROUND_ROBIN, member)
    batch = rows_of(0, [b"a", b"a", b"b", b"b"])
    batch.mixed = True
    batch.timestamps = [10, 30, 20, 40]
    lending.receive(batch, None, 0.0, 0)
    assert has(member) == values(0, 2, 1, 3)
    acknowledge(member, 2)
    assert lending.progress.position() == {0: 1}
    assert lending.progress.done() == {0: [2]}


class Simulated:
    """Members that take their time for each message, on a clock of their own."""

    def __init__(self, *seconds: float, credit: int = 1024) -> None:
        self.seconds = seconds
        self.members = [
            member_of(outbox_of(window=65_535, messages_max=100_000), credit=credit)
            for _ in seconds
        ]
        self.lending = lending_of(LEAST_LOADED, *self.members)
        self.now = 0.0
        self.counts = [0] * len(seconds)
        self._next_serial = 0
        self._credit = self.lending.begin()
        # When each member will have done what it works at.
        self._busy_until: dict[int, float] = {}

    def come(self, count: int) -> None:
        """Let rows come by."""
        batch = rows_of(self._next_serial, [b"t"] * count)
        self._next_serial += count
        self.lending.receive(batch, None, self.now, 0)
        self._begin_work()

    def _begin_work(self) -> None:
        for number, member in enumerate(self.members):
            if number not in self._busy_until and has(member):
                self._busy_until[number] = self.now + self.seconds[number]

    def step(self) -> bool:
        """Let the next member end its message; tell whether there was one."""
        if not self._busy_until:
            return False
        number = min(self._busy_until, key=lambda each: self._busy_until[each])
        self.now = max(self.now, self._busy_until.pop(number))
        self.counts[number] += len(acknowledge(self.members[number], 1))
        self.lending.pace_one(self.members[number].outbox, self.now)
        self._begin_work()
        return True

    def drain(self, backlog: int) -> float:
        """Let a backlog come by as there is credit for it; return how long it took."""
        left = backlog
        while True:
            count = min(left, self._credit)
            if count:
                left -= count
                self._credit -= count
                self.come(count)
            if not self.step():
                return self.now
            self._credit += self.lending.freed()


@pytest.mark.parametrize("backlog", [500, 5000])
@pytest.mark.parametrize("fast", [0.0005, 0.002, 0.005])
def test_a_slow_member_does_not_hold_back_a_backlog(backlog: int, fast: float) -> None:
    group = Simulated(fast, fast, fast, 0.020)
    ideal = backlog / (3 / fast + 1 / 0.020)
    assert group.drain(backlog) <= 2 * ideal
    assert sum(group.counts) == backlog


def test_one_that_becomes_slow_is_lent_less() -> None:
    group = Simulated(0.001, 0.001)
    group.drain(2000)
    before = group.members[1].credit
    group.seconds = (0.001, 0.050)
    group.drain(2000)
    assert group.members[1].credit < before
    assert group.members[1].credit <= 4


def test_members_that_are_far_away_are_lent_as_much_as_they_can_take() -> None:
    members = [member_of(outbox_of(window=65_535), credit=1024) for _ in range(2)]
    lending = lending_of(LEAST_LOADED, *members)
    now, serial = 0.0, 0
    for _ in range(12):
        # All that they were sent is acknowledged a tenth of a second later.
        count = lending.credit()
        lending.receive(rows_of(serial, [b"t"] * count), None, now, 0)
        serial += count
        now += 0.1
        for member in members:
            acknowledge(member, 100_000)
        lending.pace(now)
    assert [member.credit for member in members] == [1024, 1024]


def test_four_idle_members_get_the_same_of_a_trickle() -> None:
    group = Simulated(0.001, 0.001, 0.001, 0.001)
    for _ in range(2000):
        group.come(1)
        group.now += 0.010
        while group.step():
            pass
    assert group.counts == [500] * 4


def test_rows_are_divided_by_what_there_is_to_do_and_by_what_fits() -> None:
    assert _filled([0, 0, 0], [10, 10, 10], 7) == [3, 2, 2]
    assert _filled([0, 0, 100], [200, 200, 200], 10) == [5, 5, 0]
    assert _filled([0, 3, 5], [2, 100, 100], 11) == [2, 6, 3]
    # Beyond all credit, by credit.
    assert _filled([0, 0], [2, 8], 20) == [4, 16]


def test_one_that_acknowledges_many_at_once_gets_as_many_in_time() -> None:
    member = member_of(outbox_of(window=1000, messages_max=1000), credit=1000)
    lending = lending_of(LEAST_LOADED, member)
    credit, serial = lending.begin(), 0
    lent: list[int] = []
    for second in range(8):
        lending.receive(rows_of(serial, [b"t"] * credit), None, float(second), 0)
        serial += credit
        lent.append(member.load())
        lending.look_for_stalls(float(second) + 0.9, 60.0)
        credit = lending.freed()
    assert lent == [4, 8, 16, 32, 64, 128, 256, 512]


class Counted(list[Member]):
    """Members, and how often somebody went through all of them."""

    def __init__(self, members: list[Member]) -> None:
        super().__init__(members)
        self.rounds = 0

    def __iter__(self) -> Iterator[Member]:
        self.rounds += 1
        return super().__iter__()


@pytest.mark.parametrize("strategy", [LEAST_LOADED, ROUND_ROBIN, RANDOM, STICKY, STICKY_TOPIC])
def test_an_acknowledgement_and_a_row_cost_the_same_whatever_the_number_of_members(
    strategy: str,
) -> None:
    members = [member_of(outbox_of(), credit=10) for _ in range(50)]
    lending = lending_of(strategy, *members)
    counted = lending.members = Counted(lending.members)
    lending.receive(rows_of(0, [b"%d" % number for number in range(100)]), None, 0.0, 0)
    assert counted.rounds <= 4
    counted.rounds = 0
    for member in members:
        acknowledge(member, 100)
        lending.pace_one(member.outbox, 0.001)
        lending.freed()
    assert counted.rounds == 0


@pytest.mark.parametrize("strategy", [LEAST_LOADED, ROUND_ROBIN])
def test_the_credit_of_all_is_that_of_each(strategy: str) -> None:
    outboxes = [outbox_of() for _ in range(4)]
    members = [member_of(outbox, credit=10) for outbox in outboxes]
    lending = lending_of(strategy, *members)
    serial = 0
    for second in range(20):
        count = lending.credit()
        lending.receive(rows_of(serial, [b"t"] * count), None, float(second), 0)
        serial += count
        for number, outbox in enumerate(outboxes[:3]):
            acknowledge(members[number], 3)
            lending.pace_one(outbox, second + 0.01)
        if second == 10:
            lending.leave(outboxes[0], 10.0)
        if second == 15:
            lending.join(member_of(outboxes[1], credit=3), 15.0)
        lending.look_for_stalls(second + 0.5, 2.0)
        assert lending.credit() == sum(member.credit for member in lending.members)
