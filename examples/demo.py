"""Write a million rows, kill the writer with -9 in the middle, and show that no promise was broken.

Four producers in a child process append rows to a database, and the child prints how far each is
acknowledged. Then it is killed. What was acknowledged must be there, once and in order: every row
is read back and checked. A second child finishes the million while a third one watches it grow.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree
from threading import Lock, Thread

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

import siltstone
from siltstone.cli.output import add_row, table
from siltstone.cli.quantities import format_size
from siltstone.cli.slabs import slab_table
from siltstone.cli.structure import draw, levels, merge
from siltstone.version import __version__, form

DIRECTORY = Path(__file__).resolve().parent.parent / "build" / "demo"
DATABASE = "readings"
PRODUCERS = 4
BATCH_ROWS = 1000
BATCHES_IN_FLIGHT = 4
SITES = ("east", "north", "west")
LINES = 4
SENSORS = 300
# Sites and lines are told apart; of the sensors of a line one, then the next makes the level vary.
SETTINGS = siltstone.DatabaseSettings(thresholds=(100, 10, 10, 1))
WIDE = "plant/north/+/+/temperature"
NARROW = "plant/+/line-2/sensor-17/temperature"

console = Console(highlight=False)


def topic_of(producer: int, number: int) -> bytes:
    """Return where a reading comes from: each producer goes round a quarter of the sensors."""
    place = (number * PRODUCERS + producer) % (len(SITES) * LINES * SENSORS)
    site, rest = divmod(place, LINES * SENSORS)
    line, sensor = divmod(rest, SENSORS)
    return b"plant/%s/line-%d/sensor-%d/temperature" % (SITES[site].encode(), line, sensor)


def value_of(producer: int, number: int) -> bytes:
    """Return a reading that tells who wrote it, and as which one."""
    return b"%d %07d %d.%d" % (producer, number, 15 + number % 10, number * 7 % 10)


def produce(database: siltstone.Database, producer: int, numbers: range, told: Lock) -> None:
    """Append rows in batches, a few at once; print each number up to which all are acknowledged."""
    waiting: deque[tuple[siltstone.Ticket, int]] = deque()
    publisher = b"producer-%d" % producer
    for start in range(numbers.start, numbers.stop, BATCH_ROWS):
        batch = range(start, min(start + BATCH_ROWS, numbers.stop))
        columns = siltstone.Columns(
            [topic_of(producer, number) for number in batch],
            [value_of(producer, number) for number in batch],
            publisher,
        )
        waiting.append((database.append(columns, durability="synced"), batch.stop))
        while waiting and (len(waiting) >= BATCHES_IN_FLIGHT or batch.stop == numbers.stop):
            ticket, acknowledged = waiting.popleft()
            ticket.wait()
            with told:
                print(producer, acknowledged, flush=True)


def write(directory: Path, start: list[int], rows: int) -> None:
    """Be the writing child: go on from where each producer stands."""
    told = Lock()
    with siltstone.open(directory) as store:
        database = store.ensure(DATABASE, SETTINGS)
        threads = [
            Thread(target=produce, args=(database, producer, range(first, end), told))
            for producer, (first, end) in enumerate(zip(start, shares(rows), strict=True))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def watch(directory: Path, rows: int) -> None:
    """Be the reading child: print the number of rows whenever it has grown, until all are there."""
    with siltstone.open(directory, read_only=True) as store:
        database = store.database(DATABASE)
        seen = -1
        while seen < rows:
            if (count := database.count()) > seen:
                seen = count
                print(count, flush=True)
            time.sleep(0.02)


def shares(rows: int) -> list[int]:
    """Return how many of the rows each producer writes."""
    return [rows // PRODUCERS + (producer < rows % PRODUCERS) for producer in range(PRODUCERS)]


def child(role: str, *args: str) -> subprocess.Popen[str]:
    """Start this program in another role."""
    command = [sys.executable, str(Path(__file__).resolve()), role, *args]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@dataclass(slots=True)
class Demo:
    """The run so far: where the data is, how much there is to write, and what was measured."""

    directory: Path
    rows: int
    measured: list[tuple[str, str]] = field(default_factory=list)

    def note(self, name: str, value: str) -> None:
        """Keep a figure for the summary."""
        self.measured.append((name, value))

    def write_and_kill(self) -> list[int]:
        """Kill a writer when four tenths are acknowledged; return what was, for each producer."""
        acknowledged = [0] * PRODUCERS
        process = child("write", str(self.directory), "0,0,0,0", str(self.rows))
        assert process.stdout is not None
        with bars(self.rows) as advance:
            for line in process.stdout:
                producer, count = map(int, line.split())
                acknowledged[producer] = count
                advance("acknowledged", sum(acknowledged))
                if sum(acknowledged) >= self.rows * 4 // 10 and process.returncode is None:
                    process.kill()
                    # What it printed before it died is in the pipe, and was promised too.
                    process.wait()
        console.print(f"[red]kill -9[/] with {sum(acknowledged):,} rows acknowledged as synced")
        self.note("acknowledged before kill -9", f"{sum(acknowledged):,} rows")
        return acknowledged

    def recover(self, acknowledged: list[int]) -> list[int]:
        """Open what the dead writer left, check it, and return how many rows each producer has."""
        started = time.monotonic()
        with siltstone.open(self.directory) as store:
            database = store.database(DATABASE)
            seconds = time.monotonic() - started
            torn_bytes = sum(report.torn_bytes for report in database.reports)
            torn = f"{format_size(torn_bytes)} torn" if torn_bytes else "nothing torn"
            console.print(f"reopened in {seconds * 1000:.0f} ms, {torn}")
            survived = check_rows(database)
        lost = [
            promised - there
            for promised, there in zip(acknowledged, survived, strict=True)
            if there < promised
        ]
        if lost:
            raise SystemExit(f"demo: {sum(lost)} acknowledged rows are lost")
        extra = sum(survived) - sum(acknowledged)
        console.print(
            f"[green]every acknowledged row is there[/], once and in order, "
            f"and {extra:,} that were on their way"
        )
        self.note("recovery", f"{seconds * 1000:.0f} ms, {torn}")
        self.note("acknowledged rows lost", "0")
        return survived

    def finish(self, survived: list[int]) -> None:
        """Write the rest in one process while another watches."""
        writer = child("write", str(self.directory), ",".join(map(str, survived)), str(self.rows))
        reader = child("watch", str(self.directory), str(self.rows))
        seen: list[int] = []
        acknowledged = list(survived)
        first = started = 0.0
        with bars(self.rows) as advance:

            def follow_reader() -> None:
                assert reader.stdout is not None
                for line in reader.stdout:
                    seen.append(int(line))
                    advance("seen by a reader", seen[-1])

            watching = Thread(target=follow_reader)
            watching.start()
            assert writer.stdout is not None
            for line in writer.stdout:
                producer, count = map(int, line.split())
                acknowledged[producer] = count
                advance("acknowledged", sum(acknowledged))
                # The first acknowledgement tells that the process has started.
                first, started = first or sum(acknowledged), started or time.monotonic()
            rate = (sum(acknowledged) - first) / (time.monotonic() - started)
            if writer.wait() != 0:
                reader.kill()
            watching.join()
        if writer.returncode != 0 or reader.wait() != 0 or seen[-1] != self.rows:
            raise SystemExit("demo: the writer or the reader failed")
        console.print(
            f"{self.rows:,} rows are there; another process saw the number grow "
            f"{len(seen):,} times while they were written"
        )
        self.note("appended and synced", f"{rate:,.0f} rows/s")

    def query(self) -> None:
        """Show what was learned, ask for rows by wildcard, seal, and check every row once more."""
        with siltstone.open(self.directory) as store:
            database = store.database(DATABASE)
            console.print(draw(DATABASE, levels(merge(database.structure()))))
            for topic_filter in (WIDE, NARROW):
                self._ask(database, topic_filter)
            if check_rows(database) != shares(self.rows):
                raise SystemExit("demo: rows are missing")
            database.seal()
            slabs = database.slabs()
            console.print(slab_table(slabs))
            size_bytes = sum(slab.size_bytes for slab in slabs)
        self.note("rows", f"{self.rows:,}")
        self.note("topics", f"{len(SITES) * LINES * SENSORS:,}")
        self.note("streams learned", f"{sum(slab.streams for slab in slabs):,}")
        self.note("on disk", f"{format_size(size_bytes)}, {size_bytes / self.rows:.1f} bytes a row")

    def _ask(self, database: siltstone.Database, topic_filter: str) -> None:
        asked = {(stream.slab, stream.stream_id) for stream in database.streams(topic_filter)}
        held = sum(
            stream.rows
            for stream in database.structure()
            if (stream.slab, stream.stream_id) in asked
        )
        started = time.monotonic()
        batches = list(database.read(topic_filter))
        seconds = time.monotonic() - started
        found = pa.Table.from_batches(batches, siltstone.SCHEMA)
        console.print(
            f"\n[bold]{topic_filter}[/]: {found.num_rows:,} of {held:,} rows in its streams, "
            f"in order of time, in {seconds * 1000:.0f} ms"
        )
        shown = table("time", "topic", "value")
        for row in found.slice(0, 3).to_pylist():
            moment = row["timestamp"].strftime("%H:%M:%S.%f")
            add_row(shown, (moment, row["topic"], row["value"].decode()))
        console.print(shown)
        self.note(f"scanned for {topic_filter}", f"{held / seconds:,.0f} rows/s")

    def summary(self) -> Table:
        """Return what was measured."""
        made = table("", f"siltstone {__version__}, {form()}")
        for pair in self.measured:
            add_row(made, pair)
        return made


def check_rows(database: siltstone.Database) -> list[int]:
    """Read every row; return how many each producer has, which are its first, once and in order."""
    counts = [0] * PRODUCERS
    checked = 0
    for batch in database.read(columns=["value"]):
        text = batch.column("value").cast(pa.string())
        producers = pc.utf8_slice_codeunits(text, 0, 1)
        numbers = pc.utf8_slice_codeunits(text, 2, 9).cast(pa.int64())
        for producer in range(PRODUCERS):
            own = numbers.filter(pc.equal(producers, str(producer)))
            expected = pa.array(range(counts[producer], counts[producer] + len(own)), pa.int64())
            if not own.equals(expected):
                raise SystemExit(f"demo: rows of producer {producer} are out of order or missing")
            counts[producer] += len(own)
        if sum(counts) != (checked := checked + batch.num_rows):
            raise SystemExit("demo: there are rows of no producer")
    return counts


@contextmanager
def bars(rows: int) -> Iterator[Callable[[str, int], None]]:
    """Show progress; what is given takes a bar's name and its number of rows, from any thread."""
    progress = Progress(
        TextColumn("{task.description:<17}"),
        BarColumn(),
        TextColumn("{task.completed:>9,.0f} rows"),
        TimeElapsedColumn(),
        console=console,
    )
    tasks: dict[str, TaskID] = {}

    def advance(name: str, count: int) -> None:
        if name not in tasks:
            tasks[name] = progress.add_task(name, total=rows)
        progress.update(tasks[name], completed=count)

    with progress:
        yield advance


