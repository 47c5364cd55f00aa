"""The Spark half of the demonstration: count rows of the live log, then make Delta tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from typing import Any

from rich.console import Console

from examples.plant import SENSOR_DEVICE, SENSOR_KIND
from examples.story import Points
from siltstone.cli.output.output import add_row, table

ROOT = Path(__file__).resolve().parent.parent
COUNT_PAUSE_SECONDS = 0.5


class Spark:
    """The process of examples/spark_job.py.

    It starts at once and answers one question at a time.
    """

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "examples.spark_job", str(directory)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )

    def ask(self, question: str) -> Any:
        """Return the answer; the first one waits for Spark to start."""
        asked, told = self._process.stdin, self._process.stdout
        assert asked is not None
        assert told is not None
        print(question, file=asked, flush=True)
        answer = told.readline()
        if not answer:
            raise SystemExit("demo: Spark failed")
        return json.loads(answer)

    def close(self) -> None:
        """Stop Spark."""
        self._process.communicate()


class LiveCount:
    """A thread that counts the rows of the log with Spark again and again."""

    def __init__(self, spark: Spark) -> None:
        self._spark = spark
        self._counts: list[int] = []
        self._ended = Event()
        self._thread = Thread(target=self._count)
        self._thread.start()

    def _count(self) -> None:
        while not self._ended.wait(COUNT_PAUSE_SECONDS):
            self._counts.append(self._spark.ask("count"))

    def stop(self) -> list[int]:
        """Count once more and stop; return the distinct counts, in order."""
        self._ended.set()
        self._thread.join()
        self._counts.append(self._spark.ask("count"))
        return list(dict.fromkeys(self._counts))


def show_lake(console: Console, spark: Spark) -> tuple[str, Points]:
    """Write the Delta tables, audit them, and return one sensor's name and values."""
    written = spark.ask("tier")
    tables = spark.ask("tables")
    console.print(
        f"  {written['rows']:,} rows written to {len(tables)} Delta tables "
        f"({written['rows'] / written['seconds']:,.0f} rows/s)."
    )
    shown = table("  table", "rows", right=("rows",))
    for each in tables:
        add_row(shown, (f"  {each['table']}", f"{each['rows']:,}"))
    console.print(shown)
    console.print(
        f"  Columns of a sensor's table:\n  {', '.join(tables[0]['columns'])}.\n"
        f"  Readings that were sent again are in it twice. The table {tables[-1]['table']}\n"
        f"  has the messages of the publisher that measures PUBACK latency."
    )
    if not spark.ask("audit"):
        raise SystemExit("demo: the audit found that store and lake differ")
    console.print("  [green]Audit: every row of the log is in the lake, exactly once.[/]")
    return f"{SENSOR_KIND} of device {SENSOR_DEVICE}", [tuple(pair) for pair in spark.ask("sensor")]
