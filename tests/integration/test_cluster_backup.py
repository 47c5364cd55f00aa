"""A backup of a cluster shows all its shards at one moment, while clients publish at all sites."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from siltstone.mqtt.reason import Reason
from tests.integration.test_cluster_founding import command, shown
from tests.support.broker_process import run_command, stored
from tests.support.mqtt_socket import connected
from tests.support.sites import NAMES, PATIENCE, Sites, three_sites, until

pytestmark = [pytest.mark.timeout(500), pytest.mark.xdist_group("cluster")]
SHARDS: dict[str, str | float] = {"storage.shards": 3, "storage.shard_by": "topic"}


class Chain(threading.Thread):
    """Publishes `name-0`, `name-1` and so on: each one at another site, to another topic, and only
    after the one before it was acknowledged.
    """

    def __init__(self, sites: Sites, name: str) -> None:
        super().__init__()
        self._sites = sites
        self.client = name
        self.acknowledged = 0
        self.ends = False

    def run(self) -> None:
        with ExitStack() as closing:
            sockets = [
                closing.enter_context(
                    connected(self._sites.brokers[name].port, f"{self.client}{name}")
                )
                for name in NAMES
            ]
            for socket in sockets:
                socket.socket.settimeout(PATIENCE)
            while not self.ends:
                number = self.acknowledged
                topic, payload = f"plant/{number % 11}", f"{self.client}-{number}".encode()
                packet_id = number // len(NAMES) % 1000 + 1
                socket = sockets[number % len(NAMES)]
                assert socket.publish(topic, payload, packet_id=packet_id) is Reason.SUCCESS
                self.acknowledged += 1

    def in_values(self, values: list[bytes]) -> list[int]:
        """Return the numbers of this client, in order."""
        prefix = f"{self.client}-".encode()
        return sorted(int(value[len(prefix) :]) for value in values if value.startswith(prefix))


def put(data: Path, limit: int, *options: str) -> None:
    """Store a limit in a key-value database; create it first, if there are options for that."""
    if options:
        command("kv", "create", "stock", *options, "--data", str(data))
    command("kv", "put", "stock", "plant/limit", str(limit), "--data", str(data))


def backed_up(directory: Path, name: str, file: str, chains: list[Chain]) -> Path:
    """Make a backup of the cluster at a site; restore and check it. Return the directory."""
    before = [chain.acknowledged for chain in chains]
    command("backup", file, "--data", str(directory / name))
    after = [chain.acknowledged for chain in chains]
    restored = directory / f"restored-{name}"
    command("restore", file, "--data", str(restored))
    command("cluster", "export-local", "--data", str(restored))
    assert command("kv", "get", "stock", "plant/limit", "--data", str(restored)).strip() == "1"
    put(restored, 2)
    values = [value for _, value in stored(restored)]
    for chain, least, most in zip(chains, before, after, strict=True):
        numbers = chain.in_values(values)
        assert numbers == list(range(len(numbers)))
        assert least <= len(numbers) <= most + 1
        until(lambda chain=chain, most=most: chain.acknowledged > most + 3, "clients go on")  # type: ignore[misc]
    return restored


def test_a_backup_has_all_shards_at_one_moment_while_clients_publish(tmp_path: Path) -> None:
    file = str(tmp_path / "plant.gz")
    (tmp_path / "old").mkdir()
    with three_sites(tmp_path / "old", SHARDS) as sites:
        sites.start()
        leaders = [sites.wait_for_leader_of(f"messages/{shard}", *NAMES) for shard in range(3)]
        # So that no site leads all shards.
        others = [name for name in NAMES if name != leaders[0]]
        moved = ("move-shard", "messages/1", "--leader", others[0], "--data")
        data = str(tmp_path / "old" / "a")
        # A change of the placement that is under way has its turn first.
        until(lambda: not run_command("cluster", *moved, data).returncode, "the shard moves")
        until(lambda: sites.leader("a", "messages/1") == others[0], "the leader moves")
        put(tmp_path / "old" / "b", 1, "--backend", "replicated", "--map")
        sites.wait_for_leader_of("kv/stock/0", *NAMES)
        chains = [Chain(sites, "x"), Chain(sites, "y")]
        for chain in chains:
            chain.start()
        try:
            until(lambda: all(chain.acknowledged > 20 for chain in chains), "clients publish")
            restored = Path()
            for name in (leaders[0], others[1]):
                restored = backed_up(tmp_path / "old", name, file, chains)
                (tmp_path / "plant.gz").rename(tmp_path / f"plant-{name}.gz")
                file = str(tmp_path / "plant.gz")
        finally:
            for chain in chains:
                chain.ends = True
            for chain in chains:
                chain.join()
        before = shown(restored)
        # Without a majority there is no such moment.
        for name in others:
            sites.brokers[name].kill()
            sites.kill_nats(name)
        at = ("--data", str(tmp_path / "old" / leaders[0]))
        refused = run_command("backup", file, *at)
        assert refused.returncode != 0
        assert b"with --this-site, the backup has what this site has read" in refused.stderr
        assert not Path(file).exists()
        command("backup", file, "--this-site", *at)
    with three_sites(tmp_path) as sites:
        only = sites.alone("a")
        command("restore", str(tmp_path / f"plant-{others[1]}.gz"), "--data", str(tmp_path / "a"))
        command("cluster", "export-local", "--data", str(tmp_path / "a"))
        command("cluster", "import-local", "messages", "--data", str(tmp_path / "a"))
        sites.start(*only)
        for shard in range(3):
            sites.wait_for_leader_of(f"messages/{shard}", *only)
        assert sorted(shown(tmp_path / "a")) == sorted(before)
        sites.publish("a", "last", [b"last"])
        until(lambda: len(sites.rows("a")) == len(before) + 1, "the new cluster goes on")
