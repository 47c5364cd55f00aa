"""Decide when a generation ends and which slabs are dropped, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from siltstone.errors import UsageError
from siltstone.store.slab.drops import Why
from siltstone.store.slab.manifest import SlabId, SlabRecord, SlabState
from siltstone.units import SECOND_US

# If only a retention is set, a generation is this fraction of it, so that one can be dropped.
_RETAINED_GENERATIONS = 8
_ROTATE_BYTES_MIN = 65_536
# The disk space of a slab is allocated in steps of at least 64 KiB. Below this size for each shard,
# the steps would take most of what a retention may keep.
RETAIN_BYTES_MIN: Final = 1024 * 1024
# If delivered rows are reclaimed and no setting ends a generation, it ends at the first size. At
# the second size it ends already if no more rows arrive and all rows are delivered.
RECLAIM_ROTATE_BYTES: Final = 64 * 1024 * 1024
RECLAIM_SEAL_BYTES: Final = 1024 * 1024


class RetentionLimits(Protocol):
    """The relevant settings of a database of either kind; None is no limit."""

    @property
    def shards(self) -> int: ...

    @property
    def rotate_seconds(self) -> float | None: ...

    @property
    def rotate_bytes(self) -> int | None: ...

    @property
    def retain_seconds(self) -> float | None: ...

    @property
    def retain_bytes(self) -> int | None: ...


def due_for_turn(
    settings: RetentionLimits,
    record: SlabRecord,
    *,
    rows: int,
    size_bytes: int,
    now_us: int,
    reclaims: bool = False,
) -> bool:
    """Return whether the current slab has reached its age or its size; an empty slab never has."""
    if not rows:
        return False
    rotate_seconds, rotate_bytes = _rotation(settings, reclaims=reclaims)
    if rotate_bytes is not None and size_bytes >= rotate_bytes:
        return True
    age_us = now_us - record.since_us
    return rotate_seconds is not None and age_us >= rotate_seconds * SECOND_US


def sets_rotation(settings: RetentionLimits) -> bool:
    """Return whether the settings say explicitly when a generation ends."""
    return settings.rotate_seconds is not None or settings.rotate_bytes is not None


def ends_generations(settings: RetentionLimits) -> bool:
    """Return whether a setting ends generations, or drops them by their age or size."""
    return (
        sets_rotation(settings)
        or settings.retain_seconds is not None
        or settings.retain_bytes is not None
    )


def require_retention(settings: RetentionLimits) -> None:
    """Raise UsageError if only whole generations that are too large would fit into `retain_bytes`.

    A rotation that is set says how large generations are, so any retention is accepted beside it.
    """
    least = RETAIN_BYTES_MIN * settings.shards
    if settings.retain_bytes is None or settings.retain_bytes >= least or sets_rotation(settings):
        return
    raise UsageError(
        f"setting retain_bytes must be at least {RETAIN_BYTES_MIN} (1 MiB) for each shard, because "
        f"rows are dropped in whole generations of at least {_ROTATE_BYTES_MIN} bytes; to keep "
        f"less, set rotate_bytes or rotate_seconds too: retain_bytes={settings.retain_bytes} "
        f"shards={settings.shards} least={least}"
    )


def _rotation(settings: RetentionLimits, *, reclaims: bool) -> tuple[float | None, int | None]:
    """Return the age in seconds and the size in bytes at which a generation ends.

    Only sealed generations are dropped. A retention, or the reclaiming of delivered rows, therefore
    needs a rotation.
    """
    seconds, size_bytes = settings.rotate_seconds, settings.rotate_bytes
    if not sets_rotation(settings):
        if settings.retain_seconds is not None:
            seconds = settings.retain_seconds / _RETAINED_GENERATIONS
        if settings.retain_bytes is not None:
            # All shards together keep this size, and each of them has a current slab.
            generations = _RETAINED_GENERATIONS * settings.shards
            size_bytes = max(_ROTATE_BYTES_MIN, settings.retain_bytes // generations)
        if reclaims:
            size_bytes = min(size_bytes or RECLAIM_ROTATE_BYTES, RECLAIM_ROTATE_BYTES)
    return seconds, size_bytes


def due_for_drop(
    settings: RetentionLimits,
    records: Sequence[SlabRecord],
    sizes: Mapping[SlabId, int],
    *,
    passed_us: Callable[[int], int],
    tiering: bool = False,
) -> dict[SlabId, Why]:
    """Return the sealed slabs that exceed the retention by age or, oldest first, by bytes, each
    with the reason.

    `passed_us` returns how much time has certainly passed since a time. If the database is tiered,
    only slabs in the lake are returned.
    """
    total = sum(sizes.values())
    dropped: dict[SlabId, Why] = {}
    sealed = _droppable(records, tiering=tiering)
    for record in sorted(sealed, key=lambda record: (record.ended_us, record.shard)):
        assert record.ended_us is not None
        too_old = (
            settings.retain_seconds is not None
            and passed_us(record.ended_us) >= settings.retain_seconds * SECOND_US
        )
        too_much = settings.retain_bytes is not None and total > settings.retain_bytes
        if too_old or too_much:
            dropped[record.id] = "age" if too_old else "size"
            total -= sizes[record.id]
    return dropped


def due_for_reclaim(
    records: Sequence[SlabRecord], needed: Mapping[int, int], *, tiering: bool = False
) -> list[SlabRecord]:
    """Return the sealed slabs without a needed row, by shard and generation.

    `needed` has for each shard the serial from which on rows are needed. All rows of a shard that
    is not in it are needed. If the database is tiered, only slabs in the lake are returned.
    """
    due = [
        record
        for record in _droppable(records, tiering=tiering)
        if record.until_serial is not None and record.until_serial <= needed.get(record.shard, 0)
    ]
    return sorted(due, key=lambda record: record.id)


def _droppable(records: Sequence[SlabRecord], *, tiering: bool) -> list[SlabRecord]:
    ended = {SlabState.TIERED} if tiering else {SlabState.SEALED, SlabState.TIERED}
    return [record for record in records if record.state in ended]
