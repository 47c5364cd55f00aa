from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from siltstone.broker.deliver.router import Router
from siltstone.broker.deliver.shares import (
    LEAST_LOADED,
    ROUND_ROBIN,
    LendingTerms,
    Subscriber,
)
from siltstone.mqtt.publish import PUBACK, PublishBatch
from siltstone.session.sending.delivery import Budget
from siltstone.session.sending.outbox import Outbox, Ready
from siltstone.topic.grammar import TopicFilter
from tests.support.packets import Message
from tests.support.receiver import Receiver, make_outbox

RETAIN = 4
DUP = 8


def batch_of(*topics: bytes, flags: int = 2) -> PublishBatch:
    """Return a batch with a message to each topic."""
    batch = PublishBatch()
    for index, topic in enumerate(topics):
        batch.topics.append(topic)
        batch.values.append(b"%d" % index)
        batch.flags.append(flags)
        batch.packet_ids.append(100 + index)
    return batch


class Session:
    """A connected session: what it subscribed to, and what it got."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self.outbox: Outbox = make_outbox()
        self.receiver = Receiver(self.outbox)

    def subscribe(
        self,
        text: str,
        *,
        qos: int = 0,
        no_local: bool = False,
        keeps_retain: bool = False,
        identifier: bytes = b"",
        guard: Callable[[bytes], bool] | None = None,
    ) -> None:
        subscriber = Subscriber(self.outbox, qos, no_local, keeps_retain, identifier, guard)
        topic_filter = TopicFilter.parse(text)
        if topic_filter.group is None:
            self.router.subscribe(topic_filter.levels, subscriber)
        else:
            strategy = ROUND_ROBIN if self.router.terms is None else LEAST_LOADED
            self.router.join(topic_filter.group, topic_filter.levels, subscriber, strategy)

    def unsubscribe(self, text: str) -> None:
        topic_filter = TopicFilter.parse(text)
        if topic_filter.group is None:
            self.router.unsubscribe(topic_filter.levels, self.outbox)
        else:
            self.router.leave(topic_filter.group, topic_filter.levels, self.outbox)

    def topics(self) -> list[bytes]:
        """Return the topics of the messages that it got since."""
        return [message.topic for message in self.receiver.messages()]


def send(router: Router, *topics: bytes, source: Outbox | None = None, flags: int = 2) -> None:
    router.dispatch(batch_of(*topics, flags=flags), source, 0.0)


class TestDispatch:
    def test_a_batch_goes_to_whom_it_matches_in_order(self) -> None:
        router = Router()
        everything, some, nothing = Session(router), Session(router), Session(router)
        everything.subscribe("#")
        some.subscribe("a/+")
        nothing.subscribe("x")
        for _ in range(2):
            send(router, b"a/b", b"b", b"a/c", b"a", b"a/b")
            assert everything.topics() == [b"a/b", b"b", b"a/c", b"a", b"a/b"]
            assert some.topics() == [b"a/b", b"a/c", b"a/b"]
            assert nothing.topics() == []

    def test_properties_and_expiries_are_those_of_each_message(self) -> None:
        router = Router()
        session = Session(router)
        session.subscribe("#", qos=1)
        batch = batch_of(b"a", b"b", b"c", flags=1)
        batch.properties = [b"\3\0\1x", b"", b"\2\0\0\0\5"]
        batch.expiries = [-1, -1, 5]
        session.outbox.detach()
        router.dispatch(batch, None, 100.0)
        assert Receiver(session.outbox, now=103.0).read() == [
            Message(b"a", b"0", 1, 1, b"\3\0\1x", -1),
            Message(b"b", b"1", 1, 2, b"", -1),
            Message(b"c", b"2", 1, 3, b"\2\0\0\0\2", 2),
        ]
        session.outbox.detach()
        router.dispatch(batch, None, 100.0)
        again = [m.payload for m in Receiver(session.outbox, now=105.0).messages()]
        assert again == [b"0", b"1", b"2", b"0", b"1"]
        assert session.outbox.expired == 1

    def test_flags_are_those_that_the_subscription_asks_for(self) -> None:
        router = Router()
        low, high = Session(router), Session(router)
        low.subscribe("a", qos=0)
        high.subscribe("a", qos=2, keeps_retain=True)
        send(router, b"a", flags=2 | RETAIN | DUP)
        assert low.receiver.read() == [Message(b"a", b"0", 0, 0, b"", -1)]
        assert high.receiver.read() == [Message(b"a", b"0", 2 | RETAIN, 1, b"", -1)]

    def test_mqtt_3_3_4_3_overlapping_subscriptions_are_one_message_with_all_identifiers(
        self,
    ) -> None:
        router = Router()
        session = Session(router)
        session.subscribe("a/#", qos=0, identifier=b"\x0b\1")
        session.subscribe("a/b", qos=2, identifier=b"\x0b\2")
        session.subscribe("+/b", qos=1, keeps_retain=True)
        session.subscribe("a/+", qos=1, identifier=b"\x0b\1")
        send(router, b"a/b", flags=2 | RETAIN)
        [message] = session.receiver.messages()
        assert (message.flags, message.packet_id) == (2 | RETAIN, 1)
        found = [message.properties[index : index + 2] for index in range(0, 6, 2)]
        assert (sorted(found), len(message.properties)) == ([b"\x0b\1", b"\x0b\1", b"\x0b\2"], 6)

    def test_mqtt_3_8_3_3_no_local_leaves_out_a_session_s_own_messages(self) -> None:
        router = Router()
        own, other = Session(router), Session(router)
        own.subscribe("a", no_local=True)
        other.subscribe("a", no_local=True)
        send(router, b"a", source=own.outbox)
        assert (own.topics(), other.topics()) == ([], [b"a"])
        send(router, b"a")
        assert (own.topics(), other.topics()) == ([b"a"], [b"a"])

    def test_of_its_own_messages_a_session_gets_what_the_other_subscriptions_ask_for(self) -> None:
        router = Router()
        session = Session(router)
        session.subscribe("a/#", qos=2, no_local=True, keeps_retain=True, identifier=b"\x0b\1")
        session.subscribe("a/+", qos=1, identifier=b"\x0b\2")
        session.subscribe("+/b", qos=0, identifier=b"\x0b\3")
        send(router, b"a/b", source=session.outbox, flags=2 | RETAIN)
        [message] = session.receiver.messages()
        assert message.flags == 1
        assert sorted((message.properties[:2], message.properties[2:])) == [b"\x0b\2", b"\x0b\3"]
        send(router, b"a/b", flags=2 | RETAIN)
        [message] = session.receiver.messages()
        assert (message.flags, len(message.properties)) == (2 | RETAIN, 6)

    def test_without_no_local_a_session_gets_its_own_messages_too(self) -> None:
        router = Router()
        session = Session(router)
        session.subscribe("a", qos=1, identifier=b"\x0b\1")
        send(router, b"a", source=session.outbox)
        assert session.receiver.read() == [Message(b"a", b"0", 1, 1, b"\x0b\1", -1)]


class TestChanges:
    """Routes that are remembered follow every change of a subscription."""

    @pytest.mark.parametrize("text", ["a/b", "a/+", "+/b", "#", "a/b/#", "$share/g/a/b"])
    def test_who_subscribes_gets_what_was_published_before_to_nobody(self, text: str) -> None:
        router = Router()
        session = Session(router)
        send(router, b"a/b", b"c")
        session.subscribe(text)
        send(router, b"a/b")
        assert session.topics() == [b"a/b"]

    @pytest.mark.parametrize("text", ["a/b", "a/+", "+/b", "#", "a/b/#", "$share/g/a/#"])
    def test_who_unsubscribes_gets_nothing(self, text: str) -> None:
        router = Router()
        session, other = Session(router), Session(router)
        session.subscribe(text)
        other.subscribe("a/b")
        send(router, b"a/b")
        assert (session.topics(), other.topics()) == ([b"a/b"], [b"a/b"])
        session.unsubscribe(text)
        send(router, b"a/b")
        assert (session.topics(), other.topics(), len(router)) == ([], [b"a/b"], 1)

    def test_one_of_two_subscriptions_stays(self) -> None:
        router = Router()
        session = Session(router)
        session.subscribe("a/#", qos=1, identifier=b"\x0b\1")
        session.subscribe("a/b", qos=2, identifier=b"\x0b\2")
        send(router, b"a/b")
        session.unsubscribe("a/b")
        send(router, b"a/b")
        found = [(message.flags, message.properties) for message in session.receiver.messages()]
        assert [flags for flags, _ in found] == [2, 1]
        assert found[1][1] == b"\x0b\1"

    @pytest.mark.parametrize("text", ["a/b", "a/+", "$share/g/a/b"])
    def test_a_subscription_that_comes_again_is_in_place_of_the_old_one(self, text: str) -> None:
        router = Router()
        session = Session(router)
        session.subscribe(text, qos=0, identifier=b"\x0b\1")
        send(router, b"a/b")
        session.subscribe(text, qos=1, identifier=b"\x0b\2")
        send(router, b"a/b")
        found = [(message.flags, message.properties) for message in session.receiver.messages()]
        assert found == [(0, b"\x0b\1"), (1, b"\x0b\2")]
        assert len(router) == 1

    def test_who_never_subscribed_may_unsubscribe(self) -> None:
        router = Router()
        session, other = Session(router), Session(router)
        other.subscribe("a/b")
        other.subscribe("$share/g/a/b")
        for text in ("a/b", "a/#", "$share/g/a/b", "$share/h/a/b"):
            session.unsubscribe(text)
        send(router, b"a/b")
        assert (other.topics(), len(router)) == ([b"a/b", b"a/b"], 2)


class TestGroups:
    def test_each_group_gets_a_message_once(self) -> None:
        router = Router()
        first, second, alone = (Session(router) for _ in range(3))
        for session in (first, second):
            session.subscribe("$share/g/a/#")
        alone.subscribe("$share/h/a/#")
        alone.subscribe("a/#")
        for _ in range(3):
            send(router, b"a/b", b"a")
        assert sorted(first.topics() + second.topics()) == [b"a"] * 3 + [b"a/b"] * 3
        assert alone.topics() == [b"a/b", b"a/b", b"a", b"a"] * 3

    def test_groups_of_one_name_and_different_filters_are_different(self) -> None:
        router = Router()
        first, second = Session(router), Session(router)
        first.subscribe("$share/g/a/#")
        second.subscribe("$share/g/a/+")
        send(router, b"a/b")
        assert (first.topics(), second.topics()) == ([b"a/b"], [b"a/b"])

    def test_members_come_and_go_while_the_route_is_remembered(self) -> None:
        router = Router()
        first, second = Session(router), Session(router)
        first.subscribe("$share/g/a")
        send(router, b"a", b"a")
        assert first.topics() == [b"a", b"a"]
        second.subscribe("$share/g/a")
        send(router, b"a", b"a")
        assert (first.topics(), second.topics()) == ([b"a"], [b"a"])
        first.unsubscribe("$share/g/a")
        send(router, b"a", b"a")
        assert (first.topics(), second.topics()) == ([], [b"a", b"a"])
        second.unsubscribe("$share/g/a")
        send(router, b"a")
        assert (first.topics(), second.topics(), len(router)) == ([], [], 0)
        first.subscribe("$share/g/a")
        send(router, b"a")
        assert first.topics() == [b"a"]

    def test_a_member_gets_it_as_its_own_subscription_asks(self) -> None:
        router = Router()
        session = Session(router)
        session.subscribe("$share/g/a", qos=1, keeps_retain=True, identifier=b"\x0b\7")
        send(router, b"a", flags=2 | RETAIN)
        assert session.receiver.read() == [Message(b"a", b"0", 1 | RETAIN, 1, b"\x0b\7", -1)]

    def test_a_message_that_no_member_may_read_goes_nowhere(self) -> None:
        router = Router()
        session = Session(router)
        session.subscribe("$share/g/#", guard=lambda topic: topic != b"secret")
        send(router, b"secret", b"a")
        assert session.topics() == [b"a"]


class TestWaitingGroups:
    """Groups in which messages wait until a member acknowledges something."""

    def lending_router(self) -> Router:
        router = Router()
        router.terms = LendingTerms(Ready(lambda: None), Budget(1 << 30), 1_000, 1 << 30, 1_024)
        return router

    def test_a_session_has_the_waiting_groups_that_it_is_a_member_of(self) -> None:
        router = self.lending_router()
        stranger, one, both = (Session(router) for _ in range(3))
        stranger.subscribe("#")
        one.subscribe("$share/g/a", qos=1)
        for text in ("$share/idle/x", "$share/g/a", "$share/g/b", "$share/g/b"):
            both.subscribe(text, qos=1)
        send(router, *[b"a", b"b"] * 20)
        # The group of `b` has one member, so its messages wait first.
        [of_b, of_a] = router.waiting_groups()
        assert router.waiting_groups_of(stranger.outbox) == []
        assert router.waiting_groups_of(one.outbox) == [of_a]
        assert router.waiting_groups_of(both.outbox) == [of_b, of_a]
        both.unsubscribe("$share/g/a")
        assert router.waiting_groups_of(both.outbox) == [of_b]
        both.unsubscribe("$share/g/b")
        assert router.waiting_groups_of(both.outbox) == []

    def test_a_session_with_more_groups_than_wait_has_the_same_ones(self) -> None:
        router = self.lending_router()
        session = Session(router)
        for number in range(5):
            session.subscribe(f"$share/g/{number}", qos=1)
        send(router, *[b"3"] * 20)
        assert router.waiting_groups_of(session.outbox) == router.waiting_groups()

    def test_no_group_is_looked_at_for_a_session_in_no_group(self) -> None:
        """In compiled modules no call is seen; this test is about the other form."""
        router = self.lending_router()
        stranger = Session(router)
        for number in range(10):
            Session(router).subscribe(f"$share/g/{number}", qos=1)
            send(router, *[b"%d" % number] * 20)
        assert len(router.waiting_groups()) == 10
        called: list[str] = []

        def watch(frame: FrameType, event: str, argument: object) -> None:
            called.append(frame.f_code.co_name)

        sys.setprofile(watch)
        try:
            router.replenish(stranger.outbox, 0.0)
        finally:
            sys.setprofile(None)
        assert called.count("replenish") <= 2  # The call of the router itself, and its return.

    def test_a_session_that_acknowledges_gets_what_waits_in_each_of_its_groups(self) -> None:
        router = self.lending_router()
        session = Session(router)
        for text in ("$share/g/a", "$share/g/b", "$share/g/c"):
            session.subscribe(text, qos=1)
        send(router, *[b"a"] * 4, b"b", b"c")
        assert session.topics() == [b"a"] * 4
        assert [group.queued for group in router.waiting_groups()] == [1, 1]
        session.outbox.acknowledge(PUBACK, [1, 2, 3, 4], 0.0)
        router.replenish(session.outbox, 0.0)
        assert session.topics() == [b"b", b"c"]

    def test_a_session_that_has_left_its_groups_is_not_kept(self) -> None:
        router = self.lending_router()
        session, other = Session(router), Session(router)
        other.subscribe("$share/g/a", qos=1)
        before = sys.getrefcount(session.outbox)
        for _ in range(2):
            session.subscribe("$share/g/a", qos=1)
        session.unsubscribe("$share/g/a")
        after = sys.getrefcount(session.outbox)
        assert after == before


class TestGuards:
    def test_what_a_session_may_not_read_it_does_not_get(self) -> None:
        router = Router()
        session, other = Session(router), Session(router)
        session.subscribe("#", guard=lambda topic: topic != b"secret")
        other.subscribe("secret")
        send(router, b"a", b"secret")
        assert (session.topics(), other.topics()) == ([b"a"], [b"secret"])

    def test_a_guard_is_asked_once_for_each_topic_until_routes_are_forgotten(self) -> None:
        router = Router()
        session = Session(router)
        asked: list[bytes] = []
        allowed: set[bytes] = {b"a"}

        def guard(topic: bytes) -> bool:
            asked.append(topic)
            return topic in allowed

        session.subscribe("#", guard=guard)
        send(router, b"a", b"b", b"a", b"b")
        assert (session.topics(), asked) == ([b"a", b"a"], [b"a", b"b"])
        allowed.symmetric_difference_update({b"a", b"b"})
        router.forget_routes()
        send(router, b"a", b"b")
        assert (session.topics(), asked) == ([b"b"], [b"a", b"b", b"a", b"b"])


class TestMemory:
    """Remembered routes take no more than they may; a guard tells when one is found anew."""

    def watched(self, router: Router) -> list[bytes]:
        """Subscribe a session to everything; return the topics that are looked up, as they come."""
        asked: list[bytes] = []

        def guard(topic: bytes) -> bool:
            asked.append(topic)
            return False

        Session(router).subscribe("#", guard=guard)
        return asked

    def test_many_topics_are_not_all_remembered(self) -> None:
        router = Router(routes_bytes_max=50_000)
        asked = self.watched(router)
        topics = [b"%d" % number for number in range(100)]
        send(router, *topics, *topics)
        assert asked == topics
        more = [b"more/%d" % number for number in range(100)]
        send(router, *more, topics[0])
        assert asked == [*topics, *more, topics[0]]

    def test_long_topics_count_by_their_length(self) -> None:
        router = Router(routes_bytes_max=50_000)
        asked = self.watched(router)
        topics = [b"%020000d" % number for number in range(3)]
        send(router, *topics, *topics)
        assert asked == topics * 2

    def test_routes_count_by_whom_they_lead_to(self) -> None:
        router = Router(routes_bytes_max=50_000)
        asked = self.watched(router)
        for _ in range(200):
            Session(router).subscribe("#")
        send(router, b"a", b"a", b"b", b"a")
        assert asked == [b"a", b"b", b"a"]

    def test_a_route_that_is_forgotten_makes_room(self) -> None:
        router = Router(routes_bytes_max=50_000)
        asked = self.watched(router)
        session = Session(router)
        send(router, b"kept")
        for _ in range(1_000):
            session.subscribe("a")
            send(router, b"a")
        send(router, b"kept")
        assert asked == [b"kept", *[b"a"] * 1_000]
