"""The jobs of `siltstone pipeline` beside tiering: audit, learn, import, replay, rollup, init."""

from __future__ import annotations

from pathlib import Path
from time import sleep as wait
from typing import Annotated, Any

import typer

from siltstone.bulk.survey import find_database
from siltstone.cli.nodes import NodeLogin, SourceUrl, own_directory, takes_login
from siltstone.cli.opening import open_reading
from siltstone.cli.options import DATA_DEFAULT, Data, Json
from siltstone.cli.output import add_row, counted, note, say, show, show_json, table
from siltstone.cli.pipeline_place import checked_directory
from siltstone.cli.spark import (
    MASTER_DEFAULT,
    Continuous,
    DatabaseName,
    Master,
    Memory,
    counting,
    pipeline,
    session,
    waiting,
)
from siltstone.cli.structure import Pattern, draw, levels
from siltstone.errors import UsageError
from siltstone.fs.posix import PosixFileSystem, absolute_path

Filter = Annotated[str, typer.Option("--filter", metavar="FILTER", help="Topics to take.")]
Url = Annotated[
    str,
    typer.Option(
        "--url",
        metavar="URL",
        help="Write to a node, as grpc+tcp://host:8815.",
        show_default="the data directory",
    ),
]
_UNSOUND = 1


def audit(
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    master: Master = MASTER_DEFAULT,
    memory: Memory = "1g",
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with charts.", dir_okay=False),
    ] = None,
    json: Json = False,
) -> None:
    """Account for every row between store and lake; the status is 1 when one is amiss."""
    path = checked_directory(data, database)
    with session(master, memory) as spark, waiting("comparing store and lake"):
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
    for sentence in report.findings() or ["every row is accounted for"]:
        say(sentence)


@takes_login
def learn(
    login: NodeLogin,
    data: Data = DATA_DEFAULT,
    url: SourceUrl = "",
    database: DatabaseName = "",
    master: Master = MASTER_DEFAULT,
    memory: Memory = "1g",
    thresholds: Annotated[
        str,
        typer.Option(
            "--threshold", metavar="N,N…", help="Words that stay apart.", show_default="by looking"
        ),
    ] = "",
    history: Annotated[
        Path | None,
        typer.Option(
            "--history",
            metavar="PATH",
            help="Parquet with a column topic, to learn from instead.",
            show_default="store and lake",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only draw what was found.")] = False,
    json: Json = False,
) -> None:
    """Learn the structure of topics from history, for the next generation to begin with."""
    jobs = pipeline("jobs.learn")
    given = _numbers(thresholds) if thresholds else None
    if given:
        jobs.check_thresholds(given)
    node = login.options(url)
    if node and not dry_run:
        raise UsageError("by url this is a dry run: what is learned is kept in the data directory")
    place = {} if node else {"path": checked_directory(data, database)}
    plain_errors = pipeline("answers").plain_errors
    with session(master, memory) as spark, waiting("learning"), plain_errors():
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


@takes_login
def import_(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="A file or a directory.")],
    topic: Annotated[
        str, typer.Option("--topic", metavar="TEMPLATE", help="As in plant/{site}/{sensor}.")
    ],
    login: NodeLogin,
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    url: Url = "",
    master: Master = MASTER_DEFAULT,
    memory: Memory = "1g",
    form: Annotated[
        str, typer.Option("--format", metavar="NAME", help="csv, json, parquet, …")
    ] = "json",
    options: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="An option of the format."),
    ] = None,
    payload: Annotated[
        str,
        typer.Option(
            "--payload", metavar="COLUMN", help="Is the payload.", show_default="the rest, as JSON"
        ),
    ] = "",
    timestamp: Annotated[
        str, typer.Option("--timestamp", metavar="COLUMN", help="Becomes a property.")
    ] = "",
    name: Annotated[
        str, typer.Option("--name", help="Files of one name are imported once.")
    ] = "import",
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Pass over rows that give no message; count them.")
    ] = False,
    json: Json = False,
) -> None:
    """Import files of any format that Spark reads; done again, it goes on where it ended."""
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
    with session(master, memory) as spark, counting("importing") as tell:
        steps = jobs.import_files(spark, settings, lambda step: tell(step.rows, step.waiting))
    rows, bad = sum(step.rows for step in steps), sum(step.skipped for step in steps)
    if json:
        show_json({"rows": rows, "files": len(steps), "bad_rows": bad})
    else:
        say(f"{counted(rows, 'row')} of {counted(len(steps), 'file')} are stored")
    if bad:
        note(f"{counted(bad, 'bad row')} passed over")


