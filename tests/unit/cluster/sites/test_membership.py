"""What operators may change, and the sentences that refuse the rest."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from siltstone.cluster.settings import Address, SiteSettings
from siltstone.cluster.sites.membership import (
    check_role,
    entered,
    has_left,
    is_entered,
    moved,
    preferring,
    with_role,
)
from siltstone.errors import NotFoundError, UsageError
from siltstone.store.writer.replication.sites.membership import ShardSites
from siltstone.store.writer.replication.sites.planning import Facts, Site, SiteRole

SEEDS = tuple(Address("127.0.0.1", port) for port in (7400, 7401, 7402))
SITES = {name: Site() for name in "abc"} | {"d": Site(role=SiteRole.OBSERVER)}
PLACEMENT = ShardSites(replicas=frozenset("abc"), insync=frozenset("abc"))


def settings(listen: Address | None, zone: str = "") -> SiteSettings:
    return SiteSettings(
        name="plant",
        site="d",
        seeds=SEEDS,
        listen=listen,
        secret=b"the secret of this cluster",
        directory=PurePath("/data/cluster"),
        zone=zone,
    )


def facts(alive: str = "abcd") -> Facts:
    return Facts(sites=SITES, alive=frozenset(alive), replicas={}, led={})


def test_a_site_of_the_seeds_is_a_member_and_another_one_begins_as_an_observer() -> None:
    assert entered(None, settings=settings(SEEDS[0]), producers=b"") == Site()
    elsewhere = settings(Address("127.0.0.1", 7500), "x")
    assert entered(None, settings=elsewhere, producers=b"") == Site(
        role=SiteRole.OBSERVER, zone="x"
    )


def test_a_site_that_starts_again_keeps_its_role_and_may_have_another_zone() -> None:
    known = Site(role=SiteRole.DRAINING, zone="x")
    assert is_entered(known, settings(SEEDS[0], "x"), b"")
    assert not is_entered(known, settings(SEEDS[0], "y"), b"")
    assert not is_entered(known, settings(SEEDS[0], "x"), b"others")
    assert entered(known, settings=settings(SEEDS[0], "y"), producers=b"") == Site(
        role=SiteRole.DRAINING, zone="y"
    )


def test_only_a_leaving_site_leaves() -> None:
    assert has_left(Site(role=SiteRole.LEAVING)) == Site(role=SiteRole.OBSERVER)
    assert has_left(Site(role=SiteRole.DRAINING)) is None
    assert has_left(None) is None
    assert with_role(None, role=SiteRole.GONE) is None


def test_a_role_needs_a_known_site_and_another_member_that_runs() -> None:
    check_role(SITES, "a", SiteRole.DRAINING, is_alive="abc".__contains__)
    check_role(SITES, "d", SiteRole.MEMBER, is_alive="abc".__contains__)
    check_role(SITES, "c", SiteRole.GONE, is_alive="ab".__contains__)
    with pytest.raises(NotFoundError, match="unknown site 'x': the cluster has a, b, c, d"):
        check_role(SITES, "x", SiteRole.DRAINING, is_alive="abc".__contains__)
    with pytest.raises(UsageError, match="site 'd' is observer: it cannot become leaving"):
        check_role(SITES, "d", SiteRole.LEAVING, is_alive="abc".__contains__)
    with pytest.raises(UsageError, match="site 'a' is running: use"):
        check_role(SITES, "a", SiteRole.GONE, is_alive="abc".__contains__)
    with pytest.raises(UsageError, match="no other member of the cluster is running"):
        check_role(SITES, "a", SiteRole.LEAVING, is_alive="ad".__contains__)


def test_a_replica_moves_to_a_member_that_runs() -> None:
    joined = Facts(sites=SITES | {"d": Site()}, alive=frozenset("abcd"), replicas={}, led={})
    wanted = moved(joined, PLACEMENT, old="b", new="d")
    assert wanted is not None
    assert wanted.wanted == frozenset("acd")
    with pytest.raises(UsageError, match="site 'd' is not a member"):
        moved(facts(), PLACEMENT, old="b", new="d")
    with pytest.raises(UsageError, match="site 'c' is away"):
        moved(facts("ab"), PLACEMENT, old="b", new="c")
    with pytest.raises(UsageError, match="the replicas are a, b, c"):
        moved(facts(), PLACEMENT, old="b", new="c")


def test_a_preferred_leader_has_a_replica() -> None:
    preferred = preferring(PLACEMENT, site="b")
    assert preferred is not None
    assert preferred.preferred == "b"
    assert preferring(PLACEMENT, site="") is None
    with pytest.raises(UsageError, match="site 'd' has no replica"):
        preferring(PLACEMENT, site="d")
