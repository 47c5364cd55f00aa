"""The index of words never hides a frame with a matching topic, and names few others."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from siltstone.topic.word_index import (
    HASHES_MAX,
    LEVELS_MAX,
    RUN_FRAMES,
    WordIndex,
    needed_words,
    word_hash,
)

HASHES = [12794, 29772, 65409, 52954]
WORDS = [b"", b"a", b"b", b"\xc3\xa4", b"$SYS", b"x" * 300, b"1", b"2"]
Frames = list[list[bytes]]


def topics() -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(WORDS), min_size=1, max_size=5).map(b"/".join)


def frames() -> st.SearchStrategy[Frames]:
    """Some frames have no topics: they are unknown."""
    return st.lists(st.lists(topics(), max_size=4), max_size=12)


def added(index: WordIndex, some: Frames) -> None:
    words = sorted({topic for frame in some for topic in frame})
    numbers = {word: number for number, word in enumerate(words)}
    pairs = [(n, numbers[topic]) for n, frame in enumerate(some) for topic in frame]
    columns = np.array(pairs, np.int64).reshape(-1, 2)
    index.add(len(some), columns[:, 0], columns[:, 1], words)


def has(frame: list[bytes], wanted: list[tuple[int, bytes]]) -> bool:
    """Tell what the index may say of a frame: each word, but maybe not in one topic."""
    held = {pair for topic in frame for pair in enumerate(topic.split(b"/"))}
    return not frame or set(wanted) <= held


@given(
    st.lists(frames(), min_size=1, max_size=3),
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from(WORDS)), max_size=3),
    st.integers(0, 8),
    st.integers(0, 40),
)
def test_the_index_names_exactly_the_frames_with_the_words(
    parts: list[Frames], wanted: list[tuple[int, bytes]], start: int, more: int
) -> None:
    index = WordIndex()
    for part in parts:
        added(index, part)
    every = [frame for part in parts for frame in part]
    stop = start + more
    # None of these few words have equal hashes. Frames behind the last one may hold everything.
    expected = [n >= len(every) or has(every[n], wanted) for n in range(start, stop)]
    for each in (index, WordIndex.from_bytes(index.to_bytes())):
        assert each.count == len(every)
        assert each.holding(needed_words(wanted), start, stop).tolist() == expected


def test_the_words_of_these_tests_have_hashes_of_their_own() -> None:
    pairs = [(level, word) for level in range(6) for word in WORDS]
    assert len({word_hash(*pair) for pair in pairs}) == len(pairs)


@given(st.lists(topics(), min_size=1, max_size=6))
def test_frames_one_by_one_are_as_frames_at_once(some: list[bytes]) -> None:
    one, many = WordIndex(), WordIndex()
    for topic in some:
        one.add_frame([topic])
        added(many, [[topic]])
    assert one.to_bytes() == many.to_bytes()


def test_hosts_are_found_with_few_false_positives() -> None:
    rnd = Random(1)
    some = [
        [
            b"metrics/host_%d/cpu/socket/%d/core/%d"
            % (rnd.randrange(1000), rnd.randrange(2), rnd.randrange(8))
            for _ in range(rnd.choice((1, 2)))
        ]
        for _ in range(3 * RUN_FRAMES + 17)
    ]
    index = WordIndex()
    added(index, some)
    index = WordIndex.from_bytes(index.to_bytes())
    false = 0
    for host in range(30):
        wanted = [(1, b"host_%d" % host)]
        found = index.holding(needed_words(wanted), 0, len(some))
        expected = np.array([has(frame, wanted) for frame in some])
        assert not (expected & ~found).any()
        false += int((found & ~expected).sum())
    # One frame in 65,536 for each of its hashes, and a frame has at most six that vary.
    assert false / (30 * len(some)) < 6 / 65_536 * 2
    # The words that never change cost nothing: three hashes for each topic remain.
    assert len(index.to_bytes()) < len(some) * (2 + 1.5 * 3 * 2) + 200


def test_large_frames_with_many_words_are_found_with_few_false_positives() -> None:
    index = WordIndex()
    for first in range(0, 50_000, 1000):
        index.add_frame(b"metrics/host_%d/cpu" % host for host in range(first, first + 1000))
    false = 0
    for host in range(0, 50_000, 500):
        found = index.holding(needed_words([(1, b"host_%d" % host)]), 0, 50)
        assert found[host // 1000]
        false += int(found.sum()) - 1
    assert false / (100 * 49) < 0.02


def test_a_frame_with_too_many_words_is_unknown() -> None:
    index = WordIndex()
    index.add_frame(b"a/%d" % number for number in range(2 * HASHES_MAX))
    assert index.holding(needed_words([(1, b"none")]), 0, 1).tolist() == [True]


def test_levels_behind_the_limit_are_not_asked() -> None:
    topic = b"/".join(b"%d" % level for level in range(2 * LEVELS_MAX))
    index = WordIndex()
    index.add_frame([topic])
    assert index.holding(needed_words([(LEVELS_MAX, b"other")]), 0, 1).tolist() == [True]
    assert index.holding(needed_words([(LEVELS_MAX - 1, b"other")]), 0, 1).tolist() == [False]


def test_known_hashes_are_forgotten_when_they_are_many() -> None:
    index = WordIndex()
    some = [b"%d/b" % number for number in range(70_000)]
    for topic in some[::1000]:
        index.add_frame([topic])
    added(index, [some[:40_000], some[40_000:]])
    index.add_frame([b"1/b"])
    assert index.holding(needed_words([(0, b"1")]), 71, 73).tolist() == [True, True]


def test_hashes_are_those_of_earlier_builds() -> None:
    found = [word_hash(0, b"plant"), word_hash(1, b"plant"), word_hash(5, b""), word_hash(2, b"+")]
    assert found == HASHES


@pytest.mark.parametrize("cut", [1, 8, 15, 17, 20])
def test_cut_bytes_are_refused(cut: int) -> None:
    index = WordIndex()
    added(index, [[b"a/b"], [b"a/c"]])
    with pytest.raises(ValueError, match="index of words"):
        WordIndex.from_bytes(index.to_bytes()[:cut])


def test_wrong_counts_are_refused() -> None:
    index = WordIndex()
    added(index, [[b"a/b"], [b"a/c"]])
    data = bytearray(index.to_bytes())
    data[16] += 1
    with pytest.raises(ValueError, match="wrong counts"):
        WordIndex.from_bytes(bytes(data))
