"""The Spark of the demonstration: one session in a process of its own, which answers questions.

    python -m examples.spark_job DIRECTORY

Each line of the input is a question; the answer is a line of JSON:

    count    the number of rows in the log
    tier     write the log to Delta tables; how many rows, how many seconds
    tables   the Delta tables: name, rows and columns of each
    audit    whether every row of the log is in the tables exactly once
    sensor   the numbers and values of one sensor, read from its Delta table
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql import SparkSession

from examples.plant import DATABASE, SENSOR_DEVICE, SENSOR_KIND
from siltstone.pipeline import lake_table, start_session
from siltstone.pipeline.jobs.audit import audit
from siltstone.pipeline.jobs.tier import tier
from siltstone.pipeline.jobs.upkeep import describe_lake

# This session lives for half a minute: time spent on better machine code and on parallel garbage
# collection is not won back, and both cores are busy with the broker and the devices.
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def count(spark: SparkSession, directory: str) -> int:
    """Return the number of rows in the log, which the broker writes at the same time."""
    return spark.read.format("siltstone").option("database", DATABASE).load(directory).count()


def write_tables(spark: SparkSession, directory: str) -> dict[str, float]:
    """Write the log to Delta tables."""
    started = time.monotonic()
    report = tier(spark, directory, database=DATABASE)
    return {"rows": report.rows, "seconds": time.monotonic() - started}


def tables(_spark: SparkSession, directory: str) -> list[dict[str, Any]]:
    """Return the tables of the lake, in order of their names."""
    return [
        {
            "table": info.table,
            "rows": info.rows,
            "columns": [name for name, _ in info.own_columns()],
        }
        for info in describe_lake(directory, database=DATABASE)
    ]


def is_sound(spark: SparkSession, directory: str) -> bool:
    """Return whether store and lake have the same rows."""
    return audit(spark, directory, database=DATABASE).is_sound


def sensor(spark: SparkSession, directory: str) -> list[tuple[int, float]]:
    """Return the readings of one sensor, in order."""
    [name] = [
        info.table
        for info in describe_lake(directory, database=DATABASE)
        if info.table.endswith(SENSOR_KIND)
    ]
    rows = lake_table(spark, directory, name, database=DATABASE)
    chosen = rows.where(rows["device"] == str(SENSOR_DEVICE)).select("number", "value")
    # A reading that was sent again after the kill exists twice, with the same value.
    return sorted({(row["number"], row["value"]) for row in chosen.collect()})


QUESTIONS: Final[Mapping[str, Callable[[SparkSession, str], Any]]] = {
    "count": count,
    "tier": write_tables,
    "tables": tables,
    "audit": is_sound,
    "sensor": sensor,
}


def main(directory: str) -> None:
    """Answer until the input ends."""
    spark = start_session(master="local[2]", java_options=JAVA_OPTIONS)
    for line in sys.stdin:
        print(json.dumps(QUESTIONS[line.strip()](spark, directory)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
