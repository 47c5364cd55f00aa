from __future__ import annotations

import pytest

from siltstone.store.kv.keys import TIME_END
from siltstone.store.tx.commit.conflicts import ReadRange, RecentWrites, exact_topic, literal_prefix
from siltstone.topic.grammar import TopicFilter

WINDOW = 5.0


def recent(writes_max: int = 100, serial: int = 0) -> RecentWrites:
    return RecentWrites(writes_max, WINDOW, serial, 0.0)


def noted(*writes: tuple[int, str, int], writes_max: int = 100) -> RecentWrites:
    """Return what remembers writes of (serial, topic, time)."""
    found = recent(writes_max)
    last = 0
    for serial, topic, time_us in writes:
        if serial != last:
            found.begin(serial)
            last = serial
        found.note(topic.encode(), time_us)
    return found


def read_of(text: str, since_us: int = 0, until_us: int = TIME_END) -> ReadRange:
    parsed = TopicFilter.parse(text)
    topic = exact_topic(parsed)
    return ReadRange(topic, None if topic else parsed, since_us, until_us)


@pytest.mark.parametrize("text", ["a/x", "a/+", "#", "+/x", "a/#", "a/x/#"])
@pytest.mark.parametrize(
    ("since_us", "until_us", "conflicts"),
    [
        (0, TIME_END, True),
        (5, 6, True),
        (5, 5, False),
        (6, 7, False),
        (0, 5, False),
        (0, 6, True),
        (6, TIME_END, False),
    ],
)
def test_a_read_conflicts_with_a_write_at_a_time_of_its_half_open_range(
    text: str, since_us: int, until_us: int, conflicts: bool
) -> None:
    found = noted((1, "a/x", 5)).conflicting(read_of(text, since_us, until_us), 0)
    assert found == (b"a/x" if conflicts else b"")


@pytest.mark.parametrize("text", ["a/y", "a", "a/x/y", "b/+", "+", "+/y", "$s/#", "a/x/+"])
def test_a_read_of_other_topics_does_not_conflict(text: str) -> None:
    assert noted((1, "a/x", 5)).conflicting(read_of(text), 0) == b""


def test_a_leading_wildcard_does_not_read_special_topics() -> None:
    writes = noted((1, "$s/x", 5))
    assert writes.conflicting(read_of("#"), 0) == b""
    assert writes.conflicting(read_of("$s/#"), 0) == b"$s/x"


@pytest.mark.parametrize("text", ["a/x", "a/+"])
def test_only_later_commits_conflict(text: str) -> None:
    writes = noted((1, "a/x", 5), (2, "b", 5), (3, "a/x", 7))
    serials = [writes.conflicting(read_of(text), serial) != b"" for serial in range(5)]
    assert serials == [True, True, True, False, False]
    early = [writes.conflicting(read_of(text, 5, 6), serial) != b"" for serial in range(5)]
    assert early == [True, False, False, False, False]


@pytest.mark.parametrize("text", ["a/x", "a/+"])
@pytest.mark.parametrize(
    ("since_us", "until_us", "conflicts"),
    [(0, 3, False), (0, 4, True), (3, 8, True), (7, 8, True), (8, 9, False), (5, 6, True)],
)
def test_a_range_that_was_changed_is_half_open_too(
    text: str, since_us: int, until_us: int, conflicts: bool
) -> None:
    writes = recent()
    writes.begin(1)
    writes.note(b"b", 1)
    writes.note_range(b"a/x", 3, 8)
    writes.note(b"c", 1)
    found = writes.conflicting(read_of(text, since_us, until_us), 0)
    assert (found != b"") == conflicts


def test_writes_are_forgotten_by_age_half_by_half() -> None:
    writes = noted((1, "a", 1))
    writes.turn(1, WINDOW - 0.1)
    assert (writes.floor, len(writes)) == (0, 1)
    writes.turn(1, WINDOW)
    assert (writes.floor, len(writes)) == (0, 1)
    writes.begin(2)
    writes.note(b"b", 1)
    assert writes.conflicting(read_of("a"), 0) == b"a"
    assert writes.conflicting(read_of("+"), 1) == b"b"
    assert writes.conflicting(read_of("a"), 1) == b""
    writes.turn(2, 2 * WINDOW)
    assert (writes.floor, len(writes)) == (1, 1)
    assert writes.conflicting(read_of("b"), 1) == b"b"
    writes.turn(2, 3 * WINDOW)
    assert (writes.floor, len(writes)) == (2, 0)


def test_writes_are_forgotten_by_number_half_by_half() -> None:
    writes = recent(writes_max=10)
    for serial in range(1, 101):
        writes.begin(serial)
        writes.note(b"%d" % serial, 0)
        writes.turn(serial, 0.0)
        assert len(writes) <= 10
        remembered = [n for n in range(1, serial + 1) if writes.conflicting(read_of(str(n)), 0)]
        # Everything behind the floor is remembered.
        assert remembered[0] <= writes.floor + 1
        assert remembered == list(range(remembered[0], serial + 1))
    assert writes.floor == 95


def test_other_bounds_hold_from_when_they_are_set() -> None:
    writes = noted((1, "a", 1), (2, "b", 1))
    writes.turn(2, 1.0)
    assert writes.floor == 0
    writes.bound(2, WINDOW)
    writes.turn(2, 1.0)
    writes.turn(2, 1.0 + WINDOW)
    assert writes.floor == 2


def test_what_is_pending_can_be_looked_up() -> None:
    writes = noted((1, "a/x", 1), (2, "a/x", 2), (2, "a/y", 3), (3, "a/x", 4), (3, "b", 5))
    assert writes.times_of(b"a/x", 1) == [4, 2]
    assert writes.times_of(b"a/x", 3) == []
    assert writes.times_of(b"none", 0) == []
    assert writes.topics_of(TopicFilter.parse("a/+"), 1) == [b"a/x", b"a/y"]
    assert writes.topics_of(TopicFilter.parse("#"), 2) == [b"a/x", b"b"]
    assert writes.topics_of(TopicFilter.parse("c/#"), 0) == []


def test_filters_are_told_from_topics() -> None:
    texts = ["a/b", "a/+", "a/#", "#", "+", "a//b", "/", "+/b"]
    assert [exact_topic(TopicFilter.parse(text)) for text in texts] == [
        b"a/b",
        b"",
        b"",
        b"",
        b"",
        b"a//b",
        b"/",
        b"",
    ]
    assert [literal_prefix(TopicFilter.parse(text)) for text in texts[1:5]] == [
        b"a",
        b"a",
        b"",
        b"",
    ]


def test_a_read_says_what_was_asked_for() -> None:
    assert [str(read_of(text)) for text in ("a/b", "a/+")] == ["a/b", "a/+"]
