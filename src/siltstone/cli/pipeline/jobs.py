"""The jobs of `siltstone pipeline` besides tier: audit, learn, import, replay, rollup, init."""

from __future__ import annotations

from pathlib import Path
from time import sleep as wait
from typing import Annotated, Any

import typer

from siltstone.cli.nodes import NodeLogin, SourceUrl, own_directory, takes_login
from siltstone.cli.options import DATA_DEFAULT, Data, FilterOption, Json
from siltstone.cli.output.output import add_row, counted, note, say, show, show_json, table
from siltstone.cli.output.progress import counting, waiting
from siltstone.cli.pipeline.place import (
    check_target,
    checked_directory,
    database_name,
)
from siltstone.cli.pipeline.spark import (
    MASTER_DEFAULT,
    Continuous,
    DatabaseName,
    Master,
    Memory,
    pipeline,
    session,
)
from siltstone.cli.store.structure import Pattern, draw, levels
from siltstone.errors import UsageError
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.store.slab.settings import THRESHOLDS

Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        help="Write over Arrow Flight, for example grpc+tcp://host:8815.",
        show_default="the data directory",
    ),
]
_UNSOUND = 1
_DATABASE_OF_A_BROKER = "messages"


def audit(
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    master: Master = MASTER_DEFAULT,
    memory: Memory = "1g",
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="FILE", help="Write an HTML page with charts.", dir_okay=False
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check that every row of the store is in the Delta tables.

    The exit status is 1 if a row is missing, double or different. The command works
    beside a running broker.

    $ siltstone pipeline audit
    $ siltstone pipeline audit --html audit.html
    """
    path = checked_directory(data, database)
    with session(master, memory) as spark, waiting("Comparing store and lake"):
        report = pipeline("jobs.audit").audit(spark, path, database=database)
    if html is not None:
        html.write_text(pipeline("jobs.audit_page").audit_page(report), "utf-8")
    if json:
        show_json(report.to_json())
    else:
        _show_audit(report)
    if not report.is_sound:
        raise typer.Exit(_UNSOUND)


def _show_audit(report: Any) -> None:
    numbers = ("expected", "stored", "tiered", "waiting", "missing", "duplicates", "gaps")
    listed = table("slab", *numbers, "content", right=numbers)
    for slab in report.slabs:
        stored = "dropped" if slab.stored is None else f"{slab.stored:,}"
        counts = (slab.tiered, slab.waiting, slab.missing, slab.duplicates, slab.gaps)
        cells = [slab.slab, f"{slab.expected:,}", stored, *(f"{count:,}" for count in counts)]
        add_row(listed, [*cells, "differs" if slab.differs else "same"])
    show(listed)
    for sentence in report.findings() or ["all rows are in the Delta tables"]:
        say(sentence)


Thresholds = Annotated[
    str,
    typer.Option(
        "--threshold",
        metavar="N,N…",
        help=THRESHOLDS.help,
        show_default="chosen from the topics",
    ),
]


@takes_login
def learn(
    login: NodeLogin,
    data: Data = DATA_DEFAULT,
    url: SourceUrl = "",
    database: DatabaseName = "",
    master: Master = MASTER_DEFAULT,
    memory: Memory = "1g",
    thresholds: Thresholds = "",
    history: Annotated[
        Path | None,
        typer.Option(
            "--history",
            metavar="PATH",
            help="Parquet files with a column topic, to learn from them instead.",
            show_default="store and Delta tables",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the structure without storing it.")
    ] = False,
    json: Json = False,
) -> None:
    """Learn the topic structure from stored rows.

    The next generation of the database starts with it. The command works beside a running
    broker. With --url use --dry-run.

    $ siltstone pipeline learn --dry-run
    $ siltstone pipeline learn --threshold 100,10
    """
    jobs = pipeline("jobs.learn")
    given = _numbers(thresholds) if thresholds else None
    if given:
        jobs.check_thresholds(given)
    node = login.options(url)
    if node and not dry_run:
        raise UsageError(
            "with --url nothing can be stored; pass --dry-run, or use the data directory"
        )
    place = {} if node else {"path": checked_directory(data, database)}
    plain_errors = pipeline("answers").plain_errors
    with session(master, memory) as spark, waiting("Learning"), plain_errors():
        rows = None if history is None else spark.read.parquet(str(history))
        report = jobs.learn(
            spark,
            database=database,
            history=rows,
            thresholds=given,
            dry_run=dry_run,
            **place,
            **node,
        )
    _show_learned(report, dry_run=dry_run, json=json)


def _show_learned(report: Any, *, dry_run: bool, json: bool) -> None:
    if json:
        show_json(
            {
                "database": report.database,
                "thresholds": list(report.thresholds),
                "topics": report.topics,
                "streams_before": report.streams_before,
                "streams_after": report.streams_after,
                "kept": not dry_run,
                "structures": [
                    {"pattern": item.pattern, "topics": item.topics, "rows": item.rows}
                    for item in report.structures
                ],
            }
        )
        return
    if dry_run:
        patterns = [Pattern(item.pattern, item.rows, 1) for item in report.structures]
        show(draw(report.database, levels(patterns)))
    else:
        listed = table("structure", "topics", "rows", right=("topics", "rows"))
        for item in report.structures:
            add_row(listed, (item.pattern, f"{item.topics:,}", f"{item.rows:,}"))
        show(listed)
    say(
        f"{counted(report.topics, 'topic')} in {counted(report.streams_after, 'structure')}; "
        f"the store has {counted(report.streams_before, 'stream')}, {report.saved:,} are saved"
    )


Payload = Annotated[
    str,
    typer.Option(
        "--payload",
        metavar="COLUMN",
        help="Column that holds the payload.",
        show_default="all other columns, as JSON",
    ),
]


Topic = Annotated[
    str,
    typer.Option(
        "--topic",
        metavar="TEMPLATE",
        help="Topic with columns in braces, for example plant/{site}/{sensor}.",
    ),
]


Form = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="NAME",
        help="Format of the files: csv, json, parquet, or another that Spark reads.",
    ),
]


Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="Option of the Spark reader, for example header=true. Repeatable.",
    ),
]


@takes_login
def import_(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="File or directory to import.")],
    topic: Topic,
    login: NodeLogin,
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    url: Url = "",
    master: Master = MASTER_DEFAULT,
    memory: Memory = "1g",
    form: Form = "json",
    options: Options = None,
    payload: Payload = "",
    timestamp: Annotated[
        str,
        typer.Option(
            "--timestamp", metavar="COLUMN", help="Column to store as a user property timestamp."
        ),
    ] = "",
    name: Annotated[
        str,
        typer.Option(
            "--name", help="Name of the import. Under one name each file is imported once."
        ),
    ] = "import",
    skip_bad: Annotated[
        bool,
        typer.Option(
            "--skip-bad", help="Skip rows that make no valid message, and report their number."
        ),
    ] = False,
    json: Json = False,
) -> None:
    """Import files of any format that Spark reads.

    A repeated import continues where the last one ended. Beside a running broker the
    command needs flight.enabled or --url.

    $ siltstone pipeline import rows.csv --format csv --option header=true --topic 'plant/{site}'
    """
    jobs = pipeline("jobs.import_files")
    settings = jobs.ImportSettings(
        source=source,
        topic=topic,
        target=_target(data, database, login.options(url)),
        format=form,
        options=_pairs(options or []),
        payload=payload,
        timestamp=timestamp,
        name=name,
        skips_bad=skip_bad,
    )
    with session(master, memory) as spark, counting("Importing") as tell:
        steps = jobs.import_files(spark, settings, lambda step: tell(step.rows, step.waiting))
    rows, bad = sum(step.rows for step in steps), sum(step.skipped for step in steps)
    if json:
        show_json({"rows": rows, "files": len(steps), "bad_rows": bad})
    else:
        say(f"stored {counted(rows, 'row')} of {counted(len(steps), 'file')}")
    if bad:
        note(f"skipped {counted(bad, 'invalid row')}")


ReplaySourceUrl = Annotated[
    str,
    typer.Option(
        "--from-url",
        metavar="URL",
        help="Read over Arrow Flight, for example grpc+tcp://host:8815.",
        show_default="the data directory",
    ),
]


Since = Annotated[
    str,
    typer.Option(
        "--since",
        metavar="TIME",
        help="First time to replay: ISO 8601 or seconds since 1970.",
        show_default="the beginning",
    ),
]


Until = Annotated[
    str,
    typer.Option(
        "--until",
        metavar="TIME",
        help="End of the time range, not included.",
        show_default="now",
    ),
]


Speed = Annotated[
    float | None,
    typer.Option(
        "--speed",
        metavar="X",
        help="Factor of the original speed; 2 is twice as fast.",
        show_default="as fast as possible",
    ),
]


@takes_login
def replay(
    login: NodeLogin,
    data: Data = DATA_DEFAULT,
    source_url: ReplaySourceUrl = "",
    database: DatabaseName = "",
    topics: FilterOption = "#",
    since: Since = "",
    until: Until = "",
    speed: Speed = None,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help="Text to put before each topic.")
    ] = "",
    name: Annotated[
        str,
        typer.Option(
            "--name",
            help="Name of the replay. Under one name each row is sent once.",
            show_default="none",
        ),
    ] = "",
    url: Url = "",
    master: Master = MASTER_DEFAULT,
    memory: Memory = "1g",
    json: Json = False,
) -> None:
    """Publish stored rows again, by topic and time.

    Beside a running broker the command needs flight.enabled or --url.

    $ siltstone pipeline replay --filter 'plant/#' --since 2026-01-31T12:00:00Z --prefix replay/
    """
    jobs = pipeline("jobs.replay")
    node = login.options(source_url) if source_url else {}
    settings = jobs.ReplaySettings(
        path="" if node else checked_directory(data, database),
        node=node,
        database=database,
        target=_target(data, database, login.options(url) if url or not node else {}),
        filter=topics,
        since=since or None,
        until=until or None,
        speed=speed,
        prefix=prefix,
        name=name,
    )
    with session(master, memory) as spark, counting("Replaying") as tell:
        steps = jobs.replay(spark, settings, wait, lambda step: tell(step.rows, step.waiting))
    rows = sum(step.rows for step in steps)
    late = max((step.late_seconds for step in steps), default=0.0)
    if json:
        show_json({"rows": rows, "windows": len(steps), "late_seconds": round(late, 3)})
    else:
        say(f"{counted(rows, 'row')} in {counted(len(steps), 'window')}, at most {late:.1f} s late")


Fields = Annotated[
    list[str] | None,
    typer.Option(
        "--field",
        metavar="COLUMN",
        help="Column to aggregate. Repeatable.",
        show_default="all numeric columns",
    ),
]


Stream = Annotated[
    str,
    typer.Option(
        "--checkpoint",
        metavar="DIR",
        help="Directory of the stream's state: add finished windows, and continue from it.",
        show_default="none; replace the table with all windows",
    ),
]


Watermark = Annotated[
    str,
    typer.Option(
        "--watermark",
        metavar="TIME",
        help="How late a row of a stream may arrive, for example '1 minute'.",
    ),
]


Topics = Annotated[
    str,
    typer.Option(
        "--topics",
        metavar="TEMPLATE",
        help="Also publish the windows to topics, for example rollup/{plant}.",
    ),
]


@takes_login
def rollup(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="Name of a Delta table.")],
    login: NodeLogin,
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    window: Annotated[
        str,
        typer.Option(
            "--window", metavar="TIME", help="Length of a window, for example '5 minutes'."
        ),
    ] = "1 minute",
    fields: Fields = None,
    watermark: Watermark = "1 minute",
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="TABLE", help="Name of the new table.", show_default="TABLE_1m"
        ),
    ] = "",
    topics: Topics = "",
    stream: Stream = "",
    continuous: Continuous = False,
    url: Url = "",
    master: Master = MASTER_DEFAULT,
    memory: Memory = "1g",
    json: Json = False,
) -> None:
    """Aggregate a Delta table by windows of time.

    Each window has count, minimum, maximum, mean and quantiles. The command works beside a running
    broker. Beside a broker, --topics needs flight.enabled or --url.

    $ siltstone pipeline rollup plant_oven --window '5 minutes' --field temperature
    $ siltstone pipeline rollup plant_oven --checkpoint rollup-state --continuous
    """
    jobs = pipeline("jobs.rollup")
    settings = jobs.RollupSettings(
        path=checked_directory(data, database),
        database=database,
        table=name,
        window=window,
        fields=tuple(fields or ()),
        watermark=watermark,
        to=to,
        topics=topics,
        target=_target(data, database, login.options(url), is_used=bool(topics)),
    )
    if continuous and not stream:
        raise UsageError("--continuous needs a directory for its state; name it with --checkpoint")
    with session(master, memory) as spark, waiting("Rolling up"):
        if stream:
            answer = _roll_on(jobs, spark, settings, stream, continuous=continuous)
        else:
            report = jobs.rollup(spark, settings)
            answer = {"table": report.table, "windows": report.windows}
    if json:
        show_json(answer)
    else:
        say(", ".join(f"{key}: {value}" for key, value in answer.items()))


def _roll_on(
    jobs: Any, spark: Any, settings: Any, checkpoint: str, *, continuous: bool
) -> dict[str, Any]:
    """Run a stream until it ends, or until Ctrl-C if it is continuous; return the number of rows
    that it has read.
    """
    trigger = {"processingTime": "5 seconds"} if continuous else {"availableNow": True}
    query = jobs.stream_rollup(spark, settings, checkpoint=checkpoint, trigger=trigger)
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
        if not continuous:
            raise
    rows = sum(item.numInputRows for item in query.recentProgress)
    return {"table": settings.target_table, "rows": rows}


def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the new project.")],
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    topics: FilterOption = "#",
) -> None:
    """Write a small Spark project to start from.

    It has a streaming job and a declarative pipeline. The command works beside a running broker.

    $ siltstone pipeline init my-project
    """
    own_directory(data)
    if absolute_path(directory) == absolute_path(data):
        raise UsageError(f"{directory} is the data directory; choose another one for the project")
    # A project may be written before the first message is stored.
    known = database_name(data, database)
    named = known or database or _DATABASE_OF_A_BROKER
    written = pipeline("jobs.project").write_project(
        PosixFileSystem(),
        absolute_path(directory),
        data=absolute_path(data),
        database=named,
        topic_filter=topics,
    )
    for path in written:
        say(str(path))
    if known is None:
        note(
            f"{data} has no store yet: the project reads database {named} of it; start "
            f"'siltstone serve --data {data}' first"
        )


def _target(
    data: Path, database: str, node: dict[str, str], *, is_used: bool = True
) -> dict[str, str]:
    """Return the options of the sink. Raises: UsageError if it cannot accept rows."""
    place = node or {"path": own_directory(data)}
    if is_used and not node:
        check_target(data)
    return place | ({"database": database} if database else {})


def _pairs(given: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--option expects NAME=VALUE, as in header=true, got {text!r}")
        pairs[name] = value
    return pairs


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as exc:
        raise UsageError(
            f"--threshold expects numbers with commas between them, such as 100,10, got {text!r}"
        ) from exc
