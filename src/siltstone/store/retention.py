"""When a generation is turned over, and which slabs are dropped: pure decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from siltstone.store.manifest import SlabId, SlabRecord, SlabState

_SECOND_US = 1_000_000


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
    settings: Limits, record: SlabRecord, *, rows: int, size_bytes: int, now_us: int
) -> bool:
    """Say whether the current slab has had its time or its size; an empty one goes on."""
    if not rows:
        return False
    if settings.rotate_bytes is not None and size_bytes >= settings.rotate_bytes:
        return True
    age_us = now_us - record.since_us
    return settings.rotate_seconds is not None and age_us >= settings.rotate_seconds * _SECOND_US


def due_for_drop(
    settings: Limits,
    records: Sequence[SlabRecord],
    sizes: Mapping[SlabId, int],
    *,
    now_us: int,
    tiering: bool = False,
) -> list[SlabId]:
    """Return the sealed slabs that are past the retention by age or, oldest first, by bytes.

    Of a database that is tiered, only what is in the lake.
    """
    total = sum(sizes.values())
    dropped: list[SlabId] = []
    ended = {SlabState.TIERED} if tiering else {SlabState.SEALED, SlabState.TIERED}
    sealed = [record for record in records if record.state in ended]
    for record in sorted(sealed, key=lambda record: (record.until_us, record.shard)):
        assert record.until_us is not None
        too_old = (
            settings.retain_seconds is not None
            and record.until_us <= now_us - settings.retain_seconds * _SECOND_US
        )
        too_much = settings.retain_bytes is not None and total > settings.retain_bytes
        if too_old or too_much:
            dropped.append(record.id)
            total -= sizes[record.id]
    return dropped
