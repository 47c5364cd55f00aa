"""`siltstone read`: print rows, or write them to a file; follow new rows."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from time import sleep
from typing import Annotated, Final, TextIO

import pyarrow as pa
import typer

from siltstone.cli.opening import open_reading
from siltstone.cli.options import (
    DATA_DEFAULT,
    Data,
    FilterOption,
    Json,
    Name,
    Since,
    Until,
)
from siltstone.cli.output.output import console_on, counted, note
from siltstone.cli.output.progress import progress
from siltstone.cli.output.sinks import (
    TABLE_COLUMNS,
    ArrowSink,
    CsvSink,
    JsonLinesSink,
    JsonSink,
    ParquetSink,
    Sink,
    TableSink,
)
from siltstone.cli.store.follow import FeedFollower, follow
from siltstone.clock import SystemClock
from siltstone.errors import UsageError
from siltstone.settings.quantities import parse_span
from siltstone.store.log.read.pieces import COLUMNS, schema_of
from siltstone.store.log.read.scan import ReadReport

_POLL_SECONDS: Final = 0.2
# The name in Spark and Flight.
_ALIASES: Final = {"payload": "value"}


class Format(Enum):
    """The format of the output."""

    TABLE = "table"
    CSV = "csv"
    JSON = "json"
    NDJSON = "ndjson"
    JSONL = "jsonl"
    ARROW = "arrow"
    PARQUET = "parquet"


_SUFFIXES: Final = {
    ".csv": Format.CSV,
    ".json": Format.JSON,
    ".ndjson": Format.NDJSON,
    ".jsonl": Format.NDJSON,
    ".arrow": Format.ARROW,
    ".arrows": Format.ARROW,
    ".parquet": Format.PARQUET,
}


def choose_format(wanted: Format | None, output: Path | None, *, json: bool) -> Format:
    """Return the format for the options. Raises: UsageError when they conflict.

    Without --format and --json, the suffix of the file decides, if it is known.
    """
    if json and wanted not in (None, Format.JSONL, Format.NDJSON):
        raise UsageError("--json means --format ndjson; leave one of them out")
    named = _SUFFIXES.get(output.suffix.lower(), Format.TABLE) if output else Format.TABLE
    chosen = wanted or (Format.JSONL if json else named)
    if chosen is Format.PARQUET and output is None:
        raise UsageError("Parquet needs a file; name it with --output")
    if chosen is Format.ARROW and output is None and sys.stdout.isatty():
        raise UsageError("Arrow is a binary format; name a file with --output, or use a pipe")
    return chosen


def choose_columns(text: str | None, chosen: Format) -> tuple[str, ...]:
    """Return the named columns, or the default columns of the format. Raises: UsageError."""
    if text is None:
        return TABLE_COLUMNS if chosen is Format.TABLE else COLUMNS
    columns = tuple(_ALIASES.get(name.strip(), name.strip()) for name in text.split(","))
    if len(set(columns)) < len(columns):
        raise UsageError(f"--columns names a column twice: {text!r}")
    schema_of(columns)
    return columns


def limited(batches: Iterator[pa.RecordBatch], rows_max: int | None) -> Iterator[pa.RecordBatch]:
    """Yield batches up to rows_max rows, and then stop reading."""
    left = rows_max
    for batch in batches:
        kept = batch if left is None else batch.slice(0, left)
        yield kept
        if left is not None:
            left -= kept.num_rows
            if left == 0:
                return


Output = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        dir_okay=False,
        help="Write to a file.",
        show_default="standard output",
    ),
]


Columns = Annotated[
    str | None,
    typer.Option(
        "--columns",
        metavar="A,B…",
        help=f"Columns to print: {', '.join(COLUMNS)}. The name payload means value.",
        show_default="all; in a table, some",
    ),
]


def read(
    name: Name,
    topic_filter: FilterOption = "#",
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Stop after N rows.")
    ] = None,
    follow_on: Annotated[
        bool, typer.Option("--follow", help="Wait for new rows and print them, until Ctrl-C.")
    ] = False,
    output_format: Annotated[
        Format | None,
        typer.Option(
            "--format",
            help="Output format.",
            show_default="the suffix of --output, or table",
        ),
    ] = None,
    output: Output = None,
    columns: Columns = None,
    stats: Annotated[
        bool, typer.Option("--stats", help="Print what was read and what was skipped, at the end.")
    ] = False,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Read stored rows in order of time.

    The command works beside a running broker. The broker stores messages in the database named
    messages.

    $ siltstone read messages --filter 'plant/#' --since -1h
    $ siltstone read messages --follow --format ndjson
    $ siltstone read messages -o rows.parquet
    $ siltstone read messages --filter 'plant/press-7/#' --stats
    """
    chosen = choose_format(output_format, output, json=json)
    names = choose_columns(columns, chosen)
    if follow_on and (until is not None or chosen in (Format.PARQUET, Format.JSON)):
        raise UsageError("--follow never ends; leave out --until, and --format parquet or json")
    if follow_on and stats:
        raise UsageError("--follow never ends, so it has no statistics; leave out --stats")
    since_us, until_us = parse_span(since, until, SystemClock().now_us())
    with open_reading(data) as store:
        database = store.database(name)
        for hole in database.holes(since_us=since_us, until_us=until_us):
            note(f"rows were lost to damage: {hole}; run 'siltstone verify'")
        if follow_on:
            follower = FeedFollower(database, topic_filter, since_us=since_us, columns=names)
            _follow(follower, limit, chosen, output, names)
            return
        report = ReadReport()
        batches = database.read(
            topic_filter,
            since_us=since_us,
            until_us=until_us,
            columns=names,
            rows_max=limit,
            report=report,
        )
        total = limit
        if limit is None and (topic_filter, since, until) == ("#", None, None):
            total = sum(slab.rows for slab in database.slabs())
        with _sink(chosen, output, names) as sink, _shown(output, total) as tell:
            rows = _pour(batches, sink, tell)
    if stats:
        note(str(report))
    if output is not None:
        note(f"wrote {counted(rows, 'row')} to {output}")


