"""Five sites, and five shards with three replicas each: every site takes and gives all rows."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

import siltstone
from siltstone.manage.connection import connect
from siltstone.manage.running_transaction import RunningTransaction
from siltstone.mqtt.reason import Reason
from siltstone.store.tx.settings import KeyValueSettings
from tests.support.broker_process import run_command
from tests.support.mqtt_socket import connected
from tests.support.sites import NAMES, PATIENCE, Sites, three_sites, until

pytestmark = [pytest.mark.timeout(500), pytest.mark.xdist_group("cluster")]
SITES = (*NAMES, "d", "e")
SHARDS = 5
TOPICS = 25
SETTINGS: dict[str, str | float] = {
    "storage.shards": SHARDS,
    "storage.shard_by": "topic",
    "storage.replicas": 3,
    "flight.enabled": "true",
    "flight.port": 0,
    "cluster.away_after": 2,
}


def is_balanced(sites: Sites, at: str, names: tuple[str, ...]) -> bool:
    """Return whether each shard has three replicas in sync, and these sites have about as many."""
    shards = sites.status(at)["shards"].values()
    counts = Counter(name for each in shards for name in each["placed"])
    return (
        all(each["transition"] is None and each["in_sync"] == each["placed"] for each in shards)
        and {len(each["placed"]) for each in shards} == {3}
        and counts.keys() == set(names)
        and max(counts.values()) - min(counts.values()) <= 1
    )


def publish(sites: Sites, names: tuple[str, ...], prefix: str) -> list[bytes]:
    """Publish to all shards through each site; return what was acknowledged."""
    sent: list[bytes] = []
    for name in names:
        with connected(sites.brokers[name].port, f"{prefix}-{name}") as socket:
            socket.socket.settimeout(PATIENCE)
            for number in range(1, TOPICS + 1):
                payload = f"{prefix}-{name}-{number}".encode()
                reason = socket.publish(f"plant/{number}", payload, packet_id=number)
                assert reason is Reason.SUCCESS
                sent.append(payload)
    return sent


def fetched(sites: Sites, name: str) -> list[bytes]:
    """Return the payloads that Flight gives at a site."""
    with siltstone.connect(f"grpc+unix://{sites.directory / name / 'flight.sock'}") as node:
        table = node.read(database="messages", columns=["payload"]).arrow()
    return sorted(table["payload"].to_pylist())


def add(begun: RunningTransaction) -> None:
    begun.add("count", 1)


def count(sites: Sites, name: str, shard: int) -> int:
    """Return the counter of a shard, as a transaction at a site reads it."""
    with (
        connect(sites.directory / name) as store,
        store.keyvalue("stock").transaction(shard=shard) as begun,
    ):
        return int.from_bytes(begun.get("count") or b"", "big")


def test_five_sites_with_three_replicas_of_each_shard(tmp_path: Path) -> None:
    with ExitStack() as closing:
        sites = closing.enter_context(three_sites(tmp_path, SETTINGS))
        for name in SITES[3:]:
            sites.add(name)
        sites.start(*SITES)
        for shard in range(SHARDS):
            sites.wait_for_leader_of(f"messages/{shard}", *NAMES)
        for name in SITES[3:]:
            until(lambda name=name: name in sites.status("a")["sites"], f"{name} is known")  # type: ignore[misc]
            joined = run_command("cluster", "join", name, "--data", str(tmp_path / name))
            assert joined.returncode == 0, joined.stderr
        until(lambda: is_balanced(sites, "a", SITES), "the replicas are spread")
        with connect(tmp_path / "e") as store:
            settings = KeyValueSettings(
                backend="replicated", timed=False, shards=SHARDS, replicas=3
            )
            store.keyvalue("stock", settings)
        for shard in range(SHARDS):
            sites.wait_for_leader_of(f"kv/stock/{shard}", *SITES)
        rows = check_everything(sites, SITES, "all", [], 0)
        # A site is lost for ever. The others go on, and take its replicas.
        lost = sites.leader("d")
        rest = tuple(name for name in SITES if name != lost)
        sites.brokers[lost].kill()
        sites.kill_nats(lost)
        for shard in range(SHARDS):
            sites.wait_for_leader_of(f"messages/{shard}", *rest)
            sites.wait_for_leader_of(f"kv/stock/{shard}", *rest)
        forgotten = run_command("cluster", "forget", lost, "--data", str(tmp_path / rest[0]))
        assert forgotten.returncode == 0, forgotten.stderr
        until(lambda: is_balanced(sites, rest[0], rest), "the others have its replicas")
        check_everything(sites, rest, "rest", rows, len(SITES))
        for name in rest:
            assert sites.brokers[name].mistakes() == []
            assert sites.brokers[name].events("shard_stopped") == []


def check_everything(
    sites: Sites, names: tuple[str, ...], prefix: str, before: list[bytes], added: int
) -> list[bytes]:
    """Append, read and commit through each site; each one then has everything, as before. Return
    all rows.
    """
    expected = sorted(before + publish(sites, names, prefix))
    for name in names:
        with connect(sites.directory / name) as store:
            for shard in range(SHARDS):
                store.keyvalue("stock").transact(add, shard=shard, retries=50)
    for name in names:
        until(lambda name=name: sorted(sites.rows(name)) == expected, f"{name} has all rows")  # type: ignore[misc]
        assert fetched(sites, name) == expected
        counts = [count(sites, name, shard) for shard in range(SHARDS)]
        assert counts == [added + len(names)] * SHARDS
    return expected
