"""Read rows for feeds: one shard of a database from a serial on, through its generations.

Invariants: a read accounts for every serial from its start to its stop. All rows in this range that
match are in the result, and no further row in it will match later. Rows of a dropped slab are
reported as gone. The index skips frames without a wanted stream. All rows of a result are of one
generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from threading import Lock
from typing import Final

import numpy as np

from siltstone.errors import CorruptionError
from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.pool import ReadResult
from siltstone.store.feed.position import Position
from siltstone.store.feed.rows.decode import load_parts, serials_of, streams_of
from siltstone.store.feed.settings import FeedSettings
from siltstone.store.log.read.compacted import CompactedTable
from siltstone.store.log.read.frame_rows import FrameRows
from siltstone.store.log.read.pieces import Piece
from siltstone.store.log.read.scan import Span, read_frames
from siltstone.store.log.read.selection import FrameRun, PieceReader, wanted_of
from siltstone.store.log.slab import Slab
from siltstone.store.segment.chain import SegmentHandle
from siltstone.store.segment.index import FIRST_ROWS
from siltstone.store.segment.table import TABLE_ROWS, FrameTable
from siltstone.store.segment.view import FrameView
from siltstone.store.shard.retry_dropped import retry_when_dropped
from siltstone.store.shard.shard import Role
from siltstone.store.shard.shards import Shards
from siltstone.store.slab.manifest import SlabId
from siltstone.topic.grammar import TopicFilter

Key = tuple[SlabId, frozenset[tuple[bytes, ...]]]

_PLANS_MAX: Final = 1024
# The number of frames of a stream that are listed at once.
_LISTED_MAX: Final = 1024
# The approximate size of a row as Python objects, in addition to its bytes.
_ROW_BYTES: Final = 160


class _Plan:
    """The streams of a slab that filters select, valid until the slab has new streams."""

    __slots__ = ("needed", "reader", "streams", "version")

    def __init__(self, slab: Slab, filters: Sequence[TopicFilter]) -> None:
        slab.load()
        # Read the version first: if a stream is added in between, the plan only looks too old.
        self.version = slab.version
        wanted = wanted_of(match for each in filters for match in slab.match_all(each))
        self.streams = wanted.streams()
        self.needed = wanted.needed()
        self.reader = PieceReader(wanted, Span())


class _Gathering:
    """The rows that a read has found so far, and its limits."""

    __slots__ = ("_settings", "first_timestamp_us", "frames", "parts", "rows", "size_bytes")

    def __init__(self, settings: FeedSettings) -> None:
        self._settings = settings
        self.parts: list[Piece | FrameRows] = []
        self.rows = self.size_bytes = self.frames = self.first_timestamp_us = 0

    def add(self, piece: Piece | None) -> None:
        self.frames += 1
        if piece is not None:
            header = piece.frame.header
            if not self.parts:
                self.first_timestamp_us = header.first_timestamp_us
            self.parts.append(piece)
            self.rows += piece.num_rows
            self.size_bytes += header.body_bytes * piece.num_rows // header.row_count

    def add_rows(self, rows: FrameRows) -> int | None:
        """Add rows of many frames, up to the frame with which the limits are reached.

        Return the serial after that frame; None if all rows were added.
        """
        settings, table = self._settings, rows.table
        if isinstance(table, CompactedTable):
            return self._add_compacted(rows)
        numbers = np.arange(1, rows.num_rows + 1) + self.rows
        sizes = rows.row_sizes().cumsum() + self.size_bytes
        full = (numbers >= settings.read_rows) | (sizes >= settings.read_bytes)
        full |= rows.frames + 1 + self.frames >= settings.read_frames
        stop: int | None = None
        last = len(table) - 1
        if full.any():
            last = int(rows.frames[full.argmax()])
            rows = rows.pick(rows.frames <= last)
            stop = int(table.first_serials[last] + table.row_counts[last])
        self.frames += last + 1
        if rows.num_rows:
            if not self.parts:
                self.first_timestamp_us = int(table.first_times[rows.frames[0]])
            self.parts.append(rows)
            self.rows += rows.num_rows
            self.size_bytes += rows.size_bytes
        return stop

    def _add_compacted(self, rows: FrameRows) -> int | None:
        """Add rows of one large frame, up to the row with which the limits are reached."""
        settings = self._settings
        self.frames += 1
        if not rows.num_rows:
            return None
        numbers = np.arange(1, rows.num_rows + 1) + self.rows
        sizes = rows.row_sizes().cumsum() + self.size_bytes
        full = (numbers >= settings.read_rows) | (sizes >= settings.read_bytes)
        stop: int | None = None
        if full.any():
            # The rows are in order of their serials. No later row may have an earlier time, because
            # the rows of a batch are put in order of time.
            times = rows.times()
            latest = np.maximum.accumulate(times)[:-1]
            earliest = np.minimum.accumulate(times[::-1])[::-1][1:]
            places = np.flatnonzero((latest < earliest) & full[:-1])
            if len(places):
                rows = rows.slice(0, int(places[0]) + 1)
                stop = int(rows.serials()[-1]) + 1
        if not self.parts:
            self.first_timestamp_us = int(rows.times().min())
        self.parts.append(rows)
        self.rows += rows.num_rows
        self.size_bytes += rows.size_bytes
        return stop

    @property
    def rows_first(self) -> int:
        """The number of rows that are read at first."""
        return min(self._settings.read_rows, FIRST_ROWS)

    @property
    def is_full(self) -> bool:
        settings = self._settings
        return (
            self.rows >= settings.read_rows
            or self.size_bytes >= settings.read_bytes
            or self.frames >= settings.read_frames
        )


class StoreSource:
    """The slabs of a database as the source of a hub. From any thread."""

    def __init__(self, shards: Shards) -> None:
        self._log = self._shards = shards
        self._lock = Lock()
        self._plans: dict[Key, _Plan] = {}
        # The number of frames that were opened, for statistics.
        self.frames_read = 0

    def refresh(self) -> None:
        """Read from the disk what another process has written."""
        self._shards.refresh()

    @retry_when_dropped
    def ends(self) -> list[int]:
        """Return for each shard the serial after its last readable row."""
        return [shard.end() for shard in self._shards.listed()]

    @retry_when_dropped
    def followed_ends(self) -> list[int]:
        """Return the ends of the shards whose rows other processes write; 0 for the others."""
        return [shard.end() if shard.role is Role.READER else 0 for shard in self._shards.listed()]

    def reclaimed(self, shard: int) -> int:
        """Return the serial after the last row of a shard that was dropped as delivered."""
        return self._shards.manifest.reclaimed.get(shard, 0)

    def first_serial(self, slab: SlabId) -> int:
        """Return the serial of a slab's first row. Raises: SlabDroppedError, NotFoundError."""
        return self._shards.slab(slab).record.first_serial

    @retry_when_dropped
    def position_at(self, since_us: int) -> Position:
        """Return for each shard the serial of the first frame with a row at or after a time."""
        serials = dict(enumerate(self.ends()))
        for slab in reversed(self._shards.all()):
            if slab.record.until_us is None or slab.record.until_us > since_us:
                for handle in reversed(slab.handles()):
                    index = handle.segment().index
                    number = index.frame_at_time(since_us)
                    if number < index.frame_count:
                        serials[slab.id.shard] = index.serials[number]
        return Position(serials)

    @retry_when_dropped
    def read(
        self, shard: int, start: int, filters: list[TopicFilter], settings: FeedSettings
    ) -> ReadResult:
        """Read from a serial on, as much as the settings allow.

        Raises: CorruptionError, DiskError, ClosedError.
        """
        gathering = _Gathering(settings)
        serial = rows_from = start
        for slab in self._shards.numbered(shard).slabs():
            # Check whether the slab has ended before its last rows are read.
            until = slab.record.until_serial if self._shards.ended(slab.id) else None
            if until is not None and until <= serial:
                continue
            if serial < slab.record.first_serial:
                # The slabs in between were dropped.
                serial = rows_from = slab.record.first_serial
            serial = self._read_slab(slab, serial, until, filters, gathering)
            if gathering.parts or gathering.is_full or until is None:
                break
        if not gathering.parts:
            return ReadResult(start, serial, rows_from, None)
        batch = _batch_of(gathering, rows_from, serial)
        batch.closed_us = slab.record.closed_us or 0
        return ReadResult(start, serial, rows_from, batch)

    def _read_slab(
        self,
        slab: Slab,
        serial: int,
        until: int | None,
        filters: list[TopicFilter],
        gathering: _Gathering,
    ) -> int:
        """Collect rows of a slab from a serial on; return the serial where the search ended."""
        for handle in slab.handles():
            # Rows that become visible later, while frames are listed, are left to the next read.
            end = handle.next_serial
            if end <= serial:
                if not handle.sealed:
                    handle.check_whole()
                continue
            # Streams are known before their rows, so the plan is made after the end was read.
            plan = self._plan(slab, filters)
            segment = handle.segment()
            damaged = segment.damage is not None
            if damaged:
                end = min(end, segment.index.next_serial)
            while serial < end:
                frames = segment.frames_for(
                    plan.streams, range(serial, end), most=_LISTED_MAX, needed=plan.needed
                )
                run = _run_of(slab.id, handle, range(serial, frames.next_serial))
                try:
                    for found in read_frames(
                        segment, frames.numbers, TABLE_ROWS, gathering.rows_first
                    ):
                        stop = self._gather(plan.reader, run, found, gathering)
                        if stop is not None:
                            return stop
                        serial = max(serial, _end_of(found))
                except CorruptionError:
                    if gathering.parts:
                        return serial
                    raise
                serial = frames.next_serial
            if damaged:
                if gathering.parts:
                    # Return the rows before the damage. The next read begins with the damage.
                    return serial
                segment.check_whole()
        return serial if until is None else max(serial, until)

    def _gather(
        self,
        reader: PieceReader,
        run: FrameRun,
        found: FrameView | FrameTable,
        gathering: _Gathering,
    ) -> int | None:
        """Add the wanted rows of frames; return where the search ends if the limits are reached."""
        if isinstance(found, FrameView):
            gathering.add(reader.piece(run, found))
            self.frames_read += 1
            return _end_of(found) if gathering.is_full else None
        before = gathering.frames
        stop = gathering.add_rows(reader.rows(run, found))
        self.frames_read += gathering.frames - before
        if stop is None and gathering.is_full:
            return _end_of(found)
        return stop

    def _plan(self, slab: Slab, filters: list[TopicFilter]) -> _Plan:
        key = (slab.id, frozenset(each.levels for each in filters))
        with self._lock:
            plan = self._plans.get(key)
        if plan is None or plan.version != slab.version:
            plan = _Plan(slab, filters)
            with self._lock:
                if len(self._plans) >= _PLANS_MAX:
                    self._plans.clear()
                self._plans[key] = plan
        return plan


def _run_of(slab: SlabId, handle: SegmentHandle, serials: range) -> FrameRun:
    return FrameRun(
        slab=slab,
        base_serial=handle.base_serial,
        position=0,
        end=0,
        first_serial=handle.base_serial,
        start_serial=serials.start,
        stop_serial=serials.stop,
        complete=False,
    )


def _end_of(found: FrameView | FrameTable) -> int:
    """Return the serial after the last row of frames."""
    if isinstance(found, FrameView):
        return found.serial_of(found.header.row_count)
    return int(found.first_serials[-1] + found.row_counts[-1])


def _batch_of(gathering: _Gathering, start: int, stop: int) -> StoredBatch:
    parts = gathering.parts
    slab = parts[0].slab
    batch = StoredBatch(slab.shard, slab.generation, start, stop, gathering.rows)
    batch.serials = serials_of(parts)
    batch.size_bytes = gathering.size_bytes + _ROW_BYTES * gathering.rows
    batch.first_timestamp_us = gathering.first_timestamp_us
    batch.origin = parts
    batch.loader = partial(load_parts, parts)
    batch.stream_loader = partial(streams_of, parts)
    return batch
