from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from siltstone.broker.deliver.shares import (
    LEAST_LOADED,
    RANDOM,
    ROUND_ROBIN,
    STICKY,
    STICKY_TOPIC,
    LendingTerms,
    ShareGroup,
    Subscriber,
    offer_message,
)
from siltstone.mqtt.publish import PUBACK
from siltstone.session.sending.delivery import NEVER, Budget
from siltstone.session.sending.outbox import Outbox, Ready
from tests.support.packets import Message
from tests.support.receiver import Receiver, make_outbox

STRATEGIES = (ROUND_ROBIN, RANDOM, LEAST_LOADED, STICKY)
EACH = pytest.mark.parametrize("strategy", STRATEGIES)
RETAIN = 4
DUP = 8


def subscriber(
    outbox: Outbox, *, qos: int = 1, guard: Callable[[bytes], bool] | None = None
) -> Subscriber:
    return Subscriber(outbox, qos, False, False, b"", guard)  # noqa: FBT003 - by position


def connected(count: int, *, window: int = 100) -> list[Outbox]:
    outboxes = [make_outbox() for _ in range(count)]
    for outbox in outboxes:
        Receiver(outbox, window=window)
    return outboxes


def group_of(strategy: str, outboxes: list[Outbox]) -> ShareGroup:
    group = ShareGroup("g", strategy)
    for outbox in outboxes:
        group.join(subscriber(outbox))
    return group


def chosen(
    group: ShareGroup, outboxes: list[Outbox], count: int, *, source: Outbox | None = None
) -> list[int]:
    """Return which outboxes get so many messages, as indexes."""
    found = [group.choose(b"t", source) for _ in range(count)]
    return [outboxes.index(member.outbox) for member in found if member is not None]


class TestOffer:
    @pytest.mark.parametrize(
        ("flags", "qos_max", "keeps_retain", "expected"),
        [
            # [MQTT-3.8.4-8]: the lower QoS of the two.
            (0, 2, False, 0),
            (1, 2, False, 1),
            (2, 2, False, 2),
            (2, 1, False, 1),
            (1, 0, False, 0),
            # [MQTT-3.3.1-12], [MQTT-3.3.1-13]: the retain flag goes unless it is to be kept.
            (1 | RETAIN, 1, False, 1),
            (1 | RETAIN, 1, True, 1 | RETAIN),
            (2 | RETAIN, 0, True, RETAIN),
            (1, 1, True, 1),
            # [MQTT-3.3.1-3]: DUP says nothing of the way from here.
            (2 | RETAIN | DUP, 2, True, 2 | RETAIN),
            (1 | DUP, 1, False, 1),
        ],
    )
    def test_flags_are_those_of_message_and_subscription(
        self, flags: int, qos_max: int, keeps_retain: bool, expected: int
    ) -> None:
        outbox = make_outbox()
        receiver = Receiver(outbox)
        offer_message(outbox, qos_max, keeps_retain, b"", b"t", b"x", flags, b"", NEVER)
        packet_id = 1 if expected & 3 else 0
        assert receiver.read() == [Message(b"t", b"x", expected, packet_id, b"", -1)]
        member = Subscriber(outbox, qos_max, False, keeps_retain, b"", None)  # noqa: FBT003
        member.send(b"t", b"x", flags, b"", NEVER)
        packet_id *= 2
        assert receiver.read() == [Message(b"t", b"x", expected, packet_id, b"", -1)]

    def test_the_identifier_follows_the_properties_of_the_message(self) -> None:
        outbox = make_outbox()
        receiver = Receiver(outbox)
        member = Subscriber(outbox, 0, False, False, b"\x0b\x07", None)  # noqa: FBT003
        member.send(b"t", b"x", 0, b"\3\0\1y", NEVER)
        member.send(b"t", b"x", 0, b"", NEVER)
        found = [message.properties for message in receiver.messages()]
        assert found == [b"\3\0\1y\x0b\x07", b"\x0b\x07"]

    def test_a_message_keeps_the_time_when_it_expires(self) -> None:
        outbox = make_outbox()
        member = subscriber(outbox)
        member.send(b"t", b"1", 1, b"\2\0\0\0\5", 105.0)
        member.send(b"t", b"2", 1, b"", NEVER)
        assert Receiver(outbox, now=105.0).payloads() == [b"2"]

    def test_a_guard_says_what_may_be_received(self) -> None:
        outbox = make_outbox()
        member = subscriber(outbox, guard=lambda topic: topic == b"a")
        assert (member.may_receive(b"a"), member.may_receive(b"b")) == (True, False)
        assert subscriber(outbox).may_receive(b"b") is True


