"""One database: append rows, read them, follow them, manage its slabs.

A database is a list of shards, and a rule that selects the shard of each row. The shards have one
layout: a log, whose rows are only appended, or keys, whose rows are also replaced and deleted, by
transactions. What a layout cannot do raises UsageError.

Each shard has a role in this process. A shard that the process leads has a thread, which writes its
files. A shard that the process only reads looks for new rows on the disk whenever a reader has read
all known ones. All methods may be called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Literal

import pyarrow as pa

from siltstone.errors import NotFoundError, SiltstoneError, UsageError
from siltstone.rows.batch import RowBatch
from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.feeds import CREDIT, Feeds, Wanted, listen
from siltstone.store.feed.position import Position
from siltstone.store.feed.reader import FeedReader
from siltstone.store.feed.reading import StoreSource
from siltstone.store.keyvalue import TIMEOUT, KeyValueDatabase
from siltstone.store.log.arguments import (
    require_durability,
    require_kind,
    require_number,
)
from siltstone.store.log.info import Hole, SlabInfo, StreamInfo, holes_of, slab_info, stream_infos
from siltstone.store.log.iterator import (
    Read,
    StreamIterator,
    StreamRef,
    require_place,
    require_times,
)
from siltstone.store.log.opening import RecoveryReport
from siltstone.store.log.read.compacted import OpenFrames
from siltstone.store.log.read.cursor import read_in_time_order
from siltstone.store.log.read.pieces import COLUMNS, Batch, Row, schema_of
from siltstone.store.log.read.scan import (
    ReadReport,
    Span,
    Status,
    count_chosen,
    count_rows,
    read_stream,
)
from siltstone.store.log.read.selection import Choice, SlabExtent, choose_frames, extent_of
from siltstone.store.log.slab import Slab
from siltstone.store.log.write.frame_builder import ROW_OVERHEAD, Call
from siltstone.store.log.write.partition import (
    Columns,
    batch_of,
    check_batch,
    columns_of,
    may_hold,
    shard_of,
    split_batch,
)
from siltstone.store.shard.block_log import BlockLogs
from siltstone.store.shard.compaction import Compaction
from siltstone.store.shard.compactor import CompactionRunner, Compactor
from siltstone.store.shard.retry_dropped import retry_when_dropped
from siltstone.store.shard.shards import Shards
from siltstone.store.shard.upkeep import Dropping, Reclaimable
from siltstone.store.slab.drops import DropLog
from siltstone.store.slab.manifest import SlabId
from siltstone.store.slab.settings import CALL_BYTES_MAX, DatabaseSettings
from siltstone.store.tx.iterator import batches_of_rows
from siltstone.store.tx.transaction import Transaction
from siltstone.store.writer.producers import producer_of
from siltstone.store.writer.ticket import Ticket, seconds_to_wait
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.structure import Match

Durability = Literal["synced", "written", "none"]


class Database:
    """Rows by topic and time. Created by a Store."""

    def __init__(self, rows: Shards | KeyValueDatabase) -> None:
        """Open a database over the rows of one layout, which it owns from now on."""
        self._keyed = rows if isinstance(rows, KeyValueDatabase) else None
        self._log = None if isinstance(rows, KeyValueDatabase) else rows
        # The identity of this database; a later database of the same name has another one.
        if isinstance(rows, KeyValueDatabase):
            self.origin = rows.origin
        else:
            self.origin = rows.manifest.identity
            self._source = StoreSource(rows)
            heard = partial(listen, rows) if rows.leads else None
            self._feeds = Feeds(
                self._source,
                self.origin,
                heard,
                polls=rows.reads_others,
                is_replicated=rows.manifest.settings.backend != "local",
            )
        self.identity = self.origin.text
        self._opened = OpenFrames()

    @property
    def name(self) -> str:
        """The database's name."""
        return self._shards.manifest.database if self._keyed is None else self._keyed.name

    @property
    def layout(self) -> Literal["log", "keyvalue"]:
        """How the rows are stored."""
        return "log" if self._keyed is None else "keyvalue"

    @property
    def closed(self) -> bool:
        """Whether it was closed; its Store opens it again on request."""
        return self._shards.closed if self._keyed is None else self._keyed.closed

    @property
    def settings(self) -> DatabaseSettings:
        """The current settings of a database of messages.

        Raises: UsageError for a key-value database, which has `Store.keyvalue(name).settings`.
        """
        return self._shards.manifest.settings

    @property
    def reports(self) -> list[RecoveryReport]:
        """The recovery reports of all open shards."""
        return self._shards.reports

    def when_recovered(self, listener: Callable[[RecoveryReport], None]) -> None:
        """Call the listener for every open shard, and for each later one when it is opened."""
        self._writable().when_recovered(listener)

    def append(
        self,
        rows: Iterable[Row] | Columns | RowBatch,
        *,
        durability: Durability = "synced",
        producer: tuple[str, int] | None = None,
        timeout: float | None = None,
    ) -> Ticket:
        """Queue rows; `wait` of the ticket returns when they have the requested durability.

        `synced` survives a power cut, `written` a crash of this process; `none` does not wait. The
        rows of one call that belong to one shard are stored together or not at all.

        A call of a producer with a sequence that was stored before is acknowledged and not stored
        again. If a call is refused with a RetryError, the producer must repeat it: later calls are
        refused until then, as long as the database is open. A producer that does not repeat it must
        continue under another name. If a call is refused because of its contents, its sequence can
        be used again until a later one is stored. `timeout` limits the wait for space in the queue.

        A key-value database stores the rows in one transaction. They may have times of their own.
        It remembers the calls of producers as ids of transactions.

        Raises: UsageError, OverloadedError, PoisonedError, ClosedError; the ticket raises
        InvalidTopicError, StorageFullError, QuotaExceededError.
        """
        if self._keyed is not None:
            return self._keyed.append(
                rows, durability=durability, producer=producer, timeout=timeout
            )
        require_durability(durability)
        seconds = seconds_to_wait(timeout)
        shards = self._writable()
        if shards.manifest.holds_logs:
            raise UsageError(f"database {self.name!r} has topic logs: send messages to a topic log")
        if isinstance(rows, RowBatch):
            batch = rows
            check_batch(batch)
        else:
            batch = batch_of(rows if isinstance(rows, Columns) else columns_of(rows))
        calls = split_batch(batch, self.settings)
        for call in calls:
            _prepare(call, durability, producer)
        ticket = Ticket(len(batch.topics), len(calls), waits=durability != "none")
        leaders = [shards.leader(call.shard) for call in calls]
        for number, call in enumerate(calls):
            try:
                leaders[number].append(call, ticket, seconds)
            except SiltstoneError as exc:
                # No shard may accept a later call of the producer before this one is repeated.
                for leader, rest in zip(leaders[number + 1 :], calls[number + 1 :], strict=True):
                    # A shard that cannot be opened accepts no later call either.
                    with suppress(SiltstoneError):
                        leader.queue().refused(rest)
                if number == 0:
                    raise
                # Other parts of this call are in progress: the ticket reports the result of all.
                for rest in calls[number:]:
                    ticket.resolve(exc, rest.rows)
                break
        return ticket

    def append_here(self, batch: RowBatch) -> Ticket | None:
        """Store a few checked rows on this thread and sync them, if nothing else is under way.

        Return a settled ticket. Return None if nothing was stored: the caller then uses `append`. A
        call takes as long as the disk. If calls are slow, all calls return None for a while.
        """
        shards = self._writable()
        settings = shards.manifest.settings
        if settings.shards != 1 or settings.idle_flush_interval or shards.manifest.holds_logs:
            return None
        call = Call(batch)
        call.size_bytes = batch.size_bytes + ROW_OVERHEAD * len(batch.topics)
        ticket = Ticket(len(batch.topics), 1)
        return ticket if shards.leader(0).commit_here(call, ticket) else None

    def transaction(
        self,
        *,
        shard: int | None = None,
        key: str | None = None,
        generation: int | None = None,
        timeout: float | None = TIMEOUT,
        id: str | None = None,  # noqa: A002 - the usual name
    ) -> Transaction:
        """Begin a transaction of a key-value database, see `KeyValueDatabase.transaction`.

        Raises: UsageError for a database of messages.
        """
        return self.keyvalue.transaction(
            shard=shard, key=key, generation=generation, timeout=timeout, id=id
        )

    @property
    def keyvalue(self) -> KeyValueDatabase:
        """The database with the methods that only key-value databases have: `transact`, `get`,
        `outcome`, `take`.

        Raises: UsageError for a database of messages.
        """
        if self._keyed is None:
            raise UsageError(
                f"the rows of database {self.name!r} are only appended, and never replaced or "
                f"deleted one by one: keep rows that change in a key-value database"
            )
        return self._keyed

    def has_stored(self, producer: tuple[str, int], topic: bytes, publisher: bytes) -> bool:
        """Return whether this call of a producer stored rows of this topic and publisher."""
        name_key, sequence = producer_of(producer)
        key = topic if self.settings.shard_by == "topic" else publisher
        shard = self._writable().leader(shard_of(key, self.settings.shards))
        return shard.queue().committer.has_stored(name_key, sequence)

    @retry_when_dropped
    def streams(self, topic_filter: str = "#", since_us: int = 0) -> list[StreamRef]:
        """Return the streams that may hold rows of the filter at or after a time, oldest slab
        first.
        """
        parsed = TopicFilter.parse(topic_filter)
        require_times(since_us)
        if self._keyed is not None:
            return self._keyed.streams(topic_filter)
        self._shards.refresh()
        found: list[StreamRef] = []
        for slab in self._overlapping(since_us, None):
            matches = slab.match(parsed)
            if not matches:
                # Damage may hide the stream. If there are matches, a read of them meets the damage
                # and reports it.
                slab.check_whole()
            found += [
                StreamRef(
                    database=self.name,
                    slab=slab.id,
                    stream_id=match.stream.id,
                    pattern=match.stream.pattern.decode(),
                    identity=self.identity,
                )
                for match in matches
            ]
        return found

    @retry_when_dropped
    def iterator(
        self, stream: StreamRef, topic_filter: str = "#", since_us: int = 0
    ) -> StreamIterator:
        """Return the position before the first row of a stream at or after a time.

        Raises: SlabDroppedError, NotFoundError.
        """
        require_kind("stream", stream, StreamRef, "one that streams() returned")
        require_times(since_us)
        if self._keyed is not None:
            return self._keyed.iterator(stream, topic_filter, since_us)
        require_place(stream, database=self.name, identity=self.identity)
        slab = self._shards.slab(stream.slab)
        if slab.stream(stream.stream_id) is None:
            self._shards.refresh()
        if slab.stream(stream.stream_id) is None:
            raise NotFoundError(f"unknown stream {stream.stream_id:016x} in slab {stream.slab}")
        return StreamIterator(
            database=self.name,
            slab=stream.slab,
            stream_id=stream.stream_id,
            next_serial=0,
            since_us=since_us,
            filter=TopicFilter.parse(topic_filter),
            identity=self.identity,
        )

    @retry_when_dropped
    def next(
        self, iterator: StreamIterator, rows_max: int = 1000, *, until_us: int | None = None
    ) -> Read:
        """Read from a position: up to rows_max matching rows, all before until_us.

        The status is MORE if rows_max ended the read, LIMIT if until_us did.

        Raises: SlabDroppedError, UsageError, CorruptionError.
        """
        require_kind("iterator", iterator, StreamIterator, "one that iterator() or next() returned")
        if self._keyed is not None:
            return self._keyed.next(iterator, rows_max, until_us=until_us)
        require_number("rows_max", rows_max)
        require_times(iterator.since_us, until_us)
        require_place(iterator, database=self.name, identity=self.identity)
        if not iterator.identity:
            iterator = replace(iterator, identity=self.identity)
        if rows_max < 1:
            raise UsageError(f"rows_max must be at least 1, got {rows_max}")
        span = Span(since_us=iterator.since_us, until_us=until_us)
        slab = self._shards.slab(iterator.slab)
        # Check whether the slab has ended before its last rows are read.
        ended = self._shards.ended(iterator.slab)
        match = slab.match_stream(iterator.stream_id, iterator.filter)
        if match is None and self._shards.refresh():
            match = slab.match_stream(iterator.stream_id, iterator.filter)
        if match is None:
            slab.check_whole()
            status = Status.END if ended else Status.CAUGHT_UP
            return Read(iterator=iterator, batch=Batch([], 0), status=status)
        read = partial(read_stream, opened=self._opened)
        found = read(slab, match, iterator.next_serial, span, rows_max, ended=ended)
        if found.status is Status.CAUGHT_UP and not found.num_rows and self._shards.refresh():
            slab = self._shards.slab(iterator.slab)
            ended = self._shards.ended(iterator.slab)
            found = read(slab, match, iterator.next_serial, span, rows_max, ended=ended)
        return Read(
            iterator=iterator.at(found.next_serial),
            batch=Batch(found.parts, found.num_rows),
            status=found.status,
        )

    @retry_when_dropped
    def read(
        self,
        topic_filter: str = "#",
        *,
        since_us: int = 0,
        until_us: int | None = None,
        columns: Sequence[str] = COLUMNS,
        rows_max: int | None = None,
        report: ReadReport | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the matching rows in [since, until) of all shards and generations, in order of
        time. A key-value database yields them by generation, stream, topic and time.

        The read ends with the last row that was visible when it began. It counts in `report` what
        it reads.
        """
        schema_of(columns)
        require_times(since_us, until_us)
        if rows_max is not None:
            require_number("rows_max", rows_max)
            if rows_max < 0:
                raise UsageError(f"rows_max must be 0 or more, got {rows_max}")
        if self._keyed is not None:
            rows = self._keyed.read(topic_filter, since_us, until_us)
            return batches_of_rows(islice(rows, rows_max), columns)
        parsed = TopicFilter.parse(topic_filter)
        span = Span(since_us=since_us, until_us=until_us)
        self._shards.refresh()
        shards: dict[int, list[tuple[Slab, Sequence[Match], int]]] = {}
        for slab in self._overlapping(since_us, until_us):
            end = slab.next_serial()
            shards.setdefault(slab.id.shard, []).append((slab, slab.match(parsed), end))
        plans = list(shards.values())
        return read_in_time_order(plans, span, columns, rows_max, report, self._opened)

    @retry_when_dropped
    def explain(
        self, topic_filter: str = "#", *, since_us: int = 0, until_us: int | None = None
    ) -> ReadReport:
        """Return the segments, frames and rows that `read` would look at, and those that the
        indexes let it skip. No row is read.
        """
        require_times(since_us, until_us)
        parsed = TopicFilter.parse(topic_filter)
        span = Span(since_us=since_us, until_us=until_us)
        self._shards.refresh()
        report = ReadReport()
        for slab in self._overlapping(since_us, until_us):
            count_chosen(slab, slab.match(parsed), span, report)
        return report

    @retry_when_dropped
    def count(
        self, topic_filter: str = "#", *, since_us: int = 0, until_us: int | None = None
    ) -> int:
        """Count the matching rows, from the index where whole frames match."""
        require_times(since_us, until_us)
        if self._keyed is not None:
            return sum(1 for _ in self._keyed.read(topic_filter, since_us, until_us))
        parsed = TopicFilter.parse(topic_filter)
        span = Span(since_us=since_us, until_us=until_us)
        self._shards.refresh()
        return sum(
            count_rows(slab, slab.match(parsed), span)
            for slab in self._overlapping(since_us, until_us)
        )

    @retry_when_dropped
    def extents(self) -> list[SlabExtent]:
        """Return the serials of every slab at this moment: one consistent end for each shard."""
        self._shards.refresh()
        return [extent_of(slab) for slab in self._shards.all()]

    def may_hold(self, shard: int, topic_filters: Sequence[str]) -> bool:
        """Return whether a shard may have rows of any of the filters; without filters, any rows."""
        # Each shard of topic logs has one topic. No hash of a name selects the shard.
        if not topic_filters or self._shards.manifest.logs:
            return True
        parsed = map(TopicFilter.parse, topic_filters)
        return any(may_hold(shard, each, self.settings) for each in parsed)

    def choose(
        self,
        slab: SlabId,
        topic_filters: Sequence[str],
        serials: range,
        *,
        since_us: int = 0,
        until_us: int | None = None,
    ) -> Choice:
        """Select the frames of a slab that may hold rows of any of the filters, for bulk readers;
        without filters, all rows.

        Raises: SlabDroppedError, NotFoundError, CorruptionError.
        """
        require_times(since_us, until_us)
        parsed = [TopicFilter.parse(text) for text in topic_filters]
        span = Span(since_us=since_us, until_us=until_us)
        return choose_frames(self._shards.slab(slab), parsed, span, serials)

    def feed(
        self,
        wanted: Wanted = "#",
        *,
        position: Position | None = None,
        since_us: int = 0,
        credit: int = CREDIT,
    ) -> FeedReader:
        """Subscribe: return stored rows that match any of the filters, from a position or time on,
        then new rows.

        The rows of each shard arrive in order of serials, each once. A StreamIterator continues in
        its shard, with its filter. At most `credit` rows are unacknowledged. The rows of a
        key-value database are its kept changes, see `KeyValueDatabase.feed`.

        Raises: UsageError, SlabDroppedError, ClosedError; RetryError at a site of a cluster that
        has not read up to the position.
        """
        require_times(since_us)
        if self._keyed is not None:
            return self._keyed.feed(wanted, position=position, since_us=since_us, credit=credit)
        if isinstance(wanted, StreamIterator):
            require_place(wanted, database=self.name, identity=self.identity)
        return self._feeds.open(wanted, position=position, since_us=since_us, credit=credit)

    def end_position(self) -> Position:
        """Return the position after the last row: a feed from there receives only new rows."""
        if self._keyed is not None:
            return self._keyed.end_position()
        return self._feeds.end_position()

    def has_read(self, ends: Mapping[int, int]) -> bool:
        """Return whether all rows before these serials of shards can be read here. A site of a
        cluster may be behind the one that has planned a read.
        """
        self._shards.refresh()
        have = {shard.number: shard.end() for shard in self._shards.listed()}
        return all(have.get(shard, 0) >= end for shard, end in ends.items())

    def feed_source(self) -> StoreSource:
        """Return the source for a FeedHub; for callers with their own event loop or thread."""
        return self._source

    def on_commit(self, callback: Callable[[StoredBatch], None]) -> Callable[[], None]:
        """Call back with the rows of every flush from now on, when readers can see them; return a
        function that ends it.

        The callback runs on a shard's thread, in order for each shard, and must be quick.
        """
        return listen(self._writable(), callback)

    @retry_when_dropped
    def slabs(self) -> list[SlabInfo]:
        """Return all slabs with their bounds and sizes."""
        self._shards.refresh()
        return [slab_info(slab, self._shards.slab_bytes(slab.id)) for slab in self._shards.all()]

    @retry_when_dropped
    def structure(self) -> list[StreamInfo]:
        """Return the learned structures of every slab with their numbers of rows."""
        self._shards.refresh()
        return [info for slab in self._shards.all() for info in stream_infos(slab)]

    @retry_when_dropped
    def holes(self, *, since_us: int = 0, until_us: int | None = None) -> list[Hole]:
        """Return the rows between two times that reads skip, because repair could not save them."""
        require_times(since_us, until_us)
        span = Span(since_us=since_us, until_us=until_us)
        self._shards.refresh()
        return [
            hole for slab in self._overlapping(since_us, until_us) for hole in holes_of(slab, span)
        ]

    @retry_when_dropped
    def size_bytes(self) -> int:
        """Return the disk space of all slabs in bytes."""
        if self._keyed is not None:
            return self._keyed.size_bytes()
        return sum(self._shards.slab_bytes(slab.id) for slab in self._shards.all())

    def seal(self) -> None:
        """End the generation of every shard: the current slabs accept no more rows."""
        if self._keyed is not None:
            self._keyed.seal()
        else:
            self._writable().seal()

    def restart_times(self) -> int:
        """Begin a new generation in each shard whose timestamps are ahead of the clock, so that new
        rows get the time of the clock again; return the number of these shards.

        Serials continue. Existing rows keep their timestamps. Retention treats them as if they
        arrived now.

        Raises: UsageError for a database of the broker, which is read in order of time.
        """
        if self.name.startswith("_"):
            raise UsageError(
                f"database {self.name!r} belongs to the broker, which reads it in order of time; "
                "its times are not shown anywhere and stay as they are"
            )
        return self._writable().restart_times()

    @retry_when_dropped
    def newest_us(self) -> int:
        """Return the latest time of a row in the current slabs, or the start of the latest slab if
        it has no row.
        """
        return self._shards.newest_us()

    def sync(self) -> None:
        """Wait until every row that was appended before is durable."""
        self._writable().sync()

    def drop_slab(self, slab: SlabId) -> None:
        """Delete a sealed slab. Raises: UsageError for a current one, NotFoundError."""
        require_kind("slab", slab, SlabId, "a SlabId")
        if self._keyed is not None:
            self._keyed.drop_slab(slab)
        else:
            self._writable().drop(slab)

    @property
    def compaction(self) -> Compaction:
        """Rewrites sealed segments of small frames into large ones, with the same rows and serials.

        Raises: UsageError if the store was opened for reading only.
        """
        return self._writable().compaction

    def compact_in_background(self, rewriter: CompactionRunner) -> Compactor:
        """Compact this database from now on, while its setting `compaction` says so.

        The caller closes the compactor before the database.
        """
        return Compactor(
            self.name,
            lambda: self.compaction,
            rewriter,
            is_on=lambda: self.settings.compaction == "background",
        )

    def enforce_retention(self) -> list[SlabId]:
        """Drop the slabs that exceed the retention by age or size; return their ids."""
        if self._keyed is not None:
            return self._keyed.enforce_retention()
        return self._writable().enforce_retention()

    def reclaimable(self) -> Reclaimable:
        """Return the ends of the slabs that `reclaim` drops once none of their rows is needed.

        If the database is tiered, only slabs in the lake are returned.
        """
        return self._writable().upkeep.reclaimable()

    def reclaim(
        self, needed: Mapping[int, int], dropping: Dropping = lambda: nullcontext(enter_result=True)
    ) -> list[SlabId]:
        """Drop the sealed slabs without a needed row; return their ids.

        `needed` has for each shard the serial from which on rows are needed. Each slab is dropped
        in a `dropping` context, whose value says whether the drop is allowed.
        """
        return self._writable().upkeep.reclaim(needed, dropping)

    def seal_delivered(self, needed: Mapping[int, int]) -> bool:
        """Seal the generations of at least 1 MiB that have no needed row, unless the settings say
        when generations end; return whether there was any.
        """
        return self._writable().upkeep.seal_delivered(needed)

    @property
    def drops(self) -> DropLog:
        """The slabs that were dropped since the database was opened."""
        return self._writable().drops

    def leave_free(self, size_bytes: int) -> None:
        """Refuse rows from now on if the disk would have less free space than this."""
        self._writable().leave_free(size_bytes)

    def configure(self, **changes: Any) -> DatabaseSettings:
        """Change settings for everything that is written from now on.

        The settings of the encoding, `thresholds` and `compression`, apply to the next generation:
        see `pending_settings`.

        Raises: UsageError.
        """
        return self._writable().configure(changes)

    def pending_settings(self) -> dict[str, list[Any]]:
        """Return the settings that apply from the next generation on, by name, with the values that
        the current slabs of the shards have until then.
        """
        rows = self._shards if self._keyed is None else self._keyed
        return rows.pending_settings()

    def refresh(self) -> None:
        """Read from the disk what another process has written; reads do this automatically."""
        self._shards.refresh()

    def close(self) -> None:
        """Store the queued rows and end the threads."""
        if self._keyed is not None:
            self._keyed.close()
            return
        try:
            self._shards.close()
        finally:
            self._feeds.close()

    def failure(self) -> Exception | None:
        """Return the error that poisoned a shard, None if no shard is poisoned."""
        return self._shards.failure() if self._keyed is None else self._keyed.failure()

    def block_logs(self) -> BlockLogs:
        """Return the shards as logs of one topic each. Raises: UsageError."""
        shards = self._writable()
        shards.hold_logs()
        return BlockLogs(shards)

    @property
    def _shards(self) -> Shards:
        if self._log is None:
            raise UsageError(
                f"{self.name!r} is a key-value database, and only a database of messages can do "
                f"this; in a program, Store.keyvalue has its other methods"
            )
        return self._log

    def _writable(self) -> Shards:
        if not self._shards.leads:
            raise UsageError("the store was opened for reading only")
        return self._shards

    def _overlapping(self, since_us: int, until_us: int | None) -> list[Slab]:
        return [
            slab
            for slab in self._shards.all()
            if (slab.record.until_us is None or slab.record.until_us > since_us)
            and (until_us is None or slab.record.since_us < until_us)
        ]


def _prepare(call: Call, durability: Durability, producer: tuple[str, int] | None) -> None:
    call.wants_sync = durability == "synced"
    if call.size_bytes > CALL_BYTES_MAX:
        raise UsageError(
            f"the append is too large, split it: size_bytes={call.size_bytes} max={CALL_BYTES_MAX}"
        )
    if producer is not None:
        call.producer, call.sequence = producer_of(producer)
