"""A shard whose files this process writes: it is opened when it is first used, and turns over
generations.

A database of topic logs may have thousands of shards. Opening a shard reads and syncs its last
segment and needs memory, so unused shards stay closed. One thread opens a shard, and the other
threads that need it wait. No lock is held meanwhile.

Invariant: one process writes the files of a shard, and only it changes their records in the
manifest. It leads the shard; of a replicated shard, it may follow the leader at another site.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import PurePath
from threading import Event, Lock
from typing import Final

from siltstone.clock import Clock
from siltstone.errors import ClosedError, CorruptionError, DiskError, NotFoundError, SiltstoneError
from siltstone.fs.api import FileSystem
from siltstone.guard import contain
from siltstone.settings.declare import encoding_of, with_encoding
from siltstone.store.log.first_slab import begin_in_place
from siltstone.store.log.opening import RecoveryReport, identity_of, reopen_slab, slab_directory
from siltstone.store.log.records import DropRecord, GenerationRecord, SettingsRecord
from siltstone.store.log.slab import Slab
from siltstone.store.log.slab_names import find_slab, open_slab
from siltstone.store.log.write.committer import Committer, OnStored
from siltstone.store.log.write.frame_builder import BuiltFrame, Call
from siltstone.store.log.write.layout import Admit, LogLayout
from siltstone.store.log.write.shard import LogShard
from siltstone.store.segment.chain import directory_bytes
from siltstone.store.shard.replicated.apply import apply_change
from siltstone.store.shard.replicated.copying import Offer, install, make_offer
from siltstone.store.shard.replicated.damage import sealed_segments
from siltstone.store.shard.replicated.log import Files, ReplicatedLog
from siltstone.store.shard.replicated.mark_file import Marked, MarkFile
from siltstone.store.shard.replicated.port import Replication
from siltstone.store.shard.replicated.router import CallRouter, take_call
from siltstone.store.shard.shard import Role, end_of
from siltstone.store.slab.manifest import ManifestFile, SlabId, SlabRecord, SlabState
from siltstone.store.slab.marks import Seed, read_seed, sow
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.commit_log import CommitLog, Record
from siltstone.store.writer.replication.messages import RecordChange
from siltstone.store.writer.ticket import Ticket

# This many shards are opened at the start, and hold a file descriptor all the time. Each further
# shard is opened when it is first used, and holds a descriptor only while it stores.
WARM_SHARDS: Final = 64


class Listeners:
    """The functions that are called for every frame that became visible."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._all: tuple[OnStored, ...] = ()

    def add(self, listener: OnStored) -> Callable[[], None]:
        """Call the listener for every frame from now on; return a function that ends it."""
        with self._lock:
            self._all = (*self._all, listener)

        def end() -> None:
            with self._lock:
                self._all = tuple(each for each in self._all if each is not listener)

        return end

    def any(self) -> bool:
        """Return whether there is a listener."""
        return bool(self._all)

    def tell(self, slab: SlabId, first_serial: int, built: BuiltFrame) -> None:
        """Call the listeners for a frame."""
        for listener in self._all:
            contain(partial(listener, slab, first_serial, built))


@dataclass(frozen=True, slots=True, kw_only=True)
class Leading:
    """The state that the led shards of a database share.

    `lock` is held while records of slabs are decided and changed, in the manifest and in memory.
    """

    fs: FileSystem
    clock: Clock
    directory: PurePath
    manifest: ManifestFile
    lock: Lock
    listeners: Listeners
    admit: Admit
    look_after: Callable[[int], None]
    # Stores a record of the shard with this number that changes the manifest.
    manage: Callable[[int, DropRecord | SettingsRecord], None]
    recovered: Callable[[RecoveryReport], None]
    # The shards that are open, in the order in which they were opened.
    opened: list[WritableShard]
    # If the database is replicated: the cluster that commits its records.
    cluster: Replication | None = None