class TestMembers:
    def test_who_joins_again_has_the_new_subscription_in_the_old_place(self) -> None:
        first, second = outboxes = connected(2)
        group = group_of(ROUND_ROBIN, outboxes)
        again = subscriber(first, qos=2)
        group.join(again)
        assert [member.outbox for member in group.members] == [first, second]
        assert group.members[0] is again

    def test_who_left_gets_nothing(self) -> None:
        first, second = outboxes = connected(2)
        group = group_of(ROUND_ROBIN, outboxes)
        group.leave(first)
        group.leave(make_outbox())
        assert [member.outbox for member in group.members] == [second]
        assert chosen(group, outboxes, 3) == [1, 1, 1]


class TestChoice:
    @EACH
    def test_the_only_member_gets_everything(self, strategy: str) -> None:
        outboxes = [make_outbox()]
        group = group_of(strategy, outboxes)
        assert chosen(group, outboxes, 3) == [0, 0, 0]

    def test_in_turn_each_gets_as_many(self) -> None:
        outboxes = connected(3)
        found = chosen(group_of(ROUND_ROBIN, outboxes), outboxes, 6)
        assert found == [1, 2, 0, 1, 2, 0]

    def test_in_turn_goes_on_when_members_come_and_go(self) -> None:
        outboxes = connected(4)
        group = group_of(ROUND_ROBIN, outboxes[:3])
        assert len(chosen(group, outboxes, 4)) == 4
        group.leave(outboxes[1])
        assert sorted(chosen(group, outboxes, 2)) == [0, 2]
        group.join(subscriber(outboxes[3]))
        assert sorted(chosen(group, outboxes, 3)) == [0, 2, 3]

    def test_at_random_each_gets_about_as_many(self) -> None:
        outboxes = connected(4)
        random.seed(7)
        counts = Counter(chosen(group_of(RANDOM, outboxes), outboxes, 4_000))
        assert sorted(counts) == [0, 1, 2, 3]
        assert min(counts.values()) > 900

    def test_the_least_loaded_is_the_one_with_the_fewest_messages_under_way(self) -> None:
        outboxes = connected(3, window=2)
        group = group_of(LEAST_LOADED, outboxes)
        for _ in range(6):
            member = group.choose(b"t", None)
            assert member is not None
            member.send(b"t", b"x", 1, b"", NEVER)
        assert [outbox.inflight for outbox in outboxes] == [2, 2, 2]
        outboxes[1].acknowledge(PUBACK, [1], 0.0)
        assert chosen(group, outboxes, 2) == [1, 1]

    def test_where_none_is_clear_what_waits_counts_too(self) -> None:
        outboxes = connected(3, window=1)
        for outbox, count in zip(outboxes, (3, 2, 4), strict=True):
            for _ in range(count):
                outbox.offer(b"t", b"x", 1, b"", NEVER)
        group = group_of(LEAST_LOADED, outboxes)
        assert chosen(group, outboxes, 3) == [1, 1, 1]

    def test_among_equals_the_least_loaded_is_in_turn(self) -> None:
        outboxes = connected(3)
        found = chosen(group_of(LEAST_LOADED, outboxes), outboxes, 6)
        assert found == [1, 2, 0, 1, 2, 0]

    def test_a_publisher_keeps_its_member(self) -> None:
        outboxes = connected(5)
        group = group_of(STICKY, outboxes)
        publishers = [make_outbox() for _ in range(200)]
        members = []
        for publisher in publishers:
            found = chosen(group, outboxes, 5, source=publisher)
            assert found == [found[0]] * 5
            members.append(found[0])
        counts = Counter(members)
        assert sorted(counts) == [0, 1, 2, 3, 4]
        assert max(counts.values()) < 100

    def test_a_publisher_keeps_its_member_even_if_it_must_wait(self) -> None:
        outboxes = connected(3, window=1)
        group = group_of(STICKY, outboxes)
        publisher = make_outbox()
        [first] = chosen(group, outboxes, 1, source=publisher)
        outboxes[first].offer(b"t", b"x", 1, b"", NEVER)
        assert outboxes[first].is_clear() is False
        assert chosen(group, outboxes, 1, source=publisher) == [first]
        outboxes[first].detach()
        [other] = chosen(group, outboxes, 1, source=publisher)
        assert other != first

    def test_without_a_publisher_a_topic_keeps_its_member(self) -> None:
        outboxes = connected(5)
        group = group_of(STICKY, outboxes)
        found = chosen(group, outboxes, 5)
        assert found == [found[0]] * 5

    @pytest.mark.parametrize("strategy", [ROUND_ROBIN, RANDOM, LEAST_LOADED])
    def test_who_can_take_it_at_once_is_preferred_to_who_cannot(self, strategy: str) -> None:
        outboxes = connected(3, window=1)
        for index in (0, 2):
            outboxes[index].offer(b"t", b"x", 1, b"", NEVER)
        assert chosen(group_of(strategy, outboxes), outboxes, 4) == [1, 1, 1, 1]

    @EACH
    def test_who_is_connected_is_preferred_to_who_is_away(self, strategy: str) -> None:
        outboxes = connected(3, window=1)
        outboxes[0].detach()
        outboxes[2].detach()
        outboxes[1].offer(b"t", b"x", 1, b"", NEVER)
        assert chosen(group_of(strategy, outboxes), outboxes, 4) == [1, 1, 1, 1]

    @pytest.mark.parametrize("away", [(0,), (2,), (1, 2), (0, 1, 4, 5), (4, 5, 6, 7)])
    @pytest.mark.parametrize("strategy", [ROUND_ROBIN, LEAST_LOADED])
    def test_the_turn_of_an_absent_member_goes_to_no_certain_member(
        self, strategy: str, away: tuple[int, ...]
    ) -> None:
        outboxes = connected(4 + len(away))
        for index in away:
            outboxes[index].detach()
        counts = Counter(chosen(group_of(strategy, outboxes), outboxes, 400))
        present = [index for index in range(len(outboxes)) if index not in away]
        assert counts == dict.fromkeys(present, 100)

    @pytest.mark.parametrize("strategy", [RANDOM, STICKY, STICKY_TOPIC])
    def test_the_messages_of_absent_members_are_spread_over_all_others(self, strategy: str) -> None:
        outboxes = connected(8)
        for outbox in outboxes[4:]:
            outbox.detach()
        group = group_of(strategy, outboxes)
        random.seed(7)
        publishers = [make_outbox() for _ in range(4_000)]
        counts: Counter[int] = Counter()
        for number, publisher in enumerate(publishers):
            member = group.choose(b"%d" % number, publisher)
            assert member is not None
            counts[outboxes.index(member.outbox)] += 1
        assert sorted(counts) == [0, 1, 2, 3]
        assert min(counts.values()) > 800

    @pytest.mark.parametrize("strategy", [STICKY, STICKY_TOPIC])
    def test_a_key_stays_with_its_member_when_another_one_goes(self, strategy: str) -> None:
        outboxes = connected(4)
        group = group_of(strategy, outboxes)
        topics = [b"%d" % number for number in range(100)]

        def keepers() -> list[Outbox]:
            found = [group.choose(topic, None) for topic in topics]
            return [member.outbox for member in found if member is not None]

        before = keepers()
        outboxes[3].detach()
        after = keepers()
        moved = [old for old, new in zip(before, after, strict=True) if old is not new]
        assert set(moved) == {outboxes[3]}

    def test_the_turn_goes_on_behind_a_member_that_leaves(self) -> None:
        outboxes = connected(4)
        group = group_of(ROUND_ROBIN, outboxes)
        assert chosen(group, outboxes, 2) == [1, 2]
        group.leave(outboxes[1])
        assert chosen(group, outboxes, 3) == [3, 0, 2]

    @EACH
    def test_where_all_are_away_one_of_them_keeps_it(self, strategy: str) -> None:
        outboxes = [make_outbox() for _ in range(3)]
        found = chosen(group_of(strategy, outboxes), outboxes, 3)
        assert len(found) == 3

    @EACH
    def test_who_may_not_read_it_does_not_get_it(self, strategy: str) -> None:
        outboxes = connected(3)
        outboxes[1].detach()
        group = ShareGroup("g", strategy)
        for index, outbox in enumerate(outboxes):
            group.join(subscriber(outbox, guard=[bool, bool, lambda _: False][index]))
        assert chosen(group, outboxes, 4) == [0, 0, 0, 0]
        group.leave(outboxes[0])
        # Who is away is better than who may not.
        assert chosen(group, outboxes, 2) == [1, 1]
        group.leave(outboxes[1])
        assert group.choose(b"t", None) is None


