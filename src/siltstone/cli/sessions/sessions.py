"""`siltstone sessions`: list, show, move and drop durable sessions.

The commands show the last saved state, which is at most a second old. A running broker makes the
changes; without a broker, the command makes them itself.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from siltstone.cli.management import manage
from siltstone.cli.opening import open_reading
from siltstone.cli.options import DATA_DEFAULT, Data, Json, Yes, converted
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
from siltstone.cli.store.kv import open_engine
from siltstone.clock import SystemClock
from siltstone.errors import NotFoundError, UsageError
from siltstone.fs.paths import StorePaths
from siltstone.manage.running import ask_broker, is_served
from siltstone.manage.sessions import MoveSession, NameSession, no_session
from siltstone.session.archive.index import expires_at_us
from siltstone.session.archive.move import Place
from siltstone.session.archive.records import SavedSession
from siltstone.session.archive.view import ArchiveView
from siltstone.session.durable.delivered_source import DeliveredSource
from siltstone.session.durable.lag import Lag, session_lag
from siltstone.settings.quantities import parse_time
from siltstone.store.directory import Store
from siltstone.store.tx.reading import KeyValueReader
from siltstone.units import SECOND_US

app = App("List, inspect, move and drop durable sessions.", "siltstone sessions list")

ClientId = Annotated[
    str, typer.Argument(metavar="CLIENT_ID", help="Client id of the session.", show_default=False)
]
Database = Annotated[
    str,
    typer.Option(
        "--database", metavar="NAME", help="Database in which the broker stores messages."
    ),
]
# A list stops counting here: a larger number does not help its reader.
COUNT_MAX: Final = 100_000


def parse_place(text: str) -> Place:
    """Parse a target position. Raises: UsageError."""
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    return parse_time(text, SystemClock().now_us())


To = Annotated[
    Any,
    typer.Option(
        "--to",
        metavar="earliest|latest|TIME",
        parser=converted(parse_place),
        help="New position: the beginning of the store, its end, or a time.",
    ),
]


@contextmanager
def looking(data: Path, database: str | None) -> Iterator[tuple[ArchiveView, Store]]:
    """Open the archive and the store for reading, also beside a running broker.

    Sessions that were saved for another database are shown at the start of this one.

    Raises: UsageError.
    """
    with open_reading(data) as store:
        place = StorePaths(store.path).commits
        try:
            reader = KeyValueReader(open_engine(place))
        except NotFoundError as exc:
            raise UsageError(f"{data} has no durable sessions") from exc
        try:
            origin = None if database is None else store.database(database).origin
            yield ArchiveView(reader, origin), store
        finally:
            reader.close()


@app.command("list")
def list_sessions(
    data: Data = DATA_DEFAULT, database: Database = "messages", json: Json = False
) -> None:
    """List durable sessions: state, backlog and expiry.

    The command works beside a running broker.

    $ siltstone sessions list
    """
    now_us = SystemClock().now_us()
    is_live = is_served(data)
    with looking(data, database) as (archive, store):
        source = DeliveredSource(store.database(database).feed_source())
        documents = [
            _document(
                saved,
                session_lag(source, saved, now_us, count_max=COUNT_MAX),
                now_us,
                is_live=is_live,
            )
            for client_id in archive.client_ids()
            if (saved := archive.session(client_id)) is not None
        ]
    if json:
        show_json(documents)
        return
    if not documents:
        say(f"no durable sessions in {data}")
        return
    shown = table(
        "client id",
        "state",
        "filters",
        "behind",
        "by",
        "in flight",
        "dropped",
        "ends in",
        right=("filters", "behind", "by", "in flight", "dropped", "ends in"),
    )
    for each in documents:
        add_row(
            shown,
            (
                each["client_id"],
                "connected" if each["connected"] else "away",
                str(len(each["subscriptions"])),
                f"{each['behind']:,}{'+' if each['behind_is_more'] else ''}",
                seconds_text(each["behind_seconds"]),
                str(each["inflight"]),
                f"{each['dropped']:,}",
                seconds_text(each["expires_in_seconds"]),
            ),
        )
    show(shown)


@app.command("show")
def show_session(
    client_id: ClientId,
    data: Data = DATA_DEFAULT,
    database: Database = "messages",
    json: Json = False,
) -> None:
    """Show the subscriptions and the position of a session.

    The command works beside a running broker.

    $ siltstone sessions show my-client
    """
    now_us = SystemClock().now_us()
    is_live = is_served(data)
    with looking(data, database) as (archive, store):
        saved = _known(archive, client_id)
        source = DeliveredSource(store.database(database).feed_source())
        document = _document(saved, session_lag(source, saved, now_us), now_us, is_live=is_live)
    if json:
        show_json(document)
        return
    subscriptions = document.pop("subscriptions")
    shown = described(document)
    shown += [("subscription", f"{one['filter']} (QoS {one['qos']})") for one in subscriptions]
    show(facts(shown))


@app.command("export")
def export_session(client_id: ClientId, data: Data = DATA_DEFAULT) -> None:
    """Print the stored state of a session as JSON.

    Bytes are in base64. The command works beside a running broker.

    $ siltstone sessions export my-client
    """
    with looking(data, None) as (archive, _):
        saved = _known(archive, client_id)
    show_json(_plain(asdict(saved)))


@app.command("kick")
def kick_session(client_id: ClientId, data: Data = DATA_DEFAULT) -> None:
    """Disconnect a client; its session remains.

    The broker must be running.

    $ siltstone sessions kick my-client
    """
    if not is_served(data):
        raise UsageError(f"no broker is running on {data}; start it with 'siltstone serve'")
    if ask_broker(data, {"do": "kick", "client_id": client_id}):
        say(f"disconnected {client_id}")
    else:
        raise NotFoundError(
            f"client {client_id!r} is not connected; 'siltstone sessions list' shows all"
        )


@app.command("drop")
def drop_session(
    client_id: ClientId, yes: Yes = False, data: Data = DATA_DEFAULT, json: Json = False
) -> None:
    """Delete a session with its queued messages.

    A running broker makes the change.

    $ siltstone sessions drop my-client
    """
    if not yes:
        confirm(f"drop the session of {client_id!r} with its queued messages")
    found = manage(data, "drop", NameSession(client_id=client_id)).root
    if not found:
        raise no_session(client_id)
    if json:
        show_json({"client_id": client_id, "dropped": True})
    else:
        say(f"dropped the session of {client_id}")


@app.command("move")
def move(
    client_id: ClientId,
    to: To,
    data: Data = DATA_DEFAULT,
    database: Database = "messages",
    json: Json = False,
) -> None:
    """Move a session in time, to repeat or to skip messages.

    A running broker makes the change.

    $ siltstone sessions move my-client --to earliest
    $ siltstone sessions move my-client --to -1h
    """
    manage(data, "move", MoveSession(client_id=client_id, to=to, database=database))
    if json:
        show_json({"client_id": client_id, "moved": True, "to": to})
    else:
        say(f"moved the session of {client_id}")


def _known(archive: ArchiveView, client_id: str) -> SavedSession:
    saved = archive.session(client_id)
    if saved is None:
        raise no_session(client_id)
    return saved


def _document(saved: SavedSession, lag: Lag, now_us: int, *, is_live: bool) -> dict[str, Any]:
    expires_us = expires_at_us(saved)
    return {
        "client_id": saved.client_id,
        "user": saved.user,
        # A killed broker could not save that its clients were disconnected.
        "connected": saved.connected and is_live,
        "away_seconds": _since(saved.away_since_us, now_us),
        "expires_in_seconds": None if expires_us is None else (expires_us - now_us) / SECOND_US,
        "behind": lag.messages,
        "behind_is_more": lag.is_more,
        "behind_seconds": _since(lag.oldest_us, now_us),
        "inflight": len(saved.inflight),
        "has_will": saved.will is not None,
        # Includes the rows that it will miss when it returns.
        "dropped": saved.dropped + lag.gone,
        "position": saved.position.shards(),
        "subscriptions": [
            {"filter": one.filter, "qos": one.qos, "identifier": one.identifier}
            for one in saved.subscriptions
        ],
    }


def _since(at_us: int | None, now_us: int) -> float | None:
    return None if at_us is None else max(0.0, (now_us - at_us) / SECOND_US)


def seconds_text(seconds: float | None) -> str:
    """Return a readable duration; a dash for None."""
    if seconds is None:
        return "-"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"


# The labels of fields that are durations.
_NAMES: Final = {
    "away_seconds": "away for",
    "behind_seconds": "behind by",
    "empty_seconds": "empty for",
    "expires_in_seconds": "expires in",
    "inflight": "in flight",
}


def described(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the labels and the readable values of a session or a share group."""
    more = "+" if document["behind_is_more"] else ""
    return [
        (name, f"{text}{more}" if key == "behind" else text)
        for key, value in document.items()
        if key != "behind_is_more"
        for name, text in [_fact(key, value)]
    ]


def _fact(key: str, value: Any) -> tuple[str, str]:
    name = _NAMES.get(key, key).replace("_", " ")
    if value is None or key.endswith("_seconds"):
        return name, seconds_text(value)
    if isinstance(value, bool):
        return name, "yes" if value else "no"
    if isinstance(value, dict):
        return name, ", ".join(f"shard {shard}: {serial:,}" for shard, serial in value.items())
    return name, f"{value:,}" if isinstance(value, int) else str(value)


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
