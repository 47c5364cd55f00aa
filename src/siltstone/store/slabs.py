"""All slabs of a database: those of a writing process with their shards, those of a reading one as
found on disk.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from threading import Lock
from typing import Any

from siltstone.clock import Clock
from siltstone.errors import (
    ClosedError,
    CorruptionError,
    DiskError,
    NotFoundError,
    QuotaExceededError,
    SiltstoneError,
    SlabDroppedError,
    StorageFullError,
    UsageError,
)
from siltstone.fs.api import EntryKind, FileSystem
from siltstone.fs.publish import create_directories, remove_tree, sweep_temporaries
from siltstone.segment.chain import Chain, directory_bytes
from siltstone.store.committer import Committer
from siltstone.store.manifest import (
    Manifest,
    ManifestKeeper,
    SlabId,
    SlabRecord,
    SlabState,
    read_manifest,
)
from siltstone.store.opening import (
    RecoveryReport,
    begin_slab,
    identity_of,
    reopen_slab,
    slab_directory,
)
from siltstone.store.producers import ProducerTable
from siltstone.store.retention import due_for_drop, due_for_turn
from siltstone.store.settings import DatabaseSettings
from siltstone.store.shard import Shard
from siltstone.store.slab import Slab
from siltstone.topic.structure import Structure


class ReadableSlabs:
    """The slabs as another process, or nobody, writes them."""

    def __init__(self, fs: FileSystem, directory: PurePath) -> None:
        self._fs = fs
        self._directory = directory
        self._lock = Lock()
        self._slabs: dict[SlabId, Slab] = {}
        self.closed = False
        self.manifest = read_manifest(fs, directory)
        self._adopt(self.manifest)

    def all(self) -> list[Slab]:
        """Return the slabs by generation, then shard. Raises: ClosedError."""
        _check_open(closed=self.closed)
        return _ordered(self._slabs)

    def slab(self, slab: SlabId) -> Slab:
        """Return a slab. Raises: SlabDroppedError, NotFoundError, ClosedError."""
        _check_open(closed=self.closed)
        if slab not in self._slabs:
            self.refresh()
        return _find(self._slabs, slab)

    def ended(self, slab: SlabId) -> bool:
        """Say whether a slab takes no more rows, and all that it has are known here."""
        return not self.slab(slab).follows

    def refresh(self) -> bool:
        """Look at the disk; what was sealed is known before its last rows are looked for."""
        _check_open(closed=self.closed)
        with self._lock:
            self._adopt(read_manifest(self._fs, self._directory))
            for slab in self._slabs.values():
                if slab.follows:
                    ended = slab.record.state is not SlabState.CURRENT
                    self._follow(slab)
                    slab.follows = not ended
        return True

    def _follow(self, slab: Slab) -> None:
        """Look at one slab, unless its writer drops it at this moment."""
        try:
            slab.refresh()
        except (SlabDroppedError, CorruptionError):
            self._adopt(read_manifest(self._fs, self._directory))
            if slab.id in self._slabs:
                raise

    def slab_bytes(self, slab: SlabId) -> int:
        """Return the disk space a slab takes."""
        return directory_bytes(self._fs, slab_directory(self._directory, slab))

    def close(self) -> None:
        """Let go of the maps."""
        self.closed = True
        self._slabs = {}

    def _adopt(self, manifest: Manifest) -> None:
        slabs: dict[SlabId, Slab] = {}
        for record in manifest.slabs:
            slab = self._slabs.get(record.id)
            if slab is None:
                slab = _open_slab(self._fs, self._directory, record, manifest.settings)
            slab.record = record
            slabs[record.id] = slab
        self.manifest = manifest
        self._slabs = slabs


class WritableSlabs:
    """The slabs of the process that writes them, and its shards."""

    def __init__(self, fs: FileSystem, clock: Clock, directory: PurePath) -> None:
        self._fs = fs
        self._clock = clock
        self._directory = directory
        self._lock = Lock()
        self._checked_at = clock.monotonic()
        self.reports: list[RecoveryReport] = []
        sweep_temporaries(fs, directory)
        self._keeper = ManifestKeeper(fs, directory, read_manifest(fs, directory))
        self._finish_drops()
        self._keeper.keep_reserve()
        self._slabs: dict[SlabId, Slab] = {}
        self._sealed_bytes: dict[SlabId, int] = {}
        self._admitted_bytes = -1
        self.closed = False
        self._closing = False
        self._close_lock = Lock()
        self._configure_lock = Lock()
        self._shards: list[Shard] = []
        committers = [self._reopen(number) for number in range(self.manifest.settings.shards)]
        self._shards = [self._start(committer) for committer in committers]

    @property
    def manifest(self) -> Manifest:
        """The manifest as it is on the disk."""
        return self._keeper.current

    def all(self) -> list[Slab]:
        """Return the slabs by generation, then shard. Raises: ClosedError."""
        _check_open(closed=self._closing)
        return _ordered(self._slabs)

    def slab(self, slab: SlabId) -> Slab:
        """Return a slab. Raises: SlabDroppedError, NotFoundError, ClosedError."""
        _check_open(closed=self._closing)
        return _find(self._slabs, slab)

    def shard(self, number: int) -> Shard:
        """Return a shard. Raises: ClosedError."""
        shards = self._shards
        # In this order: once they are let go of we are closing.
        _check_open(closed=self._closing)
        return shards[number]

    def ended(self, slab: SlabId) -> bool:
        """Say whether a slab takes no more rows."""
        return self.slab(slab).record.state is not SlabState.CURRENT

    def refresh(self) -> bool:
        """Do nothing: readers in this process see each row as it becomes visible."""
        _check_open(closed=self._closing)
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
        _check_open(closed=self._closing)
        for shard in self._shards:
            shard.seal()

    def sync(self) -> None:
        """Make all that was appended durable."""
        _check_open(closed=self._closing)
        for shard in self._shards:
            shard.sync()

    def configure(self, changes: Mapping[str, Any]) -> DatabaseSettings:
        """Put changed settings into force. Raises: UsageError."""
        _check_open(closed=self._closing)
        with self._configure_lock:
            settings = self._keeper.update(
                lambda manifest: replace(manifest, settings=manifest.settings.changed(changes))
            ).settings
            for shard in self._shards:
                shard.configure(settings)
        return settings

    def drop(self, slab: SlabId) -> None:
        """Delete a sealed slab: out of the manifest first, then off the disk."""
        with self._lock:
            self._drop(slab)
        self._finish_drops()

    def _drop(self, slab: SlabId) -> None:
        if self.slab(slab).record.state is SlabState.CURRENT:
            raise UsageError(f"slab {slab} is current, seal it before dropping it")
        self._keeper.update(
            lambda manifest: replace(
                manifest,
                slabs=tuple(record for record in manifest.slabs if record.id != slab),
                dropping=(*manifest.dropping, slab),
            )
        )
        self._slabs = {known: self._slabs[known] for known in self._slabs if known != slab}
        self._sealed_bytes.pop(slab)

    def enforce_retention(self) -> list[SlabId]:
        """Drop what is too old or too much; return which."""
        _check_open(closed=self._closing)
        # Every shard looks after this: two of them must not drop the same slab.
        with self._lock:
            sizes = {slab.id: self.slab_bytes(slab.id) for slab in self.all()}
            dropped = due_for_drop(
                self.manifest.settings, self.manifest.slabs, sizes, now_us=self._clock.now_us()
            )
            for slab in dropped:
                self._drop(slab)
        self._finish_drops()
        return dropped

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
            self._slabs[record.id] = _open_slab(
                self._fs, self._directory, record, manifest.settings
            )
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

    def _start(self, committer: Committer) -> Shard:
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
        successor = _begin(
            self._fs,
            self._clock,
            self._directory,
            self.manifest,
            record,
            structure=structure,
            producers=producers,
            serial=committer.next_serial,
        )
        sealed = replace(
            old.record,
            state=SlabState.SEALED,
            until_us=since_us,
            until_serial=record.first_serial,
        )
        with self._lock:
            self._keeper.update(lambda manifest: manifest.with_slab(sealed).with_slab(record))
            self._sealed_bytes[old.id] = committer.size_bytes()
            self._slabs = self._slabs | {record.id: successor.slab}
            old.record = sealed
        return successor

    def _admit(self, size_bytes: int) -> SiltstoneError | None:
        """Return why so much more may not be stored, None when it may."""
        settings = self.manifest.settings
        used = sum(self._sealed_bytes.values())
        used += sum(shard.committer.size_bytes() for shard in self._shards)
        if settings.quota_bytes is not None and used + size_bytes > settings.quota_bytes:
            return QuotaExceededError(
                self.manifest.database, used_bytes=used, quota_bytes=settings.quota_bytes
            )
        # Asking the system costs as much as a small flush; it is asked again when we have grown.
        if used != self._admitted_bytes:
            if self._fs.free_bytes(self._directory) < settings.reserve_bytes:
                return StorageFullError(self._directory, needed_bytes=settings.reserve_bytes)
            self._admitted_bytes = used
        return None

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


def create_slabs(fs: FileSystem, clock: Clock, directory: PurePath, manifest: Manifest) -> Manifest:
    """Create the first slab of every shard; return the manifest that makes the database exist."""
    for number in range(manifest.settings.shards):
        record = SlabRecord(
            shard=number,
            generation=1,
            state=SlabState.CURRENT,
            since_us=clock.now_us(),
            until_us=None,
            created_us=clock.now_us(),
        )
        committer = _begin(
            fs,
            clock,
            directory,
            manifest,
            record,
            structure=Structure(list(manifest.settings.thresholds)),
            producers=ProducerTable(),
            serial=0,
        )
        committer.close()
        manifest = manifest.with_slab(record)
    return manifest


def holds_rows(fs: FileSystem, directory: PurePath) -> bool:
    """Say whether any slab below a database's directory has rows, whatever its manifest says."""
    for shard in fs.list(directory):
        if shard.kind is not EntryKind.DIRECTORY:
            continue
        for generation in fs.list(directory / shard.name):
            if generation.kind is EntryKind.DIRECTORY:
                chain = Chain(fs, directory / shard.name / generation.name)
                chain.refresh()
                if any(handle.next_serial > handle.base_serial for handle in chain.handles):
                    return True
    return False


