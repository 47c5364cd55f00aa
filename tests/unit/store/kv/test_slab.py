from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import pytest

from siltstone.errors import SlabDroppedError
from siltstone.store.kv.keys import TIME_END, row_key, row_prefix
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.kv.slab import Found, KeyValueSlab
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.structure import Structure
from tests.support.kv_suite import changes_of

THRESHOLDS = [[-1], [0], [1], [-1, 0, -1, 0]]
Row = tuple[str, int]


def slab_of(
    rows: Iterable[Row], thresholds: list[int], *, timed: bool = True, topics_max: int = 100
) -> KeyValueSlab:
    """Make a slab that has these rows, each with its topic and time as its value."""
    engine = MemoryEngine()
    engine.create_family("f")
    structure = Structure(thresholds)
    values: dict[bytes, bytes | None] = {}
    for topic, time_us in rows:
        placement = structure.learn(topic.encode())
        place = row_prefix(placement.stream.id, placement.varying)
        values[row_key(place, time_us, timed)] = f"{topic} {time_us}".encode()
    engine.write(changes_of("f", values))
    structure.take_pending()
    return KeyValueSlab(engine, "f", structure, timed=timed, topics_max=topics_max)


def plain(found: Iterable[Found]) -> list[Row]:
    rows = []
    for row in found:
        assert row.value == f"{row.topic.decode()} {row.time_us}".encode()
        rows.append((row.topic.decode(), row.time_us))
    return rows


def read(
    slab: KeyValueSlab, topic_filter: str, since_us: int = 0, until_us: int = TIME_END
) -> list[Row]:
    return plain(slab.rows(slab.view(), TopicFilter.parse(topic_filter), since_us, until_us))


TOPICS = ["a", "a/x", "a/y", "a/x/1", "a/y/1", "a/y/2", "b/x", "b//1", "/x", "$s/x"]
FILTERS = ["#", "+", "a/#", "+/x", "a/+/1", "a/+/+", "b/+/1", "/+", "$s/#", "a/y", "a/y/+", "c/#"]


@pytest.mark.parametrize("thresholds", THRESHOLDS)
@pytest.mark.parametrize("topic_filter", FILTERS)
def test_rows_are_those_that_the_filter_matches_in_half_open_times(
    thresholds: list[int], topic_filter: str
) -> None:
    rows = list(product(TOPICS, [0, 1, 5, TIME_END - 1]))
    slab = slab_of(rows, thresholds)
    parsed = TopicFilter.parse(topic_filter)
    for since_us, until_us in [(0, TIME_END), (1, 5), (1, 6), (5, 5), (6, TIME_END)]:
        expected = [
            row for row in rows if parsed.matches(row[0].encode()) and since_us <= row[1] < until_us
        ]
        assert sorted(read(slab, topic_filter, since_us, until_us)) == sorted(expected)


def test_a_stream_comes_by_topic_and_then_by_time() -> None:
    slab = slab_of([("a/y", 1), ("a/x", 3), ("a/x", 2), ("a/x!", 1), ("a/x", 1)], [0])
    assert read(slab, "a/+") == [("a/x", 1), ("a/x", 2), ("a/x", 3), ("a/x!", 1), ("a/y", 1)]


@pytest.mark.parametrize("since_us", [0, 1_000, 2_999])
@pytest.mark.parametrize("topic_filter", ["a/+", "+/x", "a/x"])
def test_much_that_does_not_match_is_passed_over(topic_filter: str, since_us: int) -> None:
    rows = list(product(["a/x", "a/y", "b/x"], range(3_000)))
    slab = slab_of(rows, [0])
    expected = [
        row
        for row in rows
        if TopicFilter.parse(topic_filter).matches(row[0].encode())
        and since_us <= row[1] < since_us + 2
    ]
    assert read(slab, topic_filter, since_us, since_us + 2) == expected


