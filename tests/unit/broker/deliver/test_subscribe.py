from __future__ import annotations

from pathlib import PurePath
from typing import Any

import pytest

from siltstone.broker.access.access import Access
from siltstone.broker.access.acl import Acl
from siltstone.mqtt.packets import (
    Packet,
    PubAck,
    Publish,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import V3, Core, Wire, message

KEPT: dict[str, Any] = {"clean_start": False, "session_expiry_interval": 100}


def holding(*topics: str, qos: int = 1, **limits: Any) -> Core:
    """Return a broker with a retained message on each topic, its payload being the topic."""
    core = Core(**limits)
    publisher = core.connect("publisher")
    for number, topic in enumerate(topics, 1):
        publisher.publish(topic, topic, qos=qos, packet_id=number if qos else 0, retain=True)
    return core


def retained(topic: str, qos: int = 0, packet_id: int = 0, **fields: Any) -> Publish:
    return message(topic, topic, qos, packet_id, retain=True, **fields)


def payloads(packets: list[Packet]) -> list[str]:
    return [packet.payload.decode() for packet in packets if isinstance(packet, Publish)]


def reasons_of(wire: Wire, *filters: str) -> tuple[Reason, ...]:
    subscriptions = tuple(Subscription(filter=TopicFilter.parse(text)) for text in filters)
    answer = wire.exchange(Subscribe(packet_id=1, subscriptions=subscriptions))[0]
    assert isinstance(answer, SubAck)
    return answer.reasons


def unsubscribe(wire: Wire, *filters: str) -> list[Packet]:
    answer, *rest = wire.exchange(
        Unsubscribe(packet_id=1, filters=tuple(map(TopicFilter.parse, filters)))
    )
    assert isinstance(answer, UnsubAck)
    return rest


class TestSubscribing:
    def test_the_same_filter_again_takes_the_place_of_the_first(self) -> None:
        core = Core()
        wire = core.connect("c")
        wire.subscribe("a", qos=2, identifier=1)
        wire.subscribe("a", qos=0, identifier=2)
        core.connect("p").publish("a", "x", qos=2, packet_id=1)
        assert wire.take() == [message("a", "x", subscription_identifiers=(2,))]
        assert core.broker.registry.subscription_count == 1

    def test_overlapping_subscriptions_are_one_message_with_all_identifiers(self) -> None:
        core = Core()
        wire = core.connect("c")
        wire.subscribe("a/#", qos=0, identifier=7)
        wire.subscribe("a/b", qos=1, identifier=200)
        wire.subscribe("+/b", qos=0)
        core.connect("p").publish("a/b", "x", qos=2, packet_id=1)
        (packet,) = wire.take()
        assert isinstance(packet, Publish)
        assert (packet.qos, set(packet.properties.subscription_identifiers)) == (1, {7, 200})

    def test_no_local_keeps_a_client_from_its_own_messages_alone(self) -> None:
        core = Core()
        wire = core.connect("c")
        wire.subscribe("a", qos=0, no_local=True)
        wire.publish("a", "own")
        core.connect("p").publish("a", "other")
        assert payloads(wire.take()) == ["other"]

    def test_the_retain_flag_is_kept_where_that_was_asked_for(self) -> None:
        core = Core()
        wires = [core.connect("c"), core.connect("d")]
        wires[0].subscribe("a", qos=0, retain_as_published=True)
        wires[1].subscribe("a", qos=0)
        publisher = core.connect("p")
        publisher.publish("a", "1", retain=True)
        publisher.publish("a", "2")
        assert wires[0].take() == [message("a", "1", retain=True), message("a", "2")]
        assert wires[1].take() == [message("a", "1"), message("a", "2")]

    def test_a_client_may_have_so_many_subscriptions(self) -> None:
        core = Core(subscriptions_max=2)
        wire = core.connect("c")
        granted, quota = Reason.GRANTED_QOS_0, Reason.QUOTA_EXCEEDED
        assert reasons_of(wire, "a", "b", "c") == (granted, granted, quota)
        assert reasons_of(wire, "a") == (granted,)
        unsubscribe(wire, "b")
        assert reasons_of(wire, "c", "d") == (granted, quota)

    def test_all_clients_together_may_have_so_many(self) -> None:
        core = Core(subscriptions_total_max=2)
        first, second = core.connect("c"), core.connect("d")
        granted, quota = Reason.GRANTED_QOS_0, Reason.QUOTA_EXCEEDED
        assert reasons_of(first, "a", "b") == (granted, granted)
        assert reasons_of(second, "a") == (quota,)
        first.drop()
        assert reasons_of(second, "a") == (granted,)

    def test_a_filter_may_have_so_many_levels(self) -> None:
        wire = Core(topic_levels_max=2).connect("c")
        assert reasons_of(wire, "a/b", "a/b/#") == (
            Reason.GRANTED_QOS_0,
            Reason.TOPIC_FILTER_INVALID,
        )

    def test_what_a_client_may_not_read_is_neither_granted_nor_sent(self) -> None:
        rights = Acl.parse(["topic read a/#", "topic subscribe #"], PurePath("/acl"))
        core = Core(access=Access(None, rights, None))
        wire = core.connect("c")
        assert reasons_of(wire, "a/1", "b") == (Reason.GRANTED_QOS_0, Reason.GRANTED_QOS_0)
        core.broker.use_access(
            Access(None, Acl.parse(["topic read a/#", "topic write #"], PurePath("/acl")), None)
        )
        assert reasons_of(wire, "a/2", "c") == (Reason.GRANTED_QOS_0, Reason.NOT_AUTHORIZED)
        core.connect("p").send(message("a/1", "1"), message("b", "2"), message("a/2", "3"))
        assert payloads(wire.take()) == ["1", "3"]

    def test_unsubscribing_what_there_is_not_says_so(self) -> None:
        wire = Core().connect("c")
        wire.subscribe("a", "$share/g/a")
        filters = tuple(map(TopicFilter.parse, ("$share/g/a", "$share/h/a", "a")))
        assert wire.exchange(Unsubscribe(packet_id=3, filters=filters)) == [
            UnsubAck(
                packet_id=3,
                reasons=(Reason.SUCCESS, Reason.NO_SUBSCRIPTION_EXISTED, Reason.SUCCESS),
            )
        ]

    def test_who_comes_back_has_the_rights_of_now(self) -> None:
        def reading(topic: str) -> Access:
            lines = [f"topic read {topic}", "topic write #", "topic subscribe #"]
            return Access(None, Acl.parse(lines, PurePath("/acl")), None)

        core = Core(access=reading("a"))
        wire = core.connect("c", **KEPT)
        wire.subscribe("#", qos=1)
        wire.drop()
        core.broker.use_access(reading("b"))
        core.connect("p").send(message("a", "1", 1, 1), message("b", "2", 1, 2))
        wire = core.connect("c", **KEPT)
        core.connect("p").send(message("a", "3", 1, 1), message("b", "4", 1, 2))
        assert payloads(wire.take()) == ["2", "4"]


class TestRetained:
    def test_they_follow_the_answer_with_the_retain_flag_and_the_lower_qos(self) -> None:
        core = holding("a/1", "a/2", "b", qos=2)
        wire = core.connect("c")
        assert wire.subscribe("a/#", qos=1) == [retained("a/1", 1, 1), retained("a/2", 1, 2)]
        assert core.connect("d").subscribe("b", qos=0) == [retained("b")]

    def test_they_bear_the_identifier_of_the_subscription(self) -> None:
        wire = holding("a").connect("c")
        assert wire.subscribe("a", qos=0, identifier=9) == [
            retained("a", subscription_identifiers=(9,))
        ]

    @pytest.mark.parametrize(("handling", "counts"), [(0, [1, 1]), (1, [1, 0]), (2, [0, 0])])
    def test_the_handling_says_when_they_are_sent(self, handling: int, counts: list[int]) -> None:
        wire = holding("a").connect("c")
        sent = [len(wire.subscribe("a", qos=0, retain_handling=handling)) for _ in range(2)]
        assert sent == counts

    def test_a_filter_that_was_unsubscribed_is_new_again(self) -> None:
        wire = holding("a").connect("c")
        wire.subscribe("a", qos=0, retain_handling=1)
        unsubscribe(wire, "a")
        assert len(wire.subscribe("a", qos=0, retain_handling=1)) == 1

    def test_a_shared_subscription_gets_none(self) -> None:
        assert holding("a").connect("c").subscribe("$share/g/a") == []

    def test_3_1_1_gets_them_with_every_subscribe(self) -> None:
        wire = holding("a").connect("c", version=V3)
        assert wire.subscribe("a", qos=0) == [retained("a")]
        assert wire.subscribe("a", qos=0) == [retained("a")]

    def test_no_local_holds_for_them_too(self) -> None:
        core = holding("a")
        wire = core.connect("c")
        wire.publish("b", "b", retain=True)
        assert wire.subscribe("#", qos=0, no_local=True) == [retained("a")]

    def test_an_empty_one_clears_and_is_sent_on(self) -> None:
        core = holding("a", "b")
        watcher = core.connect("w")
        watcher.subscribe("a", qos=0, retain_handling=2)
        core.connect("p").publish("a", "", retain=True)
        assert watcher.take() == [message("a", "")]
        assert core.connect("c").subscribe("#", qos=0) == [retained("b")]

    def test_one_that_expires_tells_how_long_it_has_left_and_then_is_gone(self) -> None:
        core = Core()
        core.connect("p").publish("a", "a", retain=True, message_expiry_interval=10)
        core.advance(3.5)
        assert core.connect("c").subscribe("a", qos=0) == [retained("a", message_expiry_interval=7)]
        core.advance(6.5)
        assert core.connect("d").subscribe("a", qos=0) == []

    def test_what_a_client_may_not_read_is_left_out(self) -> None:
        core = holding("a", "b")
        rights = Acl.parse(["topic read a", "topic subscribe #"], PurePath("/acl"))
        core.broker.use_access(Access(None, rights, None))
        assert payloads(core.connect("c").subscribe("#", qos=0)) == ["a"]


class TestReplay:
    """Many retained messages, and a client that takes few at a time."""

    TOPICS = tuple(f"t/{number}" for number in range(5))

    def slow(self, core: Core, **fields: Any) -> Wire:
        return core.connect("c", receive_maximum=2, **fields)

    def acknowledge(self, wire: Wire, *packet_ids: int) -> list[Packet]:
        return wire.exchange(*(PubAck(packet_id=packet_id) for packet_id in packet_ids))

    def test_they_are_sent_as_fast_as_they_are_acknowledged(self) -> None:
        wire = self.slow(holding(*self.TOPICS))
        assert payloads(wire.subscribe("#")) == ["t/0", "t/1"]
        assert payloads(self.acknowledge(wire, 1)) == ["t/2"]
        assert payloads(self.acknowledge(wire, 2, 3)) == ["t/3", "t/4"]
        assert payloads(self.acknowledge(wire, 4, 5)) == []

    def test_they_go_on_when_one_is_refused(self) -> None:
        wire = self.slow(holding(*self.TOPICS))
        wire.subscribe("#")
        answer = wire.exchange(PubAck(packet_id=1, reason=Reason.QUOTA_EXCEEDED))
        assert payloads(answer) == ["t/2"]

    def test_they_wait_for_who_does_not_read(self) -> None:
        core = holding(*self.TOPICS)
        wire = core.connect("c")
        wire.client.pause_writing()
        assert wire.subscribe("#", qos=0) == []
        wire.client.resume_writing()
        assert payloads(wire.take()) == list(self.TOPICS)

    def test_more_than_a_buffer_holds_is_sent_buffer_by_buffer(self) -> None:
        core = Core(write_buffer_max=1024)
        publisher = core.connect("p")
        for topic in self.TOPICS:
            publisher.publish(topic, topic + "x" * 600, retain=True)
        wire = core.connect("c")
        found = payloads(wire.subscribe("#", qos=0))
        assert found == [topic + "x" * 600 for topic in self.TOPICS]

    def test_very_many_are_sent_over_several_turns(self) -> None:
        core = holding(*(f"t/{number:04}" for number in range(1, 1201)), qos=0)
        wire = core.connect("c")
        subscription = Subscription(filter=TopicFilter.parse("#"))
        wire.send(Subscribe(packet_id=1, subscriptions=(subscription,)))
        outbox = core.broker.registry.sessions["c"].outbox
        counts = [outbox.sent]
        while core.shell.acts:
            core.shell.acts.popleft()()
            counts.append(outbox.sent)
        assert sorted(set(counts)) == [997, 1200]
        assert len(payloads(wire.take())) == 1200

    def test_many_that_may_not_be_read_are_passed_over_turn_by_turn(self) -> None:
        core = holding(*(f"t/{number:04}" for number in range(1, 1201)), "u", qos=0)
        rights = Acl.parse(["topic read u", "topic subscribe #"], PurePath("/acl"))
        core.broker.use_access(Access(None, rights, None))
        assert payloads(core.connect("c").subscribe("#", qos=0)) == ["u"]

    def test_one_that_was_replaced_meanwhile_is_sent_as_it_is_now(self) -> None:
        core = holding(*self.TOPICS)
        wire = self.slow(core)
        wire.subscribe("#")
        core.connect("p").publish("t/3", "new", qos=1, packet_id=1, retain=True)
        found: list[str] = []
        for packet_id in range(1, 6):
            found += payloads(self.acknowledge(wire, packet_id))
        assert found == ["new", "t/2", "new", "t/4"]

    def test_none_is_sent_behind_unsubscribe(self) -> None:
        wire = self.slow(holding(*self.TOPICS))
        wire.subscribe("#")
        assert unsubscribe(wire, "#") == []
        assert self.acknowledge(wire, 1, 2) == []

    def test_a_subscription_that_is_made_again_begins_anew_with_its_own_qos(self) -> None:
        wire = self.slow(holding(*self.TOPICS))
        wire.subscribe("#", qos=1)
        assert wire.subscribe("#", qos=0) == []
        found = self.acknowledge(wire, 1, 2)
        assert found == [retained(topic) for topic in self.TOPICS]

    def test_a_subscription_that_wants_no_more_of_them_goes_on_with_its_own_qos(self) -> None:
        wire = self.slow(holding(*self.TOPICS))
        wire.subscribe("#", qos=1)
        wire.subscribe("#", qos=0, retain_handling=2)
        assert self.acknowledge(wire, 1, 2) == [retained(topic) for topic in self.TOPICS[2:]]

    def test_a_session_that_comes_back_gets_the_rest(self) -> None:
        core = holding(*self.TOPICS)
        wire = self.slow(core, **KEPT)
        wire.subscribe("#")
        wire.drop()
        wire = self.slow(core, **KEPT)
        assert payloads(wire.take()) == ["t/0", "t/1"]
        assert payloads(self.acknowledge(wire, 1, 2)) == ["t/2", "t/3"]

    def test_so_many_sessions_keep_their_place_and_others_begin_anew(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("siltstone.broker.deliver.subscribe._PUT_OFF_MAX", 1)
        core = holding(*self.TOPICS)
        fields = {"receive_maximum": 2, **KEPT}
        for client_id in "ab":
            wire = core.connect(client_id, **fields)
            wire.subscribe("#")
            wire.drop()
        found = {}
        for client_id in "ba":
            wire = core.connect(client_id, **fields)
            assert payloads(wire.take()) == ["t/0", "t/1"]
            found[client_id] = payloads(self.acknowledge(wire, 1, 2))
        assert found == {"a": ["t/2", "t/3"], "b": ["t/0", "t/1"]}

    def test_the_rest_of_a_session_that_ends_is_forgotten(self) -> None:
        core = holding(*self.TOPICS)
        wire = self.slow(core, **KEPT)
        wire.subscribe("#")
        wire.drop()
        core.advance(100)
        session = core.broker.registry.create("c", "")
        assert list(core.broker.subscriptions.take_up(session)) == []

    def test_the_rest_of_qos_0_is_lost_with_the_connection(self) -> None:
        core = holding(*self.TOPICS)
        wire = core.connect("c", **KEPT)
        wire.client.pause_writing()
        wire.subscribe("#", qos=0)
        wire.drop()
        assert payloads(core.connect("c", **KEPT).take()) == []


def test_an_identifier_of_several_bytes_is_told_whole() -> None:
    core = Core()
    wire = core.connect("c")
    wire.subscribe("a", qos=0, identifier=268_435_455)
    core.connect("p").publish("a", "x")
    expected = Properties(subscription_identifiers=(268_435_455,))
    assert [packet.properties for packet in wire.take() if isinstance(packet, Publish)] == [
        expected
    ]


def allowing(*lines: str) -> Access:
    return Access(None, Acl.parse([*lines, "topic write #"], PurePath("/acl")), None)


class TestWithdrawnRights:
    """What a client may not subscribe to any more, though it has that subscription."""

    @pytest.mark.parametrize("text", ["a/#", "$share/g/a/#"])
    @pytest.mark.parametrize("fields", [{}, KEPT])
    def test_the_same_filter_again_is_refused_and_changes_nothing(
        self, text: str, fields: dict[str, Any]
    ) -> None:
        core = holding("a/1", access=allowing("topic readwrite a/#", "topic read b/#"))
        wire = core.connect("c", **fields)
        wire.subscribe(text, qos=0, identifier=7)
        before = dict(core.broker.registry.sessions["c"].subscriptions)
        core.broker.use_access(allowing("topic read b/#"))
        again = Subscribe(
            packet_id=2,
            subscriptions=(Subscription(filter=TopicFilter.parse(text), qos=2),),
        )
        assert wire.exchange(again) == [SubAck(packet_id=2, reasons=(Reason.NOT_AUTHORIZED,))]
        assert core.broker.registry.sessions["c"].subscriptions == before
        core.connect("p").publish("a/1", "secret")
        assert wire.take() == []

    def test_others_of_the_packet_are_taken(self) -> None:
        core = Core(access=allowing("topic read a/#", "topic read b/#"))
        wire = core.connect("c")
        wire.subscribe("a/#", "b/#", qos=0)
        core.broker.use_access(allowing("topic read b/#"))
        assert reasons_of(wire, "b/#", "a/#", "b/1") == (
            Reason.GRANTED_QOS_0,
            Reason.NOT_AUTHORIZED,
            Reason.GRANTED_QOS_0,
        )

    def test_one_that_came_back_is_refused_too_and_gets_nothing(self) -> None:
        core = Core(access=allowing("topic read a/#"))
        wire = core.connect("c", **KEPT)
        wire.subscribe("a/#", qos=1)
        wire.drop()
        core.broker.use_access(allowing("topic read b/#"))
        core.connect("p").publish("a/1", "secret", qos=1, packet_id=1)
        wire = core.connect("c", **KEPT)
        assert (payloads(wire.take()), reasons_of(wire, "a/#")) == ([], (Reason.NOT_AUTHORIZED,))

    def test_what_was_withdrawn_can_be_unsubscribed_from(self) -> None:
        core = Core(access=allowing("topic read a/#"))
        wire = core.connect("c")
        wire.subscribe("a/#", qos=1)
        core.broker.use_access(allowing("topic read b/#"))
        assert unsubscribe(wire, "a/#") == []
        assert core.broker.registry.subscription_count == 0

    def test_a_filter_that_there_is_may_be_too_much_and_is_taken_again(self) -> None:
        core = Core(subscriptions_max=1)
        wire = core.connect("c")
        assert reasons_of(wire, "a", "b") == (Reason.GRANTED_QOS_0, Reason.QUOTA_EXCEEDED)
        assert reasons_of(wire, "a") == (Reason.GRANTED_QOS_0,)
