"""Read a database in every possible way, and check that all ways agree."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from siltstone.store.database import Database
from siltstone.store.log.iterator import StreamRef
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.read.scan import Status
from tests.support.builders import naive_match
from tests.support.rows import ROW_COLUMNS, rows_of

# A leading wildcard does not see topics that start with $: MQTT 4.7.2.
EVERYTHING = ("#", "$SYS/#")


def by_time(row: Row) -> tuple[int, int]:
    return row.timestamp_us, row.shard


def read_rows(
    database: Database, topic_filter: str, *, since_us: int = 0, until_us: int | None = None
) -> list[Row]:
    """Return the rows of `read`; rows with the same µs, from different shards, by shard."""
    found = [
        row
        for batch in database.read(
            topic_filter, since_us=since_us, until_us=until_us, columns=ROW_COLUMNS
        )
        for row in rows_of(batch)
    ]
    assert [row.timestamp_us for row in found] == sorted(row.timestamp_us for row in found)
    return sorted(found, key=by_time)


def drain(
    database: Database,
    stream: StreamRef,
    topic_filter: str,
    *,
    rows_max: int = 7,
    since_us: int = 0,
    until_us: int | None = None,
) -> tuple[list[Row], Status]:
    """Read one stream to its end; return its rows and the last status."""
    iterator = database.iterator(stream, topic_filter, since_us)
    rows: list[Row] = []
    while True:
        read = database.next(iterator, rows_max, until_us=until_us)
        found = read.batch.rows()
        assert len(found) == len(read.batch) <= rows_max
        rows += found
        if read.status is not Status.MORE:
            return rows, read.status
        assert len(found) == rows_max
        iterator = read.iterator


def stream_rows(
    database: Database, topic_filter: str, *, since_us: int = 0, until_us: int | None = None
) -> list[Row]:
    """Return the rows of all iterators of the filter, and check each iterator."""
    current = {info.slab for info in database.slabs() if info.state == "current"}
    rows: list[Row] = []
    streams = database.streams(topic_filter, since_us)
    assert len(streams) == len({(stream.slab, stream.stream_id) for stream in streams})
    for stream in streams:
        found, status = drain(database, stream, topic_filter, since_us=since_us, until_us=until_us)
        assert status is Status.LIMIT or (status is Status.CAUGHT_UP) == (stream.slab in current)
        assert [row.serial for row in found] == sorted({row.serial for row in found})
        for row in found:
            assert (row.shard, row.generation) == (stream.slab.shard, stream.slab.generation)
            assert row.stream == stream.stream_id
            assert naive_match(stream.pattern, row.topic) or row.topic[0] == "$"
        rows += found
    return sorted(rows, key=by_time)


def check_filter(
    database: Database,
    expected: list[Row],
    topic_filter: str,
    *,
    since_us: int = 0,
    until_us: int | None = None,
) -> None:
    """Check that every way of reading returns what naive matching selects."""
    picked = [
        row
        for row in sorted(expected, key=by_time)
        if naive_match(topic_filter, row.topic)
        and row.timestamp_us >= since_us
        and (until_us is None or row.timestamp_us < until_us)
    ]
    ways: list[Callable[..., list[Row]]] = [read_rows, stream_rows]
    for way in ways:
        assert way(database, topic_filter, since_us=since_us, until_us=until_us) == picked
    assert database.count(topic_filter, since_us=since_us, until_us=until_us) == len(picked)


def check_everything(database: Database) -> list[Row]:
    """Read all rows in every way, check the general invariants; return the rows by time."""
    rows = sorted((row for name in EVERYTHING for row in read_rows(database, name)), key=by_time)
    for name in EVERYTHING:
        check_filter(database, rows, name)
    serials = {(row.shard, row.serial) for row in rows}
    assert len(serials) == len(rows), "a serial was given twice"
    slabs = {(info.slab.shard, info.slab.generation): info for info in database.slabs()}
    for shard in range(database.settings.shards):
        _check_shard([row for row in rows if row.shard == shard])
    for row in rows:
        info = slabs[row.shard, row.generation]
        assert info.since_us <= row.timestamp_us
        assert info.until_us is None or row.timestamp_us < info.until_us
    for (shard, generation), info in slabs.items():
        held = [row for row in rows if (row.shard, row.generation) == (shard, generation)]
        assert info.rows == len(held)
        assert info.streams == len({row.stream for row in held})
    structure = {(info.slab, info.stream_id): info.rows for info in database.structure()}
    assert sum(structure.values()) == len(rows)
    return rows


def _check_shard(rows: list[Row]) -> None:
    for before, after in pairwise(rows):
        assert before.timestamp_us < after.timestamp_us
        assert before.generation <= after.generation
        if before.stream == after.stream or before.generation < after.generation:
            assert before.serial < after.serial
