"""Queries of Spark over several sites of a cluster: they continue at another site when one dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from siltstone.store.log.read.pieces import Row
from tests.integration.test_replicated_reads import ROWS, Site, two
from tests.integration.test_replicated_store import until
from tests.support.cutting_proxy import CuttingProxy

STORED = ROWS + 10


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def sites(closing: ExitStack, tmp_path: Path) -> tuple[Site, Site]:
    """Return two sites with the same rows."""
    return two(closing, tmp_path)


def url_of(*sites: Site) -> str:
    return ",".join(site.node.url for site in sites)


def serials(rows: DataFrame) -> list[int]:
    return sorted(row["serial"] for row in rows.select("serial").collect())


def add(site: Site, count: int) -> None:
    """Append rows through a site."""
    site.database.append([Row("t/1", b"new-%d" % number) for number in range(count)]).wait()


def test_a_query_continues_at_the_next_site_when_connections_to_one_are_cut(
    spark: SparkSession, sites: tuple[Site, Site], closing: ExitStack
) -> None:
    first, second = sites
    port = int(first.node.url.rpartition(":")[2])
    # All connections of tasks to the first site break in the middle of their rows.
    proxy = closing.enter_context(CuttingProxy(port, cuts=1000, after_bytes=100_000))
    url = f"grpc+tcp://127.0.0.1:{proxy.port},{second.node.url}"
    source = spark.read.format("siltstone").option("url", url).option("rowsPerBatch", 40)
    rows = source.option("maxRowsPerPartition", 150).load()
    assert serials(rows) == list(range(STORED))
    assert proxy.cuts_left < 1000
    expected = spark.read.format("siltstone").option("url", second.node.url).load()
    assert rows.orderBy("serial").collect() == expected.orderBy("serial").collect()


def test_a_query_that_was_planned_at_a_site_that_dies_is_read_at_another(
    spark: SparkSession, sites: tuple[Site, Site]
) -> None:
    first, second = sites
    rows = spark.read.format("siltstone").option("url", url_of(first, second)).load()
    first.die()
    assert serials(rows) == list(range(STORED))


class Stream:
    """A streaming query with a checkpoint; each run reads all that is there."""

    def __init__(self, spark: SparkSession, url: str, directory: Path, **options: str) -> None:
        self._spark = spark
        self._options = {"url": url, "maxRowsPerTrigger": "250"} | options
        self._directory = directory

    def begin(self) -> StreamingQuery:
        rows = self._spark.readStream.format("siltstone").options(**self._options).load()
        return (
            rows.select("serial")
            .writeStream.format("parquet")
            .option("path", str(self._directory / "rows"))
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )

    def run(self) -> list[int]:
        """Read all that is there; return all serials that were ever written."""
        self.begin().awaitTermination()
        return serials(self._spark.read.parquet(str(self._directory / "rows")))


def test_a_stream_continues_at_another_site_without_loss_or_repetition(
    spark: SparkSession, sites: tuple[Site, Site], tmp_path: Path
) -> None:
    first, second = sites
    stream = Stream(spark, url_of(first, second), tmp_path)
    query = stream.begin()
    until(lambda: bool(query.recentProgress), "a micro-batch is done")
    first.die()
    query.awaitTermination()
    add(first, 20)
    assert stream.run() == list(range(STORED + 20))


@pytest.mark.parametrize("fails_on_loss", ["true", "false"])
def test_a_stream_waits_for_a_site_that_is_behind(
    spark: SparkSession, sites: tuple[Site, Site], tmp_path: Path, fails_on_loss: str
) -> None:
    first, second = sites
    stream = Stream(spark, url_of(first, second), tmp_path, failOnDataLoss=fails_on_loss)
    # The second site reads no further.
    log = second.site.attached.pop(("m", 0))
    add(first, 30)
    assert stream.run() == list(range(STORED + 30))
    first.die()
    # The rows are not lost, and the position does not go back.
    with pytest.raises(PySparkException, match="this site has not read all rows of the query yet"):
        stream.run()
    second.site.attach(log)
    add(first, 5)
    assert stream.run() == list(range(STORED + 35))
