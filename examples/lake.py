"""The Spark half of the demonstration: count rows of the live log, then make Delta tables."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread

from rich.console import Console

from siltstone.cli.output import add_row, table
from siltstone.pipeline import lake_table, start_session
from siltstone.pipeline.jobs.audit import audit
from siltstone.pipeline.jobs.tier import tier
from siltstone.pipeline.jobs.upkeep import describe_lake

ROOT = Path(__file__).resolve().parent.parent
DATABASE = "messages"
SENSOR_DEVICE = 17


class LiveCount:
    """A process in which Spark counts the rows of the store, again and again."""

    def __init__(self, directory: Path) -> None:
        command = [sys.executable, "-m", "examples.lake", str(directory)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        self._ended = Event()
        # The first count waits for Spark to start.
        self.counts = [self._ask()]
        self._thread = Thread(target=self._count)
        self._thread.start()

    def _ask(self) -> int:
        asked, told = self._process.stdin, self._process.stdout
        assert asked is not None
        assert told is not None
        print("count", file=asked, flush=True)
        return int(told.readline())

    def _count(self) -> None:
        while not self._ended.is_set():
            self.counts.append(self._ask())

    def stop(self) -> list[int]:
        """Stop counting; return the counts that differ, in order."""
        self._ended.set()
        self._thread.join()
        self._process.communicate()
        return list(dict.fromkeys(self.counts))


def count_live(directory: str) -> None:
    """Print how many rows there are, once for each line of the input."""
    spark = start_session(master="local[2]")
    for _ in sys.stdin:
        rows = spark.read.format("siltstone").option("database", DATABASE).load(directory)
        print(rows.count(), flush=True)
    spark.stop()


def show_lake(console: Console, directory: Path) -> tuple[str, list[tuple[float, float]]]:
    """Write the Delta tables, audit them, and return one sensor's name and values."""
    spark = start_session(master="local[2]")
    try:
        started = time.monotonic()
        report = tier(spark, str(directory), database=DATABASE)
        seconds = time.monotonic() - started
        console.print(
            f"  {report.rows:,} rows written to {len(report.tables)} Delta tables "
            f"({report.rows / seconds:,.0f} rows/s)."
        )
        shown = table("table", "rows", "columns", right=("rows",))
        for info in describe_lake(str(directory), database=DATABASE):
            columns = ", ".join(name for name, _ in info.own_columns())
            add_row(shown, (info.table, f"{info.rows:,}", columns))
        console.print(shown)
        sound = audit(spark, str(directory), database=DATABASE)
        if not sound.is_sound:
            raise SystemExit("demo: the audit found that store and lake differ")
        console.print("  [green]Audit: every row of the log is in the lake, exactly once.[/]")
        name = next(
            info.table
            for info in describe_lake(str(directory), database=DATABASE)
            if info.table.endswith("temperature")
        )
        rows = lake_table(spark, str(directory), name, database=DATABASE)
        chosen = rows.where(rows["device"] == str(SENSOR_DEVICE)).orderBy("number")
        # A reading that was sent again after the kill stands twice; it has the same value.
        values = {row["number"]: row["value"] for row in chosen.collect()}
    finally:
        spark.stop()
    return f"temperature of device {SENSOR_DEVICE}", sorted(values.items())


if __name__ == "__main__":
    count_live(sys.argv[1])
