"""Durable sessions over the real store against a naive model, with power cuts.

Clients of both versions connect, take each other's place, leave, vanish, subscribe and publish; the
disk is slow; time passes, the wall clock jumps; the broker is stopped and started, and loses power
at any moment. Whatever happens: what was acknowledged reaches every session that wants it, at least
once with QoS 1 and once with QoS 2, in the order of its publisher and topic; no session is lost;
what was in flight comes again as such, and nothing else does.
"""

from __future__ import annotations

import sys
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

from siltstone.broker.settings.storage import StoreRule
from siltstone.rows.stored import StoredBatch
from siltstone.session.archive.records import SavedSession
from tests.support.broker_core import V3, V5
from tests.support.broker_device import Terms
from tests.support.broker_model import NEVER, Wish
from tests.support.durable_core import DurableCore
from tests.support.durable_device import DurableDevice
from tests.support.durable_model import DurableModel, Life

TOPICS = ("a/1", "a/2", "b", "never/x")
FILTERS = ("a/1", "a/+", "a/#", "b", "#")
RULES = (StoreRule(filter="never/#", store="never"),)
NAMES = ("x", "y", "z")
RECEIVE_MAX = 12
ROUNDS_MAX = 200

names = st.sampled_from(NAMES)
qos = st.integers(0, 2)
# QoS 1 and 2 more often than 0, and few messages that expire.
publishes = st.lists(
    st.tuples(
        st.sampled_from(TOPICS),
        st.sampled_from((0, 1, 1, 2, 2)),
        st.sampled_from((None, None, None, 20)),
    ),
    max_size=4,
)
Wanted = tuple[str, int, int | None]
terms = st.builds(
    Terms,
    version=st.sampled_from((V3, V5, V5)),
    clean=st.sampled_from((False, False, False, False, True)),
    expiry=st.sampled_from((10, 500, NEVER)),
    window=st.sampled_from((1, 2, 65_535)),
)


