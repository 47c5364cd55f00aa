"""Read rows as a broker writes them: frames of one or two rows, beside rows appended in bulk.

A broker that takes 2,000 messages per second writes 1.75 rows per frame, and at 200 per second one
row. A real broker writes the first kind here; `append` with calls of one row or ten makes the same
frames as a slower or faster one. `compacted` is the store of the broker after compaction.

`python -m bench.reading --data DIR` keeps the stores for the next run.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from rich.table import Table

import siltstone
from bench.broker.generator import build_generator, run_load
from bench.peers import siltstone as serve
from siltstone import Columns, Database, DatabaseSettings, Status
from siltstone.fs.posix import PosixFileSystem
from siltstone.scan.columns.schema import SCHEMA
from siltstone.scan.options import parse_options
from siltstone.scan.survey import opened, plan_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS: Final = 300_000
RATE: Final = 2000
BULK: Final = 5000
LONE, TENS, BROKER, COMPACTED, IN_BULK = "1 row", "10 rows", "broker", "compacted", "bulk"
# The rows of each call.
CALLS: Final = {LONE: 1, TENS: 10, IN_BULK: BULK}
PUBLISHERS: Final = 100
# Topics of 100 publishers: the pattern, and how many topics each of them has.
SENSORS: Final = ("plant/line-%d/sensor/%d/value", 16)
HOSTS: Final = ("metrics/host_%d_%d/cpu/usage", 10)
ONE_HOST: Final = "metrics/host_7_7/#"
DATABASE: Final = "messages"
_WORD_ROWS: Final = 120_000


def topics_of(pattern: str, each: int, rows: int) -> list[bytes]:
    """Return the topics of rows that publishers send in turn."""
    made = [
        [(pattern % (publisher, topic)).encode() for topic in range(each)]
        for publisher in range(PUBLISHERS)
    ]
    return [made[n % PUBLISHERS][n // PUBLISHERS % each] for n in range(rows)]


def vocabulary(rows: int) -> list[bytes]:
    """Return topics of five levels, each with one of 50 words: they make tens of thousands of
    streams.
    """
    rnd = Random(1)
    words = [b"word-%d" % number for number in range(50)]
    return [b"/".join(rnd.choice(words) for _ in range(5)) for _ in range(rows)]


def payload(number: int) -> bytes:
    """Return a JSON payload of 100 bytes, as the generator sends it."""
    mixed = number * 2654435761 % 2**32
    text = b'{"value": %d.%03d, "unit": "C", "sequence": %d, "state": "' % (
        mixed % 90,
        mixed // 90 % 1000,
        number // PUBLISHERS,
    )
    return text + b"x" * (98 - len(text)) + b'"}'


def append_rows(path: Path, topics: list[bytes], each: int) -> None:
    """Append a row for each topic, with `each` rows in a call."""
    with siltstone.open(path) as store:
        database = store.create(DATABASE, DatabaseSettings.from_json({"compaction": "off"}))
        for start in range(0, len(topics), each):
            some = topics[start : start + each]
            values = [payload(start + n) for n in range(len(some))]
            columns = Columns(some, values, b"publisher-%d" % (start // each % PUBLISHERS), 1)
            database.append(columns, durability="written").wait()


def publish_rows(path: Path, pattern: str, each: int, rows: int) -> None:
    """Let a broker store rows that publishers send at a steady pace."""
    path.mkdir(parents=True, exist_ok=True)
    load = f"-P {PUBLISHERS} -S 0 -q 1 -s 100 -J -w 64 -x {pattern} -T {each} -r {RATE} -n {rows}"
    options = tuple(load.split())
    with serve(path, "storage.compaction=off") as broker:
        found = run_load(build_generator(), broker.port, seconds=0, options=options)
    assert found.acked == rows, found


def make(place: Path, name: str, act: Callable[[Path], None]) -> Path:
    """Return the data directory of a store, which is made if it is missing."""
    path = place / name
    if not path.exists():
        new = place / "new"
        shutil.rmtree(new, ignore_errors=True)
        act(new)
        new.rename(path)
    return path / "data"


def compact(path: Path) -> tuple[float, int, int]:
    """Seal and compact a store; return the processor time, and the bytes before and after."""
    with siltstone.open(path) as store:
        database = store.database(DATABASE)
        database.seal()
        before = bytes_of(path)
        begin = time.process_time()
        for job in database.compaction.jobs():
            database.compaction.run(job)
        return time.process_time() - begin, before, bytes_of(path)


def bytes_of(path: Path) -> int:
    """Return the bytes of the frames and indexes of a store."""
    total = 0
    with siltstone.open(path, read_only=True) as store:
        for extent in store.database(DATABASE).extents():
            number = path / "data" / DATABASE / str(extent.slab.shard) / str(extent.slab.generation)
            for file in sorted(number.iterdir()):
                # What is allocated ahead is not used.
                total += len(file.read_bytes().rstrip(b"\0"))
    return total


def copied(path: Path, to: Path) -> None:
    """Copy a store to another place."""
    shutil.copytree(path, to / "data", ignore=shutil.ignore_patterns("*.sock"))


def read_arrow(database: Database, topic_filter: str = "#") -> int:
    """Read in order of time, all columns."""
    return sum(batch.num_rows for batch in database.read(topic_filter))


def read_rows(database: Database) -> int:
    """Read the streams as Python rows, one after the other."""
    count = 0
    for stream in database.streams():
        iterator, status = database.iterator(stream), Status.MORE
        while status is Status.MORE:
            found = database.next(iterator, BULK)
            iterator, status = found.iterator, found.status
            count += len(found.batch.rows())
    return count


def feed_rows(database: Database) -> int:
    """Read all rows by a feed, as Python rows."""
    count, whole = 0, database.count()
    with database.feed("#") as feed:
        while count < whole:
            read = feed.next(1.0)
            assert read is not None
            count += len(read.rows())
            feed.ack(read.position)
    return count


def filter_in_python(database: Database, topic_filter: str) -> int:
    """Read everything, and keep the rows of a topic."""
    start = topic_filter.removesuffix("#")
    return sum(
        topic.startswith(start)
        for batch in database.read("#")
        for topic in batch.column("topic").to_pylist()
    )


def scan(path: Path) -> int:
    """Open, plan and read as Spark's source does, in this process."""
    fs, options = PosixFileSystem(), parse_options({"path": str(path), "database": DATABASE})
    with opened(fs, options) as database:
        plan = plan_batch(database, options)
    return sum(
        batch.num_rows
        for partition in plan.partitions
        for batch in partition.batches(fs, options, SCHEMA)
    )


