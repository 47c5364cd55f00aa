"""Rows that were dropped: source, stream, `table` and sql answer alike, and what is said works."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import siltstone
from siltstone.errors import UsageError
from siltstone.pipeline import table
from siltstone.pipeline.jobs.upkeep import describe_lake
from siltstone.pipeline.sql import make_views, run
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import settings_of
from tests.support.lake import tier_all

BEYOND = '{"version": 1, "shards": {"0": 99}}'


def serials(spark: SparkSession, path: str, **options: str) -> list[int]:
    rows = spark.read.format("siltstone").options(**options).load(path)
    return sorted(row.serial for row in rows.select("serial").collect())


def three_slabs(database: Database) -> None:
    for number in range(3):
        database.append([Row(f"a/{number}", b"%d" % number)] * 2).wait()
        database.seal()


@pytest.fixture
def single(tmp_path: Path) -> str:
    path = str(tmp_path / "single")
    with siltstone.open(path) as store:
        three_slabs(store.create("messages", settings_of()))
    return path


def drop_middle(path: str) -> None:
    with siltstone.open(path) as store:
        store.database("messages").drop_slab(SlabId(0, 2))


def test_a_slab_dropped_by_hand_is_no_loss_for_a_query_of_the_rows_that_exist(
    spark: SparkSession, single: str
) -> None:
    drop_middle(single)
    left = [0, 1, 4, 5]
    assert serials(spark, single) == left
    assert sorted(row.serial for row in table(spark, single).collect()) == left
    make_views(spark, single)
    assert run(spark, "SELECT count(*) FROM messages", rows_max=1).rows == [(4,)]
    # A query from a given row on needs all of them.
    start = '{"version": 1, "shards": {"0": 1}}'
    with pytest.raises(PySparkException, match=r"shard 0, serials 2 to 3;.*failOnDataLoss=false"):
        serials(spark, single, startingOffsets=start)
    assert serials(spark, single, startingOffsets=start, failOnDataLoss="false") == [1, 4, 5]
    with pytest.raises(PySparkException, match="shard 0, serials 6 to 98;"):
        serials(spark, single, startingOffsets=BEYOND)
    assert serials(spark, single, startingOffsets=BEYOND, failOnDataLoss="false") == []


def test_a_database_that_was_created_again_is_read_from_its_first_row(
    spark: SparkSession, single: str, tmp_path: Path
) -> None:
    tier_all(single)

    def stream(strict: str) -> None:
        query = (
            spark.readStream.format("siltstone")
            .option("failOnDataLoss", strict)
            .load(single)
            .select("serial", "topic")
            .writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    stream("true")
    with siltstone.open(single) as store:
        store.drop("messages")
        store.create("messages", settings_of()).append([Row("b", b"1")] * 9).wait()
    with pytest.raises(PySparkException, match=r"earlier database.*failOnDataLoss=false"):
        stream("true")
    stream("false")
    written = spark.read.parquet(str(tmp_path / "out"))
    assert (written.count(), written.where("topic = 'b'").count()) == (15, 9)

    sentence = r"earlier database.*rename or remove this directory.*failOnDataLoss=false"
    with pytest.raises(UsageError, match=sentence):
        table(spark, single)
    with pytest.raises(UsageError, match=sentence):
        make_views(spark, single)
    with pytest.raises(UsageError, match=sentence):
        describe_lake(single)
    assert table(spark, single, failOnDataLoss=False).count() == 9
    assert make_views(spark, single, failOnDataLoss=False) == ["messages"]
    # The other way that the error names.
    lake = Path(single) / "lake"
    (lake / "messages").rename(lake / "messages.before")
    assert tier_all(single) == 9
    assert (table(spark, single).count(), make_views(spark, single)) == (9, ["messages", "b"])
    assert [info.table for info in describe_lake(single)] == ["b"]


def test_a_stream_with_an_end_and_a_read_without_a_path_say_what_is_wrong(
    spark: SparkSession, single: str, tmp_path: Path
) -> None:
    query = (
        spark.readStream.format("siltstone")
        .option("endingOffsets", BEYOND)
        .load(single)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
    )
    with pytest.raises(PySparkException, match="endingOffsets is for batch queries only"):
        query.start().awaitTermination()
    with pytest.raises(PySparkException, match="path is missing: call load with the data dir"):
        spark.read.format("siltstone").load()


def test_a_field_of_two_types_is_read_as_text(spark: SparkSession, single: str) -> None:
    with siltstone.open(single) as store:
        payloads = [b'{"v": 1.25, "n": 1}', b'{"v": "off", "n": 2}', b'{"v": [1, {"a": 2}]}']
        store.database("messages").append([Row("j", payload) for payload in payloads]).wait()
    rows = spark.read.format("siltstone").options(filter="j", decode="json").load(single)
    found = sorted((row.payload.v, row.payload.n) for row in rows.collect() if row.payload)
    assert found == [("1.25", 1), ('[1,{"a":2}]', None), ("off", 2)]
    # As Spark itself reads them.
    text = spark.read.format("siltstone").options(filter="j", decode="utf8").load(single)
    own = text.selectExpr("from_json(payload, 'v STRING, n BIGINT') AS p").collect()
    assert sorted((row.p.v, row.p.n) for row in own) == found
