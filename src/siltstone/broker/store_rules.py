"""What is stored of which topic: rules by filter, remembered by topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from siltstone.broker.settings import StoreRule
from siltstone.database import Durability
from siltstone.mqtt.flow import pick
from siltstone.mqtt.publish import PublishBatch
from siltstone.topic.grammar import TopicFilter

_REMEMBERED_MAX: Final = 100_000


class StoreRules:
    """Says which durability a topic has; None is not stored at all."""

    def __init__(self, rules: Sequence[StoreRule]) -> None:
        self._rules: list[tuple[TopicFilter, Durability | None]] = [
            (
                TopicFilter.parse(rule.filter),
                None if rule.store == "never" else rule.durability,
            )
            for rule in rules
        ]
        self._known: dict[bytes, Durability | None] = {}

    def durability(self, topic: bytes) -> Durability | None:
        """Return what the first rule that matches says; everything else is synced."""
        for topic_filter, durability in self._rules:
            if topic_filter.matches(topic):
                return durability
        return "synced"

    def split(self, batch: PublishBatch) -> dict[Durability | None, PublishBatch]:
        """Return a batch by durability, each part in order; whole where there are no rules."""
        if not self._rules:
            return {"synced": batch}
        indexes: dict[Durability | None, list[int]] = {}
        for index, topic in enumerate(batch.topics):
            if topic not in self._known:
                if len(self._known) >= _REMEMBERED_MAX:
                    self._known.clear()
                self._known[topic] = self.durability(topic)
            indexes.setdefault(self._known[topic], []).append(index)
        if len(indexes) == 1:
            return dict.fromkeys(indexes, batch)
        return {durability: pick(batch, part) for durability, part in indexes.items()}
