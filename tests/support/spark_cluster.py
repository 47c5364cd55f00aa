"""A standalone Spark cluster from the pip package: a Master and Workers, as child processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, Queue
from threading import Thread

import pyspark

from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.spark.java import find_java
from siltstone.pipeline.spark.session import make_scratch, spark_environment

START_SECONDS = 60.0
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_WORKER = re.compile(r"Successfully registered with master")
# Only the lines that are waited for are logged.
_LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
logger.deploy.name = org.apache.spark.deploy
logger.deploy.level = info
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %m%n
"""


@contextmanager
def spark_cluster(directory: Path, *, workers: int) -> Iterator[str]:
    """Run a cluster with a core and 1 GiB for each worker; yield its address."""
    fs = PosixFileSystem()
    scratch = Path(make_scratch(fs, directory, find_java(fs, os.environ)).path)
    (scratch / "conf" / "log4j2.properties").write_text(_LOGGING, "utf-8")
    environment = os.environ | spark_environment(os.environ, master="local", scratch=scratch)
    environment |= {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
    }
    with ExitStack() as running:
        master = running.enter_context(
            _started(environment, "master.Master", "--host", "127.0.0.1", "--port", "0")
        )
        url = _wait_for(master, _MASTER)
        lines = [
            running.enter_context(
                _started(
                    environment,
                    "worker.Worker",
                    *("--host", "127.0.0.1", "--cores", "1", "--memory", "1g"),
                    *("--work-dir", str(directory / f"worker-{number}"), url),
                )
            )
            for number in range(workers)
        ]
        for each in lines:
            _wait_for(each, _WORKER)
        yield url


@contextmanager
def _started(environment: dict[str, str], name: str, *args: str) -> Iterator[Queue[str]]:
    """Run a daemon in its own process group, with its executors; yield its log lines."""
    command = [
        f"{Path(pyspark.__file__).parent}/bin/spark-class",
        f"org.apache.spark.deploy.{name}",
        *("--webui-port", "0"),
        *args,
    ]
    process = subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    said: Queue[str] = Queue()

    def listen() -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                said.put(line)

    listener = Thread(target=listen)
    listener.start()
    try:
        yield said
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        listener.join()


def _wait_for(said: Queue[str], pattern: re.Pattern[str]) -> str:
    """Return the part of a log line that matches."""
    seen: list[str] = []
    while True:
        try:
            seen.append(said.get(timeout=START_SECONDS))
        except Empty:
            raise AssertionError("".join(seen)) from None
        found = pattern.search(seen[-1])
        if found is not None:
            return found.group(1) if found.groups() else found.group()
