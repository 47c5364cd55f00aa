"""The match of one stream is the one that a search for all streams finds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from siltstone.store.log.slab import match_of
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.structure import Structure

WORDS = ["a", "b", "", "$SYS"]


def levels(words: list[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from(words), min_size=1, max_size=4)


def texts(words: list[str]) -> st.SearchStrategy[str]:
    return levels(words).map("/".join).filter(bool)


@given(
    st.lists(texts(WORDS), min_size=1, max_size=12),
    st.one_of(st.just("#"), texts([*WORDS, "+", "+"])),
    st.booleans(),
    st.sampled_from([[-1], [0], [1], [-1, 0], [0, -1, 0]]),
)
def test_one_stream_matches_as_in_a_search_for_all(
    topics: list[str], text: str, open_ended: bool, thresholds: list[int]
) -> None:
    structure = Structure(thresholds)
    for topic in topics:
        structure.learn(topic.encode())
    parsed = TopicFilter.parse(f"{text}/#" if open_ended and text != "#" else text)
    expected = {
        match.stream.id: match.constraints for match in structure.match(list(parsed.levels))
    }
    matches = [match_of(stream, parsed) for stream in structure.streams()]
    found = {match.stream.id: match.constraints for match in matches if match is not None}
    assert found == expected
