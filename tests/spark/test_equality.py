"""Whatever was stored, the source finds what the store's own `read` finds, each row once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.scan.node import Node
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import NOW_US, World
from tests.support.flight import served
from tests.support.pipeline import batch_rows, by_place, rows_in, stored_rows, stream_of

WORDS = st.sampled_from(["", "a", "ä.*", "$x"])
TOPICS = st.lists(WORDS, min_size=1, max_size=3).map("/".join).filter(bool)
SETTINGS = st.fixed_dictionaries(
    {
        "shards": st.sampled_from([1, 1, 2, 3]),
        "thresholds": st.lists(st.sampled_from([-1, 0, 0, 1]), min_size=1, max_size=3).map(tuple),
        "compression": st.sampled_from(["none", "zstd", "lz4"]),
    }
)
# Content type `t`; a user property twice; no properties at all. Three large values roll a segment.
PROPERTIES = st.sampled_from([b"", b"", b"\x03\x00\x01t", b"&\x00\x01k\x00\x01v" * 2, b"x"])
VALUES = st.sampled_from([b"", b"v", b"\x00\xff", bytes(20_000)])
ROWS = st.tuples(
    TOPICS,
    VALUES,
    st.sampled_from(["", "p", "q", "r"]),
    st.sampled_from([0, 1, 2]),
    st.booleans(),
    PROPERTIES,
).map(lambda fields: Row(*fields))
STEPS = st.lists(
    st.one_of(
        st.lists(ROWS, min_size=1, max_size=10),
        st.lists(ROWS, min_size=1, max_size=10),
        st.sampled_from(["seal", "drop", "advance", "reopen"]),
    ),
    min_size=2,
    max_size=10,
)
FILTERS = st.lists(
    st.sampled_from(
        ["#", "+", "a", "a/#", "+/a", "a/+", "+/a/+", "$x/#", "ä.*/#", "+/+/a", "a//a", "/#"]
    ),
    min_size=1,
    max_size=4,
    unique=True,
).map(tuple)
SPANS = st.just((-10, None)) | st.tuples(st.integers(-2, 60), st.none() | st.integers(-2, 60))
SIZES = st.fixed_dictionaries(
    {
        "rows_per_batch": st.sampled_from([1, 3, 16_384]),
        "rows_per_partition": st.sampled_from([None, 1, 4]),
        "bytes_per_partition": st.sampled_from([200, 5_000, 1 << 26]),
    }
)


@contextmanager
def lived_through(settings: dict[str, Any], steps: list[Any]) -> Iterator[tuple[World, Database]]:
    """Open a database and take it through the steps."""
    world = World()
    with ExitStack() as stack:
        database = stack.enter_context(world.database(**settings))
        for step in steps:
            match step:
                case "seal":
                    database.seal()
                case "drop":
                    drop_oldest(database)
                case "advance":
                    world.clock.advance(10e-6)
                case "reopen":
                    stack.close()
                    database = stack.enter_context(world.database())
                case rows:
                    database.append(rows).wait()
        yield world, database


@contextmanager
def served_by_flight(world: World) -> Iterator[Node]:
    """Serve what another process finds on the disk of a world."""
    with world.store(read_only=True) as store, served(store, world.fs) as node:
        yield node


def drop_oldest(database: Database) -> None:
    sealed = [info.slab for info in database.slabs() if info.state == "sealed"]
    oldest = min((slab.generation for slab in sealed), default=0)
    for slab in sealed:
        if slab.generation == oldest:
            database.drop_slab(SlabId(slab.shard, slab.generation))


def bounds_of(span: tuple[int, int | None]) -> dict[str, Any]:
    since_us = NOW_US + span[0]
    until_us = None if span[1] is None else max(since_us, NOW_US + span[1])
    return {"since_us": since_us, "until_us": until_us}


@given(SETTINGS, STEPS, FILTERS, SPANS, SIZES)
def test_a_batch_query_reads_what_the_store_reads(
    database_settings: dict[str, Any],
    steps: list[Any],
    filters: tuple[str, ...],
    span: tuple[int, int | None],
    sizes: dict[str, Any],
) -> None:
    bounds = bounds_of(span)
    with lived_through(database_settings, steps) as (world, database):
        found = batch_rows(world, filters=filters, **bounds, **sizes)
        expected = stored_rows(database, filters, **bounds)
    assert by_place(found) == expected


@settings(max_examples=30)
@given(SETTINGS, STEPS, FILTERS, SPANS, SIZES)
def test_a_batch_query_over_flight_reads_what_the_store_reads(
    database_settings: dict[str, Any],
    steps: list[Any],
    filters: tuple[str, ...],
    span: tuple[int, int | None],
    sizes: dict[str, Any],
) -> None:
    bounds = bounds_of(span)
    with (
        lived_through(database_settings, steps) as (world, database),
        served_by_flight(world) as node,
    ):
        found = batch_rows(world, node=node, filters=filters, **bounds, **sizes)
        expected = stored_rows(database, filters, **bounds)
    assert by_place(found) == expected


ROWS_PER_TRIGGER = st.sampled_from([None, 1, 3])
BYTES_PER_TRIGGER = st.sampled_from([None, 1, 400])


@given(SETTINGS, STEPS, FILTERS, ROWS_PER_TRIGGER, BYTES_PER_TRIGGER)
def test_micro_batches_add_up_to_what_the_store_reads(
    database_settings: dict[str, Any],
    steps: list[Any],
    filters: tuple[str, ...],
    rows_per_trigger: int | None,
    bytes_per_trigger: int | None,
) -> None:
    with lived_through(database_settings, steps) as (world, database):
        found = followed(
            world,
            filters=filters,
            rows_per_trigger=rows_per_trigger,
            bytes_per_trigger=bytes_per_trigger,
        )
        expected = stored_rows(database, filters)
    assert by_place(found) == expected


@settings(max_examples=20)
@given(SETTINGS, STEPS, FILTERS, ROWS_PER_TRIGGER, BYTES_PER_TRIGGER)
def test_micro_batches_over_flight_add_up_to_what_the_store_reads(
    database_settings: dict[str, Any],
    steps: list[Any],
    filters: tuple[str, ...],
    rows_per_trigger: int | None,
    bytes_per_trigger: int | None,
) -> None:
    with (
        lived_through(database_settings, steps) as (world, database),
        served_by_flight(world) as node,
    ):
        found = followed(
            world,
            node=node,
            filters=filters,
            rows_per_trigger=rows_per_trigger,
            bytes_per_trigger=bytes_per_trigger,
        )
        expected = stored_rows(database, filters)
    assert by_place(found) == expected


def followed(world: World, **options: Any) -> list[Any]:
    """Return what a stream reads up to its end, in micro-batches that keep to their limit."""
    rows_max = options["rows_per_trigger"]
    stream = stream_of(world, fails_on_loss=False, **options)
    position = stream.initialOffset()
    found: list[Any] = []
    while (end := stream.latestOffset(position, stream.getDefaultReadLimit())) != position:
        rows = rows_in(stream, stream.partitions(position, end))
        assert rows_max is None or len(rows) <= rows_max
        found += rows
        position = end
    stream.stop()
    return found
