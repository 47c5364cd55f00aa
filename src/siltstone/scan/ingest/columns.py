"""Conversion of Arrow rows to the columns of the store, with checks.

    topic       string or binary             needed, unless one topic is given for all
    payload     binary or string             needed
    publisher   string                       "" where it is absent or null
    qos         integer, 0 to 2              0
    retain      bool                         false
    properties  map of strings               none; MQTT's own names begin with `mqtt.`
    timestamp   timestamp                    kept as the user property `timestamp`

The store gives every row its own time, which never decreases; the `timestamp` of a row is kept as a
property. The other columns that a read returns (levels, shard, generation, stream, serial) are
accepted and ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import UsageError
from siltstone.rows.batch import RETAIN
from siltstone.scan.columns.properties import UNDECODED, decode, encode
from siltstone.store.log.write.partition import Columns
from siltstone.topic.grammar import check_topic

TAKEN: Final = ("topic", "payload", "publisher", "qos", "retain", "properties", "timestamp")
LEFT_OUT: Final = ("levels", "shard", "generation", "stream", "serial")
# The stored columns of a row, in staged files and over Flight.
ROWS_SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("publisher", pa.binary(), nullable=False),
        pa.field("flags", pa.uint8(), nullable=False),
        pa.field("properties", pa.binary(), nullable=False),
    ]
)
# The limits of one append: large enough for efficient frames, small enough to share the queue with
# others.
ROWS_MAX: Final = 16_384
BYTES_MAX: Final = 8 * 1024 * 1024
_TIMESTAMP: Final = "timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """The values for rows that have none of their own."""

    topic: str = ""
    publisher: str = ""


def check_columns(schema: pa.Schema, given: Given) -> None:
    """Check that a schema can be stored. Raises: UsageError."""
    names = schema.names
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise UsageError(f"column {twice[0]} is repeated")
    for name in names:
        if name not in TAKEN and name not in LEFT_OUT:
            raise UsageError(
                f"unknown column {name} (supported: {', '.join(TAKEN)}): drop or rename it"
            )
    if "topic" not in names and not given.topic:
        raise UsageError("column topic is missing: add it, or set the option topic for all rows")
    if "payload" not in names:
        raise UsageError("column payload is missing")
    for name, (fits, expected) in _TYPES.items():
        if name in names and not fits(_plain(schema.field(name).type)):
            raise UsageError(f"column {name} must be {expected}, got {schema.field(name).type}")


def rows_of(batch: pa.RecordBatch, given: Given) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a batch in ROWS_SCHEMA, in parts that are one append each.

    Raises: UsageError, InvalidTopicError.
    """
    check_columns(batch.schema, given)
    count = batch.num_rows
    columns = {name: _decoded(batch.column(name)) for name in batch.schema.names if name in TAKEN}
    arrays = [
        _topics(columns.get("topic"), given.topic, count),
        _payloads(columns["payload"]),
        _texts(columns.get("publisher"), given.publisher, count),
        _flags(columns.get("qos"), columns.get("retain"), count),
        _properties(columns.get("properties"), columns.get(_TIMESTAMP), count),
    ]
    yield from _parts(pa.RecordBatch.from_arrays(arrays, schema=ROWS_SCHEMA))


def check_rows(rows: pa.RecordBatch) -> None:
    """Check rows in ROWS_SCHEMA from a client, which may not have been made by `rows_of`.

    Raises: UsageError, InvalidTopicError.
    """
    if rows.schema != ROWS_SCHEMA:
        raise UsageError("internal error: staged rows must have the columns of the store")
    for topic in rows.column("topic").unique().to_pylist():
        check_topic(topic)
    for flags in rows.column("flags").unique().to_pylist():
        if flags & ~RETAIN > 2:
            raise UsageError(
                f"flags must be a QoS from 0 to 2, with or without retain: flags={flags}"
            )
    for properties in rows.column("properties").unique().to_pylist():
        if any(name == UNDECODED for name, _ in decode(properties)):
            raise UsageError("properties are not valid MQTT properties")
    try:
        rows.column("publisher").cast(pa.string())
    except pa.ArrowInvalid as exc:
        raise UsageError("publisher is not valid UTF-8") from exc


