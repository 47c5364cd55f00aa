"""Read rows as a broker writes them: frames of one or two rows, beside rows appended in bulk.

A broker that takes 2,000 messages per second writes 1.75 rows per frame, and at 200 per second one
row. `append` with calls of one or two rows makes the same frames.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Final

from rich.table import Table

import siltstone
from bench.workload import VALUE, scratch
from siltstone import Columns, Database, Status
from siltstone.fs.posix import PosixFileSystem
from siltstone.scan.columns.schema import SCHEMA
from siltstone.scan.options import parse_options
from siltstone.scan.survey import opened, plan_batch

ROWS: Final = 60_000
BULK: Final = 5000
# The rows of calls, one after the other.
PACES: Final = {"2,000/s": (1, 2, 2, 2), "200/s": (1,), "bulk": (BULK,)}
ONE_HOST: Final = "metrics/host_777/cpu/#"


def hosts(rnd: Random, rows: int) -> list[bytes]:
    """Return topics of 1,000 hosts."""
    return [
        b"metrics/host_%d/cpu/socket/%d/core/%d"
        % (rnd.randrange(1000), rnd.randrange(4), rnd.randrange(8))
        for _ in range(rows)
    ]


def vocabulary(rnd: Random, rows: int) -> list[bytes]:
    """Return topics of five levels, each with one of 50 words: they make 60,000 streams."""
    words = [b"word-%d" % number for number in range(50)]
    return [b"/".join(rnd.choice(words) for _ in range(5)) for _ in range(rows)]


def fill(database: Database, topics: list[bytes], calls: tuple[int, ...]) -> None:
    """Append a row for each topic, with a fixed number of rows for each call."""
    start = 0
    for rows in cycle(calls):
        some = topics[start : start + rows]
        if not some:
            return
        database.append(
            Columns(some, [VALUE] * len(some), b"publisher", 1), durability="written"
        ).wait()
        start += rows


def read_arrow(database: Database, topic_filter: str = "#") -> int:
    """Read in order of time, all columns."""
    return sum(batch.num_rows for batch in database.read(topic_filter))


def read_host(database: Database) -> int:
    """Read the rows of one host of 1,000."""
    return read_arrow(database, ONE_HOST)


def read_rows(database: Database) -> int:
    """Read the streams as Python rows."""
    count = 0
    for stream in database.streams():
        iterator, status = database.iterator(stream), Status.MORE
        while status is Status.MORE:
            found = database.next(iterator, BULK)
            iterator, status = found.iterator, found.status
            count += len(found.batch.rows())
    return count


def scan(path: Path) -> int:
    """Open, plan and read as Spark's source does, in this process."""
    fs, options = PosixFileSystem(), parse_options({"path": str(path)})
    with opened(fs, options) as database:
        plan = plan_batch(database, options)
    return sum(
        batch.num_rows
        for partition in plan.partitions
        for batch in partition.batches(fs, options, SCHEMA)
    )


def best(act: Callable[[], object]) -> float:
    """Return the processor time of the faster of two runs, after one that warms up."""
    act()
    found = []
    for _ in range(2):
        begin = time.process_time()
        act()
        found.append(time.process_time() - begin)
    return min(found)


def measure(path: Path, *, streams: bool) -> dict[str, float]:
    """Return the seconds of each way to read."""
    found: dict[str, float] = {}
    with siltstone.open(path, read_only=True) as store:
        database = store.database("bench")
        found["read('#'), Arrow"] = best(lambda: read_arrow(database))
        if streams:
            found["one of 1,000 hosts"] = best(lambda: read_host(database))
            found["next, Python rows"] = best(lambda: read_rows(database))
    found["open, plan and scan"] = best(lambda: scan(path))
    return found


def run() -> Table:
    """Measure all and return the table."""
    table = Table(title=f"read small frames, {ROWS:,} rows, processor time in s; ratio to bulk")
    table.add_column("")
    for pace in PACES:
        table.add_column(pace, justify="right")
    for name, topics in (("hosts", hosts), ("vocabulary", vocabulary)):
        times: dict[str, dict[str, float]] = {}
        words = topics(Random(1), ROWS)
        with scratch() as path:
            for number, (pace, calls) in enumerate(PACES.items()):
                with siltstone.open(path / str(number)) as store:
                    fill(store.create("bench"), words, calls)
                times[pace] = measure(path / str(number), streams=name == "hosts")
        for act, bulk in times["bulk"].items():
            cells = [f"{times[pace][act]:.3f}  {times[pace][act] / bulk:.1f}x" for pace in PACES]
            table.add_row(f"{name}: {act}", *cells)
    return table
