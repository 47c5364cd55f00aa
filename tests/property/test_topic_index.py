from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from siltstone.topic.grammar import TopicFilter
from siltstone.topic.index import TopicIndex

WORDS = st.sampled_from([b"", b"a", b"b", b"c", b"a-", b"$x", b"$y"])
TOPICS = st.lists(WORDS, min_size=1, max_size=4).map(b"/".join).filter(bool)
FILTERS = (
    st.tuples(st.lists(WORDS | st.just(b"+"), max_size=4), st.sampled_from([[], [b"#"]]))
    .map(lambda parts: b"/".join(parts[0] + parts[1]))
    .filter(bool)
)
# A topic to set, to pop, or a filter to ask with.
STEPS = st.lists(
    st.tuples(st.just("set"), TOPICS)
    | st.tuples(st.just("pop"), TOPICS)
    | st.tuples(st.just("match"), FILTERS),
    max_size=60,
)


def naive_match(values: dict[bytes, int], text: bytes) -> list[int]:
    """Ask every topic, and sort what agrees by its levels."""
    topic_filter = TopicFilter.parse(text)
    topics = [topic for topic in values if topic_filter.matches(topic)]
    return [values[topic] for topic in sorted(topics, key=lambda topic: topic.split(b"/"))]


@given(STEPS, FILTERS)
def test_an_index_finds_what_asking_every_topic_finds(
    steps: list[tuple[str, bytes]], last: bytes
) -> None:
    index: TopicIndex[int] = TopicIndex()
    model: dict[bytes, int] = {}
    for number, (step, name) in enumerate([*steps, ("match", last), ("match", b"#")]):
        if step == "set":
            index.set(name, number)
            model[name] = number
        elif step == "pop":
            assert index.pop(name) == model.pop(name, None)
        else:
            found = naive_match(model, name)
            assert index.match(TopicFilter.parse(name)) == found
            walked = index.walk(TopicFilter.parse(name))
            assert sorted(value for value in walked if value is not None) == sorted(found)
        assert (len(index), index.get(name), name in index) == (
            len(model),
            model.get(name),
            name in model,
        )
    assert list(index) == list(model)


@given(st.lists(TOPICS, unique=True))
def test_an_index_without_topics_is_as_it_was_before_them(topics: list[bytes]) -> None:
    index: TopicIndex[bytes] = TopicIndex()
    for topic in topics:
        index.set(topic, topic)
    for topic in sorted(topics):
        assert index.pop(topic) == topic
    assert index._root.words is None  # noqa: SLF001
    assert (len(index), index.match(TopicFilter.parse(b"#"))) == (0, [])
