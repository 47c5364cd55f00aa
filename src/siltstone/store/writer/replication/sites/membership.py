"""Which sites replicate a shard, which of them are in sync, and how far the log may be trimmed.

A site that is not a replica may follow the log too, as an observer. Nothing waits for it.

A placement is a value in a shared bucket. It changes by compare-and-set only: a site reads it,
computes the next one with these functions, and writes it if no other site has written in between.

Invariants:
- the in-sync sites are a majority of the replicas, at least;
- every in-sync site has synced everything below `trim`;
- replicas are added before others are removed: while `wanted` is not empty, a transition is under
  way, and each of its steps is one change of the placement;
- `trim` is written before the log is trimmed. So a site cannot join with a position that a trim,
  decided earlier and still under way, is about to remove.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from siltstone.errors import UsageError
from siltstone.store.writer.replication.follower import FollowerStatus
from siltstone.units import SECOND_US

HOLD_US: Final = 60 * SECOND_US
LAG_BYTES_MAX: Final = 512 * 1024 * 1024
LAG_US_MAX: Final = 60 * SECOND_US


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSites:
    """The sites of a shard. The log holds everything from `trim` on.

    `wanted` has the sites that shall be the replicas, and is empty if nothing is to change.
    `preferred` is the site that shall lead, "" for any.
    """

    replicas: frozenset[str]
    insync: frozenset[str]
    trim: int = 1
    wanted: frozenset[str] = frozenset()
    preferred: str = ""

    def __post_init__(self) -> None:
        if not self.insync <= self.replicas or len(self.insync) < majority(len(self.replicas)):
            raise UsageError(
                f"the in-sync sites must be a majority of the replicas: "
                f"replicas={sorted(self.replicas)} insync={sorted(self.insync)}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Keeps the log from this sequence on while a site copies, until it expires."""

    sequence: int
    until_us: int


def majority(count: int) -> int:
    """Return the smallest majority."""
    return count // 2 + 1


def is_behind(*, lag_bytes: int, lag_us: int, lag_us_max: int = LAG_US_MAX) -> bool:
    """Return whether a site must leave the in-sync set."""
    return lag_bytes >= LAG_BYTES_MAX or lag_us >= lag_us_max


def leave(placement: ShardSites, site: str) -> ShardSites | None:
    """Return the placement without this in-sync site; None if too few would be left."""
    insync = placement.insync - {site}
    if insync == placement.insync or len(insync) < majority(len(placement.replicas)):
        return None
    return replace(placement, insync=insync)


def add(placement: ShardSites, site: str) -> ShardSites | None:
    """Return the placement with one more replica, which is not in sync yet. None if the site is a
    replica already, or if the in-sync sites would not be a majority any more.
    """
    replicas = placement.replicas | {site}
    if site in placement.replicas or len(placement.insync) < majority(len(replicas)):
        return None
    return replace(placement, replicas=replicas)


def join(
    placement: ShardSites, site: str, *, synced: int, members: Mapping[str, int]
) -> ShardSites | None:
    """Return the placement with this replica in sync; None if it may not join yet.

    `members` has the synced positions that the in-sync sites have reported.
    """
    if site not in placement.replicas or site in placement.insync:
        return None
    if not _may_join(placement, synced, members):
        return None
    return replace(placement, insync=placement.insync | {site})


def _may_join(placement: ShardSites, synced: int, members: Mapping[str, int]) -> bool:
    """Return whether a site with this synced position has everything that an in-sync site must
    have.
    """
    reported = [members[one] for one in placement.insync if one in members]
    return bool(reported) and synced >= min(reported) and synced + 1 >= placement.trim


def enter(
    placement: ShardSites, site: str, *, synced: int, members: Mapping[str, int]
) -> ShardSites | None:
    """Return the placement with one more replica that is in sync at once; None if it may not join.

    The second site of a shard joins in this way. It cannot be a replica that is not in sync: one
    in-sync site of two replicas is not a majority.
    """
    if site in placement.replicas or not _may_join(placement, synced, members):
        return None
    sites = frozenset({site})
    return replace(placement, replicas=placement.replicas | sites, insync=placement.insync | sites)


def remove(placement: ShardSites, site: str) -> ShardSites | None:
    """Return the placement without this replica; None if the in-sync sites would be too few."""
    replicas, insync = placement.replicas - {site}, placement.insync - {site}
    if replicas == placement.replicas or not insync or len(insync) < majority(len(replicas)):
        return None
    return replace(placement, replicas=replicas, insync=insync)


def trim(
    placement: ShardSites,
    *,
    synced: Mapping[str, int],
    holds: Iterable[Hold],
    last: int,
    now_us: int,
) -> ShardSites | None:
    """Return the placement with the highest trim that is safe; None if there is nothing to trim.

    The log is trimmed below the lowest synced position of the in-sync sites and below all live
    holds. The last message always stays. A site that has reported nothing stops all trimming.
    """
    positions = [synced.get(site, 0) + 1 for site in placement.insync]
    positions += [hold.sequence for hold in holds if hold.until_us > now_us]
    below = min([*positions, last])
    return replace(placement, trim=below) if below > placement.trim else None


def next_placement(
    placement: ShardSites,
    site: str,
    status: FollowerStatus,
    *,
    synced: int,
    members: Mapping[str, int],
) -> ShardSites | None:
    """Return the next step of a site that starts, or returns: first a replica, then in sync.

    Only a wanted site becomes a replica.
    """
    if status is not FollowerStatus.CURRENT:
        return None
    if site not in placement.replicas:
        if site not in placement.wanted:
            return None
        return add(placement, site) or enter(placement, site, synced=synced, members=members)
    return join(placement, site, synced=synced, members=members)
