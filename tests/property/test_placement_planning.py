"""Plans reach their aim: whatever the sites become, the steps end, and no step is unsafe."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.store.writer.replication.follower import FollowerStatus
from siltstone.store.writer.replication.sites.membership import ShardSites, next_placement
from siltstone.store.writer.replication.sites.planning import (
    Facts,
    Site,
    SiteRole,
    choose,
    loads,
    plan,
    step,
    successor,
)

NAMES = "abcdef"
STEPS_MAX = 400


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[str, Site], list[ShardSites], int]:
    """Sites in zones, and the placements of some shards."""
    names = draw(st.integers(1, len(NAMES)))
    sites = {
        name: Site(
            role=draw(st.sampled_from(list(SiteRole))), zone=draw(st.sampled_from(["", "x", "y"]))
        )
        for name in NAMES[:names]
    }
    shards = []
    for _ in range(draw(st.integers(1, 4))):
        replicas = draw(st.sets(st.sampled_from(sorted(sites)), min_size=1, max_size=4))
        shards.append(ShardSites(replicas=frozenset(replicas), insync=frozenset(replicas)))
    return sites, shards, draw(st.integers(1, 4))


def facts_of(sites: dict[str, Site], shards: list[ShardSites], leaders: list[str]) -> Facts:
    led = {name: leaders.count(name) for name in sites}
    return Facts(sites=sites, alive=frozenset(sites), replicas=loads(shards), led=led)


@settings(max_examples=300, deadline=None)
@given(clusters())
def test_every_transition_ends_with_the_replicas_that_are_wanted(
    cluster: tuple[dict[str, Site], list[ShardSites], int],
) -> None:
    sites, shards, count = cluster
    leaders = [min(each.insync) for each in shards]
    for _ in range(STEPS_MAX):
        is_still = True
        for at in range(len(shards)):
            before = shards[at]
            facts = facts_of(sites, shards, leaders)
            heir = successor(before, leaders[at], facts, able=sites, is_fit=True, may_balance=True)
            leaders[at] = heir or leaders[at]
            after = plan(before, count, facts) or step(before, leaders[at], facts.alive)
            for site in sorted(before.wanted):
                if after is None:
                    synced = dict.fromkeys(sites, 9)
                    after = next_placement(
                        before, site, FollowerStatus.CURRENT, synced=9, members=synced
                    )
            if after is not None:
                # A step loses no redundancy: fewer replicas only when fewer are wanted.
                aim = after.wanted or after.replicas
                assert len(after.insync) >= min(len(before.insync), len(aim))
                shards[at] = after
            is_still = is_still and after is None and not heir
        if is_still:
            break
    else:
        raise AssertionError(f"no end: {shards} {leaders}")
    members = [name for name, site in sites.items() if site.role is SiteRole.MEMBER]
    for shard, leader in zip(shards, leaders, strict=True):
        assert not shard.wanted
        assert shard.insync == shard.replicas
        kept = [name for name in shard.replicas if sites[name].role in KEEPING]
        if kept:
            assert len(kept) == len(shard.replicas)
            assert len(kept) == count or (len(kept) < count and set(members) <= set(kept))
        if kept and members:
            assert leader in members


KEEPING = {SiteRole.MEMBER, SiteRole.DRAINING}


@given(clusters())
def test_a_choice_made_again_is_the_same_and_spreads_at_least_as_well(
    cluster: tuple[dict[str, Site], list[ShardSites], int],
) -> None:
    sites, shards, count = cluster
    for shard in shards:
        current = shard.replicas
        for _ in range(20):
            facts = facts_of(sites, [replace(shard, replicas=current, insync=current)], [])
            chosen = choose(current, count, facts)
            assert chosen == choose(current, count, facts)
            if chosen == current:
                break
            current = chosen
        else:
            raise AssertionError(f"the choice changes all the time: {current}")
