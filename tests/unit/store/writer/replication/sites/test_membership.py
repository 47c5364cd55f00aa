"""Placements: majorities, joining, leaving, and how far the log may be trimmed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.errors import UsageError
from siltstone.store.writer.replication.follower import FollowerStatus
from siltstone.store.writer.replication.sites.membership import (
    LAG_BYTES_MAX,
    LAG_US_MAX,
    Hold,
    ShardSites,
    add,
    is_behind,
    join,
    leave,
    next_placement,
    remove,
    trim,
)

ALL = frozenset("abc")
PLACEMENT = ShardSites(replicas=ALL, insync=ALL)
TWO = ShardSites(replicas=ALL, insync=frozenset("ab"))


def test_the_in_sync_sites_are_a_majority_of_the_replicas() -> None:
    with pytest.raises(UsageError, match="majority of the replicas"):
        ShardSites(replicas=ALL, insync=frozenset("a"))
    with pytest.raises(UsageError, match="majority of the replicas"):
        ShardSites(replicas=ALL, insync=frozenset("abx"))


def test_a_site_leaves_only_if_a_majority_stays() -> None:
    assert leave(PLACEMENT, "c") == TWO
    assert leave(TWO, "b") is None
    assert leave(TWO, "c") is None


def test_a_site_joins_with_at_least_the_position_of_a_member_and_behind_no_trim() -> None:
    members = {"a": 10, "b": 7}
    assert join(TWO, "c", synced=7, members=members) == PLACEMENT
    assert join(TWO, "c", synced=6, members=members) is None
    trimmed = replace(TWO, trim=9)
    assert join(trimmed, "c", synced=7, members=members) is None
    assert join(trimmed, "c", synced=8, members=members) == replace(PLACEMENT, trim=9)
    assert join(TWO, "c", synced=9, members={}) is None
    assert join(TWO, "x", synced=9, members=members) is None
    assert join(TWO, "a", synced=10, members=members) is None


def test_replicas_are_added_out_of_sync_and_removed_if_a_majority_stays() -> None:
    four = add(PLACEMENT, "d")
    assert four == ShardSites(replicas=frozenset("abcd"), insync=ALL)
    assert add(PLACEMENT, "a") is None
    assert add(TWO, "d") is None
    assert remove(four, "d") == PLACEMENT
    assert remove(PLACEMENT, "d") is None
    assert remove(TWO, "a") is None
    assert remove(TWO, "c") == ShardSites(replicas=frozenset("ab"), insync=frozenset("ab"))


def planned(placement: ShardSites, synced: dict[str, int], *holds: Hold) -> int | None:
    found = trim(placement, synced=synced, holds=holds, last=20, now_us=100)
    return None if found is None else found.trim


def test_the_log_is_trimmed_below_the_lowest_synced_position() -> None:
    assert planned(PLACEMENT, {"a": 9, "b": 5, "c": 7}) == 6
    assert planned(TWO, {"a": 9, "b": 7, "c": 2}) == 8
    assert planned(replace(TWO, trim=8), {"a": 9, "b": 7}) is None


def test_the_last_message_stays() -> None:
    assert planned(PLACEMENT, {"a": 20, "b": 20, "c": 20}) == 20


def test_a_site_that_has_reported_nothing_and_a_live_hold_stop_the_trim() -> None:
    assert planned(PLACEMENT, {"a": 9, "b": 5}) is None
    synced = {"a": 9, "b": 9, "c": 9}
    assert planned(PLACEMENT, synced, Hold(sequence=4, until_us=101)) == 4
    assert planned(PLACEMENT, synced, Hold(sequence=4, until_us=100)) == 10


def test_a_site_leaves_the_set_when_it_is_far_behind() -> None:
    assert not is_behind(lag_bytes=LAG_BYTES_MAX - 1, lag_us=LAG_US_MAX - 1)
    assert is_behind(lag_bytes=LAG_BYTES_MAX, lag_us=0)
    assert is_behind(lag_bytes=0, lag_us=LAG_US_MAX)


def test_a_wanted_site_becomes_a_replica_then_in_sync_once_it_is_current() -> None:
    members = {"a": 3, "b": 3, "c": 3}
    wanted = frozenset("abcd")
    before = replace(PLACEMENT, wanted=wanted)
    for status in (FollowerStatus.CATCHING_UP, FollowerStatus.BEHIND, FollowerStatus.STOPPED):
        assert next_placement(before, "d", status, synced=9, members=members) is None
    assert next_placement(PLACEMENT, "d", FollowerStatus.CURRENT, synced=9, members=members) is None
    four = next_placement(before, "d", FollowerStatus.CURRENT, synced=1, members=members)
    assert four == ShardSites(replicas=wanted, insync=ALL, wanted=wanted)
    assert next_placement(four, "d", FollowerStatus.CURRENT, synced=2, members=members) is None
    joined = next_placement(four, "d", FollowerStatus.CURRENT, synced=3, members=members)
    assert joined == ShardSites(replicas=wanted, insync=wanted, wanted=wanted)
    assert next_placement(joined, "d", FollowerStatus.CURRENT, synced=9, members=members) is None
