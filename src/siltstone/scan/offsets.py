"""The serials that a query asks for, beside those that the store has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from siltstone.errors import UsageError
from siltstone.store.feed.position import Position
from siltstone.store.log.read.selection import SlabExtent


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Requested serials that no slab has any more, or has not yet."""

    shard: int
    serials: range

    def __str__(self) -> str:
        return f"shard {self.shard}, serials {self.serials.start} to {self.serials.stop - 1}"


def bounds_of(extents: Sequence[SlabExtent]) -> dict[int, range]:
    """Return for each shard the range from its oldest serial to the one after its newest."""
    bounds: dict[int, range] = {}
    for extent in extents:
        shard, serials = extent.slab.shard, extent.serials
        known = bounds.get(shard, serials)
        bounds[shard] = range(min(known.start, serials.start), max(known.stop, serials.stop))
    return bounds


def resolve(position: Position, extents: Sequence[SlabExtent]) -> dict[int, int]:
    """Return the serial of each shard for this position and the current extents.

    Raises: UsageError for a shard that does not exist.
    """
    bounds = bounds_of(extents)
    if unknown := sorted(set(position.serials) - set(bounds)):
        raise UsageError(
            f"the offsets have a shard that is not in the database: shard={unknown[0]} "
            f"shards={len(bounds)}"
        )
    return dict(position.resolved(bounds).serials)


def find_losses(
    start: Mapping[int, int], end: Mapping[int, int], extents: Sequence[SlabExtent]
) -> list[Loss]:
    """Return the serials between two positions that are in no slab: dropped, or never written."""
    losses: list[Loss] = []
    for shard, stop in sorted(end.items()):
        reached = start.get(shard, stop)
        held = sorted(
            (extent.serials for extent in extents if extent.slab.shard == shard),
            key=lambda serials: serials.start,
        )
        for serials in held:
            if reached < min(serials.start, stop):
                losses.append(Loss(shard=shard, serials=range(reached, min(serials.start, stop))))
            reached = max(reached, serials.stop)
        if reached < stop:
            losses.append(Loss(shard=shard, serials=range(reached, stop)))
    return losses
