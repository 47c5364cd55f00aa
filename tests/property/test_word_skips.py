"""Readers that skip frames by their words give what a naive model gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from siltstone.fs.publish import replace_file
from siltstone.store.database import Database
from siltstone.store.log.read.scan import ReadReport, Span
from siltstone.store.log.read.selection import RunReader
from siltstone.store.segment.segment import Segment
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import (
    NAME,
    NOW_US,
    World,
    drain_streams,
    naive_match,
    read_topics,
    rows_on,
)
from tests.support.pieces import run_of

WORDS = ["a", "b", "", "ä", "x" * 200, "1"]
FIRST = [*WORDS, "$SYS"]
Call = list[str]


def topics() -> st.SearchStrategy[str]:
    rest = st.lists(st.sampled_from(WORDS), max_size=3)
    return (
        st.tuples(st.sampled_from(FIRST), rest)
        .map(lambda parts: "/".join([parts[0], *parts[1]]))
        .filter(bool)
    )


def filters() -> st.SearchStrategy[str]:
    rest = st.lists(st.sampled_from([*WORDS, "+"]), max_size=3)
    return (
        st.tuples(st.sampled_from([*FIRST, "+"]), rest, st.booleans())
        .map(lambda parts: "/".join([parts[0], *parts[1], *(["#"] if parts[2] else [])]))
        .filter(bool)
    )


def calls() -> st.SearchStrategy[list[Call]]:
    return st.lists(st.lists(topics(), min_size=1, max_size=3), min_size=1, max_size=12)


def segments(database: Database) -> list[Segment]:
    slabs = database._shards.all()  # noqa: SLF001 - users have no segments
    return [handle.segment() for slab in slabs for handle in slab.handles()]


def bulk_topics(world: World, database: Database, several: list[str], grain: int) -> list[str]:
    """Read as Spark does: frames that are joined up to some bytes, each run by itself."""
    found: list[str] = []
    for extent in database.extents():
        choice = database.choose(extent.slab, several, extent.serials)
        reader = RunReader(world.fs, PurePath("/data/data") / NAME, choice.wanted, Span())
        for place in choice.joined(grain, 1 << 62):
            for part in reader.read(run_of(place)):
                found += part.column("topic").to_pylist()
    return found


def fed_topics(database: Database, several: list[str], count: int) -> list[str]:
    found: list[str] = []
    with database.feed(several) as feed:
        while len(found) < count:
            read = feed.next(timeout=10)
            assert read is not None, "a row is missing"
            found += [row.topic for row in read.rows()]
    return found


@given(
    before=calls(),
    behind=calls(),
    several=st.lists(filters(), min_size=1, max_size=3),
    thresholds=st.sampled_from([(0,), (1, 0), (2,), (-1, 0, 1)]),
    sealed=st.booleans(),
    grain=st.sampled_from([1, 700, 1 << 20]),
)
def test_no_reader_misses_a_row(
    before: list[Call],
    behind: list[Call],
    several: list[str],
    thresholds: tuple[int, ...],
    sealed: bool,
    grain: int,
) -> None:
    world = World()
    with world.database(thresholds=thresholds) as database:
        for call in before:
            database.append(rows_on(*call)).wait()
        for segment in segments(database):
            segment.index_words(1)
        for call in behind:
            database.append(rows_on(*call)).wait()
        if sealed:
            database.seal()
    every = [topic for call in [*before, *behind] for topic in call]
    wanted = several[0]
    one = sorted(topic for topic in every if naive_match(wanted, topic))
    any_of = sorted(topic for topic in every if any(naive_match(each, topic) for each in several))
    with world.reader() as database:
        if not sealed:
            segments(database)[-1].index_words(1)
        assert segments(database)[0].index.words.count > len(before)
        assert sorted(read_topics(database, wanted)) == one
        assert sorted(row.topic for row in drain_streams(database, wanted, rows_max=2)) == one
        assert database.count(wanted) == len(one)
        assert sorted(bulk_topics(world, database, several, grain)) == any_of
        assert sorted(fed_topics(database, several, len(any_of))) == any_of


def some_hosts(world: World, *, sealed: bool) -> None:
    """Store frames of one row, of which one in a hundred has the host 7."""
    with world.database(thresholds=(-1, 0), segment_bytes=1 << 20) as database:
        for number in range(300):
            database.append(rows_on(f"m/h{number % 100}/cpu")).wait()
        if sealed:
            database.seal()


def listed(database: Database, topic_filter: str) -> list[int]:
    choice = database.choose(SlabId(0, 1), [topic_filter], range(1 << 62))
    return [place.first_serial for place in choice.frames]


def test_frames_without_the_word_are_skipped() -> None:
    world = World()
    some_hosts(world, sealed=True)
    with world.reader() as database:
        assert listed(database, "m/h7/#") == [7, 107, 207]
        assert listed(database, "+/+/cpu") == list(range(300))
        assert listed(database, "m/none/+") == []


def test_an_index_file_of_an_earlier_build_has_no_words() -> None:
    world = World()
    some_hosts(world, sealed=True)
    (path,) = [
        PurePath("/data/data") / NAME / "0/1" / entry.name
        for entry in world.fs.list(PurePath("/data/data") / NAME / "0/1")
        if entry.name.endswith(".idx")
    ]
    data = bytearray(world.fs.read(path))
    with world.reader() as database:
        segment = segments(database)[0]
        words = segment.index.words.to_bytes()
    assert data.endswith(words)
    cut = data[: -len(words) - 8]
    head = bytes(cut[:4]) + crc32c(bytes(cut[8:])).to_bytes(4, "little")
    replace_file(world.fs, path, head + bytes(cut[8:]))
    with world.reader() as database:
        assert segments(database)[0].index.words.count == 0
        assert read_topics(database, "m/h7/#") == ["m/h7/cpu"] * 3


def test_readers_with_filters_build_the_index_when_it_pays() -> None:
    world = World()
    with world.database(thresholds=(-1, 0), segment_bytes=1 << 20) as database:
        for number in range(1100):
            database.append(rows_on(f"m/h{number % 100}/cpu"), durability="written").wait()
    with world.reader() as database:
        counts = []
        for _ in range(6):
            assert len(listed(database, "m/h7/#")) in (11, 1100)
            counts.append(segments(database)[-1].index.words.count)
    assert counts[:3] == [0, 0, 1101]
    assert counts[-1] == 1101


def test_a_read_reports_what_it_skips() -> None:
    world = World()
    some_hosts(world, sealed=True)
    with world.reader() as database:
        planned = database.explain("m/h7/#")
        report = ReadReport()
        assert read_topics(database, "m/h7/#", report=report) == ["m/h7/cpu"] * 3
    # Each of the two segments begins with a frame that holds its state, and the second has no rows.
    expected = ReadReport(
        segments=2, segments_read=1, frames=302, frames_read=3, rows=300, rows_scanned=3
    )
    assert planned == expected
    assert report == replace(expected, rows_returned=3)
    assert str(report) == (
        "read 1 of 2 segments and 3 of 302 frames: scanned 3 of 300 rows, returned 3"
    )


def test_a_report_counts_segments_outside_the_time() -> None:
    world = World()
    with world.database(thresholds=(0,)) as database:
        for _ in range(1200):
            database.append(rows_on("a", "b", "c")).wait()
        assert database.explain("#", until_us=NOW_US + 3).rows == 3600
        report = database.explain("#", until_us=NOW_US + 3)
        assert (report.frames_read, report.rows_scanned, report.segments_read) == (1, 3, 1)
        assert report.segments > 1
