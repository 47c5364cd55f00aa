"""The files of a user project, which `siltstone pipeline init` writes.

The project has two examples: a plain Structured Streaming job, and a Spark Declarative Pipeline,
with the settings for both. An existing file is never changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

from siltstone.errors import ExistsError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import create_directories, replace_file

_README: Final = """\
# {name}

A pipeline that reads the messages in {data}.

    python stream_job.py --once      # Structured Streaming: process the new messages, then exit
    python stream_job.py             # Structured Streaming: run until stopped
    python run_pipeline.py           # run the declarative pipeline in transformations/

`stream_job.py` writes one Parquet table and continues from its checkpoint. The declarative pipeline
needs `pip install 'pyspark[pipelines]==4.3.0'`. It stores its tables and its catalog in `state/`.
Each run processes the messages that arrived since the last run.
"""
_JOB: Final = '''\
"""Write the messages of a store to a Parquet table, exactly once, with Structured Streaming."""

import argparse

from pyspark.sql import functions as F
from siltstone.pipeline import start_session

DATA = {data!r}
DATABASE = {database!r}
FILTER = {filter!r}
STATE = {state!r}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--once", action="store_true", help="exit when all messages are read")
    arguments = parser.parse_args()
    spark = start_session(name={name!r}, master="local[2]")
    messages = (
        spark.readStream.format("siltstone")
        .option("database", DATABASE)
        .option("filter", FILTER)
        .option("decode", "utf8")
        .load(DATA)
    )
    readings = messages.select(
        "topic",
        "timestamp",
        F.col("payload").alias("text"),
        F.to_date("timestamp").alias("date"),
        "shard",
        "serial",
    )
    trigger = {{"availableNow": True}} if arguments.once else {{"processingTime": "5 seconds"}}
    query = (
        readings.writeStream.format("parquet")
        .partitionBy("date")
        .option("path", f"{{STATE}}/readings")
        .option("checkpointLocation", f"{{STATE}}/checkpoint")
        .trigger(**trigger)
        .start()
    )
    query.awaitTermination()
    if arguments.once:
        print(spark.read.parquet(f"{{STATE}}/readings").count(), "messages in total")


if __name__ == "__main__":
    main()
'''
_RUN: Final = '''\
"""Run the declarative pipeline in this directory, with a suitable Java and Python."""

import os
import subprocess
import sys
from pathlib import Path

import pyspark
from siltstone.pipeline.spark.session import spark_process

HERE = Path(__file__).resolve().parent


def main() -> int:
    (HERE / "state").mkdir(exist_ok=True)
    spark_home = Path(pyspark.__file__).parent
    with spark_process() as environment:
        # Spark reads these settings before it loads the pipeline.
        environment["SPARK_CONF_DIR"] = str(HERE / "conf")
        command = [str(spark_home / "bin" / "spark-pipelines"), *(sys.argv[1:] or ["run"])]
        return subprocess.run(command, cwd=HERE, env=os.environ | environment).returncode


if __name__ == "__main__":
    sys.exit(main())
'''
_SPEC: Final = """\
name: {name}
storage: file://{state}/storage
libraries:
  - glob:
      include: transformations/**
catalog: spark_catalog
database: default
"""
_DEFAULTS: Final = """\
# The catalog of the tables is stored on disk. Only one run at a time can use it.
spark.sql.catalogImplementation hive
spark.sql.warehouse.dir {state}/warehouse
spark.hadoop.javax.jdo.option.ConnectionURL jdbc:derby:;databaseName={state}/catalog;create=true
spark.driver.extraJavaOptions -Dderby.system.home={state}
spark.sql.session.timeZone UTC
spark.sql.parquet.outputTimestampType TIMESTAMP_MICROS
spark.sql.shuffle.partitions 4
spark.ui.enabled false
"""
_LOGGING: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n
"""
_TRANSFORMATIONS: Final = '''\
"""The tables of the pipeline: a stream of messages, and a view that is computed from it."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.table
def messages() -> DataFrame:
    """All messages; each run adds the new ones."""
    return (
        spark.readStream.format("siltstone")
        .option("database", {database!r})
        .option("filter", {filter!r})
        .load({data!r})
        .select("topic", "timestamp", "payload", "shard", "serial")
    )


@dp.materialized_view
def topics() -> DataFrame:
    """All topics, with their number of messages and the time of the last one."""
    return spark.read.table("messages").groupBy("topic").agg(
        F.count(F.lit(1)).alias("messages"), F.max("timestamp").alias("last")
    )
'''


def project_files(
    *, name: str, data: str, database: str, topic_filter: str, state: str
) -> Mapping[str, str]:
    """Return the contents of the files of a project, by name."""
    facts = {
        "name": name,
        "data": data,
        "database": database,
        "filter": topic_filter,
        "state": state,
    }
    return {
        "README.md": _README.format(**facts),
        "stream_job.py": _JOB.format(**facts),
        "run_pipeline.py": _RUN,
        "spark-pipeline.yml": _SPEC.format(**facts),
        "conf/spark-defaults.conf": _DEFAULTS.format(**facts),
        "conf/log4j2.properties": _LOGGING.format(**facts),
        "transformations/messages.py": _TRANSFORMATIONS.format(**facts),
    }


def write_project(
    fs: FileSystem, directory: PurePath, *, data: PurePath, database: str, topic_filter: str
) -> list[PurePath]:
    """Write a project into a directory, which may exist; return its files.

    Raises: ExistsError if one of the files exists; nothing is written.
    """
    files = project_files(
        name=directory.name,
        data=str(data),
        database=database,
        topic_filter=topic_filter,
        state=str(directory / "state"),
    )
    paths = [directory / name for name in files]
    for path in paths:
        if fs.exists(path):
            raise ExistsError(f"{path} exists already: choose another directory")
    for path, text in zip(paths, files.values(), strict=True):
        create_directories(fs, path.parent)
        replace_file(fs, path, text.encode())
    return paths
