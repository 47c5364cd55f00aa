"""The filters of durable sessions, connected or disconnected, for the store policies.

Filters are recorded only if a policy needs them. Then each distinct filter takes memory once,
however many sessions have it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, cast

from siltstone.topic.grammar import TopicFilter
from siltstone.topic.matcher import Matcher

_REMEMBERED_MAX: Final = 100_000


class _Counts:
    """The numbers of connected (`present`) and disconnected (`away`) sessions with a filter."""

    __slots__ = ("away", "missing", "present")

    def __init__(self) -> None:
        self.present = 0
        self.away = 0
        # Disconnected sessions whose subscription has QoS 1 or 2.
        self.missing = 0

    def is_empty(self) -> bool:
        return not self.present and not self.away


class Interest:
    """Filters with the number of durable sessions that have them."""

    def __init__(self, *, is_asked: bool) -> None:
        self.is_asked = is_asked
        self._matcher = Matcher()
        self._counts: dict[tuple[bytes, ...], _Counts] = {}
        # Results of `of` by topic: whether the topic is wanted, and whether it is missed.
        self._known: dict[bytes, tuple[bool, bool]] = {}

    def __len__(self) -> int:
        """Return the number of distinct filters."""
        return len(self._counts)

    def come(self, topic_filter: TopicFilter) -> None:
        """Add a filter of a connected session."""
        self._add(topic_filter, present=1)

    def go(self, topic_filter: TopicFilter) -> None:
        """Remove a filter of a connected session."""
        self._add(topic_filter, present=-1)

    def miss(self, topic_filter: TopicFilter, qos: int, count: int = 1) -> None:
        """Add a filter of `count` disconnected sessions."""
        self._add(topic_filter, away=count, missing=count if qos else 0)

    def forget(self, topic_filter: TopicFilter, qos: int) -> None:
        """Remove a filter of a disconnected session that was deleted, or that has caught up."""
        self._add(topic_filter, away=-1, missing=-1 if qos else 0)

    def of(self, topic: bytes) -> tuple[bool, bool]:
        """Return whether a topic is wanted, and whether it is missed.

        It is wanted if a filter of any durable session matches it. It is missed if a filter with
        QoS 1 or 2 of a disconnected session matches it.
        """
        known = self._known.get(topic)
        if known is None:
            found = [cast("_Counts", counts) for counts in self._matcher.match(topic)]
            known = (bool(found), any(counts.missing for counts in found))
            if len(self._known) >= _REMEMBERED_MAX:
                self._known.clear()
            self._known[topic] = known
        return known

    def load(self, filters: Iterable[tuple[TopicFilter, int, int]]) -> None:
        """Add filters of disconnected sessions, with the highest QoS and the number of sessions."""
        for topic_filter, qos, count in filters:
            self.miss(topic_filter, qos, count)

    def _add(
        self, topic_filter: TopicFilter, *, present: int = 0, away: int = 0, missing: int = 0
    ) -> None:
        if not self.is_asked:
            return
        levels = topic_filter.levels
        counts = self._counts.get(levels)
        if counts is None:
            counts = self._counts[levels] = _Counts()
            self._matcher.put(levels, levels, counts)
        counts.present += present
        counts.away = max(0, counts.away + away)
        counts.missing = min(counts.away, max(0, counts.missing + missing))
        if counts.is_empty():
            del self._counts[levels]
            self._matcher.remove(levels, levels)
        self._known.clear()
