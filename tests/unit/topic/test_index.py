from __future__ import annotations

import gc
import sys
import weakref

import pytest

from siltstone.topic.grammar import TopicFilter
from siltstone.topic.index import TopicIndex


def index_of(*topics: str) -> TopicIndex[str]:
    """Return an index in which each topic has its own name as value."""
    index: TopicIndex[str] = TopicIndex()
    for topic in topics:
        index.set(topic.encode(), topic)
    return index


def found(index: TopicIndex[str], text: str) -> list[str]:
    return index.match(TopicFilter.parse(text))


TOPICS = ("sport", "sport/", "sport/tennis/player1", "sport/tennis", "a//b", "/", "$SYS/a", "$SYS")


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("#", ["/", "a//b", "sport", "sport/", "sport/tennis", "sport/tennis/player1"]),
        ("+", ["sport"]),
        ("+/+", ["/", "sport/", "sport/tennis"]),
        ("/+", ["/"]),
        ("+/#", ["/", "a//b", "sport", "sport/", "sport/tennis", "sport/tennis/player1"]),
        ("sport", ["sport"]),
        ("sport/#", ["sport", "sport/", "sport/tennis", "sport/tennis/player1"]),
        ("sport/tennis/#", ["sport/tennis", "sport/tennis/player1"]),
        ("sport/tennis/player1/#", ["sport/tennis/player1"]),
        ("sport/+", ["sport/", "sport/tennis"]),
        ("sport/+/player1", ["sport/tennis/player1"]),
        ("sport/+/#", ["sport/", "sport/tennis", "sport/tennis/player1"]),
        ("a/+/b", ["a//b"]),
        ("sport/golf", []),
        ("sport/golf/#", []),
        ("sport/tennis/player1/+", []),
        ("$SYS/#", ["$SYS", "$SYS/a"]),
        ("$SYS/+", ["$SYS/a"]),
        ("+/a", []),
        ("$share/group/sport/+", ["sport/", "sport/tennis"]),
    ],
)
def test_a_filter_finds_what_mqtt_4_7_says_sorted_by_levels(text: str, topics: list[str]) -> None:
    assert found(index_of(*TOPICS), text) == topics


def test_topics_are_sorted_by_levels_whenever_they_came() -> None:
    index = index_of("b", "a-b", "a/b")
    assert found(index, "#") == ["a/b", "a-b", "b"]
    index.set(b"a", "a")
    index.set(b"a/a", "a/a")
    assert found(index, "#") == ["a", "a/a", "a/b", "a-b", "b"]


def test_a_value_takes_the_place_of_the_one_before() -> None:
    index = index_of("a/b", "a/c")
    index.set(b"a/b", "new")
    assert (found(index, "a/+"), index.get(b"a/b"), len(index)) == (["new", "a/c"], "new", 2)


def test_a_topic_that_was_popped_is_unknown() -> None:
    index = index_of("a", "a/b", "a/b/c")
    assert index.pop(b"a/b") == "a/b"
    assert index.pop(b"a/b") is None
    assert index.get(b"a/b") is None
    assert b"a/b" not in index
    assert (found(index, "#"), list(index), len(index)) == (["a", "a/b/c"], [b"a", b"a/b/c"], 2)


def test_a_part_of_a_topic_is_no_topic() -> None:
    index = index_of("a/b/c")
    assert index.pop(b"a/b") is None
    assert index.get(b"a") is None
    assert found(index, "a/b") == []
    assert found(index, "a/+") == []
    assert found(index, "a/b/+") == ["a/b/c"]


def test_the_last_topic_of_a_branch_takes_the_branch_with_it() -> None:
    class Value:
        """Something that can be watched."""

    index: TopicIndex[Value] = TopicIndex()
    empty = gc_sizes(index)
    watched = []
    for topic in (b"a/b/c/d", b"a/b", b"a/b/x", b"$SYS/a"):
        value = Value()
        watched.append(weakref.ref(value))
        index.set(topic, value)
        del value
    for topic in (b"a/b/c/d", b"a/b/x", b"a/b", b"$SYS/a"):
        assert index.pop(topic) is not None
    assert [reference() for reference in watched] == [None] * 4
    assert gc_sizes(index) == empty


def gc_sizes(index: object) -> int:
    """Count what the index keeps alive of the containers that the collector knows."""
    seen: set[int] = set()
    waiting = [index]
    while waiting:
        item = waiting.pop()
        if id(item) not in seen and not isinstance(item, type):
            seen.add(id(item))
            waiting.extend(gc.get_referents(item))
    return len(seen)


