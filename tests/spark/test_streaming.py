"""Streaming queries in Spark itself: triggers, limits, restarts, and what was dropped."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import siltstone
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import settings_of
from tests.support.pipeline import stored_rows


def rows(start: int, stop: int) -> list[Row]:
    return [Row(f"plant/{number % 7}", b"%d" % number) for number in range(start, stop)]


class Sink:
    """Collects the places of rows, a list a batch."""

    def __init__(self) -> None:
        self.batches: dict[int, list[tuple[int, int]]] = {}

    def __call__(self, batch: DataFrame, number: int) -> None:
        places = batch.select("shard", "serial").collect()
        self.batches[number] = sorted((row.shard, row.serial) for row in places)

    def places(self) -> list[tuple[int, int]]:
        return sorted(place for batch in self.batches.values() for place in batch)


def run_to_the_end(
    spark: SparkSession, path: str, directory: Path, sink: Sink, **options: Any
) -> None:
    """Read all that there is now, from the checkpoint on if there is one."""
    query = (
        spark.readStream.format("siltstone")
        .options(**options)
        .load(path)
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def places_in(database: Database, filters: list[str]) -> list[tuple[int, int]]:
    return [(row["shard"], row["serial"]) for row in stored_rows(database, filters)]


def test_a_query_goes_on_from_its_checkpoint_with_each_row_once(
    spark: SparkSession, database: Database, path: str, tmp_path: Path
) -> None:
    sink = Sink()
    database.append(rows(0, 100)).wait()
    run_to_the_end(spark, path, tmp_path, sink, maxRowsPerTrigger=30)
    assert [len(batch) for batch in sink.batches.values()] == [30, 30, 30, 10]
    database.append(rows(100, 150)).wait()
    database.seal()
    database.append([Row("new/stream", b"")]).wait()
    run_to_the_end(spark, path, tmp_path, sink)
    assert sink.places() == places_in(database, ["#"])
    offsets = (tmp_path / "checkpoint" / "offsets" / "4").read_text().splitlines()[-1]
    ends = {str(info.slab.shard): 0 for info in database.slabs()}
    for row in stored_rows(database, ["#"]):
        ends[str(row["shard"])] = max(ends[str(row["shard"])], row["serial"] + 1)
    known = {"version": 2, "identity": database.identity, "shards": ends}
    assert json.loads(offsets) == known


def test_a_running_query_finds_what_is_appended(
    spark: SparkSession, database: Database, path: str, tmp_path: Path
) -> None:
    sink = Sink()
    query = (
        spark.readStream.format("siltstone")
        .option("filter", "plant/3,other/#")
        .load(path)
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="0 seconds")
        .start()
    )
    try:
        for number in range(3):
            database.append(rows(number * 20, number * 20 + 20)).wait()
            database.append([Row(f"other/{number}", b"")]).wait()
            query.processAllAvailable()
            assert sink.places() == places_in(database, ["plant/3", "other/#"])
            database.seal()
    finally:
        query.stop()


def test_a_generation_that_was_dropped_unread_fails_the_query_or_is_skipped(
    spark: SparkSession, database: Database, path: str, tmp_path: Path
) -> None:
    sink = Sink()
    database.append(rows(0, 50)).wait()
    run_to_the_end(spark, path, tmp_path, sink)
    database.append(rows(50, 100)).wait()
    database.seal()
    for shard in range(2):
        database.drop_slab(SlabId(shard, 1))
    database.append(rows(100, 120)).wait()
    with pytest.raises(
        StreamingQueryException, match="the query needs rows that are not in the store"
    ):
        run_to_the_end(spark, path, tmp_path, sink)
    run_to_the_end(spark, path, tmp_path, sink, failOnDataLoss="false")
    assert len(sink.places()) == 70
    assert sink.places()[-1] == places_in(database, ["#"])[-1]


def test_a_database_that_was_created_again_fails_the_query_or_is_read_from_its_beginning(
    spark: SparkSession, path: str, tmp_path: Path
) -> None:
    sink = Sink()
    with siltstone.open(path) as store:
        former = store.create("messages", settings_of())
        former.append(rows(0, 1_000)).wait()
        run_to_the_end(spark, path, tmp_path, sink)
        store.drop("messages")
        later = store.create("messages", settings_of())
        later.append(rows(0, 3_000)).wait()
        told = f"offsets={former.identity} database={later.identity}"
        with pytest.raises(StreamingQueryException, match=told):
            run_to_the_end(spark, path, tmp_path, sink)
        sink.batches.clear()
        run_to_the_end(spark, path, tmp_path, sink, failOnDataLoss="false")
        assert sink.places() == [(0, serial) for serial in range(3_000)]
        # From now on its checkpoint is of the new one.
        run_to_the_end(spark, path, tmp_path, sink)
        assert len(sink.places()) == 3_000


def test_a_query_that_comes_to_a_damaged_frame_goes_on_when_that_is_mended(
    spark: SparkSession, database: Database, path: str, tmp_path: Path
) -> None:
    sink = Sink()
    database.append(rows(0, 50)).wait()
    run_to_the_end(spark, path, tmp_path, sink)
    marker = b"a payload that is nowhere else"
    database.append([*rows(50, 70), Row("plant/1", marker)]).wait()
    (segment,) = (file for file in Path(path).rglob("*.seg") if marker in file.read_bytes())
    whole = segment.read_bytes()
    segment.write_bytes(whole.replace(marker, marker.upper()))
    with pytest.raises(StreamingQueryException, match=rf"checksum: path={segment}"):
        run_to_the_end(spark, path, tmp_path, sink)
    assert len(sink.places()) == 50
    segment.write_bytes(whole)
    run_to_the_end(spark, path, tmp_path, sink)
    assert sink.places() == places_in(database, ["#"])
