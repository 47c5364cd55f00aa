"""Rows of a batch as Arrow, or as Python rows.

Rows that were read from the disk stay in the map. Rows that were just committed are converted from
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Final, Protocol, TypeVar, cast

import pyarrow as pa

from siltstone.rows.batch import QOS_BITS, RETAIN
from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.rows.decode import load_parts
from siltstone.store.log.read.frame_rows import FrameRows
from siltstone.store.log.read.pieces import (
    COLUMNS,
    SCHEMA,
    Piece,
    Row,
    make_rows,
    plain_overflow,
    schema_of,
)
from siltstone.store.log.read.selection import stream_ids

T = TypeVar("T")


class Choose(Protocol):
    """Selects some rows of a column."""

    def __call__(self, column: list[T], /) -> list[T]: ...


_QOS: Final = [flags & QOS_BITS for flags in range(256)]
_RETAIN: Final = [flags & RETAIN != 0 for flags in range(256)]
_TIMESTAMP: Final = SCHEMA.field("timestamp").type


def arrow_of(
    batch: StoredBatch, rows: Sequence[int] | None, columns: Sequence[str] = COLUMNS
) -> pa.RecordBatch:
    """Return rows of a batch, None for all of them, with these columns.

    Raises: UsageError for an unknown column, or for more rows than fit into one record batch.
    """
    whole = _whole(batch, columns)
    if rows is None:
        return whole
    if rows and rows[-1] - rows[0] + 1 == len(rows):
        return whole.slice(rows[0], len(rows))
    return whole.take(pa.array(rows, pa.uint32()))


def _whole(batch: StoredBatch, columns: Sequence[str]) -> pa.RecordBatch:
    """Return all rows; converted once, because several feeds often want the same rows."""
    key = tuple(columns)
    made = cast("tuple[tuple[str, ...], pa.RecordBatch] | None", batch.arrow)
    if made is not None and made[0] == key:
        return made[1]
    schema = schema_of(columns)
    if batch.origin is None:
        batch.load()
        arrays = [_MEMORY[name](batch) for name in columns]
    else:
        parts = cast("list[Piece | FrameRows]", batch.origin)
        with plain_overflow():
            arrays = [_joined([_column(part, name) for part in parts]) for name in columns]
    whole = pa.RecordBatch.from_arrays(arrays, schema=schema)
    batch.arrow = (key, whole)
    return whole


def _column(part: Piece | FrameRows, name: str) -> pa.Array:
    if name == "stream" and isinstance(part, Piece):
        return stream_ids(part).view(pa.uint64())
    return part.column(name)


def _joined(parts: list[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _topic(batch: StoredBatch) -> pa.Array:
    words = pa.array(batch.names, pa.binary()).view(pa.string())
    return words.take(pa.array(batch.topic_numbers(), pa.uint32()))


def _constant(value: int, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


def _properties(batch: StoredBatch) -> pa.Array:
    if not batch.properties:
        return pa.repeat(pa.scalar(b"", pa.binary()), batch.count)
    return pa.array(batch.properties, pa.binary())


def _stream(batch: StoredBatch) -> pa.Array:
    return _joined([_constant(stream_id, pa.uint64(), n) for stream_id, n in batch.streams()])


_MEMORY: Final[dict[str, Callable[[StoredBatch], pa.Array]]] = {
    "topic": _topic,
    "timestamp": lambda batch: pa.array(batch.timestamps, pa.int64()).view(_TIMESTAMP),
    "publisher": lambda batch: pa.array(batch.publishers, pa.binary()).view(pa.string()),
    "qos": lambda batch: pa.array([flags & QOS_BITS for flags in batch.flags], pa.uint8()),
    "retain": lambda batch: pa.array([bool(flags & RETAIN) for flags in batch.flags], pa.bool_()),
    "properties": _properties,
    "value": lambda batch: pa.array(batch.values, pa.binary()),
    "shard": lambda batch: _constant(batch.shard, pa.uint32(), batch.count),
    "generation": lambda batch: _constant(batch.generation, pa.uint32(), batch.count),
    "stream": _stream,
    "serial": lambda batch: pa.array(batch.serials, pa.uint64()),
}


def rows_of_batch(batch: StoredBatch, rows: Sequence[int] | None) -> list[Row]:
    """Return rows of a batch, None for all of them, as Python values."""
    if rows is None:
        return _rows(_passing(batch), _all)
    batch.load()
    if rows and rows[-1] - rows[0] + 1 == len(rows):
        part = slice(rows[0], rows[-1] + 1)
        return _rows(batch, lambda column: column[part])
    return _rows(batch, lambda column: [column[row] for row in rows])


def _all(column: list[T]) -> list[T]:
    return column


def _passing(batch: StoredBatch) -> StoredBatch:
    """Return a batch with its lists; lists of rows that were read are not kept in the batch itself.

    A user takes all rows only once. Python's collector would visit lists that stay again and again.
    """
    if batch.loader is None or batch.origin is None:
        batch.load()
        return batch
    lists = StoredBatch(
        batch.shard, batch.generation, batch.start_serial, batch.stop_serial, batch.count
    )
    lists.serials = batch.serials
    lists.stream_loader = batch.stream_loader
    load_parts(cast("list[Piece | FrameRows]", batch.origin), lists)
    return lists


def _rows(batch: StoredBatch, choose: Choose) -> list[Row]:
    """Create rows from the selected values of each column."""
    names = {name: name.decode() for name in batch.names}
    publishers = choose(batch.publishers)
    known = {name: name.decode() for name in set(publishers)}
    flags = choose(batch.flags)
    # Shared values are created once, and no other objects are created between lists and rows.
    return make_rows(
        zip(
            map(names.__getitem__, choose(batch.topics)),
            choose(batch.values),
            map(known.__getitem__, publishers),
            map(_QOS.__getitem__, flags),
            map(_RETAIN.__getitem__, flags),
            choose(batch.properties) if batch.properties else repeat(b""),
            choose(batch.timestamps),
            repeat(batch.shard),
            repeat(batch.generation),
            choose(batch.stream_of_rows()),
            choose(batch.serials),
            strict=False,
        )
    )
