"""The broker core against a naive model, with connections, time and the disk in other hands.

Clients of both versions connect, take each other's place, leave, vanish, subscribe and publish;
they acknowledge late or never; the disk answers late, out of order, or with an error. Whatever
happens: a message is acknowledged after it was kept, and in order; what was acknowledged reaches
every session that wanted it, at least once with QoS 1 and once with QoS 2, in the order of its
publisher; and nobody gets what he is not owed.
"""

from __future__ import annotations

import sys

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
from siltstone.errors import OverloadedError, PoisonedError
from tests.support.broker_core import V3, V5, Core, over_quota
from tests.support.broker_device import Device, Link, Terms
from tests.support.broker_model import BrokerModel, Wish

TOPICS = ("a/1", "a/2", "b", "never/x", "none/x", "written/x")
FILTERS = ("a/1", "a/+", "a/#", "b", "#", "+/x")
RULES = (
    StoreRule(filter="never/#", store="never"),
    StoreRule(filter="none/#", durability="none"),
    StoreRule(filter="written/#", durability="written"),
)
RECEIVE_MAX = 12
ROUNDS_MAX = 100
NAMES = ("x", "y", "z")

names = st.sampled_from(NAMES)
qos = st.integers(0, 2)
publishes = st.lists(st.tuples(st.sampled_from(TOPICS), qos), max_size=4)
seconds = st.sampled_from((0, 5, 20, 1000))
terms = st.builds(
    Terms,
    version=st.sampled_from((V3, V5)),
    clean=st.sampled_from((False, False, False, True)),
    expiry=st.sampled_from((0, 10, 500, 0xFFFF_FFFF)),
    window=st.sampled_from((1, 2, 65_535)),
    will_topic=st.sampled_from(("", "a/1", "b")),
    will_qos=qos,
    will_delay=st.sampled_from((0, 7, 100)),
)
errors = st.sampled_from((None, None, None, over_quota(), PoisonedError("a sync failed")))
refusals = st.sampled_from((OverloadedError("too much"), over_quota(), PoisonedError("failed")))


