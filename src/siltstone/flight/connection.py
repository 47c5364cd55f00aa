"""Python client of a remote store: databases, rows as Arrow, pandas and Polars, and appends.

with siltstone.connect("grpc+tcp://broker:8815") as node:
    table = node.read("plant/+/temp", since="2026-01-01").arrow()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from siltstone.errors import UsageError
from siltstone.flight.client import NodeClient
from siltstone.scan.columns.batches import complete, fetched_columns
from siltstone.scan.columns.schema import COLUMNS, SCHEMA, table_schema
from siltstone.scan.ingest.columns import TAKEN
from siltstone.store.database import Durability
from siltstone.units import SECOND_US

Moment = datetime | str | int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteStream:
    """A learned structure of topics, and the number of its rows."""

    pattern: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """The result of an append; `duplicate` means that all rows had been stored before."""

    rows: int
    duplicate: bool


class RemoteRows:
    """Rows of a read that a node has planned; each iteration fetches them again."""

    def __init__(self, client: NodeClient, tickets: Sequence[bytes], schema: pa.Schema) -> None:
        self._client = client
        self._tickets = tickets
        self.schema = schema

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches, slab after slab, in the order of serials."""
        for ticket in self._tickets:
            for batch in self._client.get(ticket):
                yield complete(batch, self.schema)

    def arrow(self) -> pa.Table:
        """Return all rows as a table."""
        return pa.Table.from_batches(list(self), schema=self.schema)

    def pandas(self) -> Any:
        """Return all rows as a DataFrame of pandas, which must be installed."""
        _installed("pandas")
        return self.arrow().to_pandas()

    def polars(self) -> Any:
        """Return all rows as a DataFrame of Polars, which must be installed."""
        return _installed("polars").from_arrow(self.arrow())


class Connection:
    """A node that serves Flight."""

    def __init__(self, client: NodeClient) -> None:
        self._client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def log_in(self) -> str:
        """Return a token that replaces the login of this connection for an hour.

        The token becomes invalid when the node restarts or reloads its users. Raises: UsageError.
        """
        return self._client.log_in()

    def databases(self) -> list[str]:
        """Return the names of the databases."""
        return [info.descriptor.path[0].decode() for info in self._client.flights()]

    def streams(self, database: str) -> list[RemoteStream]:
        """Return the learned structures of a database. Raises: NotFoundError."""
        return [
            RemoteStream(pattern=info.descriptor.path[1].decode(), rows=info.total_records)
            for info in self._client.flights(database.encode())
        ]

    def read(
        self,
        filter: str | Sequence[str] = "#",  # noqa: A002 - what it is called everywhere else
        *,
        database: str = "",
        since: Moment | None = None,
        until: Moment | None = None,
        columns: Sequence[str] = COLUMNS,
    ) -> RemoteRows:
        """Plan a read of [since, until), up to the current end of the database.

        A row that matches several filters is returned once. A number is µs since 1970.

        Raises: UsageError, NotFoundError, RetryError when the node does not answer.
        """
        if unknown := [name for name in columns if name not in COLUMNS]:
            raise UsageError(f"unknown column {unknown[0]} (supported: {', '.join(COLUMNS)})")
        request: dict[str, Any] = {
            "filter": [filter] if isinstance(filter, str) else list(filter),
            "columns": ",".join(fetched_columns(columns)),
        }
        for name, value in (
            ("database", database),
            ("startTime", since),
            ("endTime", until),
        ):
            if value not in (None, ""):
                request[name] = value if isinstance(value, str) else _time_text(value)
        info = self._client.plan(request)
        tickets = [endpoint.ticket.ticket for endpoint in info.endpoints]
        return RemoteRows(self._client, tickets, table_schema(columns))

    def append(
        self,
        rows: pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]],
        *,
        database: str = "",
        durability: Durability = "synced",
        producer: tuple[str, int] | None = None,
    ) -> Appended:
        """Append rows with topic and payload; return when they have the requested durability.

        If the producer has used the sequence before, the call is acknowledged and not stored again.
        A call with unknown outcome may therefore be repeated, with the same rows in the same order.
        MQTT subscribers receive the rows too.

        Raises: UsageError, InvalidTopicError; RetryError, OutcomeUnknownError.
        """
        table = _table(rows)
        how: dict[str, Any] = {"database": database, "durability": durability}
        if producer is not None:
            how |= {"producer": producer[0], "sequence": producer[1]}
        answers = self._client.put({"append": how}, table.schema, table.to_batches())
        return Appended(
            rows=sum(answer["rows"] for answer in answers),
            duplicate=bool(answers) and all(answer["duplicate"] for answer in answers),
        )


def _installed(name: str) -> Any:
    """Import an optional package. Raises: UsageError."""
    try:
        return import_module(name)
    except ImportError as exc:
        raise UsageError(f"{name} is not installed: pip install {name}") from exc


def _table(rows: pa.Table | pa.RecordBatch | Sequence[Mapping[str, Any]]) -> pa.Table:
    match rows:
        case pa.Table():
            return rows
        case pa.RecordBatch():
            return pa.Table.from_batches([rows])
        case _:
            return _from_rows([dict(row) for row in rows])


def _from_rows(rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Return Python rows as a table with the types of a node. Raises: UsageError."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if unknown := [name for name in names if name not in TAKEN]:
        raise UsageError(f"unknown column {unknown[0]} (supported: {', '.join(TAKEN)})")
    for row in rows:
        if isinstance(row.get("properties"), Mapping):
            row["properties"] = list(row["properties"].items())
        if isinstance(row.get("payload"), str):
            row["payload"] = row["payload"].encode()
    schema = pa.schema([pa.field(name, SCHEMA.field(name).type) for name in names])
    try:
        return pa.Table.from_pylist(list(rows), schema=schema)
    except (pa.ArrowException, TypeError) as exc:
        raise UsageError(f"rows have values of a wrong type: {exc}") from exc


def _time_text(moment: datetime | int) -> str:
    if isinstance(moment, int):
        seconds, micros = divmod(moment, SECOND_US)
        moment = datetime.fromtimestamp(seconds, UTC).replace(microsecond=micros)
    return moment.isoformat()