@pytest.mark.parametrize("thresholds", THRESHOLDS)
def test_a_plain_map_has_one_row_a_topic_at_time_0(thresholds: list[int]) -> None:
    slab = slab_of([(topic, 0) for topic in TOPICS], thresholds, timed=False)
    below_a = sorted((topic, 0) for topic in TOPICS if topic.split("/")[0] == "a")
    assert sorted(read(slab, "a/#")) == below_a
    assert read(slab, "a/#", 1) == []
    assert plain(slab.topic_rows(slab.view(), b"a/x", 0, TIME_END)) == [("a/x", 0)]
    assert plain(slab.topic_rows(slab.view(), b"a/x", 1, TIME_END)) == []


def test_the_rows_of_one_topic_come_in_order_of_time_however_many() -> None:
    slab = slab_of([("a", time_us) for time_us in range(2_500)] + [("a/b", 7)], [0])
    view = slab.view()
    assert plain(slab.topic_rows(view, b"a", 5, 2_400)) == [("a", n) for n in range(5, 2_400)]
    assert plain(slab.topic_rows(view, b"a", 5, 5)) == []
    assert plain(slab.topic_rows(view, b"none", 0, TIME_END)) == []


def test_a_scan_goes_on_from_a_key() -> None:
    slab = slab_of([("a/x", 1), ("a/x", 2), ("a/y", 1)], [0])
    (match,) = slab.match(TopicFilter.parse("a/+"))
    view = slab.view()
    first = next(slab.scan(view, match, 0, TIME_END))
    rest = slab.scan(view, match, 0, TIME_END, first.key + b"\x00")
    assert plain(rest) == [("a/x", 2), ("a/y", 1)]


def test_rows_begin_with_the_first_topic_in_a_stream_that_may_hold_it() -> None:
    rows = [("a/b", 0), ("a/d", 0), ("a/f", 0), ("b/a", 0), ("c", 0), ("a/b/y", 0)]
    slab = slab_of(rows, [-1, 0], timed=False)
    for first, left_out in (("a/d", ["a/b"]), ("a/e", ["a/b", "a/d"]), ("b", []), ("d/x", [])):
        found = slab.rows(slab.view(), TopicFilter.parse("#"), 0, TIME_END, first.encode())
        assert {*rows} - {*plain(found)} == {(topic, 0) for topic in left_out}


def test_places_are_found_once_and_forgotten_when_there_are_too_many() -> None:
    slab = slab_of([("a/x", 0), ("a/y", 0), ("a/z", 0)], [0], topics_max=2)
    place = slab.place(b"a/x")
    assert place is not None
    assert slab.place(b"none/at/all") is None
    assert slab.places == {b"a/x": place}
    known = slab.places
    slab.place(b"a/y")
    slab.place(b"a/z")
    assert list(slab.places) == [b"a/z"]
    # Who reads the old ones still finds them.
    assert list(known) == [b"a/x", b"a/y"]
    assert slab.place(b"a/x") == place


def test_what_is_published_can_be_found() -> None:
    slab = slab_of([], [0])
    learned = Structure([0])
    placement = learned.learn(b"a/x")
    slab.publish(learned.take_pending(), {b"a/x": b"place"})
    assert slab.places == {b"a/x": b"place"}
    stream = slab.stream(placement.stream.id)
    assert stream is not None
    assert stream.pattern == b"+/+"
    assert slab.export() == learned.export()
    slab.publish(b"", {})
    assert slab.export() == learned.export()


def test_only_streams_with_rows_are_held() -> None:
    slab = slab_of([("a/x", 0)], [-1])
    learned = Structure([-1])
    learned.apply(slab.export())
    learned.learn(b"b/x")
    slab.publish(learned.take_pending(), {})
    everything = TopicFilter.parse("#")
    assert len(slab.match(everything)) == 2
    held = slab.held(slab.view(), everything)
    assert [match.stream.pattern for match in held] == [b"a/x"]


def test_a_slab_whose_family_is_gone_was_dropped() -> None:
    slab = slab_of([("a", 0)], [0])
    slab.engine.drop_family("f")
    with pytest.raises(SlabDroppedError, match="the slab was dropped with its rows"):
        slab.view()
