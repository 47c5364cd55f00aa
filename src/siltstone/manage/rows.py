"""The verb that appends rows, and rows as bytes: one Arrow record batch.

topic, value     binary
publisher        binary; absent if all rows have the same, which is in the metadata
flags            uint8; absent if all rows have the same, which are in the metadata
properties       binary; absent if no row has any
"""

from __future__ import annotations

from typing import Any, Final, Literal

import pyarrow as pa

from siltstone.errors import UsageError
from siltstone.flight.appending import append_columns
from siltstone.manage.databases import check_foreign, opened
from siltstone.manage.verb import Host, PackedRequest, RequiredRight, Response, Verb
from siltstone.store.log.write.partition import Columns

# The rows that are decoded in one step, during which no other thread runs.
_STEP: Final = 1000
# How long an append waits for space in the queue of a shard.
QUEUE_SECONDS: Final = 30.0
_PUBLISHER: Final = b"publisher"
_FLAGS: Final = b"flags"


class AppendRows(PackedRequest):
    """Rows for a database; the bytes are those of `pack`."""

    database: str
    durability: Literal["synced", "written", "none"] = "synced"
    producer: str | None = None
    sequence: int = 0


class RowsAppended(Response):
    """The number of rows, and whether an earlier call of the producer had stored all of them."""

    rows: int
    duplicate: bool


def append_rows(host: Host, request: AppendRows) -> RowsAppended:
    """Append rows; return when they have the durability. Raises: as `Database.append`."""
    check_foreign(host, request.database, "changed")
    columns = unpack(request.payload)
    producer = None if request.producer is None else (request.producer, request.sequence)
    ticket = append_columns(
        opened(host, request.database),
        columns,
        announce=host.announce,
        durability=request.durability,
        producer=producer,
        timeout=QUEUE_SECONDS,
    )
    ticket.wait()
    return RowsAppended(rows=columns.count, duplicate=ticket.duplicate)


def pack(columns: Columns) -> bytes:
    """Return rows as bytes. Raises: UsageError."""
    metadata: dict[bytes, bytes] = {}
    given: dict[str, Any] = {"topic": columns.topics, "value": columns.values}
    if isinstance(columns.publisher, bytes):
        metadata[_PUBLISHER] = columns.publisher
    else:
        given["publisher"] = columns.publisher
    if isinstance(columns.flags, int):
        metadata[_FLAGS] = b"%d" % columns.flags
    else:
        given["flags"] = columns.flags
    if columns.properties is not None:
        given["properties"] = columns.properties
    try:
        arrays = [
            pa.array(values, pa.uint8() if name == "flags" else pa.binary())
            for name, values in given.items()
        ]
        batch = pa.RecordBatch.from_arrays(arrays, names=list(given))
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as exc:
        raise UsageError(f"rows have values of a wrong type or number: {exc}") from exc
    batch = batch.replace_schema_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    packed: bytes = sink.getvalue().to_pybytes()
    return packed


def unpack(payload: bytes) -> Columns:
    """Read the bytes of `pack`. Raises: UsageError."""
    try:
        with pa.ipc.open_stream(payload) as reader:
            table = reader.read_all()
    except (pa.ArrowException, OSError) as exc:
        raise UsageError(f"the rows are not a stream of Arrow: {exc}") from exc
    names = set(table.column_names)
    if not {"topic", "value"} <= names <= {"topic", "value", "publisher", "flags", "properties"}:
        raise UsageError(f"rows must have topic and value, got columns: {', '.join(names)}")
    metadata = table.schema.metadata or {}
    flags = metadata.get(_FLAGS, b"0")
    if not flags.isdigit() or len(flags) > len(b"255"):
        raise UsageError(f"flags must be a number from 0 to 255, got {flags!r}")
    return Columns(
        _listed(table, "topic"),
        _listed(table, "value"),
        _listed(table, "publisher") if "publisher" in names else metadata.get(_PUBLISHER, b""),
        _listed(table, "flags") if "flags" in names else int(flags),
        _listed(table, "properties") if "properties" in names else None,
    )


def _listed(table: pa.Table, name: str) -> list[Any]:
    """Return a column as a list, in small steps. Raises: UsageError."""
    column = table.column(name)
    wanted = pa.uint8() if name == "flags" else pa.binary()
    if column.type != wanted or column.null_count:
        raise UsageError(f"column {name} must have type {wanted} and no nulls: {column.type}")
    values: list[Any] = []
    for start in range(0, len(column), _STEP):
        values += column.slice(start, _STEP).to_pylist()
    return values


ROW_VERBS: Final = (
    Verb(
        name="append",
        request=AppendRows,
        response=RowsAppended,
        role=RequiredRight.WRITE,
        where="either",
        run=append_rows,
    ),
)
