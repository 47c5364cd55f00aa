"""What users of Kafka's source look for: a start at a time, a number of tasks, and the lag."""

from __future__ import annotations

import json
from threading import Event

import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import SparkSession

from siltstone.pipeline import StreamProgress, watch
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row


def fill(database: Database) -> None:
    database.append([Row(f"plant/{number % 5}", b'{"n": 1}') for number in range(50)]).wait()


def test_a_watched_query_tells_its_lag_and_its_store(
    spark: SparkSession, database: Database, path: str
) -> None:
    fill(database)
    told: list[StreamProgress] = []
    done = Event()

    def tell(progress: StreamProgress) -> None:
        told.append(progress)
        if progress.rows_behind == 0:
            done.set()

    query = (
        spark.readStream.format("siltstone")
        .options(
            filter="plant/+",
            startingOffsetsByTimestamp="-1h",
            maxRowsPerTrigger=20,
            minPartitions=3,
        )
        .load(path)
        .writeStream.format("noop")
        .start()
    )
    with watch(query, tell) as watched:
        query.processAllAvailable()
        assert done.wait(60)
    progress = json.loads(query.recentProgress[0]["sources"][0]["latestOffset"])
    query.stop()
    assert [(each.batch, each.rows, each.rows_behind) for each in told] == [
        (0, 20, 30),
        (1, 20, 10),
        (2, 10, 0),
    ]
    ages = [each.seconds_behind for each in told]
    assert [age is None for age in ages] == [False, False, False]
    assert ages[2] == 0
    assert {each.source for each in told} == {f"siltstone {path} filter=plant/+"}
    assert (watched.latest, watched.error) == (told[-1], "")
    assert progress["source"] == {"store": path, "filter": ["plant/+"]}
    assert progress["lag"]["rows"] == 30


def test_a_watched_query_that_fails_says_why_in_one_sentence(
    spark: SparkSession, database: Database, path: str
) -> None:
    fill(database)
    query = (
        spark.readStream.format("siltstone")
        .option("endingOffsets", "earliest")
        .load(path)
        .writeStream.format("noop")
        .start()
    )
    with pytest.raises(StreamingQueryException) as caught:
        query.awaitTermination()
    sentence = "endingOffsets is for batch queries only: a stream does not end"
    assert f"siltstone.errors.UsageError: {sentence}\n" in str(caught.value)
    assert "Traceback" not in str(caught.value)


def test_an_error_of_the_source_is_one_line(
    spark: SparkSession, database: Database, path: str
) -> None:
    fill(database)
    beyond = '{"version":1,"shards":{"0":99}}'
    wrong: list[dict[str, str]] = [
        {},
        {"path": path, "startTime": "yesterday"},
        {"path": path, "startingOffsets": beyond},
    ]
    for options in wrong:
        with pytest.raises(AnalysisException) as caught:
            spark.read.format("siltstone").options(**options).load().count()
        sentence, _, rest = str(caught.value).partition("\n")
        assert sentence.startswith("[PYTHON_DATA_SOURCE_ERROR] Failed to ")
        assert ": siltstone.errors." in sentence
        assert rest.strip().startswith("SQLSTATE")


def test_a_read_has_the_tasks_and_the_maps_that_are_asked_for(
    spark: SparkSession, database: Database, path: str
) -> None:
    fill(database)
    database.append([Row("plant/6", b'{"n": 2, "tags": {"a": 1.50, "b": "x"}}')]).wait()
    frame = (
        spark.read.format("siltstone")
        .options(minPartitions=6, decode="json", payloadSchema="tags MAP<STRING, STRING>, n STRING")
        .load(path)
    )
    (row,) = frame.where("topic = 'plant/6'").select("payload").collect()
    assert (row.payload.tags, row.payload.n) == ({"a": "1.50", "b": "x"}, "2")
    assert frame.rdd.getNumPartitions() == 6
    read = spark.read.format("siltstone").load(path).selectExpr("cast(payload AS STRING) AS text")
    parsed = read.selectExpr("from_json(text, 'tags MAP<STRING, STRING>, n STRING') AS payload")
    expected = parsed.selectExpr("payload.tags['b']", "payload.n").collect()
    found = frame.selectExpr("payload.tags['b']", "payload.n").collect()
    assert sorted(map(tuple, found), key=str) == sorted(map(tuple, expected), key=str)