def _follow(
    follower: FeedFollower,
    limit: int | None,
    chosen: Format,
    output: Path | None,
    columns: Sequence[str],
) -> None:
    with _sink(chosen, output, columns) as sink:

        def wait() -> None:
            sink.flush()
            sleep(_POLL_SECONDS)

        try:
            _pour(limited(follow(follower, wait), limit), sink)
            return
        except KeyboardInterrupt:
            # Ctrl-C is the normal end of --follow: the written rows are complete.
            sink.flush()
    raise typer.Exit(130)


def _pour(
    batches: Iterator[pa.RecordBatch], sink: Sink, tell: Callable[[int], None] = lambda _: None
) -> int:
    rows = 0
    for batch in batches:
        sink.write(batch)
        rows += batch.num_rows
        tell(rows)
    return rows


@contextmanager
def _shown(output: Path | None, total: int | None) -> Iterator[Callable[[int], None]]:
    """Show the number of rows written to a file; rows on a terminal need no progress."""
    if output is None:
        yield lambda _: None
        return
    with progress("Reading", total=total) as meter:
        yield meter.tell


@contextmanager
def _sink(chosen: Format, output: Path | None, columns: Sequence[str]) -> Iterator[Sink]:
    with _opened(output) as file:
        sink = make_sink(chosen, file, columns)
        try:
            yield sink
        except BaseException:
            sink.abandon()
            raise
        sink.close()


def make_sink(chosen: Format, file: TextIO, columns: Sequence[str]) -> Sink:
    """Return a sink of this format for a file."""
    match chosen:
        case Format.JSONL | Format.NDJSON:
            return JsonLinesSink(file, columns)
        case Format.JSON:
            return JsonSink(file, columns)
        case Format.CSV:
            return CsvSink(file, columns)
        case Format.TABLE:
            return TableSink(console_on(file), columns)
        case Format.ARROW:
            return ArrowSink(file.buffer, columns)
        case Format.PARQUET:
            return ParquetSink(file.buffer, columns)


@contextmanager
def _opened(output: Path | None) -> Iterator[TextIO]:
    if output is None:
        yield sys.stdout
    else:
        with output.open("w", encoding="utf-8", newline="\n") as file:
            yield file
