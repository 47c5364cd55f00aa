"""Share groups over the real store against a naive model, with power cuts.

Durable and volatile members join, leave, vanish, subscribe again and stall; more of them than there
are streams; the group is moved in time, stands empty, expires; the disk is slow; the broker loses
power at any moment.
Whatever happens: every message that the group should get is acknowledged by somebody in the end,
and none is sent again that was not taken back first.
"""

from __future__ import annotations

import sys
from random import Random
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from siltstone.mqtt.packets import Packet, PubRel, Subscribe, Subscription, Unsubscribe
from siltstone.session.archive.move import find_place, move_group
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import message
from tests.support.durable_core import DurableCore
from tests.support.group_core import GROUP, NEVER, groups_of, make_core
from tests.support.group_model import TIMEOUT, GroupModel, Member

NAMES = ("d0", "d1", "d2", "v0", "v1", "v2")
TOPICS = ("t/1", "t/2")
PUBLISHERS = ("p0", "p1")
EXPIRY = 1000
ROUNDS_MAX = 200

names = st.sampled_from(NAMES)
# Which of those that are there.
numbers = st.integers(0, len(NAMES) - 1)
windows = st.sampled_from((1, 2, 65_535))
topics = st.lists(st.sampled_from(TOPICS), min_size=1, max_size=6)


