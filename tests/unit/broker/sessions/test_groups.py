"""Share groups on the desk, over a real store in memory."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from itertools import chain, pairwise

import pytest

from siltstone.broker.sessions.groups import LOADED_AT_ONCE, PARKED_AT_ONCE, StoredShareGroup
from siltstone.broker.sessions.turns import Turn
from siltstone.broker.settings.storage import StoreRule
from siltstone.errors import ClosedError, OverloadedError
from siltstone.mqtt.packets import (
    PubAck,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from siltstone.session.archive.owned.group import OwnedGroup
from siltstone.session.archive.records import SavedGroup, SerialRange
from siltstone.session.archive.store import CreatedGroups, SessionArchive, TakenGroups
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import Wire, message
from tests.support.durable_core import DurableCore
from tests.support.group_core import (
    GROUP,
    acknowledge,
    come,
    consume,
    group_core,
    groups_of,
    join,
    publish,
    saved,
    taken,
    values,
)


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def group_of(core: DurableCore) -> StoredShareGroup:
    return groups_of(core).groups[GROUP]


def position(core: DurableCore) -> dict[int, int]:
    group = saved(core)
    assert group is not None
    return dict(group.position.serials)


# Who gets what.


@pytest.mark.parametrize("durable", [True, False])
def test_both_members_get_a_part_and_each_message_goes_to_one(durable: bool) -> None:
    with group_core() as core:
        members = [join(core, name, durable=durable) for name in ("a", "b")]
        publish(core, *numbers(8))
        found = [consume(member) for member in members]
        assert (sorted(chain(*found)), [len(each) for each in found]) == (numbers(8), [4, 4])


def test_a_group_can_have_more_members_than_there_are_streams_and_shards() -> None:
    with group_core() as core:
        members = [join(core, f"m{number}", durable=number % 2 == 0) for number in range(6)]
        publish(core, *numbers(12))
        assert [len(consume(member)) for member in members] == [2] * 6


def test_durable_and_volatile_members_and_plain_subscribers_mix() -> None:
    with group_core() as core:
        members = [join(core, "a", durable=True), join(core, "b", durable=False)]
        others = [join(core, "c", "t/#", durable=True), join(core, "d", "t/#", durable=False)]
        publish(core, *numbers(4))
        assert [len(consume(member)) for member in members] == [2, 2]
        assert [consume(other) for other in others] == [numbers(4)] * 2


def test_each_of_many_groups_gets_every_message_once() -> None:
    with group_core() as core:
        groups = {
            name: [join(core, f"{name}{number}", f"$share/{name}/t/#") for number in range(2)]
            for name in numbers(10)
        }
        publish(core, *numbers(4))
        found = {
            name: sorted(value for member in members for value in consume(member))
            for name, members in groups.items()
        }
        assert found == dict.fromkeys(groups, numbers(4))


def test_groups_of_one_name_and_other_filters_are_groups_of_their_own() -> None:
    with group_core() as core:
        first, second = join(core, "a", "$share/g/t/1"), join(core, "b", "$share/g/t/+")
        publish(core, "x")
        assert (consume(first), consume(second)) == (["x"], ["x"])


def test_what_came_before_the_first_member_is_not_for_the_group() -> None:
    with group_core() as core:
        publish(core, "before")
        member = join(core, "a")
        publish(core, "after")
        assert consume(member) == ["after"]


def test_what_is_not_stored_goes_to_one_member_at_once() -> None:
    with group_core(rules=[StoreRule(filter="t/#", store="never")]) as core:
        members = [join(core, "a"), join(core, "b", durable=False)]
        publish(core, *numbers(4))
        assert sorted(chain(*map(consume, members))) == numbers(4)
        assert core.stored() == []


def test_a_message_has_the_qos_of_the_member_and_its_own_at_most() -> None:
    with group_core() as core:
        member = join(core, "a", qos=1)
        publish(core, "two", qos=2)
        publish(core, "none", qos=0)
        assert [(packet.payload, packet.qos) for packet in taken(member)] == [
            (b"two", 1),
            (b"none", 0),
        ]


# Who comes and goes.


def test_who_joins_later_gets_part_of_what_comes() -> None:
    with group_core() as core:
        first = join(core, "a")
        publish(core, *numbers(2))
        second = join(core, "b")
        publish(core, *numbers(4, 2))
        # The first one has two to do already.
        assert (len(consume(first)), len(consume(second))) == (3, 3)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("polite", [True, False])
def test_what_a_member_that_goes_has_not_acknowledged_goes_to_the_others(
    durable: bool, polite: bool
) -> None:
    with group_core() as core:
        leaving, staying = join(core, "a", durable=durable), join(core, "b")
        publish(core, *numbers(6))
        first = taken(leaving)
        acknowledge(leaving, first[:1])
        if polite:
            leaving.send(Unsubscribe(packet_id=9, filters=(TopicFilter.parse(GROUP),)))
        else:
            leaving.drop()
        core.run()
        left = {packet.payload.decode() for packet in first[1:]}
        found = taken(staying)
        assert sorted(packet.payload.decode() for packet in [*found, first[0]]) == numbers(6)
        assert {packet.payload.decode() for packet in found if packet.dup} == left


def test_members_join_and_leave_under_load_and_nothing_is_missing_or_twice() -> None:
    with group_core() as core:
        members = {"a": join(core, "a")}
        found: list[str] = []
        sent = 0
        for number in range(12):
            publish(core, *numbers(5, sent))
            sent += 5
            for member in members.values():
                found += consume(member)
            name = f"m{number % 4}"
            if name in members:
                members.pop(name).drop()
                core.run()
            else:
                members[name] = join(core, name, durable=number % 2 == 0)
        for member in members.values():
            found += consume(member)
        assert sorted(found, key=int) == numbers(sent)


def test_who_unsubscribes_and_subscribes_again_at_once_goes_on() -> None:
    with group_core() as core:
        member = join(core, "a")
        publish(core, "1", "2")
        acknowledge(member, taken(member)[:1])
        member.send(
            Unsubscribe(packet_id=9, filters=(TopicFilter.parse(GROUP),)),
            Subscribe(
                packet_id=10,
                subscriptions=(Subscription(filter=TopicFilter.parse(GROUP), qos=1),),
            ),
        )
        core.run()
        again = [packet for packet in member.take() if isinstance(packet, Publish)]
        assert [packet.payload for packet in again] == [b"2"]
        publish(core, "3")
        assert values(member) == ["3"]


def test_who_subscribes_again_is_sent_nothing_again() -> None:
    with group_core() as core:
        member = join(core, "a")
        publish(core, "1")
        assert values(member) == ["1"]
        assert member.subscribe(GROUP, qos=1) == []
        publish(core, "2")
        assert (values(member), len(group_of(core).lending.members)) == (["2"], 1)


def test_what_was_acknowledged_before_a_reconnect_does_not_come_again() -> None:
    with group_core() as core:
        member = join(core, "a")
        publish(core, *numbers(4))
        packets = taken(member)
        acknowledge(member, [packets[0], packets[2]])
        member.drop()
        core.run()
        again = come(core, "a")
        assert [(packet.payload, packet.dup) for packet in taken(again)] == [
            (b"1", True),
            (b"3", False),
        ]


def test_a_client_that_takes_its_own_place_leaves_and_joins() -> None:
    with group_core() as core:
        join(core, "a")
        publish(core, "1")
        again = come(core, "a")
        assert (values(again), len(group_of(core).lending.members)) == (["1"], 1)


# QoS 2.


def test_mqtt_4_8_2_4_what_is_under_way_is_completed_with_the_same_member() -> None:
    with group_core() as core:
        member, other = join(core, "a", qos=2), join(core, "b", qos=2)
        publish(core, "m", qos=2)
        sent = {"a": taken(member), "b": taken(other)}
        assert sorted(map(len, sent.values())) == [0, 1]
        chosen, idle = (member, other) if sent["a"] else (other, member)
        chosen.drop()
        core.run()
        assert values(idle) == []
        again = come(core, "a" if sent["a"] else "b")
        [packet] = [*sent["a"], *sent["b"]]
        packet_id = packet.packet_id
        assert taken(again) == [message("t/1", "m", 2, packet_id, dup=True)]
        assert again.exchange(PubRec(packet_id=packet_id)) == [PubRel(packet_id=packet_id)]
        assert values(idle) == []


def test_mqtt_4_8_2_5_a_message_of_qos_2_goes_to_nobody_else_when_the_session_ends() -> None:
    with group_core() as core:
        member = join(core, "a", qos=2, durable=False)
        publish(core, "m", qos=2)
        assert values(member) == ["m"]
        other = join(core, "b", qos=2)
        member.drop()
        core.advance(2)
        assert values(other) == []
        assert position(core) == {0: 1}


def test_what_was_not_sent_yet_of_qos_2_goes_to_others() -> None:
    with group_core() as core:
        member = join(core, "a", qos=2, window=1)
        publish(core, "1", "2", qos=2)
        assert values(member) == ["1"]
        other = join(core, "b", qos=2)
        member.drop()
        core.run()
        assert values(other) == ["2"]


# Stalls.


def test_a_member_that_acknowledges_nothing_for_too_long_has_its_loan_revoked() -> None:
    with group_core(share={"loan_timeout": 10.0}) as core:
        slow, quick = join(core, "a"), join(core, "b")
        publish(core, *numbers(4))
        late = taken(slow)
        found = consume(quick)
        for _ in range(12):
            core.advance(1)
        found += consume(quick)
        assert sorted(found) == numbers(4)
        acknowledge(slow, late)
        core.advance(1)
        publish(core, "x", "y")
        assert len(values(slow)) == 1


# What is kept.


def test_a_group_of_a_durable_member_is_kept_before_the_member_is_told() -> None:
    with group_core() as core:
        wire = come(core, "a")
        with core.held():
            wire.send(
                Subscribe(
                    packet_id=1,
                    subscriptions=(Subscription(filter=TopicFilter.parse(GROUP), qos=1),),
                )
            )
            core.run()
            assert wire.take() == []
        core.run()
        assert [type(packet) for packet in wire.take()] == [SubAck]
        assert saved(core) is not None


def test_a_group_of_volatile_members_leaves_nothing_behind() -> None:
    with group_core() as core:
        member = join(core, "a", durable=False)
        publish(core, "1")
        assert saved(core) is None
        member.drop()
        core.run()
        assert (groups_of(core).groups, saved(core)) == ({}, None)
        publish(core, "2")
        assert values(join(core, "b", durable=False)) == []


def test_a_group_is_kept_from_when_its_first_durable_member_joins() -> None:
    with group_core() as core:
        volatile = join(core, "a", durable=False)
        publish(core, "1")
        join(core, "b")
        assert saved(core) is not None
        acknowledge(volatile, taken(volatile))
        core.advance(2)
        assert position(core) == {0: 1}


def test_progress_is_saved_within_a_second_and_when_the_last_member_goes() -> None:
    with group_core() as core:
        member = join(core, "a")
        publish(core, *numbers(4))
        packets = taken(member)
        acknowledge(member, packets[:2])
        core.advance(1.1)
        assert position(core) == {0: 2}
        acknowledge(member, packets[3:])
        member.drop()
        core.run()
        group = saved(core)
        assert group is not None
        assert (group.position.serials, group.done, group.empty_since_us) == (
            {0: 2},
            (SerialRange(0, 3, 4),),
            core.clock.now_us(),
        )


def test_a_group_that_cannot_be_loaded_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    fails = [OverloadedError("no room")]
    take_groups = SessionArchive.take_groups

    def refuse(archive: SessionArchive, groups: Sequence[tuple[str, str]]) -> TakenGroups:
        if fails:
            raise fails.pop()
        return take_groups(archive, groups)

    monkeypatch.setattr(SessionArchive, "take_groups", refuse)
    with group_core() as core:
        member = join(core, "a", durable=False)
        publish(core, "1")
        assert values(member) == []
        core.advance(1.1)
        assert values(member) == ["1"]


def test_a_group_that_cannot_be_created_is_tried_again_before_the_member_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fails = [OverloadedError("no room")]
    create_groups = SessionArchive.create_groups

    def refuse(archive: SessionArchive, groups: Sequence[SavedGroup]) -> CreatedGroups:
        if fails:
            raise fails.pop()
        return create_groups(archive, groups)

    monkeypatch.setattr(SessionArchive, "create_groups", refuse)
    with group_core() as core:
        wire = come(core, "a")
        subscription = Subscription(filter=TopicFilter.parse(GROUP), qos=1)
        assert wire.exchange(Subscribe(packet_id=1, subscriptions=(subscription,))) == []
        core.advance(1.1)
        assert [type(packet) for packet in wire.take()] == [SubAck]


def test_a_group_whose_rows_cannot_be_read_goes_on_when_they_can() -> None:
    with group_core() as core:
        member = join(core, "a")
        group = group_of(core)
        assert group.feed is not None
        core.durables.feeding.hub.remove(group.feed)
        group.broken(ClosedError("the store is closed"))
        publish(core, "1")
        assert values(member) == []
        core.advance(1.1)
        assert values(member) == ["1"]


def test_who_leaves_before_the_group_is_loaded_leaves_no_debt() -> None:
    with group_core(inflight_max=4) as core:
        with core.held():
            wires = [come_held(core, name) for name in ("a", "b")]
        core.run()
        first, second = wires
        with core.held():
            for wire in wires:
                subscription = Subscription(filter=TopicFilter.parse(GROUP), qos=1)
                wire.send(Subscribe(packet_id=1, subscriptions=(subscription,)))
                core.run()
            second.drop()
            core.run()
        core.run()
        first.take()
        publish(core, *numbers(20))
        assert consume(first) == numbers(20)


def come_held(core: DurableCore, client_id: str) -> Wire:
    wire = core.wire()
    wire.connect(client_id, clean_start=True)
    return wire


# Moved in time.


def test_a_group_with_members_is_moved_back_and_on() -> None:
    with group_core() as core:
        member = join(core, "a")
        publish(core, *numbers(4))
        assert consume(member) == numbers(4)
        moved: list[str] = []
        assert groups_of(core).move(GROUP, {0: 1}, partial(moved.append, "moved"))
        core.run()
        assert (consume(member), moved, position(core)) == (["1", "2", "3"], ["moved"], {0: 1})
        core.advance(1.1)
        assert position(core) == {0: 4}


def test_a_group_of_volatile_members_is_moved_too() -> None:
    with group_core() as core:
        member = join(core, "a", durable=False)
        publish(core, "1")
        assert consume(member) == ["1"]
        moved: list[str] = []
        assert groups_of(core).move(GROUP, {0: 0}, partial(moved.append, "moved"))
        assert (consume(member), moved) == (["1"], ["moved"])


def test_what_was_lent_before_a_move_means_nothing_behind_it() -> None:
    with group_core() as core:
        member = join(core, "a", window=2)
        publish(core, *numbers(4))
        packets = taken(member)
        assert groups_of(core).move(GROUP, {0: 4}, lambda: None)
        core.run()
        acknowledge(member, packets)
        core.advance(1.1)
        assert (values(member), position(core)) == ([], {0: 4})


def test_a_group_that_nobody_is_in_is_not_moved_here() -> None:
    with group_core() as core:
        assert not groups_of(core).move(GROUP, {0: 0}, lambda: None)


def test_a_group_whose_time_has_not_come_does_not_end() -> None:
    with group_core(share={"expiry": 60}) as core:
        join(core, "a").drop()
        core.run()
        turn = Turn(GROUP, lambda: groups_of(core).expire(GROUP, turn))
        core.durables.turns.begin(turn)
        core.run()
        assert len(core.durables.turns) == 0
        assert saved(core) is not None


def test_who_unsubscribes_before_the_group_is_kept_has_both_answers() -> None:
    with group_core() as core:
        wire = come(core, "a")
        subscription = Subscription(filter=TopicFilter.parse(GROUP), qos=1)
        with core.held():
            wire.send(Subscribe(packet_id=1, subscriptions=(subscription,)))
            wire.send(Unsubscribe(packet_id=2, filters=(TopicFilter.parse(GROUP),)))
            core.run()
        core.run()
        assert sorted(type(packet).__name__ for packet in wire.take()) == ["SubAck", "UnsubAck"]


# Order.


@pytest.mark.parametrize(("strategy", "key"), [("sticky", 0), ("sticky-topic", 1)])
def test_rows_of_a_key_go_to_one_member_in_the_order_in_which_they_came(
    strategy: str, key: int
) -> None:
    with group_core(strategy=strategy) as core:
        members = [join(core, f"m{number}") for number in range(3)]
        publishers = [core.connect(f"p{number}") for number in range(4)]
        for number in range(40):
            who = number % 4
            publishers[who].send(message(f"t/{number % 5}", f"{who} {number}", 1, 1 + number))
        core.run()
        found: dict[str, set[int]] = {}
        for place, member in enumerate(members):
            last: dict[str, int] = {}
            for packet in taken(member):
                publisher, number_text = packet.payload.decode().split()
                name = (publisher, packet.topic.decode())[key]
                found.setdefault(name, set()).add(place)
                assert last.get(name, -1) < int(number_text)
                last[name] = int(number_text)
        assert {len(places) for places in found.values()} == {1}
        assert len(found) == (4, 5)[key]


def test_who_subscribes_again_keeps_its_keys() -> None:
    with group_core(strategy="sticky") as core:
        member, other = join(core, "a"), join(core, "b")
        publish(core, *numbers(3))
        chosen = member if group_of(core).lending.members[0].load() else other
        first = taken(chosen)
        chosen.subscribe(GROUP, qos=1)
        publish(core, *numbers(3, 3))
        found = [*first, *taken(chosen)]
        assert [packet.payload.decode() for packet in found] == numbers(6)


def test_one_member_gets_messages_of_many_streams_in_the_order_in_which_they_came() -> None:
    with group_core() as core:
        member = join(core, "a")
        publisher = core.connect("p")
        publisher.send(
            *[message(f"t/{number % 3}", str(number), 1, number + 1) for number in range(9)]
        )
        core.run()
        assert all(int(one) < int(two) for one, two in pairwise(values(member)))


def test_a_group_at_work_is_saved_ten_times_a_second_and_one_at_rest_is_not_looked_at() -> None:
    with group_core() as core:
        member = join(core, "a")
        publish(core, "1", "2")
        acknowledge(member, taken(member)[:1])
        core.advance(0.11)
        assert position(core) == {0: 1}
        assert list(groups_of(core).busy) == [group_of(core)]
        consume(member)
        member.send(PubAck(packet_id=3))
        core.advance(0.11)
        assert (position(core), groups_of(core).busy) == ({0: 2}, {})


def test_what_was_taken_back_before_it_was_saved_is_not_sent() -> None:
    with group_core() as core:
        publisher = core.connect("p")
        member, other = join(core, "a", qos=2, window=1), come(core, "b")
        with core.held():
            # Its packet id must be saved before it is sent.
            publisher.send(message("t/1", "m", 2, 1), message("t/1", "n", 2, 2))
            core.run()
            assert group_of(core).lending.members[0].load() == 2
            member.send(Unsubscribe(packet_id=9, filters=(TopicFilter.parse(GROUP),)))
            core.run()
        core.run()
        assert [type(packet) for packet in member.take()] == [UnsubAck]
        subscription = Subscription(filter=TopicFilter.parse(GROUP), qos=1)
        found = other.exchange(Subscribe(packet_id=1, subscriptions=(subscription,)))
        assert [each.payload for each in found if isinstance(each, Publish)] == [b"m", b"n"]
        # And it has room for others.
        member.subscribe("u", qos=1)
        publish(core, "1", topic="u")
        assert values(member) == ["1"]


def test_rows_that_retention_took_first_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with group_core() as core, caplog.at_level(logging.WARNING, "siltstone.groups"):
        join(core, "m")
        group_of(core).lost(7)
    (record,) = caplog.records
    assert record.getMessage() == "share_group_rows_lost"
    assert record.__dict__["facts"] == {"group": GROUP, "serials": 7}


# Many groups of one session.

MANY = [f"t/{number}" for number in range(3 * PARKED_AT_ONCE)]


def join_many(core: DurableCore) -> Wire:
    wire = come(core, "a")
    wire.subscribe(*(f"$share/g/{text}" for text in MANY), qos=1)
    core.run()
    return wire


def test_many_groups_are_loaded_and_created_by_one_thread_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches: list[int] = []
    take_groups, create_groups = SessionArchive.take_groups, SessionArchive.create_groups

    def take(archive: SessionArchive, groups: Sequence[tuple[str, str]]) -> TakenGroups:
        batches.append(len(groups))
        return take_groups(archive, groups)

    def create(archive: SessionArchive, groups: Sequence[SavedGroup]) -> CreatedGroups:
        batches.append(len(groups))
        return create_groups(archive, groups)

    monkeypatch.setattr(SessionArchive, "take_groups", take)
    monkeypatch.setattr(SessionArchive, "create_groups", create)
    with group_core() as core:
        join_many(core)
        assert (sum(batches), max(batches)) == (2 * len(MANY), LOADED_AT_ONCE)
        assert all(saved(core, topic_filter=text) is not None for text in MANY)


def test_the_groups_of_a_session_that_leaves_are_saved_in_turns_of_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with group_core() as core:
        wire = join_many(core)
        saves: list[OwnedGroup] = []
        save = OwnedGroup.save_later

        def count(owned: OwnedGroup) -> CommitTicket | None:
            saves.append(owned)
            return save(owned)

        monkeypatch.setattr(OwnedGroup, "save_later", count)
        wire.drop()
        steps = [len(saves)]
        # No group has members, and no other member can come before its position is saved.
        assert groups_of(core).groups == {}
        assert len(core.durables.turns) == len(MANY) + 1
        while core.shell.acts:
            before = len(saves)
            core.shell.acts.popleft()()
            steps.append(len(saves) - before)
        assert [each for each in steps if each] == [PARKED_AT_ONCE] * 3
        core.run()
        assert len(core.durables.turns) == 0
        left = [saved(core, topic_filter=text) for text in MANY]
        assert all(group is not None and group.empty_since_us is not None for group in left)


def test_a_member_that_comes_before_the_groups_are_saved_misses_nothing() -> None:
    with group_core() as core:
        wire, other = join_many(core), come(core, "b")
        publish(core, "1", topic=MANY[-1])
        assert values(wire) == ["1"]
        wire.drop()
        wanted = Subscription(filter=TopicFilter.parse(f"$share/g/{MANY[-1]}"), qos=1)
        other.send(Subscribe(packet_id=1, subscriptions=(wanted,)))
        publish(core, "2", topic=MANY[-1])
        packets = other.take()
        assert [type(packet) for packet in packets if not isinstance(packet, Publish)] == [SubAck]
        found = [packet for packet in packets if isinstance(packet, Publish)]
        assert [packet.payload for packet in found] == [b"1", b"2"]


def test_a_crash_before_all_groups_are_saved_loses_nothing() -> None:
    with group_core() as core:
        wire = join_many(core)
        for text in (MANY[0], MANY[-1]):
            publish(core, text, topic=text)
        wire.drop()
        later = core.crash()
        try:
            assert sorted(consume(come(later, "a"))) == [MANY[0], MANY[-1]]
        finally:
            later.close()
