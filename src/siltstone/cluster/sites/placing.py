"""Carries out the plans for the placements of the shards, and finds the next leaders.

Every change is one compare-and-set in the registry. Only the leader of a shard plans for it. On the
loop of the site.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from statistics import median_low
from typing import Any, Final

from siltstone.cluster.registry import ClusterRegistry
from siltstone.cluster.settings import SiteSettings
from siltstone.cluster.shared_log import stream_of
from siltstone.cluster.sites.seen import AWAY_SECONDS, PeerSite, SiteShard
from siltstone.logs import log
from siltstone.store.writer.replication.codec import VERSION
from siltstone.store.writer.replication.follower import FollowerStatus
from siltstone.store.writer.replication.health import clock_is_wrong
from siltstone.store.writer.replication.sites.membership import (
    HOLD_US,
    Hold,
    ShardSites,
    is_behind,
    leave,
    majority,
    next_placement,
    trim,
)
from siltstone.store.writer.replication.sites.planning import (
    Facts,
    Site,
    SiteRole,
    claim_rank,
    loads,
    plan,
    step,
    successor,
)

_LOG: Final = logging.getLogger("siltstone.cluster")
# A log is trimmed when it has this many messages that all in-sync sites have synced.
_TRIM_MESSAGES: Final = 200
# Leaders move for balance only when they have led for a while, and one after another.
_CALM_SECONDS: Final = 15.0
_BALANCE_SECONDS: Final = 5.0


class Placing:
    """The part of a site in the placements of its shards."""

    def __init__(
        self,
        settings: SiteSettings,
        shards: Mapping[str, SiteShard],
        peers: Mapping[str, PeerSite],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.site = settings.site
        self._settings = settings
        self._shards = shards
        self._peers = peers
        self._loop = loop
        self.sites: dict[str, Site] = {}
        # This site is about to end, so it leads nothing more.
        self.is_stopping = False
        # Whether the NATS server of this site has space for the shared logs.
        self.has_space = True
        # The number of times that another site was asked to lead.
        self.handovers = 0
        self._balanced_at = loop.time()

    def is_alive(self, name: str) -> bool:
        """Return whether a site is this one, or was heard."""
        peer = self._peers.get(name)
        return name == self.site or (
            peer is not None and self._loop.time() - peer.heard_at <= AWAY_SECONDS
        )

    def facts(self) -> Facts:
        """Return the known facts about all sites."""
        led: Counter[str] = Counter()
        for key, shard in self._shards.items():
            for name, peer in self._peers.items():
                if self.is_alive(name) and peer.shards.get(key, {}).get("leads"):
                    led[name] += 1
            if shard.log.view.leads:
                led[self.site] += 1
        return Facts(
            sites=self.sites,
            alive=frozenset(filter(self.is_alive, {self.site, *self._peers})),
            replicas=loads(
                each.placement for each in self._shards.values() if each.placement is not None
            ),
            led=led,
        )

    @property
    def is_busy(self) -> bool:
        """Whether a shard is moving, or a site leaves."""
        return any(site.role is SiteRole.LEAVING for site in self.sites.values()) or any(
            shard.placement is not None and shard.placement.wanted
            for shard in self._shards.values()
        )

    # Who leads

    def rank(self, shard: SiteShard, facts: Facts) -> int:
        """Return the turn of this site when a shard has no leader."""
        return claim_rank(shard.placement, self.site, shard.rank, facts)

    def successors(self) -> dict[str, str]:
        """Return the shards that this site leads and should not, with the sites to lead them."""
        facts = self.facts()
        found: dict[str, str] = {}
        now = self._loop.time()
        is_calm = now - self._balanced_at >= _BALANCE_SECONDS and all(
            self.is_alive(name) for name, site in self.sites.items() if site.role is SiteRole.MEMBER
        )
        for key, shard in self._shards.items():
            before, shard.successor = shard.successor, ""
            if not shard.log.view.leads or shard.placement is None:
                continue
            is_settled = bool(shard.leading_since) and now - shard.leading_since >= _CALM_SECONDS
            name = successor(
                shard.placement,
                self.site,
                facts,
                able=self._able_to_lead(key),
                is_fit=self.is_fit and not shard.damaged and not shard.log.view.is_full,
                may_balance=is_calm and is_settled and not found,
            )
            if name:
                shard.successor = found[key] = name
                self.handovers += name != before
                self._balanced_at = now
        return found

    @property
    def is_fit(self) -> bool:
        """Whether this site may lead, as far as it can tell itself."""
        clocks_us = [0, *self._skews_us().values()]
        return self.has_space and not self.is_stopping and not clock_is_wrong(0, clocks_us)

    def _skews_us(self) -> dict[str, int]:
        """Return how far the clocks of the sites that are heard are ahead of ours."""
        return {name: peer.skew_us for name, peer in self._peers.items() if self.is_alive(name)}

    def clocks_us(self) -> dict[str, int]:
        """Return how far the clock of each site is from the median of all."""
        skews = self._skews_us() | {self.site: 0}
        median = median_low(skews.values())
        return {name: skew - median for name, skew in skews.items()}

    def able(self, key: str) -> list[str]:
        """Return the other sites that have read everything of a shard."""
        return [
            name
            for name, peer in self._peers.items()
            if self.is_alive(name)
            and not peer.is_stopping
            and peer.shards.get(key, {}).get("status") == FollowerStatus.CURRENT.value
        ]

    def may_be_replaced(self, key: str) -> bool:
        """Return whether this site may delete its copy of a shard, as far as the others are
        concerned: each that is heard has read everything, none is to replace its copy first, and a
        majority of the replicas is left, as far as there is one without this site.
        """
        others = {
            name: peer.shards.get(key, {})
            for name, peer in self._peers.items()
            if self.is_alive(name)
        }
        shard = self._shards.get(key)
        placement = None if shard is None else shard.placement
        replicas = frozenset(others) if placement is None else placement.replicas | {self.site}
        left = len(replicas & others.keys())
        if left < min(majority(len(replicas)), len(replicas) - 1):
            return False
        # A site that has just deleted its copy does not have the shard.
        return bool(others) and all(
            theirs.get("status") == FollowerStatus.CURRENT.value
            and not (theirs.get("damaged") and name < self.site)
            for name, theirs in others.items()
        )

    def _able_to_lead(self, key: str) -> list[str]:
        """Return the other sites that would not hand a shard over at once, and whose records this
        site can read.
        """
        found: list[str] = []
        for name in self.able(key):
            peer = self._peers[name]
            theirs = peer.shards[key]
            is_hindered = theirs.get("damaged") or theirs.get("full")
            if peer.is_fit and peer.reads <= VERSION and not is_hindered:
                found.append(name)
        return found

    # Placements

    async def place(self, registry: ClusterRegistry, key: str, shard: SiteShard) -> None:
        """Take the next step of a shard's placement: join it, move it, or trim its log."""
        view, tail = shard.log.view, shard.tail
        if tail is None:
            return
        name = stream_of(shard.log.identity)
        before, revision = await registry.placement(name)
        shard.placement = before
        now = self._loop.time()
        shard.leading_since = (shard.leading_since or now) if view.leads else 0.0
        after = self._next(key, shard, before)
        if after is not None and await registry.place(name, after, revision):
            self._tell_of(shard, before, after)
            shard.placement = after
        if view.leads and shard.placement is not None and tail.first < shard.placement.trim:
            # Either planned now, or by a leader that could not carry it out.
            await tail.trim(shard.placement.trim)
            tail.first = shard.placement.trim

    def _next(self, key: str, shard: SiteShard, before: ShardSites | None) -> ShardSites | None:
        """Return the placement after the next step; None if it stays."""
        view = shard.log.view
        if before is None:
            sites = frozenset({self.site})
            return ShardSites(replicas=sites, insync=sites) if view.leads else None
        if self.site not in before.insync:
            synced = self._synced(key) | {self.site: view.synced}
            joined = next_placement(
                before, self.site, view.status, synced=view.synced, members=synced
            )
            if joined is not None:
                return joined
        if not view.leads:
            return None
        facts = self.facts()
        return (
            plan(before, shard.log.replicas, facts)
            or step(before, self.site, facts.alive)
            or self._without_absent(key, shard, before)
            or self._trimmed(key, shard, before)
        )

    def _synced(self, key: str) -> dict[str, int]:
        """Return the synced positions of the other sites, as far as they were heard.

        A position only grows, so one that was heard long ago is not too high.
        """
        return {
            name: int(peer.shards[key]["synced"])
            for name, peer in self._peers.items()
            if key in peer.shards
        }

    def _without_absent(self, key: str, shard: SiteShard, before: ShardSites) -> ShardSites | None:
        """Return the placement without an in-sync site that is away, or far behind."""
        assert shard.tail is not None
        synced, now = self._synced(key), self._loop.time()
        for name in sorted(before.insync - {self.site}):
            peer = self._peers.get(name)
            heard_at = peer.heard_at if peer is not None and key in peer.shards else 0.0
            silent = now - max(heard_at, shard.leading_since)
            lag = max(0, shard.tail.last - synced.get(name, shard.tail.last))
            if is_behind(
                lag_bytes=lag * shard.tail.message_bytes,
                lag_us=int(silent * 1e6),
                lag_us_max=int(self._settings.away_after * 1e6),
            ):
                return leave(before, name)
        return None

    def _trimmed(self, key: str, shard: SiteShard, before: ShardSites) -> ShardSites | None:
        """Return the placement with a higher trim, if enough messages may go."""
        assert shard.tail is not None
        now, synced = self._loop.time(), self._synced(key) | {self.site: shard.log.view.synced}
        holds = [
            Hold(sequence=peer.shards[key]["hold"], until_us=int(peer.heard_at * 1e6) + HOLD_US)
            for peer in self._peers.values()
            if key in peer.shards and peer.shards[key].get("hold")
        ]
        after = trim(
            before, synced=synced, holds=holds, last=shard.tail.last, now_us=int(now * 1e6)
        )
        if after is None or after.trim - shard.tail.first < _TRIM_MESSAGES:
            return None
        return after

    def _tell_of(self, shard: SiteShard, before: ShardSites | None, after: ShardSites) -> None:
        facts: dict[str, Any] = {"database": shard.log.database, "shard": shard.log.shard}
        known = frozenset() if before is None else before.insync
        for name in sorted(known - after.insync):
            log(_LOG, logging.WARNING, "replica_left", site=name, **facts)
        for name in sorted(after.insync - known):
            log(_LOG, logging.INFO, "replica_joined", site=name, **facts)
        if before is not None and after.trim > before.trim:
            log(_LOG, logging.DEBUG, "log_trimmed", first=after.trim, **facts)
        if before is not None and after.wanted != before.wanted:
            log(
                _LOG,
                logging.INFO,
                "placement_planned" if after.wanted else "placement_reached",
                replicas=sorted(after.wanted or after.replicas),
                **facts,
            )
