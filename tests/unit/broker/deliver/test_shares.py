from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from siltstone.broker.deliver.shares import (
    LEAST_LOADED,
    RANDOM,
    ROUND_ROBIN,
    STICKY,
    STICKY_TOPIC,
    ShareGroup,
    Subscriber,
    offer_message,
)
from siltstone.mqtt.publish import PUBACK
from siltstone.session.sending.delivery import NEVER
from siltstone.session.sending.outbox import Outbox
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
