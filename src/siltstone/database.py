"""One database: append rows, read them back, look after its slabs.

A database that is open for writing has a thread per shard and belongs to the Store that holds the
directory's lock; one that is open for reading looks at the disk again whenever it runs out of rows.
Everything may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import PurePath
from typing import Any, Concatenate, Final, Literal, ParamSpec, TypeVar

import pyarrow as pa

from siltstone.clock import Clock
from siltstone.errors import (
    CorruptionError,
    NotFoundError,
    SiltstoneError,
    SlabDroppedError,
    UsageError,
)
from siltstone.fs.api import FileSystem
from siltstone.store.cook import Call
from siltstone.store.cursor import read_in_time_order
from siltstone.store.iterator import StreamIterator, StreamRef
from siltstone.store.manifest import SlabId
from siltstone.store.opening import RecoveryReport
from siltstone.store.outcome import Ticket
from siltstone.store.partition import Columns, columns_of, split_call
from siltstone.store.producers import producer_key
from siltstone.store.rows import COLUMNS, Batch, Row, schema_of
from siltstone.store.scan import Span, Status, count_rows, read_stream
from siltstone.store.selection import Choice, SlabExtent, choose_frames, extent_of
from siltstone.store.settings import CALL_BYTES_MAX, DatabaseSettings
from siltstone.store.slab import Slab
from siltstone.store.slabs import ReadableSlabs, WritableSlabs
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.structure import Match

Durability = Literal["synced", "written", "none"]
DURABILITIES: Final = ("synced", "written", "none")
P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Rows of a stream, the position behind them, and why they ended there."""

    iterator: StreamIterator
    batch: Batch
    status: Status


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabInfo:
    """A slab as people see it; times are in µs, until is exclusive and None for the current one."""

    slab: SlabId
    state: str
    since_us: int
    until_us: int | None
    created_us: int
    rows: int
    size_bytes: int
    segments: int
    streams: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """A learned structure and how many rows of a slab have it."""

    slab: SlabId
    stream_id: int
    pattern: str
    rows: int


