"""When a generation is turned over, and which slabs are dropped: pure decisions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

from siltstone.store.slab.drops import Why
from siltstone.store.slab.manifest import SlabId, SlabRecord, SlabState

_SECOND_US = 1_000_000
# Where only a retention is set, a generation is this part of it, so that there is one to drop.
_RETAINED_GENERATIONS = 8
_ROTATE_BYTES_MIN = 65_536
# Where delivered rows are reclaimed and nothing else ends a generation, it has at most this size.
# It ends at this size already when no more rows come and all are delivered.
RECLAIM_ROTATE_BYTES: Final = 64 * 1024 * 1024
RECLAIM_SEAL_BYTES: Final = 1024 * 1024


class Limits(Protocol):
    """The settings that matter here, of a database of either kind; None is no limit."""

    @property
    def rotate_seconds(self) -> float | None: ...

    @property
    def rotate_bytes(self) -> int | None: ...

    @property
    def retain_seconds(self) -> float | None: ...

    @property
    def retain_bytes(self) -> int | None: ...


def due_for_turn(
    settings: Limits,
    record: SlabRecord,
    *,
    rows: int,
    size_bytes: int,
    now_us: int,
    reclaims: bool = False,
) -> bool:
    """Say whether the current slab has had its time or its size; an empty one goes on."""
    if not rows:
        return False
    rotate_seconds, rotate_bytes = _rotation(settings, reclaims=reclaims)
    if rotate_bytes is not None and size_bytes >= rotate_bytes:
        return True
    age_us = now_us - record.since_us
    return rotate_seconds is not None and age_us >= rotate_seconds * _SECOND_US


def sets_rotation(settings: Limits) -> bool:
    """Say whether the settings themselves tell when a generation ends."""
    return settings.rotate_seconds is not None or settings.rotate_bytes is not None


def _rotation(settings: Limits, *, reclaims: bool) -> tuple[float | None, int | None]:
    """Return after how long, and at which size, a generation ends.

    Only sealed generations are dropped, so that a retention, or what reclaims delivered rows,
    needs a rotation.
    """
    seconds, size_bytes = settings.rotate_seconds, settings.rotate_bytes
    if not sets_rotation(settings):
        if settings.retain_seconds is not None:
            seconds = settings.retain_seconds / _RETAINED_GENERATIONS
        if settings.retain_bytes is not None:
            size_bytes = max(_ROTATE_BYTES_MIN, settings.retain_bytes // _RETAINED_GENERATIONS)
        if reclaims:
            size_bytes = min(size_bytes or RECLAIM_ROTATE_BYTES, RECLAIM_ROTATE_BYTES)
    return seconds, size_bytes


def due_for_drop(
    settings: Limits,
    records: Sequence[SlabRecord],
    sizes: Mapping[SlabId, int],
    *,
    passed_us: Callable[[int], int],
    tiering: bool = False,
) -> dict[SlabId, Why]:
    """Return the sealed slabs that are past the retention by age or, oldest first, by bytes, each
    with the reason.

    `passed_us` tells how long ago a time was, for certain. Of a database that is tiered, only what
    is in the lake.
    """
    total = sum(sizes.values())
    dropped: dict[SlabId, Why] = {}
    sealed = _droppable(records, tiering=tiering)
    for record in sorted(sealed, key=lambda record: (record.ended_us, record.shard)):
        assert record.ended_us is not None
        too_old = (
            settings.retain_seconds is not None
            and passed_us(record.ended_us) >= settings.retain_seconds * _SECOND_US
        )
        too_much = settings.retain_bytes is not None and total > settings.retain_bytes
        if too_old or too_much:
            dropped[record.id] = "age" if too_old else "size"
            total -= sizes[record.id]
    return dropped


def due_for_reclaim(
    records: Sequence[SlabRecord], needed: Mapping[int, int], *, tiering: bool = False
) -> list[SlabRecord]:
    """Return the sealed slabs without a row that is needed, by shard and generation; rows of a
    shard are needed from a serial on. A shard that is not named is needed whole.

    Of a database that is tiered, only what is in the lake.
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
