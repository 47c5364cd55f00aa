"""How much of a long list of filters one turn of the loop takes, so that others have theirs."""

from __future__ import annotations

from typing import Final

from siltstone.topic.grammar import TopicFilter

# What one turn takes: levels of filters, and one for each filter.
SLICE_LEVELS: Final = 400


def slice_end(filters: list[TopicFilter]) -> int:
    """Return how many filters one turn takes: at least one, and about as many as their levels."""
    levels = 0
    for count, topic_filter in enumerate(filters, 1):
        levels += 1 + len(topic_filter.levels)
        if levels >= SLICE_LEVELS:
            return count
    return len(filters)