def _again_when_dropped(
    look: Callable[Concatenate[Database, P], T],
) -> Callable[Concatenate[Database, P], T]:
    """Look again when files went under a look because their slab was dropped, here or elsewhere."""

    @wraps(look)
    def looked(self: Database, /, *args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            known = self._slabs.manifest
            try:
                return look(self, *args, **kwargs)
            except (NotFoundError, SlabDroppedError, CorruptionError):
                # Whoever drops a slab takes it out of the manifest first.
                self._slabs.refresh()
                if self._slabs.manifest == known:
                    raise

    return looked


class Database:
    """Rows by topic and time. Made by a Store."""

    def __init__(
        self, fs: FileSystem, clock: Clock, directory: PurePath, *, writable: bool
    ) -> None:
        self._slabs: WritableSlabs | ReadableSlabs
        if writable:
            self._slabs = WritableSlabs(fs, clock, directory)
        else:
            self._slabs = ReadableSlabs(fs, directory)

    @property
    def name(self) -> str:
        """The database's name."""
        return self._slabs.manifest.database

    @property
    def closed(self) -> bool:
        """Whether it was closed; its Store opens it anew when asked."""
        return self._slabs.closed

    @property
    def settings(self) -> DatabaseSettings:
        """The settings in force."""
        return self._slabs.manifest.settings

    @property
    def reports(self) -> list[RecoveryReport]:
        """What opening found in each shard."""
        return self._slabs.reports if isinstance(self._slabs, WritableSlabs) else []

    def append(
        self,
        rows: Iterable[Row] | Columns,
        *,
        durability: Durability = "synced",
        producer: tuple[str, int] | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        """Queue rows; the ticket's `wait` returns when they are as durable as asked.

        `synced` survives a power cut, `written` a crash of this process, `none` is not waited for.
        The rows of one call that go to one shard are stored together or not at all. A producer's
        call with a sequence that it has used before is acknowledged without being stored again.
        `timeout` bounds the wait for room in the queue.

        Raises: UsageError, OverloadedError, PoisonedError, ClosedError; the ticket raises
        InvalidTopicError, StorageFullError, QuotaExceededError.
        """
        if durability not in DURABILITIES:
            raise UsageError(f"durability must be one of {DURABILITIES}: durability={durability!r}")
        slabs = self._writable()
        columns = rows if isinstance(rows, Columns) else columns_of(rows)
        settings = self.settings
        parts = split_call(columns, settings)
        for part in parts:
            _prepare(part.call, durability, producer)
        ticket = Ticket(columns.count, len(parts), waits=durability != "none")
        for number, part in enumerate(parts):
            try:
                slabs.shard(part.shard).submit(part.call, ticket, part.rows, timeout)
            except SiltstoneError as exc:
                if number == 0:
                    raise
                # Others of this call are under way: the ticket tells what became of the whole.
                for rest in parts[number:]:
                    ticket.resolve(exc, rest.rows)
                break
        return ticket

    @_again_when_dropped
    def streams(self, topic_filter: str = "#", since_us: int = 0) -> list[StreamRef]:
        """Return the streams that may hold rows of the filter at or after a time, oldest slab
        first.
        """
        parsed = TopicFilter.parse(topic_filter)
        self._slabs.refresh()
        return [
            StreamRef(
                database=self.name,
                slab=slab.id,
                stream_id=match.stream.id,
                pattern=match.stream.pattern.decode(),
            )
            for slab in self._overlapping(since_us, None)
            for match in slab.match(parsed)
        ]

    @_again_when_dropped
    def iterator(
        self, stream: StreamRef, topic_filter: str = "#", since_us: int = 0
    ) -> StreamIterator:
        """Return the position before the first row of a stream at or after a time.

        Raises: SlabDroppedError, NotFoundError.
        """
        if stream.database != self.name:
            raise UsageError(f"stream belongs to database {stream.database!r}")
        slab = self._slabs.slab(stream.slab)
        if slab.stream(stream.stream_id) is None:
            self._slabs.refresh()
        if slab.stream(stream.stream_id) is None:
            raise NotFoundError(f"slab {stream.slab} has no stream {stream.stream_id:016x}")
        return StreamIterator(
            database=self.name,
            slab=stream.slab,
            stream_id=stream.stream_id,
            next_serial=0,
            since_us=since_us,
            filter=TopicFilter.parse(topic_filter),
        )

    @_again_when_dropped
    def next(
        self, iterator: StreamIterator, rows_max: int = 1000, *, until_us: int | None = None
    ) -> Read:
        """Read on from a position: up to rows_max matching rows, all before until_us.

        Raises: SlabDroppedError, UsageError, CorruptionError.
        """
        if iterator.database != self.name:
            raise UsageError(f"iterator belongs to database {iterator.database!r}")
        if rows_max < 1:
            raise UsageError(f"rows_max must be at least 1: rows_max={rows_max}")
        span = Span(since_us=iterator.since_us, until_us=until_us)
        slab = self._slabs.slab(iterator.slab)
        # Whether the slab has ended must be known before looking for its last rows.
        ended = self._slabs.ended(iterator.slab)
        match = slab.match_stream(iterator.stream_id, iterator.filter)
        if match is None and self._slabs.refresh():
            match = slab.match_stream(iterator.stream_id, iterator.filter)
        if match is None:
            status = Status.END if ended else Status.CAUGHT_UP
            return Read(iterator=iterator, batch=Batch([], 0), status=status)
        found = read_stream(slab, match, iterator.next_serial, span, rows_max, ended=ended)
        if found.status is Status.CAUGHT_UP and not found.num_rows and self._slabs.refresh():
            slab = self._slabs.slab(iterator.slab)
            ended = self._slabs.ended(iterator.slab)
            found = read_stream(slab, match, iterator.next_serial, span, rows_max, ended=ended)
        return Read(
            iterator=iterator.at(found.next_serial),
            batch=Batch(found.pieces, found.num_rows),
            status=found.status,
        )

    @_again_when_dropped
    def read(
        self,
        topic_filter: str = "#",
        *,
        since_us: int = 0,
        until_us: int | None = None,
        columns: Sequence[str] = COLUMNS,
        rows_max: int | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield what matches in [since, until), of all shards and generations, in order of time.

        The end is where the database ended when the read began.
        """
        schema_of(columns)
        if rows_max is not None and rows_max < 0:
            raise UsageError(f"rows_max must be 0 or more: rows_max={rows_max}")
        parsed = TopicFilter.parse(topic_filter)
        span = Span(since_us=since_us, until_us=until_us)
        self._slabs.refresh()
        shards: dict[int, list[tuple[Slab, list[Match], int]]] = {}
        for slab in self._overlapping(since_us, until_us):
            end = slab.next_serial()
            shards.setdefault(slab.id.shard, []).append((slab, slab.match(parsed), end))
        return read_in_time_order(list(shards.values()), span, columns, rows_max)

    @_again_when_dropped
    def count(
        self, topic_filter: str = "#", *, since_us: int = 0, until_us: int | None = None
    ) -> int:
        """Count what matches, from the index wherever whole frames match."""
        parsed = TopicFilter.parse(topic_filter)
        span = Span(since_us=since_us, until_us=until_us)
        self._slabs.refresh()
        return sum(
            count_rows(slab, slab.match(parsed), span)
            for slab in self._overlapping(since_us, until_us)
        )

    @_again_when_dropped
    def extents(self) -> list[SlabExtent]:
        """Return the serials of every slab as of now: one consistent end for each shard."""
        self._slabs.refresh()
        return [extent_of(slab) for slab in self._slabs.all()]

    def choose(
        self,
        slab: SlabId,
        topic_filters: Sequence[str],
        serials: range,
        *,
        since_us: int = 0,
        until_us: int | None = None,
    ) -> Choice:
        """Choose the frames of a slab that may hold rows of any of the filters, for bulk readers.

        Raises: SlabDroppedError, NotFoundError, CorruptionError.
        """
        parsed = [TopicFilter.parse(text) for text in topic_filters]
        span = Span(since_us=since_us, until_us=until_us)
        return choose_frames(self._slabs.slab(slab), parsed, span, serials)

    @_again_when_dropped
    def slabs(self) -> list[SlabInfo]:
        """Return all slabs with their bounds and sizes."""
        self._slabs.refresh()
        return [
            SlabInfo(
                slab=slab.id,
                state=slab.record.state.value,
                since_us=slab.record.since_us,
                until_us=slab.record.until_us,
                created_us=slab.record.created_us,
                rows=slab.row_count(),
                size_bytes=self._slabs.slab_bytes(slab.id),
                segments=len(slab.handles()),
                streams=len(slab.stream_rows()),
            )
            for slab in self._slabs.all()
        ]

    @_again_when_dropped
    def structure(self) -> list[StreamInfo]:
        """Return the learned structures of every slab with their numbers of rows."""
        self._slabs.refresh()
        found: list[StreamInfo] = []
        for slab in self._slabs.all():
            for stream_id, rows in sorted(slab.stream_rows().items()):
                stream = slab.stream(stream_id)
                if stream is None:
                    # Its edges went with a damaged frame; `verify` tells of it.
                    continue
                found.append(
                    StreamInfo(
                        slab=slab.id,
                        stream_id=stream_id,
                        pattern=stream.pattern.decode(),
                        rows=rows,
                    )
                )
        return found

    @_again_when_dropped
    def size_bytes(self) -> int:
        """Return the disk space that all slabs take."""
        return sum(self._slabs.slab_bytes(slab.id) for slab in self._slabs.all())

    def seal(self) -> None:
        """Turn every shard's generation over: what was current takes no more rows."""
        self._writable().seal()

    def sync(self) -> None:
        """Return when every row that was appended before is durable."""
        self._writable().sync()

    def drop_slab(self, slab: SlabId) -> None:
        """Delete a sealed slab with all its rows. Raises: UsageError for a current one,
        NotFoundError.
        """
        self._writable().drop(slab)

    def enforce_retention(self) -> list[SlabId]:
        """Drop the slabs that are too old or too much; return which."""
        return self._writable().enforce_retention()

    def configure(self, **changes: Any) -> DatabaseSettings:
        """Change settings; what is written from now on follows them. Raises: UsageError."""
        return self._writable().configure(changes)

    def refresh(self) -> None:
        """Look at the disk for what another process has written; reads do so by themselves."""
        self._slabs.refresh()

    def close(self) -> None:
        """Store what is queued and end the threads."""
        self._slabs.close()

    def _writable(self) -> WritableSlabs:
        if not isinstance(self._slabs, WritableSlabs):
            raise UsageError("the store was opened for reading only")
        return self._slabs

    def _overlapping(self, since_us: int, until_us: int | None) -> list[Slab]:
        return [
            slab
            for slab in self._slabs.all()
            if (slab.record.until_us is None or slab.record.until_us > since_us)
            and (until_us is None or slab.record.since_us < until_us)
        ]


def _prepare(call: Call, durability: Durability, producer: tuple[str, int] | None) -> None:
    call.wants_sync = durability == "synced"
    if call.size_bytes > CALL_BYTES_MAX:
        raise UsageError(
            f"too much for one append, split it: size_bytes={call.size_bytes} max={CALL_BYTES_MAX}"
        )
    if producer is not None:
        name, sequence = producer
        if not 0 <= sequence < 1 << 64:
            raise UsageError(f"a producer's sequence is 0 or more, of 64 bits: sequence={sequence}")
        call.producer = producer_key(name)
        call.sequence = sequence
