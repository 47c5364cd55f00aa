"""A driver for a cluster: `python -m tests.support.cluster_driver MASTER SOURCE URL TARGET MARK`.

It reads a store by its path and by its url, copies the rows to another store, and then tiers and
audits the store. During the copy and during tiering, one task kills its executor and leaves a file
beside MARK. The results are printed as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from siltstone.pipeline.jobs.audit import audit
from siltstone.pipeline.jobs.tasks import Runner, Task, TaskFailure, run_task
from siltstone.pipeline.jobs.tier import TierJob, TierSettings
from siltstone.pipeline.lake.files import MadeFile, Written
from siltstone.pipeline.spark.session import start_session

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
    """Return the number of rows and the sum of serials of each shard."""
    found = rows.groupBy("shard").agg({"serial": "sum", "*": "count"}).collect()
    return sorted([row["shard"], row["count(1)"], row["sum(serial)"]] for row in found)


def parent_of(process: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{process}/stat").read_text("ascii").rpartition(")")[2].split()[1])


def tiered(spark: SparkSession, path: str, mark: str) -> int:
    """Tier a store, and kill the executor of the first finished task; return the rows."""

    def run(tasks: Sequence[Task]) -> list[Written | MadeFile | TaskFailure]:
        def work(task: Task) -> Written | MadeFile | TaskFailure:
            done = run_task(task)
            if not Path(mark).exists():
                Path(mark).touch()
                os.kill(parent_of(os.getppid()), signal.SIGKILL)
            return done

        return spark.sparkContext.parallelize(tasks, len(tasks)).map(work).collect()

    runner: Runner = run
    job = TierJob(TierSettings(path=path), runner)
    rows = 0
    while (step := job.step()) is not None:
        rows += step.rows
    job.close()
    return rows


def main() -> None:
    """Read twice, copy once, tier and audit."""
    master, source, url, target, mark = sys.argv[1:]
    spark = start_session(
        name="cluster", master=master, memory="512m", java_options=JAVA_OPTIONS, settings=QUICK
    )
    load = spark.read.format("siltstone").option("maxRowsPerPartition", 500)
    mapped = load.load(source)
    fetched = (
        spark.read.format("siltstone").option("maxRowsPerPartition", 500).option("url", url).load()
    )
    sums = [summed(mapped), summed(fetched)]

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
    count = tiered(spark, source, f"{mark}-tiering")
    report = audit(spark, source).to_json()
    print(json.dumps([*sums, count, report]), flush=True)  # noqa: T201
    spark.stop()


if __name__ == "__main__":
    main()
