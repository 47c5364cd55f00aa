"""Where replicas and leaders go: zones, balance, draining, and adding before removing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.store.writer.replication.sites.membership import ShardSites
from siltstone.store.writer.replication.sites.planning import (
    Facts,
    Site,
    SiteRole,
    choose,
    claim_rank,
    loads,
    move,
    must_hand_over,
    plan,
    step,
    successor,
)

ALL = frozenset("abc")
PLACEMENT = ShardSites(replicas=ALL, insync=ALL)


def facts(
    zones: str = "    ",
    *,
    alive: str = "abcd",
    replicas: dict[str, int] | None = None,
    led: dict[str, int] | None = None,
    **roles: SiteRole,
) -> Facts:
    """The sites a to d, of zones with one letter each, all members unless another role is given."""
    return Facts(
        sites={
            name: Site(role=roles.get(name, SiteRole.MEMBER), zone=zone.strip())
            for name, zone in zip("abcd", zones, strict=False)
        },
        alive=frozenset(alive),
        replicas=replicas or {},
        led=led or {},
    )


def chosen(current: str, count: int, known: Facts) -> str:
    return "".join(sorted(choose(frozenset(current), count, known)))


def test_what_is_there_stays() -> None:
    assert chosen("abc", 3, facts()) == "abc"
    assert chosen("bcd", 3, facts()) == "bcd"
    # A site that is away keeps its replica: it may come back.
    assert chosen("abc", 3, facts(alive="ab")) == "abc"


def test_missing_replicas_go_to_the_members_that_are_there_and_have_the_fewest() -> None:
    assert chosen("a", 3, facts(replicas={"b": 5, "c": 1, "d": 2})) == "acd"
    assert chosen("a", 3, facts(alive="abc", replicas={"b": 5, "c": 1})) == "abc"
    assert chosen("ab", 3, facts(c=SiteRole.OBSERVER)) == "abd"


def test_a_draining_site_keeps_its_replicas_and_a_leaving_or_lost_one_does_not() -> None:
    assert chosen("abc", 3, facts(c=SiteRole.DRAINING)) == "abc"
    assert chosen("abc", 3, facts(c=SiteRole.LEAVING)) == "abd"
    assert chosen("abc", 3, facts(c=SiteRole.GONE)) == "abd"


def test_a_site_that_may_lead_is_among_the_replicas() -> None:
    assert chosen("a", 1, facts(a=SiteRole.DRAINING)) == "b"
    assert chosen("ab", 1, facts(a=SiteRole.DRAINING)) == "b"
    assert chosen("ab", 2, facts("yxyx", a=SiteRole.DRAINING, b=SiteRole.DRAINING)) == "ad"
    assert chosen("a", 1, facts(alive="a", a=SiteRole.DRAINING)) == "a"


def test_the_last_replica_stays() -> None:
    assert chosen("a", 1, facts(alive="a", a=SiteRole.LEAVING)) == "a"


def test_replicas_are_spread_over_the_zones() -> None:
    assert chosen("a", 2, facts("xxyy", replicas={"c": 9, "d": 9})) == "ac"
    # An exchange, one at a time.
    assert chosen("abc", 3, facts("xxyz")) in {"acd", "bcd"}
    assert chosen("abc", 2, facts("xxyy")) in {"ac", "bc"}


def test_an_exchange_balances_the_sites_but_never_crowds_a_zone() -> None:
    load = {"a": 4, "b": 4, "c": 4, "d": 2}
    assert chosen("abc", 3, facts(replicas=load)) == "bcd"
    assert chosen("abc", 3, facts("xyzz", replicas=load)) == "abd"
    assert chosen("abc", 3, facts(replicas=load | {"d": 3})) == "abc"


def test_a_plan_is_an_aim_and_an_aim_stays_until_a_site_of_it_leaves() -> None:
    leaving = facts(c=SiteRole.LEAVING)
    planned = plan(PLACEMENT, 3, leaving)
    assert planned == replace(PLACEMENT, wanted=frozenset("abd"))
    assert plan(planned, 3, leaving) is None
    assert plan(planned, 3, facts(c=SiteRole.LEAVING, d=SiteRole.GONE)) == replace(
        PLACEMENT, wanted=frozenset("ab")
    )
    assert plan(planned, 3, facts(d=SiteRole.GONE)) == PLACEMENT
    assert plan(PLACEMENT, 3, facts()) is None


def test_a_replica_is_removed_when_those_that_are_wanted_are_in_sync() -> None:
    wanted = frozenset("abd")
    everyone = frozenset("abcd")
    moving = replace(PLACEMENT, wanted=wanted)
    assert step(moving, "a", everyone) is None
    added = replace(moving, replicas=everyone)
    assert step(added, "a", everyone) is None
    synced = replace(added, insync=everyone)
    assert step(synced, "c", everyone) is None, "a leader does not remove itself"
    removed = step(synced, "a", everyone)
    assert removed == ShardSites(replicas=wanted, insync=wanted, wanted=wanted)
    assert step(removed, "a", everyone) == ShardSites(replicas=wanted, insync=wanted)
    assert step(PLACEMENT, "a", everyone) is None


def test_a_wanted_site_that_is_away_does_not_hold_up_the_others() -> None:
    placement = ShardSites(
        replicas=frozenset("abcd"), insync=frozenset("bcd"), wanted=frozenset("acd")
    )
    assert step(placement, "c", frozenset("abcd")) is None
    removed = step(placement, "c", frozenset("bcd"))
    assert removed == replace(placement, replicas=frozenset("acd"), insync=frozenset("cd"))
    few = replace(placement, insync=frozenset("abc"), wanted=frozenset("ad"))
    assert step(few, "a", frozenset("abc")) is None, "a majority of the wanted ones is in sync"


def test_a_move_names_the_site_that_goes_and_the_one_that_comes() -> None:
    assert move(PLACEMENT, "c", "d") == replace(PLACEMENT, wanted=frozenset("abd"))
    assert move(PLACEMENT, "d", "x") is None
    assert move(PLACEMENT, "a", "b") is None


@pytest.mark.parametrize("role", [SiteRole.DRAINING, SiteRole.LEAVING, SiteRole.OBSERVER])
def test_a_site_that_drains_hands_over_to_the_one_that_leads_least(role: SiteRole) -> None:
    known = facts(a=role, led={"b": 2, "c": 1})
    assert must_hand_over(PLACEMENT, "a", known, is_fit=True)
    assert _successor(PLACEMENT, known, "bc") == "c"
    assert _successor(PLACEMENT, known, "b") == "b"
    assert _successor(PLACEMENT, known, "") == ""
    assert _successor(replace(PLACEMENT, preferred="b"), known, "bc") == "b"
    assert _successor(replace(PLACEMENT, insync=frozenset("ab")), known, "bc") == "b"
    assert _successor(PLACEMENT, facts(a=role, c=role, led={"b": 2}), "bc") == "b"


def test_a_leader_hands_over_when_it_is_not_fit_or_not_wanted_any_more() -> None:
    assert _successor(PLACEMENT, facts(), "bc", is_fit=False) == "b"
    moving = replace(PLACEMENT, wanted=frozenset("bcd"))
    assert _successor(moving, facts(), "bc") == "b"
    assert _successor(replace(PLACEMENT, wanted=frozenset("bd")), facts(), "c") == ""


def test_a_draining_site_leads_rather_than_one_that_is_removed() -> None:
    moving = replace(PLACEMENT, wanted=frozenset("b"))
    assert _successor(moving, facts(a=SiteRole.LEAVING, b=SiteRole.DRAINING), "bc") == "b"
    assert _successor(PLACEMENT, facts(a=SiteRole.DRAINING, b=SiteRole.DRAINING), "b") == ""


def test_leaders_are_balanced_only_when_it_is_calm_and_nothing_is_preferred() -> None:
    known = facts(led={"a": 3, "b": 1, "c": 2})
    assert _successor(PLACEMENT, known, "bc") == ""
    assert _successor(PLACEMENT, known, "bc", may_balance=True) == "b"
    assert _successor(replace(PLACEMENT, preferred="a"), known, "bc", may_balance=True) == ""
    assert _successor(PLACEMENT, facts(led={"a": 2, "b": 1}), "b", may_balance=True) == ""


def test_a_preferred_site_leads_when_it_can() -> None:
    preferring = replace(PLACEMENT, preferred="c")
    assert _successor(preferring, facts(), "bc") == "c"
    assert _successor(preferring, facts(), "b") == ""


def test_a_site_that_should_not_lead_claims_late() -> None:
    assert claim_rank(None, "a", 2, facts()) == 2
    assert claim_rank(PLACEMENT, "a", 2, facts()) == 2
    assert claim_rank(replace(PLACEMENT, preferred="a"), "a", 2, facts()) == 0
    assert claim_rank(PLACEMENT, "a", 2, facts(a=SiteRole.DRAINING)) == 12
    assert claim_rank(replace(PLACEMENT, insync=frozenset("ab")), "c", 2, facts()) == 22
    assert claim_rank(PLACEMENT, "d", 2, facts(d=SiteRole.OBSERVER)) == 32


def test_a_wanted_replica_counts_as_a_load() -> None:
    moving = replace(PLACEMENT, wanted=frozenset("abd"))
    assert loads([PLACEMENT, moving]) == {"a": 2, "b": 2, "c": 1, "d": 1}


def _successor(
    placement: ShardSites,
    known: Facts,
    able: str,
    *,
    is_fit: bool = True,
    may_balance: bool = False,
) -> str:
    return successor(placement, "a", known, able=able, is_fit=is_fit, may_balance=may_balance)
