"""Messages of topic logs are rows of the store: feeds and Spark read them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import siltstone
from siltstone.topiclog.log import DATABASE, open_topic_logs
from tests.support.builders import settings_of
from tests.support.topiclog import offsets_of

MESSAGES = {"orders/new": [b"one", b"two", b"three"], "big": [bytes(200_000)]}


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Return a data directory with two topics, one of which has a message received in place."""
    path = tmp_path / "logs"
    with siltstone.open(path) as store:
        topics, _ = open_topic_logs(store, settings_of())
        for topic, values in MESSAGES.items():
            topics.create_topic(topic)
            topics.log(topic).append(offsets_of(values), b"".join(values)).wait()
    return path


def test_spark_reads_messages_of_topic_logs_with_their_offsets(
    spark: SparkSession, logs: Path
) -> None:
    rows = (
        spark.read.format("siltstone")
        .options(path=str(logs), database=DATABASE)
        .load()
        .select("topic", "serial", "payload")
        .collect()
    )
    assert sorted((row.topic, row.serial, bytes(row.payload)) for row in rows) == sorted(
        (topic, offset, value)
        for topic, values in MESSAGES.items()
        for offset, value in enumerate(values)
    )


def test_a_feed_reads_messages_of_topic_logs(logs: Path) -> None:
    with (
        siltstone.open(logs, read_only=True) as store,
        store.database(DATABASE).feed("orders/#") as feed,
    ):
        read = feed.next(timeout=5)
    assert read is not None
    assert [(row.serial, row.value) for row in read.rows()] == [
        (0, b"one"),
        (1, b"two"),
        (2, b"three"),
    ]
