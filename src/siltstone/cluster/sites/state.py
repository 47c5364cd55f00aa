"""The state of the cluster as one site sees it: what `siltstone cluster status` shows."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from siltstone.cluster.sites.placing import Placing
from siltstone.cluster.sites.seen import PeerSite, SiteShard
from siltstone.store.writer.replication.sites.membership import ShardSites, majority
from siltstone.store.writer.replication.sites.planning import Site, SiteRole


def state_of(
    placing: Placing,
    shards: Mapping[str, SiteShard],
    peers: Mapping[str, PeerSite],
    mine: Mapping[str, Mapping[str, Any]],
    undecided: Collection[str] = (),
) -> dict[str, Any]:
    """Return the sites and the shards. `mine` is the beat of this site.

    `undecided` has the segments whose copies differ, as DATABASE/SHARD/GENERATION/SERIAL.seg.
    """
    facts, clocks = placing.facts(), placing.clocks_us()
    sites = {
        name: {
            "state": _state(placing, name),
            "role": facts.sites[name].role.value if name in facts.sites else "",
            "zone": facts.sites[name].zone if name in facts.sites else "",
            "replicas": facts.replicas.get(name, 0),
            "leads": facts.led.get(name, 0),
            "clock_us": clocks.get(name),
        }
        for name in sorted({placing.site, *peers, *facts.sites})
    }
    seen: dict[str, dict[str, Any]] = {}
    for key in sorted(mine):
        paths = sorted(path for path in undecided if path.startswith(f"{key}/"))
        seen[key] = _shard(placing, shards[key], peers, key, mine[key])
        seen[key]["undecided"] = [path.removeprefix(f"{key}/") for path in paths]
    return {"sites": sites, "shards": seen}


def _state(placing: Placing, name: str) -> str:
    if name == placing.site:
        return "here"
    return "there" if placing.is_alive(name) else "away"


def _shard(
    placing: Placing,
    shard: SiteShard,
    peers: Mapping[str, PeerSite],
    key: str,
    mine: Mapping[str, Any],
) -> dict[str, Any]:
    known = {placing.site: mine} | {
        name: peer.shards[key]
        for name, peer in peers.items()
        if key in peer.shards and placing.is_alive(name)
    }
    last = max([each["sequence"] for each in known.values()])
    leaders = [name for name, each in known.items() if each["leads"]]
    placement = shard.placement
    insync = frozenset() if placement is None else placement.insync
    wanted = possible(shard.log.replicas, placing.sites)
    message_bytes = 0 if shard.tail is None else shard.tail.message_bytes
    return {
        "leader": leaders[0] if leaders else None,
        "in_sync": sorted(insync),
        "placed": [] if placement is None else sorted(placement.replicas),
        "transition": transition(placement, shard.successor),
        "health": health(placement, frozenset(known), wanted=wanted),
        "term": mine["term"],
        "wanted": wanted,
        "log_full": 0.0 if shard.tail is None else shard.tail.full,
        "first": 1 if shard.tail is None else shard.tail.first,
        "last": last,
        "waiting_calls": shard.log.waits,
        "replicas": {
            name: {
                "sequence": each["sequence"],
                "lag": last - each["sequence"],
                "lag_bytes": (last - each["sequence"]) * message_bytes,
                "full": each.get("full", False),
                "synced": each["synced"],
                "status": each["status"],
                "reason": each["reason"],
                "in_sync": name in insync,
                "observes": placement is not None and name not in placement.replicas,
                "copied_bytes": each.get("copied_bytes", 0),
                "copy_bytes": each.get("copy_bytes", 0),
            }
            for name, each in sorted(known.items())
        },
    }


def transition(placement: ShardSites | None, successor: str) -> dict[str, Any] | None:
    """Return the change of the sites of a shard that is under way, None if there is none."""
    if placement is None:
        return None
    wanted = placement.wanted or placement.replicas
    added = sorted(wanted - (placement.replicas & placement.insync)) if placement.wanted else []
    removed = sorted(placement.replicas - wanted)
    if not (added or removed or successor):
        return None
    return {"add": added, "remove": removed, "leader": successor or None}


def possible(replicas: int, sites: Mapping[str, Site]) -> int:
    """Return how many replicas the cluster can have: at most one for each site that may have
    one.
    """
    able = sum(site.role in (SiteRole.MEMBER, SiteRole.DRAINING) for site in sites.values())
    return min(replicas, able) if able else replicas


def health(placement: ShardSites | None, known: frozenset[str], *, wanted: int) -> str:
    """Return the health of a shard by its reachable replicas: ok, under-replicated, below
    quorum.
    """
    if placement is None:
        return "not placed"
    there = len(placement.insync & known)
    if there < majority(len(placement.replicas)):
        return "below quorum"
    return "ok" if there >= wanted else "under-replicated"
