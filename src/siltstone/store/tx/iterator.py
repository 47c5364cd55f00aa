"""Reading a stream of keys from a saved position.

The rows of a stream are sorted by topic, then by time. A new position starts at a time, inclusive;
a position that has moved continues after its last row. A read that reaches its limit of time
continues at that limit, from the first topic on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final, TypeAlias

import pyarrow as pa

from siltstone.errors import SlabDroppedError, UsageError
from siltstone.store.kv.keys import TIME_END
from siltstone.store.kv.slab import Found, KeyValueSlab
from siltstone.store.log.iterator import Read, StreamIterator, StreamRef
from siltstone.store.log.read.pieces import SCHEMA, Batch, Row
from siltstone.store.log.read.scan import Status
from siltstone.store.slab.identity import DatabaseIdentity, told
from siltstone.store.slab.manifest import SlabId

# The names that key-value databases had before all layouts shared one iterator.
KeyIterator: TypeAlias = StreamIterator
KeyRead: TypeAlias = Read


class PlainRows:
    """Python rows as a part of a batch."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def column(self, name: str) -> pa.Array:
        """Return one column of SCHEMA."""
        field = _FIELDS.get(name, name)
        return pa.array([getattr(row, field) for row in self._rows], SCHEMA.field(name).type)

    def rows(self) -> list[Row]:
        """Return the rows as Python values."""
        return self._rows


_BATCH_ROWS: Final = 8192
_FIELDS: Final = {"timestamp": "timestamp_us"}


def batch_of_rows(rows: list[Row]) -> Batch:
    """Return rows as the batch of a read."""
    return Batch([PlainRows(rows)] if rows else [], len(rows))


def batches_of_rows(rows: Iterator[Row], columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield rows as record batches. Raises: UsageError for an unknown column."""
    while some := list(islice(rows, _BATCH_ROWS)):
        yield batch_of_rows(some).arrow(columns)


def read_on(
    slab: KeyValueSlab,
    iterator: StreamIterator,
    rows_max: int,
    until_us: int | None,
    *,
    ended: bool,
) -> Read:
    """Read up to rows_max matching rows, all before until_us.

    `ended` means that the slab accepts no more rows.
    """
    matches = [m for m in slab.match(iterator.filter) if m.stream.id == iterator.stream_id]
    done = Status.END if ended else Status.CAUGHT_UP
    if not matches:
        return Read(iterator=iterator, batch=batch_of_rows([]), status=done)
    match = matches[0]
    until = TIME_END if until_us is None else until_us
    view = slab.view()
    try:
        start = iterator.after + b"\x00" if iterator.after else b""
        scan = slab.scan(view, match, iterator.since_us, until, start)
        found = list(islice(scan, rows_max))
        if len(found) == rows_max:
            behind, status = replace(iterator, after=found[-1].key), Status.MORE
        elif until_us is None:
            after = found[-1].key if found else iterator.after
            behind, status = replace(iterator, after=after), done
        else:
            behind = replace(iterator, since_us=max(iterator.since_us, until_us), after=b"")
            rest = slab.scan(view, match, until_us, TIME_END)
            status = done if next(rest, None) is None else Status.LIMIT
    finally:
        view.release()
    rows = [row_of(row, iterator.slab) for row in found]
    return Read(iterator=behind, batch=batch_of_rows(rows), status=status)


def row_of(found: Found, slab: SlabId) -> Row:
    """Return a stored row as users see it."""
    return Row(
        found.topic.decode(),
        found.value,
        timestamp_us=found.time_us,
        shard=slab.shard,
        generation=slab.generation,
        stream=found.stream_id,
    )


def require_key_place(
    place: StreamRef | StreamIterator, *, database: str, identity: DatabaseIdentity
) -> None:
    """Check that a saved position belongs to this database.

    Raises: UsageError for a database of another name; SlabDroppedError for an earlier database of
    this name.
    """
    noun = "stream" if isinstance(place, StreamRef) else "iterator"
    if isinstance(place, StreamIterator) and place.after is None:
        raise UsageError(f"the iterator belongs to a database of messages: {place.database!r}")
    if place.database != database:
        raise UsageError(f"the {noun} belongs to another database: {place.database!r}")
    if not identity.owns(place.identity):
        raise SlabDroppedError(
            f"the {noun} belongs to an earlier database {database!r}, which was dropped: "
            f"{noun}={told(place.identity)} database={identity.text}"
        )
