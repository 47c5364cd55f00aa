"""The settings of a database: immutable, validated, stored in its manifest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from siltstone.errors import UsageError
from siltstone.settings.declare import (
    Kind,
    Scope,
    Setting,
    check_values,
    fixed_fields,
    from_values,
    to_values,
    values_of,
    with_changes,
)
from siltstone.store.segment.segment import SEGMENT_BYTES_MIN
from siltstone.topic.structure import NEVER

COMPRESSIONS: Final = ("none", "zstd", "lz4")
SHARD_KEYS: Final = ("publisher", "topic")
BACKENDS: Final = ("local", "replicated")
COMPACTIONS: Final = ("background", "off")
RECLAIMS: Final = ("none", "delivered")
REPLICAS_MAX: Final = 7
THRESHOLD_MAX: Final = (1 << 31) - 1
# The limits for one file or the memory, for a disk, and for a time.
SIZE_MAX: Final = 1 << 40
TOTAL_MAX: Final = 1 << 60
_SECONDS_MAX: Final = 1 << 40
VALUE_BYTES_MAX: Final = 256 * 1024 * 1024
CALL_BYTES_MAX: Final = 1024 * 1024 * 1024

# Settings that key-value databases have too, with the bounds of databases of messages.
SHARDS: Final = Setting(
    kind=Kind.COUNT,
    low=1,
    high=16384,
    scope=Scope.CREATION,
    help="Number of shards. Each has a writer thread.",
)
THRESHOLDS: Final = Setting(
    kind=Kind.LEVELS,
    low=NEVER,
    high=THRESHOLD_MAX,
    scope=Scope.GENERATION,
    option="threshold",
    help="Number of distinct words per topic level before the level is treated as variable. The "
    "last number applies to deeper levels. 0: every level is variable; -1: no level is.",
)
FLUSH_INTERVAL: Final = Setting(
    kind=Kind.SECONDS,
    low=0,
    high=3600,
    help="Longest time that a row waits before it is written, for example 10ms.",
)
IDLE_FLUSH_INTERVAL: Final = Setting(
    kind=Kind.SECONDS,
    low=0,
    high=3600,
    help="Write waiting rows when no row arrives for this long, for example 1ms.",
)
MAX_ITEMS: Final = Setting(
    kind=Kind.COUNT,
    low=1,
    limit=SIZE_MAX,
    help="Number of waiting rows that starts a write at once.",
)
PENDING_BYTES_MAX: Final = Setting(
    kind=Kind.SIZE,
    low=1,
    limit=SIZE_MAX,
    option="pending-bytes",
    help="Size of waiting rows beyond which appends block.",
)
TOPIC_CACHE: Final = Setting(
    kind=Kind.COUNT,
    low=2,
    limit=SIZE_MAX,
    help="Number of topics that a shard keeps in memory.",
)
ROTATE_SECONDS: Final = Setting(
    kind=Kind.SECONDS,
    above=0,
    limit=_SECONDS_MAX,
    option="rotate",
    help="Time between generations, for example 1d.",
)
ROTATE_BYTES: Final = Setting(
    kind=Kind.SIZE,
    above=0,
    limit=TOTAL_MAX,
    help="Size at which a new generation starts, for example 1GiB.",
)
RETAIN_SECONDS: Final = Setting(
    kind=Kind.SECONDS,
    above=0,
    limit=_SECONDS_MAX,
    option="retain",
    help="Age at which sealed slabs are dropped, for example 30d.",
)
RETAIN_BYTES: Final = Setting(
    kind=Kind.SIZE,
    above=0,
    limit=TOTAL_MAX,
    help="Total size beyond which the oldest sealed slabs are dropped.",
)
QUOTA_BYTES: Final = Setting(
    kind=Kind.SIZE,
    above=0,
    limit=TOTAL_MAX,
    option="quota",
    help="Size on disk beyond which appends are refused. Space is allocated in steps; the last "
    "step may exceed the quota.",
)
BACKEND: Final = Setting(
    kind=Kind.CHOICE,
    choices=BACKENDS,
    scope=Scope.CREATION,
    help="Where the shards are. local: on this machine; replicated: on several sites of a cluster.",
)

REPLICAS: Final = Setting(
    kind=Kind.COUNT,
    low=1,
    high=REPLICAS_MAX,
    help="Number of sites that keep each shard of a replicated database in sync.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSettings:
    """How a database stores its rows. Times are in seconds. None means no limit.

    `thresholds` has a number for each topic level: how many different words the level may have
    before it is treated as variable. The last number applies to all deeper levels. 0 makes every
    level variable, -1 none. With `reclaim` set to `delivered`, a broker drops a sealed slab before
    retention does, once no durable session and no share group needs a row of it. The shards of a
    `local` backend are on one machine; a cluster keeps those of a `replicated` one.
    """

    shards: Annotated[int, SHARDS] = 1
    shard_by: Annotated[
        str,
        Setting(
            kind=Kind.CHOICE,
            choices=SHARD_KEYS,
            scope=Scope.CREATION,
            help="Column that selects the shard of a row. The rows of a shard stay in order.",
        ),
    ] = "publisher"
    thresholds: Annotated[tuple[int, ...], THRESHOLDS] = (100, 10)
    segment_bytes: Annotated[
        int,
        Setting(
            kind=Kind.SIZE,
            low=SEGMENT_BYTES_MIN,
            high=SIZE_MAX,
            multiple_of=4096,
            help="Size of a segment file.",
        ),
    ] = 1024 * 1024 * 1024
    compression: Annotated[
        str,
        Setting(
            kind=Kind.CHOICE,
            choices=COMPRESSIONS,
            scope=Scope.GENERATION,
            help="Compression of the rows.",
        ),
    ] = "none"
    flush_interval: Annotated[float, FLUSH_INTERVAL] = 0.01
    idle_flush_interval: Annotated[float, IDLE_FLUSH_INTERVAL] = 0.0
    max_items: Annotated[int, MAX_ITEMS] = 20_000
    sync_interval: Annotated[
        float,
        Setting(
            kind=Kind.SECONDS,
            low=0,
            high=3600,
            help="Time between syncs of rows with durability written or none.",
        ),
    ] = 1.0
    pending_bytes_max: Annotated[int, PENDING_BYTES_MAX] = 64 * 1024 * 1024
    topic_cache: Annotated[int, TOPIC_CACHE] = 8192
    rotate_seconds: Annotated[float | None, ROTATE_SECONDS] = None
    rotate_bytes: Annotated[int | None, ROTATE_BYTES] = None
    retain_seconds: Annotated[float | None, RETAIN_SECONDS] = None
    retain_bytes: Annotated[int | None, RETAIN_BYTES] = None
    reclaim: Annotated[
        str,
        Setting(
            kind=Kind.CHOICE,
            choices=RECLAIMS,
            help="What a broker drops before retention does. delivered: sealed slabs of which no "
            "durable session and no share group needs a row. Other readers of the store miss "
            "these rows, unless the database is tiered.",
        ),
    ] = "none"
    compaction: Annotated[
        str,
        Setting(
            kind=Kind.CHOICE,
            choices=COMPACTIONS,
            help="Whether a broker rewrites small frames as large, compressed ones. background: "
            "about a minute after they were written, at the lowest priority; off: only 'siltstone "
            "compact' does it.",
        ),
    ] = "background"
    quota_bytes: Annotated[int | None, QUOTA_BYTES] = None
    reserve_bytes: Annotated[
        int,
        Setting(
            kind=Kind.SIZE,
            low=0,
            limit=TOTAL_MAX,
            option="reserve",
            help="Free disk space below which appends are refused.",
        ),
    ] = 1024 * 1024
    backend: Annotated[str, BACKEND] = "local"
    replicas: Annotated[int, REPLICAS] = 3

    def __post_init__(self) -> None:
        """Validate all settings. Raises: UsageError."""
        check_values(DatabaseSettings, values_of(self))

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for a manifest."""
        return to_values(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create settings from JSON values. Raises: UsageError."""
        return from_values(cls, values)

    def changed(self, changes: Mapping[str, Any]) -> DatabaseSettings:
        """Return the settings with changes. Raises: UsageError for a setting that cannot change."""
        return with_changes(self, changes)

    def changed_to(self, other: DatabaseSettings) -> list[str]:
        """Return the names of the settings that differ."""
        before, after = values_of(self), values_of(other)
        return [name for name, value in before.items() if value != after[name]]


# `shards` and `shard_by` select the shard of a row: a change would break the order of a publisher's
# rows. `backend` says where the history of the shards is.
FIXED: Final = fixed_fields(DatabaseSettings)


def require_local(backend: str) -> None:
    """Raise UsageError for a database that this store cannot have without a cluster."""
    if backend != "local":
        raise UsageError(
            f"a database with the backend {backend!r} needs a cluster, and this store does not "
            f"belong to one: use the backend 'local'"
        )
