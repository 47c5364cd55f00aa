from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from siltstone.topic.grammar import TopicFilter
from siltstone.topic.matcher import Matcher

WORDS = st.sampled_from([b"", b"a", b"b", b"$x", b"$x"])
TOPICS = st.lists(WORDS, min_size=1, max_size=4).map(b"/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(WORDS | st.just(b"+"), max_size=4), st.sampled_from([[], [b"#"]]))
    .map(lambda parts: b"/".join(parts[0] + parts[1]))
    .filter(bool)
    .map(TopicFilter.parse)
)
KEYS = st.integers(0, 2)
STEPS = st.lists(
    st.tuples(st.just("put"), FILTERS, KEYS) | st.tuples(st.just("remove"), FILTERS, KEYS),
    max_size=60,
)


def naive_match(model: dict[tuple[TopicFilter, int], int], topic: bytes) -> list[int]:
    """Ask every filter."""
    return sorted(value for (asked, _), value in model.items() if asked.matches(topic))


@given(STEPS, st.lists(TOPICS, min_size=1, max_size=10))
def test_a_matcher_finds_what_asking_every_filter_finds(
    steps: list[tuple[str, TopicFilter, int]], topics: list[bytes]
) -> None:
    matcher = Matcher()
    model: dict[tuple[TopicFilter, int], int] = {}
    for number, (step, topic_filter, key) in enumerate(steps):
        if step == "put":
            matcher.put(topic_filter.levels, key, number)
            model[topic_filter, key] = number
        else:
            was_there = model.pop((topic_filter, key), None) is not None
            assert matcher.remove(topic_filter.levels, key) is was_there
        topic = topics[number % len(topics)]
        found = [value for value in matcher.match(topic) if isinstance(value, int)]
        assert (sorted(found), len(matcher)) == (naive_match(model, topic), len(model))
    for topic in topics:
        found = [value for value in matcher.match(topic) if isinstance(value, int)]
        assert sorted(found) == naive_match(model, topic)


def nodes_of(matcher: Matcher) -> int:
    """Count the nodes below the root; each has a value, or two below it at least."""
    count = 0
    waiting = list((matcher._root.children or {}).values())  # noqa: SLF001
    while waiting:
        node = waiting.pop()
        children = node.children or {}
        assert node.here or node.below or len(children) > 1
        assert [child.path[0] for child in children.values()] == list(children)
        waiting.extend(children.values())
        count += 1
    return count


@given(STEPS)
def test_a_matcher_has_as_many_nodes_as_its_filters_need(
    steps: list[tuple[str, TopicFilter, int]],
) -> None:
    matcher = Matcher()
    kept: set[tuple[TopicFilter, int]] = set()
    for step, topic_filter, key in steps:
        if step == "put":
            matcher.put(topic_filter.levels, key, key)
            kept.add((topic_filter, key))
        else:
            matcher.remove(topic_filter.levels, key)
            kept.discard((topic_filter, key))
        assert nodes_of(matcher) <= 2 * len({each.levels for each, _ in kept})
    for topic_filter, key in kept:
        assert matcher.remove(topic_filter.levels, key) is True
    assert (nodes_of(matcher), len(matcher)) == (0, 0)


def test_a_filter_of_many_levels_takes_one_node() -> None:
    matcher = Matcher()
    for number in range(100):
        matcher.put((b"%d" % number, *[b"a"] * 126, b"#"), 1, number)
    topic = b"7" + b"/a" * 126
    assert (nodes_of(matcher), matcher.match(topic)) == (100, [7])
    assert (matcher.match(topic + b"/b"), matcher.match(topic[:-2])) == ([7], [])
