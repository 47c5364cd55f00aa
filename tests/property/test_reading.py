"""Every way of reading agrees with a list in memory, whatever was learned, split, packed or cut."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from siltstone.store.database import Database
from siltstone.store.log.read.pieces import COLUMNS, Row
from siltstone.store.log.read.scan import Status
from siltstone.store.log.write.partition import shard_of
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import NOW_US, World, drain, naive_match, read_rows

WORDS = st.sampled_from(["", "a", "ä.*", "$x"])
TOPICS = st.lists(WORDS, min_size=1, max_size=3).map("/".join).filter(bool)
SETTINGS = st.fixed_dictionaries(
    {
        "shards": st.sampled_from([1, 1, 2, 3]),
        "shard_by": st.sampled_from(["publisher", "topic"]),
        "thresholds": st.lists(st.sampled_from([-1, 0, 0, 1]), min_size=1, max_size=3).map(tuple),
        "compression": st.sampled_from(["none", "zstd", "lz4"]),
        "topic_cache": st.sampled_from([2, 8, 1000]),
    }
)
# Three large values roll a segment.
VALUES = st.sampled_from([b"", b"v", b"\x00\xff", bytes(20_000)])
ROWS = st.tuples(
    TOPICS,
    VALUES,
    st.sampled_from(["", "p", "q", "r"]),
    st.sampled_from([0, 1, 2]),
    st.booleans(),
    st.sampled_from([b"", b"x"]),
).map(lambda fields: Row(*fields))
STEPS = st.lists(
    st.one_of(
        st.lists(ROWS, min_size=3, max_size=10),
        st.lists(ROWS, max_size=10),
        st.sampled_from(["seal", "drop", "advance", "reopen", "restart times"]),
    ),
    min_size=3,
    max_size=12,
)
# All of time is asked for as often as any part of it: whole segments are counted by their index.
SPANS = st.just((-1000, None)) | st.tuples(st.integers(-40, 60), st.none() | st.integers(-40, 60))


class Sketch(NamedTuple):
    """A filter to be: the topic of a row that is there, some levels of it made wildcards."""

    row: int
    wild: list[bool]
    cut: int

    def drawn(self, rows: list[Row]) -> str:
        levels = rows[self.row % len(rows)].topic.split("/") if rows else ["a"]
        drawn = ["+" if wild else word for word, wild in zip(levels, self.wild, strict=False)]
        return "/".join([*drawn[: self.cut], "#"] if self.cut < 3 else drawn)


SKETCHES = st.builds(
    Sketch,
    row=st.integers(0, 30),
    wild=st.lists(st.sampled_from([False, False, True]), min_size=3, max_size=3),
    cut=st.integers(0, 5),
)


@dataclass
class Model:
    """What the database holds, as rows; their stream is left out."""

    rows: list[Row] = field(default_factory=list)
    # The current one of each shard.
    generations: dict[int, int] = field(default_factory=dict)
    dropped: int = 0

    def look_at(self, database: Database) -> None:
        """Note which slabs take rows now."""
        current = [info.slab for info in database.slabs() if info.state == "current"]
        self.generations = {slab.shard: slab.generation for slab in current}

    def matching(self, topic_filter: str, since_us: int, until_us: int | None) -> list[Row]:
        return [
            row
            for row in sorted(self.rows, key=by_time)
            if naive_match(topic_filter, row.topic)
            and row.timestamp_us >= since_us
            and (until_us is None or row.timestamp_us < until_us)
        ]


def by_time(row: Row) -> tuple[int, int, int]:
    return row.timestamp_us, row.shard, row.serial


def in_order(rows: list[Row]) -> list[Row]:
    """Return rows without their stream; those of one µs by shard, then by serial."""
    times = [row.timestamp_us for row in rows]
    assert times == sorted(times)
    return sorted((row._replace(stream=0) for row in rows), key=by_time)


def append(database: Database, model: Model, rows: list[Row]) -> None:
    ticket = database.append(rows)
    settings = database.settings
    for row, serial, time in zip(rows, ticket.serials(), ticket.timestamps(), strict=True):
        key = row.topic if settings.shard_by == "topic" else row.publisher
        shard = shard_of(key.encode(), settings.shards)
        generation = model.generations[shard]
        model.rows.append(
            row._replace(timestamp_us=time, shard=shard, generation=generation, serial=serial)
        )


def drop_oldest(database: Database, model: Model) -> None:
    """Drop the oldest generation of every shard, where one is sealed."""
    if model.dropped + 1 < min(model.generations.values()):
        model.dropped += 1
        for shard in range(database.settings.shards):
            database.drop_slab(SlabId(shard, model.dropped))
        model.rows = [row for row in model.rows if row.generation > model.dropped]


@contextmanager
def lived_through(
    settings: dict[str, Any], steps: list[Any]
) -> Iterator[tuple[World, Database, Model]]:
    """Open a database and take it through the steps, with a model at its side."""
    world = World()
    model = Model()
    with ExitStack() as stack:
        database = stack.enter_context(world.database(**settings))
        model.look_at(database)
        for step in steps:
            match step:
                case "seal":
                    database.seal()
                    model.look_at(database)
                case "restart times":
                    world.clock.jump(-25e-6)
                    database.restart_times()
                    model.look_at(database)
                case "drop":
                    drop_oldest(database, model)
                case "advance":
                    world.clock.advance(10e-6)
                case "reopen":
                    stack.close()
                    database = stack.enter_context(world.database())
                case rows:
                    append(database, model, rows)
        yield world, database, model


def bounds(span: tuple[int, int | None]) -> tuple[int, int | None]:
    since, until = span
    return NOW_US + since, None if until is None else NOW_US + until


@given(SETTINGS, STEPS, st.lists(st.tuples(SKETCHES, SPANS), min_size=1, max_size=5))
def test_read_and_count_find_exactly_what_matches(
    settings: dict[str, Any],
    steps: list[Any],
    questions: list[tuple[Sketch, tuple[int, int | None]]],
) -> None:
    with lived_through(settings, steps) as (world, writer, model), world.reader() as reader:
        for sketch, span in questions:
            topic_filter = sketch.drawn(model.rows)
            since_us, until_us = bounds(span)
            options: dict[str, Any] = {"since_us": since_us, "until_us": until_us}
            expected = model.matching(topic_filter, since_us, until_us)
            for database in (writer, reader):
                assert in_order(read_rows(database, topic_filter, **options)) == expected
                assert database.count(topic_filter, **options) == len(expected)


@given(SETTINGS, STEPS, SKETCHES, st.integers(1, 4), SPANS)
def test_streams_and_positions_find_exactly_what_matches(
    settings: dict[str, Any],
    steps: list[Any],
    sketch: Sketch,
    rows_max: int,
    span: tuple[int, int | None],
) -> None:
    since_us, until_us = bounds(span)
    with lived_through(settings, steps) as (_, database, model):
        topic_filter = sketch.drawn(model.rows)
        found: list[Row] = []
        rest: list[Row] = []
        for stream in database.streams(topic_filter, since_us):
            iterator = database.iterator(stream, topic_filter, since_us)
            rows, iterator, status = drain(database, iterator, rows_max=rows_max, until_us=until_us)
            ended = stream.slab.generation < model.generations[stream.slab.shard]
            whole = Status.END if ended else Status.CAUGHT_UP
            assert status is whole or (status is Status.LIMIT and until_us is not None)
            assert [row.serial for row in rows] == sorted(row.serial for row in rows)
            assert {row.stream for row in rows} <= {stream.stream_id}
            found += rows
            later, _, status = drain(database, iterator, rows_max=rows_max)
            assert status is whole
            rest += later
    by_place = sorted(row._replace(stream=0) for row in found)
    assert by_place == sorted(model.matching(topic_filter, since_us, until_us))
    both = sorted(row._replace(stream=0) for row in found + rest)
    assert both == sorted(model.matching(topic_filter, since_us, None))


@given(
    SETTINGS,
    STEPS,
    SKETCHES,
    st.integers(0, 20),
    st.lists(st.sampled_from(COLUMNS), min_size=1, unique=True),
)
def test_fewer_rows_and_columns_are_a_part_of_the_whole(
    settings: dict[str, Any],
    steps: list[Any],
    sketch: Sketch,
    rows_max: int,
    columns: list[str],
) -> None:
    with lived_through(settings, steps) as (_, database, model):
        topic_filter = sketch.drawn(model.rows)
        whole = [
            row
            for batch in database.read(topic_filter)
            for row in batch.select(columns).to_pylist()
        ]
        part = [
            row
            for batch in database.read(topic_filter, rows_max=rows_max, columns=columns)
            for row in batch.to_pylist()
        ]
    assert part == whole[:rows_max]
