"""`siltstone schema`: the inferred columns of the Delta tables, and their versions."""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Any

import typer

from siltstone.cli.options import DATA_DEFAULT, Data, Json
from siltstone.cli.output.help import App
from siltstone.cli.output.output import add_row, say, show, show_json, table
from siltstone.cli.pipeline.place import lake_directory
from siltstone.cli.pipeline.spark import DatabaseName, pipeline
from siltstone.clock import SystemClock
from siltstone.fs.posix import PosixFileSystem

app = App("Show and change the columns that were inferred.", "siltstone schema show")

Version = Annotated[
    int | None,
    typer.Option("--version", metavar="N", help="Version to show.", show_default="the current one"),
]
TableName = Annotated[
    str, typer.Option("--table", metavar="TABLE", help="Show this table only.", show_default="all")
]


def _versions(data: Any, database: str) -> tuple[Any, PosixFileSystem, PurePath]:
    """Return the module, a file system and the directory of a lake."""
    fs = PosixFileSystem()
    lake = pipeline("jobs.upkeep").lake_of(fs, lake_directory(data, database), database)
    return pipeline("lake.tables.versions"), fs, lake


@app.command("list")
def list_(data: Data = DATA_DEFAULT, database: DatabaseName = "", json: Json = False) -> None:
    """List the versions of the schema, with the changes of each.

    $ siltstone schema list
    """
    versions, fs, lake = _versions(data, database)
    listed: list[dict[str, Any]] = []
    before: Any = {}
    for number in versions.version_numbers(fs, lake):
        version = versions.read_version(fs, lake, number)
        columns = versions.columns_by_table(version.rules)
        changes = versions.differences(before, columns)
        listed.append({"version": number, "time": version.time, "changes": changes})
        before = columns
    if json:
        show_json(listed)
        return
    shown = table("version", "time", "changes", right=("version",))
    for item in listed:
        first = "; ".join(item["changes"][:2])
        more = f"; {len(item['changes']) - 2} more" if len(item["changes"]) > 2 else ""
        add_row(shown, (str(item["version"]), item["time"], f"{first}{more}"))
    show(shown)


@app.command("show")
def show_(
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    version: Version = None,
    name: TableName = "",
    json: Json = False,
) -> None:
    """Show the columns of each table, with the path of the field.

    $ siltstone schema show --table plant_oven
    """
    versions, fs, lake = _versions(data, database)
    if version is None:
        rules = pipeline("lake.rules").load_rules(fs, lake)
    else:
        rules = versions.read_version(fs, lake, version).rules
    found = versions.columns_by_table(rules)
    found = {key: columns for key, columns in found.items() if name in ("", key)}
    if json:
        show_json({key: dict(columns) for key, columns in found.items()})
        return
    shown = table("table", "column", "type")
    for key, columns in found.items():
        for column, text in columns.items():
            add_row(shown, (key, column, text))
    show(shown)


@app.command()
def diff(
    one: Annotated[int, typer.Argument(metavar="N", help="Version to compare.")],
    other: Annotated[
        int | None,
        typer.Argument(metavar="M", help="Version to compare with.", show_default="the newest"),
    ] = None,
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    json: Json = False,
) -> None:
    """Show what changed between two versions.

    $ siltstone schema diff 3 4
    """
    versions, fs, lake = _versions(data, database)
    newest = max(versions.version_numbers(fs, lake), default=0)
    both = [
        versions.columns_by_table(versions.read_version(fs, lake, number).rules)
        for number in (one, newest if other is None else other)
    ]
    lines = versions.differences(*both)
    if json:
        show_json(lines)
        return
    for line in lines or ["no difference"]:
        say(line)


@app.command("set")
def set_(
    name: Annotated[str, typer.Argument(metavar="TABLE", help="Name of the Delta table.")],
    column: Annotated[str, typer.Argument(metavar="COLUMN", help="Name of the column.")],
    kind: Annotated[
        str, typer.Argument(metavar="TYPE", help="Type, for example string or bigint.")
    ],
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    json: Json = False,
) -> None:
    """Choose the type that a column gets when its table is derived again.

    The command works beside a running tier job. Derive the table with 'siltstone pipeline retier'.

    $ siltstone schema set plant_oven value string
    """
    versions, fs, lake = _versions(data, database)
    upkeep = pipeline("jobs.upkeep")
    # Jobs change the rules too. A rewrite goes on with the rules that it has begun with.
    with upkeep.locked_files(fs, lake), upkeep.locked_batches(fs, lake):
        number = versions.want_type(fs, lake, SystemClock(), table=name, column=column, kind=kind)
    if json:
        show_json({"version": number})
    else:
        say(
            f"version {number}: column {column} becomes {kind} with "
            f"'siltstone pipeline retier --table {name}'"
        )
