"""Disk per row, memory per frame and stream, and the time to open many sealed segments."""

from __future__ import annotations

import sys
import time
import tracemalloc
from pathlib import Path

from rich.table import Table

import siltstone
from bench.workload import TOPIC_BYTES, VALUE, fill, scratch, settings, topics
from siltstone.store.segment.index import SUMMARY_BYTES, decode_summary


def disk_overhead(path: Path) -> float:
    """Return bytes per row above topic and value when each flush has 100 rows."""
    rows = 50_000
    with siltstone.open(path) as store:
        # With one call in flight, each flush has one call.
        database = store.create("bench", siltstone.DatabaseSettings())
        words = topics(5000)
        for start in range(0, rows, 100):
            batch = [words[(start + i) * 31 % 5000] for i in range(100)]
            database.append(
                siltstone.Columns(batch, [VALUE] * 100, b"p"), durability="written"
            ).wait()
        database.seal()
    used = 0
    for index in path.glob("data/bench/0/1/*.idx"):
        data = index.read_bytes()
        used += decode_summary(data[:SUMMARY_BYTES], index).end_position + len(data)
    return used / rows - TOPIC_BYTES - len(VALUE)


def open_seconds(path: Path, size_bytes: int) -> tuple[float, int]:
    """Return the time to open a store of this size, and its number of segments."""
    rows = size_bytes // 140
    with siltstone.open(path) as store:
        database = store.create("bench", settings())
        fill(database, topics(5000), rows, 10_000, "written")
    begin = time.perf_counter()
    with siltstone.open(path) as store:
        database = store.database("bench")
        seconds = time.perf_counter() - begin
        return seconds, database.slabs()[0].segments


def memory(path: Path) -> tuple[float, float]:
    """Return bytes of memory for each frame and each row of an unsealed segment."""
    frames, batch = 20_000, 50
    with siltstone.open(path) as store:
        database = store.create("bench", settings())
        words = topics(50)
        call = siltstone.Columns(words, [VALUE] * batch, b"p")
        database.append(call).wait()
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(frames):
            database.append(call, durability="written").wait()
        grown = tracemalloc.get_traced_memory()[0] - before
        tracemalloc.stop()
    return grown / frames, grown / frames / batch


def run(*, full: bool = False) -> Table:
    """Measure all and return the table."""
    size = (10 if full else 2) * 10**9
    table = Table(title="footprint")
    table.add_column("")
    table.add_column("measured", justify="right")
    with scratch() as path:
        table.add_row("bytes a row above topic and value", f"{disk_overhead(path / 'disk'):.1f}")
        a_frame, a_row = memory(path / "memory")
        table.add_row("memory a frame of an unsealed segment", f"{a_frame:.0f} B")
        table.add_row("memory a row, frames of 50 rows", f"{a_row:.2f} B")
        seconds, segments = open_seconds(path / "open", size)
        name = f"open {size / 1e9:.0f} GB in {segments} segments"
        table.add_row(name, f"{seconds * 1000:.0f} ms")
    table.add_row("Python", sys.version.split()[0])
    return table
