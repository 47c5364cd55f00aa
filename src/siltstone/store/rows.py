"""Rows as people and Arrow see them: columns of a frame, with the topic put together again.

A Batch is a list of pieces, each a range of rows of one stream in one frame, perhaps with some rows
picked out. Nothing is copied before somebody asks for Arrow or for Python rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import UsageError
from siltstone.segment.view import FrameView
from siltstone.store.manifest import SlabId
from siltstone.topic.structure import Stream

QOS_MASK: Final = 0b11
RETAIN: Final = 0b100

SCHEMA: Final = pa.schema(
    [
        pa.field("topic", pa.string(), nullable=False),
        pa.field("timestamp", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("publisher", pa.string(), nullable=False),
        pa.field("qos", pa.uint8(), nullable=False),
        pa.field("retain", pa.bool_(), nullable=False),
        pa.field("properties", pa.binary(), nullable=False),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("shard", pa.uint32(), nullable=False),
        pa.field("generation", pa.uint32(), nullable=False),
        pa.field("stream", pa.uint64(), nullable=False),
        pa.field("serial", pa.uint64(), nullable=False),
    ]
)
COLUMNS: Final = tuple(SCHEMA.names)


class Row(NamedTuple):
    """One message. To append one only topic and value are needed; the store sets the last five."""

    topic: str
    value: bytes
    publisher: str = ""
    qos: int = 0
    retain: bool = False
    properties: bytes = b""
    timestamp_us: int = 0
    shard: int = 0
    generation: int = 0
    stream: int = 0
    serial: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows start to stop of a frame, all of one stream; mask picks some of them."""

    slab: SlabId
    stream: Stream
    frame: FrameView
    start: int
    stop: int
    mask: pa.Array | None = None

    def column(self, name: str) -> pa.Array:
        """Return one column of SCHEMA."""
        array = _READERS[name](self)
        return array if self.mask is None else array.filter(self.mask)


