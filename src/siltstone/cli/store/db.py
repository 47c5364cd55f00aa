"""`siltstone db`: create, list, show, change and drop databases."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from siltstone.cli.management import manage, note_copy_returns
from siltstone.cli.opening import open_reading, open_writing
from siltstone.cli.options import DATA_DEFAULT, Data, Json, Name, Yes
from siltstone.cli.output.help import App
from siltstone.cli.output.output import (
    add_row,
    confirm_drop,
    facts,
    note,
    say,
    show,
    show_json,
    table,
)
from siltstone.cli.store.settings import (
    as_option,
    parse_changes,
    shown_settings,
    takes_settings,
)
from siltstone.cli.store.slabs import slab_document, slab_table
from siltstone.errors import SiltstoneError, UsageError
from siltstone.manage.databases import ConfigureDatabase, CreateDatabase, NameDatabase
from siltstone.settings.declare import check_values, declared
from siltstone.settings.quantities import format_size
from siltstone.store.database import Database
from siltstone.store.log.info import SlabInfo
from siltstone.store.slab.settings import FIXED, DatabaseSettings

app = App("Create, list, inspect, change and drop databases.", "siltstone db list")


def _create(
    name: Name, settings: dict[str, Any], data: Data = DATA_DEFAULT, json: Json = False
) -> None:
    """Create a database.

    The data directory is created if it does not exist. If the broker is running, it creates the
    database. Times take units (ms, s, m, h, d, w), sizes too (KiB, MiB, GiB).

    $ siltstone db create sensors
    $ siltstone db create sensors --rotate 1d --retain 30d --compression zstd
    """
    check_values(DatabaseSettings, settings, name=as_option)
    known = manage(
        data, "db-create", CreateDatabase(database=name, settings=settings), creates=True
    )
    if json:
        show_json({"database": name, "settings": known.settings})
    else:
        say(f"created database {name} in {data}")


create = app.command("create")(takes_settings(_create, DatabaseSettings))


@app.command("list")
def list_databases(data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """List the databases with their rows and sizes.

    The command works beside a running broker.

    $ siltstone db list
    """
    with open_reading(data) as store:
        documents = [_summary(store.database(name)) for name in store.names()]
        lost = store.without_manifest()
    for name in lost:
        remedy = f"run 'siltstone verify {name} --repair'"
        note(f"warning: database {name} has lost its manifest, {remedy}")
    if json:
        show_json(documents)
        return
    listed = table(
        "database", "shards", "slabs", "rows", "size", right=("shards", "slabs", "rows", "size")
    )
    for each in documents:
        counts = (f"{each[field]:,}" for field in ("shards", "slab_count", "rows"))
        add_row(listed, (each["database"], *counts, format_size(each["size_bytes"])))
    if documents:
        show(listed)
    elif not lost:
        say(f"no databases in {data}; create one with 'siltstone db create NAME'")


def _summary(database: Database, slabs: list[SlabInfo] | None = None) -> dict[str, Any]:
    known = database.slabs() if slabs is None else slabs
    return {
        "database": database.name,
        "shards": database.settings.shards,
        "slab_count": len(known),
        "rows": sum(slab.rows for slab in known),
        "size_bytes": sum(slab.size_bytes for slab in known),
    }


@app.command("info")
def info(
    name: Name,
    recover: Annotated[
        bool,
        typer.Option(
            "--recover",
            help="Open for writing, complete the recovery after a crash, and report it.",
        ),
    ] = False,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Show the settings, slabs and totals of a database.

    The command works beside a running broker. With --recover it needs the data directory for
    itself.

    $ siltstone db info messages
    """
    with open_writing(data) if recover else open_reading(data) as store:
        database = store.database(name)
        slabs = database.slabs()
        summary = _summary(database, slabs)
        pending = database.pending_settings()
        recovery = [
            {
                "slab": str(report.slab),
                "torn_bytes": report.torn_bytes,
                "rebuilt": list(report.rebuilt),
                "foreign": list(report.foreign),
            }
            for report in database.reports
        ]
    if json:
        show_json(
            summary
            | {
                "settings": database.settings.to_json(),
                "pending": pending,
                "slabs": [slab_document(slab) for slab in slabs],
                "recovery": recovery,
            }
        )
        return
    _show_info(summary, shown_settings(database.settings, pending), slabs, recovery)


def _show_info(
    summary: dict[str, Any],
    settings: list[tuple[str, str]],
    slabs: list[SlabInfo],
    recovery: list[dict[str, Any]],
) -> None:
    totals = [
        ("database", summary["database"]),
        ("rows", f"{summary['rows']:,}"),
        ("size", format_size(summary["size_bytes"])),
    ]
    show(facts(totals + settings))
    say("")
    show(slab_table(slabs))
    if recovery:
        found = table("recovered", "torn", "indexes rebuilt", "foreign files", right=("torn",))
        for report in recovery:
            files = (", ".join(report[kind]) or "none" for kind in ("rebuilt", "foreign"))
            add_row(found, (report["slab"], format_size(report["torn_bytes"]), *files))
        say("")
        show(found)


@app.command("drop")
def drop(
    name: Name,
    yes: Yes = False,
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Delete a database with all its rows.

    A running broker makes the change. It refuses to delete a database that it uses itself, and one
    that is replicated.

    $ siltstone db drop sensors
    """
    is_shared = _is_shared(data, name)
    if not yes:
        with open_reading(data) as store:
            if name in store.names():
                rows = sum(slab.rows for slab in store.database(name).slabs())
                confirm_drop(f"database {name!r}", rows)
    manage(data, "db-drop", NameDatabase(database=name))
    if is_shared:
        note_copy_returns(name)
    if json:
        show_json({"dropped": name})
    else:
        say(f"dropped database {name}")


def _is_shared(data: Path, name: str) -> bool:
    """Return whether a database is replicated; False if it cannot be read."""
    with suppress(SiltstoneError), open_reading(data) as store:
        return name in store.names() and store.database(name).settings.backend != "local"
    return False


@app.command("set")
def set_settings(
    name: Name,
    changes: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME=VALUE…", help="Settings, with the names of the options of 'db create'."
        ),
    ],
    data: Data = DATA_DEFAULT,
    json: Json = False,
) -> None:
    """Change settings of a database.

    The new settings apply to rows that are written later; threshold and compression apply to the
    next generation, which 'siltstone seal' begins at once. If the broker is running, it changes
    them.

    $ siltstone db set messages rotate=1d retain=30d
    """
    parsed = parse_changes(changes)
    with open_reading(data) as store:
        before = store.database(name).settings
    _refuse_fixed(before, parsed)
    known = manage(data, "db-set", ConfigureDatabase(database=name, changes=parsed))
    settings = DatabaseSettings.from_json(known.settings)
    if json:
        document = {"settings": settings.to_json(), "pending": known.pending}
        show_json({"database": name} | document)
    else:
        show(facts(shown_settings(settings, known.pending)))


def _refuse_fixed(settings: DatabaseSettings, changes: dict[str, Any]) -> None:
    """Refuse a change of a fixed setting, and say what to do instead. Raises: UsageError."""
    for field in sorted(FIXED & changes.keys()):
        if changes[field] != getattr(settings, field):
            raise UsageError(
                f"{declared(DatabaseSettings)[field].option} is fixed when a database is created; "
                f"create another database with 'siltstone db create'"
            )
