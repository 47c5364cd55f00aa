"""Spark on store and lake, compared with Spark's own readers: `python -m bench.pipeline [--full]`.

Everything runs in one session. The compared cases take turns, and the first turn is not counted.
The data is created for each run, unless `--data DIR` names a directory in which it is kept for the
next run. `--only` measures a part.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from rich.console import Console
from rich.table import Table

import siltstone
from bench.workload import scratch
from siltstone import Columns, DatabaseSettings
from siltstone.pipeline import count, lake_table, start_session, table
from siltstone.pipeline.jobs.tier import tier
from siltstone.scan.offsets import bounds_of
from siltstone.version import __version__, form

ROWS, ROWS_FULL = 2_000_000, 20_000_000
DEVICES = 1000
KINDS = ("temperature", "humidity")
CALL_ROWS = 20_000
TURNS, TURNS_FULL = 4, 2
PARTS = ("live", "stream", "tier", "tiered")
STREAM_ROWS = 10_000
STREAM_BATCHES = 12


class Measured(NamedTuple):
    """The seconds of Siltstone and of the other side; wanted is the minimum of their ratio."""

    name: str
    seconds: float
    beside: float
    wanted: str


def fill(path: Path, rows: int) -> None:
    """Store readings of a thousand devices, two kinds each, as JSON."""
    topics = [f"plant/{n}/{kind}".encode() for n in range(DEVICES) for kind in KINDS]
    with siltstone.open(path) as store:
        settings = DatabaseSettings(thresholds=(100, 0, 10), shard_by="topic", shards=2)
        database = store.create("messages", settings)
        tickets = []
        for start in range(0, rows, CALL_ROWS):
            numbers = range(start, start + CALL_ROWS)
            values = [
                b'{"value": %d.%d, "unit": "C", "sequence": %d}' % (n % 90, n % 10, n)
                for n in numbers
            ]
            words = [topics[n * 31 % len(topics)] for n in numbers]
            columns = Columns(words, values, b"producer", 1)
            tickets.append(database.append(columns, durability="written"))
            if len(tickets) > 4:
                tickets.pop(0).wait()
        for ticket in tickets:
            ticket.wait()
        database.seal()


def prepare(spark: SparkSession, place: Path, rows: int, *, with_lines: bool) -> None:
    """Create what is missing: the store, and its rows as Parquet and as JSON lines."""
    store, parquet, lines = (str(place / name) for name in ("store", "parquet", "lines"))
    if not (place / "store").exists():
        fill(place / "new", rows)
        (place / "new").rename(store)
    # Spark writes this file after all others.
    if not (place / "parquet" / "_SUCCESS").exists():
        source = spark.read.format("siltstone").load(store)
        source.write.mode("overwrite").option("compression", "zstd").parquet(parquet)
    if with_lines and not (place / "lines" / "_SUCCESS").exists():
        write_lines(spark, store, lines)
    assert spark.read.parquet(parquet).count() == rows, "DIR has another number of rows"


def link_store(store: Path, copy: Path) -> None:
    """Create a second store from the same files, for a lake of its own; neither is written."""
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store, copy, copy_function=os.link)


def take_turns(cases: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """Return the median seconds of each case."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(turns + 1):
        for name, run in cases.items():
            begin = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(times[1:]) for name, times in seconds.items()}


def scanned(rows: DataFrame) -> None:
    """Read every column of every row."""
    rows.write.format("noop").mode("overwrite").save()


def aggregated(rows: DataFrame) -> None:
    """Aggregate every column of every row."""
    rows.agg(
        *(F.max(name) for name in ("topic", "timestamp", "publisher", "qos", "retain", "payload")),
        *(F.max(name) for name in ("shard", "generation", "stream", "serial")),
        F.sum(F.size("properties")),
        F.max(F.element_at("levels", -1)),
    ).collect()


