from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.pipeline.lake.delta import LakeFile
from siltstone.pipeline.lake.pruning import (
    QueryScope,
    holds_only,
    literal_prefix,
    may_match,
    prune,
    topic_pattern,
)
from siltstone.topic.grammar import TopicFilter

WORDS = st.sampled_from(["", "a", "b", "$x", "ä", "a0", "."])
TOPICS = st.lists(WORDS, min_size=1, max_size=3).map("/".join).filter(bool)
FILTERS = st.sampled_from(
    ["#", "+", "a", "a/#", "+/a", "a/+", "a/b", "$x/#", "ä/#", "+/+/b", "a/+/#", "/#", "./+"]
)


def file(**changes: Any) -> LakeFile:
    values: dict[str, Any] = {
        "path": "/f",
        "batch": 1,
        "size_bytes": 1,
        "rows": 1,
        "topics": ("a/a", "a/z"),
        "times_us": (10, 20),
    }
    return LakeFile(**(values | changes))


def sorted_out(wanted: LakeFile, **changes: Any) -> str:
    values: dict[str, Any] = {"filters": ("#",), "since_us": 0, "until_us": None, "batch": 1}
    pruned = prune([wanted], QueryScope(**(values | changes)))
    return "whole" if pruned.whole else "partly" if pruned.partly else "none"


@pytest.mark.parametrize(
    ("changes", "scope", "outcome"),
    [
        ({}, {}, "whole"),
        ({}, {"since_us": 10}, "whole"),
        ({}, {"since_us": 11}, "partly"),
        ({}, {"since_us": 21}, "none"),
        ({}, {"until_us": 21}, "whole"),
        ({}, {"until_us": 20}, "partly"),
        ({}, {"until_us": 10}, "none"),
        ({"times_us": None}, {}, "whole"),
        ({"times_us": None}, {"until_us": 1}, "partly"),
        ({"batch": 2}, {}, "none"),
        ({"batch": None}, {}, "whole"),
        ({"batch": None}, {"is_still": False}, "partly"),
        ({}, {"filters": ("a/#",)}, "whole"),
        ({}, {"filters": ("b/#", "a/+")}, "partly"),
        ({}, {"filters": ("b/#",)}, "none"),
        ({"topics": None}, {}, "partly"),
        ({"topics": ("$x", "$y")}, {}, "none"),
        ({"topics": ("!", "a")}, {}, "partly"),
    ],
)
def test_files_are_sorted_by_what_they_can_hold(
    changes: dict[str, Any], scope: dict[str, Any], outcome: str
) -> None:
    assert sorted_out(file(**changes), **scope) == outcome


@given(FILTERS, st.lists(TOPICS, min_size=1, max_size=4))
def test_bounds_never_lie(topic_filter: str, topics: list[str]) -> None:
    parsed = TopicFilter.parse(topic_filter)
    matching = [parsed.matches(topic.encode()) for topic in topics]
    bounds = (min(topics), max(topics))
    assert may_match(topic_filter, bounds) or not any(matching)
    assert all(matching) or not holds_only(topic_filter, bounds)


@given(FILTERS, TOPICS)
def test_the_expression_matches_what_the_filter_matches(topic_filter: str, topic: str) -> None:
    # Java's \z is Python's \Z, and \Q…\E is not known here.
    pattern = topic_pattern(topic_filter).replace("\\z", "\\Z")
    pattern = re.sub(r"\\Q(.*?)\\E", lambda match: re.escape(match[1]), pattern)
    expected = TopicFilter.parse(topic_filter).matches(topic.encode())
    assert (re.search(pattern, topic) is not None) is expected


@given(FILTERS, TOPICS)
def test_every_topic_of_a_filter_begins_as_it_says(topic_filter: str, topic: str) -> None:
    if TopicFilter.parse(topic_filter).matches(topic.encode()):
        assert topic.startswith(literal_prefix(topic_filter).removesuffix("/"))