@takes_login
def replay(
    login: NodeLogin,
    data: Data = DATA_DEFAULT,
    source_url: Annotated[
        str,
        typer.Option(
            "--from-url",
            metavar="URL",
            help="Read from a node, as grpc+tcp://host:8815.",
            show_default="the data directory",
        ),
    ] = "",
    database: DatabaseName = "",
    topics: Filter = "#",
    since: Annotated[str, typer.Option("--since", metavar="TIME", show_default="the first")] = "",
    until: Annotated[str, typer.Option("--until", metavar="TIME", show_default="now")] = "",
    speed: Annotated[
        float | None,
        typer.Option(
            "--speed", metavar="X", help="1 is the pace it came in.", show_default="all at once"
        ),
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help="Put before each topic.")
    ] = "",
    name: Annotated[
        str, typer.Option("--name", help="A replay with a name is done once.", show_default="none")
    ] = "",
    url: Url = "",
    master: Master = MASTER_DEFAULT,
    memory: Memory = "1g",
    json: Json = False,
) -> None:
    """Send rows of a filter and a time range to topics again."""
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
    with session(master, memory) as spark, counting("replaying") as tell:
        steps = jobs.replay(spark, settings, wait, lambda step: tell(step.rows, step.waiting))
    rows = sum(step.rows for step in steps)
    late = max((step.late_seconds for step in steps), default=0.0)
    if json:
        show_json({"rows": rows, "windows": len(steps), "late_seconds": round(late, 3)})
    else:
        say(f"{counted(rows, 'row')} in {counted(len(steps), 'window')}, at most {late:.1f} s late")


@takes_login
def rollup(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="A table of the lake.")],
    login: NodeLogin,
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    window: Annotated[str, typer.Option("--window", metavar="TIME")] = "1 minute",
    fields: Annotated[
        list[str] | None,
        typer.Option("--field", metavar="COLUMN", help="To roll up.", show_default="all numbers"),
    ] = None,
    watermark: Annotated[
        str, typer.Option("--watermark", metavar="TIME", help="How late rows of a stream may come.")
    ] = "1 minute",
    to: Annotated[
        str, typer.Option("--to", metavar="TABLE", help="Where to.", show_default="TABLE_1m")
    ] = "",
    topics: Annotated[
        str, typer.Option("--topics", metavar="TEMPLATE", help="Publish too, as rollup/{plant}.")
    ] = "",
    stream: Annotated[
        str,
        typer.Option(
            "--checkpoint",
            metavar="DIR",
            help="Add windows as they end, and go on from here.",
            show_default="replace the table with all windows",
        ),
    ] = "",
    continuous: Continuous = False,
    url: Url = "",
    master: Master = MASTER_DEFAULT,
    memory: Memory = "1g",
    json: Json = False,
) -> None:
    """Roll a table up into windows of time: count, min, max, mean, quantiles, by its keys."""
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
        target=_target(data, database, login.options(url)),
    )
    if continuous and not stream:
        raise UsageError("--continuous needs --checkpoint, a directory to go on from")
    with session(master, memory) as spark, waiting("rolling up"):
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
    """Run a stream until it ends, or is interrupted if it goes on; say what it has read."""
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
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where to.")],
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    topics: Filter = "#",
) -> None:
    """Write a small project of your own: a streaming job, and a declarative pipeline."""
    own_directory(data)
    with open_reading(data) as store:
        named = find_database(store, database).name
    written = pipeline("jobs.project").write_project(
        PosixFileSystem(),
        absolute_path(directory),
        data=absolute_path(data),
        database=named,
        topic_filter=topics,
    )
    for path in written:
        say(str(path))


def _target(data: Path, database: str, node: dict[str, str]) -> dict[str, str]:
    """Return the options of the sink."""
    place = node or {"path": own_directory(data)}
    return place | ({"database": database} if database else {})


def _pairs(given: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise UsageError(f"--option is NAME=VALUE, as in header=true: {text!r}")
        pairs[name] = value
    return pairs


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as exc:
        raise UsageError(f"--threshold has numbers, one a level, as 100,10: {text!r}") from exc
