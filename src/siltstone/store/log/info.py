"""Slabs and streams as users see them, and the rows that repair could not save."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from siltstone.store.log.read.scan import Span
from siltstone.store.log.slab import Slab
from siltstone.store.segment.frame import HOLE
from siltstone.store.segment.segment import Segment
from siltstone.store.slab.manifest import SlabId


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabInfo:
    """A slab as users see it. Times are in µs; until is exclusive, and None for the current slab.

    `compacted` is the number of compacted segments, `lost_rows` the number of rows that repair
    could not save, None if it is unknown.
    """

    slab: SlabId
    state: str
    since_us: int
    until_us: int | None
    created_us: int
    rows: int
    size_bytes: int
    segments: int
    streams: int
    compacted: int = 0
    lost_rows: int | None = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """A learned structure, and its number of rows in a slab."""

    slab: SlabId
    stream_id: int
    pattern: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hole:
    """Rows that are lost: repair replaced a damaged frame by a hole.

    They arrived after the row at `timestamp_us`. `rows` is None if their number is unknown.
    """

    slab: SlabId
    first_serial: int
    rows: int | None
    timestamp_us: int

    def __str__(self) -> str:
        lost = "an unknown number of rows" if self.rows is None else f"{self.rows} rows"
        return f"{lost}, from serial {self.first_serial} of slab {self.slab}"


def slab_info(slab: Slab, size_bytes: int) -> SlabInfo:
    """Return the public information about a slab. Raises: CorruptionError."""
    record = slab.record
    return SlabInfo(
        slab=slab.id,
        state=record.state.value,
        since_us=record.since_us,
        until_us=record.until_us,
        created_us=record.created_us,
        rows=slab.row_count(),
        size_bytes=size_bytes,
        segments=len(slab.handles()),
        compacted=len(record.compacted),
        streams=len(slab.stream_rows()),
        lost_rows=lost_rows(holes_of(slab, Span())),
    )


def stream_infos(slab: Slab) -> list[StreamInfo]:
    """Return the learned structures of a slab. Raises: CorruptionError."""
    slab.check_whole()
    # A damaged frame may have contained the edges of a stream; `verify` reports it.
    return [
        StreamInfo(slab=slab.id, stream_id=stream_id, pattern=stream.pattern.decode(), rows=rows)
        for stream_id, rows in sorted(slab.stream_rows().items())
        if (stream := slab.stream(stream_id)) is not None
    ]


def lost_rows(holes: list[Hole]) -> int | None:
    """Return how many rows are lost in total, None if the number is unknown."""
    total = 0
    for hole in holes:
        if hole.rows is None:
            return None
        total += hole.rows
    return total


def holes_of(slab: Slab, span: Span) -> list[Hole]:
    """Return the holes of a slab between two times, in order."""
    return [
        hole
        for handle in slab.handles()
        for hole in _holes(slab.id, handle.segment(), span)
        if span.until_us is None or hole.timestamp_us < span.until_us
    ]


def _holes(slab: SlabId, segment: Segment, span: Span) -> Iterator[Hole]:
    """Yield the holes of a segment; do not search if its index accounts for all rows."""
    index = segment.index
    count = index.frame_count
    counted = sum(index.row_counts[:count]) == sum(index.stream_rows.values())
    # A hole with an unknown number of rows is directly after the state frame.
    numbers = range(1, min(count, 2)) if counted else range(1, count)
    for number in numbers:
        position = index.positions[number]
        header = segment.header_at(position, segment.header.file_bytes)
        if header is None or header.kind != HOLE:
            continue
        # A hole without rows after another hole is the rest of it.
        if header.row_count == 0 and number > 1:
            continue
        is_last = number + 1 == count
        if is_last or index.last_times[number + 1] >= span.since_us:
            yield Hole(
                slab=slab,
                first_serial=header.first_serial,
                rows=header.row_count or None,
                timestamp_us=header.first_timestamp_us,
            )
