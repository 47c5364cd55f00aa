"""`siltstone pipeline`: jobs that copy the store to tables, learn from it, and check it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from time import monotonic
from typing import Annotated, Any

import typer

from siltstone.cli.options import DATA_DEFAULT, Data, Json
from siltstone.cli.output.help import App
from siltstone.cli.output.output import add_row, counted, say, show, show_json, table
from siltstone.cli.output.progress import counting, progress, waiting
from siltstone.cli.pipeline import jobs as pipeline_jobs
from siltstone.cli.pipeline.place import checked_directory, lake_directory
from siltstone.cli.pipeline.spark import (
    MASTER_DEFAULT,
    Continuous,
    DatabaseName,
    Master,
    Memory,
    pipeline,
    session,
)
from siltstone.cli.pipeline.stopping import StopRequest, stopping
from siltstone.errors import UsageError
from siltstone.fs.posix import PosixFileSystem
from siltstone.scan.options import parse_duration
from siltstone.settings.quantities import format_size

app = App("Run Spark jobs over the store.", "siltstone pipeline tier")


Decode = Annotated[
    list[str] | None,
    typer.Option(
        "--decode",
        metavar="FILTER=HOW",
        help="How to decode payloads: json, cbor, msgpack, text or raw. Repeatable.",
        show_default="guessed from the payloads",
    ),
]


@app.command()
def tier(
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    master: Master = MASTER_DEFAULT,
    memory: Memory = "1g",
    continuous: Continuous = False,
    freshness: Annotated[
        str,
        typer.Option(
            "--freshness",
            metavar="DURATION",
            help="With --continuous: rows are in their table after about this time, for "
            "example 2s.",
        ),
    ] = "2s",
    keep: Annotated[
        int,
        typer.Option(
            "--keep",
            metavar="HOURS",
            help="With --continuous: remove versions and files that are older.",
            min=0,
        ),
    ] = 168,
    supervised: Annotated[
        bool,
        typer.Option("--supervised", help="End when the standard input ends.", hidden=True),
    ] = False,
    interval: Annotated[
        float | None,
        typer.Option(
            "--interval", metavar="SECONDS", help="As --freshness.", min=0.05, hidden=True
        ),
    ] = None,
    partition: Annotated[
        str, typer.Option("--partition", metavar="day|hour", help="Partitions of new tables.")
    ] = "day",
    decode: Decode = None,
    ignore_loss: Annotated[
        bool,
        typer.Option(
            "--ignore-loss", help="Continue even if rows were dropped before they reached the lake."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Copy rows into Delta tables, one per topic structure.

    Each row reaches its table exactly once, also after a crash. A continuous run also merges
    small files and removes old versions. The command works beside a running broker.

    $ siltstone pipeline tier
    $ siltstone pipeline tier --continuous --freshness 5s
    $ siltstone pipeline tier --continuous --decode 'plant/#=json'
    """
    jobs = pipeline("jobs.tier")
    settings = jobs.TierSettings(
        path=checked_directory(data, database),
        database=database,
        partition=_one_of(partition, ("day", "hour"), "--partition"),
        decode=_decoders(decode or []),
        fails_on_loss=not ignore_loss,
        keep_hours=keep,
    )
    pace = parse_duration(freshness, "--freshness") if interval is None else interval
    report, database = jobs.TierReport(), settings.database
    with stopping(listens=continuous) as stop:
        if supervised:
            stop.watch(sys.stdin.fileno())
        try:
            with session(master, memory) as spark:
                if continuous:
                    stop.listen()
                job = jobs.TierJob(settings, jobs.on_spark(spark))
                database = job.database.name
                with closing(job), counting("Tiering", by_rows=True) as tell:
                    for step in _steps(job, stop, continuous=continuous, pace=pace):
                        report = report.plus(step)
                        tell(step.rows, step.waiting)
        except KeyboardInterrupt:
            # Ctrl-C is the normal end of a continuous run, so it is not a failure.
            if not continuous:
                raise
    _show_tiered(replace(report, database=database), ended=stop.asked or continuous, json=json)


