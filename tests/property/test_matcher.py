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


@given(STEPS)
def test_a_matcher_without_filters_is_as_it_was_before_them(
    steps: list[tuple[str, TopicFilter, int]],
) -> None:
    matcher = Matcher()
    kept = {(topic_filter, key) for _, topic_filter, key in steps}
    for topic_filter, key in kept:
        matcher.put(topic_filter.levels, key, key)
    for topic_filter, key in kept:
        assert matcher.remove(topic_filter.levels, key) is True
    assert matcher._root.is_empty() is True  # noqa: SLF001
    assert len(matcher) == 0