def _begin(
    fs: FileSystem,
    clock: Clock,
    directory: PurePath,
    manifest: Manifest,
    record: SlabRecord,
    *,
    structure: Structure,
    producers: ProducerTable,
    serial: int,
) -> Committer:
    place = slab_directory(directory, record.id)
    if fs.exists(place):
        # Left by a crash before the manifest named it; it holds no row that was ever seen.
        remove_tree(fs, place)
    create_directories(fs, place)
    return begin_slab(
        fs,
        clock,
        place,
        record,
        identity_of(manifest, record.id),
        manifest.settings,
        structure=structure,
        producers=producers,
        serial=serial,
        timestamp_us=record.since_us - 1,
    )


def _open_slab(
    fs: FileSystem, directory: PurePath, record: SlabRecord, settings: DatabaseSettings
) -> Slab:
    structure = Structure(list(settings.thresholds))
    return Slab(fs, slab_directory(directory, record.id), record, structure)


def _check_open(*, closed: bool) -> None:
    if closed:
        raise ClosedError("the database is closed")


def _ordered(slabs: dict[SlabId, Slab]) -> list[Slab]:
    return sorted(slabs.values(), key=lambda slab: (slab.id.generation, slab.id.shard))


def _find(slabs: dict[SlabId, Slab], slab: SlabId) -> Slab:
    found = slabs.get(slab)
    if found is not None:
        return found
    if any(known.shard == slab.shard and known.generation > slab.generation for known in slabs):
        raise SlabDroppedError(f"slab {slab} was dropped, its rows are gone")
    raise NotFoundError(f"there is no slab {slab}")