def scans(spark: SparkSession, path: str, parquet: str, turns: int) -> list[Measured]:
    """Compare reads of the live store with Parquet, in seconds."""

    def live(**options: str) -> DataFrame:
        return spark.read.format("siltstone").options(**options).load(path)

    one = f"plant/{DEVICES // 2}/{KINDS[0]}"
    times = take_turns(
        {
            "live": lambda: scanned(live()),
            "parquet": lambda: scanned(spark.read.parquet(parquet)),
            "table": lambda: scanned(table(spark, path)),
            "aggregate": lambda: aggregated(live()),
            "aggregate of parquet": lambda: aggregated(spark.read.parquet(parquet)),
            "aggregate of table": lambda: aggregated(table(spark, path)),
            "one device": lambda: scanned(live(filter=one)),
            "one of table": lambda: scanned(table(spark, path, filter=one)),
            "index": lambda: count(path, filter="plant/+/temperature", startTime="2020-01-01"),
        },
        turns,
    )
    whole = times["aggregate of parquet"]
    return [
        Measured("the source, live, all columns", times["live"], times["parquet"], "0.80x"),
        Measured("table(), live, all columns", times["table"], times["parquet"], "0.80x"),
        Measured("the source, live, aggregate of all columns", times["aggregate"], whole, "0.80x"),
        Measured("table(), live, the same", times["aggregate of table"], whole, "0.80x"),
        Measured(
            "the source, 1 of 1,000 devices to all", times["one device"], times["live"], "20x"
        ),
        Measured(
            "table(), 1 of 1,000 devices to all", times["one of table"], times["table"], "20x"
        ),
        Measured("count by filter and time, by the index", times["index"], times["parquet"], ""),
    ]


def tiered_scans(spark: SparkSession, path: str, parquet: str, turns: int) -> list[Measured]:
    """Compare reads of tiered rows with Parquet of the same rows."""
    mean = F.avg("serial")
    times = take_turns(
        {
            "all": lambda: scanned(table(spark, path)),
            "all of parquet": lambda: scanned(spark.read.parquet(parquet)),
            "aggregate": lambda: aggregated(table(spark, path)),
            "aggregate of parquet": lambda: aggregated(spark.read.parquet(parquet)),
            "one": lambda: table(spark, path, columns=["serial"]).agg(mean).collect(),
            "one of parquet": lambda: spark.read.parquet(parquet).agg(mean).collect(),
        },
        turns,
    )
    return [
        Measured("table(), tiered, all columns", times["all"], times["all of parquet"], "0.95x"),
        Measured(
            "table(), tiered, aggregate of all columns",
            times["aggregate"],
            times["aggregate of parquet"],
            "0.95x",
        ),
        Measured(
            "table(), tiered, mean of one column", times["one"], times["one of parquet"], "0.95x"
        ),
    ]


def tiering(spark: SparkSession, path: str, lines: str, out: str) -> list[Measured]:
    """Compare tiering with Spark that reads the same rows from JSON lines, schema given."""
    schema = spark.read.json(lines).schema
    # The scans have already started the Python workers.
    begin = time.perf_counter()
    rows = spark.read.schema(schema).json(lines)
    structured = rows.write.mode("overwrite").partitionBy("structure")
    structured.option("compression", "zstd").parquet(out)
    spark_seconds = time.perf_counter() - begin
    begin = time.perf_counter()
    tier(spark, path)
    seconds = time.perf_counter() - begin
    return [Measured("tier, JSON to typed columns", seconds, spark_seconds, "1.00x")]


def write_lines(spark: SparkSession, path: str, lines: str) -> None:
    """Write the rows of a store as JSON lines, with the fields of their payloads."""
    rows = spark.read.format("siltstone").option("decode", "json").load(path)
    structure = F.concat_ws("/", F.lit("plant"), F.lit("+"), F.col("levels")[2])
    columns = ["topic", "timestamp", "publisher", "qos", "retain", "shard", "serial", "payload.*"]
    rows.select(structure.alias("structure"), *columns).write.mode("overwrite").json(lines)


