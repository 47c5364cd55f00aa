"""Read the rows of many streams in order of time.

Within a slab the frames follow each other in time, and the rows of one frame are sorted by time.
The slabs of a shard follow each other in time too, unless the clock was ahead and was set back. The
rows of several shards, and of the parts of a shard before and after the clock was set back, are
merged, many rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import CorruptionError
from siltstone.store.log.read.compacted import OpenFrames
from siltstone.store.log.read.frame_rows import FrameRows
from siltstone.store.log.read.pieces import Batch, Piece
from siltstone.store.log.read.scan import ReadReport, Span, read_slab
from siltstone.store.log.slab import Slab
from siltstone.topic.structure import Match

# Pieces are collected up to this many rows before they are converted to Arrow and sorted.
_GATHER_ROWS: Final = 16_384
_GATHER_BYTES: Final = 64 * 1024 * 1024

ShardPlan = list[tuple[Slab, Sequence[Match], int]]


def read_in_time_order(
    shards: Sequence[ShardPlan],
    span: Span,
    columns: Sequence[str],
    rows_max: int | None,
    report: ReadReport | None = None,
    opened: OpenFrames | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield record batches with these columns, in rising order of time."""
    wanted = list(columns)
    carried = wanted if "timestamp" in wanted else [*wanted, "timestamp"]
    report = ReadReport() if report is None else report
    sources = [
        _shard_tables(part, span, carried, report, opened)
        for plan in shards
        for part in _rising(plan)
    ]
    merged = sources[0] if len(sources) == 1 else _merge(sources)
    left = rows_max
    for table in merged:
        taken = table if left is None else table.slice(0, min(left, table.num_rows))
        report.rows_returned += taken.num_rows
        yield from taken.select(wanted).combine_chunks().to_batches()
        if left is not None:
            left -= taken.num_rows
            if left <= 0:
                return


def _rising(plan: ShardPlan) -> list[ShardPlan]:
    """Split the slabs of a shard, in order of their generations, where the clock was set back."""
    parts: list[ShardPlan] = []
    until_us: int | None = None
    for each in plan:
        record = each[0].record
        if until_us is None or record.since_us < until_us:
            parts.append([])
        parts[-1].append(each)
        until_us = record.until_us or record.since_us
    return parts


def _shard_tables(
    plan: ShardPlan,
    span: Span,
    columns: Sequence[str],
    report: ReadReport,
    opened: OpenFrames | None,
) -> Iterator[pa.Table]:
    """Yield the rows of one shard in order, some thousands at a time."""
    for slab, matches, end_serial in plan:
        gathered: list[Piece] = []
        rows = held = 0
        streams: set[int] = set()
        damage: CorruptionError | None = None
        found = read_slab(
            slab, matches, span, serials=range(end_serial), report=report, opened=opened
        )
        while True:
            try:
                parts = next(found, None)
            except CorruptionError as exc:
                # First return the rows before the damage.
                damage, parts = exc, None
            if parts is None:
                break
            pieces = [part for part in parts if isinstance(part, Piece)]
            if rows and (rows >= _GATHER_ROWS or held >= _GATHER_BYTES or not pieces):
                yield _gathered(gathered, rows, columns, len(streams))
                gathered, rows, held, streams = [], 0, 0, set()
            if pieces:
                gathered += pieces
                rows += sum(piece.num_rows for piece in pieces)
                streams.update(piece.stream.id for piece in pieces)
                held += _held_bytes(pieces)
            for part in parts:
                if isinstance(part, FrameRows):
                    for some in part.sorted_by_time().pieces(_GATHER_BYTES):
                        yield Batch([some], some.num_rows).table(columns)
        if rows:
            yield _gathered(gathered, rows, columns, len(streams))
        if damage is not None:
            raise damage


def _held_bytes(pieces: Sequence[Piece]) -> int:
    """Estimate the memory in bytes that these pieces of one frame keep in use.

    A compressed frame was decompressed as a whole, even for few rows.
    """
    header = pieces[0].frame.header
    if header.compression:
        return header.body_bytes
    return header.body_bytes * sum(piece.num_rows for piece in pieces) // header.row_count


def _gathered(pieces: Sequence[Piece], rows: int, columns: Sequence[str], streams: int) -> pa.Table:
    batch = Batch(pieces, rows)
    if streams < 2:
        return batch.table(columns)
    # Selecting rows from many small chunks costs many times more than joining the chunks first.
    return _sorted(pa.Table.from_batches([batch.arrow(columns)]), streams)


def _sorted(table: pa.Table, streams: int) -> pa.Table:
    if streams < 2:
        return table
    return table.take(pc.sort_indices(table, sort_keys=[("timestamp", "ascending")]))


def _merge(sources: Sequence[Iterator[pa.Table]]) -> Iterator[pa.Table]:
    """Merge sorted tables: yield the rows that no later row of any source can precede."""
    heads = [(table, source) for source in sources if (table := next(source, None)) is not None]
    while heads:
        bound = min(_last(table) for table, _ in heads)
        ready: list[pa.Table] = []
        rest: list[tuple[pa.Table | None, Iterator[pa.Table]]] = []
        for table, source in heads:
            count = pc.sum(pc.less_equal(table["timestamp"].cast(pa.int64()), bound)).as_py()
            ready.append(table.slice(0, count))
            rest.append((table.slice(count) if count < table.num_rows else None, source))
        yield _sorted(pa.concat_tables(ready).combine_chunks(), len(ready))
        # Read the next tables only now: if a source raises an error, the rows before it are out.
        heads = [
            (table, source)
            for left, source in rest
            if (table := next(source, None) if left is None else left) is not None
        ]


def _last(table: pa.Table) -> int:
    last: int = table["timestamp"][table.num_rows - 1].value
    return last
