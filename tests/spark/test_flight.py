"""A node's rows in Spark, pandas and Polars: by url, without its disk."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import siltstone
from siltstone.errors import UsageError
from siltstone.pipeline import table
from siltstone.pipeline.jobs.learn import learn
from siltstone.pipeline.jobs.replay import ReplaySettings, replay
from siltstone.pipeline.sql import make_views, run
from siltstone.scan.columns.schema import COLUMNS
from siltstone.scan.node import Node
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.log.read.pieces import Row
from tests.support.builders import settings_of
from tests.support.documents import blocks
from tests.support.flight import served
from tests.support.lake import tier_all


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


def test_table_sql_learn_and_replay_work_by_url(
    spark: SparkSession, database: Database, node: Node, tmp_path: Path
) -> None:
    rows = table(spark, url=node.url, filter="plant/3/t", columns=["topic", "serial"])
    assert (rows.columns, rows.count()) == (["topic", "serial"], 29)
    assert make_views(spark, url=node.url) == ["messages"]
    assert run(spark, "SELECT count(*) FROM messages", rows_max=1).rows == [(200,)]
    with pytest.raises(UsageError, match=r"database 'other' does not exist .found at .*: messages"):
        make_views(spark, url=node.url, database="other")
    report = learn(spark, url=node.url, dry_run=True, thresholds=(100, 2, 10))
    assert [(item.pattern, item.rows) for item in report.structures] == [("plant/+/t", 200)]
    assert (report.database, report.streams_before, report.streams_after) == ("messages", 7, 1)
    for wrong, message in (
        (
            {"path": "x", "url": node.url},
            "set either path .a data directory. or url",
        ),
        ({"token": "t"}, "token is only for a node: set url too"),
        ({"url": node.url, "decode": "json"}, "unknown option decode .supported: url, username"),
    ):
        with pytest.raises(UsageError, match=message):
            table(spark, **wrong)
    with pytest.raises(
        UsageError,
        match=(
            "learn writes to the data directory: run it on the machine of the directory, or "
            "as a dry run"
        ),
    ):
        learn(spark, url=node.url)
    target = str(tmp_path / "target")
    settings = ReplaySettings(
        node={"url": node.url}, target={"path": target}, filter="plant/1/t", prefix="again/"
    )
    assert [step.rows for step in replay(spark, settings, wait=lambda _: None)] == [29]
    with siltstone.open(target, read_only=True) as copy:
        assert copy.database("messages").count("again/plant/1/t") == 29


def test_rows_that_only_the_lake_of_a_node_has_are_not_left_out_silently(
    spark: SparkSession, store: Store, database: Database, node: Node
) -> None:
    database.seal()
    tier_all(str(store.path))
    # What is in the lake is in the store as well.
    assert table(spark, url=node.url).count() == 200
    database.append([Row("plant/1/t", b"{}")]).wait()
    # A retention alone also rotates in the background, which would drop a slab under a query.
    database.configure(retain_seconds=0.000001, rotate_seconds=3600.0)
    assert len(database.enforce_retention()) == 2
    with pytest.raises(UsageError, match=r"the store of grpc.* begins at .*; older rows") as told:
        table(spark, url=node.url)
    (moment,) = re.findall(r"begins at (\S+);", str(told.value))
    assert table(spark, url=node.url, since=moment).count() == 1
    assert table(spark, str(store.path)).count() == 201


def test_what_a_node_is_shown_is_in_no_plan_no_progress_no_checkpoint_and_no_error(
    spark: SparkSession, node: Node, tmp_path: Path
) -> None:
    secret = "sesame-4711"  # noqa: S105 - nobody's
    told: list[str] = []
    login = {"username": "u", "password": secret}
    for shown in (login, {"token": secret}):
        rows = spark.read.format("siltstone").options(url=node.url, **shown).load()
        told.append(rows._jdf.queryExecution().toString())  # noqa: SLF001 - as explain does
        options = f"url '{node.url}', " + ", ".join(f"{name} '{shown[name]}'" for name in shown)
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW v USING siltstone OPTIONS ({options})")
        told.append(str(spark.sql("DESCRIBE EXTENDED v").collect()))
        nowhere = spark.read.format("siltstone").options(url="grpc+tcp://127.0.0.1:1", **shown)
        with pytest.raises(PySparkException, match="cannot connect to the node at") as failed:
            nowhere.load().count()
        told.append(str(failed.value))
    query = (
        spark.readStream.format("siltstone")
        .options(url=node.url, **login)
        .load()
        .selectExpr("concat('copy/', topic) AS topic", "payload")
        .writeStream.format("siltstone")
        .options(url=node.url, **login)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    told += [str(query.recentProgress), query._jsq.explainInternal(True)]  # noqa: FBT003, SLF001
    files = [file for file in (tmp_path / "checkpoint").rglob("*") if file.is_file()]
    told += [str(file.read_bytes()) for file in files]
    assert (len(told) - len(files), len(files) > 2) == (8, True)
    assert [text for text in told if secret in text] == []


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
    examples = [
        block.text
        for block in blocks("docs/reference/flight.md")
        if block.language == "python" and block.reason is None
    ]
    names: dict[str, Any] = {"spark": spark}
    for example in examples:
        exec(example.replace("grpc+tcp://127.0.0.1:8815", node.url), names)  # noqa: S102 - our own
    assert len(examples) == 4
    assert (names["table"].num_rows, len(names["frame"])) == (3, 3)
    assert database.count("plant/+/setpoint") == 2
    assert capsys.readouterr().out.splitlines()[-1] == str(database.count())
