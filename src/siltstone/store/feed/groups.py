"""The groups of a hub's feeds, found by filters and by topic. Compiled."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from siltstone.store.feed.pool import FilterGroup, Place
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.matcher import Matcher

# With more topics than this, the cache of the groups of each topic is cleared.
_TOPICS_MAX: Final = 100_000


class FilterGroups:
    """One group for each set of filters that a feed has."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._groups: dict[frozenset[tuple[bytes, ...]], FilterGroup] = {}
        self._places: dict[FilterGroup, Place] = {}
        self._matcher = Matcher()
        self._wanting: dict[bytes, tuple[FilterGroup, ...]] = {}
        self._combinations: dict[tuple[FilterGroup, ...], tuple[FilterGroup, ...]] = {}

    def all(self) -> list[FilterGroup]:
        """Return all groups."""
        return list(self._groups.values())

    def add_shard(self) -> None:
        """Add space for the live feeds of one more shard."""
        self._shards += 1
        for group in self._groups.values():
            group.live.append({})

    def join(self, filters: Iterable[TopicFilter]) -> FilterGroup:
        """Return the group of these filters, with one more member."""
        return self._join(self._group_of(filters), None)

    def follow(self, former: FilterGroup, filters: Iterable[TopicFilter]) -> FilterGroup:
        """Return the group of new filters for a member of `former`; the caller then leaves
        `former`.

        If it is the only member, the cost depends only on the filters that differ.
        """
        return self._join(self._group_of(filters), former if former.members == 1 else None)

    def _group_of(self, filters: Iterable[TopicFilter]) -> FilterGroup:
        group = FilterGroup({each.levels: each for each in filters}, self._shards)
        return self._groups.get(group.key) or group

    def _join(self, group: FilterGroup, former: FilterGroup | None) -> FilterGroup:
        """Add a member to a group; a new group takes the place of the former one."""
        if group.members == 0:
            place = Place(group)
            filed: frozenset[tuple[bytes, ...]] = frozenset()
            if former is not None:
                filed = former.key
                del self._groups[filed]
                place = self._places.pop(former)
                place.group = group
            self._groups[group.key] = group
            self._places[group] = place
            for levels in group.key - filed:
                self._matcher.put(levels, place, place)
            for levels in filed - group.key:
                self._matcher.remove(levels, place)
            self._forget_topics()
        group.members += 1
        return group

    def leave(self, group: FilterGroup) -> None:
        """Remove a member; with the last one the group is removed, unless another group has its
        place.
        """
        group.members -= 1
        if group.members or group not in self._places:
            return
        place = self._places.pop(group)
        del self._groups[group.key]
        for levels in group.key:
            self._matcher.remove(levels, place)
        self._forget_topics()

    def who_wants(self, topic: bytes) -> tuple[FilterGroup, ...]:
        """Return the groups that want a topic; topics with the same groups share one tuple."""
        known = self._wanting.get(topic)
        if known is not None:
            return known
        if len(self._wanting) >= _TOPICS_MAX:
            self._forget_topics()
        groups: dict[FilterGroup, None] = {}
        for value in self._matcher.match(topic):
            assert isinstance(value, Place)
            groups[value.group] = None
        combination = tuple(groups)
        combination = self._combinations.setdefault(combination, combination)
        self._wanting[topic] = combination
        return combination

    def _forget_topics(self) -> None:
        if self._wanting:
            self._wanting = {}
            self._combinations = {}
