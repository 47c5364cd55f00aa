"""SUBSCRIBE and UNSUBSCRIBE of sessions that outlive their connections."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from siltstone.broker.deliver.slices import SLICE_LEVELS
from siltstone.guard import contain
from siltstone.mqtt.packets import (
    Disconnect,
    Packet,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from siltstone.mqtt.reason import Reason
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import V3, Wire
from tests.support.durable_desk import (
    DurableDesk,
    Got,
    consume,
    durable_desk,
    got,
    leave,
    lose,
    news,
)

GRANTED = SubAck(packet_id=1, reasons=(Reason.GRANTED_QOS_1,))
DROPPED = UnsubAck(packet_id=2, reasons=(Reason.SUCCESS,))


@pytest.fixture
def desk() -> Iterator[DurableDesk]:
    with durable_desk() as made:
        yield made


def subscribe(*texts: str, qos: int = 1) -> Packet:
    subscriptions = [Subscription(filter=TopicFilter.parse(text), qos=qos) for text in texts]
    return Subscribe(packet_id=1, subscriptions=tuple(subscriptions))


def unsubscribe(*texts: str) -> Packet:
    return Unsubscribe(packet_id=2, filters=tuple(map(TopicFilter.parse, texts)))


def filters(desk: DurableDesk) -> list[str]:
    return [subscription.filter for subscription in desk.saved().subscriptions]


class TestAnswers:
    def test_suback_comes_when_the_subscription_is_on_disk(self, desk: DurableDesk) -> None:
        wire = desk.come()
        with desk.core.held():
            assert wire.exchange(subscribe("a")) == []
            assert filters(desk) == []
        assert (wire.take(), filters(desk)) == ([GRANTED], ["a"])

    def test_unsuback_comes_when_it_is_gone_from_it(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("a")
        with desk.core.held():
            assert wire.exchange(unsubscribe("a")) == []
            assert filters(desk) == ["a"]
        assert (wire.take(), filters(desk)) == ([DROPPED], [])

    def test_a_power_cut_before_suback_leaves_all_as_it_was(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("a")
        desk.core.hold()
        wire.exchange(subscribe("b"))
        desk.crash()
        assert filters(desk) == ["a"]

    def test_who_goes_before_the_answer_has_subscribed(self, desk: DurableDesk) -> None:
        wire = desk.come()
        with desk.core.held():
            wire.send(subscribe("a"))
            lose(wire)
        desk.core.run()
        assert filters(desk) == ["a"]

    def test_an_answer_that_is_too_large_ends_the_connection(self, desk: DurableDesk) -> None:
        wire = desk.come(maximum_packet_size=24)
        many = [str(number) for number in range(30)]
        assert wire.exchange(subscribe(*many)) == [Disconnect(reason=Reason.PACKET_TOO_LARGE)]

    def test_3_1_1_knows_one_failure(self) -> None:
        with durable_desk(topic_levels_max=2) as desk:
            wire = desk.come(version=V3)
            assert wire.exchange(subscribe("a", "a/b/c")) == [
                SubAck(packet_id=1, reasons=(Reason.GRANTED_QOS_1, Reason.UNSPECIFIED_ERROR))
            ]
            assert filters(desk) == ["a"]


class TestSubscribing:
    def test_each_filter_of_one_packet_is_kept_and_replayed(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("a", "b/+", "c/#", qos=1)
        lose(wire)
        desk.crash()
        for topic in ("a", "b/1", "c/1/2", "d"):
            desk.publish(topic, topic)
        assert consume(desk.come()) == [Got("a"), Got("b/1"), Got("c/1/2")]

    def test_several_are_dropped_with_one_packet(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("a", "b", "c", qos=1)
        wire.exchange(unsubscribe("a", "c", "x"))
        assert filters(desk) == ["b"]
        desk.crash()
        for topic in ("a", "b", "c"):
            desk.publish(topic, topic)
        assert consume(desk.come()) == [Got("b")]

    def test_older_messages_are_not_for_it(self, desk: DurableDesk) -> None:
        desk.publish("t", "before")
        wire = desk.come()
        wire.subscribe("t", qos=1)
        desk.publish("t", "behind")
        assert consume(wire) == [Got("behind")]

    @pytest.mark.parametrize("crashes", [False, True])
    def test_subscribing_again_repeats_nothing_and_loses_nothing(
        self, desk: DurableDesk, crashes: bool
    ) -> None:
        wire = desk.come()
        wire.subscribe("t", qos=1)
        desk.publish("t", "1")
        assert consume(wire) == [Got("1")]
        lose(wire)
        if crashes:
            desk.crash()
        desk.publish("t", "2", "3")
        wire = desk.come()
        found = wire.exchange(subscribe("t"))
        found.remove(GRANTED)
        wire.arrived.extend(found)
        assert consume(wire) == [Got("2"), Got("3")]
        desk.publish("t", "4")
        assert consume(wire) == [Got("4")]

    def test_what_is_in_flight_keeps_its_qos_when_that_changes(self, desk: DurableDesk) -> None:
        wire = desk.come(receive_maximum=1)
        wire.subscribe("t", qos=2)
        desk.publish("t", "1", "2", qos=2)
        assert news(wire) == [Got("1", 2)]
        wire.subscribe("t", qos=1)
        lose(wire)
        assert consume(desk.come()) == [Got("1", 2, dup=True), Got("2", 1)]

    def test_one_of_many_qos_is_delivered_once_with_the_highest(self, desk: DurableDesk) -> None:
        wire = desk.come()
        for text, qos in (("a/#", 0), ("a/+", 1), ("a/b", 2)):
            wire.subscribe(text, qos=qos)
        desk.publish("a/b", "x", qos=2)
        desk.publish("a/c", "y", qos=2)
        assert sorted(consume(wire)) == [Got("x", 2), Got("y", 1)]

    def test_it_goes_live_without_a_gap(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("t", qos=1)
        lose(wire)
        desk.publish("t", "1", "2")
        with desk.core.held():
            wire = desk.core.wire()
            wire.connect("s", clean_start=False, session_expiry_interval=100)
        desk.publish("t", "3")
        wire.arrived.extend(wire.take()[1:])
        assert consume(wire) == [Got("1"), Got("2"), Got("3")]


class TestUnsubscribing:
    def test_what_was_not_delivered_is_dropped(self, desk: DurableDesk) -> None:
        wire = desk.come(receive_maximum=1)
        wire.subscribe("a", "b", qos=1)
        desk.publish("a", "1", "2")
        desk.publish("b", "3")
        assert news(wire) == [Got("1")]
        wire.exchange(unsubscribe("a"))
        lose(wire)
        assert consume(desk.come()) == [Got("1", dup=True), Got("3")]

    def test_it_is_dropped_also_for_who_comes_back(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("t", qos=1)
        wire.exchange(unsubscribe("t"))
        desk.publish("t", "1")
        wire.subscribe("t", qos=1)
        desk.publish("t", "2")
        assert consume(wire) == [Got("2")]

    @pytest.mark.parametrize("crashes", [False, True])
    @pytest.mark.parametrize("qos", [1, 2])
    def test_mqtt_3_10_4_3_what_has_begun_is_finished(
        self, desk: DurableDesk, qos: int, crashes: bool
    ) -> None:
        wire = desk.come()
        wire.subscribe("t", qos=qos)
        desk.publish("t", "1", qos=qos)
        assert news(wire) == [Got("1", qos)]
        assert wire.exchange(unsubscribe("t")) == [DROPPED]
        if crashes:
            desk.crash()
        else:
            lose(wire)
        assert consume(desk.come()) == [Got("1", qos, dup=True)]
        desk.wait()
        assert (desk.saved().inflight, desk.saved().extra) == ((), ())

    def test_also_where_it_has_not_come_by_again_yet(self, desk: DurableDesk) -> None:
        wire = desk.come()
        wire.subscribe("t", qos=2)
        desk.publish("t", "1", qos=2)
        assert news(wire) == [Got("1", 2)]
        lose(wire)
        wire = desk.core.wire()
        with desk.core.held():
            wire.connect("s", clean_start=False, session_expiry_interval=100)
            wire.send(unsubscribe("t"))
        found = wire.take()[1:]
        assert DROPPED in found
        found.remove(DROPPED)
        assert got(found) == [Got("1", 2, dup=True)]


class TestRetained:
    def test_a_restored_subscription_is_not_sent_them_again(self, desk: DurableDesk) -> None:
        desk.publish("t", "kept", retain=True)
        wire = desk.come()
        wire.arrived.extend(wire.subscribe("t", qos=1))
        assert consume(wire) == [Got("kept")]
        leave(wire)
        desk.crash()
        assert news(desk.come()) == []

    def test_they_follow_the_answer_and_survive_in_flight(self, desk: DurableDesk) -> None:
        desk.publish("t", "kept", retain=True)
        wire = desk.come()
        with desk.core.held():
            assert wire.exchange(subscribe("t")) == []
        answer, *rest = wire.take()
        assert (answer, got(rest)) == (GRANTED, [Got("kept")])
        lose(wire)
        desk.crash()
        assert consume(desk.come()) == [Got("kept", dup=True)]

    def test_those_that_were_not_sent_yet_are_sent_to_the_next_connection(
        self, desk: DurableDesk
    ) -> None:
        for number in range(3):
            desk.publish(f"r/{number}", str(number), retain=True)
        wire = desk.come(receive_maximum=1)
        assert got(wire.subscribe("r/#", qos=1)) == [Got("0")]
        lose(wire)
        assert consume(desk.come()) == [Got("0", dup=True), Got("1"), Got("2")]


class TestMistakes:
    """Of ours, with one slice of many filters or behind it: the client is told, and comes again."""

    MANY = tuple(f"t/{number}" for number in range(2 * SLICE_LEVELS))

    def fail_at(
        self, patched: pytest.MonkeyPatch, owner: object, name: str, number: int
    ) -> list[str]:
        """Let a method fail when it is called for this time; return where its calls are noted."""
        real = getattr(owner, name)
        calls: list[str] = []

        def called(*args: Any, **options: Any) -> Any:
            calls.append(name)
            if len(calls) == number:
                raise RuntimeError("on purpose")
            return real(*args, **options)

        patched.setattr(owner, name, called)
        return calls

    def see_the_end(self, desk: DurableDesk, wire: Wire) -> None:
        """See that a client was told, and that it gets what it asks for when it comes again."""
        [last] = wire.take()
        assert isinstance(last, Disconnect)
        assert (last.reason, wire.is_closed) == (Reason.UNSPECIFIED_ERROR, True)
        core = desk.core
        assert (core.broker.is_settled, core.broker.clients) == (True, {})
        again = desk.come(clean_start=True)
        assert again.exchange(subscribe("t/1")) == [GRANTED]
        desk.publish("t/1", "x")
        assert news(again) == [Got("x")]

    @pytest.mark.parametrize("kind", ["subscribe", "unsubscribe"])
    @pytest.mark.parametrize("number", [2, 4])
    def test_in_a_later_slice(
        self, desk: DurableDesk, kind: str, number: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wire = desk.come()
        with monkeypatch.context() as patched:
            calls = self.fail_at(patched, desk.core.broker.subscriptions, kind, number)
            wire.send(subscribe(*self.MANY) if kind == "subscribe" else unsubscribe(*self.MANY))
            desk.core.run()
            assert len(calls) == number
        self.see_the_end(desk, wire)

    def test_in_the_first_slice(self, desk: DurableDesk, monkeypatch: pytest.MonkeyPatch) -> None:
        wire = desk.come()
        with monkeypatch.context() as patched:
            self.fail_at(patched, desk.core.broker.subscriptions, "subscribe", 1)
            # What the channel does.
            contain(lambda: wire.send(subscribe(*self.MANY)), wire.drop)
            desk.core.run()
        assert (wire.is_closed, desk.core.broker.is_settled) == (True, True)
        assert desk.come().exchange(subscribe("t/1")) == [GRANTED]

    def test_with_what_an_earlier_connection_has_subscribed_to(
        self, desk: DurableDesk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wire = desk.come()
        wire.send(subscribe(*self.MANY))
        wire.take()
        lose(wire)
        with monkeypatch.context() as patched:
            self.fail_at(patched, desk.core.broker.subscriptions, "restore", 2)
            wire = desk.core.wire()
            wire.connect("s", clean_start=False, session_expiry_interval=100)
            assert wire.is_closed
        assert desk.core.broker.is_settled
        assert desk.come().accepted is not None

    @pytest.mark.parametrize("name", ["when_kept", "send_retained"])
    def test_when_the_subscription_is_kept(
        self, desk: DurableDesk, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        desk.publish("t/1", "retained", retain=True)
        wire = desk.come()
        with monkeypatch.context() as patched:
            self.fail_at(patched, desk.core.broker.subscriptions, name, 1)
            wire.send(subscribe("t/1"))
            desk.core.run()
        assert (wire.is_closed, desk.core.broker.clients) == (True, {})
        assert isinstance(wire.take()[-1], Disconnect)

    def test_with_retained_messages_of_a_later_turn(
        self, desk: DurableDesk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for number in range(5):
            desk.publish(f"t/{number}", "x", retain=True)
        wire = desk.come()
        with monkeypatch.context() as patched:
            patched.setattr(desk.core.broker.subscriptions, "send_retained", lambda *_: True)
            wire.send(subscribe("t/+"))
            while desk.core.broker.clients and not wire.has_news:
                desk.core.shell.acts.popleft()()
                desk.core.flush_commits()
            self.fail_at(patched, desk.core.broker.subscriptions, "send_retained", 1)
            desk.core.run()
        assert (wire.is_closed, desk.core.broker.clients) == (True, {})
