from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from siltstone.broker import store_rules
from siltstone.broker.settings import StoreRule
from siltstone.broker.store_rules import StoreRules
from siltstone.database import Durability
from siltstone.mqtt.publish import PublishBatch


def batch_of(*topics: bytes) -> PublishBatch:
    batch = PublishBatch()
    for number, topic in enumerate(topics):
        batch.topics.append(topic)
        batch.payloads.append(b"%d" % number)
        batch.flags.append(1)
        batch.packet_ids.append(100 + number)
    return batch


def rows(parts: dict[Any, PublishBatch]) -> dict[Any, list[tuple[bytes, bytes, int]]]:
    return {
        durability: list(zip(part.topics, part.payloads, part.packet_ids, strict=True))
        for durability, part in parts.items()
    }


def test_without_rules_everything_is_synced_and_the_batch_stays_whole() -> None:
    rules = StoreRules(())
    batch = batch_of(b"a", b"b")
    assert rules.durability(b"a") == "synced"
    assert rules.split(batch) == {"synced": batch}


def test_the_first_rule_that_matches_decides_and_the_rest_is_synced() -> None:
    rules = StoreRules(
        (
            StoreRule(filter="log/#", store="never"),
            StoreRule(filter="log/audit", durability="written"),
            StoreRule(filter="+/fast", durability="none"),
        )
    )
    topics = (b"log/audit", b"log", b"a/fast", b"log/fast", b"a/slow", b"$x/fast")
    assert [rules.durability(topic) for topic in topics] == [
        None,
        None,
        "none",
        None,
        "synced",
        "synced",
    ]


def test_what_may_never_be_stored_has_no_durability_whatever_the_rule_says() -> None:
    rules = StoreRules((StoreRule(filter="a", store="never", durability="written"),))
    assert rules.durability(b"a") is None


def test_a_batch_is_split_by_durability_with_each_part_in_order() -> None:
    rules = StoreRules(
        (StoreRule(filter="n/#", store="never"), StoreRule(filter="w", durability="written"))
    )
    parts = rules.split(batch_of(b"w", b"a", b"n/1", b"b", b"w", b"n/2"))
    assert rows(parts) == {
        "written": [(b"w", b"0", 100), (b"w", b"4", 104)],
        "synced": [(b"a", b"1", 101), (b"b", b"3", 103)],
        None: [(b"n/1", b"2", 102), (b"n/2", b"5", 105)],
    }


def test_a_batch_of_one_durability_is_not_copied() -> None:
    rules = StoreRules((StoreRule(filter="w/#", durability="written"),))
    batch = batch_of(b"w/1", b"w/2")
    assert rules.split(batch) == {"written": batch}


def test_an_empty_batch_has_no_parts() -> None:
    assert StoreRules((StoreRule(filter="w"),)).split(PublishBatch()) == {}


class CountingRules(StoreRules):
    """Rules that note for which topics they were looked through."""

    def __init__(self, rules: Sequence[StoreRule]) -> None:
        super().__init__(rules)
        self.sought: list[bytes] = []

    def durability(self, topic: bytes) -> Durability | None:
        self.sought.append(topic)
        return super().durability(topic)


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
    parts = rules.split(batch_of(b"w/1", b"s/1", b"w/2", b"w/1", b"s/1", b"s/1"))
    assert rows(parts) == {
        "written": [(b"w/1", b"0", 100), (b"w/2", b"2", 102), (b"w/1", b"3", 103)],
        "synced": [(b"s/1", b"1", 101), (b"s/1", b"4", 104), (b"s/1", b"5", 105)],
    }
    # The third topic makes it forget the first two, and the next but one again.
    assert rules.sought == [b"w/1", b"s/1", b"w/2", b"w/1", b"s/1"]
