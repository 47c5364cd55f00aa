"""Rows that other programs appended, announced to the subscribers of the broker in small parts."""

from __future__ import annotations

from functools import partial
from typing import Final

from siltstone.broker.broker import Broker
from siltstone.broker.publish.external_rows import publish_rows
from siltstone.store.log.write.partition import Columns

# The rows that are sent in one turn of the loop.
_STEP: Final = 1000


def announce_rows(broker: Broker, database: str, name: str, rows: Columns) -> None:
    """Send rows of the broker's database to their subscribers; called from any thread."""
    if name != database:
        return
    for start in range(0, rows.count, _STEP):
        part = _part(rows, slice(start, start + _STEP))
        broker.shell.soon_from_thread(partial(publish_rows, broker, part))


def _part(rows: Columns, wanted: slice) -> Columns:
    publisher, flags, properties = rows.publisher, rows.flags, rows.properties
    return Columns(
        rows.topics[wanted],
        rows.values[wanted],
        publisher if isinstance(publisher, bytes) else publisher[wanted],
        flags if isinstance(flags, int) else flags[wanted],
        None if properties is None else properties[wanted],
    )
