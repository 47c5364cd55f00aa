"""Limits how many filters one turn of the loop processes, so that other clients are served too."""

from __future__ import annotations

from typing import Final

from siltstone.topic.grammar import TopicFilter

# The cost limit of one turn: each filter costs its number of levels, plus one.
SLICE_LEVELS: Final = 400
# The additional cost of a filter of a share group: the group is created, saved or ended.
_SHARED_LEVELS: Final = 20


def cost_of(topic_filter: TopicFilter) -> int:
    """Return the part of the cost limit that a filter takes."""
    shared = 0 if topic_filter.group is None else _SHARED_LEVELS
    return 1 + len(topic_filter.levels) + shared


def slice_end(filters: list[TopicFilter]) -> int:
    """Return how many filters one turn processes: those that reach the cost limit, at least one."""
    levels = 0
    for count, topic_filter in enumerate(filters, 1):
        levels += cost_of(topic_filter)
        if levels >= SLICE_LEVELS:
            return count
    return len(filters)