def micro_batches(spark: SparkSession, path: str, checkpoint: str) -> float:
    """Return the median seconds of a micro-batch of 10,000 rows, without the first ones."""
    with siltstone.open(path, read_only=True) as store:
        bounds = bounds_of(store.database("messages").extents())
    # The query ends by itself with the last rows: a stopped query logs an error for its last batch.
    wanted = STREAM_ROWS * STREAM_BATCHES // len(bounds)
    start = {str(shard): serials.stop - wanted for shard, serials in bounds.items()}
    query = (
        spark.readStream.format("siltstone")
        .option("maxRowsPerTrigger", STREAM_ROWS)
        .option("startingOffsets", json.dumps({"version": 1, "shards": start}))
        .load(path)
        .writeStream.format("noop")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress = [json.loads(item.json) for item in query.recentProgress]
    times = [item["durationMs"]["triggerExecution"] for item in progress if item["numInputRows"]]
    return float(statistics.median(times[3:])) / 1000


def measure(
    spark: SparkSession, place: Path, rows: int, parts: Collection[str]
) -> tuple[list[Measured], float | None]:
    """Measure the parts; return the comparisons, and the seconds of a micro-batch."""
    prepare(spark, place, rows, with_lines="tier" in parts)
    turns = TURNS if rows < ROWS_FULL else TURNS_FULL
    names = ("store", "tiered", "parquet", "lines", "structured")
    path, tiered, parquet, lines, out = (str(place / name) for name in names)
    found: list[Measured] = []
    batch_seconds = None
    if "live" in parts:
        found += scans(spark, path, parquet, turns)
    if "stream" in parts:
        shutil.rmtree(place / "checkpoint", ignore_errors=True)
        batch_seconds = micro_batches(spark, path, str(place / "checkpoint"))
    if "tier" in parts:
        link_store(place / "store", place / "tiered")
        found += tiering(spark, tiered, lines, out)
    if "tiered" in parts:
        if not (place / "tiered").exists():
            link_store(place / "store", place / "tiered")
            tier(spark, tiered)
        found += tiered_scans(spark, tiered, parquet, turns)
        kept = lake_table(spark, tiered, f"plant_{KINDS[0]}").count()
        assert kept == rows // len(KINDS), "every row is in its table"
    return found, batch_seconds


def run(rows: int, data: Path | None, parts: Collection[str]) -> Table:
    """Measure and return the table."""
    made = Table(title=f"Spark over {rows:,} rows of JSON, two cores or more, medians")
    for name in ("", "s", "rows/s", "beside", "ratio", "wanted"):
        made.add_column(name, justify="left" if not name else "right")
    with scratch() if data is None else nullcontext(data) as place:
        place.mkdir(parents=True, exist_ok=True)
        spark = start_session(master="local[*]", memory="2g")
        found, batch_seconds = measure(spark, place.resolve(), rows, parts)
        spark.stop()
    for name, seconds, beside, wanted in found:
        cells = (f"{seconds:.2f}", f"{rows / seconds:,.0f}", f"{beside:.2f}")
        made.add_row(name, *cells, f"{beside / seconds:.2f}x", wanted)
    if batch_seconds is not None:
        micro = f"micro-batch of {STREAM_ROWS:,} rows"
        made.add_row(micro, f"{batch_seconds:.2f}", "", "", "", "below 1 s")
    return made


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help=f"{ROWS_FULL:,} rows")
    parser.add_argument("--rows", type=int, default=0, help="so many instead")
    parser.add_argument("--data", type=Path, metavar="DIR", help="keep what is read here")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS, help="measure these")
    options = parser.parse_args()
    console = Console()
    console.print(f"siltstone {__version__} ({form()})")
    rows = options.rows or (ROWS_FULL if options.full else ROWS)
    console.print(run(rows, options.data, options.only))


if __name__ == "__main__":
    main()
