"""The slabs of a database that this process writes, and its shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from pathlib import PurePath
from threading import Lock
from typing import Any, Final

from siltstone.clock import Clock
from siltstone.errors import (
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
from siltstone.segment.chain import directory_bytes
from siltstone.store.birth import begin_in_place, first_slab
from siltstone.store.committer import Committer, OnStored
from siltstone.store.cook import Cooked
from siltstone.store.manifest import (
    Manifest,
    ManifestKeeper,
    SlabId,
    SlabRecord,
    SlabState,
    read_manifest,
)
from siltstone.store.marks import read_seed, read_tiered, sow, tiered_slabs
from siltstone.store.opening import (
    RecoveryReport,
    identity_of,
    reopen_slab,
    slab_directory,
)
from siltstone.store.retention import due_for_drop, due_for_turn
from siltstone.store.settings import DatabaseSettings
from siltstone.store.shard import Shard
from siltstone.store.slab import Slab
from siltstone.store.slab_names import check_open, find_slab, open_slab, ordered
from siltstone.store.space import Space
from siltstone.topic.structure import Structure

# So many shards hold a file descriptor all the time; each further one only while it stores.
_WARM_SHARDS: Final = 64


class WritableSlabs:
    """The slabs of the process that writes them, and its shards."""

    def __init__(self, fs: FileSystem, clock: Clock, directory: PurePath) -> None:
        self._fs = fs
        self._clock = clock
        self._directory = directory
        self._lock = Lock()
        self._drop_lock = Lock()
        self._checked_at = clock.monotonic()
        self.reports: list[RecoveryReport] = []
        sweep_temporaries(fs, directory)
        self._keeper = ManifestKeeper(fs, directory, read_manifest(fs, directory))
        self._finish_drops()
        self._keeper.keep_reserve()
        self._slabs: dict[SlabId, Slab] = {}
        self._sealed_bytes: dict[SlabId, int] = {}
        self._space = Space(fs, directory)
        self.closed = False
        self._closing = False
        self._close_lock = Lock()
        self._configure_lock = Lock()
        self._shards: list[Shard] = []
        self._listeners: tuple[OnStored, ...] = ()
        self._shards = [self._start(committer) for committer in self._reopen_all()]
        with suppress(CorruptionError):
            # Retention tells of a damaged mark, and drops nothing.
            self.adopt_tiered()

    def _reopen_all(self) -> list[Committer]:
        """Come back to every shard; where one cannot be opened the others are closed again."""
        committers: list[Committer] = []
        try:
            for number in range(self.manifest.settings.shards):
                committers.append(self._reopen(number))
                self._attend(committers[-1])
        except BaseException:
            for committer in committers:
                with suppress(SiltstoneError):
                    committer.close()
            raise
        return committers

    @property
    def manifest(self) -> Manifest:
        """The manifest as it is on the disk."""
        return self._keeper.current

    def all(self) -> list[Slab]:
        """Return the slabs by generation, then shard. Raises: ClosedError."""
        check_open(closed=self._closing)
        return ordered(self._slabs)

    def slab(self, slab: SlabId) -> Slab:
        """Return a slab. Raises: SlabDroppedError, NotFoundError, ClosedError."""
        check_open(closed=self._closing)
        return find_slab(self._slabs, slab)

    def shard(self, number: int) -> Shard:
        """Return a shard. Raises: ClosedError."""
        shards = self._shards
        # In this order: once they are let go of we are closing.
        check_open(closed=self._closing)
        return shards[number]

    def ended(self, slab: SlabId) -> bool:
        """Say whether a slab takes no more rows."""
        return self.slab(slab).record.state is not SlabState.CURRENT

    def refresh(self) -> bool:
        """Do nothing: readers in this process see each row as it becomes visible."""
        check_open(closed=self._closing)
        return False

    def slab_bytes(self, slab: SlabId) -> int:
        """Return the disk space a slab takes."""
        for shard in self._shards:
            if shard.committer.slab.id == slab:
                return shard.committer.size_bytes()
        if slab in self._sealed_bytes:
            return self._sealed_bytes[slab]
        try:
            return directory_bytes(self._fs, slab_directory(self._directory, slab))
        except NotFoundError:
            # Dropped at this moment.
            return 0

    def seal(self) -> None:
        """Turn the generation of every shard over."""
        check_open(closed=self._closing)
        for shard in self._shards:
            shard.seal()

    def sync(self) -> None:
        """Make all that was appended durable."""
        check_open(closed=self._closing)
        for shard in self._shards:
            shard.sync()

    def configure(self, changes: Mapping[str, Any]) -> DatabaseSettings:
        """Put changed settings into force. Raises: UsageError."""
        check_open(closed=self._closing)
        with self._configure_lock:
            settings = self._keeper.update(
                lambda manifest: replace(manifest, settings=manifest.settings.changed(changes))
            ).settings
            for shard in self._shards:
                shard.configure(settings)
        return settings

    def add_log(self, topic: str) -> int:
        """Give a topic a shard of its own, durably; return its number.

        Raises: ExistsError, UsageError for a database whose shards are shared, StorageFullError.
        """
        check_open(closed=self._closing)
        with self._configure_lock:
            manifest = self.manifest
            number, shards = len(manifest.logs), manifest.settings.shards
            if topic in manifest.logs:
                raise ExistsError(f"topic {topic!r} exists already")
            if not number and shards > 1:
                raise UsageError(f"database {manifest.database!r} is not a database of topic logs")
            if number == shards:
                self._add_shard(replace(manifest.settings, shards=shards + 1), number, topic)
            self._keeper.update(lambda manifest: replace(manifest, logs=(*manifest.logs, topic)))
            return number

    def hold_logs(self) -> None:
        """Keep in mind, durably, that the shards are topic logs, so that nothing else goes there.

        Raises: UsageError where other rows are there.
        """
        manifest = self.manifest
        if manifest.holds_logs or manifest.settings.shards > 1:
            return
        if self._shards[0].committer.rows:
            raise UsageError(
                f"database {manifest.database!r} has rows that do not belong to topic logs: "
                "move them to another database"
            )
        self._keeper.update(lambda manifest: replace(manifest, holds_logs=True))

    def _add_shard(self, settings: DatabaseSettings, number: int, topic: str) -> None:
        """Begin a shard; the manifest makes it so. A crash may leave it without its topic."""
        # Its segments name the topic before the manifest does.
        named = replace(self.manifest, logs=(*self.manifest.logs, topic))
        record, committer = first_slab(self._fs, self._clock, self._directory, named, number)
        with self._lock:
            self._keeper.update(
                lambda manifest: replace(manifest.with_slab(record), settings=settings)
            )
            self._slabs = self._slabs | {record.id: committer.slab}
            self._shards = [*self._shards, self._start(committer)]

    def drop(self, slab: SlabId) -> None:
        """Delete a sealed slab: out of the manifest first, then off the disk."""
        with self._lock:
            self._drop(slab)
        self._finish_drops()

    def _drop(self, slab: SlabId) -> None:
        if self.slab(slab).record.state is SlabState.CURRENT:
            raise UsageError(f"slab {slab} is current: seal it, then drop it")
        self._keeper.update(
            lambda manifest: replace(
                manifest,
                slabs=tuple(record for record in manifest.slabs if record.id != slab),
                dropping=(*manifest.dropping, slab),
            )
        )
        self._slabs = {known: self._slabs[known] for known in self._slabs if known != slab}
        self._sealed_bytes.pop(slab)

    def leave_free(self, size_bytes: int) -> None:
        """Refuse rows when the disk has less left, also where the settings would allow them."""
        self._space.left_free_bytes = size_bytes

    def enforce_retention(self) -> list[SlabId]:
        """Drop what is too old or too much; return which."""
        check_open(closed=self._closing)
        # Every shard looks after this: two of them must not drop the same slab.
        with self._lock:
            tiering = self._adopt_tiered()
            sizes = {slab.id: self.slab_bytes(slab.id) for slab in self.all()}
            dropped = due_for_drop(
                self.manifest.settings,
                self.manifest.slabs,
                sizes,
                now_us=self._clock.now_us(),
                tiering=tiering,
            )
            for slab in dropped:
                self._drop(slab)
        self._finish_drops()
        return dropped

    def adopt_tiered(self) -> None:
        """Take over which sealed slabs are in the lake."""
        with self._lock:
            self._adopt_tiered()

    def _adopt_tiered(self) -> bool:
        """Mark what is in the lake; say whether this database is tiered at all."""
        serials = read_tiered(self._fs, self._directory)
        records = tiered_slabs(self.manifest, serials or {})
        if records:
            self._keeper.update(lambda manifest: reduce(Manifest.with_slab, records, manifest))
            for record in records:
                self._slabs[record.id].record = record
        return serials is not None

    def failure(self) -> Exception | None:
        """Return what has failed so that a shard stores nothing more; None: nothing did."""
        found = (shard.committer.poisoned_by for shard in self._shards)
        return next((cause for cause in found if cause is not None), None)

    def close(self) -> None:
        """Store what is queued, end the threads. Raises: what kept a shard from its last sync."""
        self._closing = True
        with self._close_lock:
            if self.closed:
                return
            errors = [error for shard in self._shards if (error := shard.close()) is not None]
            # Only now may the files be opened again.
            self.closed = True
            # The shards know us and we know them: their maps would stay until they are collected.
            self._slabs, self._shards = {}, []
        if errors:
            raise errors[0]

    def _finish_drops(self) -> None:
        """Remove the files of slabs that the manifest has given up."""
        # Every shard's thread comes here: two must not remove the same files.
        with self._drop_lock:
            dropping = self._keeper.current.dropping
            if not dropping:
                return
            for slab in dropping:
                # A crash may have come between the removal and this update of the manifest.
                if self._fs.exists(place := slab_directory(self._directory, slab)):
                    remove_tree(self._fs, place)
            self._keeper.update(
                lambda manifest: replace(
                    manifest,
                    dropping=tuple(slab for slab in manifest.dropping if slab not in dropping),
                )
            )
            self._keeper.keep_reserve()

    def _reopen(self, number: int) -> Committer:
        """Come back to a shard: its sealed slabs are opened when read, its current one is
        recovered.
        """
        manifest = self._keeper.current
        records = [record for record in manifest.slabs if record.shard == number]
        *sealed, current = sorted(records, key=lambda record: record.generation)
        for record in sealed:
            self._slabs[record.id] = open_slab(self._fs, self._directory, record, manifest.settings)
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
        self._slabs[current.id] = committer.slab
        self.reports.append(report)
        return committer

    def on_stored(self, listener: OnStored) -> Callable[[], None]:
        """Call back for every frame from now on, on its shard's thread, when readers can see it and
        before it is acknowledged; return what ends it. The rows are the listener's to keep as they
        are while it is called.
        """
        with self._lock:
            self._listeners = (*self._listeners, listener)

        def end() -> None:
            with self._lock:
                self._listeners = tuple(each for each in self._listeners if each is not listener)

        return end

    def _attend(self, committer: Committer) -> None:
        """Let listeners hear of what a committer stores, and bound what it holds open."""
        committer.parks = committer.slab.id.shard >= _WARM_SHARDS
        committer.park()
        committer.on_stored = self._tell
        committer.is_heard = lambda: bool(self._listeners)

    def _tell(self, slab: SlabId, first_serial: int, cooked: Cooked) -> None:
        for listener in self._listeners:
            contain(partial(listener, slab, first_serial, cooked))

    def _start(self, committer: Committer) -> Shard:
        self._attend(committer)
        number = committer.slab.id.shard
        return Shard(
            number,
            committer,
            self._clock,
            turn_over=self._turn_over,
            admit=self._admit,
            housekeeping=lambda: self._look_after(number),
        )

    def _turn_over(self, committer: Committer) -> Committer:
        """Seal a shard's slab and begin the next.

        Raises: StorageFullError, and it goes on as it was; PoisonedError, for after an error of the
        disk either slab may be the current one.
        """
        try:
            return self._begin_next(committer)
        except DiskError as exc:
            raise committer.poison(exc) from exc

    def _begin_next(self, committer: Committer) -> Committer:
        """Seal a slab and begin the next; the manifest makes it so."""
        old = committer.slab
        since_us = max(committer.last_timestamp_us + 1, self._clock.now_us())
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
            until_us=since_us,
            until_serial=record.first_serial,
        )
        with self._lock:
            self._keeper.update(
                lambda manifest: replace(
                    manifest.with_slab(sealed).with_slab(record),
                    settings=replace(manifest.settings, thresholds=settings.thresholds),
                )
            )
            self._sealed_bytes[old.id] = committer.size_bytes()
            self._slabs = self._slabs | {record.id: successor.slab}
            old.record = sealed
        return successor

    def _sow(self, structure: Structure) -> DatabaseSettings:
        """Teach what was learned elsewhere for the next generation; return its settings."""
        settings = self.manifest.settings
        # A damaged seed costs what it would have taught, and must not keep a slab from its end.
        with suppress(CorruptionError):
            seed = read_seed(self._fs, self._directory)
            if seed is not None:
                sow(structure, seed)
                return replace(settings, thresholds=seed.thresholds or settings.thresholds)
        return settings

    def _admit(self, size_bytes: int) -> SiltstoneError | None:
        """Return why so much more may not be stored, None when it may."""
        manifest = self.manifest
        used = sum(self._sealed_bytes.values())
        used += sum(shard.committer.size_bytes() for shard in self._shards)
        return self._space.refusal(
            manifest.database, manifest.settings, used_bytes=used, size_bytes=size_bytes
        )

    def _look_after(self, number: int) -> None:
        """Turn over what is due, and now and then drop what is."""
        if number >= len(self._shards):
            # The others are still being started.
            return
        shard = self._shards[number]
        settings = self.manifest.settings
        turned = due_for_turn(
            settings,
            shard.committer.slab.record,
            rows=shard.committer.rows,
            size_bytes=shard.committer.size_bytes(),
            now_us=self._clock.now_us(),
        )
        if turned:
            shard.turn()
        now = self._clock.monotonic()
        if turned or now - self._checked_at >= 1.0:
            self._checked_at = now
            if settings.retain_bytes is not None or settings.retain_seconds is not None:
                self.enforce_retention()
