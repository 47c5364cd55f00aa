"""The groups of a hub's feeds, found by filters and by topic. Compiled.

The filters of a feed are in one matcher with all others. Thousands of filters take long to put in
and to remove, so both can be done in parts: before a feed begins, and after it has ended. A group
without members is never found, whatever the matcher contains.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from siltstone.store.feed.pool import FilterGroup, GroupEntry, StagedFilters, plain_text
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.matcher import Matcher

# With more topics than this, the cache of the groups of each topic is cleared.
_TOPICS_MAX: Final = 100_000


class FilterGroups:
    """One group for each set of filters that a feed has."""

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._groups: dict[frozenset[str], FilterGroup] = {}
        self._places: dict[FilterGroup, GroupEntry] = {}
        self._matcher = Matcher()
        self._wanting: dict[bytes, tuple[FilterGroup, ...]] = {}
        self._combinations: dict[tuple[FilterGroup, ...], tuple[FilterGroup, ...]] = {}
        # The places of groups that are gone, each with filters to remove from the matcher.
        self._left: list[tuple[GroupEntry, list[TopicFilter]]] = []

    def all(self) -> list[FilterGroup]:
        """Return all groups."""
        return list(self._groups.values())

    def add_shard(self) -> None:
        """Add space for the live feeds of one more shard."""
        self._shards += 1
        for group in self._groups.values():
            group.live.append({})

    def join(
        self, filters: Iterable[TopicFilter], staged: StagedFilters | None = None
    ) -> FilterGroup:
        """Return the group of these filters, with one more member.

        Staged filters are in the matcher already, so they cost little. Staged filters that the
        group does not need stay there until `clear`.
        """
        group = self._group_of(filters)
        if staged is not None and group.members == 0:
            self._file(group, staged.place, staged.filters)
        elif staged is not None:
            self.unstage(staged)
        return self._join(group, None)

    def stage(self, staged: StagedFilters | None, filters: list[TopicFilter]) -> StagedFilters:
        """Put filters into the matcher for a feed that begins later; `staged` is None at first."""
        if staged is None:
            staged = StagedFilters(GroupEntry(FilterGroup((), self._shards)))
        for each in filters:
            self._matcher.put(each.levels, staged.place, staged.place)
            staged.filters[plain_text(each)] = each
        return staged

    def unstage(self, staged: StagedFilters) -> None:
        """Give up staged filters, whose feed does not begin; `clear` removes them."""
        self._left.append((staged.place, list(staged.filters.values())))

    def follow(self, former: FilterGroup, filters: Iterable[TopicFilter]) -> FilterGroup:
        """Return the group of new filters for a member of `former`; the caller then leaves
        `former`.

        If it is the only member, the cost depends only on the filters that differ.
        """
        return self._join(self._group_of(filters), former if former.members == 1 else None)

    def _group_of(self, filters: Iterable[TopicFilter]) -> FilterGroup:
        group = FilterGroup(filters, self._shards)
        return self._groups.get(group.key) or group

    def _join(self, group: FilterGroup, former: FilterGroup | None) -> FilterGroup:
        """Add a member to a group; a new group takes the place of the former one."""
        if group.members == 0 and group not in self._places:
            if former is None:
                self._file(group, GroupEntry(group), {})
            else:
                del self._groups[former.key]
                self._file(group, self._places.pop(former), former.by_text)
        group.members += 1
        return group

    def _file(self, group: FilterGroup, place: GroupEntry, filed: dict[str, TopicFilter]) -> None:
        """Put a new group into a place whose filters are `filed`."""
        place.group = group
        self._groups[group.key] = group
        self._places[group] = place
        for text, each in group.by_text.items():
            if text not in filed:
                self._matcher.put(each.levels, place, place)
        for text, each in filed.items():
            if text not in group.by_text:
                self._matcher.remove(each.levels, place)
        self._forget_topics()

    def leave(self, group: FilterGroup) -> None:
        """Remove a member. Without members the group ends, unless another group has taken its
        place. `clear` removes its filters later.
        """
        group.members -= 1
        if group.members or group not in self._places:
            return
        place = self._places.pop(group)
        del self._groups[group.key]
        self._left.append((place, list(group.filters)))
        self._forget_topics()

    def clear(self, levels_max: int) -> bool:
        """Remove filters that no feed needs, about this number of levels; return whether others
        remain.
        """
        removed = 0
        while self._left:
            place, filters = self._left[-1]
            while filters:
                if removed >= levels_max:
                    return True
                levels = filters.pop().levels
                self._matcher.remove(levels, place)
                removed += 1 + len(levels)
            self._left.pop()
        return False

    def who_wants(self, topic: bytes) -> tuple[FilterGroup, ...]:
        """Return the groups that want a topic; topics with the same groups share one tuple."""
        known = self._wanting.get(topic)
        if known is not None:
            return known
        if len(self._wanting) >= _TOPICS_MAX:
            self._forget_topics()
        groups: dict[FilterGroup, None] = {}
        for value in self._matcher.match(topic):
            assert isinstance(value, GroupEntry)
            if value.group.members:
                groups[value.group] = None
        combination = tuple(groups)
        combination = self._combinations.setdefault(combination, combination)
        self._wanting[topic] = combination
        return combination

    def _forget_topics(self) -> None:
        if self._wanting:
            self._wanting = {}
            self._combinations = {}
