from __future__ import annotations

import gc
import weakref

import pytest

from siltstone.topic.grammar import TopicFilter
from siltstone.topic.matcher import Matcher


def levels(text: str) -> tuple[bytes, ...]:
    return TopicFilter.parse(text).levels


def matcher_of(*texts: str) -> Matcher:
    """Return a matcher in which each filter has its own text as key and value."""
    matcher = Matcher()
    for text in texts:
        matcher.put(levels(text), text, text)
    return matcher


FILTERS = (
    *("#", "+", "+/#", "+/+", "/#", "/+", "a", "a/#", "a/+", "a/+/#", "a/+/c", "a/b", "a/b/#"),
    *("a/b/c", "+/b", "+/b/#", "$SYS/#", "$SYS", "$SYS/+", "+/x", "a//c"),
)


@pytest.mark.parametrize(
    ("topic", "found"),
    [
        (b"a", ["#", "+", "+/#", "a", "a/#"]),
        (b"b", ["#", "+", "+/#"]),
        (
            b"a/b",
            [
                *("#", "+/#", "+/+", "+/b", "+/b/#", "a/#", "a/+", "a/+/#", "a/b"),
                "a/b/#",
            ],
        ),
        (b"a/b/c", ["#", "+/#", "+/b/#", "a/#", "a/+/#", "a/+/c", "a/b/#", "a/b/c"]),
        (b"a/b/c/d", ["#", "+/#", "+/b/#", "a/#", "a/+/#", "a/b/#"]),
        (b"a//c", ["#", "+/#", "a/#", "a/+/#", "a/+/c", "a//c"]),
        (b"/", ["#", "+/#", "+/+", "/#", "/+"]),
        (b"/a", ["#", "+/#", "+/+", "/#", "/+"]),
        (b"x/y", ["#", "+/#", "+/+"]),
        # [MQTT-4.7.2-1].
        (b"$SYS", ["$SYS", "$SYS/#"]),
        (b"$SYS/x", ["$SYS/#", "$SYS/+"]),
        (b"$other/x", []),
        (b"a/$SYS", ["#", "+/#", "+/+", "a/#", "a/+", "a/+/#"]),
    ],
)
def test_a_topic_finds_each_filter_that_matches_once(topic: bytes, found: list[str]) -> None:
    matcher = matcher_of(*FILTERS)
    assert sorted(map(str, matcher.match(topic))) == sorted(found)
    assert [text for text in FILTERS if TopicFilter.parse(text).matches(topic)] == [
        text for text in FILTERS if text in found
    ]


def test_a_key_has_one_value_under_each_filter() -> None:
    matcher = Matcher()
    for text in ("a/#", "a/+"):
        matcher.put(levels(text), "k", f"first {text}")
        matcher.put(levels(text), "k", f"second {text}")
        matcher.put(levels(text), "other", f"other {text}")
    assert len(matcher) == 4
    assert matcher.match(b"a/b") == ["second a/#", "other a/#", "second a/+", "other a/+"]


def test_what_was_removed_is_found_no_more() -> None:
    matcher = matcher_of("a/#", "a/+", "a/b")
    matcher.put(levels("a/b"), "other", "other")
    assert matcher.remove(levels("a/b"), "a/b") is True
    assert matcher.remove(levels("a/#"), "a/#") is True
    assert (matcher.match(b"a/b"), len(matcher)) == (["other", "a/+"], 2)


@pytest.mark.parametrize(
    ("text", "key"),
    [("a/b", "x"), ("a", "a/b"), ("a/b/#", "a/b"), ("a/b/c", "a/b"), ("x", "a/b"), ("#", "a/b")],
)
def test_removing_what_is_not_there_says_so(text: str, key: str) -> None:
    matcher = matcher_of("a/b")
    assert matcher.remove(levels(text), key) is False
    assert (matcher.match(b"a/b"), len(matcher)) == (["a/b"], 1)


def test_branches_that_others_need_stay() -> None:
    matcher = matcher_of("a", "a/b/c", "a/b/#", "a/b/d")
    for text in ("a/b/c", "a/b/#"):
        assert matcher.remove(levels(text), text) is True
    assert (matcher.match(b"a"), matcher.match(b"a/b/d")) == (["a"], ["a/b/d"])
    for text in ("a/b/d", "a"):
        assert matcher.remove(levels(text), text) is True
    assert (matcher.match(b"a"), matcher.match(b"a/b/d"), len(matcher)) == ([], [], 0)


class Value:
    """Something that tells when it is gone."""


def test_a_value_is_let_go_when_it_is_removed_or_replaced() -> None:
    matcher = Matcher()
    values = [Value(), Value()]
    alive = [weakref.ref(value) for value in values]
    matcher.put(levels("a/b"), 1, values.pop(0))
    matcher.put(levels("a/b"), 1, values.pop(0))
    gc.collect()
    assert [reference() is not None for reference in alive] == [False, True]
    matcher.remove(levels("a/b"), 1)
    gc.collect()
    assert [reference() is not None for reference in alive] == [False, False]
