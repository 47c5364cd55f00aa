"""Streaming queries that are killed: `python -m tests.support.stream_driver STORE DIRECTORY`.

Each micro-batch of the first query becomes one file, named after the batch, so that a repeated
batch replaces its file. It prints `begin N` before a batch is written and `end N` after. The second
query copies the rows to another store at the same time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from siltstone.pipeline.spark.session import start_session


def tell(text: str) -> None:
    """Print a line that the parent process waits for."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def run_queries(
    spark: SparkSession, store: str, directory: Path, say: Callable[[str], None]
) -> None:
    """Read all rows, then end."""

    def write(batch: DataFrame, number: int) -> None:
        say(f"begin {number}")
        table = batch.toArrow()
        temporary = directory / f"{number}.tmp"
        pq.write_table(table, temporary)
        temporary.rename(directory / f"{number}.parquet")
        say(f"end {number}")

    query = (
        spark.readStream.format("siltstone")
        .option("maxRowsPerTrigger", 100)
        .load(store)
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(directory / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    copy = (
        spark.readStream.format("siltstone")
        .option("maxRowsPerTrigger", 60)
        .load(store)
        .select("topic", "payload")
        .writeStream.format("siltstone")
        .option("path", str(directory / "copy"))
        .option("checkpointLocation", str(directory / "copying"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    copy.awaitTermination()


def main() -> None:
    """Run the queries in a new Spark session."""
    store, directory = sys.argv[1], Path(sys.argv[2])
    spark = start_session(
        name="driver",
        master="local[2]",
        memory="512m",
        java_options="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    )
    run_queries(spark, store, directory, tell)
    spark.stop()


if __name__ == "__main__":
    main()
