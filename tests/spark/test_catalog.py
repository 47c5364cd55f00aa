"""A store by name: all rows and each table of the lake in the catalog of Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from siltstone.errors import UsageError
from siltstone.pipeline import attach
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.lake import tier_all


@pytest.fixture(autouse=True)
def dropped(spark: SparkSession) -> Iterator[None]:
    yield
    spark.sql("DROP DATABASE IF EXISTS plant CASCADE")


def append(database: Database, *numbers: int, **fields: object) -> None:
    rows = [Row(f"line/{n}/heat", json.dumps({"v": n} | fields).encode()) for n in numbers]
    database.append(rows).wait()


def test_a_store_is_there_by_name_and_each_query_has_the_rows_of_now(
    spark: SparkSession, database: Database, path: str
) -> None:
    append(database, 1, 2)
    tier_all(path)
    append(database, 3)
    assert attach(spark, path, catalog="plant") == ["plant.messages", "plant.line_heat"]
    shown = spark.sql("SHOW TABLES IN plant").collect()
    assert sorted(row["tableName"] for row in shown) == ["line_heat", "messages"]
    described = {
        row["col_name"]: row["data_type"] for row in spark.sql("DESCRIBE plant.line_heat").collect()
    }
    assert (described["v"], described["date"]) == ("double", "date")

    def counts() -> list[int]:
        (row,) = spark.sql(
            "SELECT (SELECT count(*) FROM plant.messages) a, "
            "(SELECT count(*) FROM plant.line_heat) b"
        ).collect()
        return [row["a"], row["b"]]

    assert counts() == [3, 2]
    append(database, 4)
    assert counts() == [4, 2]
    tier_all(path)
    assert counts() == [4, 4]
    joined = spark.sql(
        "SELECT m.topic, t.line, t.v, t.date = date(t.timestamp) AS same "
        "FROM plant.messages m JOIN plant.line_heat t USING (shard, serial) WHERE t.v = 4"
    ).collect()
    assert [tuple(row) for row in joined] == [("line/4/heat", "4", 4.0, True)]


def test_new_tables_and_columns_come_with_the_next_call(
    spark: SparkSession, database: Database, path: str
) -> None:
    append(database, 1)
    tier_all(path)
    attach(spark, path, catalog="plant")
    append(database, 2, late=True)
    database.append([Row("note", b"x")]).wait()
    tier_all(path)
    assert spark.table("plant.line_heat").count() == 2
    assert attach(spark, path, catalog="plant") == [
        "plant.messages",
        "plant.line_heat",
        "plant.note",
    ]
    assert spark.sql("SELECT count(late) FROM plant.line_heat").collect()[0][0] == 1


def test_tables_of_others_are_left_alone(
    spark: SparkSession, database: Database, path: str
) -> None:
    append(database, 1)
    spark.sql("CREATE DATABASE plant")
    spark.sql("CREATE TABLE plant.mine (a INT) USING parquet")
    with pytest.raises(UsageError, match="has a table mine of another program"):
        attach(spark, path, catalog="plant")
    assert [row["tableName"] for row in spark.sql("SHOW TABLES IN plant").collect()] == ["mine"]
    with pytest.raises(UsageError, match="letters, digits and _ only, got 'a b'"):
        attach(spark, path, catalog="a b")
