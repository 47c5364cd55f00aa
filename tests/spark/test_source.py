"""The source in Spark itself: the same rows, whatever is asked."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import Row as SparkSqlRow

from siltstone.pipeline.source.schema import spark_schema
from siltstone.scan.columns.schema import COLUMNS
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabId
from tests.support.broker_process import clean_environment
from tests.support.pipeline import SparkRow, by_place, stored_rows

ROWS = [
    Row(
        f"plant/{number % 7}/temp",
        b'{"n": %d, "ok": %s}' % (number, b"true" if number % 2 else b"false"),
        f"device-{number % 3}",
        number % 3,
        number % 5 == 0,
        b"\x03\x00\x01t" if number % 4 == 0 else b"",
    )
    for number in range(200)
]

# What a worker does to plan a read.
PLAN = """\
import sys
import siltstone.pipeline.source.source
from siltstone.pipeline import explain
print(explain(sys.argv[1]).frames_read, "frames, pandas:", "pandas" in sys.modules)
"""


def load(spark: SparkSession, path: str, **options: Any) -> DataFrame:
    return spark.read.format("siltstone").options(**options).load(path)


def as_values(rows: Iterable[SparkSqlRow]) -> list[SparkRow]:
    """Return rows as the store's are given to compare; times come without their zone."""
    values: list[SparkRow] = []
    for row in rows:
        value = row.asDict()
        if "timestamp" in value:
            value["timestamp"] = round(value["timestamp"].timestamp() * 1_000_000)
        if isinstance(value.get("payload"), bytearray):
            value["payload"] = bytes(value["payload"])
        values.append(value)
    return by_place(values)


def fill(database: Database) -> None:
    """Store ROWS in two generations, some of them in small frames."""
    database.append(ROWS[:150]).wait()
    database.seal()
    for row in ROWS[150:160]:
        database.append([row]).wait()
    database.append(ROWS[160:]).wait()


@pytest.mark.parametrize(
    "filters", [["#"], ["plant/3/+"], ["plant/3/+", "plant/+/temp", "x"], ["plant/1/temp", "x/#"]]
)
def test_spark_reads_what_the_store_reads(
    spark: SparkSession, database: Database, path: str, filters: list[str]
) -> None:
    fill(database)
    frame = load(spark, path, filter=json.dumps(filters), maxRowsPerPartition=40)
    assert frame.schema == spark_schema(COLUMNS)
    assert as_values(frame.collect()) == stored_rows(database, filters)


def test_two_filters_over_one_data_frame_are_both_right(
    spark: SparkSession, database: Database, path: str
) -> None:
    fill(database)
    frame = load(spark, path, columns="topic,serial,shard")
    counts = [
        frame.where("topic = 'plant/1/temp'").count(),
        frame.count(),
        frame.where("topic = 'plant/2/temp'").count(),
        frame.where("topic = 'plant/1/temp'").union(frame.where("serial < 3")).count(),
    ]
    topics = [row.topic for row in ROWS]
    first = sum(1 for row in stored_rows(database, ["#"]) if row["serial"] < 3)
    ones = topics.count("plant/1/temp")
    assert counts == [ones, 200, topics.count("plant/2/temp"), ones + first]


def test_a_view_is_asked_in_sql(spark: SparkSession, database: Database, path: str) -> None:
    fill(database)
    load(spark, path).createOrReplaceTempView("messages")
    found = spark.sql(
        "SELECT levels[1] AS device, count(*) AS rows, max(qos) AS qos, "
        "count_if(properties['mqtt.content_type'] = 't') AS typed "
        "FROM messages WHERE timestamp > '2020-01-01' GROUP BY 1 ORDER BY 1"
    ).collect()
    expected = [
        (
            str(device),
            len([number for number in range(200) if number % 7 == device]),
            2,
            len([number for number in range(200) if number % 7 == device and number % 4 == 0]),
        )
        for device in range(7)
    ]
    assert [tuple(row) for row in found] == expected


def test_a_session_that_nobody_prepared_finds_the_source_by_itself(
    spark: SparkSession, database: Database, path: str
) -> None:
    database.append([Row("a", b"1")]).wait()
    assert load(spark.newSession(), path).count() == 1