class Crowd:
    """A lending group, the clients of its members, and a broker that passes acknowledgements on."""

    def __init__(
        self,
        count: int,
        *,
        window: int = 1_024,
        messages_max: int = 100_000,
        bytes_max: int = 1 << 30,
        guards: Any = None,
    ) -> None:
        self.ready = Ready(lambda: None)
        self.budget = Budget(1 << 30)
        self.outboxes = [
            make_outbox(ready=self.ready, budget=self.budget, messages_max=messages_max)
            for _ in range(count)
        ]
        self.receivers = [Receiver(outbox, window=window) for outbox in self.outboxes]
        terms = LendingTerms(self.ready, self.budget, messages_max, bytes_max, 1_024)
        self.group = ShareGroup("g", LEAST_LOADED, terms)
        for index, outbox in enumerate(self.outboxes):
            self.group.join(subscriber(outbox, guard=guards[index] if guards else None))

    def offer(
        self,
        count: int,
        *,
        start: int = 0,
        qos: int = 1,
        now: float = 0.0,
        topic: bytes = b"t",
        expires_at: float = NEVER,
    ) -> None:
        for number in range(start, start + count):
            self.group.offer(topic, b"%d" % number, qos, b"", expires_at, None, now)

    def loads(self) -> list[int]:
        return [outbox.inflight + outbox.queued for outbox in self.outboxes]

    def acknowledge(self, index: int, count: int, now: float) -> None:
        ids = [each.packet_id for each in self.outboxes[index].deliveries()[:count]]
        self.outboxes[index].acknowledge(PUBACK, ids, now)
        self.group.replenish(self.outboxes[index], now)

    def finish(self, seconds: list[float]) -> tuple[list[int], list[float]]:
        """Let each member take its time for each message; return the numbers and the ends."""
        now = 0.0
        free = [0.0] * len(seconds)
        ends = [0.0] * len(seconds)
        counts = [0] * len(seconds)
        while any(self.loads()):
            at, index = min(
                (free[index] + seconds[index], index)
                for index, load in enumerate(self.loads())
                if load
            )
            now = max(now, at)
            self.acknowledge(index, 1, now)
            counts[index] += 1
            free[index] = ends[index] = now
        return counts, ends