class GroupMachine(RuleBasedStateMachine):
    """One disk, the brokers that follow each other on it, and one group."""

    reclaim = "none"

    @initialize(
        strategy=st.sampled_from(
            ("least-loaded", "round-robin", "random", "sticky", "sticky-topic")
        ),
        shards=st.sampled_from((1, 2)),
        credit=st.sampled_from((2, 100)),
        windows=st.lists(windows, min_size=3, max_size=3),
        topics=topics,
    )
    def begin(
        self, strategy: str, shards: int, credit: int, windows: list[int], topics: list[str]
    ) -> None:
        self.core: DurableCore = make_core(
            strategy=strategy,
            shards=shards,
            share={"loan_timeout": TIMEOUT, "expiry": EXPIRY},
            inflight_max=credit,
            reclaim=self.reclaim,
        )
        self.model = GroupModel()
        self.model.is_ordered = strategy.startswith("sticky")
        self.model.members = {name: Member(name, name.startswith("d")) for name in NAMES}
        self.published = 0
        self.connect_publishers()
        for name, window in zip(("d0", "v0", "d1"), windows, strict=True):
            self.join(name, window, 1)
        self.publish(PUBLISHERS[0], topics, 1)

    def connect_publishers(self) -> None:
        self.publishers = {name: self.core.connect(name) for name in PUBLISHERS}

    @property
    def now(self) -> float:
        return self.core.clock.now_us() / 1e6

    def listen(self) -> None:
        """Let the broker finish what it can, and the members hear of it."""
        for _ in range(ROUNDS_MAX):
            self.core.run()
            is_quiet = True
            for member in self.model.members.values():
                if member.wire is not None:
                    for packet in member.wire.take():
                        is_quiet = False
                        self.model.take(member, packet, self.now)
            if is_quiet and not self.core.shell.acts:
                return
        raise AssertionError("the broker does not come to rest")

    @rule(name=names, window=windows, qos=st.sampled_from((1, 1, 2)))
    def join(self, name: str, window: int, qos: int) -> None:
        """Connect, and subscribe, whether that was done before or not."""
        member = self.model.members[name]
        if member.wire is None:
            member.wire = self.core.wire()
            expiry = NEVER if member.is_durable else 0
            member.wire.arrived.extend(
                member.wire.connect(
                    name,
                    clean_start=not member.is_durable,
                    receive_maximum=window,
                    session_expiry_interval=expiry,
                )
            )
        subscription = Subscription(filter=TopicFilter.parse(GROUP), qos=qos)
        member.wire.send(Subscribe(packet_id=1, subscriptions=(subscription,)))
        self.listen()

    def pick(self, number: int) -> Member | None:
        """Return one of the members, if there are any."""
        there = self.model.there()
        return there[number % len(there)] if there else None

    @rule(number=numbers)
    def unsubscribe(self, number: int) -> None:
        member = self.pick(number)
        if member is not None and member.wire is not None:
            self.model.left(member, is_gone=False)
            member.wire.send(Unsubscribe(packet_id=1, filters=(TopicFilter.parse(GROUP),)))
            self.listen()
            self._look_whether_all_left()

    @rule(number=numbers)
    def vanish(self, number: int) -> None:
        member = self.pick(number)
        if member is not None and member.wire is not None:
            wire = member.wire
            self.model.left(member, is_gone=True)
            wire.drop()
            self.listen()
            self._look_whether_all_left()

    def _look_whether_all_left(self) -> None:
        if not self.model.there() and not self.core.is_held:
            # The last one to go takes the progress to the disk.
            self.model.saved()

    @rule(
        publisher=st.sampled_from(PUBLISHERS),
        topics=topics,
        qos=st.sampled_from((1, 1, 2)),
    )
    def publish(self, publisher: str, topics: list[str], qos: int) -> None:
        packets: list[Packet] = []
        for topic in topics:
            value = f"{publisher} {self.published}"
            self.published += 1
            self.model.published(value.encode(), publisher, topic)
            packets.append(message(topic, value, qos, self.published))
        releases = [PubRel(packet_id=self.published - number) for number in range(len(topics))]
        wire = self.publishers[publisher]
        assert len(wire.exchange(*packets)) == len(packets)
        if qos == 2:
            wire.exchange(*releases)
        self.listen()

    @rule(number=numbers, count=st.integers(1, 9))
    def acknowledge(self, number: int, count: int) -> None:
        member = self.pick(number)
        if member is not None:
            self.model.acknowledge(member, count, self.now)
            self.listen()

    @rule(seconds=st.sampled_from((1, 2, 13)))
    def time_passes(self, seconds: int) -> None:
        """Long enough for loans to time out, at times."""
        for _ in range(seconds):
            self.core.advance(1.05)
            self.listen()
        if not self.core.is_held:
            self.model.saved()

    @precondition(lambda self: not self.core.is_held)
    @rule()
    def disk_is_slow(self) -> None:
        self.core.hold()

    @precondition(lambda self: self.core.is_held)
    @rule()
    def disk_is_quick(self) -> None:
        self.core.let_go()
        self.listen()

    @precondition(lambda self: not self.model.there() and not self.core.is_held)
    @rule()
    def long_without_members(self) -> None:
        self.core.advance(EXPIRY + 2.0)
        self.core.advance(1.1)
        self.listen()
        self.model.ended()

    @precondition(lambda self: not self.core.is_held)
    @rule(is_back=st.booleans())
    def move(self, is_back: bool) -> None:
        source = self.core.real.feed_source()
        position = find_place(source, "earliest" if is_back else "latest")
        if groups_of(self.core).move(GROUP, dict(position.serials), lambda: None):
            self.model.moved(is_back=is_back)
        elif self.model.is_kept:
            owned = self.core.archive.take_group("g", "t/#")
            assert owned is not None
            move_group(owned, position)
            owned.save()
            self.model.moved(is_back=is_back)
        self.listen()

    @rule(seed=st.integers(0, 999))
    def lose_power(self, seed: int) -> None:
        self.core = self.core.crash(Random(seed))
        self.model.crashed()
        self.connect_publishers()
        self.listen()

    def calm(self) -> None:
        """Let everybody who has a session be there, and take everything."""
        self.core.let_go()
        for name, member in self.model.members.items():
            if member.is_durable or not self.model.there():
                self.join(name, 65_535, 1)
        for _ in range(ROUNDS_MAX):
            owed = [member for member in self.model.members.values() if member.owed]
            if not owed:
                break
            for member in owed:
                if member.wire is not None:
                    self.model.acknowledge(member, len(member.owed), self.now)
            self.listen()
        self.time_passes(13)
        self.time_passes(2)
        self.model.check_all_arrived()
        self._check_position()

    def _check_position(self) -> None:
        """Claim that the group is saved behind every message that it wants."""
        saved = self.core.archive.peek_group("g", "t/#")
        if saved is not None:
            assert saved.done == ()
            assert self.core.rows_behind("t/#", dict(saved.position.serials)) == []

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None and hasattr(self, "core"):
                self.calm()
        finally:
            if hasattr(self, "core"):
                self.core.close()


def run(examples: int, steps: int, **others: Any) -> None:
    run_state_machine_as_test(
        GroupMachine,
        settings=settings(max_examples=examples, stateful_step_count=steps, **others),
    )


def test_a_group_loses_nothing_and_repeats_only_what_was_taken_back() -> None:
    run(40, 25)


@pytest.mark.soak
def test_a_group_loses_nothing_over_many_more_histories() -> None:
    run(5_000, 60)