class WritableShard:
    """The slabs of a shard that this process writes, and their queue.

    While another site leads the shard, the queue has no calls, and its thread stores what that
    leader has committed.
    """

    def __init__(self, number: int, leading: Leading, committer: Committer | None = None) -> None:
        """Create a shard that is opened later, or a new one with its committer."""
        self.number = number
        self._leading: Leading | None = leading
        # Held only briefly.
        self._lock = Lock()
        # Replaced and never changed: other threads iterate over it.
        self._slabs: dict[SlabId, Slab] = {}
        self._sealed_bytes: dict[SlabId, int] = {}
        # How often the files were replaced by those of another site.
        self.installs = 0
        # Set while a thread opens the shard. The event is set when the opening ends.
        self._opening: Event | None = None
        self._queue: LogShard | None = None
        # If the database is replicated: the log that all sites share, and the way to the leader.
        self._shared: ReplicatedLog | None = None
        self._router: CallRouter | None = None
        if committer is not None:
            self._name(committer.slab)
            self._queue = self._start(leading, committer)

    @property
    def role(self) -> Role:
        """The role of this process."""
        shared = self._shared
        return Role.LEADER if shared is None or shared.leads else Role.FOLLOWER

    @property
    def leading_site(self) -> str:
        """The site that leads the shard of a replicated database, as far as it is known here."""
        return "" if self._shared is None else self._shared.view.leader

    @property
    def opened(self) -> LogShard | None:
        """The queue of the shard if it is open, else None."""
        return self._queue

    def queue(self) -> LogShard:
        """Return the queue of the shard; open the shard if necessary.

        Raises: the error that prevents opening it; ClosedError.
        """
        while (queue := self._queue) is None:
            begun = Event()
            with self._lock:
                leading, others = self._leading, self._opening
                if leading is None:
                    raise ClosedError("the database is closed")
                is_first = others is None and self._queue is None
                if is_first:
                    self._opening = begun
            if is_first:
                return self._open_once(leading, begun)
            if others is not None:
                others.wait()
        return queue

    def _open_once(self, leading: Leading, begun: Event) -> LogShard:
        try:
            # This reads the settings now. `configure` waits until the queue can be found.
            queue = self._queue = self._open(leading)
            return queue
        finally:
            with self._lock:
                self._opening = None
            begun.set()

    @property
    def log(self) -> CommitLog:
        """The commit log of the shard; opens the shard if necessary."""
        return self.queue().committer.log

    def wait_for_opening(self) -> None:
        """If a thread is opening the shard, wait until it is open or that has failed."""
        with self._lock:
            opening = self._opening
        if opening is not None:
            opening.wait()

    def append(self, call: Call, ticket: Ticket, timeout: float | None) -> None:
        """Queue the rows of a call; wait while too many bytes are pending.

        Raises: OverloadedError, PoisonedError, ClosedError, CorruptionError.
        """
        queue = self.queue()
        if self._router is None:
            queue.submit(call, ticket, timeout)
        else:
            self._router.append(call, ticket, timeout)

    def commit_here(self, call: Call, ticket: Ticket) -> bool:
        """Commit the rows of a call on this thread, synced. Return False if nothing happened,
        because the thread of the shard must do it.
        """
        queue = self._queue
        return queue is not None and queue.commit_here(call, ticket)

    def slabs(self) -> tuple[Slab, ...]:
        """Return the slabs by generation. Raises: ClosedError, CorruptionError."""
        self.queue()
        slabs = tuple(self._slabs.values())
        if not slabs:
            # The shard was closed meanwhile.
            raise ClosedError("the database is closed")
        return slabs

    def slab(self, slab: SlabId) -> Slab:
        """Return a slab. Raises: SlabDroppedError, NotFoundError, ClosedError."""
        if slab not in self._slabs:
            self.queue()
        return find_slab(self._slabs, slab)

    def ended(self, slab: SlabId) -> bool:
        """Return whether a slab accepts no more rows."""
        return self.slab(slab).record.state is not SlabState.CURRENT

    def slab_bytes(self, slab: SlabId) -> int:
        """Return the disk space of a slab in bytes."""
        queue, leading = self._queue, self._leading
        if queue is not None and queue.committer.slab.id == slab:
            return queue.committer.size_bytes()
        if slab in self._sealed_bytes:
            return self._sealed_bytes[slab]
        if leading is not None:
            with suppress(NotFoundError):
                return directory_bytes(leading.fs, slab_directory(leading.directory, slab))
        # The slab was dropped at this moment.
        return 0

    def measure(self, slab: SlabId) -> None:
        """Measure the disk space of a slab again: its files were replaced."""
        queue, leading = self._queue, self._leading
        if leading is None:
            return
        if queue is not None and queue.committer.slab.id == slab:
            queue.committer.measure()
        with self._lock, suppress(NotFoundError):
            if slab in self._sealed_bytes:
                directory = slab_directory(leading.directory, slab)
                self._sealed_bytes[slab] = directory_bytes(leading.fs, directory)

    def used_bytes(self) -> int:
        """Return the disk space of the shard in bytes; 0 if it is not open."""
        queue = self._queue
        current = 0 if queue is None else queue.committer.size_bytes()
        return sum(self._sealed_bytes.values()) + current

    def end(self) -> int:
        """Return the serial after the last readable row."""
        return end_of(self.slabs())

    def restart_times(self) -> bool:
        """If the timestamps are ahead of the clock, begin a generation whose rows get the time of
        the clock again; return whether they were.
        """
        leading, queue = self._leading, self.queue()
        if leading is None or queue.committer.last_timestamp_us < leading.clock.now_us():
            return False
        queue.seal(partial(self._restart_times, leading))
        return True

    def adopt(self, record: SlabRecord) -> None:
        """Take over a changed record. A slab that is not open yet gets its record later."""
        slab = self._slabs.get(record.id)
        if slab is not None:
            slab.record = record

    def forget(self, slab: SlabId) -> int:
        """Forget a slab that the manifest does not name any more; return its size in bytes."""
        with self._lock:
            self._slabs = {known: self._slabs[known] for known in self._slabs if known != slab}
        return self._sealed_bytes.pop(slab)

    def refuse(self) -> None:
        """Refuse to open the shard from now on."""
        with self._lock:
            # This state refers to the database, which would keep its maps until it is collected.
            self._leading = None

    def close(self) -> SiltstoneError | None:
        """Store the queued calls and end the thread; return the error of the last sync.

        The slabs stay until `release`.
        """
        self.refuse()
        self.wait_for_opening()
        queue, self._queue = self._queue, None
        shared, router = self._shared, self._router
        if shared is not None and router is not None:
            shared.close()
            router.close()
        return None if queue is None else queue.close()

    def release(self) -> None:
        """Release the maps of a closed shard."""
        # The queue and the slabs refer to each other: without this, the maps would stay until they
        # are collected.
        self._slabs = {}

    def _open(self, leading: Leading) -> LogShard:
        """Recover the current slab; the sealed slabs are opened when they are read."""
        manifest = leading.manifest.current
        *sealed, current = manifest.slabs_of(self.number)
        slabs: list[Slab] = []
        for record in sealed:
            slabs.append(open_slab(leading.fs, leading.directory, record, manifest.settings))
            self._sealed_bytes[record.id] = directory_bytes(
                leading.fs, slab_directory(leading.directory, record.id)
            )
        committer, report = reopen_slab(
            leading.fs,
            leading.clock,
            slab_directory(leading.directory, current.id),
            current,
            identity_of(manifest, current.id),
            with_encoding(manifest.settings, current.encoding),
        )
        self._name(*slabs, committer.slab)
        leading.recovered(report)
        return self._start(leading, committer)

    def _start(self, leading: Leading, committer: Committer) -> LogShard:
        self._attend(leading, committer)
        shared = self._share(leading, committer)
        layout = LogLayout(
            self.number,
            committer,
            leading.clock,
            turn_over=partial(self._turn_over, leading),
            admit=leading.admit,
            housekeeping=partial(leading.look_after, self.number),
            examine=None if shared is None else shared.examine,
        )
        queue = LogShard(layout, leading.clock)
        leading.opened.append(self)
        if shared is not None:
            self._follow(leading, shared, queue)
        return queue

    def _share(self, leading: Leading, committer: Committer) -> ReplicatedLog | None:
        """Return the log that all sites of a replicated database share, and commit through it."""
        cluster, manifest = leading.cluster, leading.manifest.current
        if cluster is None:
            return None
        shared = ReplicatedLog(
            fs=leading.fs,
            clock=leading.clock,
            directory=leading.directory,
            database=manifest.database,
            identity=bytes.fromhex(manifest.identity.text),
            shard=self.number,
            next_serial=committer.next_serial,
            cluster=cluster,
            marks=MarkFile(leading.fs, leading.directory, self.number),
        )
        committer.replicate(shared)
        return shared

    def _follow(self, leading: Leading, shared: ReplicatedLog, queue: LogShard) -> None:
        """Begin to read the shared log."""
        assert leading.cluster is not None
        submit, router = partial(queue.submit, timeout=0.0), self._router
        if router is None:
            router = CallRouter(
                shared,
                leading.cluster,
                producer=leading.cluster.producer(),
                submit=submit,
                pending_bytes_max=lambda: leading.manifest.current.settings.pending_bytes_max,
            )
        else:
            router.follow(shared, submit)
        self._shared, self._router = shared, router
        shared.bind(
            Files(
                apply=partial(self._apply, leading, queue),
                publish=lambda: queue.committer.publish(),  # noqa: PLW0108 - another one later
                sync=lambda: queue.committer.sync(),  # noqa: PLW0108
                resume=lambda: queue.committer.resume(),  # noqa: PLW0108
                next_serial=lambda: queue.committer.next_serial,
                order=queue.order,
                take_call=partial(take_call, submit),
                waits=lambda: router.pending,
                changed=router.look,
                offer=partial(self._offer, leading),
                replicas=lambda: leading.manifest.current.settings.replicas,
                sealed_segments=lambda: sealed_segments(
                    leading.fs, leading.directory, leading.manifest.current, self.number
                ),
                check=lambda offer: shared.staging().check(offer, leading.manifest.current),
                install=self._install,
            )
        )

    def _offer(
        self, leading: Leading, marked: Marked, then: Callable[[Offer | None], None]
    ) -> None:
        """Make an offer that another site may copy. On the thread of the shard."""
        manifest = leading.manifest.current
        then(make_offer(leading.fs, leading.directory, manifest, self.number, marked))

    def _install(self) -> None:
        """Replace the files by those that were copied from another site, and open them.

        Calls that wait for a leader wait further. Readers of the old files go on with them.

        Raises: ClosedError, CorruptionError, DiskError; the next start finishes it then.
        """
        begun = Event()
        with self._lock:
            leading, queue = self._leading, self._queue
            if leading is None or queue is None or self._opening is not None:
                raise ClosedError("the database is closed")
            # Other threads that need the shard wait from here on.
            self._opening, self._queue = begun, None
        try:
            if self._shared is not None:
                self._shared.close()
            # Its unsynced data will be replaced.
            queue.close()
            with suppress(ValueError):
                leading.opened.remove(self)
            with leading.lock:
                self.installs += 1
                install(leading.fs, leading.directory, leading.manifest, self.number)
                self._slabs, self._sealed_bytes = {}, {}
            self._queue = self._open(leading)
        finally:
            with self._lock:
                self._opening = None
            begun.set()

    def _apply(self, leading: Leading, queue: LogShard, change: RecordChange) -> None:
        """Store a change that another site has committed."""

        def turn(record: GenerationRecord) -> None:
            queue.turn(lambda committer: self._store_next(leading, committer, record))

        def manage(record: DropRecord | SettingsRecord) -> None:
            leading.manage(self.number, record)

        apply_change(change, queue.committer, turn=turn, manage=manage)

    def _attend(self, leading: Leading, committer: Committer) -> None:
        """Connect the listeners to a committer, and limit the descriptors that it holds open."""
        committer.parks = self.number >= WARM_SHARDS
        committer.park()
        committer.on_stored = leading.listeners.tell
        committer.is_heard = leading.listeners.any

    def _name(self, *slabs: Slab) -> None:
        """Add slabs, the newest last."""
        with self._lock:
            self._slabs = self._slabs | {slab.id: slab for slab in slabs}

    def _turn_over(self, leading: Leading, committer: Committer) -> Committer:
        """Seal the slab and begin the next one.

        Raises: StorageFullError, and the slab stays current; PoisonedError, because after a disk
        error either slab may be the current one.
        """
        try:
            return self._begin_next(leading, committer)
        except DiskError as exc:
            raise committer.poison(exc) from exc

    def _restart_times(self, leading: Leading, committer: Committer) -> Committer:
        """Seal a slab and begin the next one, whose rows get the time of the clock again.

        Raises: the same errors as `_turn_over`.
        """
        now_us = leading.clock.now_us()
        if committer.last_timestamp_us < now_us:
            return committer
        try:
            return self._begin_next(leading, committer, since_us=now_us)
        except DiskError as exc:
            raise committer.poison(exc) from exc

    def _begin_next(
        self, leading: Leading, committer: Committer, since_us: int | None = None
    ) -> Committer:
        """Seal a slab and begin the next one, by a record of the commit log.

        If `since_us` is given, the next slab begins at this time, although rows of the old slab
        have later timestamps: all of them arrived before it.
        """
        committer.check()
        replica = _GenerationReplica(partial(self._store_next, leading, committer))
        committer.log.commit(self._prepare_next(leading, committer, since_us), replica, sync=True)
        replica.publish()
        successor = replica.successor
        assert successor is not None
        return successor

    def _prepare_next(
        self, leading: Leading, committer: Committer, since_us: int | None
    ) -> GenerationRecord:
        """Return the record that ends the generation; the seed of the next one is in it."""
        clock, manifest = leading.clock, leading.manifest.current
        old = committer.slab.record
        until_us = committer.last_timestamp_us + 1
        closed_us = since_us
        if since_us is None:
            since_us = until_us = max(until_us, clock.now_us())
        settings, seed = _next_settings(leading)
        begun = SlabRecord(
            shard=old.shard,
            generation=old.generation + 1,
            state=SlabState.CURRENT,
            since_us=since_us,
            until_us=None,
            created_us=clock.now_us(),
            first_serial=committer.next_serial,
            encoding=encoding_of(settings),
        )
        ended = [
            replace(
                old,
                state=SlabState.SEALED,
                until_us=until_us,
                until_serial=begun.first_serial,
                encoding=(),
            )
        ]
        if closed_us is not None:
            ended = _closed_by(closed_us, ended[0], manifest.slabs_of(self.number))
        final_structure, producers = committer.state()
        structure = committer.inherited(settings.thresholds)
        if seed is not None:
            sow(structure, seed)
        return GenerationRecord(
            ended=ended,
            begun=begun,
            thresholds=settings.thresholds,
            segment_bytes=settings.segment_bytes,
            final_structure=final_structure,
            producers=producers,
            structure=structure.export(),
        )

    def _store_next(
        self, leading: Leading, committer: Committer, record: GenerationRecord
    ) -> Committer:
        """Seal the slab, begin the next one, and replace the manifest."""
        committer.seal(record.final_structure, record.producers)
        manifest = leading.manifest.current
        settings = replace(
            with_encoding(manifest.settings, record.begun.encoding),
            thresholds=record.thresholds,
            segment_bytes=record.segment_bytes,
        )
        successor = begin_in_place(
            leading.fs,
            leading.clock,
            leading.directory,
            replace(manifest, settings=settings),
            record.begun,
            structure=record.structure,
            producers=record.producers,
            serial=record.begun.first_serial,
        )
        if self._shared is None:
            successor.log = committer.log
        else:
            successor.replicate(self._shared)
        self._attend(leading, successor)
        with leading.lock:
            leading.manifest.update(record.change)
            self._sealed_bytes[committer.slab.id] = committer.size_bytes()
            self._name(successor.slab)
            for each in leading.manifest.current.slabs_of(self.number):
                self.adopt(each)
        return successor


