"""`siltstone retained`: list and clear the retained messages of a broker, by filter.

The messages are read from the store. A running broker clears them; without a broker, this command
does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from siltstone.broker.retained.log import LOG_NAME, Retained
from siltstone.broker.retained.management import STEP, clear_some
from siltstone.broker.retained.messages import RetainedMessages
from siltstone.broker.settings.broker import Limits
from siltstone.cli.opening import open_reading, open_writing
from siltstone.cli.options import DATA_DEFAULT, Data, Json, Yes
from siltstone.cli.output.help import App
from siltstone.cli.output.output import (
    add_row,
    confirm,
    counted,
    say,
    show,
    show_json,
    table,
)
from siltstone.clock import SystemClock
from siltstone.errors import UsageError
from siltstone.manage.running import ask_broker, is_served
from siltstone.settings.quantities import format_size
from siltstone.store.directory import Store
from siltstone.topic.grammar import TopicFilter

app = App("List and clear retained messages.", "siltstone retained list 'plant/#'")

Filter = Annotated[
    str,
    typer.Argument(metavar="FILTER", help="Topics, with + and # as in MQTT.", show_default=False),
]


@app.command("list")
def list_retained(
    topic_filter: Filter = "#", data: Data = DATA_DEFAULT, json: Json = False
) -> None:
    """List retained messages.

    The command works beside a running broker.

    $ siltstone retained list
    $ siltstone retained list 'plant/#' --json
    """
    parsed = TopicFilter.parse(topic_filter)
    with open_reading(data) as store:
        found = _find(_load(store, data), parsed)
    if json:
        show_json([_document(message) for message in found])
    elif not found:
        say(f"no retained messages match {topic_filter}")
    else:
        shown = table("topic", "qos", "size", "from", right=("qos", "size"))
        for message in found:
            row = _document(message)
            size = format_size(row["size_bytes"])
            add_row(shown, (row["topic"], str(row["qos"]), size, row["publisher"]))
        show(shown)


@app.command("clear")
def clear(
    topic_filter: Filter, yes: Yes = False, data: Data = DATA_DEFAULT, json: Json = False
) -> None:
    """Delete the retained messages of a topic filter.

    If the broker is running, it deletes them. Subscribers do not receive an empty message.

    $ siltstone retained clear 'plant/#'
    $ siltstone retained clear 'plant/#' --yes
    """
    # Refuse an invalid filter, whether a broker runs or not.
    TopicFilter.parse(topic_filter)
    if is_served(data):
        cleared = _clear_there(data, topic_filter, yes=yes)
    else:
        cleared = _clear_here(data, topic_filter, yes=yes)
    if json:
        show_json({"filter": topic_filter, "cleared": cleared})
    else:
        say(f"deleted {counted(cleared, 'retained message')} of {topic_filter}")


def _clear_there(data: Path, topic_filter: str, *, yes: bool) -> int:
    """Clear the messages through the running broker."""
    if not yes:
        count = ask_broker(data, {"do": "count-retained", "filter": topic_filter})
        _confirm(topic_filter, int(count))
    return int(ask_broker(data, {"do": "clear-retained", "filter": topic_filter}))


def _clear_here(data: Path, topic_filter: str, *, yes: bool) -> int:
    """Clear the messages in a store that no broker has open."""
    with open_writing(data) as store:
        retained = _load(store, data)
        topics = [message.topic for message in _find(retained, TopicFilter.parse(topic_filter))]
        if not yes:
            _confirm(topic_filter, len(topics))
        for first in range(0, len(topics), STEP):
            _, ticket = clear_some(retained, topics[first : first + STEP])
            if ticket is not None:
                ticket.wait()
                retained.settled(ticket)
        return len(topics)


def _confirm(topic_filter: str, count: int) -> None:
    if count:
        confirm(f"delete {counted(count, 'retained message')} of {topic_filter!r}")


def _load(store: Store, data: Path) -> RetainedMessages:
    if LOG_NAME not in store.names():
        raise UsageError(
            f"{data} has no retained messages on disk. A broker with persistence = "
            '"snapshot" keeps them in memory: while it runs, list them with siltstone sub '
            "--retained-only, and delete them with siltstone retained clear"
        )
    retained = RetainedMessages(store.database(LOG_NAME), SystemClock(), Limits())
    retained.load()
    return retained


def _find(retained: RetainedMessages, topic_filter: TopicFilter) -> list[Retained]:
    return retained.find(topic_filter, SystemClock().now_us())


def _document(message: Retained) -> dict[str, Any]:
    return {
        "topic": message.topic.decode(),
        "qos": message.flags & 3,
        "size_bytes": len(message.payload),
        "publisher": message.publisher.decode(errors="replace"),
    }