class TestLending:
    def test_a_member_begins_with_four_messages_and_the_rest_waits(self) -> None:
        crowd = Crowd(4)
        crowd.offer(100)
        assert crowd.loads() == [4, 4, 4, 4]
        assert crowd.group.queued == 84
        assert [delivery.payload for delivery in crowd.group.waiting()][:2] == [b"16", b"17"]

    def test_a_slow_member_does_not_hold_back_a_burst(self) -> None:
        crowd = Crowd(4)
        crowd.offer(3_000)
        counts, ends = crowd.finish([0.02, 0.001, 0.001, 0.001])
        assert sum(counts) == 3_000
        assert crowd.group.queued == 0
        assert ends[0] < 2 * max(ends[1:])

    def test_all_messages_come_once_and_in_order(self) -> None:
        crowd = Crowd(2)
        crowd.offer(50)
        got: list[list[bytes]] = [[], []]
        for step in range(60):
            for index, receiver in enumerate(crowd.receivers):
                got[index] += receiver.payloads()
                crowd.acknowledge(index, 1, step * 0.01)
        assert sorted(int(each) for part in got for each in part) == list(range(50))
        for part in got:
            assert [int(each) for each in part] == sorted(int(each) for each in part)

    def test_a_message_of_qos_0_does_not_wait(self) -> None:
        crowd = Crowd(2)
        crowd.offer(20)
        crowd.offer(2, start=100, qos=0)
        found = [payload for receiver in crowd.receivers for payload in receiver.payloads()]
        assert {b"100", b"101"} <= set(found)
        assert crowd.group.queued == 12

    def test_a_full_group_gives_its_oldest_messages_to_members(self) -> None:
        crowd = Crowd(2, messages_max=10)
        crowd.offer(30)
        assert crowd.group.queued == 10
        assert sum(crowd.loads()) == 20
        assert crowd.group.waiting()[0].payload == b"20"

    def test_a_message_too_large_for_the_group_moves_no_other(self) -> None:
        crowd = Crowd(1, bytes_max=10_000)
        crowd.offer(10)
        crowd.group.offer(b"t", bytes(20_000), 1, b"", NEVER, None, 0.0)
        assert [each.payload for each in crowd.group.waiting()] == [b"%d" % n for n in range(4, 10)]
        assert crowd.loads() == [5]

    def test_a_budget_that_others_fill_moves_no_more_than_a_new_message_needs(self) -> None:
        crowd = Crowd(1)
        crowd.offer(10)
        crowd.budget.bytes_max = crowd.budget.used
        crowd.offer(1, start=10)
        assert [each.payload for each in crowd.group.waiting()] == [b"%d" % n for n in range(6, 10)]
        assert crowd.loads() == [7]

    @pytest.mark.parametrize("count", [1_001, 3_000])
    def test_callers_that_stopped_waiting_are_not_kept(self, count: int) -> None:
        crowd = Crowd(1)
        called: list[int] = []
        for number in range(count):
            crowd.group.when_relieved(partial(called.append, number))
        assert called == list(range(count // 1_001 * 1_001))

    def test_a_full_budget_leaves_the_drop_policy_to_the_sessions(self) -> None:
        crowd = Crowd(1, window=4)
        crowd.budget.bytes_max = 0
        crowd.offer(10)
        assert crowd.group.queued == 0
        assert crowd.outboxes[0].dropped == 6

    def test_what_waits_counts_against_the_budget_until_the_group_ends(self) -> None:
        crowd = Crowd(1)
        crowd.offer(4)
        before = crowd.budget.used
        crowd.offer(10)
        assert crowd.budget.used > before
        crowd.group.leave(crowd.outboxes[0])
        assert crowd.group.queued == 0
        assert crowd.budget.used == before

    def test_what_waits_stays_while_all_are_away_and_goes_to_the_first_who_returns(self) -> None:
        crowd = Crowd(2)
        crowd.offer(10)
        for outbox in crowd.outboxes:
            outbox.detach()
        crowd.offer(1, start=10)
        crowd.group.look(1.0)
        assert crowd.group.queued == 3
        assert crowd.loads() == [4, 4]
        crowd.group.leave(crowd.outboxes[0])
        Receiver(crowd.outboxes[1])
        crowd.acknowledge(1, 4, 2.0)
        assert crowd.group.queued == 0
        assert [each.payload for each in crowd.outboxes[1].deliveries()] == [b"8", b"9", b"10"]

    def test_who_joins_gets_what_waits(self) -> None:
        crowd = Crowd(1)
        crowd.offer(8)
        newcomer = make_outbox()
        receiver = Receiver(newcomer)
        crowd.group.join(subscriber(newcomer))
        crowd.group.replenish(newcomer, 0.0)
        assert receiver.payloads() == [b"4", b"5", b"6", b"7"]

    def test_a_member_that_acknowledges_in_batches_gets_more_each_second(self) -> None:
        crowd = Crowd(1)
        crowd.offer(100)
        found = []
        for second in range(1, 5):
            crowd.group.look(float(second))
            found += crowd.loads()
        assert found == [8, 16, 32, 64]

    def test_what_expires_while_it_waits_is_not_sent_and_the_rest_says_what_is_left(self) -> None:
        crowd = Crowd(1)
        crowd.offer(4)
        group = crowd.group
        group.offer(b"t", b"a", 1, b"\2\0\0\0\5", 5.0, None, 0.0)
        group.offer(b"t", b"b", 1, b"\2\0\0\0\x0a", 10.0, None, 0.0)
        crowd.receivers[0].read()
        crowd.acknowledge(0, 4, 6.0)
        [message] = crowd.receivers[0].messages()
        assert (message.payload, message.properties) == (b"b", b"\2\0\0\0\4")
        assert crowd.outboxes[0].expired == 1

    def test_a_message_that_a_member_may_not_read_holds_up_no_other(self) -> None:
        crowd = Crowd(2, guards=[lambda topic: topic == b"t", lambda _: True])
        crowd.offer(8)
        crowd.offer(3, start=100, topic=b"secret")
        assert crowd.group.queued == 0
        assert crowd.loads() == [4, 7]

    def test_a_message_that_a_member_may_not_read_passes_those_that_wait(self) -> None:
        crowd = Crowd(2, guards=[lambda topic: topic == b"t", lambda _: True])
        crowd.offer(10)
        crowd.offer(1, start=100, topic=b"secret")
        assert [each.payload for each in crowd.group.waiting()] == [b"8", b"9"]
        assert crowd.loads() == [4, 5]

    def test_while_nothing_waits_only_the_member_that_gets_a_message_is_asked(self) -> None:
        asked: list[bytes] = []

        def guard(topic: bytes) -> bool:
            asked.append(topic)
            return True

        crowd = Crowd(20, guards=[guard] * 20)
        topics = [b"%d" % number for number in range(40)]
        for topic in topics:
            crowd.offer(1, topic=topic)
        assert (asked, crowd.loads()) == (topics, [2] * 20)

    def test_a_member_is_chosen_once_for_each_message_that_has_waited(self) -> None:
        asked: list[bytes] = []

        def guard(topic: bytes) -> bool:
            asked.append(topic)
            return True

        crowd = Crowd(1, guards=[guard])
        crowd.offer(4)
        topics = [b"0", b"1", b"2"]
        for topic in topics:
            crowd.offer(1, topic=topic)
        asked.clear()
        crowd.acknowledge(0, 4, 1.0)
        assert (asked, crowd.loads()) == (topics, [3])

    def test_what_no_connected_member_may_read_any_more_does_not_stay(self) -> None:
        allowed = {b"t", b"u"}
        crowd = Crowd(1, guards=[lambda topic: topic in allowed])
        crowd.offer(4)
        crowd.offer(2, start=4, topic=b"u")
        crowd.offer(1, start=6)
        allowed.remove(b"u")
        crowd.receivers[0].read()
        crowd.acknowledge(0, 4, 1.0)
        assert crowd.receivers[0].payloads() == [b"6"]

    def test_a_long_queue_asks_publishers_to_wait(self) -> None:
        crowd = Crowd(1, messages_max=20)
        found = []
        for _ in range(15):
            crowd.offer(1)
            found.append(crowd.ready.behind)
        assert found == [None] * 14 + [crowd.group]
        behind = crowd.group
        assert behind.is_stuck(0.0) is False
        relieved: list[float] = []
        behind.when_relieved(lambda: relieved.append(crowd.group.queued))
        crowd.acknowledge(0, 4, 0.5)
        assert (relieved, behind.is_stuck(1.2)) == ([3], False)
        assert behind.is_stuck(3.0) is True
        crowd.outboxes[0].detach()
        assert behind.is_stuck(1.2) is True

    def test_publishers_wait_no_longer_for_a_group_that_has_ended(self) -> None:
        crowd = Crowd(2, messages_max=20)
        crowd.offer(20)
        relieved: list[int] = []
        crowd.group.when_relieved(lambda: relieved.append(crowd.group.queued))
        crowd.group.leave(crowd.outboxes[0])
        assert (relieved, crowd.group.queued) == ([], 12)
        crowd.group.leave(crowd.outboxes[1])
        assert relieved == [0]

    def test_who_joins_again_keeps_its_credit(self) -> None:
        crowd = Crowd(1)
        crowd.offer(20)
        crowd.group.look(1.0)
        crowd.group.join(subscriber(crowd.outboxes[0]))
        crowd.acknowledge(0, 1, 1.0)
        assert crowd.loads() == [8]

    @pytest.mark.parametrize("strategy", [ROUND_ROBIN, RANDOM, STICKY])
    def test_other_strategies_send_everything_at_once(self, strategy: str) -> None:
        ready, budget = Ready(lambda: None), Budget(1 << 30)
        group = ShareGroup("g", strategy, LendingTerms(ready, budget, 10, 1_000, 4))
        [outbox] = connected(1)
        group.join(subscriber(outbox))
        for _ in range(20):
            assert group.offer(b"t", b"x", 1, b"", NEVER, None, 0.0) is False
        group.look(1.0)
        group.replenish(outbox, 1.0)
        assert (outbox.inflight, group.queued, group.waiting()) == (20, 0, [])
        group.leave(outbox)
