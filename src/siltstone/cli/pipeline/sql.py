"""`siltstone sql`: a statement of Spark SQL on the store and the tables of its lake."""

from __future__ import annotations

import json as plain_json
from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any

import typer

from siltstone.cli.nodes import NodeLogin, SourceUrl, takes_login
from siltstone.cli.options import DATA_DEFAULT, Data, Json
from siltstone.cli.output.output import add_row, note, show, show_json, table
from siltstone.cli.output.progress import waiting
from siltstone.cli.pipeline.place import checked_directory
from siltstone.cli.pipeline.spark import (
    MASTER_DEFAULT,
    DatabaseName,
    Master,
    Memory,
    pipeline,
    session,
)
from siltstone.errors import UsageError

_ROWS_MAX = 1000
_NOT_FOUND = "TABLE_OR_VIEW_NOT_FOUND"
_NO_TABLES = "Delta tables cannot be read with --url, only from the data directory"


@takes_login
def sql(
    statement: Annotated[
        str, typer.Argument(metavar="SQL", help="Statement in Spark SQL.", show_default=False)
    ],
    login: NodeLogin,
    data: Data = DATA_DEFAULT,
    url: SourceUrl = "",
    database: DatabaseName = "",
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="TIME",
            help="First time to read: ISO 8601 or seconds since 1970.",
            show_default="all",
        ),
    ] = "",
    ignore_loss: Annotated[
        bool,
        typer.Option(
            "--ignore-loss",
            help="Leave out rows that are dropped meanwhile, and tables of a dropped database.",
        ),
    ] = False,
    master: Master = MASTER_DEFAULT,
    memory: Memory = "1g",
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", help="Show at most N rows.", min=1)
    ] = _ROWS_MAX,
    json: Json = False,
) -> None:
    """Query the store with Spark SQL.

    The database is a table with its own name. The Delta tables that 'siltstone pipeline tier'
    writes are tables too. The command works beside a running broker.

    $ siltstone sql 'SELECT topic, count(*) FROM messages GROUP BY topic'
    """
    queries, answers = pipeline("sql"), pipeline("answers")
    node = login.options(url)
    place = {} if node else {"path": checked_directory(data, database)}
    with session(master, memory) as spark:
        try:
            with answers.plain_errors():
                queries.make_views(
                    spark,
                    database=database,
                    since=since or None,
                    failOnDataLoss=not ignore_loss,
                    **place,
                    **node,
                )
            with waiting("Running the query"):
                answer = queries.run(spark, statement, rows_max=limit)
        except UsageError as exc:
            told = str(exc).removesuffix(".")
            if node and _NOT_FOUND in told:
                told = f"{told}; {_NO_TABLES}"
            raise UsageError(told) from exc
    if json:
        show_json([dict(zip(answer.columns, map(_plain, row), strict=True)) for row in answer.rows])
    else:
        _show(answer)
    if answer.more:
        note(f"showed the first {limit} rows; pass a larger --limit to see more")


def _show(answer: Any) -> None:
    numbers = [
        name for name, is_number in zip(answer.columns, answer.numbers, strict=True) if is_number
    ]
    listed = table(*answer.columns, right=numbers)
    for row in answer.rows:
        add_row(listed, [_text(value) for value in row])
    show(listed)


def _text(value: Any) -> str:
    plain = _plain(value)
    if plain is None:
        return ""
    return plain if isinstance(plain, str) else plain_json.dumps(plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    """Return a value of a row for JSON; bytes as text if they are UTF-8, otherwise in hex."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray():
            try:
                return bytes(value).decode()
            except UnicodeDecodeError:
                return bytes(value).hex()
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case Iterable():
            return [_plain(item) for item in value]
        case _:
            return str(value)
