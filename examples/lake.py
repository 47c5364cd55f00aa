"""The second half of the demonstration: Spark counts what devices publish, then makes tables."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from threading import Event, Thread
from typing import Any

from rich.console import Console

from examples.plot import COLOURS, plot
from siltstone.cli.output import add_row, table
from siltstone.cli.quantities import format_size
from siltstone.pipeline import lake_table, start_session
from siltstone.pipeline.jobs.audit import audit
from siltstone.pipeline.jobs.tier import tier
from siltstone.pipeline.jobs.upkeep import describe_lake

ROOT = Path(__file__).resolve().parent.parent
DATABASE = "messages"


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
        """End it; return the counts that differ, in order."""
        self._ended.set()
        self._thread.join()
        self._process.communicate()
        return list(dict.fromkeys(self.counts))


def count_live(directory: str) -> None:
    """Print how many rows there are, for each line that comes in."""
    spark = start_session(master="local[2]")
    for _ in sys.stdin:
        rows = spark.read.format("siltstone").option("database", DATABASE).load(directory)
        print(rows.count(), flush=True)
    spark.stop()


def show_lake(console: Console, directory: Path) -> list[tuple[str, str]]:
    """Tier the store, show the tables, plot an aggregate; return figures for the summary."""
    spark = start_session(master="local[2]")
    try:
        started = time.monotonic()
        report = tier(spark, str(directory), database=DATABASE)
        seconds = time.monotonic() - started
        _show_tables(console, directory)
        sound = audit(spark, str(directory), database=DATABASE)
        if not sound.is_sound:
            raise SystemExit("demo: store and lake do not agree")
        console.print("[green]every row of the store is in the lake, once[/]: audited by content")
        _plot_means(console, spark, directory)
    finally:
        spark.stop()
    return [
        ("tiered to Delta tables", f"{report.rows:,} rows, {report.rows / seconds:,.0f} rows/s"),
        ("the lake", f"{len(report.tables)} tables, {format_size(report.size_bytes)}"),
    ]


def _show_tables(console: Console, directory: Path) -> None:
    shown = table("table", "rows", "columns of its own", right=("rows",))
    for info in describe_lake(str(directory), database=DATABASE):
        columns = ", ".join(f"{name} {kind}" for name, kind in info.own_columns())
        add_row(shown, (info.table, f"{info.rows:,}", columns))
    console.print(shown)


def _plot_means(console: Console, spark: Any, directory: Path) -> None:
    """Plot the mean temperature of each site over time."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for info in describe_lake(str(directory), database=DATABASE):
        if not info.table.endswith("temperature"):
            continue
        rows = lake_table(spark, str(directory), info.table, database=DATABASE)
        means = rows.groupBy("plant", "step").avg("value").orderBy("step").collect()
        for site, step, mean in means:
            lines.setdefault(site, []).append((step, mean))
    path = directory.parent / "temperature.png"
    title = "mean temperature of each site in degrees, by step"
    path.write_bytes(plot(title, dict(sorted(lines.items()))))
    key = "  ".join(
        f"[rgb({colour[0]},{colour[1]},{colour[2]})]━━[/] {site}"
        for site, colour in zip(sorted(lines), COLOURS, strict=False)
    )
    console.print(f"mean temperature of each site: {path}\n{key}")


if __name__ == "__main__":
    count_live(sys.argv[1])
