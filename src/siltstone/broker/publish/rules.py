"""The rules that decide which messages are stored: defined by filter, cached by topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from siltstone.broker.publish.append import stronger
from siltstone.broker.publish.interest import Interest
from siltstone.broker.settings.storage import StoreRule
from siltstone.mqtt.flow import pick
from siltstone.mqtt.publish import PublishBatch
from siltstone.session.policy import must_write
from siltstone.store.database import Durability
from siltstone.topic.grammar import TopicFilter

_REMEMBERED_MAX: Final = 100_000
_ALWAYS: Final = StoreRule(filter="#")
# The default of a broker without a store. It is not a filter that topics are compared with: no
# filter matches all topics, because "#" does not match those that begin with $.
NOTHING_STORED: Final = StoreRule(filter="#", store="never")


class StoreRules:
    """Decides the durability of each message; None means that it is not stored.

    `default` applies to topics that no rule matches.
    """

    def __init__(
        self, rules: Sequence[StoreRule], interest: Interest, default: StoreRule = _ALWAYS
    ) -> None:
        self._rules = [(TopicFilter.parse(rule.filter), rule) for rule in rules]
        self._interest = interest
        self._known: dict[bytes, StoreRule] = {}
        # Whether there are messages that the rules may not store.
        self.leaves_out = any(rule.store != "always" for rule in (*rules, default))
        # Whether every message is stored and synced before it is acknowledged.
        self.syncs_all = all(
            rule.store == "always" and rule.durability == "synced" for rule in (*rules, default)
        )
        self._default = default

    def rule(self, topic: bytes) -> StoreRule:
        """Return the first rule that matches, or the default."""
        for topic_filter, rule in self._rules:
            if topic_filter.matches(topic):
                return rule
        return self._default

    def split(self, batch: PublishBatch) -> dict[Durability | None, PublishBatch]:
        """Return the stored part of a batch, by its durability, and the other part, by None.

        Each part is in order. Empty parts are left out. Without rules, the default decides for all.

        All stored messages have one durability, the strongest that any of them requires: with
        separate appends, messages of one publisher would change their order.
        """
        if not batch.topics:
            return {}
        if not self._rules:
            return {None if self._default.store == "never" else self._default.durability: batch}
        stored: list[int] = []
        left_out: list[int] = []
        strongest: Durability = "none"
        for index, topic in enumerate(batch.topics):
            rule = self._known.get(topic)
            if rule is None:
                if len(self._known) >= _REMEMBERED_MAX:
                    self._known.clear()
                rule = self._known[topic] = self.rule(topic)
            durability = self._durability(rule, topic, batch.flags[index] & 3)
            if durability is None:
                left_out.append(index)
            else:
                stored.append(index)
                strongest = stronger(strongest, durability)
        if not stored:
            return {None: batch} if left_out else {}
        if not left_out:
            return {strongest: batch}
        return {strongest: pick(batch, stored), None: pick(batch, left_out)}

    def _durability(self, rule: StoreRule, topic: bytes, qos: int) -> Durability | None:
        if rule.store == "always":
            return rule.durability
        is_wanted, is_missed = self._interest.of(topic)
        is_written = must_write(rule.store, qos=qos, is_wanted=is_wanted, is_missed=is_missed)
        return rule.durability if is_written else None


def asks_for_interest(rules: Sequence[StoreRule]) -> bool:
    """Return whether any rule depends on subscriptions."""
    return any(rule.store in ("subscribed", "offline") for rule in rules)
