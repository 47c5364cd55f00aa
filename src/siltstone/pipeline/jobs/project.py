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

A pipeline over the messages of {data}.

    python stream_job.py --once      # plain Structured Streaming: new messages, then end
    python stream_job.py             # … and go on as they come
    python run_pipeline.py           # the declarative pipeline in transformations/

`stream_job.py` writes one Parquet table and continues from its checkpoint. The declarative pipeline
needs `pip install 'pyspark[pipelines]==4.3.0'`; it keeps its tables and its catalog below `state/`,
and each run takes up what is new.
"""
_JOB: Final = '''\
"""Messages of a store to a table, exactly once: plain Structured Streaming."""

import argparse

from pyspark.sql import functions as F
from siltstone.pipeline import start_session

DATA = {data!r}
DATABASE = {database!r}
FILTER = {filter!r}
STATE = {state!r}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--once", action="store_true", help="end when all messages are read")
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
        print(spark.read.parquet(f"{{STATE}}/readings").count(), "messages so far")


if __name__ == "__main__":
    main()
'''
_RUN: Final = '''\
"""Run the declarative pipeline of this directory, with a Java and a Python that work."""

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
        # Its settings are read before anything of the pipeline is.
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
# Between runs the tables are known by a catalog on the disk, which one run at a time may use.
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
"""The tables of the pipeline. Messages come in as a stream, what follows is computed from them."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.table
def messages() -> DataFrame:
    """New messages of each run."""
    return (
        spark.readStream.format("siltstone")
        .option("database", {database!r})
        .option("filter", {filter!r})
        .load({data!r})
        .select("topic", "timestamp", "payload", "shard", "serial")
    )


@dp.materialized_view
def topics() -> DataFrame:
    """Every topic, with how many messages it has and when the last one came."""
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
