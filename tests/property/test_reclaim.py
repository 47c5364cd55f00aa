"""Delivered messages are dropped, and no session or share group misses one that it is owed.

The machines of durable sessions and of share groups, over a store that drops every sealed slab as
soon as nothing of it is needed: slabs are sealed at any moment, clients come, leave, acknowledge
and expire, the disk is slow, the power is cut. When everything is acknowledged, one sealing gives
back the space.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from siltstone.session.archive.move import find_place, move_group
from tests.property.test_durable_sessions import DurableMachine
from tests.property.test_share_groups import GroupMachine
from tests.support.durable_core import DurableCore
from tests.support.durable_model import DurableModel
from tests.support.group_core import GROUP, groups_of

# Enough for every pass that may be needed: one drops the oldest slab of each shard.
LOOKS = 40


class ReclaimedModel(DurableModel):
    """A store from which messages go."""

    def check_stored(self, values: list[bytes]) -> None:
        """Claim that there is nothing that was not stored, and what has QoS 2 once at most."""
        counts = Counter(values)
        for message in self.messages.values():
            assert counts[message.payload] <= (message.rows if message.rank else 0)
            assert message.qos != 2 or counts[message.payload] <= 1, f"{message} is there twice"


def sealed(core: DurableCore) -> list[str]:
    return [str(slab.slab) for slab in core.real.slabs() if slab.state != "current"]


def look_for_a_while(core: DurableCore) -> None:
    for _ in range(LOOKS):
        if sealed(core):
            core.advance(1.05)


class ReclaimMachine(DurableMachine):
    """Sessions over a store that is sealed at any moment."""

    reclaim = "delivered"

    def new_model(self, now_us: int) -> DurableModel:
        return ReclaimedModel(now_us)

    @rule(seconds=st.sampled_from((0, 2, 3)))
    def seal(self, seconds: int) -> None:
        self.core.real.seal()
        for _ in range(seconds):
            # What is under way goes on, however slow the disk is.
            self.core.advance(1.0)
            self.model.tell_time(self.core.clock.now_us())
            self.model.sweep()
            self.listen()

    def check_nothing_is_left(self) -> None:
        """Claim, too, that all space comes back when everything is acknowledged."""
        super().check_nothing_is_left()
        self.core.real.seal()
        look_for_a_while(self.core)
        self.model.tell_time(self.core.clock.now_us())
        self.model.sweep()
        self.listen()
        assert sealed(self.core) == []
        assert self.core.stored() == []
        for device in self.devices.values():
            if device.link is not None and device.link.wire.client is not None:
                session = self.core.durables.sessions.get(device.client_id)
                durable = None if session is None else session.durable
                assert durable is None or durable.reader.dropped == 0


class ReclaimGroupMachine(GroupMachine):
    """A share group over such a store."""

    reclaim = "delivered"

    @rule(seconds=st.sampled_from((0, 2)))
    def seal(self, seconds: int) -> None:
        self.core.real.seal()
        self.time_passes(seconds)

    @precondition(lambda self: not self.core.is_held)
    @rule(is_back=st.booleans())
    def move(self, is_back: bool) -> None:
        """Move the group; what is gone from the store does not come again."""
        release = self.core.broker.pins.take()
        position = find_place(self.core.real.feed_source(), "earliest" if is_back else "latest")
        there = set(self.core.stored())
        if not groups_of(self.core).move(GROUP, dict(position.serials), lambda: None):
            owned = self.core.archive.take_group("g", "t/#")
            if owned is not None:
                move_group(owned, position)
                owned.save()
        if self.model.is_kept or self.model.there():
            self.model.moved(is_back=is_back)
            for value, sent in self.model.messages.items():
                sent.must = sent.must and value in there
        release()
        self.listen()

    def calm(self) -> None:
        super().calm()
        self.core.real.seal()
        look_for_a_while(self.core)
        self.listen()
        assert sealed(self.core) == []


def run(machine: Any, examples: int, steps: int, **others: Any) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=examples, stateful_step_count=steps, **others)
    )


def test_no_session_misses_a_message_and_the_space_comes_back() -> None:
    run(ReclaimMachine, 20, 30)


def test_no_share_group_misses_a_message_and_the_space_comes_back() -> None:
    run(ReclaimGroupMachine, 20, 25)


@pytest.mark.soak
def test_no_session_misses_a_message_over_many_more_histories() -> None:
    run(ReclaimMachine, 5_000, 80)


@pytest.mark.soak
def test_no_share_group_misses_a_message_over_many_more_histories() -> None:
    run(ReclaimGroupMachine, 5_000, 60)
