"""Rows that Spark writes are in the store exactly once, and come out as they went in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import Row as SparkRow
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls them

import siltstone
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.builders import settings_of
from tests.support.rows import rows_of


@pytest.fixture
def target(tmp_path: Path) -> str:
    """Return a data directory that nobody has open."""
    with siltstone.open(tmp_path / "target") as store:
        store.create("messages", settings_of(shards=2, shard_by="topic"))
    return str(tmp_path / "target")


def messages(spark: SparkSession, count: int, *, partitions: int = 3) -> DataFrame:
    numbers = spark.range(0, count, 1, partitions)
    return numbers.select(
        F.concat(F.lit("plant/"), F.col("id") % 5, F.lit("/t")).alias("topic"),
        F.col("id").cast("string").alias("payload"),
    )


def values_in(path: str) -> Counter[str]:
    return Counter(row.value.decode() for row in stored(path))


def stored(path: str) -> list[Row]:
    with siltstone.open(path, read_only=True) as store:
        return [row for batch in store.database("messages").read() for row in rows_of(batch)]


def test_every_column_of_a_row_is_stored(spark: SparkSession, target: str) -> None:
    rows = spark.sql(
        """SELECT 'a/b' AS topic, X'00FF' AS payload, 'me' AS publisher, 2 AS qos, true AS retain,
                  map('mqtt.content_type', 'n', 'k', 'v') AS properties,
                  TIMESTAMP '2026-01-31 12:00:00.5Z' AS timestamp"""
    )
    rows.write.format("siltstone").mode("append").save(target)
    read = spark.read.format("siltstone").load(target).drop("timestamp", "stream", "serial")
    assert read.drop("shard", "generation", "levels").first() == SparkRow(
        topic="a/b",
        publisher="me",
        qos=2,
        retain=True,
        properties={
            "mqtt.content_type": "n",
            "k": "v",
            "timestamp": "2026-01-31T12:00:00.500000Z",
        },
        payload=b"\x00\xff",
    )


def test_a_directory_is_created_where_there_is_none(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "new")
    rows = spark.sql("SELECT 'x' AS payload, 7 AS serial, array('a') AS levels")
    rows.write.format("siltstone").mode("append").option("topic", "a").save(path)
    assert [(row.topic, row.value) for row in stored(path)] == [("a", b"x")]


def test_a_write_with_a_name_is_stored_once_however_often_it_is_done(
    spark: SparkSession, target: str
) -> None:
    for _ in range(2):
        write = messages(spark, 30).write.format("siltstone").mode("append")
        write.option("writeId", "import of monday").save(target)
    messages(spark, 5).write.format("siltstone").mode("append").save(target)
    assert values_in(target) == Counter(map(str, range(30))) + Counter(map(str, range(5)))


def test_a_batch_that_a_restarted_stream_does_again_is_not_stored_again(
    spark: SparkSession, database: Database, path: str, target: str, tmp_path: Path
) -> None:
    database.append([Row(f"a/{number % 4}", b"%d" % number) for number in range(100)]).wait()
    checkpoint = tmp_path / "checkpoint"

    def run(partitions: int) -> None:
        source = spark.readStream.format("siltstone").option("maxRowsPerTrigger", 40).load(path)
        # Another number of tasks, and so other files with the rows in another order.
        rows = source.repartition(partitions).select("topic", "payload")
        query = (
            rows.writeStream.format("siltstone")
            .option("checkpointLocation", str(checkpoint))
            .option("path", target)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run(2)
    assert values_in(target) == Counter(map(str, range(100)))
    # As a driver leaves it that is killed between the commit of the sink and its own.
    last = max((checkpoint / "commits").glob("[0-9]*"), key=lambda file: int(file.name))
    last.unlink()
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    database.append([Row("a/9", b"100")]).wait()
    run(3)
    assert values_in(target) == Counter(map(str, range(101)))
    left = [file.name for file in Path(target, "staging").rglob("*") if file.is_file()]
    assert left == ["committed"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows.drop("payload"), "column payload is missing"),
        (lambda rows: rows.withColumn("colour", F.lit(1)), "unknown column colour .supported"),
        (
            lambda rows: rows.withColumn("payload", F.struct("topic")),
            "column payload must be binary or text; to_json makes text of a struct",
        ),
    ],
)
def test_rows_that_cannot_be_messages_are_refused_before_any_is_written(
    spark: SparkSession, target: str, change: Any, message: str
) -> None:
    with pytest.raises(AnalysisException, match=message):
        change(messages(spark, 3)).write.format("siltstone").mode("append").save(target)
    assert stored(target) == []


def test_a_bad_topic_leaves_nothing_of_its_write(spark: SparkSession, target: str) -> None:
    rows = messages(spark, 30).withColumn(
        "topic", F.when(F.col("payload") == "25", "a/#").otherwise(F.col("topic"))
    )
    with pytest.raises(Exception, match="topic must not have the wildcards"):
        rows.write.format("siltstone").mode("append").save(target)
    assert stored(target) == []


def test_rows_are_never_replaced(spark: SparkSession, target: str) -> None:
    with pytest.raises(
        AnalysisException, match="rows of a store cannot be replaced: use mode append"
    ):
        messages(spark, 1).write.format("siltstone").mode("overwrite").save(target)
