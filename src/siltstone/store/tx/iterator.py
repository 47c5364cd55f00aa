"""Saved positions in a stream of keys, and reading from them.

    `SK` 2, shard u32, generation u32, stream u64, since i64, then four times length u32 + bytes:
    database, identity, filter, the key of the last row read

The identity distinguishes a database from a later one of the same name. Version 1 has none.
The rows of a stream are sorted by topic, then by time. A new position starts at a time, inclusive;
a position that has moved continues after its last row. A read that reaches its limit of time
continues at that limit, from the first topic on.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import pyarrow as pa

from siltstone.errors import SlabDroppedError, UsageError
from siltstone.store.kv.keys import TIME_END
from siltstone.store.kv.slab import Found, KeyValueSlab
from siltstone.store.log.iterator import StreamRef
from siltstone.store.log.read.pieces import COLUMNS, Row, schema_of
from siltstone.store.log.read.scan import Status
from siltstone.store.slab.identity import UNIDENTIFIED, DatabaseIdentity, told
from siltstone.store.slab.manifest import SlabId
from siltstone.topic.grammar import TopicFilter

_HEAD: Final = struct.Struct("<2sBIIQq")
_LENGTH: Final = struct.Struct("<I")
_MAGIC: Final = b"SK"
_UNIDENTIFIED: Final = 1
_VERSION: Final = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyIterator:
    """A saved position: the rows of a stream that match a filter, after a key and from a time on.

    `identity` is the identity of the database, empty in a position that an earlier version saved.
    """

    database: str
    slab: SlabId
    stream_id: int
    since_us: int
    filter: TopicFilter
    after: bytes = b""
    identity: str = UNIDENTIFIED

    def to_bytes(self) -> bytes:
        """Return bytes that outlive this process."""
        shard, generation = self.slab.shard, self.slab.generation
        version = _UNIDENTIFIED if self.identity == UNIDENTIFIED else _VERSION
        head = _HEAD.pack(_MAGIC, version, shard, generation, self.stream_id, self.since_us)
        texts = [self.database.encode(), self.filter.text.encode(), self.after]
        if version == _VERSION:
            texts.insert(1, self.identity.encode())
        return head + b"".join(_LENGTH.pack(len(text)) + text for text in texts)

    @classmethod
    def from_bytes(cls, data: bytes) -> KeyIterator:
        """Read the bytes that `to_bytes` returned. Raises: UsageError."""
        if len(data) < _HEAD.size or data[:2] != _MAGIC:
            raise UsageError("invalid saved iterator of keys: the bytes do not come from to_bytes")
        _, version, shard, generation, stream_id, since_us = _HEAD.unpack_from(data)
        if version not in (_UNIDENTIFIED, _VERSION):
            raise UsageError(
                f"unknown version {version} of a saved iterator (supported: {_UNIDENTIFIED}, "
                f"{_VERSION})"
            )
        try:
            count = 4 if version == _VERSION else 3
            database, *identity, text, after = _texts(data[_HEAD.size :], count)
            name = database.decode()
            known = identity[0].decode() if identity else UNIDENTIFIED
        except (struct.error, ValueError) as exc:
            raise UsageError(
                "invalid saved iterator of keys: the bytes do not come from to_bytes"
            ) from exc
        return cls(
            database=name,
            slab=SlabId(shard, generation),
            stream_id=stream_id,
            since_us=since_us,
            filter=TopicFilter.parse(text),
            after=after,
            identity=known,
        )


class RowBatch:
    """Rows that were read, in order."""

    def __init__(self, rows: list[Row]) -> None:
        self._rows = rows

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self._rows)

    def rows(self) -> list[Row]:
        """Return the rows as Python values."""
        return self._rows

    def arrow(self, columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
        """Return the rows as one record batch. Raises: UsageError for an unknown column."""
        schema = schema_of(columns)
        arrays = [
            pa.array(
                [getattr(row, _FIELDS.get(field.name, field.name)) for row in self._rows],
                field.type,
            )
            for field in schema
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


_FIELDS: Final = {"timestamp": "timestamp_us"}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRead:
    """Rows of a stream, the position after them, and the reason why the read ended."""

    iterator: KeyIterator
    batch: RowBatch
    status: Status


def read_on(
    slab: KeyValueSlab, iterator: KeyIterator, rows_max: int, until_us: int | None, *, ended: bool
) -> KeyRead:
    """Read up to rows_max matching rows, all before until_us.

    `ended` means that the slab accepts no more rows.
    """
    matches = [m for m in slab.match(iterator.filter) if m.stream.id == iterator.stream_id]
    done = Status.END if ended else Status.CAUGHT_UP
    if not matches:
        return KeyRead(iterator=iterator, batch=RowBatch([]), status=done)
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
    return KeyRead(iterator=behind, batch=RowBatch(rows), status=status)


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
    place: StreamRef | KeyIterator, *, database: str, identity: DatabaseIdentity
) -> None:
    """Check that a saved position belongs to this database.

    Raises: UsageError for a database of another name; SlabDroppedError for an earlier database of
    this name.
    """
    noun = "stream" if isinstance(place, StreamRef) else "iterator"
    if place.database != database:
        raise UsageError(f"the {noun} belongs to another database: {place.database!r}")
    if not identity.owns(place.identity):
        raise SlabDroppedError(
            f"the {noun} belongs to an earlier database {database!r}, which was dropped: "
            f"{noun}={told(place.identity)} database={identity.text}"
        )


def _texts(data: bytes, count: int) -> list[bytes]:
    texts: list[bytes] = []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(data)
        end = _LENGTH.size + length
        if len(data) < end:
            raise ValueError("cut short")
        texts.append(data[_LENGTH.size : end])
        data = data[end:]
    if data:
        raise ValueError("extra bytes at the end")
    if not all(texts[:-1]):
        raise ValueError("a name is empty")
    return texts