def _steps(job: Any, stop: StopRequest, *, continuous: bool, pace: float) -> Iterator[Any]:
    """Yield the batches of a run. A continuous run commits when rows are due, and maintains the
    tables.
    """
    while not stop.asked:
        began = monotonic()
        step = job.step()
        if step is None and not continuous:
            return
        if step is not None:
            yield step
        if continuous:
            job.tidy()
            # Rows of a backlog are not held back. Otherwise the next batch begins when it is due:
            # there are always some rows that have arrived during a batch.
            if step is None or step.waiting <= step.rows:
                stop.wait(max(0.0, pace - (monotonic() - began)))


def _show_tiered(report: Any, *, ended: bool, json: bool) -> None:
    if json:
        show_json(
            {
                "database": report.database,
                "batches": report.batches,
                "rows": report.rows,
                "dead": report.dead,
                "files": report.files,
                "size_bytes": report.size_bytes,
                "tables": dict(report.tables),
                "left_out": dict(report.left_out),
            }
        )
        return
    if not report.rows:
        said = "stopped; no new rows arrived" if ended else "no new rows"
        say(f"{said}: all rows of database {report.database} are in Delta tables")
        return
    listed = table("table", "rows", right=("rows",))
    for name, rows in report.tables.items():
        add_row(listed, (name, f"{rows:,}"))
    show(listed)
    say(
        f"{counted(report.rows, 'row')} in {counted(report.files, 'file')} of "
        f"{format_size(report.size_bytes)}, {report.dead:,} of them in dead_letter"
    )
    for name, fields in report.left_out.items():
        left = counted(fields, "field")
        say(f"table {name} has too many columns: {left} stay in the payload only")


@app.command()
def compact(data: Data = DATA_DEFAULT, database: DatabaseName = "", json: Json = False) -> None:
    """Merge small files of the Delta tables into larger ones.

    The command works beside a running broker and a running tier job.

    $ siltstone pipeline compact
    """
    with progress("Compacting", "tables") as meter:
        done = pipeline("jobs.upkeep").compact_lake(
            lake_directory(data, database),
            database=database,
            progress=lambda tables, total: meter.tell(tables, total=total),
        )
    if json:
        show_json(
            [
                {
                    "table": item.table,
                    "files_removed": item.files_removed,
                    "files_added": item.files_added,
                }
                for item in done
            ]
        )
        return
    numbers = ("files before", "files after")
    listed = table("table", *numbers, right=numbers)
    for item in done:
        add_row(listed, (item.table, f"{item.files_removed:,}", f"{item.files_added:,}"))
    show(listed)


@app.command()
def vacuum(
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    hours: Annotated[
        int,
        typer.Option(
            "--hours",
            metavar="N",
            help="Keep files that were in use within the last N hours.",
            min=0,
        ),
    ] = 168,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the files without removing them.")
    ] = False,
    json: Json = False,
) -> None:
    """Remove old files of the Delta tables.

    These are files of old table versions, and files that killed jobs left. The command
    works beside a running broker and a running tier job.

    $ siltstone pipeline vacuum --dry-run
    """
    with waiting("Looking for old files"):
        done = pipeline("jobs.upkeep").vacuum_lake(
            lake_directory(data, database), database=database, hours=hours, dry_run=dry_run
        )
    if json:
        show_json(done)
        return
    listed = table("table", "files removed", right=("files removed",))
    for name, files in done.items():
        add_row(listed, (name, f"{len(files):,}"))
    show(listed)


@app.command()
def retier(
    tables: Annotated[
        list[str] | None,
        typer.Option("--table", metavar="TABLE", help="Table to derive again. Repeatable."),
    ] = None,
    give_up: Annotated[
        bool,
        typer.Option("--give-up", help="Undo a run that was interrupted and cannot be completed."),
    ] = False,
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    master: Master = MASTER_DEFAULT,
    memory: Memory = "1g",
    json: Json = False,
) -> None:
    """Derive Delta tables again from their payloads.

    The rows get the columns and tables of rules.toml as it is now. Each table changes in one
    transaction. The command works beside a running tier job. If it is killed, the next run of tier
    completes it; with --give-up the tables and rules.toml become what they were before.

    $ siltstone pipeline retier --table plant_oven
    $ siltstone pipeline retier --give-up
    """
    if bool(tables) == give_up:
        raise UsageError("retier needs --table, or --give-up alone")
    path = checked_directory(data, database)
    if give_up:
        _show_given_up(pipeline("jobs.rewriting").give_up(path, database=database), json=json)
        return
    with session(master, memory) as spark, waiting("Deriving the tables again"):
        run = pipeline("jobs.tasks").on_spark(spark)
        rows = pipeline("jobs.rewriting").retier(run, path, tables, database=database)
    if json:
        show_json(dict(rows))
        return
    listed = table("table", "rows", right=("rows",))
    for name, count in sorted(rows.items()):
        add_row(listed, (name, f"{count:,}"))
    show(listed)