class BrokerMachine(RuleBasedStateMachine):
    """One broker and some devices."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Core(
            automatic=False,
            rules=RULES,
            receive_max=RECEIVE_MAX,
            session_expiry_max=0xFFFF_FFFF,
            # A client of 3.1.1 whose message was not kept is closed at once.
            refusal_delay=0.0,
        )
        self.model = BrokerModel()
        self.devices = {name: Device(name, self.core, self.model) for name in NAMES}

    def listen(self) -> None:
        """Let the broker finish its turn, and the devices hear of it; then let it close the clients
        of 3.1.1 whose messages it could not keep: it reads no more of them.
        """
        self.hear()
        self.core.advance(0)
        self.hear()
        self.model.check_heard()

    def hear(self) -> None:
        rounds = 0
        while self.core.shell.acts or any(link.has_news for link in self.links):
            rounds += 1
            assert rounds < ROUNDS_MAX, "the broker does not come to rest"
            self.core.run()
            for device in self.devices.values():
                device.listen()

    @property
    def links(self) -> list[Link]:
        return [link for device in self.devices.values() for link in device.links]

    @initialize(first=terms, second=terms, wish=qos)
    def begin(self, first: Terms, second: Terms, wish: int) -> None:
        self.connect("x", first, [])
        self.subscribe("x", "#", wish, no_local=False)
        self.connect("y", second, [])

    @rule(name=names, how=terms, eager=publishes)
    def connect(self, name: str, how: Terms, eager: list[tuple[str, int]]) -> None:
        device = self.devices[name]
        device.connect(how, self.fitting(device, eager))
        self.listen()

    def fitting(self, device: Device, wanted: list[tuple[str, int]]) -> list[tuple[str, int]]:
        """Leave out what would be more than the broker said that it takes."""
        return wanted[: RECEIVE_MAX - len(device.sent)]

    @rule(name=names, with_will=st.booleans(), expiry=st.sampled_from((None, None, 0, 10)))
    def disconnect(self, name: str, with_will: bool, expiry: int | None) -> None:
        device = self.devices[name]
        if device.link is not None:
            device.disconnect(with_will=with_will, expiry=expiry)
            self.listen()

    @rule(name=names)
    def drop(self, name: str) -> None:
        device = self.devices[name]
        if device.links:
            device.drop()
            self.listen()

    @rule(name=names, text=st.sampled_from(FILTERS), granted=qos, no_local=st.booleans())
    def subscribe(self, name: str, text: str, granted: int, no_local: bool) -> None:
        device = self.devices[name]
        if device.link is not None:
            device.subscribe(text, Wish(granted, no_local=no_local))
            self.listen()

    @rule(name=names, text=st.sampled_from(FILTERS))
    def unsubscribe(self, name: str, text: str) -> None:
        device = self.devices[name]
        if device.link is not None:
            device.unsubscribe(text)
            self.listen()

    @rule(name=names, wanted=publishes, lost_by=st.none() | names)
    def publish(self, name: str, wanted: list[tuple[str, int]], lost_by: str | None) -> None:
        """Publish; somebody may lose the connection before he hears of it."""
        device = self.devices[name]
        if device.link is None:
            return
        device.publish(
            [
                self.model.new_message(name, topic, level)
                for topic, level in self.fitting(device, wanted)
            ]
        )
        self.lose(lost_by)
        self.listen()

    def lose(self, name: str | None) -> None:
        if name is not None and self.devices[name].link is not None:
            self.core.run()
            self.devices[name].drop()

    @rule(name=names, count=st.integers(1, 8), lost_by=st.none() | names)
    def acknowledge(self, name: str, count: int, lost_by: str | None) -> None:
        device = self.devices[name]
        if device.link is not None:
            device.acknowledge(count)
            self.lose(lost_by)
            self.listen()

    @rule(name=names, paused=st.booleans())
    def read(self, name: str, paused: bool) -> None:
        """Let a device read slowly, or again."""
        link = self.devices[name].link
        if link is not None:
            if paused:
                link.wire.client.pause_writing()
            else:
                link.wire.client.resume_writing()
            self.listen()

    @precondition(lambda self: self.core.database.pending)
    @rule(number=st.integers(0, 100), error=errors, lost_by=st.none() | names)
    def settle(self, number: int, error: Exception | None, lost_by: str | None) -> None:
        """Tell the outcome of any append that is under way."""
        database = self.core.database
        database.settle(error, index=number % len(database.pending))
        self.lose(lost_by)
        self.listen()

    @rule(error=refusals)
    def refuse_next(self, error: Exception) -> None:
        """Let the database take the next append not at all."""
        self.core.database.refusals.append(error)

    @rule(passed=seconds)
    def advance(self, passed: int) -> None:
        self.model.advance(passed)
        self.core.advance(passed)
        self.listen()

    @rule()
    def calm(self) -> None:
        """Let the disk and the devices do all that they owe; then everything has arrived."""
        self.core.database.refusals.clear()
        for link in self.links:
            link.wire.client.resume_writing()
        self.listen()
        while self.is_busy():
            self.core.settle()
            self.listen()
            for device in self.devices.values():
                if self.is_away(device):
                    device.connect(Terms(expiry=500), [])
                elif device.link is not None:
                    device.acknowledge(len(device.link.owed))
            self.listen()
        assert {name: device.sent for name, device in self.devices.items() if device.link} == {
            name: {} for name, device in self.devices.items() if device.link
        }
        assert not any(device.is_waiting for device in self.devices.values())
        self.model.check_all_arrived()

    def is_busy(self) -> bool:
        return (
            bool(self.core.database.pending)
            or any(link.owed for link in self.links)
            or any(self.is_away(device) for device in self.devices.values())
        )

    def is_away(self, device: Device) -> bool:
        """Tell whether a device has a session to come back to."""
        return not device.links and device.client_id in self.model.lives

    def teardown(self) -> None:
        if sys.exc_info()[0] is None:
            self.calm()


def test_acknowledged_messages_arrive_as_their_qos_says() -> None:
    run_state_machine_as_test(BrokerMachine)


@pytest.mark.soak
def test_acknowledged_messages_arrive_over_many_more_histories() -> None:
    run_state_machine_as_test(
        BrokerMachine, settings=settings(max_examples=2_000, stateful_step_count=100)
    )


def test_a_repeat_with_dup_and_the_second_copy_of_a_message_are_both_owed() -> None:
    machine = BrokerMachine()
    terms = Terms(
        version=V3,
        clean=False,
        expiry=0,
        window=1,
        will_topic="",
        will_qos=0,
        will_delay=0,
    )
    machine.begin(first=terms, second=terms, wish=0)
    machine.subscribe(granted=1, name="x", no_local=False, text="a/1")
    machine.connect(eager=[("a/1", 1)], how=terms, name="x")
    machine.subscribe(granted=0, name="x", no_local=False, text="a/1")
    machine.drop(name="x")
    # The client publishes again, so there is a second copy, which comes with QoS 0.
    machine.calm()
    machine.teardown()
