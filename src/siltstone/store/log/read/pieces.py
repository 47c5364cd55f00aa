"""Rows as users and Arrow see them: columns of a frame, without a copy.

A Batch is a list of parts. Most are pieces: each piece is a range of rows of one stream in one
frame, or a selection of such a range. Nothing is copied before the caller asks for Arrow or for
Python rows.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import repeat
from typing import Final, Literal, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import UsageError
from siltstone.rows.batch import QOS_BITS, RETAIN
from siltstone.rows.columns import store_schema
from siltstone.scalars import scalar
from siltstone.store.segment.view import FrameView
from siltstone.store.slab.manifest import SlabId
from siltstone.topic.structure import Stream

_CODES: Final[dict[int, Literal["b", "h", "i", "q"]]] = {1: "b", 2: "h", 4: "i", 8: "q"}

SCHEMA: Final = store_schema()
COLUMNS: Final = tuple(SCHEMA.names)
_TIMESTAMP: Final = SCHEMA.field("timestamp").type


class Row(NamedTuple):
    """One message. To append a row, only topic and value are needed.

    The store sets the last five fields, and refuses to append a row that has them.
    """

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


# A column of one repeated value with a number of rows in this range is a slice of a cached one.
_SHARED_MIN: Final = 1 << 12
_SHARED_MAX: Final = 1 << 16
# Row._make checks the number of fields of every row; here zip has the correct number of columns.
_make_row: Final = partial(tuple.__new__, Row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Rows from start to stop of a frame, all of one stream; `picked` selects some of them, counted
    from start.
    """

    slab: SlabId
    stream: Stream
    frame: FrameView
    start: int
    stop: int
    picked: pa.Array | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows in the piece."""
        return self.stop - self.start if self.picked is None else len(self.picked)

    def column(self, name: str) -> pa.Array:
        """Return one column of SCHEMA."""
        return _READERS[name](self)

    def chosen(self, array: pa.Array) -> pa.Array:
        """Return the picked rows of a column that has all rows."""
        return array if self.picked is None else array.take(self.picked)

    def rows(self) -> list[Row]:
        """Return the rows as Python values."""
        return _piece_rows(self)


@contextmanager
def plain_overflow() -> Iterator[None]:
    """Raise UsageError if a column is too large for one array."""
    try:
        yield
    except (pa.ArrowInvalid, OverflowError) as exc:
        raise UsageError(
            "the rows are too large for one record batch: read fewer rows at a time"
        ) from exc


class BatchPart(Protocol):
    """Some of the rows of a batch: a piece of one frame, or rows of many small frames."""

    @property
    def num_rows(self) -> int:
        """The number of rows."""

    def column(self, name: str) -> pa.Array:
        """Return one column of SCHEMA."""

    def rows(self) -> list[Row]:
        """Return the rows as Python values."""


class Batch:
    """Rows that were read, in order."""

    def __init__(self, parts: Sequence[BatchPart], num_rows: int) -> None:
        self._parts = parts
        self.num_rows = num_rows

    def __len__(self) -> int:
        """Return the number of rows."""
        return self.num_rows

    def table(self, columns: Sequence[str] = COLUMNS) -> pa.Table:
        """Return the rows as a table with one chunk for each frame, or for many small frames.

        Raises: UsageError for an unknown column.
        """
        schema = schema_of(columns)
        with plain_overflow():
            batches = [
                pa.RecordBatch.from_arrays([part.column(name) for name in columns], schema=schema)
                for part in self._parts
            ]
        return pa.Table.from_batches(batches, schema=schema)

    def arrow(self, columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
        """Return the rows as one record batch; the rows of a single frame are not copied."""
        schema = schema_of(columns)
        with plain_overflow():
            chunks = [[part.column(name) for part in self._parts] for name in columns]
            arrays = [
                parts[0]
                if len(parts) == 1
                else pa.concat_arrays(parts or [pa.nulls(0, field.type)])
                for parts, field in zip(chunks, schema, strict=True)
            ]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def rows(self) -> list[Row]:
        """Return the rows as Python values."""
        rows: list[Row] = []
        for part in self._parts:
            rows += part.rows()
        return rows


def _topic(piece: Piece) -> pa.Array:
    numbers = piece.chosen(piece.frame.topic_numbers(piece.start, piece.stop))
    return piece.frame.all_topics().take(numbers)


def _publisher(piece: Piece) -> pa.Array:
    publisher = piece.frame.publisher()
    if publisher is not None:
        return constant(publisher, pa.string(), piece.num_rows)
    numbers = piece.chosen(piece.frame.publisher_numbers(piece.start, piece.stop))
    return piece.frame.publisher_words().take(numbers)


def _timestamp(piece: Piece) -> pa.Array:
    times = piece.frame.timestamps(piece.start, piece.stop).view(_TIMESTAMP)
    return piece.chosen(times)


def _qos(piece: Piece) -> pa.Array:
    flags = piece.frame.flags(piece.start, piece.stop)
    if isinstance(flags, int):
        return constant(flags & QOS_BITS, pa.uint8(), piece.num_rows)
    return qos_of(piece.chosen(flags))


def _retain(piece: Piece) -> pa.Array:
    flags = piece.frame.flags(piece.start, piece.stop)
    if isinstance(flags, int):
        return constant(bool(flags & RETAIN), pa.bool_(), piece.num_rows)
    return retain_of(piece.chosen(flags))


def qos_of(flags: pa.Array) -> pa.Array:
    """Return the QoS from each row's flags."""
    return pc.bit_wise_and(flags, scalar(QOS_BITS, pa.uint8()))


