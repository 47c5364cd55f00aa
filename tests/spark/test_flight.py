"""A node's rows in Spark, pandas and Polars: by url, without its disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import siltstone
from siltstone.bulk.node import Node
from siltstone.bulk.schema import COLUMNS
from siltstone.database import Database
from siltstone.directory import Store
from siltstone.errors import UsageError
from siltstone.store.rows import Row
from tests.support.builders import settings_of
from tests.support.flight import served


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with siltstone.open(tmp_path / "node") as opened:
        yield opened


@pytest.fixture
def database(store: Store) -> Database:
    database = store.create("messages", settings_of(shards=2, shard_by="topic"))
    database.append(
        [Row(f"plant/{number % 7}/t", b'{"v": %d}' % number) for number in range(200)]
    ).wait()
    return database


@pytest.fixture
def node(store: Store, database: Database) -> Iterator[Node]:
    with served(store) as known:
        yield known


def test_spark_reads_the_same_by_url_and_by_path(
    spark: SparkSession, store: Store, node: Node
) -> None:
    reader = spark.read.format("siltstone").option("filter", "plant/+/t").option("decode", "json")
    mapped = reader.load(str(store.path))
    fetched = (
        spark.read.format("siltstone")
        .option("filter", "plant/+/t")
        .option("decode", "json")
        .option("url", node.url)
        .load()
    )
    assert fetched.schema == mapped.schema
    assert fetched.orderBy("shard", "serial").collect() == (
        mapped.orderBy("shard", "serial").collect()
    )
    total = fetched.selectExpr("sum(payload.v)").first()
    assert total is not None
    assert total[0] == sum(range(200))


def test_a_stream_goes_from_one_node_to_itself_under_other_topics(
    spark: SparkSession, database: Database, node: Node, tmp_path: Path
) -> None:
    source = spark.readStream.format("siltstone").option("url", node.url)
    rows = source.option("filter", "plant/#").option("maxRowsPerTrigger", 120).load()
    copies = rows.selectExpr("concat('copy/', topic) AS topic", "payload")
    query = (
        copies.writeStream.format("siltstone")
        .option("url", node.url)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert (database.count("plant/#"), database.count("copy/plant/#")) == (200, 200)


def test_rows_come_as_pandas_and_as_polars_where_it_is_installed(node: Node) -> None:
    with siltstone.connect(node.url) as connection:
        rows = connection.read("plant/3/t")
        frame = rows.pandas()
        assert (list(frame.columns), len(frame)) == (list(COLUMNS), 29)
        try:
            import polars  # noqa: F401, ICN001, PLC0415 - not everybody has it
        except ImportError:
            with pytest.raises(UsageError, match="polars is not installed: pip install polars"):
                rows.polars()
        else:
            assert rows.polars().shape == (29, len(COLUMNS))


def test_the_examples_of_the_documentation_run_one_after_the_other(
    spark: SparkSession, database: Database, node: Node, capsys: pytest.CaptureFixture[str]
) -> None:
    database.append([Row(f"plant/{number}/temp", b"1") for number in range(3)]).wait()
    text = (Path(__file__).parent.parent.parent / "docs" / "flight.md").read_text("utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"spark": spark}
    for block in blocks:
        exec(block.replace("grpc+tcp://127.0.0.1:8815", node.url), names)  # noqa: S102 - our own
    assert len(blocks) == 4
    assert (names["table"].num_rows, len(names["frame"])) == (3, 3)
    assert database.count("plant/+/setpoint") == 2
    assert capsys.readouterr().out.splitlines()[-1] == str(database.count())