def test_a_topic_may_have_as_many_levels_as_it_has_characters() -> None:
    deep = "/" * 65_535
    index = index_of(deep, "a")
    assert found(index, "/#") == [deep]
    assert found(index, "#") == [deep, "a"]
    assert index.pop(deep.encode()) == deep
    assert found(index, "#") == ["a"]


@pytest.mark.parametrize("text", ["e/+/x", "e/#", "e/1/+", "+/9/#"])
def test_the_cost_of_a_match_does_not_grow_with_topics_where_its_filter_does_not_lead(
    text: str,
) -> None:
    costs = []
    for others in (20, 1_000):
        index = index_of(*(f"d/{number}/x/y" for number in range(10, others)), "e/1/x", "e/2/x")
        costs.append(calls_of(index, TopicFilter.parse(text)))
    assert costs[0] == costs[1]


def calls_of(index: TopicIndex[str], topic_filter: TopicFilter) -> int:
    """Count the functions that a match calls."""
    calls: list[str] = []
    # A collection in the middle would count the finalizers of earlier tests.
    gc.collect()
    gc.disable()
    sys.setprofile(lambda frame, event, argument: calls.append(event))
    try:
        index.match(topic_filter)
    finally:
        sys.setprofile(None)
        gc.enable()
    return len(calls)


def walked(index: TopicIndex[int], text: str) -> list[int]:
    return sorted(value for value in index.walk(TopicFilter.parse(text)) if value is not None)


@pytest.mark.parametrize(
    "text", ["#", "+", "a/#", "a/+", "+/b", "a/b", "a/b/c", "$SYS/#", "$SYS/+", "+/#", "x", "a//+"]
)
def test_a_walk_meets_what_a_match_finds(text: str) -> None:
    index: TopicIndex[int] = TopicIndex()
    topics = [b"a", b"a/b", b"a/b/c", b"b/b", b"$SYS/x", b"$SYS", b"a//", b"/b"]
    for number, topic in enumerate(topics):
        index.set(topic, number)
    assert walked(index, text) == sorted(index.match(TopicFilter.parse(text)))


def test_a_walk_takes_a_bounded_step_at_a_time() -> None:
    index: TopicIndex[int] = TopicIndex()
    for number in range(100):
        index.set(b"%d/x" % number, number)
    steps = list(index.walk(TopicFilter.parse("+/y")))
    assert steps == [None] * 101


def test_what_is_forgotten_during_a_walk_is_not_met_and_what_is_replaced_is_met_as_it_is() -> None:
    index: TopicIndex[int] = TopicIndex()
    for number in range(3):
        index.set(b"%d" % number, number)
    walk = index.walk(TopicFilter.parse("#"))
    assert (next(walk), next(walk)) == (None, 0)
    index.pop(b"1")
    index.set(b"2", 22)
    assert list(walk) == [None, 22]


def test_walkers_share_what_they_have_before_them_until_it_changes() -> None:
    index: TopicIndex[int] = TopicIndex()
    index.set(b"a/1", 1)
    index.set(b"a/2", 2)
    first = index.walk(TopicFilter.parse("a/+"))
    assert [next(first), next(first), next(first)] == [None, None, 1]
    index.set(b"a/3", 3)
    assert (list(first), walked(index, "a/+")) == ([2], [1, 2, 3])


@pytest.mark.parametrize("text", ["#", "a/#", "a/+", "a/b", "a/b/#", "a/+/c", "+/+/c", "a/b/c/#"])
def test_the_only_topic_of_a_branch_is_found_as_one_of_many_is(text: str) -> None:
    topic_filter = TopicFilter.parse(text)
    for others in ([], ["a/b"], ["a/b/d"], ["a/x", "x/b/c"]):
        index = index_of("a/b/c", *others)
        expected = [topic for topic in index.values() if topic_filter.matches(topic.encode())]
        assert index.match(topic_filter) == sorted(expected)
        assert sorted(filter(None, index.walk(topic_filter))) == sorted(expected)
        for topic in others:
            index.pop(topic.encode())
        assert index.match(topic_filter) == [topic for topic in expected if topic == "a/b/c"]


def test_the_values_are_those_of_the_moment() -> None:
    index: TopicIndex[int] = TopicIndex()
    index.set(b"a/1", 1)
    index.set(b"$b", 2)
    values = index.values()
    index.set(b"a/1", 3)
    assert (values, index.values()) == ([1, 2], [3, 2])
