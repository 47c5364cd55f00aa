"""Conversion of pieces of frames to record batches for Spark, without a step by rows.

Small pieces are joined until they are large enough for a batch, large ones are split. A batch of
one piece refers to the mapped file itself if the column needs no conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import UsageError
from siltstone.scan.columns.levels import level_lists
from siltstone.scan.columns.payloads import decode_payload
from siltstone.scan.columns.properties import empty_maps, property_maps
from siltstone.scan.columns.schema import LEVELS, PAYLOAD
from siltstone.store.log.read.frame_rows import FrameRows
from siltstone.store.log.read.gather import GatheredRows, are_few
from siltstone.store.log.read.pieces import Piece
from siltstone.store.log.read.selection import stream_ids

Part = Piece | FrameRows

# Joining copies the rows. From this size on, larger batches are not cheaper for Spark.
BATCH_ROWS_MIN: Final = 4096
# The limit of memory that a batch keeps in use, with its decompressed frames.
BATCH_BYTES_MAX: Final = 16 * 1024 * 1024


def batches(parts: Iterable[Part], schema: pa.Schema, rows_max: int) -> Iterator[pa.RecordBatch]:
    """Yield the rows of parts, in order, at most rows_max in a batch."""
    held: list[Part] = []
    rows = size = 0
    for whole in parts:
        for part in _cut(whole, rows_max):
            cost = _held_bytes(part)
            if held and (
                rows >= BATCH_ROWS_MIN
                or rows + part.num_rows > rows_max
                or size + cost > BATCH_BYTES_MAX
            ):
                yield assemble(held, schema)
                held, rows, size = [], 0, 0
            held.append(part)
            rows += part.num_rows
            size += cost
    if held:
        yield assemble(held, schema)


def assemble(parts: Sequence[Part], schema: pa.Schema) -> pa.RecordBatch:
    """Return the rows of parts as one batch of exactly this schema."""
    columns: list[pa.Array] = []
    pieces = [part for part in parts if isinstance(part, Piece)]
    whole = len(pieces) == len(parts)
    few = GatheredRows(pieces) if whole and are_few(pieces) else None
    for field in schema:
        try:
            if few is not None:
                columns.append(_gathered(few, field))
            elif whole:
                columns.append(_column(pieces, field))
            else:
                columns.append(_joined([_part_column(part, field) for part in parts]))
        except (pa.ArrowInvalid, OverflowError) as exc:
            raise UsageError(
                f"column {field.name} is too large for one batch, lower rowsPerBatch: {exc}"
            ) from exc
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _column(pieces: Sequence[Piece], field: pa.Field) -> pa.Array:
    if field.name == LEVELS and all(map(_has_few_rows, pieces)):
        return _split(_joined([piece.column("topic") for piece in pieces]), field.type)
    return _joined([_COLUMNS[field.name](piece, field.type) for piece in pieces])


def _part_column(part: Part, field: pa.Field) -> pa.Array:
    if isinstance(part, Piece):
        return _COLUMNS[field.name](part, field.type)
    return _gathered(part, field)


def _gathered(rows: GatheredRows | FrameRows, field: pa.Field) -> pa.Array:
    if field.name == LEVELS:
        return _split(rows.column("topic"), field.type)
    if field.name == PAYLOAD:
        return decode_payload(rows.column("value"), field.type)
    if field.name != "properties":
        # Unsigned integers become signed ones with the same bits.
        return rows.column(field.name).view(field.type)
    if rows.has_properties():
        return property_maps(rows.column("properties"), field.type)
    return empty_maps(rows.num_rows, field.type)


def _joined(parts: Sequence[pa.Array]) -> pa.Array:
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def fetched_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the columns to fetch from a node; `complete` computes the others from them."""
    if LEVELS not in columns:
        return tuple(columns)
    return tuple(dict.fromkeys("topic" if name == LEVELS else name for name in columns))


def complete(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return fetched rows in a schema: with levels, and with decoded payloads."""
    columns: list[pa.Array] = []
    for field in schema:
        if field.name == LEVELS:
            columns.append(_split(batch.column("topic"), field.type))
        elif field.name == PAYLOAD:
            columns.append(decode_payload(batch.column(PAYLOAD), field.type))
        else:
            columns.append(batch.column(field.name))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _held_bytes(piece: Part) -> int:
    """Estimate the memory that a part keeps in use: all of a compressed frame."""
    if isinstance(piece, FrameRows):
        return piece.size_bytes
    header = piece.frame.header
    if header.compression:
        return header.body_bytes
    return header.body_bytes * piece.num_rows // header.row_count


def _cut(piece: Part, rows_max: int) -> Iterator[Part]:
    """Yield a part in parts of at most rows_max rows, and of about the size of a batch."""
    rows = piece.num_rows
    if isinstance(piece, FrameRows):
        size = piece.size_bytes
    else:
        header = piece.frame.header
        size = header.body_bytes * rows // header.row_count
    step = max(1, min(rows_max, rows * BATCH_BYTES_MAX // max(size, 1)))
    if step >= rows:
        yield piece
        return
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        if isinstance(piece, FrameRows):
            yield piece.slice(start, stop)
        elif piece.picked is None:
            yield replace(piece, start=piece.start + start, stop=piece.start + stop)
        else:
            yield replace(piece, picked=piece.picked.slice(start, stop - start))


def _levels(piece: Piece, kind: pa.DataType) -> pa.Array:
    """Split topics into their words, or each topic of the frame once if that is less work."""
    if _has_few_rows(piece):
        return _split(piece.column("topic"), kind)
    numbers = piece.chosen(piece.frame.topic_numbers(piece.start, piece.stop))
    return level_lists(piece.frame.all_topics(), numbers, kind)


def _has_few_rows(piece: Piece) -> bool:
    return piece.num_rows < len(piece.frame.all_topics())


def _split(topics: pa.Array, kind: pa.DataType) -> pa.Array:
    split = pc.split_pattern(topics, "/")
    return pa.ListArray.from_arrays(split.offsets, split.values, type=kind)


def _properties(piece: Piece, kind: pa.DataType) -> pa.Array:
    if not piece.frame.has_properties():
        return empty_maps(piece.num_rows, kind)
    return property_maps(piece.column("properties"), kind)


def _as_stored(name: str) -> Callable[[Piece, pa.DataType], pa.Array]:
    return lambda piece, _: piece.column(name)


def _signed(name: str) -> Callable[[Piece, pa.DataType], pa.Array]:
    """Read an unsigned integer as a signed one with the same bits: Spark has no unsigned types."""
    return lambda piece, kind: piece.column(name).view(kind)


_COLUMNS: Final[Mapping[str, Callable[[Piece, pa.DataType], pa.Array]]] = {
    "topic": _as_stored("topic"),
    "levels": _levels,
    "timestamp": _as_stored("timestamp"),
    "publisher": _as_stored("publisher"),
    "qos": _signed("qos"),
    "retain": _as_stored("retain"),
    "properties": _properties,
    "payload": lambda piece, kind: decode_payload(piece.column("value"), kind),
    "shard": _signed("shard"),
    "generation": _signed("generation"),
    "stream": lambda piece, _: stream_ids(piece),
    "serial": _signed("serial"),
}
