"""Which slabs a database has, with its settings: one small file, replaced whole.

    line 1  `siltstone-manifest 1 <CRC-32C of the rest, 8 hex digits>`
    rest    JSON

A slab exists when the manifest names it. One whose removal has begun is named under `dropping`, so
that a crash in the middle of it is finished at the next start and nothing else is ever removed.
Replacing the manifest must work on a full disk, or nothing could be dropped there: a reserve file
is given up for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from hashlib import blake2b
from pathlib import PurePath
from threading import Lock
from typing import Any, Final

from crc32c import crc32c

from siltstone.errors import CorruptionError, StorageFullError
from siltstone.fs.api import FileSystem
from siltstone.fs.publish import replace_file
from siltstone.store.identity import DatabaseIdentity
from siltstone.store.settings import DatabaseSettings

MANIFEST: Final = "manifest"
RESERVE: Final = "reserve"
RESERVE_BYTES: Final = 64 * 1024
_TITLE: Final = b"siltstone-manifest 1 "


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
    """

    shard: int
    generation: int
    state: SlabState
    since_us: int
    until_us: int | None
    created_us: int
    first_serial: int = 0
    until_serial: int | None = None

    @property
    def id(self) -> SlabId:
        """The slab's name."""
        return SlabId(self.shard, self.generation)


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
            "settings": self.settings.to_json(),
            "slabs": [asdict(slab) | {"state": slab.state.value} for slab in self.slabs],
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
        data = json.dumps(content, indent=1).encode() + b"\n"
        return _TITLE + b"%08x\n" % crc32c(data) + data

    @classmethod
    def decode(cls, data: bytes, path: PurePath) -> Manifest:
        """Read the file. Raises: CorruptionError."""
        title, _, content = data.partition(b"\n")
        if title != _TITLE + b"%08x" % crc32c(content):
            raise CorruptionError("the manifest does not match its checksum", path=path)
        values: dict[str, Any] = json.loads(content)
        return cls(
            database=values["database"],
            salt=values["salt"],
            settings=DatabaseSettings.from_json(values["settings"]),
            slabs=tuple(
                SlabRecord(**(slab | {"state": SlabState(slab["state"])}))
                for slab in values["slabs"]
            ),
            dropping=tuple(SlabId(shard, generation) for shard, generation in values["dropping"]),
            logs=tuple(values.get("logs", ())),
            identified=values.get("identified", False),
            seeds=values.get("seeds", {}),
            holds_logs=values.get("holds_logs", bool(values.get("logs"))),
        )

    def with_slab(self, record: SlabRecord) -> Manifest:
        """Return a manifest in which this slab is as given."""
        others = [slab for slab in self.slabs if slab.id != record.id]
        slabs = sorted([*others, record], key=lambda slab: slab.id)
        return replace(self, slabs=tuple(slabs))


class ManifestKeeper:
    """The one owner of a database's manifest while it is open for writing; from any thread."""

    def __init__(self, fs: FileSystem, directory: PurePath, manifest: Manifest) -> None:
        self._fs = fs
        self._directory = directory
        self._lock = Lock()
        self.current = manifest

    def update(self, change: Callable[[Manifest], Manifest]) -> Manifest:
        """Replace the manifest by what change makes of it, durably. Raises: StorageFullError."""
        with self._lock:
            changed = change(self.current)
            path = self._directory / MANIFEST
            try:
                replace_file(self._fs, path, changed.encode())
            except StorageFullError:
                self._give_up_reserve()
                replace_file(self._fs, path, changed.encode())
            self.current = changed
            return changed

    def keep_reserve(self) -> None:
        """Put the reserve file in its place again, where there is room for it."""
        path = self._directory / RESERVE
        for entry in self._fs.list(self._directory):
            if entry.name == RESERVE and entry.allocated_bytes >= RESERVE_BYTES:
                return
        # A power cut may have left the name without the space.
        self._give_up_reserve()
        try:
            with self._fs.create(path) as file:
                file.truncate(RESERVE_BYTES)
                file.allocate(0, RESERVE_BYTES)
        except StorageFullError:
            self._give_up_reserve()

    def _give_up_reserve(self) -> None:
        path = self._directory / RESERVE
        if self._fs.exists(path):
            self._fs.remove(path)


def read_manifest(fs: FileSystem, directory: PurePath) -> Manifest:
    """Read the manifest of a database. Raises: NotFoundError, CorruptionError."""
    path = directory / MANIFEST
    return Manifest.decode(fs.read(path), path)