class DurableMachine(RuleBasedStateMachine):
    """One disk, the brokers that follow each other on it, and some devices."""

    reclaim = "none"

    @initialize(
        shards=st.sampled_from((1, 3)),
        first=terms,
        second=terms,
        wish=st.sampled_from((0, 1, 2, 2)),
    )
    def begin(self, shards: int, first: Terms, second: Terms, wish: int) -> None:
        core = DurableCore(
            automatic=False,
            shards=shards,
            rules=RULES,
            receive_max=RECEIVE_MAX,
            session_expiry_max=NEVER,
            reclaim=self.reclaim,
        )
        self.model = self.new_model(core.clock.now_us())
        self.devices = {name: DurableDevice(name, self.model) for name in NAMES}
        self.committed: list[bytes] = []
        self.use(core)
        self.connect("x", first)
        self.subscribe("x", "#", wish, no_local=False)
        self.connect("y", second)

    def new_model(self, now_us: int) -> DurableModel:
        return DurableModel(now_us)

    def use(self, core: DurableCore) -> None:
        self.core = core
        core.real.on_commit(self.hear)

    def hear(self, batch: StoredBatch) -> None:
        batch.load()
        self.committed.extend(batch.values)

    def listen(self) -> None:
        """Let the broker finish what it can, and the devices hear of it."""
        rounds = 0
        is_done = False
        while not is_done:
            rounds += 1
            assert rounds < ROUNDS_MAX, "the broker does not come to rest"
            self.core.run()
            for device in self.devices.values():
                device.listen()
            is_done = not self.core.shell.acts and not any(
                device.link is not None and device.link.wire.has_news
                for device in self.devices.values()
            )
        if not self.core.is_held and not self.core.database.pending:
            for life in self.model.lives.values():
                life.unsure.clear()

    @rule(name=names, how=terms)
    def connect(self, name: str, how: Terms) -> None:
        self.devices[name].connect(self.core, how)
        self.listen()

    @rule(name=names, expiry=st.sampled_from((None, None, 0, 10)))
    def disconnect(self, name: str, expiry: int | None) -> None:
        device = self.devices[name]
        if not device.is_heard:
            return
        if expiry == 0:
            # Nobody promises that this is known after a power cut.
            self.rest()
        device.disconnect(expiry)
        self.listen()

    @rule(name=names)
    def drop(self, name: str) -> None:
        device = self.devices[name]
        if device.link is not None:
            device.drop()
            self.listen()

    @rule(name=names, text=st.sampled_from(FILTERS), granted=qos, no_local=st.booleans())
    def subscribe(self, name: str, text: str, granted: int, no_local: bool) -> None:
        device = self.devices[name]
        if device.is_heard and device.is_durable:
            device.subscribe(text, Wish(granted, no_local=no_local))
            self.listen()

    @rule(name=names, text=st.sampled_from(FILTERS))
    def unsubscribe(self, name: str, text: str) -> None:
        device = self.devices[name]
        if device.is_heard and device.is_durable:
            device.unsubscribe(text)
            self.listen()

    @rule(name=names, wanted=publishes, lost_by=st.none() | names)
    def publish(self, name: str, wanted: list[Wanted], lost_by: str | None) -> None:
        """Publish; somebody may lose the connection before he hears of it."""
        device = self.devices[name]
        if device.link is None:
            self.connect(name, Terms(expiry=500))
        if device.life is None:
            return
        fitting = wanted[: RECEIVE_MAX - len(device.sent)]
        device.publish([self.model.new_message(name, *each) for each in fitting])
        self.lose(lost_by)
        self.listen()

    def lose(self, name: str | None) -> None:
        if name is not None and self.devices[name].life is not None:
            self.core.run()
            self.devices[name].drop()

    @rule(name=names, count=st.integers(1, 8), lost_by=st.none() | names)
    def acknowledge(self, name: str, count: int, lost_by: str | None) -> None:
        device = self.devices[name]
        if device.life is not None:
            device.acknowledge(count)
            self.lose(lost_by)
            self.listen()

    @rule(name=names, paused=st.booleans())
    def read(self, name: str, paused: bool) -> None:
        """Let a device read slowly, or again."""
        device = self.devices[name]
        if device.link is not None and device.life is not None:
            client = device.link.wire.client
            if paused:
                client.pause_writing()
            else:
                client.resume_writing()
            self.listen()

    @precondition(lambda self: self.core.database.pending)
    @rule(lost_by=st.none() | names)
    def settle(self, lost_by: str | None) -> None:
        """Let the first append that is under way be stored."""
        self.store_next()
        self.lose(lost_by)
        self.listen()

    def store_next(self) -> None:
        self.core.database.settle()
        for payload in self.committed:
            self.model.stored(payload)
        self.committed.clear()

    @rule()
    def hold(self) -> None:
        """Let saves of sessions, and reads, take their time."""
        self.core.hold()

    @rule()
    def let_go(self) -> None:
        self.core.let_go()
        self.listen()

    def rest(self) -> None:
        """Let everything reach the disk."""
        self.core.let_go()
        self.listen()
        while self.core.database.pending:
            self.store_next()
            self.listen()

    @rule(passed=st.sampled_from((2, 5, 20, 1000)))
    def advance(self, passed: int) -> None:
        self.rest()
        self.core.advance(passed)
        self.model.tell_time(self.core.clock.now_us())
        self.model.sweep()
        self.listen()

    @rule(seconds=st.sampled_from((-30, 30)))
    def jump(self, seconds: int) -> None:
        """Set the wall clock."""
        self.rest()
        self.core.clock.jump(seconds)
        self.model.tell_time(self.core.clock.now_us())
        self.model.has_jumped = True

    @rule(stored=st.booleans(), saved=st.booleans())
    def crash(self, stored: bool, saved: bool) -> None:
        """Cut the power; what is on its way may be on disk, though nobody has heard of it."""
        if stored and self.core.database.pending:
            self.store_next()
        if saved:
            self.core.let_go()
        self.begin_anew(self.core.crash())

    @rule(
        name=names,
        wanted=publishes,
        before=st.integers(0, 3),
        after=st.integers(0, 3),
        acks=st.integers(0, 4),
        saved=st.booleans(),
    )
    def publish_and_crash(
        self, name: str, wanted: list[Wanted], before: int, after: int, acks: int, saved: bool
    ) -> None:
        """Cut the power while messages are on their way."""
        self.publish(name, wanted, None)
        for _ in range(before):
            self.acknowledge_all(acks)
        self.core.hold()
        while self.core.database.pending:
            self.store_next()
            self.listen()
        for _ in range(after):
            self.acknowledge_all(acks)
        self.crash(stored=False, saved=saved)

    def acknowledge_all(self, count: int) -> None:
        for device in self.devices.values():
            if device.life is not None:
                device.acknowledge(count)
        self.listen()

    def begin_anew(self, core: DurableCore) -> None:
        for device in self.devices.values():
            device.crash()
        self.model.crashed()
        self.use(core)
        for life in list(self.model.lives.values()):
            self.find(life, core.peek(life.client_id))
        self.model.check_stored(core.stored())
        self.listen()

    def find(self, life: Life, state: SavedSession | None) -> None:
        """Look what the disk has of a session."""
        assert state is not None, f"the session of {life.client_id} is lost"
        found = {
            each.filter: Wish(each.qos, no_local=each.no_local) for each in state.subscriptions
        }
        for text, before in life.unsure.items():
            if found.get(text) != life.wishes.get(text):
                assert found.get(text) == before or before is None
                life.set_wish(text, found.get(text))
        life.unsure.clear()
        assert found == life.wishes
        assert state.away_since_us is not None
        away_us = int(state.away_since_us)
        assert away_us in {self.model.now_us, life.left_us}
        self.model.away_since(life, away_us)

    @rule()
    def restart(self) -> None:
        """Stop and start the broker in good order."""
        self.rest()
        for device in self.devices.values():
            if device.link is not None:
                device.drop()
        self.listen()
        assert self.core.broker.is_settled
        doubtful = {life: life.is_doubtful for life in self.model.lives.values()}
        assert self.core.connected() == []
        self.begin_anew(self.core.crash())
        for life, was in doubtful.items():
            life.is_doubtful = was

    @rule()
    def calm(self) -> None:
        """Let the disk and the devices do all that they owe; then everything has arrived."""
        rounds = 0
        self.rest()
        while self.is_busy():
            rounds += 1
            assert rounds < ROUNDS_MAX, "there is no end to it"
            for name, device in self.devices.items():
                if device.link is None and name in self.model.lives:
                    device.connect(self.core, Terms(expiry=500))
                self.listen()
                if device.link is not None and device.life is not None:
                    device.link.wire.client.resume_writing()
                    device.acknowledge(len(device.link.owed))
            self.listen()
            self.rest()
        assert {name: device.sent for name, device in self.devices.items() if device.link} == {
            name: {} for name, device in self.devices.items() if device.link
        }
        self.model.check_all_arrived()
        self.model.check_stored(self.core.stored())
        self.check_nothing_is_left()

    def is_busy(self) -> bool:
        return bool(self.core.database.pending) or any(
            (device.link is None and name in self.model.lives)
            or (device.link is not None and (device.life is None or device.link.owed))
            for name, device in self.devices.items()
        )

    def check_nothing_is_left(self) -> None:
        """Claim that within a second it is saved that all is done, and what there is counted."""
        for _ in range(10):
            self.core.advance(0.1)
        durables = self.core.durables
        assert durables.away() + len(durables.sessions) == self.core.archive.count()
        self.model.tell_time(self.core.clock.now_us())
        self.listen()
        for name, life in self.model.lives.items():
            state = self.core.peek(name)
            if life.expiry:
                assert state is not None
                assert (state.inflight, state.done, state.extra, state.received) == ((), (), (), ())
                # Rows that it does not want may be saved late as seen (decision 0035).
                position = dict(state.position.serials)
                for saved in state.subscriptions:
                    since = dict(saved.since.serials)
                    assert self.core.rows_behind(saved.filter, position, since) == []

    def teardown(self) -> None:
        try:
            if sys.exc_info()[0] is None and hasattr(self, "core"):
                self.calm()
        finally:
            if hasattr(self, "core"):
                self.core.close()


def run(examples: int, steps: int, **others: Any) -> None:
    run_state_machine_as_test(
        DurableMachine,
        settings=settings(max_examples=examples, stateful_step_count=steps, **others),
    )


def test_sessions_get_what_they_are_owed_whatever_happens() -> None:
    run(40, 30)


@pytest.mark.soak
def test_sessions_get_what_they_are_owed_over_many_more_histories() -> None:
    run(5_000, 80)