class Batch:
    """Rows that were read, in order."""

    def __init__(self, pieces: Sequence[Piece], num_rows: int) -> None:
        self._pieces = pieces
        self.num_rows = num_rows

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.num_rows

    def table(self, columns: Sequence[str] = COLUMNS) -> pa.Table:
        """Return the rows as a table with a chunk a piece. Raises: UsageError for an unknown
        column.
        """
        schema = schema_of(columns)
        batches = [
            pa.RecordBatch.from_arrays([piece.column(name) for name in columns], schema=schema)
            for piece in self._pieces
        ]
        return pa.Table.from_batches(batches, schema=schema)

    def arrow(self, columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
        """Return the rows as one record batch; a single piece is not copied."""
        schema = schema_of(columns)
        chunks = [[piece.column(name) for piece in self._pieces] for name in columns]
        arrays = [
            parts[0] if len(parts) == 1 else pa.concat_arrays(parts or [pa.array([], field.type)])
            for parts, field in zip(chunks, schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def rows(self) -> list[Row]:
        """Return the rows as Python values."""
        return rows_of(self.arrow(ROW_COLUMNS))


def _topic(piece: Piece) -> pa.Array:
    return join_topics(piece.stream, piece.frame.varying(piece.start, piece.stop))


def _timestamp(piece: Piece) -> pa.Array:
    return piece.frame.timestamps(piece.start, piece.stop).view(SCHEMA.field("timestamp").type)


def _qos(piece: Piece) -> pa.Array:
    flags = piece.frame.flags(piece.start, piece.stop)
    if isinstance(flags, int):
        return _constant(flags & QOS_MASK, pa.uint8(), piece.stop - piece.start)
    return pc.bit_wise_and(flags, pa.scalar(QOS_MASK, pa.uint8()))


def _retain(piece: Piece) -> pa.Array:
    flags = piece.frame.flags(piece.start, piece.stop)
    if isinstance(flags, int):
        return _constant(bool(flags & RETAIN), pa.bool_(), piece.stop - piece.start)
    kept = pc.bit_wise_and(flags, pa.scalar(RETAIN, pa.uint8()))
    return pc.not_equal(kept, pa.scalar(0, pa.uint8()))


_READERS: Final[dict[str, Callable[[Piece], pa.Array]]] = {
    "topic": _topic,
    "timestamp": _timestamp,
    "publisher": lambda piece: piece.frame.publishers(piece.start, piece.stop),
    "qos": _qos,
    "retain": _retain,
    "properties": lambda piece: piece.frame.properties(piece.start, piece.stop),
    "value": lambda piece: piece.frame.values(piece.start, piece.stop),
    "shard": lambda piece: _constant(piece.slab.shard, pa.uint32(), piece.stop - piece.start),
    "generation": lambda piece: _constant(
        piece.slab.generation, pa.uint32(), piece.stop - piece.start
    ),
    "stream": lambda piece: _constant(piece.stream.id, pa.uint64(), piece.stop - piece.start),
    "serial": lambda piece: _serials(
        piece.frame.header.first_serial + piece.start, piece.stop - piece.start
    ),
}


ROW_COLUMNS: Final = (
    "topic",
    "value",
    "publisher",
    "qos",
    "retain",
    "properties",
    "timestamp",
    "shard",
    "generation",
    "stream",
    "serial",
)


def rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Turn a record batch with all columns into Python rows."""
    lists = [
        (
            batch.column(name).view(pa.int64()) if name == "timestamp" else batch.column(name)
        ).to_pylist()
        for name in ROW_COLUMNS
    ]
    return list(map(Row._make, zip(*lists, strict=True)))


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the part of SCHEMA with these columns. Raises: UsageError."""
    if unknown := [name for name in columns if name not in COLUMNS]:
        raise UsageError(f"no such column: {', '.join(unknown)}; there are {', '.join(COLUMNS)}")
    return pa.schema([SCHEMA.field(name) for name in columns])


def join_topics(stream: Stream, varying: pa.Array) -> pa.Array:
    """Put topics together from the fixed levels of a stream and the varying part of each row."""
    if stream.varying_count == 0:
        return pa.repeat(pa.scalar(stream.pattern.decode(), pa.string()), len(varying))
    pieces = [text.decode() for text in _fixed_parts(stream)]
    if stream.varying_count == 1:
        words = [varying]
    else:
        split = pc.split_pattern(varying, "/")
        words = [pc.list_element(split, i) for i in range(stream.varying_count)]
    parts: list[pa.Array | str] = []
    for fixed, word in zip(pieces, words, strict=False):
        parts += [fixed, word]
    parts.append(pieces[-1])
    kept = [part for part in parts if not isinstance(part, str) or part]
    if len(kept) == 1:
        return varying
    return pc.binary_join_element_wise(*kept, "")


def _fixed_parts(stream: Stream) -> list[bytes]:
    """Return what stands before, between and behind the varying levels, slashes included."""
    parts = [b""]
    for number, level in enumerate(stream.levels):
        slash = b"/" if number else b""
        if level == b"+":
            parts[-1] += slash
            parts.append(b"")
        else:
            parts[-1] += slash + level
    return parts


@lru_cache(maxsize=256)
def _repeated(value: int | bool, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), 1 << 14)


def _constant(value: int | bool, kind: pa.DataType, count: int) -> pa.Array:
    shared = _repeated(value, kind)
    if count <= len(shared):
        return shared.slice(0, count)
    return pa.repeat(pa.scalar(value, kind), count)


@lru_cache(maxsize=1)
def _counting() -> pa.Array:
    return pa.array(range(1 << 16), pa.uint64())


def _serials(first: int, count: int) -> pa.Array:
    shared = _counting()
    if count > len(shared):
        return pa.array(range(first, first + count), pa.uint64())
    return pc.add(shared.slice(0, count), pa.scalar(first, pa.uint64()))
