"""The sites of a simulated cluster: they drain, leave and come back, and shards move."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random
from typing import TYPE_CHECKING

from siltstone.errors import UsageError
from siltstone.store.writer.replication.follower import FollowerStatus
from siltstone.store.writer.replication.sites.planning import (
    Facts,
    Site,
    SiteRole,
    claim_rank,
    move,
    plan,
    successor,
)
from tests.simulation.publisher import prefix_of

if TYPE_CHECKING:
    from tests.simulation.site import Site as SimulatedSite
    from tests.simulation.world import World

# What the operator does, on average, in a second of a run.
ACTS_PER_SECOND = 1.5


class Roster:
    """What the sites have agreed on about each other, and the operator who changes it."""

    def __init__(self, world: World) -> None:
        self._world = world
        # Not the random numbers of the world: a run without moves does not depend on them.
        self._rng = Random(f"moves {world.seed}")
        self.sites = {site.name: Site() for site in world.sites}
        self.count = min(3, len(world.sites))

    def act(self) -> None:
        """Change the role of a site, move a replica, or prefer a leader."""
        world, rng = self._world, self._rng
        if not world.is_faulty:
            return
        world.after(int(rng.expovariate(ACTS_PER_SECOND) * 1e6), self.act)
        name = rng.choice(sorted(self.sites))
        chance = rng.random()
        if chance < 0.5:
            role = rng.choice([SiteRole.MEMBER, *SiteRole])
            others = [each for each in self.sites if each != name]
            if any(self.sites[each].role is SiteRole.MEMBER for each in others):
                self.sites[name] = Site(role=role)
                world.event(f"{name} is {role.value}")
                world.seen[f"role {role.value}"] += 1
        elif chance < 0.6:
            self.count = rng.randint(1, len(self.sites))
        elif chance < 0.8:
            old = rng.choice(sorted(world.placement.replicas))
            world.change_placement(move(world.placement, old, name))
        else:
            world.change_placement(replace(world.placement, preferred=name))

    def rest(self) -> None:
        """End all changes: every site is a member again."""
        self.sites = dict.fromkeys(self.sites, Site())

    def facts(self, *, all_alive: bool = False) -> Facts:
        """Return what a leader believes; it may take a site for absent that is there."""
        alive = {
            site.name
            for site in self._world.sites
            if all_alive
            or (site.shard is not None and site.has_network and self._rng.random() < 0.95)
        }
        return Facts(sites=self.sites, alive=frozenset(alive), replicas={}, led={})

    def rank(self, site: SimulatedSite) -> int:
        """Return the turn of a site among those that claim."""
        return claim_rank(self._world.placement, site.name, site.rank, self.facts(all_alive=True))

    def plan(self, site: SimulatedSite) -> None:
        """Take the next step of the leader, and hand over if another site shall lead."""
        world, facts = self._world, self.facts()
        before = world.placement
        try:
            after = plan(before, self.count, facts) or world.kit.step(
                before, site.name, facts.alive | {site.name}
            )
        except UsageError as exc:
            world.check(False, str(exc))  # noqa: FBT003 -- always wrong
            return
        world.change_placement(after)
        able = [
            other.name
            for other in world.sites
            if other.shard is not None
            and other.has_network
            and other.shard.follower.status is FollowerStatus.CURRENT
        ]
        name = successor(before, site.name, facts, able=able, is_fit=True, may_balance=False)
        assert site.shard is not None
        term = site.shard.position.term
        for other in world.sites:
            if other.name == name and not world.is_lost():
                world.after(world.delay(), partial(other.asked_to_lead, term))

    def retire(self, site: SimulatedSite) -> None:
        """Let the leader forget the producers that were closed, and are used no more."""
        for name, publisher in self._world.publishers.items():
            last = publisher.session - (2 if publisher.settling else 1)
            if last >= 0 and site.shard is not None:
                actions = site.shard.retire(prefix_of(name), last)
                self._world.seen["retire"] += bool(actions)
                site.act(actions)

    def is_settled(self) -> bool:
        """Return whether every transition has ended, and the right site leads."""
        world = self._world
        leaders = {
            site.name
            for site in world.sites
            if site.shard is not None and site.shard.leader is not None
        }
        placed = world.placement
        wanted = {placed.preferred} & placed.replicas or placed.replicas
        return (
            not placed.wanted
            and placed.insync == placed.replicas
            and len(placed.replicas) == self.count
            and bool(leaders & wanted)
        )
