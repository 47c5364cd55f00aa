"""The manifest of a database: its slabs and settings in one small file, replaced as a whole.

    line 1  `siltstone-manifest <version> <CRC-32C of the rest, 8 hex digits>`
    rest    JSON

Version 2 means that a journal exists too, with the topic logs that were added since. Version 4
means that a segment is compacted.

A slab exists when the manifest names it. A slab whose removal has begun is listed under `dropping`:
the next start finishes the removal after a crash, and nothing else is ever removed. Replacing the
manifest must work on a full disk, because otherwise nothing could be dropped there. A reserve file
is removed to make space for it.

After a DiskError the manifest on the disk may have changed, although the one in memory has not. The
next change replaces it. Invariant: no file of a slab that the disk may name is removed before that;
see `ManifestFile.settle`.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import blake2b
from pathlib import PurePath
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from crc32c import crc32c

from siltstone.errors import (
    ClosedError,
    CorruptionError,
    DiskError,
    NotFoundError,
    SiltstoneError,
    StorageFullError,
)
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import replace_file, sweep_temporaries
from siltstone.settings.declare import Encoding, encoding_of
from siltstone.store.slab.added_logs import (
    AddedLog,
    append_log,
    begin_journal,
    is_journal,
    journal_path,
    read_journal,
)
from siltstone.store.slab.identity import DatabaseIdentity
from siltstone.store.slab.settings import DatabaseSettings

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MANIFEST: Final = "manifest"
RESERVE: Final = "reserve"
# The directory of lock files, if several processes lead shards of the database.
LEADERS: Final = "leaders"
# The directory of segments that are being compacted.
COMPACTING: Final = "compacting"
# The directory with the marks of a replicated database, and of files that are being copied.
REPLICATION: Final = "replication"
RESERVE_BYTES: Final = 64 * 1024
# The usual size of a slab, or of the name of a topic log, in the file.
_RECORD_BYTES: Final = 192
_TITLE: Final = b"siltstone-manifest 1 "
_TITLE_WITH_JOURNAL: Final = b"siltstone-manifest 2 "
_TITLE_COMPACTED: Final = b"siltstone-manifest 4 "


class SlabState(Enum):
    """The state of a slab. A tiered slab is sealed, and its rows are in the lake too."""

    CURRENT = "current"
    SEALED = "sealed"
    TIERED = "tiered"


@dataclass(frozen=True, slots=True, order=True)
class SlabId:
    """One generation of one shard."""

    shard: int
    generation: int

    def __str__(self) -> str:
        """Return shard and generation as SHARD/GENERATION."""
        return f"{self.shard}/{self.generation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabRecord:
    """The record of a slab in the manifest.

    Times are in µs; `until_us` is exclusive, and None for the current slab. `closed_us` is set if
    the clock was ahead, and rows have later timestamps than their time of arrival. All rows arrived
    before `closed_us`, and retention counts from there.
    """

    shard: int
    generation: int
    state: SlabState
    since_us: int
    until_us: int | None
    created_us: int
    first_serial: int = 0
    until_serial: int | None = None
    closed_us: int | None = None
    # The base serials of the compacted segments, in order, and that of a segment that is just being
    # replaced, or was when a crash happened.
    compacted: tuple[int, ...] = ()
    compacting: int | None = None
    # The encoding of a current slab, if the settings have changed since it began, else empty. A
    # slab of a key-value database always has it, unless an earlier version began it.
    encoding: Encoding = ()

    @property
    def id(self) -> SlabId:
        """The id of the slab."""
        return SlabId(self.shard, self.generation)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        # Written out, because `asdict` takes ten times as long, and there may be thousands of
        # slabs.
        fields: dict[str, Any] = {
            "shard": self.shard,
            "generation": self.generation,
            "state": self.state.value,
            "since_us": self.since_us,
            "until_us": self.until_us,
            "created_us": self.created_us,
            "first_serial": self.first_serial,
            "until_serial": self.until_serial,
        }
        if self.closed_us is not None:
            # Versions before 0.2.0 do not know this field.
            fields["closed_us"] = self.closed_us
        if self.compacted:
            fields["compacted"] = list(self.compacted)
        if self.compacting is not None:
            fields["compacting"] = self.compacting
        if self.encoding:
            fields["encoding"] = dict(self.encoding)
        return fields

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SlabRecord:
        """Create a record from JSON values."""
        plain = {
            **values,
            "state": SlabState(values["state"]),
            "compacted": tuple(values.get("compacted", ())),
            "encoding": tuple(
                (name, tuple(value) if isinstance(value, list) else value)
                for name, value in values.get("encoding", {}).items()
            ),
        }
        return cls(**plain)

    @property
    def ended_us(self) -> int | None:
        """The time after the arrival of the last row; None for the current slab."""
        return self.until_us if self.closed_us is None else self.closed_us


def keep_encoding(
    record: SlabRecord, before: DataclassInstance, after: DataclassInstance
) -> SlabRecord:
    """Return the record of a slab that keeps its encoding when the settings change."""
    if record.state is not SlabState.CURRENT:
        return record
    encoding = record.encoding or encoding_of(before)
    if encoding == encoding_of(after):
        encoding = ()
    return record if encoding == record.encoding else replace(record, encoding=encoding)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that is known about a database without opening its slabs."""

    database: str
    salt: int
    settings: DatabaseSettings
    slabs: tuple[SlabRecord, ...]
    dropping: tuple[SlabId, ...] = field(default=())
    # The topics of the shards, by number, if the shards of the database are topic logs.
    logs: tuple[str, ...] = field(default=())
    # Whether all positions ever saved in the database contain its identity.
    identified: bool = field(default=True)
    # Seeds of slabs that cannot be derived from the salt, because the salt was lost and replaced.
    seeds: Mapping[str, int] = field(default_factory=dict)
    # Whether its shards are topic logs, even if there is none yet.
    holds_logs: bool = field(default=False)
    # For shards with slabs that were dropped because their rows were delivered: the serial after
    # the last of these rows. No durable session or share group has lost a row before it.
    reclaimed: Mapping[int, int] = field(default_factory=dict)
    # The number of the last journal of topic logs, and whether this journal is in use.
    journal: int = field(default=0)
    has_journal: bool = field(default=False)

    @property
    def identity(self) -> DatabaseIdentity:
        """The identity of this database; a later database of the same name has another one."""
        salt = f"{self.salt}/{self.database}"
        text = blake2b(salt.encode(), digest_size=16).hexdigest()
        return DatabaseIdentity(text, self.identified)

    def encode(self) -> bytes:
        """Return the bytes of the file."""
        content: dict[str, Any] = {
            "database": self.database,
            "salt": self.salt,
            "settings": _stored_settings(self.settings),
            "slabs": None,
            "dropping": [[slab.shard, slab.generation] for slab in self.dropping],
        }
        if self.logs:
            content["logs"] = list(self.logs)
        if self.identified:
            content["identified"] = True
        if self.seeds:
            content["seeds"] = dict(self.seeds)
        if self.holds_logs:
            content["holds_logs"] = True
        if self.reclaimed:
            content["reclaimed"] = {str(shard): at for shard, at in self.reclaimed.items()}
        if self.journal:
            content["journal"] = self.journal
        # One line for each slab. The encoder is used without indentation, because that is slow.
        parts = [
            f'"{key}": {_slab_lines(self.slabs) if key == "slabs" else json.dumps(value)}'
            for key, value in content.items()
        ]
        data = ("{\n " + ",\n ".join(parts) + "\n}\n").encode()
        title = _TITLE_WITH_JOURNAL if self.has_journal else _TITLE
        if any(slab.compacted or slab.compacting is not None for slab in self.slabs):
            assert not self.has_journal, "topic logs are not compacted"
            title = _TITLE_COMPACTED
        return title + b"%08x\n" % crc32c(data) + data

    @classmethod
    def decode(cls, data: bytes, path: PurePath) -> Manifest:
        """Read the file. Raises: CorruptionError."""
        title, _, content = data.partition(b"\n")
        checksum = b"%08x" % crc32c(content)
        known = (_TITLE, _TITLE_WITH_JOURNAL, _TITLE_COMPACTED)
        if title not in [each + checksum for each in known]:
            raise CorruptionError("the manifest does not match its checksum", path=path)
        values: dict[str, Any] = json.loads(content)
        return cls(
            database=values["database"],
            salt=values["salt"],
            settings=DatabaseSettings.from_json(values["settings"]),
            slabs=tuple(
                sorted((SlabRecord.from_json(slab) for slab in values["slabs"]), key=_id_of)
            ),
            dropping=tuple(SlabId(shard, generation) for shard, generation in values["dropping"]),
            logs=tuple(values.get("logs", ())),
            identified=values.get("identified", False),
            seeds=values.get("seeds", {}),
            holds_logs=values.get("holds_logs", bool(values.get("logs"))),
            reclaimed={int(shard): at for shard, at in values.get("reclaimed", {}).items()},
            journal=values.get("journal", 0),
            has_journal=title.startswith(_TITLE_WITH_JOURNAL),
        )

    def with_slab(self, record: SlabRecord) -> Manifest:
        """Return a manifest in which this record replaces the one of the same slab."""
        return self.with_slabs([record])

    def with_slabs(self, records: Iterable[SlabRecord]) -> Manifest:
        """Return a manifest in which each record replaces the one of the same slab."""
        slabs = {slab.id: slab for slab in self.slabs}
        slabs.update((record.id, record) for record in records)
        return replace(self, slabs=tuple(slabs[slab] for slab in sorted(slabs)))

    def with_settings(self, settings: DatabaseSettings) -> Manifest:
        """Return a manifest with other settings; the current slabs keep their encoding."""
        slabs = tuple(keep_encoding(slab, self.settings, settings) for slab in self.slabs)
        return replace(self, settings=settings, slabs=slabs)

    def merged(self, mine: Manifest, led: Container[int]) -> Manifest:
        """Return this manifest with the slabs of the led shards as they are in `mine`."""
        slabs = [slab for slab in self.slabs if slab.shard not in led]
        slabs += [slab for slab in mine.slabs if slab.shard in led]
        dropping = [slab for slab in self.dropping if slab.shard not in led]
        dropping += [slab for slab in mine.dropping if slab.shard in led]
        reclaimed = {shard: at for shard, at in self.reclaimed.items() if shard not in led}
        reclaimed |= {shard: at for shard, at in mine.reclaimed.items() if shard in led}
        return replace(
            self,
            slabs=tuple(sorted(slabs, key=_id_of)),
            dropping=tuple(dropping),
            reclaimed=reclaimed,
        )

    def slabs_of(self, shard: int) -> list[SlabRecord]:
        """Return the slabs of a shard, the oldest first."""
        first = bisect_left(self.slabs, shard, key=_shard_of)
        end = bisect_left(self.slabs, shard + 1, lo=first, key=_shard_of)
        return list(self.slabs[first:end])

    def with_logs(self, added: Sequence[AddedLog]) -> Manifest:
        """Return a manifest with these topic logs added, each as a shard with one slab."""
        return replace(
            self,
            settings=replace(self.settings, shards=self.settings.shards + len(added)),
            slabs=(*self.slabs, *map(first_record, added)),
            logs=(*self.logs, *(log.topic for log in added)),
        )


