"""`siltstone groups`: list, show, move and drop share groups.

Only the running broker knows a group without durable members.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from siltstone.cli.management import manage
from siltstone.cli.options import DATA_DEFAULT, Data, Json, Yes
from siltstone.cli.output.help import App
from siltstone.cli.output.output import (
    add_row,
    confirm,
    facts,
    say,
    show,
    show_json,
    table,
)
from siltstone.cli.sessions.sessions import (
    COUNT_MAX,
    Database,
    To,
    described,
    looking,
    seconds_text,
)
from siltstone.clock import SystemClock
from siltstone.manage.running import ask_broker, is_served
from siltstone.manage.sessions import MoveGroup, NameGroup, no_group
from siltstone.session.archive.keys import group_id, group_parts
from siltstone.session.archive.records import SavedGroup
from siltstone.session.durable.delivered_source import DeliveredSource
from siltstone.session.durable.lag import group_lag
from siltstone.store.feed.position import Position
from siltstone.units import SECOND_US

app = App("List, inspect, move and drop share groups.", "siltstone groups list")

GroupText = Annotated[
    str,
    typer.Argument(
        metavar="$share/NAME/FILTER", help="Name and filter of the group.", show_default=False
    ),
]


@app.command("list")
def list_groups(
    data: Data = DATA_DEFAULT, database: Database = "messages", json: Json = False
) -> None:
    """List share groups: members, backlog and expiry.

    The command works beside a running broker.

    $ siltstone groups list
    """
    live = _live_groups(data)
    with looking(data, database) as (archive, store):
        source = DeliveredSource(store.database(database).feed_source())
        kept = {group_id(group.name, group.filter): group for group in archive.groups()}
        documents = [
            _document(group, source, is_kept=text in kept, count_max=COUNT_MAX)
            for text, group in (live | kept).items()
        ]
    if json:
        show_json(documents)
    elif not documents:
        say(f"no share groups in {data}")
    else:
        columns = ("group", "strategy", "kept", "members", "behind", "by", "ends in")
        shown = table(*columns, right=columns[4:])
        for each in documents:
            add_row(
                shown,
                (
                    each["group"],
                    each["strategy"],
                    "yes" if each["kept"] else "no",
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
    """Show the backlog and the position of a share group.

    The command works beside a running broker.

    $ siltstone groups show '$share/workers/plant/#'
    """
    group_parts(group)
    with looking(data, database) as (archive, store):
        kept = archive.group(group)
        found = _live_groups(data).get(group) if kept is None else kept
        if found is None:
            raise no_group(group)
        source = DeliveredSource(store.database(database).feed_source())
        document = _document(found, source, is_kept=kept is not None)
    if json:
        show_json(document)
        return
    show(facts(described(document)))


@app.command("reset")
def reset(
    group: GroupText,
    to: To,
    data: Data = DATA_DEFAULT,
    database: Database = "messages",
    json: Json = False,
) -> None:
    """Move a share group in time, to repeat or to skip messages.

    A running broker makes the change.

    $ siltstone groups reset '$share/workers/plant/#' --to latest
    """
    group_parts(group)
    manage(data, "move-group", MoveGroup(group=group, to=to, database=database))
    if json:
        show_json({"group": group, "moved": True, "to": to})
    else:
        say(f"moved {group}")


@app.command("drop")
def drop(group: GroupText, yes: Yes = False, data: Data = DATA_DEFAULT, json: Json = False) -> None:
    """Delete the position of a share group without members.

    A client that joins later starts a new group. A running broker makes the change.

    $ siltstone groups drop '$share/workers/plant/#'
    """
    group_parts(group)
    if not yes:
        confirm(f"drop {group} with its queued messages")
    if not manage(data, "drop-group", NameGroup(group=group)).root:
        raise no_group(group)
    if json:
        show_json({"group": group, "dropped": True})
    else:
        say(f"dropped {group}")


def _live_groups(data: Data) -> dict[str, SavedGroup]:
    """Return the groups with members, from the running broker; none if no broker runs."""
    if not is_served(data):
        return {}
    groups = {}
    for each in ask_broker(data, {"do": "groups"}):
        name, topic_filter = group_parts(each["group"])
        position = Position({int(at): serial for at, serial in each["position"].items()})
        groups[each["group"]] = SavedGroup(
            name=name, filter=topic_filter, strategy=each["strategy"], position=position
        )
    return groups


def _document(
    group: SavedGroup, source: DeliveredSource, *, is_kept: bool, count_max: int | None = None
) -> dict[str, Any]:
    now_us = SystemClock().now_us()
    lag = group_lag(source, group, now_us, count_max=count_max)
    empty_us = group.empty_since_us
    empty = None if empty_us is None else (now_us - empty_us) / SECOND_US
    return {
        "group": group_id(group.name, group.filter),
        "strategy": group.strategy,
        "kept": is_kept,
        "behind": lag.messages,
        "behind_is_more": lag.is_more,
        "behind_seconds": None if lag.oldest_us is None else (now_us - lag.oldest_us) / SECOND_US,
        "empty_seconds": empty,
        "expires_in_seconds": None if empty is None else group.expiry_seconds - empty,
        "position": group.position.shards(),
    }
