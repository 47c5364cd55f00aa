"""How the state of a shard is told: health, and what is being changed."""

from __future__ import annotations

from dataclasses import replace

from siltstone.cluster.sites.state import health, possible, transition
from siltstone.store.writer.replication.sites.membership import ShardSites
from siltstone.store.writer.replication.sites.planning import Site, SiteRole

ALL = frozenset("abc")
PLACEMENT = ShardSites(replicas=ALL, insync=ALL)


def test_health_counts_the_in_sync_sites_that_are_heard() -> None:
    assert health(PLACEMENT, ALL, wanted=3) == "ok"
    assert health(PLACEMENT, frozenset("ab"), wanted=3) == "under-replicated"
    assert health(PLACEMENT, frozenset("a"), wanted=3) == "below quorum"
    assert health(replace(PLACEMENT, insync=frozenset("ab")), ALL, wanted=3) == "under-replicated"
    assert health(PLACEMENT, ALL, wanted=4) == "under-replicated"
    assert health(None, ALL, wanted=3) == "not placed"


def test_a_cluster_of_two_sites_has_two_replicas_at_most() -> None:
    two = {"a": Site(), "b": Site(role=SiteRole.DRAINING), "c": Site(role=SiteRole.OBSERVER)}
    assert possible(3, two) == 2
    assert possible(1, two) == 1
    assert possible(3, {}) == 3


def test_a_transition_says_what_is_added_and_removed_and_who_is_to_lead() -> None:
    assert transition(None, "") is None
    assert transition(PLACEMENT, "") is None
    assert transition(PLACEMENT, "b") == {"add": [], "remove": [], "leader": "b"}
    moving = replace(PLACEMENT, wanted=frozenset("abd"))
    assert transition(moving, "") == {"add": ["d"], "remove": ["c"], "leader": None}
    added = replace(moving, replicas=frozenset("abcd"))
    assert transition(added, "") == {"add": ["d"], "remove": ["c"], "leader": None}
    synced = replace(added, insync=frozenset("abcd"))
    assert transition(synced, "") == {"add": [], "remove": ["c"], "leader": None}
