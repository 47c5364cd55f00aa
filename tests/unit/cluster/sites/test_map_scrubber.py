"""When a site finds that its copy of a key-value database is damaged, and when it replaces it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from siltstone.cluster.sites.map_scrubber import MapScrubber
from siltstone.cluster.sites.seen import SiteShard
from siltstone.store.shard.replicated.damage import DAMAGED_MAP
from siltstone.store.writer.replication.sites.scrubbing import CopyState

INDEX = 100


class FakeLog:
    """One shard at this site."""

    def __init__(self, shard: int, digest: bytes, *, leads: bool = False) -> None:
        self.database, self.shard = "kv/m", shard
        self.view = SimpleNamespace(leads=leads, progress=SimpleNamespace(index=INDEX))
        self.found: frozenset[str] = frozenset()
        self._digest = digest

    def damaged(self) -> frozenset[str]:
        return self.found

    def remember_damaged(self, paths: set[str]) -> None:
        self.found |= paths

    def state(self, index: int, _rate: int) -> CopyState:
        return CopyState(index, self._digest)


class Cluster:
    """This site and others. `theirs` has what each has of each shard; None for no answer."""

    def __init__(
        self,
        own: list[bytes],
        theirs: Mapping[str, list[bytes | None]],
        *,
        leads: bool = False,
        settled: bool = True,
        behind: int = 0,
    ) -> None:
        placement = SimpleNamespace(replicas=frozenset("abc"))
        self.logs = [FakeLog(n, each, leads=leads) for n, each in enumerate(own)]
        self.shards = [
            cast("SiteShard", SimpleNamespace(log=log, damaged=frozenset(), placement=placement))
            for log in self.logs
        ]
        self.theirs = theirs
        self.behind = behind
        self.replaced: list[str] = []
        self.sources: Mapping[str, frozenset[str]] = {}
        placing = SimpleNamespace(
            site="a", able=lambda _: list(theirs), may_be_replaced=lambda _: settled
        )
        settings = SimpleNamespace(scrub_rate=1)
        self.scrubber = MapScrubber(
            cast("Any", settings), cast("Any", placing), self.ask, self.replace
        )

    async def ask(self, site: str, request: Mapping[str, Any]) -> bytes:
        digest = self.theirs[site][int(request["shard"].rpartition("/")[2])]
        if digest is None:
            return b"-it does not read"
        return b"+" + CopyState(request["index"] - self.behind, digest).encode()

    async def replace(self, database: str, sources: Mapping[str, frozenset[str]]) -> None:
        self.replaced.append(database)
        self.sources = sources

    def scrub(self) -> list[frozenset[str]]:
        asyncio.run(self.scrubber.scrub(self.shards))
        return [log.found for log in self.logs]

    def repair(self) -> bool:
        return asyncio.run(self.scrubber.repair(self.shards))


BAD, BESIDE, SOUND = frozenset({DAMAGED_MAP}), frozenset({"beside"}), frozenset[str]()


@pytest.mark.parametrize(
    ("own", "theirs", "found"),
    [
        ([b"x", b"y"], {"b": [b"x", b"y"], "c": [b"x", b"y"]}, [SOUND, SOUND]),
        ([b"x", b"z"], {"b": [b"x", b"y"], "c": [b"x", b"y"]}, [BESIDE, BAD]),
        ([b"", b"y"], {"b": [b"x", b"y"], "c": [b"x", b"y"]}, [BAD, BESIDE]),
        # The three copies differ, so no majority says which one is right.
        ([b"z"], {"b": [b"x"], "c": [b"y"]}, [SOUND]),
        ([b"z"], {"b": [b"x"], "c": [None]}, [SOUND]),
    ],
)
def test_what_differs_from_the_majority_is_remembered(
    own: list[bytes], theirs: dict[str, list[bytes | None]], found: list[frozenset[str]]
) -> None:
    assert Cluster(own, theirs).scrub() == found


def test_copies_at_different_indexes_are_not_compared() -> None:
    cluster = Cluster([b"z"], {"b": [b"x"], "c": [b"x"]}, behind=1)
    assert cluster.scrub() == [SOUND]
    assert cluster.scrubber.checked == 0


def test_a_database_without_damage_is_not_replaced() -> None:
    cluster = Cluster([b"z"], {"b": [b"x"], "c": [b"x"]})
    assert not cluster.repair()
    assert cluster.replaced == []


@pytest.mark.parametrize(
    ("own", "theirs", "replaced"),
    [
        ([b"z", b"y"], {"b": [b"x", b"y"], "c": [b"x", b"y"]}, True),
        # `verify --repair` has found it damaged, so what it has says nothing.
        ([b"z", b"y"], {"b": [b"x", b"y"]}, True),
        ([b"z", b"y"], {"b": [b"x", b"y"], "c": [None, b"y"]}, True),
        ([b"z", b"y"], {"b": [b"x", b"y"], "c": [b"u", b"y"]}, False),
        # Only this site has the second shard.
        ([b"z", b"y"], {"b": [b"x", b"u"], "c": [b"x", b"v"]}, False),
        ([b"z", b"y"], {"b": [b"x", None], "c": [b"x", None]}, False),
        ([b"z", b"y"], {}, False),
    ],
)
def test_a_database_is_replaced_only_if_all_of_it_can_be_copied(
    own: list[bytes], theirs: dict[str, list[bytes | None]], replaced: bool
) -> None:
    cluster = Cluster(own, theirs)
    cluster.logs[0].remember_damaged({DAMAGED_MAP})
    assert cluster.repair() is replaced
    assert cluster.replaced == (["kv/m"] if replaced else [])
    # All of its shards are handed over.
    assert all(shard.damaged for shard in cluster.shards)


@pytest.mark.parametrize(("leads", "settled"), [(True, True), (False, False)])
def test_a_database_is_not_replaced_while_it_leads_or_another_site_copies(
    leads: bool, settled: bool
) -> None:
    theirs: dict[str, list[bytes | None]] = {"b": [b"x"], "c": [b"x"]}
    cluster = Cluster([b"z"], theirs, leads=leads, settled=settled)
    cluster.logs[0].remember_damaged({DAMAGED_MAP})
    assert not cluster.repair()
    assert cluster.replaced == []


def test_each_shard_is_copied_from_the_sites_that_are_right() -> None:
    # c does not know yet that it has other rows in the second shard.
    cluster = Cluster([b"z", b"y"], {"b": [b"x", b"y"], "c": [b"x", b"u"]})
    cluster.logs[0].remember_damaged({DAMAGED_MAP})
    assert cluster.repair()
    assert cluster.sources == {"kv/m/0": {"b", "c"}, "kv/m/1": {"b"}}
