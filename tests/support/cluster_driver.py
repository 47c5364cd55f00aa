"""A driver for a cluster: `python -m tests.support.cluster_driver MASTER SOURCE URL TARGET MARK`.

It reads a store by its path and by its url, and prints both as JSON; then it copies the rows to
another store. In the middle of the copy one task kills the executor that it runs in.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame

from siltstone.pipeline.session import start_session

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
QUICK = {
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executor.extraJavaOptions": JAVA_OPTIONS,
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
}


def summed(rows: DataFrame) -> list[list[int]]:
    """Return rows and serials of each shard."""
    found = rows.groupBy("shard").agg({"serial": "sum", "*": "count"}).collect()
    return sorted([row["shard"], row["count(1)"], row["sum(serial)"]] for row in found)


def parent_of(process: int) -> int:
    """Return the process that started another."""
    return int(Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()[1])


def main() -> None:
    """Read twice and copy once."""
    master, source, url, target, mark = sys.argv[1:]
    spark = start_session(
        name="cluster", master=master, memory="512m", java_options=JAVA_OPTIONS, settings=QUICK
    )
    load = spark.read.format("siltstone").option("maxRowsPerPartition", 500)
    mapped = load.load(source)
    fetched = (
        spark.read.format("siltstone").option("maxRowsPerPartition", 500).option("url", url).load()
    )
    print(json.dumps([summed(mapped), summed(fetched)]), flush=True)  # noqa: T201

    def killing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        for number, batch in enumerate(batches):
            yield batch
            if number == 3 and context.partitionId() == 1 and not Path(mark).exists():
                Path(mark).touch()
                # The worker's parent is a daemon, whose parent is the executor.
                os.kill(parent_of(os.getppid()), signal.SIGKILL)

    rows = (
        mapped.select("topic", "payload")
        .repartition(4)
        .mapInArrow(killing, "topic STRING, payload BINARY")
    )
    rows.write.format("siltstone").mode("append").option("database", "copy").save(target)
    spark.stop()


if __name__ == "__main__":
    main()
