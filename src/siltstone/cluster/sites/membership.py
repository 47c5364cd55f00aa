"""The changes that operators may make: the roles of sites, the replicas of a shard, and its
leader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from siltstone.cluster.settings import SiteSettings
from siltstone.errors import NotFoundError, UsageError
from siltstone.store.writer.replication.sites.membership import ShardSites
from siltstone.store.writer.replication.sites.planning import Facts, Site, SiteRole, move

# The roles from which a site may get each role.
_MAY: Final[Mapping[SiteRole, frozenset[SiteRole]]] = {
    SiteRole.MEMBER: frozenset(SiteRole),
    SiteRole.DRAINING: frozenset({SiteRole.MEMBER, SiteRole.DRAINING, SiteRole.LEAVING}),
    SiteRole.LEAVING: frozenset({SiteRole.MEMBER, SiteRole.DRAINING, SiteRole.LEAVING}),
    SiteRole.GONE: frozenset(SiteRole),
}


def is_entered(site: Site | None, settings: SiteSettings, producers: bytes) -> bool:
    """Return whether the registry knows a site as it is now."""
    return site is not None and (site.zone, site.producers) == (settings.zone, producers)


def entered(site: Site | None, *, settings: SiteSettings, producers: bytes) -> Site:
    """Return the entry of a site that starts: one with a shared log is a member at once."""
    role = SiteRole.MEMBER if settings.keeps_logs else SiteRole.OBSERVER
    return replace(site or Site(role=role), zone=settings.zone, producers=producers)


def has_left(site: Site | None) -> Site | None:
    """Return the entry of a site that has no replica any more."""
    if site is None or site.role is not SiteRole.LEAVING:
        return None
    return replace(site, role=SiteRole.OBSERVER)


def with_role(site: Site | None, *, role: SiteRole) -> Site | None:
    """Return the entry of a site with another role."""
    return None if site is None else replace(site, role=role)


def check_role(
    sites: Mapping[str, Site], name: str, role: SiteRole, *, is_alive: Callable[[str], bool]
) -> None:
    """Check that a site may get a role. Raises: NotFoundError, UsageError."""
    site = sites.get(name)
    if site is None:
        known = ", ".join(sorted(sites)) or "none"
        raise NotFoundError(f"unknown site {name!r}: the cluster has {known}")
    if site.role not in _MAY[role]:
        raise UsageError(f"site {name!r} is {site.role.value}: it cannot become {role.value}")
    if role is SiteRole.GONE and is_alive(name):
        raise UsageError(f"site {name!r} is running: use 'siltstone cluster leave {name}'")
    if role is SiteRole.MEMBER:
        return
    others = [
        each
        for each, other in sites.items()
        if each != name and other.role is SiteRole.MEMBER and is_alive(each)
    ]
    if not others:
        raise UsageError(f"no other member of the cluster is running to take over from {name!r}")


def moved(facts: Facts, placement: ShardSites, *, old: str, new: str) -> ShardSites | None:
    """Return the placement that replaces a replica. Raises: UsageError."""
    known = facts.sites.get(new)
    if known is None or known.role is not SiteRole.MEMBER:
        raise UsageError(f"site {new!r} is not a member of the cluster: see 'cluster join'")
    if new not in facts.alive:
        raise UsageError(f"site {new!r} is away: start it, or choose another one")
    planned = move(placement, old, new)
    if planned is None:
        now = ", ".join(sorted(placement.wanted or placement.replicas))
        raise UsageError(f"cannot move a replica from {old!r} to {new!r}: the replicas are {now}")
    return planned


def preferring(placement: ShardSites, *, site: str) -> ShardSites | None:
    """Return the placement with a preferred leader, "" for any. Raises: UsageError."""
    if site and site not in (placement.wanted or placement.replicas):
        raise UsageError(f"site {site!r} has no replica of the shard")
    return None if placement.preferred == site else replace(placement, preferred=site)
