"""One key-value database: transactions over rows by topic and time, and reads of them.

It belongs to the Store that holds the lock of the directory, and has a thread for each shard. All
methods may be called from any thread; a transaction belongs to one thread. The caller selects the
shard of a row: rows that are read or changed together get one key, and so one shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import random
from threading import Lock
from time import sleep
from typing import Any, Final, TypeVar

from siltstone.clock import Clock
from siltstone.errors import (
    ClosedError,
    InvalidTopicError,
    NotFoundError,
    OutcomeUnknownError,
    SlabDroppedError,
    UsageError,
)
from siltstone.rows.batch import RowBatch
from siltstone.rows.stored import StoredBatch
from siltstone.settings.declare import encoding_of, pending
from siltstone.store.feed.changes import ChangeSource, listen_for_changes
from siltstone.store.feed.feeds import CREDIT, Feeds, Wanted
from siltstone.store.feed.position import Position
from siltstone.store.feed.reader import FeedReader
from siltstone.store.kv.api import Engine
from siltstone.store.kv.slab import KeyValueSlab
from siltstone.store.log.arguments import require_durability, require_kind
from siltstone.store.log.iterator import Read, StreamIterator, StreamRef
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.slab_names import unknown_slab
from siltstone.store.log.write.partition import Columns, batch_of, shard_of
from siltstone.store.shard.replicated.copying import copied_shards
from siltstone.store.shard.replicated.kv.copying import load
from siltstone.store.shard.replicated.kv.replica import Callbacks, KeyValueReplica, ReplicaPlace
from siltstone.store.shard.replicated.port import Founding
from siltstone.store.slab.drops import DropLog, DroppedSlab, Why
from siltstone.store.slab.manifest import SlabId, SlabRecord, SlabState
from siltstone.store.slab.retention import due_for_drop, due_for_turn
from siltstone.store.slab.settings import require_local
from siltstone.store.tx import catalog
from siltstone.store.tx.arguments import key_of, text_of, timeout_of, whole_number
from siltstone.store.tx.catalog import family_of
from siltstone.store.tx.commit.committer import KeyValueRecord, Room, TransactionCommitter
from siltstone.store.tx.commit.shard import KeyValueShard
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.iterator import read_on, require_key_place
from siltstone.store.tx.operations import (
    ANY_GENERATION,
    ANY_TERM,
    LATEST,
    NO_ID,
    Operations,
    digest_of,
    end_of,
    start_of,
)
from siltstone.store.tx.owned_map import OwnedMaps, take
from siltstone.store.tx.reading import ReadableSlab, rows_of
from siltstone.store.tx.retry import Committed, Retry, transact
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.tx.transaction import Context, Transaction
from siltstone.store.writer.commit_log import RecordKind
from siltstone.store.writer.producers import producer_of
from siltstone.topic.grammar import TopicFilter

T = TypeVar("T")

TIMEOUT: Final = 5.0
_NOT_STORED: Final = (
    "a row of a key-value database has a topic, a value and perhaps a timestamp, nothing else"
)
RETRIES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSlab:
    """A slab that can be read."""

    record: SlabRecord
    slab: KeyValueSlab
    context: Context


class KeyValueDatabase:
    """Rows by topic and time, or only by topic, changed by transactions. Created by a Store."""

    def __init__(
        self,
        engine: Engine,
        clock: Clock,
        name: str,
        settings: KeyValueSettings | None = None,
        *,
        retry: Retry | None = None,
        room: Room | None = None,
        place: ReplicaPlace | None = None,
        founding: Founding[KeyValueSettings] | None = None,
    ) -> None:
        """Open the database of an engine, which it owns from now on; an empty one gets these
        settings.

        `room` is called before anything is written. A replicated database has a `place` in a
        cluster. An empty replicated database also needs its `founding`.
        """
        self.name = name
        self._room = room
        self._engine = engine
        self._clock = clock
        self._retry = retry or Retry(pause=sleep, chance=random)
        # Held only briefly: the threads of the shards take it.
        self._lock = Lock()
        self._configuring = Lock()
        self._closed = False
        self._ready = False
        self._slabs: dict[SlabId, OpenSlab] = {}
        self._queues: list[KeyValueShard] = []
        self._place = place
        # By shard; empty if the database is not replicated.
        self._replicas: list[KeyValueReplica] = []
        self._feeds: Feeds | None = None
        self._drops = DropLog(name)
        self._current: list[Context] = []
        try:
            self._settings = self._open(settings, founding)
            self._ready = True
            for replica in self._replicas:
                replica.begin()
        finally:
            if not self._ready:
                self.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed; its Store opens it again on request."""
        return self._closed

    @property
    def settings(self) -> KeyValueSettings:
        """The current settings."""
        return self._settings

    def shard_of(self, key: str) -> int:
        """Return the shard of a key, which is the same on every machine and for ever."""
        return shard_of(key_of("key", key), self._settings.shards)

    def transaction(
        self,
        *,
        shard: int | None = None,
        key: str | None = None,
        generation: int | None = None,
        timeout: float | None = TIMEOUT,
        id: str | None = None,  # noqa: A002 - the usual name
    ) -> Transaction:
        """Begin a transaction on the given shard, or on the shard of a key.

        Without a generation it uses the current one, and conflicts if that is sealed before the
        commit. `timeout` limits the commit. If its id was committed before, on this shard and
        within `remember_ids` seconds, the transaction is acknowledged and changes nothing.

        Raises: UsageError, NotFoundError, SlabDroppedError, ClosedError.
        """
        seconds = timeout_of(timeout)
        number = self._number(shard, key)
        digest = NO_ID if id is None else digest_of(id)
        if generation is None:
            return Transaction(self._current[number], True, digest, seconds)  # noqa: FBT003 - compiled
        context = self._find(SlabId(number, whole_number("generation", generation))).context
        return Transaction(context, False, digest, seconds)  # noqa: FBT003 - compiled

    def transact(
        self,
        function: Callable[[Transaction], T],
        *,
        shard: int | None = None,
        key: str | None = None,
        generation: int | None = None,
        timeout: float | None = TIMEOUT,
        retries: int = RETRIES,
        id: str | None = None,  # noqa: A002 - the usual name
    ) -> Committed[T]:
        """Run a function in a transaction and commit it; run it again after a conflict.

        The function may run many times, so it must change nothing but the transaction. It is
        repeated after ConflictError and OverloadedError, and with an id after OutcomeUnknownError.

        Raises: the errors of Transaction.commit, when there are no more retries; UsageError.
        """
        if not callable(function):
            raise UsageError(f"function must be a function: type={type(function).__name__}")
        begin = partial(
            self.transaction,
            shard=shard,
            key=key,
            generation=generation,
            timeout=timeout,
            id=id,
        )
        return transact(begin, function, retries=retries, has_id=id is not None, retry=self._retry)

    def outcome(self, id: str, *, shard: int | None = None, key: str | None = None) -> int | None:  # noqa: A002
        """Return the serial with which the transaction with this id was committed, None if it was
        not.

        The result is final, because all transactions that were submitted before have ended by then.

        Raises: PoisonedError, ClosedError.
        """
        number = self._number(shard, key)
        queue = self._queues[number]
        digest = digest_of(id)
        if queue.is_shared:
            # An empty transaction with this id asks the leader of the shard.
            asked = Operations(ANY_TERM, ANY_GENERATION, True, digest)  # noqa: FBT003 - compiled
            ticket = queue.submit(asked, TIMEOUT)
            try:
                ticket.wait(TIMEOUT)
            except OutcomeUnknownError:
                queue.withdraw(ticket)
                raise
            return asked.serial if asked.duplicate else None
        found: list[int | None] = []
        queue.order(lambda: found.append(queue.committer.find_id(digest)))
        return found[0]

    def take(self, collection: str, *, retries: int = RETRIES) -> OwnedMaps:
        """Load the maps of a collection and become their owner, in place of the former owner.

        Raises: UsageError for a database with times; ConflictError if too many callers take it at
        once.
        """
        begin = partial(self.transaction, key=text_of("collection", collection))
        return take(begin, collection, retries, self._retry, timed=self._settings.timed)

    def get(
        self,
        topic: str,
        time_us: int = LATEST,
        *,
        shard: int | None = None,
        key: str | None = None,
    ) -> bytes | None:
        """Return a value of the current generation, as `Transaction.get` does."""
        if self._place is not None:
            # The shard may get a new leader at this moment.
            return self.transact(
                lambda begun: begun.get(topic, time_us), shard=shard, key=key
            ).value
        with self.transaction(shard=shard, key=key) as transaction:
            return transaction.get(topic, time_us)

    def read(
        self,
        topic_filter: str = "#",
        since_us: int = 0,
        until_us: int | None = None,
        *,
        shard: int | None = None,
        key: str | None = None,
        first_topic: str = "",
    ) -> Iterator[Row]:
        """Yield the rows of a filter in [since, until), of one shard or all, oldest generation
        first.

        Each slab is viewed at the moment when its first row is requested. The rows of a stream are
        sorted by topic, then by time. A stream that `first_topic` would belong to begins at this
        topic.
        """
        parsed = TopicFilter.parse(topic_filter)
        until = end_of(until_us)
        since = start_of(since_us, until)
        self._check_open()
        only = None if shard is None and key is None else self._number(shard, key)
        slabs = (ReadableSlab(known.record, known.slab) for known in self._ordered(only))
        return rows_of(slabs, parsed, since, until, key_of("first_topic", first_topic))

    def streams(self, topic_filter: str = "#", *, generation_min: int = 0) -> list[StreamRef]:
        """Return the streams with rows that may match a filter, oldest slab first."""
        parsed = TopicFilter.parse(topic_filter)
        streams: list[StreamRef] = []
        for known in self._ordered(None):
            if known.record.generation < generation_min:
                continue
            view = known.slab.view()
            try:
                matches = list(known.slab.held(view, parsed))
            finally:
                view.release()
            for match in matches:
                pattern = match.stream.pattern.decode()
                streams.append(
                    StreamRef(
                        database=self.name,
                        slab=known.record.id,
                        stream_id=match.stream.id,
                        pattern=pattern,
                        identity=self.origin.text,
                    )
                )
        return streams

    def iterator(
        self, stream: StreamRef, topic_filter: str = "#", since_us: int = 0
    ) -> StreamIterator:
        """Return the position before the first row of a stream at or after a time.

        Raises: SlabDroppedError, NotFoundError, UsageError.
        """
        require_kind("stream", stream, StreamRef, "one that streams() returned")
        require_key_place(stream, database=self.name, identity=self.origin)
        if self._find(stream.slab).slab.stream(stream.stream_id) is None:
            raise NotFoundError(f"unknown stream {stream.stream_id:016x} in slab {stream.slab}")
        return StreamIterator(
            database=self.name,
            slab=stream.slab,
            stream_id=stream.stream_id,
            since_us=start_of(since_us, 0),
            filter=TopicFilter.parse(topic_filter),
            after=b"",
            identity=self.origin.text,
        )

    def next(
        self, iterator: StreamIterator, rows_max: int = 1000, *, until_us: int | None = None
    ) -> Read:
        """Read from a position: up to rows_max matching rows, all before until_us.

        Raises: SlabDroppedError, NotFoundError, UsageError.
        """
        require_kind("iterator", iterator, StreamIterator, "one that iterator() or next() returned")
        require_key_place(iterator, database=self.name, identity=self.origin)
        until = None if until_us is None else end_of(until_us)
        if whole_number("rows_max", rows_max) < 1:
            raise UsageError(f"rows_max must be at least 1, got {rows_max}")
        # Check whether the slab has ended before its last rows are read.
        known = self._find(iterator.slab)
        ended = known.record.state is not SlabState.CURRENT
        iterator = replace(iterator, identity=self.origin.text)
        return read_on(known.slab, iterator, rows_max, until, ended=ended)

    def append(
        self,
        rows: Iterable[Row] | Columns | RowBatch,
        *,
        durability: str = "synced",
        producer: tuple[str, int] | None = None,
        timeout: float | None = None,
        shard: int | None = None,
        key: str | None = None,
    ) -> CommitTicket:
        """Queue rows as one transaction; `wait` of the ticket returns when they are durable.

        A row with a timestamp replaces the row of its topic at this time; any other row gets the
        time of the commit. In a plain map rows replace the values of their topics. Every
        `durability` means `synced` here. A call of a producer that was stored before, within
        `remember_ids` seconds, is acknowledged and not stored again.

        Raises: UsageError, also for rows with a publisher, flags or properties, which are not
        stored; InvalidTopicError; OverloadedError, PoisonedError, ClosedError; the ticket raises
        StorageFullError, QuotaExceededError.
        """
        require_durability(durability)
        id_ = None if producer is None else _id_of_call(producer)
        seconds = timeout_of(timeout)
        transaction = self.transaction(shard=shard, key=key, timeout=seconds, id=id_)
        write_rows(transaction, rows)
        return transaction.submit()

    def feed(
        self,
        wanted: Wanted = "#",
        *,
        position: Position | None = None,
        since_us: int = 0,
        credit: int = CREDIT,
    ) -> FeedReader:
        """Subscribe: return the kept changes of rows that match any of the filters, from a position
        on, then new changes.

        The changes of each shard arrive in the order of their commits, each once; their serials
        number the changes. `FeedRead.changes` has the deletions too. Without a position, the feed
        begins with the oldest change that is kept. If changes after the position were removed,
        `FeedRead.lost` counts them: read the rows again.

        Raises: UsageError, also if the database keeps no changes; SlabDroppedError; ClosedError;
        RetryError at a site of a cluster that has not read up to the position.
        """
        feeds = self._with_changes()
        if since_us:
            raise UsageError(
                "a feed of a key-value database begins at a position, not at a time: its rows are "
                "not in order of time"
            )
        return feeds.open(wanted, position=position, since_us=0, credit=credit)

    def end_position(self) -> Position:
        """Return the position after the last change: a feed from there receives only new changes.

        Raises: UsageError if the database keeps no changes; ClosedError.
        """
        return self._with_changes().end_position()

    def feed_source(self) -> ChangeSource:
        """Return the source for a FeedHub; for callers with their own event loop or thread."""
        return self._source

    def on_commit(self, callback: Callable[[StoredBatch], None]) -> Callable[[], None]:
        """Call back with the changes of every commit from now on, when readers can see them;
        return a function that ends it.

        The callback runs on a shard's thread, in order for each shard, and must be quick.
        """
        return listen_for_changes(self._source.committers, callback)

    def slabs(self) -> list[SlabRecord]:
        """Return all slabs with their bounds, oldest generation first."""
        return [known.record for known in self._ordered(None)]

    def seal(self) -> None:
        """End the generation of every shard: the current slabs accept no more changes.

        Raises: UsageError for a plain map, which has only its current generation.
        """
        self._check_open()
        if not self._settings.timed:
            raise UsageError(
                f"database {self.name!r} is a plain map with one generation, which cannot be sealed"
            )
        for replica in self._replicas:
            replica.manage({"do": "seal"}, TIMEOUT)
        if self._place is None:
            for number, queue in enumerate(self._queues):
                queue.order(partial(self._turn_over, number))

    def drop_slab(self, slab: SlabId) -> None:
        """Delete a sealed slab with all its rows.

        Raises: UsageError for a current one, NotFoundError, SlabDroppedError.
        """
        require_kind("slab", slab, SlabId, "a SlabId")
        self._find(slab)
        if self._place is not None:
            act = {"do": "drop", "generation": slab.generation}
            self._replicas[slab.shard].manage(act, TIMEOUT)
            return
        self._queues[slab.shard].order(partial(self._drop, slab, "command"))

    def enforce_retention(self) -> list[SlabId]:
        """Drop the sealed slabs that exceed the retention by age or bytes; return their ids.

        The shards do this automatically from time to time.
        """
        due = self._due_for_drop()
        if self._place is not None:
            # The leaders of the other shards do the same.
            due = {slab: why for slab, why in due.items() if self._replicas[slab.shard].log.leads}
        for slab, why in due.items():
            self._find(slab)
            self._queues[slab.shard].order(partial(self._drop, slab, why))
        return list(due)

    def configure(self, **changes: Any) -> KeyValueSettings:
        """Change settings for everything that is committed from now on.

        `thresholds` apply to the next generation.

        Raises: UsageError, also for the thresholds of a plain map, which has one generation.
        """
        self._check_open()
        if self._place is not None:
            self._changed(changes)
            self._replicas[0].manage({"do": "configure", "changes": changes}, TIMEOUT)
            return self._changed(changes)
        with self._configuring:
            settings = self._changed(changes)
            catalog.ensure_changes(self._engine, settings)
            for queue in self._queues:
                queue.order(queue.committer.keep_encoding)
            first = self._queues[0]
            first.order(partial(first.committer.put_settings, settings))
            self._settings = settings
            for queue in self._queues:
                queue.order(partial(queue.committer.configure, settings))
        self._end_feeds(settings)
        return settings

    def _changed(self, changes: Mapping[str, Any]) -> KeyValueSettings:
        """Return the settings with changes. Raises: UsageError."""
        settings = self._settings.changed(changes)
        if not settings.timed and encoding_of(settings) != encoding_of(self._settings):
            raise UsageError(
                "a plain map has one generation, so its thresholds cannot change: create "
                "another database"
            )
        return settings

    def _end_feeds(self, settings: KeyValueSettings) -> None:
        """End the feeds if changes are not kept any more."""
        if not settings.feed_bytes and self._feeds is not None:
            self._feeds.end(_without_changes(self.name))

    def pending_settings(self) -> dict[str, list[Any]]:
        """Return the settings that the next generation will have, with the values until then."""
        records = [queue.committer.record for queue in self._queues]
        return pending(self._settings, (record.encoding for record in records))

    def size_bytes(self) -> int:
        """Return the approximate disk space of the database in bytes."""
        self._check_open()
        return self._engine.size_bytes()

    def failure(self) -> Exception | None:
        """Return the error that poisoned a shard, None if no shard is poisoned."""
        found = (queue.committer.poisoned_by for queue in self._queues)
        return next((cause for cause in found if cause is not None), None)

    def close(self) -> None:
        """Commit the queued transactions, end the threads, and close the files."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            for replica in self._replicas:
                replica.close()
            for queue in self._queues:
                queue.close()
        finally:
            if self._feeds is not None:
                self._feeds.close()
            self._engine.close()

    def _open(
        self, wanted: KeyValueSettings | None, founding: Founding[KeyValueSettings] | None
    ) -> KeyValueSettings:
        """Create the database if it is new; begin a term of every shard and start its thread."""
        engine, place = self._engine, self._place
        if not catalog.is_created(engine):
            catalog.create(
                engine,
                self._clock,
                wanted or KeyValueSettings(),
                identity=b"" if place is None else place.identity,
                created_us=0 if founding is None else founding.created_us,
            )
        settings = catalog.read_settings(engine)
        if place is None:
            require_local(settings.backend)
        if place is not None:
            for number in copied_shards(place.fs, place.directory):
                load(place.fs, place.directory, engine, number, self._room)
        records = catalog.read_slabs(engine)
        catalog.drop_orphans(engine, records)
        if place is None:
            states = catalog.begin_terms(engine, settings.shards)
        else:
            # The shared log has the terms.
            states = [catalog.read_state(engine, number) for number in range(settings.shards)]
        self.origin = catalog.read_identity(engine)
        catalog.ensure_changes(engine, settings)
        for number in range(settings.shards):
            *sealed, newest = (record for slab, record in records.items() if slab.shard == number)
            committer = TransactionCommitter(
                engine,
                self._clock,
                settings,
                newest,
                states[number],
                database=self.name,
                room=self._room,
            )
            keep = partial(self._look_after, number)
            queue = KeyValueShard(committer, self._clock, keep)
            self._queues.append(queue)
            if place is not None:
                self._replicas.append(self._replica(place, queue))
            for record in sealed:
                slab, _ = catalog.open_slab(engine, record.id, settings)
                self._slabs[record.id] = self._opened(record, slab)
            self._slabs[newest.id] = self._opened(newest, committer.slab)
            self._current.append(self._slabs[newest.id].context)
        self._source = ChangeSource(engine, [queue.committer for queue in self._queues])
        self._feeds = Feeds(
            self._source,
            self.origin,
            self.on_commit,
            polls=False,
            is_replicated=place is not None,
        )
        return settings

    def _opened(self, record: SlabRecord, slab: KeyValueSlab) -> OpenSlab:
        queue = self._queues[record.shard]
        if self._place is None:
            context = Context(queue, self._clock, slab, record.id, queue.committer.term)
        else:
            replica = self._replicas[record.shard]
            context = Context(queue, self._clock, slab, record.id, ANY_TERM, replica)
        return OpenSlab(record=record, slab=slab, context=context)

    def _replica(self, place: ReplicaPlace, queue: KeyValueShard) -> KeyValueReplica:
        number = queue.committer.record.shard
        callbacks = Callbacks(
            followed=partial(self._followed, number),
            loading=partial(self._loading, number),
            loaded=partial(self._loaded, number),
            manage=partial(self._manage, number),
            replicas=lambda: self._settings.replicas,
            pending_bytes_max=lambda: self._settings.pending_bytes_max,
        )
        return KeyValueReplica(place, self._engine, queue, callbacks, self._room)

    def _loading(self, number: int) -> None:
        """Show readers nothing of a shard until it is copied: they would miss rows."""
        with self._lock:
            self._source.loading |= {number}
        for slab, known in self._slabs.items():
            if slab.shard == number:
                known.slab.is_replaced = True

    def _loaded(self, number: int) -> None:
        """Show readers a shard that was copied from another site. On its thread."""
        committer, engine = self._queues[number].committer, self._engine
        settings = catalog.read_settings(engine)
        records = catalog.read_slabs(engine)
        *sealed, newest = (records[slab] for slab in sorted(records) if slab.shard == number)
        committer.settings = settings
        slab = committer.begin_slab(newest)
        committer.reload()
        found = {newest.id: self._opened(newest, slab)}
        for record in sealed:
            found[record.id] = self._opened(
                record, catalog.open_slab(engine, record.id, settings)[0]
            )
        with self._lock:
            others = {slab: known for slab, known in self._slabs.items() if slab.shard != number}
            self._slabs = others | found
            self._current[number] = found[newest.id].context
            self._source.loading -= {number}
        if number == 0:
            self._settings = settings
        if self._feeds is not None:
            # No commit announces what was copied.
            self._feeds.look()

    def _followed(self, number: int, record: KeyValueRecord) -> None:
        """Take a record of another site that is not a group of transactions."""
        committer = self._queues[number].committer
        if record.kind == RecordKind.GENERATION:
            old, slabs = committer.slab, catalog.read_slabs(self._engine)
            sealed = committer.record.id
            begun = max(slab for slab in slabs if slab.shard == number)
            committer.begin_slab(slabs[begun])
            self._turned(number, slabs[sealed], old, slabs[begun])
        elif record.kind == RecordKind.DROP:
            known = self._slabs
            for slab in [slab for slab in known if family_of(slab) == record.family]:
                self._forget(slab, "command")
        else:
            settings = catalog.read_settings(self._engine)
            catalog.ensure_changes(self._engine, settings)
            self._settings = settings
            committer.configure(settings)
            for other in self._queues:
                if other is not self._queues[number]:
                    other.post(partial(other.committer.configure, settings))
            self._end_feeds(settings)

    def _manage(self, number: int, document: Mapping[str, Any]) -> None:
        """Do what another site has asked for. Runs on the thread of a shard that this site leads.

        Raises: UsageError, NotFoundError, SlabDroppedError.
        """
        match document:
            case {"do": "seal"}:
                self._turn_over(number)
            case {"do": "drop", "generation": int(generation)}:
                self._drop(SlabId(number, generation), "command")
            case {"do": "configure", "changes": dict(changes)}:
                settings = self._changed(changes)
                catalog.ensure_changes(self._engine, settings)
                committer = self._queues[number].committer
                committer.put_settings(settings)
                self._settings = settings
                committer.configure(settings)
                for other in self._queues[:number] + self._queues[number + 1 :]:
                    other.post(partial(other.committer.configure, settings))
                self._end_feeds(settings)
            case _:
                raise UsageError(f"another site asks for something unknown: {document!r:.100}")

    def _look_after(self, number: int) -> None:
        """End the generation of a shard when it is due, and drop its slabs that are due."""
        if not self._ready or (self._replicas and not self._replicas[number].log.leads):
            return
        committer = self._queues[number].committer
        if due_for_turn(
            self._settings,
            committer.record,
            rows=committer.serial - max(committer.record.first_serial, 1) + 1,
            size_bytes=self._engine.size_bytes(committer.slab.family),
            now_us=self._clock.now_us(),
        ):
            self._turn_over(number)
        for slab, why in self._due_for_drop().items():
            # Each shard drops its own slabs: no thread waits for another.
            if slab.shard == number:
                self._drop(slab, why)

    def _due_for_drop(self) -> dict[SlabId, Why]:
        records = self.slabs()
        sizes = {record.id: self._size_of(record.id) for record in records}
        return due_for_drop(self._settings, records, sizes, passed_us=self._clock.passed_us)

    def _size_of(self, slab: SlabId) -> int:
        try:
            return self._engine.size_bytes(family_of(slab))
        except NotFoundError:
            # Another shard is dropping it at this moment.
            return 0

    def _turn_over(self, number: int) -> None:
        committer = self._queues[number].committer
        old = committer.slab
        sealed, record = committer.turn_over()
        self._turned(number, sealed, old, record)

    def _turned(
        self, number: int, sealed: SlabRecord, old: KeyValueSlab, record: SlabRecord
    ) -> None:
        """Show readers that a generation has ended, and the next one."""
        current = self._opened(record, self._queues[number].committer.slab)
        with self._lock:
            self._slabs = self._slabs | {sealed.id: self._opened(sealed, old), record.id: current}
            self._current[number] = current.context

    def _drop(self, slab: SlabId, why: Why) -> None:
        if self._find(slab).record.state is SlabState.CURRENT:
            raise UsageError(f"slab {slab} is current: seal it, then drop it")
        self._queues[slab.shard].committer.drop(slab)
        self._forget(slab, why)

    def _forget(self, slab: SlabId, why: Why) -> None:
        """Remove the rows of a slab that was dropped."""
        size_bytes = self._size_of(slab)
        with self._lock:
            self._slabs = {known: found for known, found in self._slabs.items() if known != slab}
        self._engine.drop_family(catalog.family_of(slab))
        self._drops.tell(DroppedSlab(slab, why, None, size_bytes))

    def _ordered(self, shard: int | None) -> list[OpenSlab]:
        self._check_open()
        known = [
            self._slabs[slab]
            for slab in sorted(self._slabs, key=lambda slab: (slab.generation, slab.shard))
        ]
        return [found for found in known if shard in (None, found.record.shard)]

    def _find(self, slab: SlabId) -> OpenSlab:
        self._check_open()
        found = self._slabs.get(slab)
        if found is not None:
            return found
        later = [known for known in self._slabs if known.shard == slab.shard]
        if slab.generation >= 1 and any(known.generation > slab.generation for known in later):
            raise SlabDroppedError(f"slab {slab} was dropped with its rows")
        raise unknown_slab(slab)

    def _number(self, shard: int | None, key: str | None) -> int:
        if self._closed:
            self._check_open()
        shards = self._settings.shards
        if key is not None:
            if shard is not None:
                raise UsageError("give a shard or a key, not both")
            return self.shard_of(key)
        if shard is None:
            if shards > 1:
                raise UsageError(
                    f"give a shard or a key: the database has more than one shard: shards={shards}"
                )
            return 0
        if not 0 <= whole_number("shard", shard) < shards:
            raise UsageError(f"shard must be from 0 to {shards - 1}, got {shard}")
        return shard

    def _with_changes(self) -> Feeds:
        self._check_open()
        if not self._settings.feed_bytes or self._feeds is None:
            raise _without_changes(self.name)
        return self._feeds

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError("the database is closed")


def write_rows(transaction: Transaction, rows: Iterable[Row] | Columns | RowBatch) -> None:
    """Write rows in a transaction. Raises: UsageError, InvalidTopicError."""
    if isinstance(rows, Columns):
        rows = batch_of(rows)
    if isinstance(rows, RowBatch):
        flagged = rows.any_flags or rows.shared_flags > 0
        if rows.publisher or any(rows.publishers) or any(rows.properties) or flagged:
            raise UsageError(_NOT_STORED)
        for topic, value in zip(rows.topics, rows.values, strict=True):
            transaction.write(_decoded(topic), value)
        return
    require_kind("rows", rows, Iterable, "Rows, or Columns")
    for number, row in enumerate(rows):
        if not isinstance(row, Row):
            raise UsageError(f"not a Row: row={number} type={type(row).__name__}")
        plain = Row(row.topic, row.value, timestamp_us=row.timestamp_us)
        if row != plain:
            raise UsageError(f"{_NOT_STORED}: row={number}")
        if row.timestamp_us:
            transaction.write(row.topic, row.value, row.timestamp_us)
        else:
            transaction.write(row.topic, row.value)


def _decoded(topic: bytes) -> str:
    try:
        return topic.decode()
    except UnicodeDecodeError as exc:
        raise InvalidTopicError(f"topic is not valid UTF-8: topic={topic[:80]!r}") from exc


def _id_of_call(producer: tuple[str, int]) -> str:
    """Return the id of the transaction of a producer's call. Raises: UsageError."""
    name_key, sequence = producer_of(producer)
    return f"producer/{name_key.hex()}/{sequence}"


def _without_changes(name: str) -> UsageError:
    return UsageError(
        f"database {name!r} keeps no changes for feeds: set feed_bytes to the bytes of changes to "
        f"keep"
    )
