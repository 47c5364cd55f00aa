"""Start of Spark, with Java, Python, logs and the settings that the tables need.

All settings that must be right before the JVM starts are made here; the user sets nothing. The
files of Spark are in a temporary directory that is removed when the process ends.
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

# The error of a task is raised by the query, so Spark need not log it three times.
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
# Without these, Arrow checks every access to its memory, once for each value of each row.
_JAVA_OPTIONS: Final = (
    "-Darrow.enable_unsafe_memory_access=true",
    "-Darrow.enable_null_check_for_get=false",
)
_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Other readers of Parquet, such as delta-rs, read this type as microseconds.
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
    """Return a Spark session with the source registered; the active one if there is one.

    Raises: UsageError if Java is missing, or if the version of pandas is not supported.
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
    # This logger writes a page of JSON for every invalid query; the error says the same in one
    # line.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    return spark


@contextmanager
def spark_process() -> Iterator[dict[str, str]]:
    """Yield the environment for a tool of Spark, such as spark-pipelines.

    Its temporary directory is removed afterwards. Raises: UsageError.
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
    """Check that pyspark works with this version of pandas. Raises: UsageError."""
    if int(version.partition(".")[0]) >= 3:
        raise UsageError(f"pyspark {pyspark.__version__} needs pandas below 3: pandas={version}")


def session_settings(
    *, master: str, memory: str, java_options: str, java: Java, scratch: PurePath
) -> dict[str, str]:
    """Return the settings of a new session."""
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
        # The default of 200 is for a cluster. Here it would mean 200 small tasks for every shuffle.
        settings["spark.sql.shuffle.partitions"] = str(max(4, 2 * cores))
        # Spark packs small files into as few tasks as possible, for example three on two cores; one
        # core would be idle for a third of the time.
        settings["spark.sql.files.minPartitionNum"] = str(4 * cores)
        # Above the default of 32 files, Spark lists them in a separate job, which takes half a
        # second.
        settings["spark.sql.sources.parallelPartitionDiscovery.threshold"] = "10000"
        settings["spark.local.dir"] = str(scratch / "local")
    return settings


def spark_environment(
    environment: Mapping[str, str], *, master: str, scratch: PurePath
) -> dict[str, str]:
    """Return the environment variables to start Spark with, besides the existing ones."""
    changes = {
        "JAVA_HOME": str(scratch / "java"),
        # Prevent the use of another Spark on the machine, with another version.
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
    """Return PYTHONPATH for the workers of Spark, so that they can import this package.

    Return no variable if the package is in site-packages.
    """
    if source.name in {"site-packages", "dist-packages"}:
        return {}
    return {"PYTHONPATH": f"{source}:{known}" if known else str(source)}


def worker_environment(search: Sequence[str], directory: str) -> dict[str, str]:
    """Return the variables that control whether workers import from the current directory.

    Workers do so only if this process does: a file there with the name of a standard module would
    make each of them fail.
    """
    return {} if {"", directory} & set(search) else {"PYTHONSAFEPATH": "1"}


def _new_scratch(fs: PosixFileSystem, java: Java) -> Scratch:
    parent = PurePath(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108 - a name of its own below it
    sweep_scratch(fs, parent)
    return make_scratch(fs, parent, java)


def make_scratch(fs: PosixFileSystem, parent: PurePath, java: Java) -> Scratch:
    """Create the temporary directory of this process, with the files that Spark needs to start."""
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
