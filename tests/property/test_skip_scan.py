"""A scan of a stream of keys that skips rows gives what a naive model gives."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from siltstone.store.kv.api import View
from siltstone.store.kv.keys import TIME_END, row_key, row_prefix
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.kv.slab import KeyValueSlab, skip_key
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.structure import Structure
from tests.support.builders import naive_match
from tests.support.kv_suite import changes_of

# Some sort before a slash, some begin with others, and one is empty.
WORDS = ["", "a", "a-", "a0", "b"]
VARYING = [-1, 0, 0, 0, 0]


def words(more: list[str] | None = None) -> st.SearchStrategy[list[str]]:
    return st.lists(st.sampled_from([*WORDS, *(more or [])]), min_size=3, max_size=3)


def slab_of(rows: set[tuple[str, int]], *, timed: bool) -> KeyValueSlab:
    engine = MemoryEngine()
    engine.create_family("f")
    structure = Structure(VARYING)
    values: dict[bytes, bytes | None] = {}
    for topic, time_us in rows:
        placement = structure.learn(topic.encode())
        place = row_prefix(placement.stream.id, placement.varying)
        values[row_key(place, time_us, timed)] = b""
    engine.write(changes_of("f", values))
    structure.take_pending()
    return KeyValueSlab(engine, "f", structure, timed=timed, topics_max=100)


@given(
    st.sets(st.tuples(words().map("/".join), st.integers(0, 3)), max_size=150),
    words(["+", "+", "+"]).map("/".join),
    st.integers(0, 3),
    st.integers(1, 5),
    st.booleans(),
)
def test_no_row_is_skipped_or_returned_twice(
    rows: set[tuple[str, int]], wanted: str, since_us: int, until_us: int, timed: bool
) -> None:
    stored = {(f"m/{topic}", time_us if timed else 0) for topic, time_us in rows}
    slab = slab_of(stored, timed=timed)
    topic_filter = f"m/{wanted}"
    if not timed:
        since_us, until_us = 0, TIME_END
    found = list(slab.rows(slab.view(), TopicFilter.parse(topic_filter), since_us, until_us))
    expected = [
        row for row in stored if naive_match(topic_filter, row[0]) and since_us <= row[1] < until_us
    ]
    assert sorted((row.topic.decode(), row.time_us) for row in found) == sorted(expected)
    assert [row.key for row in found] == sorted(row.key for row in found)


@given(words(), words(["+"]), words())
def test_a_skip_passes_over_no_match(here: list[str], wanted: list[str], other: list[str]) -> None:
    """Between a row and the key where the scan goes on there is no row that matches."""
    constraints = [None if word == "+" else word.encode() for word in wanted]
    varying = "/".join(here).encode()
    target = skip_key(7, varying, constraints)
    matches = all(word in ("+", mine) for word, mine in zip(wanted, here, strict=True))
    assert bool(target) is not matches
    if target:
        assert target > row_prefix(7, varying)
        if all(word in ("+", mine) for word, mine in zip(wanted, other, strict=True)):
            key = row_prefix(7, "/".join(other).encode())
            assert not row_prefix(7, varying) < key < target


@dataclass
class CountingView:
    """Counts the rows that are read from the engine."""

    view: View
    read: int = field(default=0)

    def get(self, key: bytes) -> bytes | None:
        return self.view.get(key)

    def items(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        found = self.view.items(start, stop, limit)
        self.read += len(found)
        return found

    def last(self, start: bytes, stop: bytes) -> tuple[bytes, bytes] | None:
        return self.view.last(start, stop)

    def release(self) -> None:
        self.view.release()


def test_a_word_behind_a_free_level_does_not_scan_the_stream() -> None:
    rows = {
        (f"m/host-{host}/{socket}/{core}", 0)
        for host in range(50)
        for socket in range(16)
        for core in range(16)
    }
    slab = slab_of(rows, timed=False)
    counting = CountingView(slab.view())
    found = list(slab.rows(counting, TopicFilter.parse("m/+/1/+"), 0, TIME_END))
    assert len(found) == 50 * 16
    assert counting.read < len(rows) / 2
    counting = CountingView(slab.view())
    assert len(list(slab.rows(counting, TopicFilter.parse("m/+/1/3"), 0, TIME_END))) == 50
    assert counting.read < len(rows) / 4
