"""The groups of a hub's feeds, found by their filters and by topic. Compiled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from siltstone.feed.pool import Group
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.matcher import Matcher

# Beyond this many topics the cache of who wants them begins anew.
_TOPICS_MAX: Final = 100_000


class Groups:
    """One group for each set of filters that any feed has."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._groups: dict[frozenset[tuple[bytes, ...]], Group] = {}
        self._matcher = Matcher()
        self._wanting: dict[bytes, tuple[Group, ...]] = {}
        self._combinations: dict[tuple[Group, ...], tuple[Group, ...]] = {}

    def all(self) -> list[Group]:
        """Return the groups there are."""
        return list(self._groups.values())

    def add_shard(self) -> None:
        """Make room for the live feeds of one more shard."""
        self._shards += 1
        for group in self._groups.values():
            group.live.append({})

    def join(self, filters: Iterable[TopicFilter]) -> Group:
        """Return the group of these filters, with one member more."""
        by_levels = {topic_filter.levels: topic_filter for topic_filter in filters}
        key = frozenset(by_levels)
        group = self._groups.get(key)
        if group is None:
            group = Group(tuple(by_levels.values()), self._shards)
            self._groups[key] = group
            for levels in by_levels:
                self._matcher.put(levels, group, group)
            self._forget_topics()
        group.members += 1
        return group

    def leave(self, group: Group) -> None:
        """Take a member away; the last one takes the group with it."""
        group.members -= 1
        if group.members:
            return
        levels = [topic_filter.levels for topic_filter in group.filters]
        del self._groups[frozenset(levels)]
        for each in levels:
            self._matcher.remove(each, group)
        self._forget_topics()

    def who_wants(self, topic: bytes) -> tuple[Group, ...]:
        """Return the groups that want a topic; topics with the same groups have the same tuple."""
        known = self._wanting.get(topic)
        if known is not None:
            return known
        if len(self._wanting) >= _TOPICS_MAX:
            self._forget_topics()
        groups: dict[Group, None] = {}
        for value in self._matcher.match(topic):
            assert isinstance(value, Group)
            groups[value] = None
        combination = tuple(groups)
        combination = self._combinations.setdefault(combination, combination)
        self._wanting[topic] = combination
        return combination

    def _forget_topics(self) -> None:
        if self._wanting:
            self._wanting = {}
            self._combinations = {}
