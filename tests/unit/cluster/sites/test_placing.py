"""Whether a site may lead, by the clocks that it hears."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath
from types import SimpleNamespace
from typing import Any, cast

import pytest

from siltstone.cluster.settings import Address, SiteSettings
from siltstone.cluster.sites.placing import Placing
from siltstone.cluster.sites.seen import AWAY_SECONDS, PeerSite, SiteShard
from siltstone.store.writer.replication.codec import VERSION
from siltstone.store.writer.replication.follower import FollowerStatus
from siltstone.store.writer.replication.sites.membership import ShardSites

HOUR_US = 3_600_000_000
SETTINGS = SiteSettings(
    name="plant",
    site="a",
    seeds=(Address("127.0.0.1", 7400),),
    listen=None,
    secret=b"the secret of this cluster",
    directory=PurePath("/data/cluster"),
)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def placing(loop: asyncio.AbstractEventLoop, *skews_us: int, ago: float = 0.0) -> Placing:
    """A site that has heard others, whose clocks are so far ahead."""
    peers = {
        name: PeerSite(loop.time() - ago, {}, skew_us=skew)
        for name, skew in zip("bc", skews_us, strict=False)
    }
    return Placing(SETTINGS, {}, peers, loop)


def test_a_site_whose_clock_is_an_hour_off_does_not_lead(loop: asyncio.AbstractEventLoop) -> None:
    assert placing(loop, 0, 0).is_fit
    assert not placing(loop, HOUR_US, HOUR_US).is_fit
    assert placing(loop, 0, HOUR_US).is_fit
    assert placing(loop, 4_000_000, 4_000_000).is_fit
    # One of two leads in any case.
    assert placing(loop, HOUR_US).is_fit != placing(loop, -HOUR_US).is_fit


def test_a_site_that_was_not_heard_for_a_while_has_no_say(loop: asyncio.AbstractEventLoop) -> None:
    assert placing(loop, HOUR_US, HOUR_US, ago=2 * AWAY_SECONDS).is_fit


def test_clocks_are_told_from_the_median(loop: asyncio.AbstractEventLoop) -> None:
    assert placing(loop, 0, HOUR_US).clocks_us() == {"a": 0, "b": 0, "c": HOUR_US}
    assert placing(loop, HOUR_US, HOUR_US).clocks_us() == {"a": -HOUR_US, "b": 0, "c": 0}


def test_a_site_that_is_about_to_end_does_not_lead(loop: asyncio.AbstractEventLoop) -> None:
    ending = placing(loop)
    ending.is_stopping = True
    assert not ending.is_fit


@pytest.mark.parametrize(
    ("unfit", "shard"),
    [
        ({"is_fit": False}, {}),
        ({"reads": VERSION + 1}, {}),
        ({}, {"damaged": True}),
        ({}, {"full": True}),
    ],
)
def test_a_leader_hands_over_to_a_site_that_keeps_the_shard(
    loop: asyncio.AbstractEventLoop, unfit: dict[str, Any], shard: dict[str, Any]
) -> None:
    """It would otherwise be handed to and fro, or written in a version that is not read here."""
    seen = {"status": FollowerStatus.CURRENT.value, "leads": False}
    peers = {
        "b": PeerSite(loop.time(), {"d/0": seen | shard}, **unfit),
        "c": PeerSite(loop.time(), {"d/0": seen}),
    }
    log = SimpleNamespace(view=SimpleNamespace(leads=True, is_full=False))
    sites = frozenset("abc")
    led = SimpleNamespace(
        log=log,
        placement=ShardSites(replicas=sites, insync=sites),
        successor="",
        leading_since=0.0,
        damaged=frozenset({"1/1.seg"}),
    )
    site = Placing(SETTINGS, {"d/0": cast("SiteShard", led)}, peers, loop)
    assert site.successors() == {"d/0": "c"}


@pytest.mark.parametrize(("is_full", "has_space"), [(True, True), (False, False), (False, True)])
def test_a_leader_without_space_hands_over(
    loop: asyncio.AbstractEventLoop, *, is_full: bool, has_space: bool
) -> None:
    seen = {"status": FollowerStatus.CURRENT.value, "leads": False}
    sites = frozenset("ab")
    led = SimpleNamespace(
        log=SimpleNamespace(view=SimpleNamespace(leads=True, is_full=is_full)),
        placement=ShardSites(replicas=sites, insync=sites),
        successor="",
        leading_since=0.0,
        damaged=frozenset(),
    )
    peers = {"b": PeerSite(loop.time(), {"d/0": seen})}
    site = Placing(SETTINGS, {"d/0": cast("SiteShard", led)}, peers, loop)
    site.has_space = has_space
    assert site.successors() == ({"d/0": "b"} if is_full or not has_space else {})


CURRENT = {"status": FollowerStatus.CURRENT.value}


@pytest.mark.parametrize(
    ("before", "behind", "ago", "may"),
    [
        (CURRENT, CURRENT, 0.0, True),
        (CURRENT, {"status": "behind"}, 0.0, False),
        # It has just deleted its copy.
        (CURRENT, None, 0.0, False),
        (CURRENT, None, 2 * AWAY_SECONDS, True),
        # The first one by name replaces its copy first.
        (CURRENT | {"damaged": True}, CURRENT, 0.0, False),
        (CURRENT, CURRENT | {"damaged": True}, 0.0, True),
    ],
)
def test_one_site_at_a_time_replaces_its_copy(
    loop: asyncio.AbstractEventLoop,
    before: dict[str, Any],
    behind: dict[str, Any] | None,
    ago: float,
    may: bool,
) -> None:
    """This site is between the two others by its name."""
    peers = {
        "a": PeerSite(loop.time(), {"d/0": before}),
        "c": PeerSite(loop.time() - ago, {} if behind is None else {"d/0": behind}),
    }
    placing = Placing(replace(SETTINGS, site="b"), {}, peers, loop)
    assert placing.may_be_replaced("d/0") is may


def test_a_site_that_hears_no_other_replaces_nothing(loop: asyncio.AbstractEventLoop) -> None:
    assert not Placing(SETTINGS, {}, {}, loop).may_be_replaced("d/0")


@pytest.mark.parametrize(
    ("replicas", "heard", "may"),
    [
        ("abc", "bc", True),
        # Its sound shards would be at one site only.
        ("abc", "b", False),
        ("abcde", "bcd", True),
        ("abcde", "bc", False),
        ("ab", "b", True),
        # An observer does not count.
        ("ab", "c", False),
        ("bc", "bc", True),
    ],
)
def test_a_copy_is_deleted_only_if_a_majority_of_the_replicas_is_left(
    loop: asyncio.AbstractEventLoop, replicas: str, heard: str, may: bool
) -> None:
    sites = frozenset(replicas)
    shard = SimpleNamespace(placement=ShardSites(replicas=sites, insync=sites))
    peers = {name: PeerSite(loop.time(), {"d/0": CURRENT}) for name in heard}
    placing = Placing(SETTINGS, {"d/0": cast("SiteShard", shard)}, peers, loop)
    assert placing.may_be_replaced("d/0") is may
