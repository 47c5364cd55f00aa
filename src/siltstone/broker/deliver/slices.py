"""Limits how many filters one turn of the loop processes, so that other clients are served too."""

from __future__ import annotations

from typing import Final

from siltstone.topic.grammar import TopicFilter

# The cost limit of one turn: each filter costs its number of levels, plus one.
SLICE_LEVELS: Final = 400


def slice_end(filters: list[TopicFilter]) -> int:
    """Return how many filters one turn processes: those that reach the cost limit, at least one."""
    levels = 0
    for count, topic_filter in enumerate(filters, 1):
        levels += 1 + len(topic_filter.levels)
        if levels >= SLICE_LEVELS:
            return count
    return len(filters)
