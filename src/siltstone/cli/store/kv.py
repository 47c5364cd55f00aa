"""`siltstone kv`: create, drop, list, read and change key-value databases.

`list`, `read` and `get` also work while another process has the database open. `commits` is one of
them: the positions of sessions, share groups and topic logs. It always exists.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path, PurePath
from typing import Annotated, Any, Final

import typer

from siltstone.cli.management import manage, note_copy_returns
from siltstone.cli.opening import open_reading
from siltstone.cli.options import (
    DATA_DEFAULT,
    Data,
    FilterOption,
    Json,
    Name,
    Since,
    Until,
    Yes,
)
from siltstone.cli.output.help import App
from siltstone.cli.output.output import (
    add_row,
    confirm,
    confirm_drop,
    console_on,
    say,
    show,
    show_json,
    table,
)
from siltstone.cli.output.sinks import JsonLinesSink, Sink, TableSink
from siltstone.cli.output.streams import standard_input
from siltstone.cli.store.settings import as_option, takes_settings
from siltstone.clock import SystemClock
from siltstone.errors import NotFoundError, SiltstoneError
from siltstone.fs.paths import StorePaths
from siltstone.fs.posix import PosixFileSystem
from siltstone.manage.keyvalues import (
    Begin,
    Commit,
    CreateKeyValue,
    NameKeyValue,
    Operation,
    refuse_commits,
)
from siltstone.manage.running import is_served
from siltstone.settings.quantities import format_size, parse_span
from siltstone.store.kv.api import Engine
from siltstone.store.kv.keys import TIME_END
from siltstone.store.kv.rocks import open_read_only
from siltstone.store.log.read.pieces import Row
from siltstone.store.tx.iterator import batch_of_rows
from siltstone.store.tx.reading import KeyValueReader
from siltstone.store.tx.settings import KeyValueSettings, check_keyvalue
from siltstone.topic.grammar import check_topic

app = App("Create, list, read, change and drop key-value databases.", "siltstone kv list")

_CHUNK: Final = 1000


def open_engine(path: PurePath) -> Engine:
    """Open a key-value store for reading, also while another process has it open."""
    return open_read_only(PosixFileSystem(), path)


def _create(
    name: Name,
    settings: dict[str, Any],
    plain: Annotated[
        bool, typer.Option("--map", help="Keep one value per topic, without time.")
    ] = False,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Create a key-value database.

    The data directory is created if it does not exist. If the broker is running, it creates the
    database.

    $ siltstone kv create settings --map
    $ siltstone kv create history --retain 30d
    """
    given = {"timed": not plain, **settings}
    refuse_commits(name)
    check_keyvalue(given, name=as_option)
    manage(data, "kv-create", CreateKeyValue(database=name, settings=given), creates=True)
    if json:
        show_json({"database": name, "settings": KeyValueSettings.from_json(given).to_json()})
    else:
        say(f"created key-value database {name} in {data}")


# The option --map stands for the setting `timed`.
create = app.command("create")(takes_settings(_create, KeyValueSettings, without=("timed",)))


