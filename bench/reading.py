"""Read: rows per second of a stream, of one literal level, as Python rows; and of RocksDB.

    python -m bench.reading [--data DIR] [--only bulk|small] [--rows N] [--spark]

Then the same beside rows that a broker stored in small frames, see `small_frames.py`. A broker
needs 150 s for each of its two stores; `--data` keeps them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from rocksdict import Options, Rdict, WriteBatch

import siltstone
from bench import small_frames
from bench.workload import VALUE, fill, scratch, settings, topics
from siltstone import Batch, Database, Status
from siltstone.version import __version__, form

ROWS = 4_000_000
DEVICES = 5000


class Rates(NamedTuple):
    """Rows per second: the first pass of all, the first of a new reader, and a later one."""

    first: float
    checked: float
    again: float


def stream_rates(
    path: Path, topic_filter: str, rows_max: int, use: Callable[[Batch], object]
) -> Rates:
    """Return rows scanned per second; in its first pass a reader checks each frame.

    The very first pass must also get memory from the operating system.
    """
    passes: list[list[float]] = []
    for _ in range(2):
        with siltstone.open(path, read_only=True) as store:
            database = store.database("bench")
            passes.append([one_pass(database, topic_filter, rows_max, use) for _ in range(4)])
    return Rates(passes[0][0], passes[1][0], max(passes[0][1:] + passes[1][1:]))


def one_pass(
    database: Database, topic_filter: str, rows_max: int, use: Callable[[Batch], object]
) -> float:
    """Read all matching rows, stream by stream; return rows scanned per second."""
    begin = time.perf_counter()
    for stream in database.streams(topic_filter):
        iterator = database.iterator(stream, topic_filter)
        status = Status.MORE
        while status is Status.MORE:
            read = database.next(iterator, rows_max)
            iterator, status = read.iterator, read.status
            use(read.batch)
    return ROWS / (time.perf_counter() - begin)


def rocksdb_rates(path: Path) -> Rates:
    """Return rows per second of an iterator over keys and values."""
    words = topics(DEVICES)
    store = Rdict(str(path), Options(raw_mode=True))
    rows = ROWS // 8
    for start in range(0, rows, 10_000):
        batch = WriteBatch(raw_mode=True)
        for i in range(start, start + 10_000):
            batch.put(words[i * 31 % DEVICES] + i.to_bytes(8, "big"), VALUE)
        store.write(batch)
    store.flush()
    rates = []
    for _ in range(3):
        begin = time.perf_counter()
        count = sum(1 for _ in store.items())
        rates.append(count / (time.perf_counter() - begin))
    store.close()
    return Rates(rates[0], rates[1], max(rates[1:]))


def run() -> Table:
    """Measure all and return the table."""
    with scratch() as path:
        data = path / "data"
        with siltstone.open(data) as store:
            database = store.create("bench", settings())
            fill(database, topics(DEVICES), ROWS, 5000, "written")
        one = "plant/+/device-00000042/state"
        rates = {
            "whole stream, all columns, Arrow": stream_rates(data, "#", 65_536, Batch.table),
            "one literal level, rows scanned": stream_rates(data, one, 65_536, Batch.table),
            "whole stream, Python rows": stream_rates(data, "#", 5000, Batch.rows),
            "RocksDB's iterator": rocksdb_rates(path / "rocksdb"),
        }
    rocksdb = rates["RocksDB's iterator"].again
    table = Table(title=f"read, {ROWS:,} rows in one stream, page cache, rows/s")
    for name in ("", "first of all", "new reader", "again", "to RocksDB"):
        table.add_column(name, justify="left" if not name else "right")
    for name, rate in rates.items():
        cells = [f"{each:,.0f}" for each in rate]
        table.add_row(name, *cells, f"{rate.again / rocksdb:.1f}x")
    return table


def main() -> None:
    """Run the benchmark and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep the small frames here")
    parser.add_argument("--only", choices=("bulk", "small"), help="measure this part")
    parser.add_argument("--rows", type=int, default=small_frames.ROWS, help="rows of small frames")
    parser.add_argument("--spark", action="store_true", help="also read the small frames by Spark")
    chosen = parser.parse_args()
    console = Console()
    console.print(f"siltstone {__version__} ({form()})")
    if chosen.only != "small":
        console.print(run())
    if chosen.only != "bulk":
        with scratch() if chosen.data is None else nullcontext(chosen.data) as place:
            place.mkdir(parents=True, exist_ok=True)
            for table in small_frames.run(place.resolve(), chosen.rows, with_spark=chosen.spark):
                console.print(table)


if __name__ == "__main__":
    main()
