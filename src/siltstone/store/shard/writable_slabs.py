"""The slabs of a database that this process writes, and its shards."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import partial
from pathlib import PurePath
from threading import Lock
from typing import Any, Final, NamedTuple

from siltstone.clock import Clock
from siltstone.errors import (
    ClosedError,
    CorruptionError,
    DiskError,
    ExistsError,
    NotFoundError,
    SiltstoneError,
    UsageError,
)
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import remove_tree, sweep_temporaries
from siltstone.guard import contain
from siltstone.store.log.first_slab import begin_in_place, first_slab
from siltstone.store.log.opening import (
    RecoveryReport,
    identity_of,
    reopen_slab,
    slab_directory,
)
from siltstone.store.log.slab import Slab
from siltstone.store.log.slab_names import check_open, find_slab, open_slab, ordered
from siltstone.store.log.write.committer import Committer, OnStored
from siltstone.store.log.write.cook import Cooked
from siltstone.store.log.write.layout import LogLayout
from siltstone.store.log.write.shard import LogShard
from siltstone.store.segment.chain import directory_bytes
from siltstone.store.shard.opened_shards import Shards
from siltstone.store.slab.added_logs import AddedLog
from siltstone.store.slab.drops import DropLog, Dropped, Why
from siltstone.store.slab.manifest import (
    Manifest,
    ManifestFile,
    SlabId,
    SlabRecord,
    SlabState,
    read_manifest,
)
from siltstone.store.slab.marks import read_seed, read_tiered, sow, tiered_slabs
from siltstone.store.slab.retention import (
    RECLAIM_SEAL_BYTES,
    due_for_drop,
    due_for_reclaim,
    due_for_turn,
    sets_rotation,
)
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.slab.space import Space
from siltstone.topic.structure import Structure

# This many shards are opened at the start, and hold a file descriptor all the time. Each further
# shard is opened when it is first used, and holds a descriptor only while it stores.
_WARM_SHARDS: Final = 64
# The context in which a slab is dropped; its value says whether the drop is allowed.
Dropping = Callable[[], AbstractContextManager[bool]]
# Greater than every serial.
_END: Final = 1 << 64


class Reclaimable(NamedTuple):
    """The ends of slabs that may be dropped once all their rows are delivered.

    `sealed` has for each shard the serials after its sealed slabs, in order. `current` has the
    serial after the current slab of a shard, if that slab may be sealed for this purpose.
    """

    sealed: dict[int, list[int]]
    current: dict[int, int]


class WritableSlabs:
    """The slabs that this process writes, and its shards."""

    def __init__(self, fs: FileSystem, clock: Clock, directory: PurePath) -> None:
        self._fs = fs
        self._clock = clock
        self._directory = directory
        self._lock = Lock()
        self._drop_lock = Lock()
        self._checked_at = clock.monotonic()
        self.reports: list[RecoveryReport] = []
        self._tell_recovered: Callable[[RecoveryReport], None] | None = None
        sweep_temporaries(fs, directory)
        self._keeper = ManifestFile(fs, directory, read_manifest(fs, directory))
        self._keeper.fold()
        self._finish_drops()
        self._keeper.keep_reserve()
        self._slabs: dict[SlabId, Slab] = {}
        self._of_shard: dict[int, tuple[Slab, ...]] = {}
        self._names_lock = Lock()
        self._sealed_bytes: dict[SlabId, int] = {}
        self._space = Space(fs, directory)
        self.closed = False
        self._closing = False
        self._close_lock = Lock()
        self._configure_lock = Lock()
        self._listeners: tuple[OnStored, ...] = ()
        self.drops = DropLog(self.manifest.database)
        self._topics = set(self.manifest.logs)
        self._shards = Shards(self.manifest.settings.shards, self._open_shard)
        self._open_shards()
        with suppress(CorruptionError):
            # If a mark is damaged, retention reports it and drops nothing.
            self.adopt_tiered()

    def _open_shards(self) -> None:
        """Open the shards that are needed from the start; if one fails, close the others again."""
        try:
            self._shards.open_first(_WARM_SHARDS)
            self._open_measured()
        except BaseException:
            for shard in self._shards.opened():
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
            self._shards.open_first(len(self._shards))

    @property
    def manifest(self) -> Manifest:
        """The manifest as it is on the disk."""
        return self._keeper.current

    def all(self) -> list[Slab]:
        """Return the slabs by generation, then shard. Raises: ClosedError."""
        check_open(closed=self._closing)
        self._shards.open_first(len(self._shards))
        return ordered(self._slabs)

    def of_shard(self, number: int) -> tuple[Slab, ...]:
        """Return the slabs of a shard by generation. Raises: ClosedError, CorruptionError."""
        self.shard(number)
        slabs = self._of_shard.get(number)
        if slabs is None:
            # It was closed meanwhile.
            raise ClosedError("the database is closed")
        return slabs

    def slab(self, slab: SlabId) -> Slab:
        """Return a slab. Raises: SlabDroppedError, NotFoundError, ClosedError."""
        check_open(closed=self._closing)
        if slab not in self._slabs and slab.shard < len(self._shards):
            self._shards.get(slab.shard)
        return find_slab(self._slabs, slab)

    def shard(self, number: int) -> LogShard:
        """Return a shard; open it if necessary. Raises: ClosedError, CorruptionError."""
        shards = self._shards
        # In this order: the shards are released only after `_closing` is set.
        check_open(closed=self._closing)
        return shards.get(number)

    def is_open(self, number: int) -> bool:
        """Return whether a shard is open, without waiting for the disk."""
        return self._shards.find(number) is not None

    def ended(self, slab: SlabId) -> bool:
        """Return whether a slab accepts no more rows."""
        return self.slab(slab).record.state is not SlabState.CURRENT

    def refresh(self) -> bool:
        """Do nothing: readers in this process see each row when it becomes visible."""
        check_open(closed=self._closing)
        return False

    def slab_bytes(self, slab: SlabId) -> int:
        """Return the disk space of a slab in bytes."""
        shard = self._shards.find(slab.shard)
        if shard is not None and shard.committer.slab.id == slab:
            return shard.committer.size_bytes()
        if slab in self._sealed_bytes:
            return self._sealed_bytes[slab]
        try:
            return directory_bytes(self._fs, slab_directory(self._directory, slab))
        except NotFoundError:
            # It was dropped at this moment.
            return 0

    def seal(self) -> None:
        """End the generation of every shard and begin the next one."""
        check_open(closed=self._closing)
        self._shards.open_first(len(self._shards))
        for shard in self._shards.opened():
            shard.seal()

    def restart_times(self) -> int:
        """Begin a new generation in each shard whose timestamps are ahead of the clock, so that new
        rows get the time of the clock again; return the number of these shards.
        """
        check_open(closed=self._closing)
        now_us = self._clock.now_us()
        self._shards.open_first(len(self._shards))
        shards = self._shards.opened()
        ahead = [each for each in shards if each.committer.last_timestamp_us >= now_us]
        for shard in ahead:
            shard.seal(self._restart_times)
        return len(ahead)

    def newest_us(self) -> int:
        """Return the latest time in the current slabs: of a last row, or the start of a slab.

        Of a shard that is not open yet only the start of its slab is known.
        """
        shards = self._shards.opened()
        check_open(closed=self._closing)
        slabs = self.manifest.slabs
        begun = max(slab.since_us for slab in slabs if slab.state is SlabState.CURRENT)
        return max([begun, *(shard.committer.last_timestamp_us for shard in shards)])

    def sync(self) -> None:
        """Make everything that was appended durable."""
        check_open(closed=self._closing)
        for shard in self._shards.opened():
            shard.sync()

    def configure(self, changes: Mapping[str, Any]) -> DatabaseSettings:
        """Apply changed settings. Raises: UsageError."""
        check_open(closed=self._closing)
        with self._configure_lock:
            settings = self._keeper.update(
                lambda manifest: replace(manifest, settings=manifest.settings.changed(changes))
            ).settings
            self._open_measured()
            # A shard that is being opened may have read the settings before the change.
            self._shards.wait_for_opening()
            for shard in self._shards.opened():
                shard.configure(settings)
        return settings

    def add_log(self, topic: str) -> int:
        """Create a shard for a topic, durably; return its number.

        Raises: ExistsError, UsageError for a database whose shards are shared, StorageFullError.
        DiskError; after a crash the topic may exist.
        """
        check_open(closed=self._closing)
        with self._configure_lock:
            manifest = self.manifest
            number, shards = len(manifest.logs), manifest.settings.shards
            if topic in self._topics:
                raise ExistsError(f"topic {topic!r} exists already")
            if not number and shards > 1:
                raise UsageError(f"database {manifest.database!r} is not a database of topic logs")
            if number == shards:
                self._add_shard(number, topic)
            else:
                self._keeper.update(
                    lambda manifest: replace(manifest, logs=(*manifest.logs, topic))
                )
            self._topics.add(topic)
            return number

    def hold_logs(self) -> None:
        """Record, durably, that the shards are topic logs, so that no other rows are stored there.

        Raises: UsageError if there are other rows.
        """
        manifest = self.manifest
        if manifest.holds_logs or manifest.settings.shards > 1:
            return
        if self._shards.get(0).committer.next_serial:
            raise UsageError(
                f"database {manifest.database!r} has rows that do not belong to topic logs: "
                "move them to another database"
            )
        self._keeper.update(lambda manifest: replace(manifest, holds_logs=True))

    def _add_shard(self, number: int, topic: str) -> None:
        """Begin a shard that is the log of a topic; it exists once the manifest or journal names
        it.
        """
        # The files of an earlier attempt are removed below. The disk must not name them.
        self._keeper.settle()
        # The segments contain the topic before the manifest does.
        named = replace(self.manifest, logs=(*self.manifest.logs, topic))
        record, committer = first_slab(self._fs, self._clock, self._directory, named, number)
        added = AddedLog(
            shard=number, topic=topic, since_us=record.since_us, created_us=record.created_us
        )
        try:
            self._keeper.add_log(added)
        except BaseException:
            committer.close()
            raise
        self._name(committer.slab)
        self._shards.add(self._start(committer))

    def _name(self, *slabs: Slab) -> None:
        """Register slabs of one shard, the newest last."""
        with self._names_lock:
            # Other threads iterate over the dictionary meanwhile, so it is replaced and not
            # changed.
            self._slabs = self._slabs | {slab.id: slab for slab in slabs}
            number = slabs[0].id.shard
            self._of_shard[number] = (*self._of_shard.get(number, ()), *slabs)

    def _forget(self, slabs: Collection[SlabId]) -> None:
        with self._names_lock:
            self._slabs = {known: slab for known, slab in self._slabs.items() if known not in slabs}
            for shard in {slab.shard for slab in slabs}:
                others = (known for known in self._of_shard[shard] if known.id not in slabs)
                self._of_shard[shard] = tuple(others)

    def drop(self, slab: SlabId) -> None:
        """Delete a sealed slab: first from the manifest, then from the disk."""
        self.slab(slab)
        with self._lock:
            self._drop({slab: "command"})
        self._finish_drops()

    def _drop(self, slabs: Mapping[SlabId, Why]) -> None:
        """Remove slabs from the manifest, by one change of it; their files are removed later."""
        ends: dict[SlabId, tuple[int, int]] = {}
        for slab in slabs:
            known = self.slab(slab)
            if known.record.state is SlabState.CURRENT:
                raise UsageError(f"slab {slab} is current: seal it, then drop it")
            until = known.record.until_serial
            ends[slab] = (
                known.record.first_serial,
                known.next_serial() if until is None else until,
            )
        delivered = {slab.shard: ends[slab][1] for slab, why in slabs.items() if why == "delivered"}
        self._keeper.update(
            lambda manifest: replace(
                manifest,
                slabs=tuple(record for record in manifest.slabs if record.id not in slabs),
                dropping=(*manifest.dropping, *slabs),
                reclaimed={**manifest.reclaimed, **delivered},
            )
        )
        self._forget(slabs.keys())
        for slab, why in slabs.items():
            first, until = ends[slab]
            self.drops.tell(Dropped(slab, why, until - first, self._sealed_bytes.pop(slab)))

    def leave_free(self, size_bytes: int) -> None:
        """Refuse rows if the disk would have less free space than this, whatever the settings
        allow.
        """
        self._space.left_free_bytes = size_bytes

    def enforce_retention(self) -> list[SlabId]:
        """Drop the slabs that exceed the retention by age or size; return their ids."""
        check_open(closed=self._closing)
        # The threads of all shards do this: two of them must not drop the same slab.
        with self._lock:
            tiering = self._adopt_tiered()
            sizes = {slab.id: self.slab_bytes(slab.id) for slab in self.all()}
            dropped = due_for_drop(
                self.manifest.settings,
                self.manifest.slabs,
                sizes,
                passed_us=self._clock.passed_us,
                tiering=tiering,
            )
            if dropped:
                self._drop(dropped)
        self._finish_drops()
        return list(dropped)

    def reclaimable(self) -> Reclaimable:
        """Return the ends of the slabs that may be dropped once all rows are delivered.

        Raises: CorruptionError.
        """
        check_open(closed=self._closing)
        all_shards = dict.fromkeys(range(self.manifest.settings.shards), _END)
        with self._lock:
            due = due_for_reclaim(self.manifest.slabs, all_shards, tiering=self._adopt_tiered())
        sealed: dict[int, list[int]] = {}
        for record in due:
            assert record.until_serial is not None
            sealed.setdefault(record.shard, []).append(record.until_serial)
        current: dict[int, int] = {}
        if not sets_rotation(self.manifest.settings):
            for shard in self._shards.opened():
                committer = shard.committer
                if committer.rows and committer.size_bytes() >= RECLAIM_SEAL_BYTES:
                    current[shard.number] = committer.next_serial
        return Reclaimable(sealed, current)

    def reclaim(self, needed: Mapping[int, int], dropping: Dropping) -> list[SlabId]:
        """Drop the sealed slabs without a needed row; return their ids.

        `needed` has for each shard the serial from which on rows are needed. Each slab is dropped
        in a `dropping` context, whose value says whether the drop is allowed.
        """
        check_open(closed=self._closing)
        dropped: list[SlabId] = []
        with self._lock:
            due = due_for_reclaim(self.manifest.slabs, needed, tiering=self._adopt_tiered())
            for record in due:
                with dropping() as may_drop:
                    if not may_drop:
                        break
                    self._drop({record.id: "delivered"})
                dropped.append(record.id)
        self._finish_drops()
        return dropped

    def seal_delivered(self, needed: Mapping[int, int]) -> bool:
        """Seal the generations that have RECLAIM_SEAL_BYTES or more and no needed row, unless the
        settings say when they end; return whether there was any.
        """
        check_open(closed=self._closing)
        if sets_rotation(self.manifest.settings):
            return False
        sealed = [
            shard.seal_before(needed[shard.number], RECLAIM_SEAL_BYTES)
            for shard in self._shards.opened()
            if shard.number in needed
        ]
        return any(sealed)

    def adopt_tiered(self) -> None:
        """Mark the sealed slabs that are in the lake as tiered."""
        with self._lock:
            self._adopt_tiered()

    def _adopt_tiered(self) -> bool:
        """Mark the slabs in the lake as tiered; return whether this database is tiered at all."""
        serials = read_tiered(self._fs, self._directory)
        records = tiered_slabs(self.manifest, serials or {})
        if records:
            self._keeper.update(lambda manifest: manifest.with_slabs(records))
            for record in records:
                # A slab that is not open yet gets its record from the manifest.
                if record.id in self._slabs:
                    self._slabs[record.id].record = record
        return serials is not None

    def failure(self) -> Exception | None:
        """Return the error that poisoned a shard, None if no shard is poisoned."""
        found = (shard.committer.poisoned_by for shard in self._shards.opened())
        return next((cause for cause in found if cause is not None), None)

    def close(self) -> None:
        """Store the queued rows and end the threads. Raises: the error of a shard's last sync."""
        self._closing = True
        with self._close_lock:
            if self.closed:
                return
            opened = self._shards.close()
            errors = [error for shard in opened if (error := shard.close()) is not None]
            # Wait for calls of other threads: they must not replace the manifest after another
            # process may open the database.
            with self._configure_lock, self._lock, self._drop_lock:
                self._keeper.close()
                # Only now may the files be opened again.
                self.closed = True
                # Shards and slabs refer to each other: without this, the maps would stay until
                # collected.
                self._slabs, self._of_shard = {}, {}
        if errors:
            raise errors[0]

    def _finish_drops(self) -> None:
        """Remove the files of slabs that are listed under `dropping`."""
        # The threads of all shards do this: two must not remove the same files.
        with self._drop_lock:
            dropping = dict.fromkeys(self._keeper.current.dropping)
            if not dropping:
                return
            for slab in dropping:
                # A crash may have happened between the removal and this update of the manifest.
                if self._fs.exists(place := slab_directory(self._directory, slab)):
                    remove_tree(self._fs, place)
            self._keeper.update(
                lambda manifest: replace(
                    manifest,
                    dropping=tuple(slab for slab in manifest.dropping if slab not in dropping),
                )
            )
            self._keeper.keep_reserve()

    def _open_shard(self, number: int) -> LogShard:
        """Open a shard: recover its current slab; its sealed slabs are opened when read."""
        manifest = self._keeper.current
        *sealed, current = manifest.slabs_of(number)
        slabs = []
        for record in sealed:
            slabs.append(open_slab(self._fs, self._directory, record, manifest.settings))
            self._sealed_bytes[record.id] = directory_bytes(
                self._fs, slab_directory(self._directory, record.id)
            )
        committer, report = reopen_slab(
            self._fs,
            self._clock,
            slab_directory(self._directory, current.id),
            current,
            identity_of(manifest, current.id),
            manifest.settings,
        )
        self._name(*slabs, committer.slab)
        self.reports.append(report)
        if self._tell_recovered is not None:
            contain(partial(self._tell_recovered, report))
        return self._start(committer)

    def when_recovered(self, listener: Callable[[RecoveryReport], None]) -> None:
        """Call the listener for every open shard, and for each later one when it is opened, on the
        thread that opens it.
        """
        self._tell_recovered = listener
        for report in list(self.reports):
            listener(report)

    def on_stored(self, listener: OnStored) -> Callable[[], None]:
        """Call the listener for every frame from now on; return a function that ends it.

        The call is made on the thread of the shard, when readers can see the frame and before it is
        acknowledged. The listener may keep the rows, but must not change them.
        """
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def end() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not listener)

        return end

    def _attend(self, committer: Committer) -> None:
        """Connect the listeners to a committer, and limit the descriptors that it holds open."""
        committer.parks = committer.slab.id.shard >= _WARM_SHARDS
        committer.park()
        committer.on_stored = self._tell
        committer.is_heard = lambda: bool(self._listeners)

    def _tell(self, slab: SlabId, first_serial: int, cooked: Cooked) -> None:
        for listener in self._listeners:
            contain(partial(listener, slab, first_serial, cooked))

    def _start(self, committer: Committer) -> LogShard:
        self._attend(committer)
        number = committer.slab.id.shard
        layout = LogLayout(
            number,
            committer,
            self._clock,
            turn_over=self._turn_over,
            admit=self._admit,
            housekeeping=lambda: self._look_after(number),
        )
        return LogShard(layout, self._clock)

    def _turn_over(self, committer: Committer) -> Committer:
        """Seal the slab of a shard and begin the next one.

        Raises: StorageFullError, and the slab stays current; PoisonedError, because after a disk
        error either slab may be the current one.
        """
        try:
            return self._begin_next(committer)
        except DiskError as exc:
            raise committer.poison(exc) from exc

    def _restart_times(self, committer: Committer) -> Committer:
        """Seal a slab and begin the next one, whose rows get the time of the clock again.

        Raises: the same errors as `_turn_over`.
        """
        now_us = self._clock.now_us()
        if committer.last_timestamp_us < now_us:
            return committer
        try:
            return self._begin_next(committer, since_us=now_us)
        except DiskError as exc:
            raise committer.poison(exc) from exc

    def _begin_next(self, committer: Committer, since_us: int | None = None) -> Committer:
        """Seal a slab and begin the next one, by an update of the manifest.

        If `since_us` is given, the next slab begins at this time, although rows of the old slab
        have later timestamps: all of them arrived before it.
        """
        old = committer.slab
        until_us = committer.last_timestamp_us + 1
        closed_us = since_us
        if since_us is None:
            since_us = until_us = max(until_us, self._clock.now_us())
        committer.seal()
        record = SlabRecord(
            shard=old.id.shard,
            generation=old.id.generation + 1,
            state=SlabState.CURRENT,
            since_us=since_us,
            until_us=None,
            created_us=self._clock.now_us(),
            first_serial=committer.next_serial,
        )
        structure, producers = committer.inherited()
        settings = self._sow(structure)
        successor = begin_in_place(
            self._fs,
            self._clock,
            self._directory,
            replace(self.manifest, settings=settings),
            record,
            structure=structure,
            producers=producers,
            serial=committer.next_serial,
        )
        self._attend(successor)
        sealed = replace(
            old.record,
            state=SlabState.SEALED,
            until_us=until_us,
            until_serial=record.first_serial,
        )
        with self._lock:
            ended = [sealed]
            if closed_us is not None:
                ended = self._closed_by(closed_us, sealed)
            self._keeper.update(
                lambda manifest: replace(
                    manifest.with_slabs([*ended, record]),
                    settings=replace(manifest.settings, thresholds=settings.thresholds),
                )
            )
            self._sealed_bytes[old.id] = committer.size_bytes()
            self._name(successor.slab)
            for each in ended:
                self._slabs[each.id].record = each
        return successor

    def _closed_by(self, closed_us: int, sealed: SlabRecord) -> list[SlabRecord]:
        """Return the records of this slab, and of the slabs before it in its shard, that end after
        `closed_us`, with `closed_us` set: all their rows arrived before it.
        """
        others = [
            record
            for record in self.manifest.slabs
            if record.shard == sealed.shard and record.state is not SlabState.CURRENT
        ]
        return [
            replace(record, closed_us=closed_us)
            for record in [*others, sealed]
            if record.ended_us is not None and record.ended_us > closed_us
        ]

    def _sow(self, structure: Structure) -> DatabaseSettings:
        """Apply the seed for the next generation to a structure; return its settings."""
        settings = self.manifest.settings
        # A damaged seed is ignored, because it must not prevent a slab from being sealed.
        with suppress(CorruptionError):
            seed = read_seed(self._fs, self._directory)
            if seed is not None:
                sow(structure, seed)
                return replace(settings, thresholds=seed.thresholds or settings.thresholds)
        return settings

    def _admit(self, size_bytes: int) -> SiltstoneError | None:
        """Return the error if `size_bytes` more may not be stored, else None."""
        manifest = self.manifest
        used = sum(self._sealed_bytes.values())
        used += sum(shard.committer.size_bytes() for shard in self._shards.opened())
        return self._space.refusal(
            manifest.database, manifest.settings, used_bytes=used, size_bytes=size_bytes
        )

    def _look_after(self, number: int) -> None:
        """Seal a slab that is due, and from time to time drop the slabs that are due."""
        shard = self._shards.find(number)
        if shard is None:
            # The shard is still being opened.
            return
        settings = self.manifest.settings
        turned = due_for_turn(
            settings,
            shard.committer.slab.record,
            rows=shard.committer.rows,
            size_bytes=shard.committer.size_bytes(),
            now_us=self._clock.now_us(),
            reclaims=settings.reclaim != "none",
        )
        if turned:
            shard.turn()
        now = self._clock.monotonic()
        if turned or now - self._checked_at >= 1.0:
            self._checked_at = now
            if settings.retain_bytes is not None or settings.retain_seconds is not None:
                self.enforce_retention()