class _GenerationReplica:
    """Stores one GENERATION record in the files of a shard."""

    def __init__(self, store: Callable[[GenerationRecord], Committer]) -> None:
        self._store = store
        self.successor: Committer | None = None

    def store(self, record: Record) -> None:
        """Seal the slab and begin the next one; all of it is durable at once."""
        assert isinstance(record, GenerationRecord)
        self.successor = self._store(record)

    def sync(self) -> None:
        """Do nothing: the manifest is durable already."""

    def publish(self) -> None:
        """Do nothing: readers find the new slab, which has no rows yet."""


def _closed_by(
    closed_us: int, sealed: SlabRecord, records: Collection[SlabRecord]
) -> list[SlabRecord]:
    """Return the records of this slab, and of the slabs before it in its shard, that end after
    `closed_us`, with `closed_us` set: all their rows arrived before it.
    """
    others = [record for record in records if record.state is not SlabState.CURRENT]
    return [
        replace(record, closed_us=closed_us)
        for record in [*others, sealed]
        if record.ended_us is not None and record.ended_us > closed_us
    ]


def _next_settings(leading: Leading) -> tuple[DatabaseSettings, Seed | None]:
    """Return the settings of the next generation, and the seed that it begins with."""
    settings = leading.manifest.current.settings
    # A damaged seed is ignored, because it must not prevent a slab from being sealed.
    with suppress(CorruptionError):
        seed = read_seed(leading.fs, leading.directory)
        if seed is not None:
            return replace(settings, thresholds=seed.thresholds or settings.thresholds), seed
    return settings, None
