"""The settings of a database: immutable, validated, stored in its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from siltstone.errors import UsageError
from siltstone.store.segment.segment import SEGMENT_BYTES_MIN

NEVER: Final = -1
COMPRESSIONS: Final = ("none", "zstd", "lz4")
SHARD_KEYS: Final = ("publisher", "topic")
BACKENDS: Final = ("local", "replicated")
RECLAIMS: Final = ("none", "delivered")
THRESHOLD_MAX: Final = (1 << 31) - 1
# The limits for one file or the memory, and for a disk.
SIZE_MAX: Final = 1 << 40
TOTAL_MAX: Final = 1 << 60
_SECONDS_MAX: Final = 1 << 40
_MOST: Final = {
    "max_items": SIZE_MAX,
    "topic_cache": SIZE_MAX,
    "pending_bytes_max": SIZE_MAX,
    "rotate_seconds": _SECONDS_MAX,
    "retain_seconds": _SECONDS_MAX,
    "rotate_bytes": TOTAL_MAX,
    "retain_bytes": TOTAL_MAX,
    "quota_bytes": TOTAL_MAX,
    "reserve_bytes": TOTAL_MAX,
}
VALUE_BYTES_MAX: Final = 256 * 1024 * 1024
CALL_BYTES_MAX: Final = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSettings:
    """How a database stores its rows. Times are in seconds. None means no limit.

    `thresholds` has a number for each topic level: how many different words the level may have
    before it is treated as variable. The last number applies to all deeper levels. 0 makes every
    level variable, -1 none. `reclaim` selects what a broker drops before retention does: nothing,
    or with `delivered` the sealed slabs of which no durable session and no share group needs a row.
    The shards of a `local` backend are on one machine; a cluster keeps those of a `replicated` one.
    """

    shards: int = 1
    shard_by: str = "publisher"
    thresholds: tuple[int, ...] = (100, 10)
    segment_bytes: int = 1024 * 1024 * 1024
    compression: str = "none"
    flush_interval: float = 0.01
    idle_flush_interval: float = 0.0
    max_items: int = 20_000
    sync_interval: float = 1.0
    pending_bytes_max: int = 64 * 1024 * 1024
    topic_cache: int = 8192
    rotate_seconds: float | None = None
    rotate_bytes: int | None = None
    retain_seconds: float | None = None
    retain_bytes: int | None = None
    reclaim: str = "none"
    quota_bytes: int | None = None
    reserve_bytes: int = 1024 * 1024
    backend: str = "local"

    def __post_init__(self) -> None:
        """Validate all settings. Raises: UsageError."""
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), str(field.type))
        _require(1 <= self.shards <= 16384, "shards", "a number from 1 to 16384", self.shards)
        _require(
            self.shard_by in SHARD_KEYS,
            "shard_by",
            f"one of {', '.join(SHARD_KEYS)}",
            self.shard_by,
        )
        _require(
            len(self.thresholds) > 0
            and all(NEVER <= value <= THRESHOLD_MAX for value in self.thresholds),
            "thresholds",
            f"one or more numbers from -1 to {THRESHOLD_MAX}",
            self.thresholds,
        )
        _require(
            SEGMENT_BYTES_MIN <= self.segment_bytes <= SIZE_MAX and self.segment_bytes % 4096 == 0,
            "segment_bytes",
            f"a multiple of 4096 from {SEGMENT_BYTES_MIN}",
            self.segment_bytes,
        )
        _require(
            self.compression in COMPRESSIONS,
            "compression",
            f"one of {', '.join(COMPRESSIONS)}",
            self.compression,
        )
        _require(self.backend in BACKENDS, "backend", f"one of {', '.join(BACKENDS)}", self.backend)
        _require(self.reclaim in RECLAIMS, "reclaim", f"one of {', '.join(RECLAIMS)}", self.reclaim)
        _require(self.max_items >= 1, "max_items", "at least 1", self.max_items)
        _require(self.topic_cache >= 2, "topic_cache", "at least 2", self.topic_cache)
        _require(
            self.pending_bytes_max >= 1, "pending_bytes_max", "at least 1", self.pending_bytes_max
        )
        for name in ("flush_interval", "idle_flush_interval", "sync_interval"):
            value = getattr(self, name)
            _require(0 <= value <= 3600, name, "a time from 0 to 3600 seconds", value)
        for name in (
            "rotate_seconds",
            "rotate_bytes",
            "retain_seconds",
            "retain_bytes",
            "quota_bytes",
        ):
            value = getattr(self, name)
            _require(value is None or value > 0, name, "above 0, or none", value)
        _require(self.reserve_bytes >= 0, "reserve_bytes", "0 or more", self.reserve_bytes)
        for name, most in _MOST.items():
            value = getattr(self, name)
            _require(value is None or value <= most, name, f"at most {most}", value)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for a manifest."""
        return asdict(self) | {"thresholds": list(self.thresholds)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create settings from JSON values. Raises: UsageError."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise UsageError(f"unknown database settings: {', '.join(unknown)}")
        plain = dict(values)
        if isinstance(plain.get("thresholds"), list):
            plain["thresholds"] = tuple(plain["thresholds"])
        return cls(**plain)

    def changed(self, changes: Mapping[str, Any]) -> DatabaseSettings:
        """Return the settings with changes. Raises: UsageError for a setting that cannot change."""
        settings = DatabaseSettings.from_json(self.to_json() | dict(changes))
        if fixed := FIXED & set(self.changed_to(settings)):
            names = ", ".join(sorted(fixed))
            raise UsageError(f"these settings cannot change after a database was created: {names}")
        return settings

    def changed_to(self, other: DatabaseSettings) -> list[str]:
        """Return the names of the settings that differ."""
        return [
            field.name
            for field in fields(self)
            if getattr(self, field.name) != getattr(other, field.name)
        ]


# `shards` and `shard_by` select the shard of a row: a change would break the order of a publisher's
# rows. `backend` says where the history of the shards is.
FIXED: Final = frozenset({"backend", "shards", "shard_by"})


def require_local(backend: str) -> None:
    """Raise UsageError for a database that this store cannot have without a cluster."""
    if backend != "local":
        raise UsageError(
            f"a database with the backend {backend!r} needs a cluster, and this store does not "
            f"belong to one: use the backend 'local'"
        )


def _check_type(name: str, value: object, declared: str) -> None:
    """Check that a value has the declared type. Raises: UsageError."""
    match declared.removesuffix(" | None"):
        case "int":
            fits = isinstance(value, int) and not isinstance(value, bool)
        case "float":
            fits = isinstance(value, int | float) and not isinstance(value, bool)
        case "str":
            fits = isinstance(value, str)
        case _:
            fits = isinstance(value, tuple) and all(type(item) is int for item in value)
    if declared.endswith(" | None") and value is None:
        return
    _require(fits, name, f"of type {declared}", value)


def _require(holds: bool, name: str, expected: str, value: object) -> None:
    if not holds:
        raise UsageError(f"setting {name} must be {expected}: {name}={value!r}")
