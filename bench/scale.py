"""Cost a row as rows and topics grow; `--full` goes to a hundred million rows."""

from __future__ import annotations

import argparse
import time

from rich.console import Console
from rich.table import Table

import siltstone
from bench.workload import fill, scratch, settings, topics


def cost_ns(rows: int, topic_count: int) -> float:
    """Return wall nanoseconds a row to append so many rows over so many topics."""
    with scratch() as path, siltstone.open(path / "data") as store:
        database = store.create("bench", settings())
        words = topics(topic_count)
        begin = time.perf_counter()
        fill(database, words, rows, 5000, "written")
        return (time.perf_counter() - begin) / rows * 1e9


def run(*, full: bool) -> Table:
    """Measure the curve and return it."""
    table = Table(title="cost of an appended row")
    table.add_column("rows", justify="right")
    table.add_column("topics", justify="right")
    table.add_column("ns a row", justify="right")
    top = 8 if full else 7
    points = [(10**power, 1000) for power in range(5, top + 1)]
    points += [(2_000_000, 10**power) for power in range(1, 7)]
    for rows, topic_count in points:
        cost = cost_ns(rows, topic_count)
        table.add_row(f"{rows:,}", f"{topic_count:,}", f"{cost:,.0f}")
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true")
    Console().print(run(full=parser.parse_args().full))
