"""The registry of a cluster, in the bucket of a real NATS server."""

from __future__ import annotations

import asyncio
from pathlib import Path, PurePath

import pytest
from nats.aio.client import Client

from siltstone.clock import SystemClock
from siltstone.cluster.certificates import SiteCertificates
from siltstone.cluster.nats_process import USER, NatsProcess
from siltstone.cluster.registry import BUCKET, ClusterRegistry
from siltstone.cluster.settings import Address, SiteSettings
from siltstone.cluster.shared_log import NatsConnection, ask, stream_of
from siltstone.errors import RetryError, UsageError
from siltstone.fs.posix import PosixFileSystem
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.writer.replication.messages import LogIdentity
from siltstone.store.writer.replication.sites.membership import ShardSites
from tests.support.ports import free_port

pytestmark = [pytest.mark.timeout(120), pytest.mark.xdist_group("cluster")]


def test_reading_the_registry_leaves_nothing_in_the_servers(tmp_path: Path) -> None:
    asyncio.run(_read(tmp_path))


async def _read(directory: Path) -> None:
    settings = SiteSettings(
        name="plant",
        site="a",
        seeds=(Address("127.0.0.1", free_port()),),
        listen=None,
        secret=b"the secret of this cluster",
        directory=PurePath(directory),
    )
    files, clock = PosixFileSystem(), SystemClock()
    certificates = SiteCertificates(
        files,
        settings.directory,
        cluster=settings.name,
        site=settings.site,
        secret=settings.secret,
        hosts=["127.0.0.1"],
        given=None,
    )
    certificates.prepare(clock.now_us())
    process = NatsProcess(files, settings, certificates)
    ports = await process.start()
    client = Client()
    try:
        await client.connect(
            ports.client,
            user=USER,
            password=settings.password("client"),
            tls=certificates.context,
            tls_hostname="127.0.0.1",
        )
        connection = NatsConnection()
        connection.client = client
        registry = ClusterRegistry(connection, clock, replicas=1, epoch=1)
        await registry.open("plant")
        assert await registry.databases() == []
        for name in ("one", "two"):
            await registry.found(name, DatabaseSettings(backend="replicated"))
        for _ in range(20):
            assert await registry.databases() == ["one", "two"]
            assert await registry.sites() == {}
        await check_placed(registry)
        await check_dropped(registry, client)
        info = await ask(client, f"STREAM.INFO.KV_{BUCKET}")
        assert info["state"]["consumer_count"] == 0
        with pytest.raises(UsageError, match="used by the cluster 'plant'"):
            await ClusterRegistry(connection, clock, replicas=1, epoch=1).open("other")
        await client.close()
    finally:
        await process.stop()


async def check_placed(registry: ClusterRegistry) -> None:
    """Check that a site with a replica of any shard is found, also of one that is not open here."""
    assert await registry.placed() == frozenset()
    first = ShardSites(replicas=frozenset("ab"), insync=frozenset("ab"))
    second = ShardSites(replicas=frozenset("b"), insync=frozenset("b"), wanted=frozenset("bc"))
    assert await registry.place("silt_one_0_e1", first, 0)
    assert await registry.place("silt_two_0_e1", second, 0)
    assert await registry.placed() == frozenset("abc")


async def check_dropped(registry: ClusterRegistry, client: Client) -> None:
    """Check that a database that was dropped leaves nothing but its identity."""
    settings = KeyValueSettings(backend="replicated", timed=False, shards=2)
    streams = await stream_names(client)
    former = await registry.found("kv/stock", settings)
    stream = stream_of(LogIdentity(database=former.identity, shard=1, epoch=1))
    sites = frozenset("a")
    assert await registry.place(stream, ShardSites(replicas=sites, insync=sites), 0)
    await registry.drop(former)
    await registry.drop(former)
    assert await registry.dropped() == {former.identity}
    # The name is free when the former database is gone.
    with pytest.raises(RetryError, match="is being dropped"):
        await registry.found("kv/stock", settings)
    assert "kv/stock" not in await registry.databases()
    assert await registry.placement(stream) == (None, 0)
    assert await stream_names(client) == streams
    later = await registry.found("kv/stock", settings)
    assert later.identity != former.identity
    # A site that was slow does it again.
    known = await registry.dropped_database(former.identity)
    assert known.is_cleared
    await registry.clear(known)
    assert await registry.database("kv/stock") is not None
    assert await registry.dropped() == {former.identity}


async def stream_names(client: Client) -> set[str]:
    return set((await ask(client, "STREAM.NAMES"))["streams"])