class ManifestFile:
    """The manifest of a database that is open for writing; from any thread.

    Usually it has one owner. If several processes lead shards of the database, each of them changes
    the records of its own shards, which are in `led`: it waits for the lock of the manifest, reads
    the newest one, and replaces it.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: PurePath,
        manifest: Manifest,
        led: Container[int] | None = None,
    ) -> None:
        self._led = led
        self._fs = fs
        self._directory = directory
        self._lock = Lock()
        # Whether this process may append to the journal that the manifest names.
        self._appends = False
        # Whether there is certainly no journal of an earlier process.
        self._is_clear = False
        self._is_closed = False
        # Whether the manifest and journal on the disk may say something else than `current`.
        self._is_unsure = False
        # The largest reserve so far, including one for which there was no space.
        self._reserved_bytes = 0
        self.current = manifest

    def update(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Replace the manifest by the result of `change`, durably.

        Raises: StorageFullError, ClosedError; nothing changed then. DiskError; the manifest on the
        disk may have changed, until `settle` or the next change. The change may be repeated.
        """
        with self._lock, self._turn():
            self._check_open()
            changed = self._replace(change(self.current))
            self._grow_reserve()
            return changed

    def refresh(self) -> Manifest:
        """Adopt the changes of the leaders of other shards."""
        with self._lock:
            self._adopt_others()
            return self.current

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """If the manifest is shared, take its lock and adopt the changes of other leaders."""
        if self._led is None:
            yield
            return
        lock = self._fs.lock(self._directory / LEADERS / MANIFEST, wait=True)
        try:
            self._adopt_others()
            yield
        finally:
            lock.release()

    def _adopt_others(self) -> None:
        if self._led is not None:
            newest = read_manifest(self._fs, self._directory)
            self.current = newest.merged(self.current, self._led)

    def add_log(self, added: AddedLog) -> None:
        """Add a topic log, durably. Its first slab is on the disk already.

        The first log that a process adds replaces the manifest and begins a journal. The next ones
        are appended to this journal.

        Raises: ClosedError; the log was not added then. StorageFullError, DiskError; the disk may
        name the log until `settle` or the next change. The call may be repeated, also for another
        log.
        """
        with self._lock:
            self._check_open()
            changed = self.current.with_logs([added])
            if self._appends:
                self._append(added)
                self.current = changed
            else:
                number = self.current.journal + 1
                self._is_clear = False
                begin_journal(self._fs, journal_path(self._directory, number))
                self._replace(replace(changed, journal=number, has_journal=True))
            self._appends = True
            self._grow_reserve()

    def _append(self, added: AddedLog) -> None:
        journal = self._fs.open(self._journal_path(), writable=True)
        try:
            with journal:
                append_log(journal, added)
        except SiltstoneError:
            # The line may be on the disk or not. It must not count, because the caller reports an
            # error.
            self._appends = self._is_clear = False
            self._is_unsure = True
            self.current = replace(self.current, has_journal=False)
            with suppress(SiltstoneError):
                self._replace(self.current)
            raise

    def settle(self) -> None:
        """Bring the manifest on the disk into agreement with the one in memory.

        Call this before you remove files of a slab that the manifest does not name: after an error
        the disk may name it.

        Raises: StorageFullError, DiskError, ClosedError.
        """
        with self._lock:
            self._check_open()
            if self._is_unsure:
                self._replace(self.current)

    def fold(self) -> None:
        """Move the contents of the journal into the manifest, and remove all journals.

        If that fails, for example on a full disk, the journal stays in use.
        """
        with self._lock, suppress(SiltstoneError):
            if self._led is not None:
                # A database with topic logs has one leader.
                return
            if self.current.has_journal or self._is_unsure:
                self._appends = False
                self._replace(replace(self.current, has_journal=False))
            elif self._is_clear:
                return
            for entry in self._fs.list(self._directory):
                if is_journal(entry.name):
                    self._fs.remove(self._directory / entry.name)
            self._is_clear = True

    def close(self) -> None:
        """Fold the journal and refuse changes: another process may open the database now."""
        self.fold()
        with self._lock:
            self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the database is closed")

    def _replace(self, changed: Manifest) -> Manifest:
        try:
            self._write(changed.encode())
        except DiskError as exc:
            # Until the rename only a temporary file has changed.
            if exc.operation in ("rename", "sync_directory"):
                self._is_unsure = True
            raise
        self._is_unsure = False
        self.current = changed
        return changed

    def _write(self, data: bytes) -> None:
        path = self._directory / MANIFEST
        try:
            replace_file(self._fs, path, data)
        except StorageFullError:
            self._give_up_reserve()
            replace_file(self._fs, path, data)

    def _journal_path(self) -> PurePath:
        return journal_path(self._directory, self.current.journal)

    def keep_reserve(self) -> None:
        """Create the reserve file again, if there is space for it."""
        with self._lock, self._turn():
            self._keep_reserve()

    def sweep(self) -> None:
        """Remove the temporary files that a crash left beside the manifest."""
        with self._lock, self._turn():
            sweep_temporaries(self._fs, self._directory)

    def _grow_reserve(self) -> None:
        """Make the reserve as large as the manifest has become.

        The manifest was replaced before, so errors are ignored here.
        """
        if self._reserve_bytes() > self._reserved_bytes > 0:
            with suppress(SiltstoneError):
                self._keep_reserve()

    def _keep_reserve(self) -> None:
        path = self._directory / RESERVE
        size = self._reserved_bytes = self._reserve_bytes()
        is_there = False
        for entry in self._fs.list(self._directory):
            if entry.name == RESERVE:
                is_there = True
                if entry.allocated_bytes >= size:
                    return
        try:
            # A reserve that is too small stays if there is no space for more. After a power cut the
            # file may exist without its space.
            with self._fs.open(path, writable=True) if is_there else self._fs.create(path) as file:
                file.truncate(size)
                file.allocate(0, size)
        except StorageFullError:
            if not is_there:
                self._give_up_reserve()

    def _reserve_bytes(self) -> int:
        """Return the size that the next manifest may need; many topic logs make it large."""
        records = len(self.current.slabs) + len(self.current.logs)
        return RESERVE_BYTES * (1 + records * _RECORD_BYTES // RESERVE_BYTES)

    def _give_up_reserve(self) -> None:
        path = self._directory / RESERVE
        if self._fs.exists(path):
            self._fs.remove(path)


def _stored_settings(settings: DatabaseSettings) -> dict[str, Any]:
    """Return the settings without those that earlier versions do not know, if they have their
    default value: readers of an earlier version may work beside a newer writer.
    """
    values = settings.to_json()
    unknown = {"backend": "local", "reclaim": "none"}
    return {name: value for name, value in values.items() if unknown.get(name, ...) != value}


def read_manifest(fs: FileSystem, directory: PurePath) -> Manifest:
    """Read the manifest of a database, with the topic logs of its journal.

    Raises: NotFoundError, CorruptionError.
    """
    manifest = read_manifest_alone(fs, directory)
    while manifest.has_journal:
        path = journal_path(directory, manifest.journal)
        try:
            added = read_journal(fs, path)
        except NotFoundError as exc:
            # The writing process may have folded it into a new manifest meanwhile.
            before, manifest = manifest, read_manifest_alone(fs, directory)
            if manifest.has_journal and manifest.journal == before.journal:
                raise CorruptionError("the journal of topic logs is missing", path=path) from exc
            continue
        # Logs that the manifest contains were added before it was replaced.
        added = [log for log in added if log.shard >= len(manifest.logs)]
        if [log.shard for log in added] != list(
            range(manifest.settings.shards, manifest.settings.shards + len(added))
        ):
            raise CorruptionError("the journal of topic logs has a gap", path=path)
        return manifest.with_logs(added)
    return manifest


def read_manifest_alone(fs: FileSystem, directory: PurePath) -> Manifest:
    """Read the manifest of a database, without its journal.

    Raises: NotFoundError, CorruptionError.
    """
    path = directory / MANIFEST
    return Manifest.decode(fs.read(path), path)


def first_record(log: AddedLog) -> SlabRecord:
    """Return the record of the first slab of a topic log."""
    return SlabRecord(
        shard=log.shard,
        generation=1,
        state=SlabState.CURRENT,
        since_us=log.since_us,
        until_us=None,
        created_us=log.created_us,
    )


def _shard_of(slab: SlabRecord) -> int:
    return slab.shard


def _id_of(slab: SlabRecord) -> SlabId:
    return slab.id


def _slab_lines(slabs: Sequence[SlabRecord]) -> str:
    lines = [json.dumps(slab.to_json()) for slab in slabs]
    return "[\n  " + ",\n  ".join(lines) + "\n ]" if lines else "[]"
