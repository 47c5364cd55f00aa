from __future__ import annotations

from siltstone.broker.publish.internal import publish_here
from siltstone.broker.settings.storage import StoreRule
from siltstone.errors import SiltstoneError
from siltstone.mqtt.packets import Publish, Subscribe, Subscription
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import Core, message, over_quota
from tests.support.durable_core import DurableCore
from tests.support.links import batch_of
from tests.support.memory_core import MemoryCore


def publish(core: Core, *messages: tuple[str, bytes, int]) -> list[Exception | None]:
    """Publish as a bridge does; return where the outcome goes."""
    outcomes: list[Exception | None] = []
    publish_here(core.broker, b"bridge:peer", batch_of(*messages), outcomes.append)
    core.run()
    return outcomes


def test_a_batch_is_done_when_the_store_has_all_of_it() -> None:
    core = Core(automatic=False)
    outcomes = publish(core, ("a", b"1", 1), ("b", b"2", 5))
    assert outcomes == []
    core.settle()
    core.run()
    assert outcomes == [None]


def test_subscribers_get_it_as_they_get_any_message() -> None:
    core = Core()
    wire = core.connect("c")
    wire.send(Subscribe(packet_id=1, subscriptions=(Subscription(filter=TopicFilter.parse("a")),)))
    assert publish(core, ("a", b"1", 0)) == [None]
    assert [packet.payload for packet in wire.take() if isinstance(packet, Publish)] == [b"1"]


def test_what_is_not_stored_by_the_rules_is_done_at_once() -> None:
    core = Core(rules=[StoreRule(filter="#", store="never")])
    assert publish(core, ("a", b"1", 1)) == [None]


def test_an_error_of_the_store_is_told_once() -> None:
    core = Core(automatic=False)
    outcomes = publish(core, ("a", b"1", 1))
    error = over_quota()
    core.settle(error)
    core.run()
    assert outcomes == [error]


def test_more_retained_messages_than_there_may_be_are_an_error() -> None:
    core = Core(retained_messages_max=0)
    [outcome] = publish(core, ("a", b"1", 5))
    assert isinstance(outcome, SiltstoneError)


TOPICS = ("$remote/a", "$SYS/a", "$", "a")


def test_topics_of_the_server_are_for_a_broker_without_a_store_as_all_others_are() -> None:
    core = MemoryCore()
    wire = core.connect("c", clean_start=False, session_expiry_interval=100)
    wire.subscribe(*TOPICS)
    for topic in TOPICS:
        assert publish(core, (topic, b"1", 5)) == [None]
    assert [packet.topic for packet in wire.take() if isinstance(packet, Publish)] == [
        topic.encode() for topic in TOPICS
    ]
    # The state topics of bridges, and all others under $SYS, are told anew after a restart.
    wire = core.restarted().connect("d")
    assert wire.subscribe("$remote/a", "$", "a") == [
        message(topic, "1", 1, number, retain=True)
        for number, topic in enumerate(("$remote/a", "$", "a"), start=1)
    ]


def test_a_broker_with_durable_sessions_stores_them() -> None:
    core = DurableCore()
    try:
        wire = core.connect("c", clean_start=False, session_expiry_interval=100)
        wire.subscribe(*TOPICS)
        wire.drop()
        for topic in TOPICS:
            assert publish(core, (topic, b"1", 1)) == [None]
        wire = core.connect("c", clean_start=False, session_expiry_interval=100)
        assert [packet.topic for packet in wire.take() if isinstance(packet, Publish)] == [
            topic.encode() for topic in TOPICS
        ]
    finally:
        core.close()
