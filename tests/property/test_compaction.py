"""Compacted segments give the rows, serials and positions of the segments that they replace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from siltstone.fs.paths import StorePaths
from siltstone.scan.plan import Admitted
from siltstone.scan.portion import Portion
from siltstone.scan.survey import admit_from, opened, plan_batch
from siltstone.store.database import Database
from siltstone.store.log.check.verify import verify_database
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.read.scan import Span
from tests.support.builders import NAME, NOW_US, PATH, World, naive_match
from tests.support.compacting import compact_all
from tests.support.frame_rows import FILTERS, a_row
from tests.support.pipeline import options_of, through_pickle
from tests.support.reading import check_everything, read_rows


def some_calls() -> st.SearchStrategy[list[list[Row]]]:
    """Each call is a frame; some have many rows."""
    small = st.lists(a_row(), min_size=1, max_size=3)
    large = st.lists(a_row(), min_size=1, max_size=40)
    return st.lists(st.one_of(small, small, small, large), min_size=2, max_size=20)


@contextmanager
def sealed(world: World, calls: list[list[Row]], **changes: Any) -> Iterator[Database]:
    """Yield a database with these frames in a sealed slab, and a row in the current one."""
    with world.database(thresholds=(-1, 1, 0), **changes) as database:
        for rows in calls:
            database.append(rows).wait()
        database.seal()
        database.append([Row("a", b"behind")]).wait()
        yield database


def portions(world: World, **changes: Any) -> list[Portion]:
    options = options_of(**changes)
    with opened(world.fs, options) as database:
        plan = plan_batch(database, options)
    return [through_pickle(portion) for portion in plan.partitions]


def rows_of_portions(
    world: World, found: list[Portion], span: Span
) -> list[tuple[int, str, bytes]]:
    rows: list[tuple[int, str, bytes]] = []
    for portion in found:
        for part in portion.parts(world.fs, span, fails_on_loss=True):
            columns = [part.column(name).to_pylist() for name in ("serial", "topic", "value")]
            rows += zip(*columns, strict=True)
    return sorted(rows)


@given(some_calls(), st.sampled_from(["none", "zstd"]))
def test_every_way_of_reading_gives_the_rows_of_before(
    calls: list[list[Row]], compression: str
) -> None:
    world = World()
    with sealed(world, calls, compression=compression) as database:
        with world.reader() as reader:
            before = check_everything(reader)
            compact_all(database)
            # This reader has mapped the old file.
            assert check_everything(reader) == before
        assert check_everything(database) == before
        with world.reader() as reader:
            assert check_everything(reader) == before
    with world.database() as database:
        assert check_everything(database) == before
        database.append([Row("a/b", b"after")]).wait()
    place = StorePaths(PATH).database(NAME)
    report = verify_database(world.fs, place, quarantine=PATH / "quarantine")
    assert report.findings == ()
    assert report.rows == len(before) + 1


@given(
    some_calls(),
    st.sampled_from(FILTERS),
    st.integers(0, 30),
    st.integers(0, 60),
    st.sampled_from([1, 7, None]),
    st.booleans(),
)
def test_a_plan_reads_the_same_rows_before_and_after_and_across_a_compaction(
    calls: list[list[Row]],
    text: str,
    first: int,
    count: int,
    rows_max: int | None,
    bounded: bool,
) -> None:
    world = World()
    with sealed(world, calls) as database:
        since, until = (NOW_US + first, NOW_US + first + count) if bounded else (0, None)
        asked = {
            "filters": (text,),
            "rows_per_partition": rows_max,
            "since_us": since,
            "until_us": until,
        }
        span = Span(since_us=since, until_us=until)
        before = portions(world, **asked)
        expected = rows_of_portions(world, before, span)
        assert [row[0] for row in expected] == sorted(
            row.serial
            for row in read_rows(database, "#", since_us=since, until_us=until)
            if naive_match(text, row.topic)
        )
        compact_all(database)
        assert rows_of_portions(world, before, span) == expected
        after = portions(world, **asked)
        assert rows_of_portions(world, after, span) == expected
        for portion in after:
            parts = list(portion.parts(world.fs, span, fails_on_loss=True))
            assert rows_max is None or sum(part.num_rows for part in parts) <= rows_max


@given(some_calls(), st.sampled_from(FILTERS), st.integers(0, 40), st.integers(1, 20))
def test_the_steps_of_a_stream_end_at_the_same_serials(
    calls: list[list[Row]], text: str, start: int, rows_max: int
) -> None:
    world = World()
    with sealed(world, calls) as database:
        options = options_of(filters=(text,))
        end = database.extents()[0].serials.stop

        def step(at: int) -> Admitted:
            with opened(world.fs, options) as reading:
                return admit_from(
                    reading, options, {0: range(at, end)}, rows_max=rows_max, bytes_max=None
                )

        start = min(start, end - 1)
        before = step(start)
        compact_all(database)
        after = step(start)
        assert before.rows == after.rows
        # Between the last row and the next one that matches, any serial is the same position.
        low, high = sorted((before.ends[0], after.ends[0]))
        matching = {row.serial for row in read_rows(database, text)}
        assert not matching & set(range(low, high))


@given(some_calls(), st.integers(0, 2**32))
def test_an_iterator_of_before_goes_on_at_the_same_row(calls: list[list[Row]], seed: int) -> None:
    world, random = World(), Random(seed)
    with sealed(world, calls) as database:
        text = random.choice(FILTERS)
        saved: list[tuple[Any, list[Row]]] = []
        for stream in database.streams(text):
            read = database.next(database.iterator(stream, text), random.randrange(1, 9))
            rest = database.next(read.iterator, 10_000).batch.rows()
            saved.append((read.iterator, rest))
        compact_all(database)
        for place, rest in saved:
            iterator = place
            found: list[Row] = []
            while True:
                read = database.next(iterator, random.randrange(1, 9))
                found += read.batch.rows()
                assert read.batch.arrow().num_rows == len(read.batch)
                if read.status.value != "more":
                    break
                iterator = read.iterator
            assert found == rest


@given(some_calls())
def test_the_digest_depends_on_the_rows_alone(calls: list[list[Row]]) -> None:
    """The same rows in other frames, and compressed in another way, have the same digest."""
    rows = [row for call in calls for row in call if row.topic == "a/b"]
    if len(rows) < 2:
        return
    found = []
    for frames, compression in (([[row] for row in rows], "none"), ([rows[:1], rows[1:]], "zstd")):
        world = World()
        with sealed(world, frames, compression=compression) as database:
            (done,) = compact_all(database)
            found.append(done.digest)
    assert found[0] == found[1]


def test_a_compacted_segment_of_many_frames_is_smaller_and_its_rows_are_whole() -> None:
    world = World()
    calls = [[Row(f"a/{n % 7}", b'{"value": %d}' % n, f"p{n % 3}")] for n in range(700)]
    with sealed(world, calls, segment_bytes=1 << 20) as database:
        before = pa.Table.from_batches(database.read("#"))
        (done,) = compact_all(database)
        # The state, and one frame of all rows.
        assert (done.rows, done.frames) == (700, 2)
        assert 3 * done.size_bytes < done.job.size_bytes
        assert pa.Table.from_batches(database.read("#")).equals(before)
