"""Start Spark so that it works: Java, Python, logs and the settings that our tables need.

Everything that must be right before the JVM starts is set here and nowhere else, and the user sets
nothing. What Spark needs on disk goes to a scratch directory that goes with the process.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import PurePath
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from siltstone.errors import UsageError
from siltstone.fs.posix import PosixFileSystem
from siltstone.fs.publish import create_directories
from siltstone.pipeline.source.source import register
from siltstone.pipeline.spark.java import Java, find_java
from siltstone.pipeline.spark.scratch import Scratch, sweep_scratch

# What a task fails with is raised where the query was run, and need not be logged three times.
_LOGGING: Final = b"""\
rootLogger.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
logger.tries.name = org.apache.spark.util.Utils
logger.tries.level = off
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""
# Arrow checks every access to its memory otherwise, once for each value of each row.
_JAVA_OPTIONS: Final = (
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
)
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # What other readers of Parquet, delta-rs among them, take for microseconds.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}


def start_session(
    *,
    name: str = "siltstone",
    master: str = "local[*]",
    memory: str = "1g",
    java_options: str = "",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a Spark session with the source registered; one that is active already, if there is.

    Raises: UsageError when there is no Java for Spark, or a pandas that it cannot use.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        register(active)
        return active
    check_pandas(metadata.version("pandas"))
    fs = PosixFileSystem()
    java = find_java(fs, os.environ)
    scratch = _new_scratch(fs, java)
    chosen = session_settings(
        master=master, memory=memory, java_options=java_options, java=java, scratch=scratch.path
    )
    builder = SparkSession.Builder().appName(name).master(master)
    for key, value in (chosen | dict(settings or {})).items():
        builder = builder.config(key, value)
    changes = spark_environment(os.environ, master=master, scratch=scratch.path)
    changes |= worker_environment(sys.path, os.getcwd())
    try:
        with _environment(changes):
            spark = builder.getOrCreate()
    except BaseException:
        scratch.remove()
        raise
    atexit.register(_end, scratch)
    register(spark)
    # It writes a page of JSON for every query that is wrong; the error says the same in a line.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return spark


@contextmanager
def spark_process() -> Iterator[dict[str, str]]:
    """Yield the environment for a process of Spark's own tools, such as spark-pipelines.

    What it needs on disk goes when the process has ended. Raises: UsageError.
    """
    check_pandas(metadata.version("pandas"))
    fs = PosixFileSystem()
    java = find_java(fs, os.environ)
    scratch = _new_scratch(fs, java)
    try:
        yield spark_environment(os.environ, master="local", scratch=scratch.path)
    finally:
        scratch.remove()


def check_pandas(version: str) -> None:
    """Refuse a pandas that this pyspark does not work with. Raises: UsageError."""
    if int(version.partition(".")[0]) >= 3:
        raise UsageError(f"pyspark {pyspark.__version__} needs pandas below 3: pandas={version}")


def session_settings(
    *, master: str, memory: str, java_options: str, java: Java, scratch: PurePath
) -> dict[str, str]:
    """Return what Spark is told when it starts."""
    settings = _SETTINGS | {
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": " ".join(
            [*_JAVA_OPTIONS, *java.options, java_options]
        ).strip(),
        "spark.executor.extraJavaOptions": " ".join([*_JAVA_OPTIONS, *java.options]),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    if master.startswith("local"):
        settings["spark.driver.host"] = "127.0.0.1"
        cores = os.cpu_count() or 2
        # The default of 200 is for a cluster; here it is 200 small tasks for every shuffle.
        settings["spark.sql.shuffle.partitions"] = str(max(4, 2 * cores))
        # Spark packs small files into as few tasks as it can: three of them on two cores, of which
        # one is idle for a third of the time.
        settings["spark.sql.files.minPartitionNum"] = str(4 * cores)
        # More files than 32 it would look at in a job of their own, which takes half a second.
        settings["spark.sql.sources.parallelPartitionDiscovery.threshold"] = "10000"
        settings["spark.local.dir"] = str(scratch / "local")
    return settings


def spark_environment(
    environment: Mapping[str, str], *, master: str, scratch: PurePath
) -> dict[str, str]:
    """Return the variables to start Spark with, beside those there are."""
    changes = {
        "JAVA_HOME": str(scratch / "java"),
        # Another Spark of the machine, of another version, must not be taken for ours.
        "SPARK_HOME": str(PurePath(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_CONF_DIR": environment.get("SPARK_CONF_DIR") or str(scratch / "conf"),
    }
    if master.startswith("local"):
        changes["SPARK_LOCAL_IP"] = "127.0.0.1"
    source = PurePath(__file__).parents[3]
    return changes | worker_search_path(source, environment.get("PYTHONPATH", ""))


def worker_search_path(source: PurePath, known: str) -> dict[str, str]:
    """Return the variable that lets Spark's workers import this package from where it is; none
    where they look for packages anyway.
    """
    if source.name in {"site-packages", "dist-packages"}:
        return {}
    return {"PYTHONPATH": f"{source}:{known}" if known else str(source)}


def worker_environment(search: Sequence[str], directory: str) -> dict[str, str]:
    """Return the variables that let Spark's workers import from the current directory only where
    this process does: a file there with the name of a standard module would end each of them.
    """
    return {} if {"", directory} & set(search) else {"PYTHONSAFEPATH": "1"}


def _new_scratch(fs: PosixFileSystem, java: Java) -> Scratch:
    parent = PurePath(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - a name of its own below it
    sweep_scratch(fs, parent)
    return make_scratch(fs, parent, java)


def make_scratch(fs: PosixFileSystem, parent: PurePath, java: Java) -> Scratch:
    """Make the directory of this process, with the files that Spark starts with."""
    scratch = Scratch(fs, parent)
    place = scratch.path
    create_directories(fs, place / "tmp")
    for path, data in (
        (place / "java" / "bin" / "java", java.shim(place / "tmp")),
        (place / "conf" / "log4j2.properties", _LOGGING),
    ):
        create_directories(fs, path.parent)
        with fs.create(path) as file:
            file.write(data)
    fs.set_mode(place / "java" / "bin" / "java", 0o755)
    return scratch


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Change the environment while Spark starts: its processes keep a copy."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _end(scratch: Scratch) -> None:
    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()
    scratch.remove()
