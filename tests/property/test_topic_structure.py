from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from siltstone.topic.grammar import TopicFilter
from siltstone.topic.structure import Match, Stream, Structure, TopicPlace
from tests.support.learned import topic_of

WORDS = st.sampled_from([b"", b"a", b"b", b"c", b"d", b"$x", b"$y"])
LEVELS = st.lists(WORDS, min_size=1, max_size=4)
TOPICS = LEVELS.map(b"/".join).filter(bool)
SEQUENCES = st.lists(TOPICS, max_size=40)
THRESHOLDS = st.lists(st.sampled_from([-1, 0, 1, 2, 3]), min_size=1, max_size=3)
FILTERS = (
    st.tuples(st.lists(WORDS | st.just(b"+"), max_size=4), st.sampled_from([[], [b"#"]]))
    .map(lambda parts: b"/".join(parts[0] + parts[1]))
    .filter(bool)
)
Path = tuple[bytes, ...]
PATTERNS = st.lists(WORDS | st.just(b"+"), min_size=1, max_size=4).map(b"/".join).filter(bool)


def learned(thresholds: list[int], topics: list[bytes]) -> Structure:
    structure = Structure(thresholds)
    for topic in topics:
        structure.learn(topic)
    return structure


def where(placement: TopicPlace) -> tuple[int, bytes]:
    return placement.stream.id, placement.varying


def accepts(match: Match, varying: bytes) -> bool:
    words = varying.split(b"/") if match.stream.varying_count else []
    assert len(words) == len(match.constraints)
    return all(
        wanted is None or wanted == word
        for wanted, word in zip(match.constraints, words, strict=True)
    )


def facts(stream: Stream) -> tuple[int, bytes, list[bytes], int, bool]:
    return stream.id, stream.pattern, stream.levels, stream.varying_count, stream.special


def all_facts(structure: Structure) -> list[tuple[int, bytes, list[bytes], int, bool]]:
    return [facts(stream) for stream in structure.streams()]


@given(THRESHOLDS, SEQUENCES, FILTERS)
def test_streams_and_constraints_select_exactly_the_topics_of_a_filter(
    thresholds: list[int], topics: list[bytes], text: bytes
) -> None:
    structure = Structure(thresholds)
    placements = {topic: structure.learn(topic) for topic in topics}
    topic_filter = TopicFilter.parse(text)
    matches = structure.match(list(topic_filter.levels))
    by_stream = {match.stream.id: match for match in matches}
    assert len(by_stream) == len(matches)
    selected = {
        topic
        for topic, placement in placements.items()
        if placement.stream.id in by_stream
        and accepts(by_stream[placement.stream.id], placement.varying)
    }
    assert selected == {topic for topic in placements if topic_filter.matches(topic)}


@given(THRESHOLDS, SEQUENCES, st.lists(TOPICS | PATTERNS))
def test_a_plain_topic_is_found_where_it_was_learned_and_nothing_else_is(
    thresholds: list[int], topics: list[bytes], others: list[bytes]
) -> None:
    structure = learned(thresholds, topics)
    for topic in [*topics, *others]:
        placement = None if b"+" in topic else structure.lookup(topic)
        expected = None if placement is None else placement.stream
        assert structure.find_plain(topic) is expected


@given(THRESHOLDS, SEQUENCES)
def test_a_topic_comes_back_from_where_it_was_placed(
    thresholds: list[int], topics: list[bytes]
) -> None:
    structure = Structure(thresholds)
    placements = [structure.learn(topic) for topic in topics]
    assert [topic_of(place) for place in placements] == topics
    assert [structure.stream(place.stream.id) for place in placements] == [
        place.stream for place in placements
    ]


@given(THRESHOLDS, st.lists(st.tuples(st.booleans(), TOPICS, PATTERNS), max_size=40))
def test_no_topic_changes_its_stream_whatever_is_learned_or_taught(
    thresholds: list[int], steps: list[tuple[bool, bytes, bytes]]
) -> None:
    structure = Structure(thresholds)
    first: dict[bytes, tuple[int, bytes]] = {}
    for teach, topic, pattern in steps:
        if teach:
            structure.insert_pattern(pattern)
        else:
            first.setdefault(topic, where(structure.learn(topic)))
        assert {topic: where(structure.learn(topic)) for topic in first} == first


@given(THRESHOLDS, SEQUENCES)
def test_equal_sequences_give_equal_structures(thresholds: list[int], topics: list[bytes]) -> None:
    assert learned(thresholds, topics).export() == learned(thresholds, topics).export()


@given(THRESHOLDS, SEQUENCES, THRESHOLDS, SEQUENCES)
def test_equal_patterns_have_equal_ids_in_all_structures(
    thresholds: list[int],
    topics: list[bytes],
    other_thresholds: list[int],
    other_topics: list[bytes],
) -> None:
    ids: dict[tuple[bytes, bool], int] = {}
    patterns: dict[int, tuple[bytes, bool]] = {}
    for structure in (learned(thresholds, topics), learned(other_thresholds, other_topics)):
        for stream in structure.streams():
            pattern = (stream.pattern, stream.special)
            assert ids.setdefault(pattern, stream.id) == stream.id
            assert patterns.setdefault(stream.id, pattern) == pattern


