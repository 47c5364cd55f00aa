"""`siltstone groups`: share groups of durable sessions, how far behind they are, moved in time."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from siltstone.cli.control import ask_broker, is_served
from siltstone.cli.options import DATA_DEFAULT, Data, Json
from siltstone.cli.output import add_row, say, show, show_json, table
from siltstone.cli.sessions import (
    COUNT_MAX,
    Database,
    To,
    changing,
    fact,
    looking,
    place_of,
    seconds_text,
)
from siltstone.clock import SystemClock
from siltstone.errors import NotFoundError
from siltstone.feed.reading import StoreSource
from siltstone.session.archive_keys import group_id, group_parts
from siltstone.session.lag import group_lag
from siltstone.session.moving import move_group
from siltstone.session.state import SavedGroup

app = typer.Typer(no_args_is_help=True, help="Look after share groups.")

GroupText = Annotated[
    str,
    typer.Argument(metavar="$share/NAME/FILTER", help="The group.", show_default=False),
]


@app.command("list")
def list_groups(
    data: Data = DATA_DEFAULT, database: Database = "messages", json: Json = False
) -> None:
    """List share groups: how far behind they are, and since when they have no members."""
    with looking(data) as (archive, store):
        source = store.database(database).feed_source()
        documents = [_document(group, source, count_max=COUNT_MAX) for group in archive.groups()]
    if json:
        show_json(documents)
    elif not documents:
        say(f"no share groups in {data}")
    else:
        columns = ("group", "strategy", "members", "behind", "by", "ends in")
        shown = table(*columns, right=columns[3:])
        for each in documents:
            add_row(
                shown,
                (
                    each["group"],
                    each["strategy"],
                    "some" if each["empty_seconds"] is None else "none",
                    f"{each['behind']:,}{'+' if each['behind_is_more'] else ''}",
                    seconds_text(each["behind_seconds"]),
                    seconds_text(each["expires_in_seconds"]),
                ),
            )
        show(shown)


@app.command("show")
def show_group(
    group: GroupText, data: Data = DATA_DEFAULT, database: Database = "messages", json: Json = False
) -> None:
    """Show one group."""
    group_parts(group)
    with looking(data) as (archive, store):
        saved = archive.group(group)
        if saved is None:
            raise NotFoundError(f"there is no share group {group!r}")
        document = _document(saved, store.database(database).feed_source())
    if json:
        show_json(document)
        return
    shown = table("", "")
    for key, value in document.items():
        add_row(shown, fact(key, value))
    show(shown)


@app.command("reset")
def reset(
    group: GroupText, to: To, data: Data = DATA_DEFAULT, database: Database = "messages"
) -> None:
    """Move a group in time: back, to get messages again, or on, to skip them."""
    parts = group_parts(group)
    if is_served(data):
        ask_broker(data, {"do": "move-group", "group": group, "to": to})
    else:
        with changing(data) as (archive, store):
            owned = archive.take_group(*parts)
            if owned is None:
                raise NotFoundError(f"there is no share group {group!r}")
            move_group(owned, place_of(store, database, to))
            owned.save()
    say(f"{group} was moved")


@app.command("drop")
def drop(group: GroupText, data: Data = DATA_DEFAULT) -> None:
    """Forget where a group without members was; one that joins begins a new one."""
    parts = group_parts(group)
    if is_served(data):
        found = ask_broker(data, {"do": "drop-group", "group": group})
    else:
        with changing(data) as (archive, _):
            owned = archive.take_group(*parts)
            found = owned is not None
            if owned is not None:
                owned.drop()
    if not found:
        raise NotFoundError(f"there is no share group {group!r}")
    say(f"{group} was dropped")


def _document(
    group: SavedGroup, source: StoreSource, *, count_max: int | None = None
) -> dict[str, Any]:
    now_us = SystemClock().now_us()
    lag = group_lag(source, group, now_us, count_max=count_max)
    empty_us = group.empty_since_us
    empty = None if empty_us is None else (now_us - empty_us) / 1e6
    return {
        "group": group_id(group.name, group.filter),
        "strategy": group.strategy,
        "behind": lag.messages,
        "behind_is_more": lag.is_more,
        "behind_seconds": None if lag.oldest_us is None else (now_us - lag.oldest_us) / 1e6,
        "empty_seconds": empty,
        "expires_in_seconds": None if empty is None else group.expiry_seconds - empty,
        "position": {str(shard): serial for shard, serial in group.position},
    }