def first_and_best(act: Callable[[], object], runs: int = 4) -> tuple[float, float]:
    """Return the processor time of the first run, and of the fastest one."""
    found = []
    for _ in range(runs):
        begin = time.process_time()
        act()
        found.append(time.process_time() - begin)
    return found[0], min(found)


def measure(path: Path) -> dict[str, tuple[float, float]]:
    """Return the seconds of each way to read: of the first time, and of later ones."""
    found: dict[str, tuple[float, float]] = {}
    with siltstone.open(path, read_only=True) as store:
        database = store.database(DATABASE)
        found["open, index, count()"] = first_and_best(database.count)
        found["read('#'), Arrow"] = first_and_best(lambda: read_arrow(database))
        found["feed, Python rows"] = first_and_best(lambda: feed_rows(database), 2)
        found["next by stream, Python rows"] = first_and_best(lambda: read_rows(database), 2)
    found["open, plan, scan"] = first_and_best(lambda: scan(path), 3)
    return found


def sensors(place: Path, rows: int) -> Table:
    """Measure the ways to read the rows of 1,600 sensors."""
    stores = {
        name: make(place, f"sensors {name}", _appended(*SENSORS, rows, each))
        for name, each in CALLS.items()
    }
    stores[BROKER] = make(
        place, f"sensors {BROKER}", lambda path: publish_rows(path, *SENSORS, rows)
    )
    shutil.rmtree(place / f"sensors {COMPACTED}", ignore_errors=True)
    stores[COMPACTED] = make(
        place, f"sensors {COMPACTED}", lambda path: copied(stores[BROKER], path)
    )
    seconds, before, after = compact(stores[COMPACTED])
    wanted = sum(len(topic) for topic in topics_of(*SENSORS, rows)) + 100 * rows
    table = Table(
        title=f"read {rows:,} rows of 1,600 sensors: M rows/s of processor time, first and later "
        "reads; later ones to bulk"
    )
    order = (LONE, BROKER, TENS, COMPACTED, IN_BULK)
    for name in ("", *order):
        table.add_column(name, justify="left" if not name else "right")
    times = {name: measure(stores[name]) for name in order}
    for act in times[IN_BULK]:
        bulk = times[IN_BULK][act][1]
        cells = [_rates(rows, *times[name][act], bulk) for name in order]
        table.add_row(act, *cells)
    sizes = [bytes_of(stores[name]) for name in order]
    table.add_row("bytes to topic + payload", *(f"{size / wanted:.2f}x" for size in sizes))
    table.caption = (
        f"compaction: {rows / seconds / 1e6:.2f} M rows/s, {after / before:.2f} of the bytes"
    )
    return table


