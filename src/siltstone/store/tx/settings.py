"""The settings of a key-value database: immutable, validated, stored in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from siltstone.errors import UsageError
from siltstone.store.slab.settings import BACKENDS
from siltstone.topic.structure import NEVER

SECONDS_MAX: Final = 366 * 24 * 3600
# They are part of every key, select its shard, or say where the history of the shards is.
FIXED: Final = frozenset({"backend", "shards", "timed"})
GENERATIONS: Final = ("rotate_seconds", "rotate_bytes", "retain_seconds", "retain_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueSettings:
    """How a key-value database keeps its rows. Times are in seconds, None means no limit.

    A `timed` database has many rows of a topic, which differ in their time; a plain map, with timed
    off, has one. `thresholds` are as in DatabaseSettings. A transaction that reads is valid for
    `conflict_window` seconds, unless more than half of `conflict_writes_max` writes were made
    meanwhile. A transaction's id is remembered for `remember_ids` seconds. Generations end by age
    or size, and sealed ones are dropped by age or by the total of bytes. This applies only to timed
    databases: a plain map is always in one current generation.
    """

    shards: int = 1
    timed: bool = True
    thresholds: tuple[int, ...] = (100, 10)
    flush_interval: float = 0.01
    idle_flush_interval: float = 0.0
    max_items: int = 10_000
    pending_bytes_max: int = 64 * 1024 * 1024
    topic_cache: int = 200_000
    conflict_window: float = 5.0
    conflict_writes_max: int = 500_000
    remember_ids: float = 3600.0
    quota_bytes: int | None = None
    rotate_seconds: float | None = None
    rotate_bytes: int | None = None
    retain_seconds: float | None = None
    retain_bytes: int | None = None
    backend: str = "local"

    def __post_init__(self) -> None:
        """Validate all settings. Raises: UsageError."""
        _require_int("shards", self.shards, 1, 4096)
        _require(isinstance(self.timed, bool), "timed", "true or false", self.timed)
        _require(
            len(self.thresholds) > 0
            and all(type(value) is int and value >= NEVER for value in self.thresholds),
            "thresholds",
            "one or more numbers of -1 and above",
            self.thresholds,
        )
        _require(self.backend in BACKENDS, "backend", f"one of {', '.join(BACKENDS)}", self.backend)
        _require_int("max_items", self.max_items, 1, 1 << 20)
        _require_int("pending_bytes_max", self.pending_bytes_max, 1, 1 << 40)
        _require_int("topic_cache", self.topic_cache, 2, 1 << 40)
        _require_int("conflict_writes_max", self.conflict_writes_max, 2, 1 << 40)
        for name in ("flush_interval", "idle_flush_interval", "conflict_window", "remember_ids"):
            _require_seconds(name, getattr(self, name))
        if self.quota_bytes is not None:
            _require_int("quota_bytes", self.quota_bytes, 1, 1 << 60)
        for name in GENERATIONS:
            value = getattr(self, name)
            if value is None:
                continue
            if name.endswith("_bytes"):
                _require_int(name, value, 1, 1 << 60)
            else:
                _require_seconds(name, value)
            _require(self.timed, name, "left out of a plain map", value)

    @property
    def has_limits(self) -> bool:
        """Whether generations end or are dropped automatically."""
        return any(getattr(self, name) is not None for name in GENERATIONS)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self) | {"thresholds": list(self.thresholds)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create settings from JSON values. Raises: UsageError."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise UsageError(f"unknown settings of a key-value database: {', '.join(unknown)}")
        plain = dict(values)
        if isinstance(plain.get("thresholds"), list):
            plain["thresholds"] = tuple(plain["thresholds"])
        return cls(**plain)

    def changed(self, changes: Mapping[str, Any]) -> KeyValueSettings:
        """Return the settings with changes. Raises: UsageError for a setting that cannot change."""
        settings = KeyValueSettings.from_json(self.to_json() | dict(changes))
        fixed = sorted(name for name in FIXED if getattr(self, name) != getattr(settings, name))
        if fixed:
            raise UsageError(
                f"these settings cannot change after a database was created: {', '.join(fixed)}"
            )
        return settings


def _require_seconds(name: str, value: object) -> None:
    fits = (
        isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= SECONDS_MAX
    )
    _require(fits, name, f"a time from 0 to {SECONDS_MAX} seconds", value)


def _require_int(name: str, value: object, lowest: int, highest: int) -> None:
    fits = isinstance(value, int) and not isinstance(value, bool) and lowest <= value <= highest
    _require(fits, name, f"a number from {lowest} to {highest}", value)


def _require(holds: bool, name: str, expected: str, value: object) -> None:
    if not holds:
        raise UsageError(f"setting {name} must be {expected}: {name}={value!r}")
