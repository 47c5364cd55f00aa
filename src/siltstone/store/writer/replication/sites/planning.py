"""Decide where the replicas and the leader of a shard shall be; nothing here acts on it.

The leader of a shard plans for it. It uses the facts that all sites agree on (the roles and zones
of the sites, the placements of all shards) and its knowledge of which sites are alive. Each
decision is one change of the placement by compare-and-set. So after a crash, any later leader
continues with the next one.

Invariants:
- a replica is removed only when all reachable wanted sites are in sync, and these are a majority of
  the wanted sites;
- the leader does not remove itself: it hands over first;
- a choice made twice from the same facts is the same, and choosing again changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from siltstone.store.writer.replication.sites.membership import ShardSites, majority, remove

# A site leads, or has replicas, this many more than another before one is moved for balance.
UNBALANCED: Final = 2
# Reasons to claim later: each is added to the rank of a site, in units of the claim timer.
NOT_LEADING_RANKS: Final = 10
NOT_IN_SYNC_RANKS: Final = 20


class SiteRole(Enum):
    """The role of a site.

    A DRAINING site keeps its replicas and leads nothing. A LEAVING one gives up its replicas too.
    An OBSERVER has joined no shard, or has left all. One that is GONE never comes back as it was.
    """

    MEMBER = "member"
    DRAINING = "draining"
    LEAVING = "leaving"
    OBSERVER = "observer"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A site, as all sites have agreed on it. Sites of one zone may fail together.

    `producers` has the first bytes of the names of its producers.
    """

    role: SiteRole = SiteRole.MEMBER
    zone: str = ""
    producers: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts from which a leader plans.

    `alive` are the reachable sites, this one included. `replicas` has the number of replicas of
    each site, and `led` the number of shards that it leads.
    """

    sites: Mapping[str, Site]
    alive: frozenset[str]
    replicas: Mapping[str, int]
    led: Mapping[str, int]

    def keeps(self, site: str) -> bool:
        """Return whether a site may keep a replica. An old cluster has sites without an entry."""
        known = self.sites.get(site)
        return known is None or known.role in (SiteRole.MEMBER, SiteRole.DRAINING)

    def leads(self, site: str) -> bool:
        """Return whether a site may lead."""
        known = self.sites.get(site)
        return known is None or known.role is SiteRole.MEMBER

    def zone(self, site: str) -> str:
        """Return the zone of a site; a site without one is a zone of its own."""
        known = self.sites.get(site)
        return f"site {site}" if known is None or not known.zone else f"zone {known.zone}"

    def candidates(self, kept: Collection[str]) -> list[str]:
        """Return the sites that may get a replica."""
        return sorted(
            name
            for name, site in self.sites.items()
            if site.role is SiteRole.MEMBER and name in self.alive and name not in kept
        )


def loads(placements: Iterable[ShardSites]) -> Counter[str]:
    """Return the number of replicas of each site; a wanted replica counts already."""
    return Counter(site for each in placements for site in each.wanted or each.replicas)


def choose(current: frozenset[str], count: int, facts: Facts) -> frozenset[str]:
    """Return the `count` sites that shall be the replicas of a shard, or fewer if there are not
    enough.

    The result is never empty: the last replica stays, whatever the role of its site is.
    """
    kept = sorted(site for site in current if facts.keeps(site))
    while len(kept) > count:
        kept.remove(max(kept, key=lambda site: _burden(site, kept, facts)))
    before = len(kept)
    if kept and facts.candidates(kept) and not any(facts.leads(site) for site in kept):
        # One of the sites must be able to lead, even if all current ones drain.
        before -= 1
        if len(kept) == count:
            kept.remove(max(kept, key=lambda site: _burden(site, kept, facts)))
    while len(kept) < count and (free := facts.candidates(kept)):
        kept.append(min(free, key=lambda site: _burden(site, kept, facts)))
    if len(kept) == before:
        _improve(kept, facts)
    return frozenset(kept) or current


def _burden(site: str, kept: Collection[str], facts: Facts) -> tuple[bool, int, bool, int, str]:
    """Return the rank of a site for removal: a site that cannot lead comes first, then one in a
    zone with many replicas.
    """
    return (
        not facts.leads(site),
        _neighbours(site, kept, facts),
        site not in facts.alive,
        facts.replicas.get(site, 0),
        site,
    )


def _neighbours(site: str, kept: Collection[str], facts: Facts) -> int:
    """Return how many other sites of the same zone are kept."""
    zone = facts.zone(site)
    return sum(facts.zone(each) == zone for each in kept if each != site)


def _improve(kept: list[str], facts: Facts) -> None:
    """Exchange one site if that spreads the replicas over more zones, or balances the sites."""
    best: tuple[int, int, str, str] | None = None
    for old in kept:
        rest = [site for site in kept if site != old]
        beside, load = _neighbours(old, rest, facts), facts.replicas.get(old, 0)
        for new in facts.candidates(kept):
            spread = _neighbours(new, rest, facts) - beside
            relief = facts.replicas.get(new, 0) - load
            if spread < 0 or (spread == 0 and relief <= -UNBALANCED):
                best = min(best or (spread, relief, old, new), (spread, relief, old, new))
    if best is not None:
        kept.remove(best[2])
        kept.append(best[3])


def plan(placement: ShardSites, count: int, facts: Facts) -> ShardSites | None:
    """Return the placement with a new aim; None if the aim stays."""
    if placement.wanted and all(facts.keeps(site) for site in placement.wanted):
        return None
    wanted = choose(placement.replicas, count, facts)
    if wanted == placement.replicas:
        wanted = frozenset()
    return None if wanted == placement.wanted else replace(placement, wanted=wanted)


def step(placement: ShardSites, leader: str, alive: frozenset[str]) -> ShardSites | None:
    """Return the next step of the leader in a transition: remove a replica, or end it.

    A wanted site adds itself (`next_placement`).
    """
    wanted = placement.wanted
    if not wanted or not wanted <= placement.replicas:
        return None
    ready = wanted & placement.insync
    if len(ready) < majority(len(wanted)) or (wanted & alive) - ready:
        return None
    surplus = placement.replicas - wanted
    if not surplus:
        return replace(placement, wanted=frozenset())
    gone = sorted(surplus - {leader})
    return remove(placement, gone[0]) if gone else None


def move(placement: ShardSites, old: str, new: str) -> ShardSites | None:
    """Return the placement that aims at a site in place of another; None if it cannot."""
    now = placement.wanted or placement.replicas
    if old not in now or new in now:
        return None
    return replace(placement, wanted=now - {old} | {new})


def must_hand_over(placement: ShardSites, site: str, facts: Facts, *, is_fit: bool) -> bool:
    """Return whether a leader must hand over. A site that is not fit has a wrong clock, or no
    space.
    """
    aim = placement.wanted or placement.replicas
    return not is_fit or site not in aim or not facts.leads(site)


def successor(
    placement: ShardSites,
    site: str,
    facts: Facts,
    *,
    able: Collection[str],
    is_fit: bool,
    may_balance: bool,
) -> str:
    """Return the site to which a leader hands over, "" if it goes on.

    `able` are the reachable sites that have read everything.
    """
    aim = placement.wanted or placement.replicas
    ready = [each for each in sorted(able) if each != site and each in placement.insync & aim]
    choices = [each for each in ready if facts.leads(each)]
    if not choices and site not in aim:
        # A site that drains is better than one that is to be removed.
        choices = ready
    if not choices:
        return ""
    if placement.preferred in choices:
        return placement.preferred
    best = min(choices, key=lambda each: (facts.led.get(each, 0), each))
    if must_hand_over(placement, site, facts, is_fit=is_fit):
        return best
    if placement.preferred == site or not may_balance:
        return ""
    is_unbalanced = facts.led.get(site, 0) - facts.led.get(best, 0) >= UNBALANCED
    return best if is_unbalanced else ""


def claim_rank(placement: ShardSites | None, site: str, rank: int, facts: Facts) -> int:
    """Return after how many turns a site claims a silent shard. A site that should not lead waits
    for the others, and leads only if no other site claims.
    """
    if placement is None:
        return rank
    if placement.preferred == site and facts.leads(site):
        return 0
    late = 0 if site in placement.insync else NOT_IN_SYNC_RANKS
    aim = placement.wanted or placement.replicas
    if site not in aim or not facts.leads(site):
        late += NOT_LEADING_RANKS
    return rank + late
