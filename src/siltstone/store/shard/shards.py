"""The shards of a database, each in its role, and their shared parts: manifest, settings,
upkeep.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from threading import Lock
from typing import Any

from siltstone.clock import Clock
from siltstone.errors import (
    CorruptionError,
    ExistsError,
    LockedError,
    NotFoundError,
    SiltstoneError,
    UsageError,
)
from siltstone.fs.api import FileSystem
from siltstone.fs.api import Lock as FileLock
from siltstone.fs.publish import create_directories
from siltstone.guard import contain
from siltstone.settings.declare import pending
from siltstone.store.log.first_slab import first_slab
from siltstone.store.log.opening import RecoveryReport
from siltstone.store.log.records import DropRecord, SettingsRecord
from siltstone.store.log.slab import Slab
from siltstone.store.log.slab_names import check_open, unknown_slab
from siltstone.store.log.write.committer import OnStored
from siltstone.store.log.write.shard import LogShard
from siltstone.store.shard.compaction import Compaction, settle
from siltstone.store.shard.manifest_change import ManifestChange
from siltstone.store.shard.reader import ReaderShard
from siltstone.store.shard.replicated.copying import copied_shards, install
from siltstone.store.shard.replicated.port import NotLeaderError, Replication
from siltstone.store.shard.shard import READING, Role, Roles
from siltstone.store.shard.upkeep import Upkeep
from siltstone.store.shard.writable import WARM_SHARDS, Leading, Listeners, WritableShard
from siltstone.store.slab.added_logs import AddedLog
from siltstone.store.slab.drops import DropLog
from siltstone.store.slab.manifest import (
    LEADERS,
    Manifest,
    ManifestFile,
    SlabId,
    SlabState,
    read_manifest,
)
from siltstone.store.slab.marks import with_marks
from siltstone.store.slab.retention import (
    due_for_turn,
    ends_generations,
    require_retention,
    sets_rotation,
)
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.slab.space import Space


class Shards:
    """The shards of a database by number. All methods may be called from any thread."""

    def __init__(
        self,
        fs: FileSystem,
        clock: Clock,
        directory: PurePath,
        roles: Roles,
        cluster: Replication | None = None,
    ) -> None:
        self._fs = fs
        self._clock = clock
        self._directory = directory
        self._roles = roles
        self.closed = False
        self._closing = False
        self._close_lock = Lock()
        self._refresh_lock = Lock()
        self._configure_lock = Lock()
        self._shards: list[WritableShard | ReaderShard] = []
        self._leaders: dict[int, WritableShard] = {}
        # The led shards that are open.
        self._opened: list[WritableShard] = []
        self._readers: dict[int, ReaderShard] = {}
        self.reports: list[RecoveryReport] = []
        self._tell_recovered: Callable[[RecoveryReport], None] | None = None
        self._listeners = Listeners()
        self._checked_at = clock.monotonic()
        self._checked_bytes: dict[int, int] = {}
        self._space = Space(fs, directory)
        self._topics: set[str] = set()
        self._measured_at = -1.0
        self._measured_bytes = 0
        # The locks of the led shards, if other processes may lead the other ones.
        self._locks: list[FileLock] = []
        self._leading: Leading | None = None
        self._upkeep: Upkeep | None = None
        self._compaction: Compaction | None = None
        self._cluster: Replication | None = None
        if roles.leads_any and read_manifest(fs, directory).settings.backend == "replicated":
            self._cluster = cluster
            if cluster is None:
                # Only the sites of its cluster write to it.
                self._roles = roles = READING
        if not roles.leads_any:
            self._read_manifest = read_manifest(fs, directory)
            self._adopt(self._read_manifest)
            return
        try:
            self._lead(self._manifest_file())
        except BaseException:
            self._release_locks()
            raise

    def _lead(self, file: ManifestFile) -> None:
        """Finish changes that a crash interrupted, and open the led shards that are needed from the
        start.
        """
        file.sweep()
        file.fold()
        for number in copied_shards(self._fs, self._directory):
            install(self._fs, self._directory, file, number)
        self._leading = Leading(
            fs=self._fs,
            clock=self._clock,
            directory=self._directory,
            manifest=file,
            lock=Lock(),
            listeners=self._listeners,
            admit=self._admit,
            look_after=self._look_after,
            recovered=self._recovered,
            opened=self._opened,
            manage=self._manage,
            cluster=self._cluster,
        )
        self._upkeep = Upkeep(self._leading, self._leaders)
        self._compaction = Compaction(self._leading, self._leaders)
        self._topics = set(file.current.logs)
        self._adopt(file.current)
        settle(self._leading, self._leaders)
        self._upkeep.finish_drops()
        file.keep_reserve()
        self._open_shards()
        with suppress(CorruptionError):
            # If a mark is damaged, retention reports it and drops nothing.
            self._upkeep.adopt_tiered()

    @property
    def manifest(self) -> Manifest:
        """The manifest: as it is on the disk if this process leads a shard, else as it was read."""
        return self._read_manifest if self._leading is None else self._leading.manifest.current

    @property
    def leads(self) -> bool:
        """Whether this process leads a shard."""
        return self._leading is not None

    @property
    def reads_others(self) -> bool:
        """Whether other processes write shards that this process reads."""
        return not self._roles.leads_all

    @property
    def compaction(self) -> Compaction:
        """Compacts segments of the led shards. Raises: UsageError, ClosedError."""
        if self._leading is None:
            raise UsageError("the store was opened for reading only")
        check_open(closed=self._closing)
        assert self._compaction is not None
        return self._compaction

    @property
    def upkeep(self) -> Upkeep:
        """Drops slabs of the led shards. Raises: UsageError, ClosedError."""
        if self._upkeep is None:
            raise UsageError("the store was opened for reading only")
        check_open(closed=self._closing)
        return self._upkeep

    def numbered(self, number: int) -> WritableShard | ReaderShard:
        """Return a shard. Raises: ClosedError, NotFoundError."""
        check_open(closed=self._closing)
        if not 0 <= number < len(self._shards):
            raise NotFoundError(f"unknown shard {number}: shards={len(self._shards)}")
        return self._shards[number]

    def leader(self, number: int) -> WritableShard:
        """Return a shard that this process leads. Raises: UsageError, ClosedError."""
        self.numbered(number)
        if number in self._leaders:
            return self._leaders[number]
        raise UsageError(f"this process only reads shard {number}: ask its leader")

    def listed(self) -> list[WritableShard | ReaderShard]:
        """Return all shards by number. Raises: ClosedError."""
        check_open(closed=self._closing)
        return list(self._shards)

    def all(self) -> list[Slab]:
        """Return the slabs by generation, then shard. Raises: ClosedError."""
        slabs = [slab for shard in self.listed() for slab in shard.slabs()]
        return sorted(slabs, key=lambda slab: (slab.id.generation, slab.id.shard))

    def slab(self, slab: SlabId) -> Slab:
        """Return a slab. Raises: SlabDroppedError, NotFoundError, ClosedError."""
        check_open(closed=self._closing)
        if slab.shard not in self._leaders:
            reader = self._readers.get(slab.shard)
            if reader is None or not reader.has(slab):
                self.refresh()
        if not 0 <= slab.shard < len(self._shards):
            raise unknown_slab(slab)
        return self._shards[slab.shard].slab(slab)

    def ended(self, slab: SlabId) -> bool:
        """Return whether a slab accepts no more rows, and all its rows are known here."""
        self.slab(slab)
        return self.numbered(slab.shard).ended(slab)

    def slab_bytes(self, slab: SlabId) -> int:
        """Return the disk space of a slab in bytes. Raises: NotFoundError."""
        return self.numbered(slab.shard).slab_bytes(slab)

    def refresh(self) -> bool:
        """Read from the disk the rows that other processes have written; return False if there are
        no other processes.

        Readers in this process see each row of a led shard when it becomes visible.
        """
        check_open(closed=self._closing)
        if self._roles.leads_all:
            return False
        with self._refresh_lock:
            self._read_again()
            for shard in list(self._readers.values()):
                shard.refresh(self._read_again)
        return True

    def newest_us(self) -> int:
        """Return the latest time in the current slabs: of a last row, or the start of a slab.

        Of a shard that is not open yet only the start of its slab is known.
        """
        check_open(closed=self._closing)
        newest = [shard.newest_us() for shard in self._readers.values()]
        newest += [
            slab.since_us
            for slab in self.manifest.slabs
            if slab.state is SlabState.CURRENT and slab.shard in self._leaders
        ]
        for shard in list(self._opened):
            queue = shard.opened
            if queue is not None:
                newest.append(queue.committer.last_timestamp_us)
        return max(newest)

    def seal(self) -> None:
        """End the generation of every led shard and begin the next one."""
        check_open(closed=self._closing)
        for shard in self._opened_first(len(self._shards)):
            queue = shard.queue()
            self._check_leads(shard)
            queue.seal()

    def restart_times(self) -> int:
        """Begin a new generation in each led shard whose timestamps are ahead of the clock, so that
        new rows get the time of the clock again; return the number of these shards.
        """
        check_open(closed=self._closing)
        return sum(shard.restart_times() for shard in self._opened_first(len(self._shards)))

    def sync(self) -> None:
        """Make everything that was appended durable."""
        check_open(closed=self._closing)
        for shard in list(self._opened):
            queue = shard.opened
            if queue is not None:
                queue.sync()

    def configure(self, changes: Mapping[str, Any]) -> DatabaseSettings:
        """Apply changed settings. Raises: UsageError."""
        leading = self._leads_all("change settings")
        with self._configure_lock:
            # Impossible changes are refused before they are committed.
            changed = leading.manifest.current.settings.changed(changes)
            if {"retain_bytes", "rotate_bytes", "rotate_seconds"} & changes.keys():
                # A database of version 0.1.0 may have a smaller retention; it stays as it is.
                require_retention(changed)
            # The other shards follow when the manifest has the settings.
            self._on_leader(0, partial(self._commit_settings, leading, changes))
            settings = leading.manifest.current.settings
            self._open_measured()
            for shard in list(self._leaders.values()):
                # A shard that is being opened may have read the settings before the change.
                shard.wait_for_opening()
                queue = shard.opened
                if queue is not None:
                    queue.configure(settings)
        return settings

    def pending_settings(self) -> dict[str, list[Any]]:
        """Return the settings that the next generation will have, with the values until then."""
        manifest = self.manifest
        return pending(manifest.settings, (record.encoding for record in manifest.slabs))

    def add_log(self, topic: str) -> int:
        """Create a shard for a topic, durably; return its number.

        Raises: ExistsError, UsageError for a database whose shards are shared, StorageFullError.
        DiskError; after a crash the topic may exist.
        """
        leading = self._leads_all("add a topic log")
        with self._configure_lock:
            manifest = self.manifest
            number, shards = len(manifest.logs), manifest.settings.shards
            if topic in self._topics:
                raise ExistsError(f"topic {topic!r} exists already")
            if not number and shards > 1:
                raise UsageError(f"database {manifest.database!r} is not a database of topic logs")
            if number == shards:
                self._add_shard(leading, number, topic)
            else:
                leading.manifest.update(
                    lambda manifest: replace(manifest, logs=(*manifest.logs, topic))
                )
            self._topics.add(topic)
            return number

    def hold_logs(self) -> None:
        """Record, durably, that the shards are topic logs, so that no other rows are stored there.

        Raises: UsageError if there are other rows.
        """
        leading = self._leads_all("add topic logs")
        manifest = self.manifest
        if manifest.holds_logs or manifest.settings.shards > 1:
            return
        if self._leaders[0].queue().committer.next_serial:
            raise UsageError(
                f"database {manifest.database!r} has rows that do not belong to topic logs: "
                "move them to another database"
            )
        leading.manifest.update(lambda manifest: replace(manifest, holds_logs=True))

    @property
    def drops(self) -> DropLog:
        """The slabs that were dropped since the database was opened. Raises: UsageError."""
        if self._upkeep is None:
            raise UsageError("the store was opened for reading only")
        return self._upkeep.drops

    def drop(self, slab: SlabId) -> None:
        """Delete a sealed slab: first from the manifest, then from the disk."""
        self.slab(slab)
        self._on_leader(slab.shard, partial(self.upkeep.drop, slab))

    def enforce_retention(self) -> list[SlabId]:
        """Drop the slabs that exceed the retention by age or size; return their ids."""
        upkeep = self.upkeep
        if self._cluster is not None:
            return self._enforce_where_led(upkeep)
        if self._readers:
            with self._refresh_lock:
                self._read_again()
        self._opened_first(len(self._shards))
        return upkeep.enforce_retention(self._known_bytes)

    def leave_free(self, size_bytes: int) -> None:
        """Refuse rows if the disk would have less free space than this, whatever the settings
        allow.
        """
        self._space.left_free_bytes = size_bytes

    def failure(self) -> Exception | None:
        """Return the error that poisoned a shard, None if no shard is poisoned."""
        for shard in list(self._opened):
            queue = shard.opened
            if queue is not None and queue.committer.poisoned_by is not None:
                return queue.committer.poisoned_by
        return None

    def when_recovered(self, listener: Callable[[RecoveryReport], None]) -> None:
        """Call the listener for every open shard, and for each later one when it is opened, on the
        thread that opens it.
        """
        self._tell_recovered = listener
        for report in list(self.reports):
            listener(report)

    def on_stored(self, listener: OnStored) -> Callable[[], None]:
        """Call the listener for every frame of the led shards from now on; return a function that
        ends it.

        The call is made on the thread of the shard, when readers can see the frame and before it is
        acknowledged. The listener may keep the rows, but must not change them.
        """
        return self._listeners.add(listener)

    def close(self) -> None:
        """Store the queued rows and end the threads. Raises: the error of a shard's last sync."""
        self._closing = True
        with self._close_lock:
            if self.closed:
                return
            for leader in list(self._leaders.values()):
                leader.refuse()
            closed = [shard.close() for shard in list(self._shards)]
            errors = [error for error in closed if error is not None]
            # Wait for calls of other threads: they must not replace the manifest after another
            # process may open the database.
            with self._configure_lock:
                if self._upkeep is not None:
                    self._upkeep.close()
                # Only now may the files be opened again.
                self.closed = True
                for leader in list(self._leaders.values()):
                    leader.release()
                self._release_locks()
        if errors:
            raise errors[0]

    def _manifest_file(self) -> ManifestFile:
        """Return the manifest; lock the led shards if other processes may lead the other ones.

        Raises: LockedError, UsageError.
        """
        manifest = read_manifest(self._fs, self._directory)
        if self._roles.leads_all:
            return ManifestFile(self._fs, self._directory, manifest)
        count = manifest.settings.shards
        if manifest.holds_logs:
            raise UsageError(
                f"database {manifest.database!r} has topic logs, so only one process can lead its "
                "shards"
            )
        led = [number for number in range(count) if self._roles.of(number) is Role.LEADER]
        unknown = set(self._roles.others) - set(range(count))
        if unknown:
            raise UsageError(f"unknown shard {min(unknown)}: shards={count}")
        create_directories(self._fs, self._directory / LEADERS)
        for number in led:
            try:
                self._locks.append(self._fs.lock(self._directory / LEADERS / str(number)))
            except LockedError as exc:
                raise LockedError(f"another process leads shard {number}: {exc}") from exc
        # Another leader may have changed these shards before the locks were taken.
        manifest = read_manifest(self._fs, self._directory)
        return ManifestFile(self._fs, self._directory, manifest, frozenset(led))

    def _release_locks(self) -> None:
        locks, self._locks = self._locks, []
        for lock in locks:
            lock.release()

    def _leads_all(self, act: str) -> Leading:
        """Return the shared state of the led shards, if all shards are led. Raises: UsageError."""
        check_open(closed=self._closing)
        if self._leading is None:
            raise UsageError("the store was opened for reading only")
        if not self._roles.leads_all:
            raise UsageError(f"to {act}, open the database with all its shards for writing")
        return self._leading

    def _on_leader(self, number: int, act: Callable[[], None]) -> None:
        """Commit something that is not rows: in a replicated database, on the thread of the shard.

        Raises: NotLeaderError, which names the site that leads the shard.
        """
        if self._cluster is None:
            act()
            return
        shard = self._leaders[number]
        queue = shard.queue()
        self._check_leads(shard)
        queue.order(act).wait()

    def _check_leads(self, shard: WritableShard) -> None:
        """Check that this site leads a shard. Raises: NotLeaderError."""
        if shard.role is not Role.LEADER:
            raise NotLeaderError(
                f"another site leads shard {shard.number}, run this there: "
                f"{shard.leading_site or 'none'}"
            )

    def _commit_settings(self, leading: Leading, changes: Mapping[str, Any]) -> None:
        change = ManifestChange(leading.manifest)
        self._leaders[0].log.commit(SettingsRecord(changes), change, sync=True)
        # This does nothing if the log has synced the change already.
        change.sync()

    def _enforce_where_led(self, upkeep: Upkeep) -> list[SlabId]:
        """Drop the slabs that are due, in the shards that this site leads."""
        dropped: list[SlabId] = []
        for number, shard in self._leaders.items():
            if shard.role is Role.LEADER:
                act = partial(self._enforce_one, upkeep, number, dropped)
                shard.queue().order(act).wait()
        return dropped

    def _enforce_one(self, upkeep: Upkeep, number: int, dropped: list[SlabId]) -> None:
        dropped += upkeep.enforce_retention(self._known_bytes, only=number)

    def _read_again(self) -> None:
        """Adopt the manifest that is on the disk now."""
        if self._leading is not None:
            self._adopt(self._leading.manifest.refresh())
            return
        known = self.manifest
        manifest = read_manifest(self._fs, self._directory)
        if manifest.salt != known.salt:
            # The slabs of both databases have the same names.
            raise NotFoundError(
                f"database {manifest.database!r} was dropped and created again: open the new one"
            )
        self._adopt(manifest)

    def _adopt(self, manifest: Manifest) -> None:
        """Add the shards that the manifest has, and let readers know its slabs."""
        if self._roles.others or self._leading is None:
            # The leader of a shard that is only read here marks its slabs as tiered.
            seen = with_marks(self._fs, self._directory, manifest)
        else:
            seen = manifest
        if self._leading is None:
            self._read_manifest = seen
        for number in range(len(self._shards), manifest.settings.shards):
            if self._roles.of(number) is Role.LEADER and self._leading is not None:
                self._leaders[number] = WritableShard(number, self._leading)
                self._shards.append(self._leaders[number])
            else:
                self._readers[number] = ReaderShard(number, self._fs, self._directory)
                self._shards.append(self._readers[number])
        for number, reader in self._readers.items():
            reader.adopt(seen.slabs_of(number), seen.settings)

    def _opened_first(self, count: int) -> list[WritableShard]:
        """Open the led shards among the first `count`, and return them."""
        shards = [shard for shard in list(self._leaders.values()) if shard.number < count]
        for shard in shards:
            shard.queue()
        return shards

    def _open_shards(self) -> None:
        """Open the shards that are needed from the start; if one fails, close the others again."""
        try:
            self._opened_first(WARM_SHARDS)
            self._open_measured()
        except BaseException:
            for shard in self._leaders.values():
                shard.close()
            raise

    def _open_measured(self) -> None:
        """Open all shards if the settings need the age or the size of each one."""
        settings = self.manifest.settings
        limits = (
            settings.rotate_seconds,
            settings.rotate_bytes,
            settings.retain_seconds,
            settings.retain_bytes,
            settings.quota_bytes,
        )
        if settings.reclaim != "none" or any(limit is not None for limit in limits):
            self._opened_first(len(self._shards))

    def _add_shard(self, leading: Leading, number: int, topic: str) -> None:
        """Begin a shard that is the log of a topic; it exists once the manifest or journal names
        it.
        """
        # The files of an earlier attempt are removed below. The disk must not name them.
        leading.manifest.settle()
        # The segments contain the topic before the manifest does.
        named = replace(self.manifest, logs=(*self.manifest.logs, topic))
        record, committer = first_slab(self._fs, self._clock, self._directory, named, number)
        added = AddedLog(
            shard=number, topic=topic, since_us=record.since_us, created_us=record.created_us
        )
        try:
            leading.manifest.add_log(added)
        except BaseException:
            committer.close()
            raise
        self._leaders[number] = WritableShard(number, leading, committer)
        self._shards.append(self._leaders[number])

    def _recovered(self, report: RecoveryReport) -> None:
        self.reports.append(report)
        if self._tell_recovered is not None:
            contain(partial(self._tell_recovered, report))

    def _known_bytes(self, slab: SlabId) -> int:
        """Return the disk space of a slab in bytes, 0 if it was dropped."""
        try:
            return self.slab_bytes(slab)
        except NotFoundError:
            return 0

    def _admit(self, size_bytes: int) -> SiltstoneError | None:
        """Return the error if `size_bytes` more may not be stored, else None."""
        manifest = self.manifest
        used = sum([shard.used_bytes() for shard in list(self._opened)])
        if self._readers and manifest.settings.quota_bytes is not None:
            used += self._followed_bytes()
        return self._space.refusal(
            manifest.database, manifest.settings, used_bytes=used, size_bytes=size_bytes
        )

    def _followed_bytes(self) -> int:
        """Return the disk space of the shards that are only read here, measured once a second."""
        now = self._clock.monotonic()
        if now - self._measured_at >= 1.0:
            self._measured_at = now
            with self._refresh_lock:
                self._read_again()
            self._measured_bytes = sum(
                self._known_bytes(record.id)
                for record in self.manifest.slabs
                if record.shard in self._readers
            )
        return self._measured_bytes

    def _manage(self, number: int, record: DropRecord | SettingsRecord) -> None:
        """Store a record of another site that changes the manifest."""
        assert self._leading is not None
        assert self._upkeep is not None
        if isinstance(record, DropRecord):
            self._upkeep.adopt_drop(record)
            return
        change = ManifestChange(self._leading.manifest)
        change.store(record)
        change.sync()
        settings = self._leading.manifest.current.settings
        for shard in list(self._leaders.values()):
            queue = shard.opened
            if queue is None:
                continue
            if shard.number == number:
                queue.committer.configure(settings)
            else:
                # The thread of that shard does it. Do not wait for that thread here.
                queue.order(partial(_configure, queue, settings))

    def _look_after(self, number: int) -> None:
        """Seal a slab that is due, and from time to time drop the slabs that are due."""
        settings = self.manifest.settings
        # First, because this is called after each flush, and most databases have no limits.
        if not ends_generations(settings) and settings.reclaim == "none":
            return
        queue = self._leaders[number].opened
        if queue is None or self._leaders[number].role is not Role.LEADER:
            # The shard is still being opened, or it is being closed; or another site decides.
            return
        size_bytes = queue.committer.size_bytes()
        turned = due_for_turn(
            settings,
            queue.committer.slab.record,
            rows=queue.committer.rows,
            size_bytes=size_bytes if sets_rotation(settings) else queue.committer.used_bytes(),
            now_us=self._clock.now_us(),
            reclaims=settings.reclaim != "none",
        )
        if turned:
            queue.turn()
        now = self._clock.monotonic()
        size_bytes = queue.committer.size_bytes()
        # The disk space grew by an allocation, or a new slab was begun.
        grown = settings.retain_bytes and size_bytes != self._checked_bytes.get(number)
        if turned or grown or now - self._checked_at >= 1.0:
            self._checked_at = now
            self._checked_bytes[number] = size_bytes
            limits = (settings.retain_bytes, settings.retain_seconds)
            if limits == (None, None):
                return
            if self._cluster is None:
                self.enforce_retention()
            else:
                self.upkeep.enforce_retention(self._known_bytes, only=number)


def _configure(queue: LogShard, settings: DatabaseSettings) -> None:
    queue.committer.configure(settings)
