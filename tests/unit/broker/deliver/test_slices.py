from __future__ import annotations

import pytest

from siltstone.broker.deliver.slices import SLICE_LEVELS, slice_end
from siltstone.topic.grammar import TopicFilter


@pytest.mark.parametrize(
    ("text", "count", "end"),
    [
        ("a", 3, 3),
        ("a", 1000, SLICE_LEVELS // 2),
        ("a/b/c", 1000, SLICE_LEVELS // 4),
        ("$share/g/a/b/c", 1000, 17),
        ("/".join(["a"] * 128), 10, 4),
        ("/".join(["a"] * 1000), 10, 1),
    ],
)
def test_a_turn_takes_filters_by_their_levels(text: str, count: int, end: int) -> None:
    assert slice_end([TopicFilter.parse(text)] * count) == end


def test_without_filters_a_turn_takes_none() -> None:
    assert slice_end([]) == 0