def hosts(place: Path, rows: int) -> Table:
    """Measure a filter that selects one of 1,000 hosts."""
    broker = make(place, f"hosts {BROKER}", lambda path: publish_rows(path, *HOSTS, rows))
    bulk = make(place, f"hosts {IN_BULK}", _appended(*HOSTS, rows, BULK))
    shutil.rmtree(place / f"hosts {COMPACTED}", ignore_errors=True)
    small = make(place, f"hosts {COMPACTED}", lambda path: copied(broker, path))
    compact(small)
    table = Table(title=f"one of 1,000 hosts in {rows:,} rows: ms of processor time")
    for name in ("", "first read", "all rows, Python filter", "filter, later", "all rows", "ratio"):
        table.add_column(name, justify="left" if not name else "right")
    for name, path in ((BROKER, broker), (COMPACTED, small), (IN_BULK, bulk)):
        with siltstone.open(path, read_only=True) as store:
            python = partial(filter_in_python, store.database(DATABASE), ONE_HOST)
            first = first_and_best(python, 1)
        with siltstone.open(path, read_only=True) as store:
            database = store.database(DATABASE)
            one = first_and_best(partial(read_arrow, database, ONE_HOST), 8)
            whole = first_and_best(partial(read_arrow, database))
        cells = [f"{seconds * 1000:.2f}" for seconds in (one[0], first[0], one[1], whole[1])]
        table.add_row(name, *cells, f"{whole[1] / one[1]:.0f}x")
    return table


def words(place: Path) -> Table:
    """Measure a vocabulary of 50 words on five levels."""
    topics = vocabulary(_WORD_ROWS)
    stores = {
        name: make(place, f"words {name}", partial(_append, topics, each))
        for name, each in ((LONE, 1), (IN_BULK, BULK))
    }
    table = Table(title=f"50 words on five levels, {_WORD_ROWS:,} rows: s of processor time")
    for name in ("", *stores):
        table.add_column(name, justify="left" if not name else "right")
    times: dict[str, dict[str, float]] = {}
    for name, path in stores.items():
        begin = time.process_time()
        with siltstone.open(path, read_only=True) as store:
            database = store.database(DATABASE)
            database.extents()
            times[name] = {"open and index": time.process_time() - begin}
            reads = first_and_best(partial(read_arrow, database))
            times[name] |= {"read('#'), first": reads[0], "read('#'), later": reads[1]}
    for act in times[LONE]:
        table.add_row(act, *(f"{times[name][act]:.3f}" for name in stores))
    return table


def spark(place: Path, rows: int) -> Table:
    """Measure Spark on the rows of 1,600 sensors: the source, `table()`, and the tier job."""
    # The other measurements do not need Spark.
    from bench.pipeline import scanned, take_turns  # noqa: PLC0415 - see above
    from siltstone.pipeline import start_session  # noqa: PLC0415 - see above
    from siltstone.pipeline import table as table_of  # noqa: PLC0415 - see above
    from siltstone.pipeline.jobs.tier import tier  # noqa: PLC0415 - see above

    paths = {name: place / f"sensors {name}" / "data" for name in (BROKER, COMPACTED, IN_BULK)}
    session = start_session(master="local[*]", memory="2g")
    acts: dict[str, Callable[[Path], object]] = {
        "source, count()": lambda path: _source(session, path).count(),
        "source, group by topic": lambda path: (
            _source(session, path).groupBy("topic").count().collect()
        ),
        "source, all columns": lambda path: scanned(_source(session, path)),
        "table(), all columns": lambda path: scanned(table_of(session, str(path))),
    }
    table = Table(title=f"Spark over {rows:,} rows of 1,600 sensors: s, and ratio to bulk")
    for name in ("", *paths):
        table.add_column(name, justify="left" if not name else "right")
    for act, run_on in acts.items():
        times = take_turns({name: partial(run_on, path) for name, path in paths.items()}, 4)
        cells = [f"{times[name]:.2f}  {times[name] / times[IN_BULK]:.1f}x" for name in paths]
        table.add_row(act, *cells)
    rates: dict[str, float] = {}
    for name in ("warm", *paths):
        lake = place / "tiered"
        shutil.rmtree(lake, ignore_errors=True)
        copied(paths.get(name, paths[IN_BULK]), lake)
        begin = time.perf_counter()
        tier(session, str(lake / "data"))
        rates[name] = rows / (time.perf_counter() - begin)
        shutil.rmtree(lake)
    cells = [f"{rates[name]:,.0f}/s  {rates[name] / rates[IN_BULK]:.2f}x" for name in paths]
    table.add_row("tier, rows/s", *cells)
    session.stop()
    return table


def _source(session: SparkSession, path: Path) -> DataFrame:
    return session.read.format("siltstone").option("database", DATABASE).load(str(path))


def run(place: Path, rows: int = ROWS, *, with_spark: bool = False) -> list[Table]:
    """Measure all and return the tables."""
    tables = [sensors(place, rows), hosts(place, rows), words(place)]
    return [*tables, spark(place, rows)] if with_spark else tables


def _appended(pattern: str, topics: int, rows: int, each: int) -> Callable[[Path], None]:
    return partial(_append, topics_of(pattern, topics, rows), each)


def _append(topics: list[bytes], each: int, path: Path) -> None:
    append_rows(path / "data", topics, each)


def _rates(rows: int, first: float, best: float, bulk: float) -> str:
    return f"{rows / first / 1e6:.2f} {rows / best / 1e6:.2f}  {best / bulk:.1f}x"
