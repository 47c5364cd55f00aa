"""One moment of a cluster: what is acknowledged before it is in its cut, and nothing has a gap."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from siltstone.cluster.sites import standstill
from siltstone.cluster.sites.seen import SiteShard
from siltstone.cluster.sites.standstill import ClusterStandstill, counted
from siltstone.errors import RetryError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.database import Database
from siltstone.store.log.write.partition import Columns, shard_of
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.replication.health import ClaimTimer
from tests.integration.test_replicated_store import until
from tests.support.shared_log import MemorySite, SharedLogs

pytestmark = pytest.mark.timeout(200)
SETTINGS = DatabaseSettings(
    backend="replicated", segment_bytes=64 * 1024, shards=3, shard_by="topic"
)
KEYS = ["m/0", "m/1", "m/2"]
ROUNDS = 15
_NEVER = threading.Event()


class Cluster:
    """Three sites with a database of three shards, each of which leads one of them."""

    def __init__(self, closing: ExitStack) -> None:
        logs = SharedLogs()
        self.sites: dict[str, MemorySite] = {}
        self.databases: dict[str, Database] = {}
        for name in "abc":
            site = self.sites[name] = logs.site(name)
            store = site.open(MemoryFileSystem())
            closing.callback(store.close)
            self.databases[name] = store.ensure("m", SETTINGS)
        for shard, name in enumerate("abc"):
            self.lead(name, shard)
        topics = (f"t{number}" for number in range(1000))
        found: dict[int, str] = {}
        while len(found) < len(KEYS):
            topic = next(topics)
            found.setdefault(shard_of(topic.encode(), len(KEYS)), topic)
        self.topics = [found[shard].encode() for shard in range(len(KEYS))]

    def lead(self, name: str, shard: int) -> None:
        log = self.sites[name].attached["m", shard]
        until(lambda: log.view.progress.index > 0, f"{name} reads shard {shard}")
        log.claim()
        until(lambda: log.view.leads, f"{name} leads shard {shard}")

    def shards(self, name: str) -> dict[str, SiteShard]:
        attached = self.sites[name].attached
        return {
            f"m/{shard}": SiteShard(log, ClaimTimer(0, 0), 0)
            for (_, shard), log in attached.items()
        }

    def standstill(self, name: str) -> ClusterStandstill:
        async def ask(site: str, values: dict[str, Any]) -> bytes:
            shard = self.shards(site)[values["shard"]]
            return json.dumps({"index": await counted(shard.log, values["rest"])}).encode()

        return ClusterStandstill(name, self.shards(name), ask)

    def append(self, name: str, number: int) -> None:
        """Store a number in the next shard, through a site; return when it is acknowledged."""
        topic = self.topics[number % len(KEYS)]
        ticket = self.databases[name].append(Columns([topic], [b"%d" % number]))
        until(lambda: ticket.done, f"{number} is acknowledged")
        ticket.wait(0)

    def tick(self) -> None:
        for site in self.sites.values():
            for log in site.attached.values():
                log.tick()

    def numbers(self, name: str) -> set[int]:
        """Return what another process sees at a site."""
        batches = self.databases[name].read("#", columns=["value"])
        return {int(value.as_py()) for batch in batches for value in batch["value"]}


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    with ExitStack() as closing:
        yield Cluster(closing)


class Publisher(threading.Thread):
    """Publishes 0, 1, 2 and so on through one site after another. Each number goes to another
    shard than the one before it, and only when that one was acknowledged.
    """

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self._cluster = cluster
        self.acknowledged = 0
        self.ends = False

    def run(self) -> None:
        while not self.ends:
            # The site of a number leads neither its shard nor the next one, mostly.
            self._cluster.append("abc"[self.acknowledged // 2 % 3], self.acknowledged)
            self.acknowledged += 1


async def cut_at(
    cluster: Cluster, name: str, look: Callable[[], set[int]]
) -> tuple[set[int], bool]:
    """Return what was seen at a moment of the cluster, and whether it was one."""
    still = cluster.standstill(name)
    serials = await still.reach(KEYS)
    try:
        found = await asyncio.to_thread(look)
        return found, await still.lasted(serials)
    finally:
        await still.end(KEYS)


def test_a_cut_has_everything_that_was_acknowledged_and_nothing_behind_a_gap(
    cluster: Cluster,
) -> None:
    publisher = Publisher(cluster)
    ticking = threading.Event()

    def tick() -> None:
        while not ticking.wait(0.01):
            cluster.tick()

    ticker = threading.Thread(target=tick)
    ticker.start()
    publisher.start()
    try:
        until(lambda: publisher.acknowledged > 5, "some are acknowledged")
        moments = 0
        for number in range(ROUNDS):
            name = "abc"[number % 3]
            before = publisher.acknowledged
            found, lasted = asyncio.run(cut_at(cluster, name, lambda: cluster.numbers(name)))  # noqa: B023
            assert len(found) >= before
            if lasted:
                moments += 1
                assert found == set(range(len(found)))
            until(lambda: publisher.acknowledged > before + 3, "calls go on")  # noqa: B023
        # While calls wait, there is such a moment at nearly every attempt.
        assert moments >= ROUNDS - 3
    finally:
        publisher.ends = True
        publisher.join()
        ticking.set()
        ticker.join()


def test_a_cut_during_which_a_row_was_stored_is_none(cluster: Cluster) -> None:
    cluster.append("a", 0)

    async def cut() -> bool:
        still = cluster.standstill("c")
        serials = await still.reach(KEYS)
        # Calls wait no longer, as after a cut that took too long.
        await still.end(KEYS)
        await asyncio.to_thread(cluster.append, "b", 1)
        return await still.lasted(serials)

    assert asyncio.run(cut()) is False
    assert asyncio.run(cut_at(cluster, "c", lambda: cluster.numbers("c"))) == ({0, 1}, True)


def test_a_deposed_leader_does_not_say_that_nothing_was_stored(cluster: Cluster) -> None:
    cluster.append("a", 0)

    async def cut() -> bool:
        still = cluster.standstill("c")
        serials = await still.reach(KEYS)
        # The leader of shard 0 is cut off, and another one takes rows.
        cluster.sites["a"].is_cut = True
        await asyncio.to_thread(cluster.lead, "b", 0)
        await asyncio.to_thread(cluster.append, "b", 3)
        return await still.lasted(serials)

    assert asyncio.run(cut()) is False


def test_a_cut_without_a_leader_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standstill, "_REACH_SECONDS", 0.3)
    monkeypatch.setattr(standstill, "ASK_SECONDS", 0.1)
    cluster.sites["b"].is_cut = True
    with pytest.raises(RetryError, match="no site that leads m/1 has answered"):
        asyncio.run(cluster.standstill("b").reach(KEYS))


def test_calls_wait_for_some_seconds_only_if_the_backup_ends_meanwhile(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standstill, "REST_SECONDS", 0.5)
    began = time.monotonic()
    asyncio.run(cluster.standstill("c").reach(KEYS))
    ticket = cluster.databases["a"].append(Columns([cluster.topics[0]], [b"1"]))

    def is_done() -> bool:
        cluster.tick()
        return ticket.done

    until(is_done, "the call is stored")
    assert time.monotonic() - began >= 0.5