def store_columns(rows: pa.RecordBatch) -> Columns:
    """Return rows of ROWS_SCHEMA as the columns of an append."""
    topics, values, publishers, flags, properties = (column.to_pylist() for column in rows.columns)
    one_name = len(set(publishers)) == 1
    one_flag = len(set(flags)) == 1
    return Columns(
        topics,
        values,
        publishers[0] if one_name else publishers,
        flags[0] if one_flag else flags,
        properties if any(properties) else None,
    )


def _parts(rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split rows into parts that are small enough for one append."""
    if not rows.num_rows:
        return
    step = min(ROWS_MAX, max(1, rows.num_rows * BYTES_MAX // max(1, rows.nbytes)))
    for start in range(0, rows.num_rows, step):
        yield rows.slice(start, step)


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return (
        _is_text(kind)
        or pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _is_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type)


_TYPES: Final = {
    "topic": (_is_bytes, "text"),
    "payload": (_is_bytes, "binary or text; to_json makes text of a struct"),
    "publisher": (_is_text, "text"),
    "qos": (pa.types.is_integer, "an integer"),
    "retain": (pa.types.is_boolean, "true or false"),
    "properties": (_is_map, "a map of text to text"),
    _TIMESTAMP: (pa.types.is_timestamp, "a timestamp"),
}


def _topics(column: pa.Array | None, topic: str, count: int) -> pa.Array:
    if column is None:
        check_topic(topic.encode())
        return pa.repeat(pa.scalar(topic.encode(), pa.binary()), count)
    if column.null_count:
        raise UsageError(
            f"topic must not be null: row={pc.index(column.is_null(), value=True).as_py()}"
        )
    topics = column.cast(pa.binary())
    for each in topics.unique().to_pylist():
        check_topic(each)
    return topics


def _payloads(column: pa.Array) -> pa.Array:
    if column.null_count:
        row = pc.index(column.is_null(), value=True).as_py()
        raise UsageError(f"payload must not be null: row={row}")
    return column.cast(pa.binary())


def _texts(column: pa.Array | None, text: str, count: int) -> pa.Array:
    if column is None:
        return pa.repeat(pa.scalar(text.encode(), pa.binary()), count)
    return column.cast(pa.binary()).fill_null(text.encode())


def _flags(qos: pa.Array | None, retain: pa.Array | None, count: int) -> pa.Array:
    flags = pa.repeat(pa.scalar(0, pa.uint8()), count)
    if qos is not None:
        known = qos.fill_null(0)
        wrong = pc.or_(pc.less(known, 0), pc.greater(known, 2))
        if pc.any(wrong).as_py():
            row = pc.index(wrong, value=True).as_py()
            raise UsageError(f"qos must be 0, 1 or 2: row={row} qos={known[row].as_py()}")
        flags = known.cast(pa.uint8())
    if retain is not None:
        kept = pc.if_else(retain.fill_null(False), RETAIN, 0).cast(pa.uint8())  # noqa: FBT003
        flags = pc.bit_wise_or(flags, kept)
    return flags


def _properties(column: pa.Array | None, times: pa.Array | None, count: int) -> pa.Array:
    """Encode MQTT properties; rows with equal properties share a cached result."""
    if times is None and (column is None or not len(column.items)):
        return pa.repeat(pa.scalar(b"", pa.binary()), count)
    maps = [None] * count if column is None else column.to_pylist()
    stamps = [None] * count if times is None else _times_text(times)
    encoded: list[bytes] = []
    for row, (items, stamp) in enumerate(zip(maps, stamps, strict=True)):
        named = [] if items is None else [(name, value or "") for name, value in items]
        if stamp is not None:
            named.append((_TIMESTAMP, stamp))
        try:
            encoded.append(encode(tuple(named)))
        except UsageError as exc:
            raise UsageError(f"{exc}: row={row}") from exc
    return pa.array(encoded, pa.binary())


def _times_text(times: pa.Array) -> list[str | None]:
    """Return times as ISO 8601 in UTC, to the µs."""
    stamps = times.cast(pa.timestamp("us", tz="UTC"))
    text: list[str | None] = pc.strftime(stamps, format="%Y-%m-%dT%H:%M:%SZ").to_pylist()
    return text
