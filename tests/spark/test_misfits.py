"""A message has one answer in Spark, whatever is read with it: source, stream, table and tier."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import siltstone
from siltstone.pipeline import table
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.builders import settings_of
from tests.support.lake import read_table, tier_all

MISFITS = (b"true", b"NaN", b'"x"', b"1e400", b"9" * 5_000, b'1, "p": 2')


def answers(rows: DataFrame) -> dict[str, list[str]]:
    """Return the values of a field by topic, in order of time, such that NaN is NaN."""
    found: dict[str, list[str]] = {}
    for row in rows.orderBy("timestamp", "serial").collect():
        found.setdefault(row.topic, []).append(repr(row.payload))
    return found


def read(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    return spark.read.format("siltstone").options(decode="json", **options).load(path)


def streamed(spark: SparkSession, path: str, directory: Path, **options: Any) -> DataFrame:
    """Return what a stream gives, a batch of some rows at a time."""
    query = (
        spark.readStream.format("siltstone")
        .options(decode="json", maxRowsPerTrigger=700, **options)
        .load(path)
        .writeStream.format("parquet")
        .option("path", str(directory / "table"))
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.read.parquet(str(directory / "table"))


@pytest.mark.parametrize("field", ["DECIMAL(10,2)", "DOUBLE"])
def test_neighbours_and_batches_change_no_answer(
    spark: SparkSession, database: Database, path: str, tmp_path: Path, field: str
) -> None:
    good = [Row(f"dev/{number % 9}/temp", b'{"p": %d.25}' % number) for number in range(999)]
    odd = [Row("dev/5/temp", b'{"p": %b}' % misfit) for misfit in MISFITS]
    database.append([*good[:500], *odd, *good[500:]]).wait()
    schema = f"p {field}"
    alone = answers(read(spark, path, payloadSchema=schema, rowsPerBatch=1))
    assert (
        sum(value != "None" for values in alone.values() for value in values)
        == 999 + (field == "DOUBLE") * 2
    )
    assert answers(read(spark, path, payloadSchema=schema)) == alone
    assert answers(streamed(spark, path, tmp_path, payloadSchema=schema)) == alone
    chosen = read(spark, path, payloadSchema=schema, filter="dev/5/temp")
    picked = read(spark, path, payloadSchema=schema).where("topic = 'dev/5/temp'")
    assert answers(chosen) == answers(picked) == {"dev/5/temp": alone["dev/5/temp"]}


def test_a_row_that_drifts_stays_in_its_table_and_changes_no_neighbour(
    spark: SparkSession, path: str
) -> None:
    with siltstone.open(path) as store:
        database = store.create("messages", settings_of(thresholds=(100, 0, 10)))
        for rows in (
            [Row(f"dev/{number}/temp", b'{"v": 1.5}') for number in range(20)],
            [Row("dev/5/temp", b'{"v": NaN}')],
            [Row("dev/5/temp", b'{"v": NaN}'), Row("dev/6/temp", b'{"v": "offline"}')],
        ):
            database.append(rows).wait()
            tier_all(path)
        rows = read_table(path, "dev_temp")
        values = rows.column("v").to_pylist()
        rescued = rows.column("_rescued").drop_null().to_pylist()
        count = table(spark, path).count()
    assert (rescued, count) == (['{"v":"offline"}'], 23)
    assert sorted(map(repr, values)) == ["1.5"] * 20 + ["None"] + ["nan"] * 2