@given(THRESHOLDS, SEQUENCES)
def test_lookup_sees_what_learn_placed_and_changes_nothing(
    thresholds: list[int], topics: list[bytes]
) -> None:
    structure = Structure(thresholds)
    placed = [where(structure.learn(topic)) for topic in topics]
    before = structure.export()
    assert [where(structure.learn(topic)) for topic in topics] == placed
    found = [structure.lookup(topic) for topic in topics]
    assert [where(placement) for placement in found if placement is not None] == placed
    assert structure.export() == before


@given(THRESHOLDS, SEQUENCES)
def test_thresholds_bound_the_words_of_each_node(
    thresholds: list[int], topics: list[bytes]
) -> None:
    structure = learned(thresholds, topics)
    waiting = [structure.root, structure.special_root]
    while waiting:
        node = waiting.pop()
        threshold = thresholds[min(node.depth, len(thresholds) - 1)]
        if threshold >= 0:
            assert len(node.children) <= threshold
        if node.plus is not None:
            assert len(node.children) == threshold
            waiting.append(node.plus)
        waiting.extend(node.children.values())


@given(THRESHOLDS, SEQUENCES)
def test_an_exported_structure_applied_is_equal_and_learns_on_equally(
    thresholds: list[int], topics: list[bytes]
) -> None:
    half = len(topics) // 2
    original = learned(thresholds, topics[:half])
    copy = Structure(thresholds)
    assert [facts(stream) for stream in copy.apply(original.export())] == all_facts(original)
    assert copy.has_pending() is False
    assert copy.export() == original.export()
    for topic in topics[half:]:
        assert where(copy.learn(topic)) == where(original.learn(topic))
    assert copy.export() == original.export()


@given(THRESHOLDS, THRESHOLDS, SEQUENCES)
def test_a_follower_stays_equal_step_by_step(
    thresholds: list[int], other_thresholds: list[int], topics: list[bytes]
) -> None:
    leader = Structure(thresholds)
    follower = Structure(other_thresholds)
    for topic in topics:
        known = len(leader.streams())
        placement = leader.learn(topic)
        new = follower.apply(memoryview(leader.take_pending()))
        assert [facts(stream) for stream in new] == all_facts(leader)[known:]
        assert follower.export() == leader.export()
        found = follower.lookup(topic)
        assert found is not None
        assert where(found) == where(placement)


def joined(paths: set[Path], thresholds: list[int], prefixes: set[Path], at: Path) -> set[Path]:
    """Return the paths of an heir that begin with `at`, which stands for these prefixes."""
    size = len(at)
    longer = {path for path in paths if len(path) > size and path[:size] in prefixes}
    words = {path[size] for path in longer}
    threshold = thresholds[min(size, len(thresholds) - 1)]
    if b"+" in words or (len(prefixes) > 1 and threshold != -1 and len(words) > threshold):
        groups = {b"+": longer} if longer else {}
    else:
        groups = {word: {path for path in longer if path[size] == word} for word in words}
    found = {at} if prefixes & paths else set()
    for word, group in groups.items():
        found |= joined(paths, thresholds, {path[: size + 1] for path in group}, (*at, word))
    return found


@given(THRESHOLDS, THRESHOLDS, SEQUENCES)
def test_an_heir_joins_what_was_learned_beside_a_varying_level(
    thresholds: list[int], next_thresholds: list[int], topics: list[bytes]
) -> None:
    structure = learned(thresholds, topics)
    heir = structure.inherit(next_thresholds)
    for special in (False, True):
        streams = [stream for stream in structure.streams() if stream.special is special]
        paths = {tuple(stream.levels) for stream in streams if b"+" in stream.levels}
        found = [tuple(each.levels) for each in heir.streams() if each.special is special]
        assert sorted(found) == sorted(joined(paths, next_thresholds, {()}, ()))
    assert heir.has_pending() is False
    assert heir.inherit(next_thresholds).export() == heir.export()
    # No literal path hides in edges without an end: each edge lies on the way to a varying stream.
    prefixes = {
        (stream.special, tuple(stream.levels[:size]))
        for stream in heir.streams()
        for size in range(1, len(stream.levels) + 1)
    }
    ends = len(heir.streams())
    assert int.from_bytes(heir.export()[:4], "little") == len(prefixes) + ends


@given(THRESHOLDS, SEQUENCES)
def test_in_an_heir_the_topics_of_a_varying_level_share_a_stream(
    thresholds: list[int], topics: list[bytes]
) -> None:
    structure = learned(thresholds, topics)
    heir = structure.inherit(thresholds)
    assert len(heir.streams()) <= len(structure.streams())
    for topic in topics:
        placement = structure.lookup(topic)
        if placement is not None and placement.stream.varying_count:
            found = heir.lookup(topic)
            assert found is not None
            assert topic_of(found) == topic
            # What varied before varies now.
            pairs = zip(placement.stream.levels, found.stream.levels, strict=True)
            assert all(now == b"+" for before, now in pairs if before == b"+")


@given(THRESHOLDS, SEQUENCES, SEQUENCES, FILTERS)
def test_matching_holds_in_an_heir_too(
    thresholds: list[int], topics: list[bytes], later: list[bytes], text: bytes
) -> None:
    heir = learned(thresholds, topics).inherit(thresholds)
    placements = {topic: heir.learn(topic) for topic in later}
    topic_filter = TopicFilter.parse(text)
    by_stream = {match.stream.id: match for match in heir.match(list(topic_filter.levels))}
    selected = {
        topic
        for topic, placement in placements.items()
        if placement.stream.id in by_stream
        and accepts(by_stream[placement.stream.id], placement.varying)
    }
    assert selected == {topic for topic in placements if topic_filter.matches(topic)}
