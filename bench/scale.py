"""Cost per row as rows and topics grow; `--full` goes to a hundred million rows."""

from __future__ import annotations

import argparse
import time
from typing import Final

from rich.console import Console
from rich.table import Table

import siltstone
from bench.workload import VALUE, scratch, settings, topic
from siltstone import Columns, Database

BATCH: Final = 5000
BATCHES_AT_ONCE: Final = 50


def cost_ns(rows: int, topic_count: int) -> tuple[float, float]:
    """Return nanoseconds per appended row, wall time and processor time.

    The rows are created before they are timed: each topic is a new object, as in a message that a
    client has just sent.
    """
    wall = processor = 0.0
    with scratch() as path, siltstone.open(path / "data") as store:
        database = store.create("bench", settings())
        for start in range(0, rows, BATCH * BATCHES_AT_ONCE):
            stop = min(rows, start + BATCH * BATCHES_AT_ONCE)
            batches = [new_batch(first, topic_count) for first in range(start, stop, BATCH)]
            wall_begin, begin = time.perf_counter(), time.process_time()
            append(database, batches)
            wall += time.perf_counter() - wall_begin
            processor += time.process_time() - begin
    return wall / rows * 1e9, processor / rows * 1e9


def new_batch(first: int, topic_count: int) -> Columns:
    """Return rows that visit the topics with a stride."""
    words = [topic((first + i) * 31 % topic_count) for i in range(BATCH)]
    return Columns(words, [VALUE] * BATCH, b"producer", 1)


def append(database: Database, batches: list[Columns]) -> None:
    """Append all batches, with a few calls in flight."""
    waiting = []
    for batch in batches:
        waiting.append(database.append(batch, durability="written"))
        if len(waiting) >= 4:
            waiting.pop(0).wait()
    for ticket in waiting:
        ticket.wait()


def run(*, full: bool) -> Table:
    """Measure the curve and return the table."""
    table = Table(title="cost of an appended row")
    for name in ("rows", "topics", "ns a row", "of processor time"):
        table.add_column(name, justify="right")
    top = 8 if full else 7
    points = [(10**power, 1000) for power in range(5, top + 1)]
    points += [(4_000_000, 10**power) for power in range(1, 7)]
    # The first call in a process is slower, and is not measured.
    cost_ns(BATCH * BATCHES_AT_ONCE, 1000)
    for rows, topic_count in points:
        wall, processor = cost_ns(rows, topic_count)
        table.add_row(f"{rows:,}", f"{topic_count:,}", f"{wall:,.0f}", f"{processor:,.0f}")
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    Console().print(run(full=parser.parse_args().full))
