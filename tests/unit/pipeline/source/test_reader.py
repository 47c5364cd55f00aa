from __future__ import annotations

import logging

import pytest
from pyspark.sql.datasource import DataSourceReader

from siltstone.errors import CorruptionError, UsageError
from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.source.partitions import SourcePartition
from siltstone.pipeline.source.reader import SiltstoneReader
from siltstone.pipeline.source.schema import spark_schema
from siltstone.store.log.check.repair import mend_database
from tests.support.builders import World, rows_on
from tests.support.damage import (
    DATABASE,
    FRAME_ROWS,
    QUARANTINE,
    SEALED,
    flip,
    frames_of,
    small_world,
)
from tests.support.pipeline import (
    batch_rows,
    by_place,
    options_of,
    reader_of,
    rows_in,
    stored_rows,
    through_pickle,
)


def test_a_store_is_read_while_another_process_writes_it() -> None:
    world = World()
    with world.database(shards=2) as database:
        database.append(rows_on("a/b", "c")).wait()
        assert by_place(batch_rows(world)) == stored_rows(database, ["#"])


def test_rows_that_come_between_planning_and_reading_are_not_read() -> None:
    world = World()
    with world.database() as database:
        database.append(rows_on("a")).wait()
        before = stored_rows(database, ["#"])
        reader = reader_of(world)
        partitions = reader.partitions()
        database.append(rows_on("a", "b")).wait()
        database.seal()
        assert rows_in(reader, partitions) == before
        assert rows_in(reader, reader.partitions()) == stored_rows(database, ["#"])


def test_an_empty_store_has_a_partition_without_rows() -> None:
    world = World()
    with world.database():
        pass
    reader = reader_of(world)
    partitions = reader.partitions()
    assert partitions == [SourcePartition(None)]
    assert rows_in(reader, partitions) == []


def test_a_reader_goes_to_the_executors_with_nothing_open() -> None:
    reader = SiltstoneReader(options_of(), spark_schema(["topic"]), PosixFileSystem())
    arrived = through_pickle(reader)
    assert isinstance(arrived, SiltstoneReader)


def test_filters_are_never_pushed() -> None:
    assert SiltstoneReader.pushFilters is DataSourceReader.pushFilters


def test_planning_tells_the_log_what_it_skips(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with world.database() as database:
        database.append(rows_on("a")).wait()
    with caplog.at_level(logging.INFO, "siltstone.pipeline"):
        reader_of(world).partitions()
    (record,) = caplog.records
    facts = record.__dict__["facts"]
    assert (record.message, facts["place"]) == ("read_planned", "/data")
    assert str(facts["plan"]).startswith(
        "1 partitions read 1 of 1 slabs, 1 of 1 streams, 1 of 2 frames"
    )


def test_a_corrupt_frame_is_an_error_that_names_the_file() -> None:
    world = small_world()
    flip(world.fs, SEALED, frames_of(world.fs, SEALED)[2].start + 80)
    with pytest.raises(CorruptionError, match=rf"checksum: path={SEALED}"):
        batch_rows(world)


def test_a_hole_that_a_repair_left_has_no_rows() -> None:
    world = small_world()
    with world.reader() as database:
        before = stored_rows(database, ["#", "$SYS/#"])
    flip(world.fs, SEALED, frames_of(world.fs, SEALED)[2].start + 80)
    assert mend_database(world.fs, DATABASE, QUARANTINE)
    found = by_place(batch_rows(world, filters=("#", "$SYS/#")))
    assert len(found) == len(before) - FRAME_ROWS
    assert [row for row in before if row in found] == found


def test_a_batch_cannot_begin_at_the_end() -> None:
    world = World()
    with world.database():
        pass
    with pytest.raises(
        UsageError,
        match="startingOffsets of a batch query must not be latest: no rows would follow",
    ):
        reader_of(world, starting=options_of().ending).partitions()
