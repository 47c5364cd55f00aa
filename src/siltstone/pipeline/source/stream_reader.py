"""The streaming reader: positions and admission control; rows are read as in a batch query.

Spark calls all methods except `read` in one process that lives as long as the query; the reader
keeps the database open there. A position is the identity of the database and a serial for each
shard. The rows between two positions never change: a batch that is planned again after a crash is
the same batch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from siltstone.clock import Clock, SystemClock
from siltstone.errors import SiltstoneError
from siltstone.fs.api import FileSystem
from siltstone.logs import log
from siltstone.pipeline.source.origins import origin_of
from siltstone.pipeline.source.partitions import SourcePartition
from siltstone.pipeline.source.reader import read_partition
from siltstone.pipeline.source.schema import arrow_schema
from siltstone.pipeline.spark.worker import one_line_errors
from siltstone.scan.columns.schema import table_schema
from siltstone.scan.lag import QueryLag
from siltstone.scan.offsets import resolve
from siltstone.scan.options import ReadOptions
from siltstone.scan.origin import Origin
from siltstone.scan.survey import beyond, own_offsets, refuse_losses
from siltstone.store.feed.position import START, Position
from siltstone.store.log.read.selection import SlabExtent
from siltstone.store.slab.identity import DatabaseIdentity

# The number of rows of each shard in which the oldest unread row is looked for.
_LOOKED_AT: Final = 1024
_LOG: Final = logging.getLogger(__name__)
Serials = Mapping[int, int]


class SiltstoneStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Streams a store from a position on."""

    def __init__(
        self,
        options: ReadOptions,
        schema: StructType,
        fs: FileSystem,
        clock: Clock | None = None,
    ) -> None:
        self._options = options
        # Spark hides an error of this constructor behind one of its own. A wrong schema or option
        # is therefore refused by the first call.
        self._declared = schema
        self._fs = fs
        self._clock = clock or SystemClock()
        self._origin: Origin | None = None
        self._target: dict[int, int] | None = None
        # Ranges without wanted rows, which are not searched again.
        self._passed: dict[int, range] = {}
        # The database that the target and these ranges belong to.
        self._known = ""
        self._waiting_since: float | None = None
        # The end of the micro-batch that was planned last.
        self._reached: Serials | None = None

    @cached_property
    def _schema(self) -> pa.Schema:
        return arrow_schema(self._declared)

    def __getstate__(self) -> dict[str, Any]:
        """Omit open objects: executors only read partitions."""
        return self.__dict__ | {"_origin": None}

    @one_line_errors()
    def initialOffset(self) -> dict[str, Any]:
        """Return the start of a query without a checkpoint."""
        begins = self._options.stream_start()
        origin = self._opened()
        extents = origin.extents(begins)
        if self._options.starting_times is not None:
            return self._position(origin.seek(self._options.starting_times))
        begins = own_offsets(begins, origin.identity(), self._options) or START
        return self._position(resolve(begins, extents))

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the first limit that is set; Spark passes it back unless a trigger overrides it.

        It does not matter which one is returned: all limits that are set apply.
        """
        options = self._options
        if options.rows_per_trigger is not None:
            return ReadMaxRows(options.rows_per_trigger)
        if options.bytes_per_trigger is not None:
            return ReadMaxBytes(options.bytes_per_trigger)
        if options.rows_to_wait_for is not None:
            return ReadMinRows(options.rows_to_wait_for)
        return ReadAllAvailable()

    @one_line_errors()
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch; start if there is nothing to read."""
        end = self._next_end(start, limit)
        self._reached = Position.from_json(end, "offsets").serials
        return end

    def _next_end(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        origin = self._opened()
        # Another site than the one of the last micro-batch may not have read so far.
        extents = origin.extents(Position.from_json(start, "offsets"))
        self._recognize(origin, extents)
        begin = self._checked_start(start, extents)
        end = self._end(begin, extents)
        limited = not isinstance(limit, ReadAllAvailable)
        sought = {
            shard: range(serial, end[shard])
            for shard, serial in self._sought_from(begin, end).items()
            if serial < end[shard]
        }
        admitted = origin.admit(
            sought,
            rows_max=self._options.rows_per_trigger if limited else None,
            bytes_max=self._options.bytes_per_trigger if limited else None,
        )
        ends = {shard: admitted.ends.get(shard, end[shard]) for shard in end}
        if admitted.rows == 0 and not self._moves(start, begin, ends, extents):
            self._passed = {shard: range(begin[shard], ends[shard]) for shard in ends}
            return start
        if limited and self._waits(admitted.rows):
            return start
        self._waiting_since = None
        return self._position(ends)

    @one_line_errors()
    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the end of the store, the source of the query, and its lag.

        Spark shows it in the progress of a query as latestOffset, and does nothing else with it. It
        asks after it has planned a batch, so the lag is what the query will not have read after it.
        """
        origin = self._opened()
        ends = _ends_of(origin.extents())
        lag = QueryLag.between(self._reached or ends, ends)
        if lag.rows:
            oldest_us = self._oldest(origin.identity(), ends)
            lag = lag.since(oldest_us, self._clock.now_us())
        about = {"store": self._options.place, "filter": list(self._options.filters)}
        if self._options.database:
            about["database"] = self._options.database
        return self._position(ends) | {"source": about, "lag": lag.to_json()}

    def _oldest(self, identity: DatabaseIdentity, ends: Serials) -> int | None:
        """Return the time of the oldest row that is not read, if it is among the next few."""
        reached = self._reached or ends
        asked = replace(
            self._options,
            columns=("timestamp",),
            rows_per_batch=_LOOKED_AT,
            partitions_min=1,
            fails_on_loss=False,
        )
        stops = {
            shard: max(reached.get(shard, end), min(end, reached.get(shard, end) + _LOOKED_AT))
            for shard, end in ends.items()
        }
        begins = {shard: min(reached.get(shard, end), end) for shard, end in ends.items()}
        found: list[int] = []
        # A slab may be dropped meanwhile: the next micro-batch says so, not a metric.
        with suppress(SiltstoneError), closing(origin_of(self._fs, asked)) as origin:
            if origin.identity().text == identity.text:
                schema = table_schema(asked.columns)
                for portion in origin.plan_micro_batch(begins, stops).partitions:
                    batches = portion.batches(self._fs, asked, schema)
                    found.extend(pc.min(batch.column(0)).value for batch in batches)
        return min(found, default=None)

    @one_line_errors()
    def prepareForTriggerAvailableNow(self) -> None:
        """Set the end of the query to the current end of the store."""
        origin = self._opened()
        extents = origin.extents()
        self._recognize(origin, extents)
        self._target = _ends_of(extents)

    @one_line_errors()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of a micro-batch. Raises: SlabDroppedError."""
        origin = self._opened()
        extents = origin.extents(Position.from_json(end, "offsets"))
        begin = self._checked_start(start, extents)
        stop = own_offsets(Position.from_json(end, "offsets"), origin.identity(), self._options)
        if stop is None:
            # The database of this batch was dropped. The next batch starts at the beginning of the
            # new one.
            return []
        plan = origin.plan_micro_batch(begin, stop.serials)
        log(_LOG, logging.INFO, "micro_batch_planned", place=self._options.place, plan=plan.report)
        return [SourcePartition(portion) for portion in plan.partitions]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Raises: SlabDroppedError, CorruptionError."""
        return read_partition(self._fs, self._options, self._schema, partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: rows that a query has read stay until retention drops them."""

    def stop(self) -> None:
        """Close the store."""
        if self._origin is not None:
            self._origin.close()
            self._origin = None

    def _recognize(self, origin: Origin, extents: Sequence[SlabExtent]) -> None:
        """Forget what belongs to an earlier database, which was dropped while the query ran."""
        identity = origin.identity().text
        if self._known not in ("", identity):
            self._passed = {}
            if self._target is not None:
                self._target = _ends_of(extents)
        self._known = identity

    def _position(self, serials: Serials) -> dict[str, Any]:
        return Position(serials, identity=self._opened().identity().text).to_json()

    def _opened(self) -> Origin:
        if self._origin is None:
            self._options.stream_start()
            self._schema  # noqa: B018 - it refuses a wrong schema
            self._origin = origin_of(self._fs, self._options)
        return self._origin

    def _checked_start(
        self, start: Mapping[str, Any], extents: Sequence[SlabExtent]
    ) -> dict[int, int]:
        """Return the serials of a position, after checks against losses.

        The store must not end before the position, and it must belong to the same database.
        """
        saved = own_offsets(
            Position.from_json(start, "offsets"), self._opened().identity(), self._options
        )
        begin = resolve(saved or START, extents)
        ends = _ends_of(extents)
        refuse_losses(beyond(begin, extents), self._options)
        return {shard: min(serial, ends[shard]) for shard, serial in begin.items()}

    def _end(self, begin: Serials, extents: Sequence[SlabExtent]) -> dict[int, int]:
        """Return the end of the store for this query; it never decreases."""
        ends = _ends_of(extents)
        if self._target is not None:
            # A shard that was added after the query started is left to the next query.
            ends = {shard: self._target.get(shard, 0) for shard in ends}
        return {shard: max(begin[shard], end) for shard, end in ends.items()}

    def _sought_from(self, begin: Serials, end: Serials) -> dict[int, int]:
        """Return the start of the search: after ranges that are known to have no wanted rows."""
        sought = dict(begin)
        for shard, passed in self._passed.items():
            if sought.get(shard) in passed:
                sought[shard] = min(passed.stop, end[shard])
        return sought

    def _moves(
        self,
        start: Mapping[str, Any],
        begin: Serials,
        end: Serials,
        extents: Sequence[SlabExtent],
    ) -> bool:
        """Return whether the position must move although there are no wanted rows.

        It must move if the store ends before it, or if it belongs to another database. It must also
        move out of a slab that may be dropped: the drop would look like a loss later.
        """
        saved = Position.from_json(start, "offsets")
        is_own = saved.identity is not None and self._opened().identity().owns(saved.identity)
        return (
            not is_own
            or saved.serials != begin
            or any(
                begin[extent.slab.shard] < extent.serials.stop <= end[extent.slab.shard]
                for extent in extents
                if extent.until_us is not None
            )
        )

    def _waits(self, rows: int) -> bool:
        """Return whether to wait for more rows: too few have arrived, and the wait is not over."""
        wanted = self._options.rows_to_wait_for
        if wanted is None or rows >= wanted or self._target is not None:
            return False
        now = self._clock.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        return now - self._waiting_since < self._options.wait_max


def _ends_of(extents: Sequence[SlabExtent]) -> dict[int, int]:
    ends: dict[int, int] = {}
    for extent in extents:
        shard = extent.slab.shard
        ends[shard] = max(ends.get(shard, 0), extent.serials.stop)
    return dict(sorted(ends.items()))
