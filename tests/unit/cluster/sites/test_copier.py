"""From which site a shard is copied that is not at this one."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from siltstone.cluster.sites.copier import Copier
from siltstone.cluster.sites.seen import PeerSite, SiteShard
from siltstone.store.writer.replication.follower import FollowerStatus

KEY = "kv/m/0"


def beat(sequence: int, *, damaged: bool = False) -> dict[str, Any]:
    """Return what a site tells of the shard."""
    status = FollowerStatus.CURRENT.value
    return {KEY: {"sequence": sequence, "status": status, "damaged": damaged}}


class Desk:
    """A site that copies; every other site refuses."""

    def __init__(self, **beats: dict[str, Any]) -> None:
        self.loop = asyncio.new_event_loop()
        self.asked: list[str] = []
        self.log = SimpleNamespace(
            database="kv/m", shard=0, view=SimpleNamespace(status=FollowerStatus.BEHIND)
        )
        self.shard = cast(
            "SiteShard", SimpleNamespace(log=self.log, tail=None, damaged=frozenset())
        )
        peers = {name: PeerSite(self.loop.time(), shards) for name, shards in beats.items()}
        settings = cast("Any", SimpleNamespace(copy_rate=1_000_000))
        self.copier = Copier(settings, {KEY: self.shard}, peers, self.ask, self.loop)

    async def ask(self, peer: str, _: dict[str, Any]) -> bytes:
        self.asked.append(peer)
        self.copier.stop(KEY)
        return b"-not now"

    def copy(self) -> list[str]:
        """Try once; return the site that was asked."""
        self.loop.run_until_complete(self.copier.copy(self.shard, 1))
        self.loop.close()
        return self.asked


@pytest.mark.parametrize(
    ("beats", "asked"),
    [
        ({"b": beat(9), "c": beat(8)}, ["b"]),
        ({"b": beat(8), "c": beat(8)}, ["c"]),
        ({"b": beat(8), "c": beat(9, damaged=True)}, ["b"]),
        ({"c": beat(9, damaged=True)}, ["c"]),
    ],
)
def test_a_shard_is_copied_from_the_site_that_has_most_and_no_damage(
    beats: dict[str, Any], asked: list[str]
) -> None:
    assert Desk(**beats).copy() == asked


def test_a_shard_that_was_deleted_is_copied_from_a_site_that_is_right() -> None:
    desk = Desk(b=beat(8), c=beat(9))
    desk.copier.sources[KEY] = frozenset({"b"})
    assert desk.copy() == ["b"]


def test_a_shard_that_has_everything_again_is_copied_from_any_site_the_next_time() -> None:
    desk = Desk(b=beat(8), c=beat(9))
    desk.copier.sources[KEY] = frozenset({"b"})
    desk.copier.forget_sources()
    assert desk.copier.sources
    desk.log.view.status = FollowerStatus.CURRENT
    desk.copier.forget_sources()
    assert desk.copy() == ["c"]
