from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from siltstone.broker.publish import rules as store_rules
from siltstone.broker.publish.interest import Interest
from siltstone.broker.publish.rules import NOTHING_STORED, StoreRules, asks_for_interest
from siltstone.broker.settings.storage import StoreRule
from siltstone.mqtt.publish import PublishBatch
from siltstone.topic.grammar import TopicFilter


def batch_of(*topics: bytes) -> PublishBatch:
    batch = PublishBatch()
    for number, topic in enumerate(topics):
        batch.topics.append(topic)
        batch.values.append(b"%d" % number)
        batch.flags.append(1)
        batch.packet_ids.append(100 + number)
    return batch


def rows(parts: dict[Any, PublishBatch]) -> dict[Any, list[tuple[bytes, bytes, int]]]:
    return {
        durability: list(zip(part.topics, part.values, part.packet_ids, strict=True))
        for durability, part in parts.items()
    }


def rules_of(*rules: StoreRule) -> StoreRules:
    return StoreRules(rules, Interest(is_asked=False))


def durability(rules: StoreRules, topic: bytes) -> Any:
    """Return what a message of QoS 1 has."""
    return next(iter(rules.split(batch_of(topic))))


def test_without_rules_everything_is_synced_and_the_batch_stays_whole() -> None:
    rules = rules_of()
    batch = batch_of(b"a", b"b")
    assert durability(rules, b"a") == "synced"
    assert rules.split(batch) == {"synced": batch}


def test_the_first_rule_that_matches_decides_and_the_rest_is_synced() -> None:
    rules = rules_of(
        StoreRule(filter="log/#", store="never"),
        StoreRule(filter="log/audit", durability="written"),
        StoreRule(filter="+/fast", durability="none"),
    )
    topics = (b"log/audit", b"log", b"a/fast", b"log/fast", b"a/slow", b"$x/fast")
    assert [durability(rules, topic) for topic in topics] == [
        None,
        None,
        "none",
        None,
        "synced",
        "synced",
    ]


def test_what_may_never_be_stored_has_no_durability_whatever_the_rule_says() -> None:
    rules = rules_of(StoreRule(filter="a", store="never", durability="written"))
    assert durability(rules, b"a") is None


def test_what_is_stored_of_a_batch_stays_in_order_with_the_strongest_durability() -> None:
    rules = rules_of(
        StoreRule(filter="n/#", store="never"),
        StoreRule(filter="w", durability="written"),
        StoreRule(filter="0", durability="none"),
    )
    parts = rules.split(batch_of(b"w", b"a", b"n/1", b"0", b"w", b"n/2"))
    assert rows(parts) == {
        "synced": [(b"w", b"0", 100), (b"a", b"1", 101), (b"0", b"3", 103), (b"w", b"4", 104)],
        None: [(b"n/1", b"2", 102), (b"n/2", b"5", 105)],
    }
    assert [*rules.split(batch_of(b"0", b"w", b"0"))] == ["written"]
    assert [*rules.split(batch_of(b"0", b"n/1"))] == ["none", None]


def test_a_batch_of_one_durability_is_not_copied() -> None:
    rules = rules_of(StoreRule(filter="w/#", durability="written"))
    batch = batch_of(b"w/1", b"w/2")
    assert rules.split(batch) == {"written": batch}


def test_an_empty_batch_has_no_parts() -> None:
    assert rules_of(StoreRule(filter="w")).split(PublishBatch()) == {}


class CountingRules(StoreRules):
    """Rules that note for which topics they were looked through."""

    def __init__(self, rules: Sequence[StoreRule]) -> None:
        super().__init__(rules, Interest(is_asked=False))
        self.sought: list[bytes] = []

    def rule(self, topic: bytes) -> StoreRule:
        self.sought.append(topic)
        return super().rule(topic)


def test_rules_are_looked_through_once_for_each_topic() -> None:
    rules = CountingRules((StoreRule(filter="w/+", durability="written"),))
    for _ in range(3):
        rules.split(batch_of(b"w/1", b"s/1", b"w/1"))
    assert rules.sought == [b"w/1", b"s/1"]


def test_what_is_remembered_of_topics_is_bounded_and_forgetting_changes_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_rules, "_REMEMBERED_MAX", 2)
    rules = CountingRules((StoreRule(filter="w/+", durability="written"),))
    topics = (b"w/1", b"s/1", b"w/2", b"w/1", b"s/1", b"s/1")
    assert [durability(rules, topic) for topic in topics] == [
        "written",
        "synced",
        "written",
        "written",
        "synced",
        "synced",
    ]
    # The third topic makes it forget the first two, and the next but one again.
    assert rules.sought == [b"w/1", b"s/1", b"w/2", b"w/1", b"s/1"]


FLAGS = (0, 1, 2)


@pytest.mark.parametrize("policy", ["subscribed", "offline"])
def test_a_policy_asks_who_is_there_at_that_moment(policy: Any) -> None:
    interest = Interest(is_asked=True)
    rules = StoreRules((StoreRule(filter="a/#", store=policy, durability="written"),), interest)
    seen = []
    topic_filter = TopicFilter.parse("a/1")
    acts: list[Callable[[], None]] = [
        lambda: None,
        lambda: interest.come(topic_filter),
        lambda: interest.miss(topic_filter, 1),
        lambda: interest.forget(topic_filter, 1),
        lambda: interest.go(topic_filter),
    ]
    for act in acts:
        act()
        batch = batch_of(b"a/1", b"a/1", b"a/1")
        batch.flags = [*FLAGS]
        parts = rules.split(batch)
        seen.append([flags for part in [parts.get("written")] if part for flags in part.flags])
        assert durability(rules, b"b") == "synced"
    stored_to_present = list(FLAGS) if policy == "subscribed" else []
    stored_to_away = list(FLAGS) if policy == "subscribed" else [1, 2]
    assert seen == [[], stored_to_present, stored_to_away, stored_to_present, []]


def test_only_rules_that_depend_on_sessions_ask_for_them() -> None:
    asking = [
        asks_for_interest([StoreRule(filter="a", store=store)])
        for store in ("always", "subscribed", "offline", "never")
    ]
    leaving = [
        rules_of(StoreRule(filter="a", store=store)).leaves_out
        for store in ("always", "subscribed", "offline", "never")
    ]
    assert (asking, leaving) == ([False, True, True, False], [False, True, True, True])


def test_a_broker_without_a_store_stores_nothing() -> None:
    rules = StoreRules((), Interest(is_asked=False), NOTHING_STORED)
    topics = (b"a", b"$SYS/x", b"$remote/a", b"$", b"/")
    assert [durability(rules, topic) for topic in topics] == [None] * len(topics)
    assert rules.leaves_out


@pytest.mark.parametrize("rules", [(), (StoreRule(filter="a", durability="written"),)])
def test_a_batch_without_messages_has_no_parts(rules: Sequence[StoreRule]) -> None:
    assert StoreRules(rules, Interest(is_asked=False)).split(PublishBatch()) == {}