def show(demo: Demo) -> None:
    """Run the demonstration from start to end."""
    console.rule("a writer is killed")
    acknowledged = demo.write_and_kill()
    survived = demo.recover(acknowledged)
    console.rule("another goes on, and a third process watches")
    demo.finish(survived)
    console.rule("what was learned, and what can be asked")
    demo.query()
    console.rule("summary")
    console.print(demo.summary())


def main() -> None:
    """Run as a person asks, or as a child of such a run."""
    match sys.argv[1:]:
        case ["write", directory, start, rows]:
            write(Path(directory), [int(number) for number in start.split(",")], int(rows))
        case ["watch", directory, rows]:
            watch(Path(directory), int(rows))
        case _:
            parser = argparse.ArgumentParser(description=__doc__)
            parser.add_argument("--rows", type=int, default=1_000_000, help="how many to write")
            parser.add_argument("--keep", action="store_true", help=f"leave {DIRECTORY} there")
            options = parser.parse_args()
            if options.rows < PRODUCERS * BATCH_ROWS * 10:
                parser.error(f"--rows must be at least {PRODUCERS * BATCH_ROWS * 10}")
            rmtree(DIRECTORY, ignore_errors=True)
            try:
                show(Demo(DIRECTORY, options.rows))
            finally:
                if not options.keep:
                    rmtree(DIRECTORY, ignore_errors=True)


if __name__ == "__main__":
    main()
