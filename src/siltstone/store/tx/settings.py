"""The settings of a key-value database: immutable, validated, stored in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Self

from siltstone.settings.declare import (
    Kind,
    Naming,
    Scope,
    Setting,
    by_field,
    check_values,
    declared,
    from_values,
    to_values,
    values_of,
    with_changes,
    wrong_value,
)
from siltstone.store.slab import settings as shared
from siltstone.topic.structure import NEVER

SECONDS_MAX: Final = 366 * 24 * 3600
GENERATIONS: Final = ("rotate_seconds", "rotate_bytes", "retain_seconds", "retain_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueSettings:
    """How a key-value database keeps its rows. Times are in seconds, None means no limit.

    A `timed` database can have many rows for a topic, which differ in their time. A plain map, with
    `timed` off, has one row for each topic. `thresholds` are as in DatabaseSettings. A transaction
    that reads is valid for `conflict_window` seconds, unless more than half of
    `conflict_writes_max` writes were made meanwhile. A transaction's id is remembered for
    `remember_ids` seconds. Generations end by age or size, and sealed ones are dropped by age or by
    the total of bytes. This applies only to timed databases: a plain map is always in one current
    generation. Each shard keeps about `feed_bytes` of its last changes for feeds, which may be set
    at any time; 0 means that there are no feeds.
    """

    # The fixed settings are part of every key, select its shard, or determine where the history of
    # the shards is.
    shards: Annotated[int, shared.SHARDS.within(low=1, high=4096)] = 1
    timed: Annotated[
        bool,
        Setting(
            kind=Kind.FLAG,
            scope=Scope.CREATION,
            help="Whether a topic has a row for each time. Otherwise it has one value.",
        ),
    ] = True
    thresholds: Annotated[tuple[int, ...], shared.THRESHOLDS.within(low=NEVER)] = (100, 10)
    flush_interval: Annotated[float, shared.FLUSH_INTERVAL.within(low=0, high=SECONDS_MAX)] = 0.01
    idle_flush_interval: Annotated[
        float, shared.IDLE_FLUSH_INTERVAL.within(low=0, high=SECONDS_MAX)
    ] = 0.0
    max_items: Annotated[int, shared.MAX_ITEMS.within(low=1, high=1 << 20)] = 10_000
    pending_bytes_max: Annotated[
        int, shared.PENDING_BYTES_MAX.within(low=1, high=shared.SIZE_MAX)
    ] = 64 * 1024 * 1024
    topic_cache: Annotated[int, shared.TOPIC_CACHE.within(low=2, high=shared.SIZE_MAX)] = 200_000
    conflict_window: Annotated[
        float,
        Setting(
            kind=Kind.SECONDS,
            low=0,
            high=SECONDS_MAX,
            help="Longest time of a transaction that reads, for example 5s.",
        ),
    ] = 5.0
    conflict_writes_max: Annotated[
        int,
        Setting(
            kind=Kind.COUNT,
            low=2,
            high=shared.SIZE_MAX,
            option="conflict-writes",
            help="Number of writes kept to find conflicts. A transaction that reads conflicts "
            "with more than half as many writes.",
        ),
    ] = 500_000
    remember_ids: Annotated[
        float,
        Setting(
            kind=Kind.SECONDS,
            low=0,
            high=SECONDS_MAX,
            help="Time for which the id of a transaction is remembered, for example 1h.",
        ),
    ] = 3600.0
    quota_bytes: Annotated[int | None, shared.QUOTA_BYTES.within(low=1, high=shared.TOTAL_MAX)] = (
        None
    )
    rotate_seconds: Annotated[
        float | None, shared.ROTATE_SECONDS.within(low=0, high=SECONDS_MAX)
    ] = None
    rotate_bytes: Annotated[
        int | None, shared.ROTATE_BYTES.within(low=1, high=shared.TOTAL_MAX)
    ] = None
    retain_seconds: Annotated[
        float | None, shared.RETAIN_SECONDS.within(low=0, high=SECONDS_MAX)
    ] = None
    retain_bytes: Annotated[
        int | None, shared.RETAIN_BYTES.within(low=1, high=shared.TOTAL_MAX)
    ] = None
    backend: Annotated[str, shared.BACKEND] = "local"
    replicas: Annotated[int, shared.REPLICAS] = 3
    feed_bytes: Annotated[
        int,
        Setting(
            kind=Kind.SIZE,
            low=0,
            high=shared.SIZE_MAX,
            help="Size of the last changes of each shard that are kept for feeds. 0: no feeds.",
        ),
    ] = 0

    def __post_init__(self) -> None:
        """Validate all settings. Raises: UsageError."""
        check_keyvalue(values_of(self))

    @property
    def has_limits(self) -> bool:
        """Whether generations end or are dropped automatically."""
        return any(getattr(self, name) is not None for name in GENERATIONS)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return to_values(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Create settings from JSON values. Raises: UsageError."""
        return from_values(cls, values)

    def changed(self, changes: Mapping[str, Any]) -> KeyValueSettings:
        """Return the settings with changes. Raises: UsageError for a setting that cannot change."""
        return with_changes(self, changes)


def check_keyvalue(values: Mapping[str, Any], *, name: Naming = by_field) -> None:
    """Check values of settings, also together; absent ones have their defaults.

    Raises: UsageError.
    """
    check_values(KeyValueSettings, values, name=name)
    if values.get("timed", True):
        return
    for field in GENERATIONS:
        if (value := values.get(field)) is not None:
            known = declared(KeyValueSettings)[field]
            raise wrong_value(name(known), "left out of a plain map", value)