def retain_of(flags: pa.Array) -> pa.Array:
    """Return the retain flag from each row's flags."""
    return pc.not_equal(pc.bit_wise_and(flags, scalar(RETAIN, pa.uint8())), scalar(0, pa.uint8()))


def _serial(piece: Piece) -> pa.Array:
    first = piece.frame.serial_of(piece.start)
    if piece.picked is None:
        return _serials(first, piece.num_rows)
    return pc.add(piece.picked.cast(pa.uint64()), scalar(first, pa.uint64()))


_READERS: Final[dict[str, Callable[[Piece], pa.Array]]] = {
    "topic": _topic,
    "timestamp": _timestamp,
    "publisher": _publisher,
    "qos": _qos,
    "retain": _retain,
    "properties": lambda piece: piece.chosen(piece.frame.properties(piece.start, piece.stop)),
    "value": lambda piece: piece.chosen(piece.frame.values(piece.start, piece.stop)),
    "shard": lambda piece: constant(piece.slab.shard, pa.uint32(), piece.num_rows),
    "generation": lambda piece: constant(piece.slab.generation, pa.uint32(), piece.num_rows),
    "stream": lambda piece: constant(piece.stream.id, pa.uint64(), piece.num_rows),
    "serial": _serial,
}


def make_rows(fields: Iterable[tuple[object, ...]]) -> list[Row]:
    """Return rows with these fields, which must be all fields of Row, in order.

    Python's garbage collector is off meanwhile. Rows are never part of a cycle, but the many new
    objects would make the collector scan all objects of the process again and again.
    """
    if not gc.isenabled():
        # The code that disabled it, another thread here or the program itself, enables it again.
        return list(map(_make_row, fields))
    try:
        gc.disable()
        return list(map(_make_row, fields))
    finally:
        gc.enable()


def _piece_rows(piece: Piece) -> list[Row]:
    """Create Python rows; shared values are created once, numbers are read from the map."""
    frame, count = piece.frame, piece.num_rows
    flags = frame.flags(piece.start, piece.stop)
    shared = isinstance(flags, int)
    times = piece.chosen(frame.timestamps(piece.start, piece.stop))
    first = frame.serial_of(piece.start)
    serials = range(first, first + count) if piece.picked is None else _serial(piece).to_pylist()
    return make_rows(
        zip(
            _topics(piece),
            piece.column("value").to_pylist(),
            _publishers(piece),
            repeat(flags & QOS_BITS) if shared else _qos(piece).to_pylist(),
            repeat(bool(flags & RETAIN)) if shared else _retain(piece).to_pylist(),
            piece.column("properties").to_pylist() if frame.has_properties() else repeat(b""),
            integers(times),
            repeat(piece.slab.shard),
            repeat(piece.slab.generation),
            repeat(piece.stream.id),
            serials,
            strict=False,
        )
    )


def _topics(piece: Piece) -> Iterable[str]:
    words = piece.frame.all_topics()
    numbers = piece.chosen(piece.frame.topic_numbers(piece.start, piece.stop))
    if len(words) > len(numbers):
        topics: list[str] = words.take(numbers).to_pylist()
        return topics
    return map(words.to_pylist().__getitem__, integers(numbers))


def _publishers(piece: Piece) -> Iterable[str]:
    publisher = piece.frame.publisher()
    if publisher is not None:
        return repeat(publisher)
    names = piece.frame.publisher_words().to_pylist()
    numbers = piece.chosen(piece.frame.publisher_numbers(piece.start, piece.stop))
    return map(names.__getitem__, integers(numbers))


def integers(array: pa.Array) -> list[int]:
    """Return the numbers of an array without nulls; many times faster than `to_pylist`."""
    width = array.type.bit_width // 8
    view = memoryview(array.buffers()[1])
    part = view[array.offset * width : (array.offset + len(array)) * width]
    return part.cast(_CODES[width]).tolist()


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """Return the part of SCHEMA with these columns. Raises: UsageError."""
    if isinstance(columns, str) or not isinstance(columns, Iterable):
        raise UsageError(f"columns must be a list of names: type={type(columns).__name__}")
    if unknown := [str(name) for name in columns if name not in COLUMNS]:
        raise UsageError(f"unknown column {', '.join(unknown)} (supported: {', '.join(COLUMNS)})")
    names = list(columns)
    if repeated := [name for name in COLUMNS if names.count(name) > 1]:
        raise UsageError(f"columns must not be repeated: {', '.join(repeated)}")
    return pa.schema([SCHEMA.field(name) for name in names])


@lru_cache(maxsize=256)
def _repeated(value: int | bool | str, kind: pa.DataType) -> pa.Array:
    return pa.repeat(scalar(value, kind), _SHARED_MAX)


def constant(value: int | bool | str, kind: pa.DataType, count: int) -> pa.Array:
    """Return a column of one repeated value."""
    # A slice keeps the whole column alive: too much for many values with few rows each.
    if _SHARED_MIN <= count <= _SHARED_MAX:
        return _repeated(value, kind).slice(0, count)
    return pa.repeat(scalar(value, kind), count)


@lru_cache(maxsize=1)
def _counting() -> pa.Array:
    return pa.arange(0, 1 << 16).view(pa.uint64())


def _serials(first: int, count: int) -> pa.Array:
    shared = _counting()
    parts = [
        pc.add(shared.slice(0, count - start), scalar(first + start, pa.uint64()))
        for start in range(0, count, len(shared))
    ]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts or [shared.slice(0, 0)])
