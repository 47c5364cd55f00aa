"""`siltstone sql`: a statement of Spark SQL over the store and the tables of its lake."""

from __future__ import annotations

import json as plain_json
from collections.abc import Iterable
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any

import typer

from siltstone.cli.options import DATA_DEFAULT, Data, Json
from siltstone.cli.output import add_row, note, show, show_json, table
from siltstone.cli.spark import (
    MASTER_DEFAULT,
    DatabaseName,
    Master,
    Memory,
    pipeline,
    session,
    waiting,
)

_ROWS_MAX = 1000


def sql(
    statement: Annotated[
        str, typer.Argument(metavar="SQL", help="A statement of Spark SQL.", show_default=False)
    ],
    data: Data = DATA_DEFAULT,
    database: DatabaseName = "",
    master: Master = MASTER_DEFAULT,
    memory: Memory = "1g",
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", help="Show so many rows at most.", min=1)
    ] = _ROWS_MAX,
    json: Json = False,
) -> None:
    """Query the store: all rows by the database's name, tables of the lake by theirs."""
    queries = pipeline("sql")
    with session(master, memory) as spark:
        queries.make_views(spark, str(data), database=database)
        with waiting("running the query"):
            answer = queries.run(spark, statement, rows_max=limit)
    if json:
        show_json([dict(zip(answer.columns, map(_plain, row), strict=True)) for row in answer.rows])
    else:
        _show(answer)
    if answer.more:
        note(f"there are more than {limit} rows; --limit shows more")


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
    """Return a value of a row as JSON can hold it; bytes as text where they are, else in hex."""
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