def test_json_becomes_columns(spark: SparkSession, database: Database, path: str) -> None:
    fill(database)
    database.append([Row("plant/0/temp", b"no JSON")]).wait()
    given = load(spark, path, decode="json", payloadSchema="n INT, ok BOOLEAN", columns="payload")
    inferred = load(spark, path, decode="json", columns="payload")
    assert [given.dtypes, inferred.dtypes] == [
        [("payload", "struct<n:int,ok:boolean>")],
        [("payload", "struct<n:bigint,ok:boolean>")],
    ]
    expected = (sum(range(200)), 100, 1)
    for frame in (given, inferred):
        (row,) = frame.selectExpr(
            "sum(payload.n)", "count_if(payload.ok)", "count_if(payload IS NULL)"
        ).collect()
        assert tuple(row) == expected


def test_a_declared_schema_chooses_columns_and_decodes(
    spark: SparkSession, database: Database, path: str
) -> None:
    database.append([Row("a/b", b'{"n": 5}', properties=b"\x03\x00\x01t")]).wait()
    schema = (
        "payload STRUCT<n: INT>, levels ARRAY<STRING>, properties MAP<STRING, STRING>, topic STRING"
    )
    frame = spark.read.format("siltstone").schema(schema).load(path)
    assert [row.asDict(recursive=True) for row in frame.collect()] == [
        {
            "payload": {"n": 5},
            "levels": ["a", "b"],
            "properties": {"mqtt.content_type": "t"},
            "topic": "a/b",
        }
    ]


def test_a_view_is_made_in_sql_alone(spark: SparkSession, database: Database, path: str) -> None:
    fill(database)
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW third USING siltstone "
        f"OPTIONS (path '{path}', filter 'plant/3/+')"
    )
    assert [tuple(row) for row in spark.sql("SELECT count(*) FROM third").collect()] == [(29,)]


def test_rows_that_are_appended_later_are_not_in_a_query(
    spark: SparkSession, database: Database, path: str
) -> None:
    database.append(ROWS[:50]).wait()
    frame = load(spark, path, columns="serial")
    before = frame.count()
    database.append(ROWS[50:]).wait()
    assert (before, frame.count(), load(spark, path, columns="serial").count()) == (50, 50, 200)


def test_an_empty_store_is_an_empty_table(
    spark: SparkSession, database: Database, path: str
) -> None:
    assert database.count() == 0
    assert load(spark, path).collect() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffset": "latest"}, "unknown option startingoffset; did you mean startingOffs"),
        ({"filter": "a/#/b"}, "filter must be an MQTT topic filter"),
        ({"database": "other"}, "database 'other' does not exist"),
    ],
    ids=str,
)
def test_a_wrong_option_is_told_with_its_sentence(
    spark: SparkSession, database: Database, path: str, options: dict[str, str], message: str
) -> None:
    assert database.count() == 0
    with pytest.raises((AnalysisException, PySparkException), match=message):
        load(spark, path, **options).count()


def test_a_generation_that_was_dropped_is_told_of_or_left_out(
    spark: SparkSession, database: Database, path: str
) -> None:
    fill(database)
    strict = load(spark, path, columns="serial")
    lenient = load(spark, path, columns="serial", failOnDataLoss="false")
    assert (strict.count(), lenient.count()) == (200, 200)
    for shard in range(2):
        database.drop_slab(SlabId(shard, 1))
    with pytest.raises(PySparkException, match="was dropped after the query was planned"):
        strict.count()
    assert lenient.count() == 50


def test_a_corrupt_frame_is_an_error_that_names_the_file(
    spark: SparkSession, database: Database, path: str
) -> None:
    fill(database)
    (segment,) = (Path(path) / "data" / "messages" / "0" / "1").glob("*.seg")
    data = bytearray(segment.read_bytes())
    place = data.index(b"SFRM", 4100) + 100
    with segment.open("r+b") as file:
        file.seek(place)
        file.write(bytes([data[place] ^ 1]))
    with pytest.raises(PySparkException, match=rf"does not match its checksum: path={segment}"):
        load(spark, path, columns="serial").count()


def test_what_a_worker_imports_to_plan_does_not_load_pandas(database: Database, path: str) -> None:
    database.append([Row("plant/1", b"1")]).wait()
    done = subprocess.run(
        [sys.executable, "-c", PLAN, path],
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "1 frames, pandas: False\n"
