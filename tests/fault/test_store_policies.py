"""What is written of a message, what is sent again, how much waits: by policy, over restarts."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from siltstone.broker.control.sys_topics import SysTopics
from siltstone.broker.settings.storage import SessionSettings, StoreRule
from siltstone.mqtt.packets import Disconnect, PubAck, Unsubscribe
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import Wire, message
from tests.support.durable_core import DurableCore
from tests.support.group_core import (
    acknowledge,
    come,
    consume,
    group_core,
    join,
    make_core,
    publish,
    taken,
    values,
)

OFFLINE = [StoreRule(filter="t/#", store="offline")]
SUBSCRIBED = [StoreRule(filter="t/#", store="subscribed")]
POLICIES = {"always": [], "subscribed": SUBSCRIBED, "offline": OFFLINE}


def numbers(count: int, first: int = 0) -> list[str]:
    return [str(number) for number in range(first, first + count)]


def leave(wire: Wire, *, polite: bool = True) -> None:
    if polite:
        wire.send(Disconnect())
    else:
        wire.drop()
    wire.core.run()


def look(core: DurableCore) -> None:
    """Let a second pass, in which every session is looked after."""
    for _ in range(10):
        core.advance(0.1)


# What is written.


@pytest.mark.parametrize("polite", [True, False])
@pytest.mark.parametrize(
    ("message_has_qos", "subscription_stands", "subscription_has_qos", "is_away"),
    [*product([False, True], repeat=4)],
)
def test_offline_writes_only_what_somebody_misses(
    message_has_qos: bool,
    subscription_stands: bool,
    subscription_has_qos: bool,
    is_away: bool,
    polite: bool,
) -> None:
    with group_core(rules=OFFLINE) as core:
        wire = join(core, "a", "t/#", qos=int(subscription_has_qos))
        if not subscription_stands:
            wire.exchange(Unsubscribe(packet_id=9, filters=(TopicFilter.parse("t/#"),)))
        leave(wire, polite=polite)
        if not is_away:
            wire = come(core, "a")
        publish(core, "m", qos=int(message_has_qos))
        is_written = message_has_qos and subscription_stands and subscription_has_qos and is_away
        assert core.stored() == ([b"m"] if is_written else [])
        if not is_away:
            # Who is there gets it from memory.
            assert values(wire) == (["m"] if subscription_stands else [])


@pytest.mark.parametrize(("stands", "has_qos", "is_away"), [*product([False, True], repeat=3)])
def test_subscribed_writes_what_a_durable_session_wants(
    stands: bool, has_qos: bool, is_away: bool
) -> None:
    with group_core(rules=SUBSCRIBED) as core:
        volatile = join(core, "v", "t/#", durable=False)
        wire = join(core, "a", "t/#" if stands else "u", qos=int(has_qos))
        if is_away:
            leave(wire)
        publish(core, "m")
        assert core.stored() == ([b"m"] if stands else [])
        assert values(volatile) == ["m"]
        if stands and not is_away:
            assert values(wire) == ["m"]


def test_a_policy_asks_whether_anybody_misses_a_message_not_everybody() -> None:
    with group_core(rules=OFFLINE) as core:
        there, away = join(core, "a", "t/#"), join(core, "b", "t/1")
        leave(away)
        publish(core, "1")
        publish(core, "2", topic="t/2")
        assert (core.stored(), values(there), values(come(core, "b"))) == (
            [b"1"],
            ["1", "2"],
            ["1"],
        )


def test_interest_in_a_session_that_was_dropped_or_has_expired_is_gone() -> None:
    with group_core(rules=OFFLINE) as core:
        wire = core.connect("a", clean_start=False, session_expiry_interval=10)
        wire.subscribe("t/#", qos=1)
        leave(wire)
        leave(join(core, "b", "t/#"))
        come(core, "b", durable=False)
        for _ in range(12):
            core.advance(1)
        publish(core, "1")
        assert (core.stored(), len(core.broker.interest)) == ([], 0)


def test_what_a_session_misses_is_known_after_a_crash() -> None:
    core = make_core(rules=OFFLINE)
    join(core, "a", "t/#")
    core = core.crash()
    publish(core, "1")
    assert (core.stored(), consume(come(core, "a"))) == ([b"1"], ["1"])
    look(core)
    publish(core, "2")
    assert core.stored() == [b"1"]
    core.close()


def test_what_comes_while_a_session_catches_up_comes_behind_what_it_missed() -> None:
    with group_core(rules=OFFLINE, inflight_max=1) as core:
        leave(join(core, "a", "t/#"))
        before = numbers(400)
        publish(core, *before)
        wire = come(core, "a", window=1)
        publish(core, "live")
        assert consume(wire) == [*before, "live"]
        look(core)
        publish(core, "x")
        assert (values(wire), core.stored()[-1]) == (["x"], b"live")


# What is sent again.


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("left_before_start", "has_qos", "is_kept"), [*product([False, True], repeat=3)]
)
def test_what_was_missed_is_sent_once_to_who_comes_back_to_its_session(
    policy: str, left_before_start: bool, has_qos: bool, is_kept: bool
) -> None:
    core = make_core(rules=POLICIES[policy])
    leave(join(core, "a", "t/#", qos=int(has_qos)))
    publish(core, "1")
    if left_before_start:
        core = core.crash()
        publish(core, "2")
    expected = (["1", "2"] if left_before_start else ["1"]) if has_qos and is_kept else []
    wire = come(core, "a", durable=is_kept)
    assert consume(wire) == expected
    # Whether it subscribes again or not.
    assert wire.subscribe("t/#", qos=int(has_qos)) == []
    leave(wire)
    assert consume(come(core, "a")) == []
    core.close()


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("polite", [True, False])
def test_what_was_missed_in_three_runs_is_there_in_the_fourth(policy: str, polite: bool) -> None:
    core = make_core(rules=POLICIES[policy])
    first = core.durables.run
    wire = join(core, "a", "t/#")
    if polite:
        leave(wire)
        publish(core, "0")
    for run in (1, 2, 3):
        core = core.crash()
        assert core.durables.run == first + run
        saved = core.peek("a")
        assert saved is not None
        # Of the run in which it was connected last.
        assert (saved.run, saved.connected, saved.unclean) == (first, False, not polite)
        publish(core, str(run))
    assert consume(come(core, "a")) == numbers(4 if polite else 3, 0 if polite else 1)
    saved = core.peek("a")
    assert saved is not None
    assert saved.run == first + 3
    core.close()


def test_several_filters_of_one_packet_are_each_kept_and_each_dropped() -> None:
    core = make_core()
    wire = come(core, "a")
    wire.subscribe("t/1", "t/2", "u/+", qos=1)
    leave(wire)
    core = core.crash()
    for topic in ("t/1", "t/2", "u/x", "u"):
        publish(core, topic, topic=topic)
    wire = come(core, "a")
    assert consume(wire) == ["t/1", "t/2", "u/x"]
    filters = tuple(TopicFilter.parse(text) for text in ("t/2", "u/+"))
    wire.exchange(Unsubscribe(packet_id=9, filters=filters))
    core = core.crash()
    for topic in ("t/1", "t/2", "u/x"):
        publish(core, topic, topic=topic)
    assert consume(come(core, "a")) == ["t/1"]
    core.close()


# How much waits.


def missed(core: DurableCore) -> list[str]:
    """Return what a session finds that missed ten messages, the number of each as long as two."""
    leave(join(core, "a", "t/#"))
    publish(core, *numbers(10, 10))
    return consume(come(core, "a"))


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, numbers(10, 10)),
        ({"backlog_messages_max": 3}, numbers(3, 17)),
        ({"backlog_bytes_max": 8}, numbers(4, 16)),
        ({"backlog_bytes_max": 7}, numbers(3, 17)),
        ({"backlog_messages_max": 3, "backlog_bytes_max": 4}, numbers(2, 18)),
        ({"backlog_messages_max": 3, "backlog_policy": "drop-new"}, numbers(3, 10)),
        ({"backlog_bytes_max": 7, "backlog_policy": "drop-new"}, numbers(3, 10)),
        ({"backlog_messages_max": 10}, numbers(10, 10)),
        ({"backlog_messages_max": 1, "backlog_bytes_max": 1}, []),
    ],
)
def test_a_session_finds_no_more_than_its_limits_allow_and_the_rest_is_counted(
    limits: dict[str, Any], expected: list[str]
) -> None:
    with group_core(sessions=limits) as core:
        assert missed(core) == expected
        look(core)
        saved = core.peek("a")
        assert saved is not None
        dropped = 10 - len(expected)
        topics = SysTopics(core.broker).values(1.0)
        assert (saved.dropped, topics[b"publish/messages/dropped"]) == (dropped, str(dropped))
        core.broker.clients["a"].end(Disconnect().reason)
        core.run()
        topics = SysTopics(core.broker).values(1.0)
        assert topics[b"publish/messages/dropped"] == str(dropped)


@pytest.mark.parametrize("policy", ["drop-old", "drop-new"])
def test_only_what_the_session_would_get_counts_against_its_limits(policy: str) -> None:
    limits = {"backlog_messages_max": 3, "backlog_policy": policy}
    with group_core(sessions=limits) as core:
        wire = join(core, "a", "t/#")
        publish(core, "sent")
        # In flight when its client goes: it comes again, and is not part of the backlog.
        assert values(wire) == ["sent"]
        leave(wire)
        publish(core, *numbers(5), qos=0)
        publish(core, *numbers(5), topic="other")
        publisher = core.connect("p")
        publisher.publish("t/1", "expired", 1, 1, message_expiry_interval=1)
        publish(core, "a", "b", "c")
        core.advance(2)
        assert consume(come(core, "a")) == ["sent", "a", "b", "c"]


def test_what_comes_when_the_client_is_there_is_no_backlog() -> None:
    with group_core(sessions={"backlog_messages_max": 2}) as core:
        leave(join(core, "a", "t/#"))
        publish(core, *numbers(4))
        wire = come(core, "a")
        publish(core, *numbers(4, 4))
        assert consume(wire) == numbers(6, 2)


@pytest.mark.parametrize("more", [{}, {"backlog_messages_max": 1}])
def test_what_is_too_old_is_not_delivered_and_is_counted(more: dict[str, Any]) -> None:
    with group_core(sessions={"backlog_age_max": 60.0, **more}) as core:
        leave(join(core, "a", "t/#"))
        publish(core, "old", "old too")
        core.advance(50)
        publish(core, "new")
        core.advance(20)
        assert consume(come(core, "a")) == ["new"]
        look(core)
        saved = core.peek("a")
        assert saved is not None
        assert saved.dropped == 2


def test_what_was_dropped_is_counted_over_all_connections() -> None:
    core = make_core(sessions={"backlog_messages_max": 3})
    assert missed(core) == numbers(3, 17)
    look(core)
    core = core.crash()
    assert missed(core) == numbers(3, 17)
    look(core)
    saved = core.peek("a")
    assert saved is not None
    assert saved.dropped == 14
    core.close()


def test_a_backlog_is_dropped_when_it_was_acknowledged_and_not_before() -> None:
    core = make_core()
    leave(join(core, "a", "t/#"))
    publish(core, "1", "2")
    wire = come(core, "a")
    first, _ = taken(wire)
    acknowledge(wire, [first])
    leave(wire)
    core = core.crash()
    again = come(core, "a")
    assert [(packet.payload, packet.dup) for packet in taken(again)] == [(b"2", True)]
    core.close()


def test_sessions_are_kept_and_have_no_limits_unless_told_otherwise() -> None:
    assert SessionSettings().model_dump() == {
        "durable": True,
        "backlog_messages_max": 0,
        "backlog_bytes_max": 0,
        "backlog_age_max": 0.0,
        "backlog_policy": "drop-old",
    }


def test_a_take_over_is_no_absence() -> None:
    with group_core(rules=OFFLINE) as core:
        first = join(core, "a", "t/#")
        second = come(core, "a")
        assert first.is_closed
        publisher = core.connect("p")
        assert publisher.exchange(message("t/1", "m", 1, 1)) == [PubAck(packet_id=1)]
        assert (values(second), core.stored()) == (["m"], [])
