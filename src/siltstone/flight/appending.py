"""Rows that arrive over Flight: appended to a database and announced to subscribers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock

import pyarrow as pa

from siltstone.errors import UsageError
from siltstone.flight.access import FlightUser
from siltstone.scan.ingest.columns import store_columns
from siltstone.scan.ingest.staging import Staging, StagingResult, WriteBatch
from siltstone.store.database import Database, Durability
from siltstone.store.log.write.partition import Columns
from siltstone.store.writer.ticket import Ticket

# Receives the name of the database and the rows that were stored. Called from any thread.
Announce = Callable[[str, Columns], None]


def append_rows(
    database: Database,
    rows: pa.RecordBatch,
    *,
    visitor: FlightUser,
    announce: Announce,
    durability: Durability = "synced",
    producer: tuple[str, int] | None = None,
) -> Ticket:
    """Append rows of ROWS_SCHEMA, and announce those that were not stored before.

    Raises: UsageError for a topic that the user may not write; the errors of `Database.append`.
    """
    columns = store_columns(rows)
    check_writable(columns.topics, visitor)
    return append_columns(
        database, columns, announce=announce, durability=durability, producer=producer
    )


def append_columns(
    database: Database,
    columns: Columns,
    *,
    announce: Announce,
    durability: Durability = "synced",
    producer: tuple[str, int] | None = None,
    timeout: float | None = None,
) -> Ticket:
    """Append rows, and announce those that were not stored before.

    Raises: the errors of `Database.append`.
    """
    ticket = database.append(columns, durability=durability, producer=producer, timeout=timeout)

    def tell(done: Ticket) -> None:
        if done.error is None:
            fresh = _fresh(columns, done, producer)
            if fresh is not None:
                announce(database.name, fresh)

    ticket.on_done(tell)
    return ticket


def check_writable(topics: Iterable[bytes], visitor: FlightUser) -> None:
    """Check that the user may write to all topics. Raises: UsageError."""
    if visitor.unlimited:
        return
    refused = visitor.unwritable(set(topics))
    if refused:
        topic = min(refused).decode(errors="replace")
        raise UsageError(f"this user may not write to the topic: topic={topic!r}")


def _fresh(columns: Columns, ticket: Ticket, producer: tuple[str, int] | None) -> Columns | None:
    """Return the rows that this call stored; None if an earlier call had stored all of them."""
    if producer is None:
        return columns
    rows = [row for row, time in enumerate(ticket.timestamps()) if time]
    if len(rows) == columns.count:
        return columns
    return _picked(columns, rows) if rows else None


def _picked(columns: Columns, rows: Sequence[int]) -> Columns:
    publisher, flags, properties = columns.publisher, columns.flags, columns.properties
    return Columns(
        [columns.topics[row] for row in rows],
        [columns.values[row] for row in rows],
        publisher if isinstance(publisher, bytes) else [publisher[row] for row in rows],
        flags if isinstance(flags, int) else [flags[row] for row in rows],
        None if properties is None else [properties[row] for row in rows],
    )


class StagedCommits:
    """Commits batches of staged rows, one at a time."""

    def __init__(self, staging: Staging, announce: Announce) -> None:
        self.staging = staging
        self._announce = announce
        self._mutex = Lock()

    def commit(
        self,
        database: Database,
        batch: WriteBatch,
        names: Sequence[str],
        *,
        visitor: FlightUser,
        forget: bool,
    ) -> StagingResult:
        """Append the files of a batch exactly once. Raises: SiltstoneError; then commit again."""

        def append(rows: pa.RecordBatch, producer: tuple[str, int]) -> Ticket:
            return append_rows(
                database, rows, visitor=visitor, announce=self._announce, producer=producer
            )

        with self._mutex:
            return self.staging.commit(batch, names, append, forget=forget)