def _show_given_up(done: Any, *, json: bool) -> None:
    if json:
        show_json({"tables": list(done.tables), "kept_rules": done.kept_rules})
        return
    say(f"undid the interrupted rewrite; restored tables: {', '.join(done.tables)}")
    if done.kept_rules is not None:
        say(f"version {done.kept_rules} of the schema keeps rules.toml as you changed it")


@app.command()
def tables(
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    explain: Annotated[
        bool,
        typer.Option("--explain", help="Show what feeds each table, and rules that would help."),
    ] = False,
    json: Json = False,
) -> None:
    """List the Delta tables with their columns.

    The command works beside a running broker.

    $ siltstone pipeline tables
    $ siltstone pipeline tables --explain
    """
    if explain:
        _show_feeds(_feeds(lake_directory(data, database), database), json=json)
        return
    found = pipeline("jobs.upkeep").describe_lake(lake_directory(data, database), database=database)
    if json:
        show_json(
            [
                {
                    "table": item.table,
                    "rows": item.rows,
                    "files": item.files,
                    "size_bytes": item.size_bytes,
                    "columns": dict(item.columns),
                }
                for item in found
            ]
        )
        return
    if not found:
        say(f"no Delta tables in {data}; 'siltstone pipeline tier' writes them")
        return
    numbers = ("rows", "files", "size")
    listed = table("table", *numbers, "columns", right=numbers)
    for item in found:
        columns = ", ".join(f"{name} {kind}" for name, kind in item.own_columns())
        add_row(
            listed,
            (
                item.table,
                f"{item.rows:,}",
                f"{item.files:,}",
                format_size(item.size_bytes),
                columns,
            ),
        )
    show(listed)


def _feeds(path: str, database: str) -> list[Any]:
    fs = PosixFileSystem()
    lake = pipeline("jobs.upkeep").lake_of(fs, path, database)
    found: list[Any] = pipeline("lake.tables.explain").explain(fs, lake)
    return found


def _show_feeds(feeds: list[Any], *, json: bool) -> None:
    if json:
        show_json([asdict(feed) for feed in feeds])
        return
    numbers = ("rows", "fields", "topics")
    listed = table("table", *numbers, "rules", "as", right=numbers)
    for feed in feeds:
        topics = f"{feed.topics:,}" if feed.is_whole else f"over {feed.topics:,}"
        cells = (f"{feed.rows:,}", f"{feed.fields:,}", topics)
        add_row(listed, (feed.table, *cells, ", ".join(feed.filters), ", ".join(feed.examples[:1])))
    show(listed)
    for feed in feeds:
        for sentence in feed.advice:
            say(f"{feed.table}: {sentence}")


app.command()(pipeline_jobs.audit)
app.command()(pipeline_jobs.learn)
app.command("import")(pipeline_jobs.import_)
app.command()(pipeline_jobs.replay)
app.command()(pipeline_jobs.rollup)
app.command()(pipeline_jobs.init)


def _one_of(value: str, known: tuple[str, ...], name: str) -> str:
    if value not in known:
        raise UsageError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    return value


def _decoders(given: list[str]) -> dict[str, str]:
    decoders: dict[str, str] = {}
    for text in given:
        topic_filter, equals, name = text.rpartition("=")
        if not equals or not topic_filter:
            raise UsageError(f"--decode expects FILTER=HOW, as in 'plant/#=json', got {text!r}")
        known = ("json", "cbor", "msgpack", "text", "raw")
        decoders[topic_filter] = _one_of(name, known, "--decode")
    return decoders
