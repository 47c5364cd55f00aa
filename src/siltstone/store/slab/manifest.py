"""Which slabs a database has, with its settings: one small file, replaced whole.

    line 1  `siltstone-manifest <version> <CRC-32C of the rest, 8 hex digits>`
    rest    JSON

Version 2 says that a journal stands beside it, with the topic logs that were added since.

A slab exists when the manifest names it. One whose removal has begun is named under `dropping`, so
that a crash in the middle of it is finished at the next start and nothing else is ever removed.
Replacing the manifest must work on a full disk, or nothing could be dropped there: a reserve file
is given up for it.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum
from hashlib import blake2b
from pathlib import PurePath
from threading import Lock
from typing import Any, Final

from crc32c import crc32c

from siltstone.errors import (
    ClosedError,
    CorruptionError,
    NotFoundError,
    SiltstoneError,
    StorageFullError,
)
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import replace_file
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

MANIFEST: Final = "manifest"
RESERVE: Final = "reserve"
RESERVE_BYTES: Final = 64 * 1024
# What a slab, or the name of a topic log, mostly takes in the file.
_RECORD_BYTES: Final = 192
_TITLE: Final = b"siltstone-manifest 1 "
_TITLE_WITH_JOURNAL: Final = b"siltstone-manifest 2 "


class SlabState(Enum):
    """The life of a slab; a tiered one is sealed, and its rows are in the lake as well."""

    CURRENT = "current"
    SEALED = "sealed"
    TIERED = "tiered"


@dataclass(frozen=True, slots=True, order=True)
class SlabId:
    """One generation of one shard."""

    shard: int
    generation: int

    def __str__(self) -> str:
        """Return shard and generation as people write them."""
        return f"{self.shard}/{self.generation}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabRecord:
    """What the manifest knows of a slab; times are in µs, until is exclusive and None for the
    current one.

    `closed_us` is set where rows are stamped later than they came, because the clock was ahead: all
    of them came before it. Retention counts from there.
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

    @property
    def id(self) -> SlabId:
        """The slab's name."""
        return SlabId(self.shard, self.generation)

    @property
    def ended_us(self) -> int | None:
        """The time after the last row came; None for the current slab."""
        return self.until_us if self.closed_us is None else self.closed_us


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """All that is known of a database without opening its slabs."""

    database: str
    salt: int
    settings: DatabaseSettings
    slabs: tuple[SlabRecord, ...]
    dropping: tuple[SlabId, ...] = field(default=())
    # The topics of the shards, by number, in a database whose shards are topic logs.
    logs: tuple[str, ...] = field(default=())
    # Whether all positions that were ever saved in it carry its identity.
    identified: bool = field(default=True)
    # Seeds of slabs that do not follow from the salt, because that was lost and made anew.
    seeds: Mapping[str, int] = field(default_factory=dict)
    # Whether its shards are topic logs, also while it has none.
    holds_logs: bool = field(default=False)
    # For shards of which slabs were dropped because their rows were delivered: the serial behind
    # the last of these rows. No durable session or share group has lost anything before it.
    reclaimed: Mapping[int, int] = field(default_factory=dict)
    # The number of its last journal of topic logs, and whether that one counts.
    journal: int = field(default=0)
    has_journal: bool = field(default=False)

    @property
    def identity(self) -> DatabaseIdentity:
        """What tells this database from any other, also from a later one of the same name."""
        salt = f"{self.salt}/{self.database}"
        text = blake2b(salt.encode(), digest_size=16).hexdigest()
        return DatabaseIdentity(text, self.identified)

    def encode(self) -> bytes:
        """Return the file."""
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
        # A line for each slab, without the encoder that indents: that one is slow.
        parts = [
            f'"{key}": {_slab_lines(self.slabs) if key == "slabs" else json.dumps(value)}'
            for key, value in content.items()
        ]
        data = ("{\n " + ",\n ".join(parts) + "\n}\n").encode()
        title = _TITLE_WITH_JOURNAL if self.has_journal else _TITLE
        return title + b"%08x\n" % crc32c(data) + data

    @classmethod
    def decode(cls, data: bytes, path: PurePath) -> Manifest:
        """Read the file. Raises: CorruptionError."""
        title, _, content = data.partition(b"\n")
        checksum = b"%08x" % crc32c(content)
        if title not in (_TITLE + checksum, _TITLE_WITH_JOURNAL + checksum):
            raise CorruptionError("the manifest does not match its checksum", path=path)
        values: dict[str, Any] = json.loads(content)
        return cls(
            database=values["database"],
            salt=values["salt"],
            settings=DatabaseSettings.from_json(values["settings"]),
            slabs=tuple(
                sorted(
                    (
                        SlabRecord(**(slab | {"state": SlabState(slab["state"])}))
                        for slab in values["slabs"]
                    ),
                    key=_id_of,
                )
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
        """Return a manifest in which this slab is as given."""
        others = [slab for slab in self.slabs if slab.id != record.id]
        slabs = sorted([*others, record], key=lambda slab: slab.id)
        return replace(self, slabs=tuple(slabs))

    def slabs_of(self, shard: int) -> list[SlabRecord]:
        """Return the slabs of a shard, the oldest first."""
        first = bisect_left(self.slabs, shard, key=_shard_of)
        end = bisect_left(self.slabs, shard + 1, lo=first, key=_shard_of)
        return list(self.slabs[first:end])

    def with_logs(self, added: Sequence[AddedLog]) -> Manifest:
        """Return a manifest with these topic logs behind its own, each a shard with one slab."""
        return replace(
            self,
            settings=replace(self.settings, shards=self.settings.shards + len(added)),
            slabs=(*self.slabs, *map(first_record, added)),
            logs=(*self.logs, *(log.topic for log in added)),
        )


class ManifestFile:
    """The one owner of a database's manifest while it is open for writing; from any thread."""

    def __init__(self, fs: FileSystem, directory: PurePath, manifest: Manifest) -> None:
        self._fs = fs
        self._directory = directory
        self._lock = Lock()
        # Whether this process may append to the journal that the manifest names.
        self._appends = False
        # Whether no journal of an earlier process can be there.
        self._is_clear = False
        self._is_closed = False
        # The largest reserve that there was, or was no room for.
        self._reserved_bytes = 0
        self.current = manifest

    def update(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Replace the manifest by what change makes of it, durably.

        Raises: StorageFullError, ClosedError.
        """
        with self._lock:
            self._check_open()
            changed = self._replace(change(self.current))
            self._grow_reserve()
            return changed

    def add_log(self, added: AddedLog) -> None:
        """Add a topic log, durably, whose first slab is on the disk.

        The first one of a process replaces the manifest and begins a journal, to which the others
        go. Raises: StorageFullError, ClosedError, and then it was not added.
        """
        with self._lock:
            self._check_open()
            changed = self.current.with_logs([added])
            if self._appends:
                # Whatever is wrong, the end of the journal is not known then.
                self._appends = False
                append_log(self._fs, self._journal_path(), added)
                self.current = changed
            else:
                number = self.current.journal + 1
                begin_journal(self._fs, journal_path(self._directory, number))
                self._replace(replace(changed, journal=number, has_journal=True))
            self._appends = True
            self._grow_reserve()

    def fold(self) -> None:
        """Put what is in the journal into the manifest, and remove all journals.

        Where that fails, on a full disk for example, the journal goes on to count.
        """
        with self._lock, suppress(SiltstoneError):
            if self.current.has_journal:
                self._appends = False
                self._replace(replace(self.current, has_journal=False))
            elif self._is_clear:
                return
            for entry in self._fs.list(self._directory):
                if is_journal(entry.name):
                    self._fs.remove(self._directory / entry.name)
            self._is_clear = True

    def close(self) -> None:
        """Fold the journal, and change nothing any more: others may open the database now."""
        self.fold()
        with self._lock:
            self._is_closed = True

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the database is closed")

    def _replace(self, changed: Manifest) -> Manifest:
        path = self._directory / MANIFEST
        data = changed.encode()
        try:
            replace_file(self._fs, path, data)
        except StorageFullError:
            self._give_up_reserve()
            replace_file(self._fs, path, data)
        self.current = changed
        return changed

    def _journal_path(self) -> PurePath:
        return journal_path(self._directory, self.current.journal)

    def keep_reserve(self) -> None:
        """Put the reserve file in its place again, where there is room for it."""
        with self._lock:
            self._keep_reserve()

    def _grow_reserve(self) -> None:
        """Let the reserve be as large as the manifest has become. That is done already, so nothing
        that goes wrong here counts.
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
            # One that is too small stays where there is no room for more. A power cut may have left
            # the name without the space.
            with self._fs.open(path, writable=True) if is_there else self._fs.create(path) as file:
                file.truncate(size)
                file.allocate(0, size)
        except StorageFullError:
            if not is_there:
                self._give_up_reserve()

    def _reserve_bytes(self) -> int:
        """Return what the next manifest may need: that of thousands of topic logs is large."""
        records = len(self.current.slabs) + len(self.current.logs)
        return RESERVE_BYTES * (1 + records * _RECORD_BYTES // RESERVE_BYTES)

    def _give_up_reserve(self) -> None:
        path = self._directory / RESERVE
        if self._fs.exists(path):
            self._fs.remove(path)


def _stored_settings(settings: DatabaseSettings) -> dict[str, Any]:
    """Return settings without those at their defaults that earlier readers do not know: these may
    read on beside a newer writer.
    """
    values = settings.to_json()
    return {name: value for name, value in values.items() if (name, value) != ("reclaim", "none")}


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
            # The process that writes may have folded it into a new manifest meanwhile.
            before, manifest = manifest, read_manifest_alone(fs, directory)
            if manifest.has_journal and manifest.journal == before.journal:
                raise CorruptionError("the journal of topic logs is missing", path=path) from exc
            continue
        # Those that the manifest has were added before it was replaced.
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
    """Return the record of the slab with which a topic log begins."""
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
    lines = [json.dumps(_fields(slab)) for slab in slabs]
    return "[\n  " + ",\n  ".join(lines) + "\n ]" if lines else "[]"


def _fields(slab: SlabRecord) -> dict[str, Any]:
    # By hand: `asdict` takes ten times as long, and there may be thousands of slabs.
    fields = {
        "shard": slab.shard,
        "generation": slab.generation,
        "state": slab.state.value,
        "since_us": slab.since_us,
        "until_us": slab.until_us,
        "created_us": slab.created_us,
        "first_serial": slab.first_serial,
        "until_serial": slab.until_serial,
    }
    if slab.closed_us is not None:
        # Versions before 0.2.0 do not know it.
        fields["closed_us"] = slab.closed_us
    return fields