@app.command("drop")
def drop(name: Name, yes: Yes = False, data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Delete a key-value database with all its rows.

    A running broker makes the change. In a cluster, all sites delete a replicated database. At a
    stopped site, only its copy is deleted.

    $ siltstone kv drop settings
    """
    refuse_commits(name)
    is_shared = not is_served(data) and _is_shared(data, name)
    if not yes:
        with open_reading(data) as store:
            if name in store.keyvalue_names():
                with _opened(StorePaths(store.path).keyvalue(name)) as reader:
                    rows = sum(1 for _ in reader.read())
                confirm_drop(f"key-value database {name!r}", rows)
    manage(data, "kv-drop", NameKeyValue(database=name))
    if is_shared:
        note_copy_returns(name)
    if json:
        show_json({"dropped": name})
    else:
        say(f"dropped key-value database {name}")


def _is_shared(data: Path, name: str) -> bool:
    """Return whether a key-value database is replicated; False if it cannot be read."""
    with suppress(SiltstoneError), open_reading(data) as store:
        if name in store.keyvalue_names():
            with _opened(StorePaths(store.path).keyvalue(name)) as reader:
                return reader.settings.backend != "local"
    return False


Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="Topic of the row.", show_default=False)
]
Shard = Annotated[
    int | None,
    typer.Option("--shard", metavar="N", help="Shard, if the database has more than one."),
]
TransactionId = Annotated[
    str | None,
    typer.Option(
        "--id", metavar="ID", help="Id of the transaction. A repeated command changes nothing."
    ),
]


@app.command("put")
def put(
    name: Name,
    topic: Topic,
    value: Annotated[
        str,
        typer.Argument(
            metavar="[VALUE|-]", help="Value of the row.", show_default="standard input"
        ),
    ] = "-",
    shard: Shard = None,
    transaction_id: TransactionId = None,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Set the value of a topic.

    In a database by time, this adds a row with the current time. If the broker is running, it
    does this.

    $ siltstone kv put settings plant/limits 21.5
    $ siltstone kv put settings plant/limits < limits.json
    """
    stored = standard_input().read() if value == "-" else value.encode(errors="surrogateescape")
    changes: list[Operation] = [["write", topic, None, len(stored)]]
    _commit(name, changes, stored, shard=shard, id=transaction_id, data=data, json=json)


@app.command("delete")
def delete(
    name: Name,
    topic_filter: Annotated[
        str, typer.Argument(metavar="FILTER", help="Topics of the rows.", show_default=False)
    ],
    since: Since = None,
    until: Until = None,
    shard: Shard = None,
    yes: Yes = False,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Delete the rows of a topic filter.

    A running broker makes the change.

    $ siltstone kv delete settings plant/limits
    $ siltstone kv delete history 'plant/#' --until -30d
    """
    since_us, until_us = parse_span(since, until, SystemClock().now_us())
    if not yes:
        confirm(f"delete the rows of {topic_filter!r} in database {name!r}")
    changes: list[Operation] = [["delete", topic_filter, since_us, until_us]]
    _commit(name, changes, b"", shard=shard, id=None, data=data, json=json)


def _commit(
    name: str,
    changes: list[Operation],
    payload: bytes,
    *,
    shard: int | None,
    id: str | None,  # noqa: A002 - the usual name
    data: Data,
    json: bool,
) -> None:
    begin = Begin(database=name, shard=shard, id=id)
    done = manage(data, "kv-commit", Commit(begin=begin, operations=changes, payload=payload))
    if json:
        show_json({"database": name, "serial": done.serial, "duplicate": done.duplicate})
    elif done.duplicate:
        say(f"transaction {id} was committed before")
    else:
        say(f"committed to {name}")


@app.command("list")
def list_databases(data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """List the key-value databases of a data directory.

    The command works beside a running broker.

    $ siltstone kv list
    """
    documents = []
    with open_reading(data) as store:
        for name, place in store.keyvalue_places().items():
            with _opened(place) as reader:
                documents.append(_summary(name, reader))
    if json:
        show_json(documents)
    elif documents:
        listed = table("database", "kind", "shards", "slabs", "size", right=("shards", "slabs"))
        for each in documents:
            kind = "by time" if each["timed"] else "plain map"
            counts = (f"{each[field]:,}" for field in ("shards", "slab_count"))
            add_row(listed, (each["database"], kind, *counts, format_size(each["size_bytes"])))
        show(listed)
    else:
        say(f"no key-value databases in {data}")


def _summary(name: str, reader: KeyValueReader) -> dict[str, Any]:
    return {
        "database": name,
        "timed": reader.settings.timed,
        "shards": reader.settings.shards,
        "slab_count": len(reader.slabs()),
        "size_bytes": reader.size_bytes(),
    }


@app.command("read")
def read(
    name: Name,
    topic_filter: FilterOption = "#",
    since: Since = None,
    until: Until = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="Stop after N rows.")
    ] = None,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Read the rows of a key-value database.

    The rows of a stream come in order of topic, then of time. The command works beside a running
    broker.

    $ siltstone kv read history --filter 'plant/#' --since -1h
    """
    since_us, until_us = parse_span(since, until, SystemClock().now_us())
    with _reading(name, data) as reader:
        columns = ("topic", "timestamp", "value") if reader.settings.timed else ("topic", "value")
        rows = islice(
            reader.read(topic_filter, since_us, TIME_END if until_us is None else until_us), limit
        )
        sink: Sink = (
            JsonLinesSink(sys.stdout, columns)
            if json
            else TableSink(console_on(sys.stdout), columns)
        )
        while some := list(islice(rows, _CHUNK)):
            sink.write(batch_of_rows(some).arrow(columns))
        sink.close()


@app.command("get")
def get(
    name: Name,
    topic: Topic,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Print the newest value of a topic, unchanged.

    The command works beside a running broker.

    $ siltstone kv get settings plant/limits
    """
    check_topic(topic.encode(errors="surrogateescape"))
    with _reading(name, data) as reader:
        newest: Row | None = None
        for row in reader.read(topic):
            newest = row
        if newest is None:
            raise NotFoundError(
                f"database {name!r} has no row of topic {topic!r}; "
                f"'siltstone kv read {name}' shows all"
            )
        columns = ("topic", "timestamp", "value") if reader.settings.timed else ("topic", "value")
    if json:
        sink = JsonLinesSink(sys.stdout, columns)
        sink.write(batch_of_rows([newest]).arrow(columns))
        sink.close()
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(newest.value)


@contextmanager
def _reading(name: str, data: Data) -> Iterator[KeyValueReader]:
    with open_reading(data) as store:
        places = store.keyvalue_places()
        if name not in places:
            raise NotFoundError(
                f"key-value database {name!r} does not exist in {data} "
                f"(databases: {', '.join(places) or 'none'})"
            )
        with _opened(places[name]) as reader:
            yield reader


@contextmanager
def _opened(place: PurePath) -> Iterator[KeyValueReader]:
    reader = KeyValueReader(open_engine(place))
    try:
        yield reader
    finally:
        reader.close()
