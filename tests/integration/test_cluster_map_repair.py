"""A copy of a replicated key-value database that differs, or cannot be read, is found and replaced
from the other sites.
"""

from __future__ import annotations

import random
from operator import gt
from pathlib import Path

import pytest

from siltstone.errors import SiltstoneError
from siltstone.fs.paths import StorePaths
from siltstone.fs.posix import absolute_path
from siltstone.manage.connection import connect
from siltstone.store.kv.api import Changes
from siltstone.store.kv.keys import STATE_KEY
from siltstone.store.kv.rocks import RocksEngine
from siltstone.store.tx.settings import KeyValueSettings
from tests.support.broker_process import run_command
from tests.support.sites import NAMES, Sites, three_sites, until

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("cluster")]
SHARD = "kv/stock/0"
FAMILY = "0.1"
ROWS = 400


def test_a_damaged_map_is_replaced_from_the_other_sites(tmp_path: Path) -> None:
    with three_sites(tmp_path, {"cluster.scrub_interval": 2}) as sites:
        sites.start()
        with connect(tmp_path / "a") as store:
            settings = KeyValueSettings(backend="replicated", timed=False, feed_bytes=1 << 20)
            store.keyvalue("stock", settings)
        sites.wait_for_leader_of(SHARD, *NAMES)
        until(lambda: in_sync(sites) == list(NAMES), "all are in sync")
        rows = write(sites, "b")
        compared = checks(sites)
        until(lambda: all(map(gt, checks(sites), [n + 1 for n in compared])), "all are compared")
        assert damages(sites) == [0, 0, 0]

        # A row changes at the leader, which nothing but a comparison can find.
        leader = sites.wait_for_leader_of(SHARD, *NAMES)
        stop(sites, leader)
        change_a_row(tmp_path / leader)
        sites.start(leader)
        until(lambda: replaced(sites, leader) == 1, "the other row is found")
        until(lambda: rows_at(sites, leader) == rows, "it is replaced")

        # Bits of a table of a follower change.
        follower = next(n for n in NAMES if n != sites.wait_for_leader_of(SHARD, *NAMES))
        stop(sites, follower)
        damage_a_table(tmp_path / follower)
        done = run_command("verify", "kv/stock", "--data", str(tmp_path / follower))
        assert done.returncode == 1, done.stdout
        sites.start(follower)
        until(lambda: replaced(sites, follower) >= 1, "the damage is found")
        until(lambda: rows_at(sites, follower) == rows, "it is replaced")

        # `verify --repair` leaves the same to the next start.
        other = next(n for n in NAMES if n != follower)
        before = replaced(sites, other)
        stop(sites, other)
        damage_a_table(tmp_path / other)
        done = run_command("verify", "kv/stock", "--repair", "--data", str(tmp_path / other))
        assert done.returncode == 1
        assert "copies it from another one when it starts" in " ".join(done.stdout.decode().split())
        sites.start(other)
        until(lambda: replaced(sites, other) > before, "it is replaced")
        until(lambda: rows_at(sites, other) == rows, "it has all rows")

        until(lambda: in_sync(sites) == list(NAMES), "all are in sync again")
        with connect(tmp_path / other) as store, store.keyvalue("stock").transaction() as begun:
            begun.write("last", b"last")
        for name in NAMES:
            until(lambda name=name: "last" in rows_at(sites, name), f"{name} follows")  # type: ignore[misc]
        for name in NAMES:
            stop(sites, name)
            assert run_command("verify", "--all", "--data", str(tmp_path / name)).returncode == 0


def in_sync(sites: Sites) -> list[str]:
    try:
        found = sites.status("a")["shards"].get(SHARD)
    except SiltstoneError:
        return []
    return [] if found is None else list(found["in_sync"])


def counters(sites: Sites, what: str) -> list[int]:
    return [sites.status(name)["counters"][what] for name in NAMES]


def checks(sites: Sites) -> list[int]:
    return counters(sites, "segments_checked")


def damages(sites: Sites) -> list[int]:
    return counters(sites, "segments_damaged")


def replaced(sites: Sites, name: str) -> int:
    return len(sites.brokers[name].events("map_replaced"))


def stop(sites: Sites, name: str) -> None:
    sites.brokers[name].terminate()
    assert sites.brokers[name].wait_for_status() == 0


def write(sites: Sites, name: str) -> dict[str, bytes]:
    """Write rows that do not compress, so that their table is the largest one."""
    draw = random.Random(7)
    rows = {f"t/{number}": draw.randbytes(1000) for number in range(ROWS)}
    with connect(sites.directory / name) as store, store.keyvalue("stock").transaction() as begun:
        for topic, value in rows.items():
            begun.write(topic, value)
    return rows


def rows_at(sites: Sites, name: str) -> dict[str, bytes]:
    """Return the rows that a transaction reads at a site."""
    try:
        with (
            connect(sites.directory / name) as store,
            store.keyvalue("stock").transaction() as begun,
        ):
            return {row.topic: row.value for row in begun.read("#")}
    except SiltstoneError:
        return {}


def place(directory: Path) -> Path:
    return Path(StorePaths(absolute_path(directory)).keyvalue("stock"))


def change_a_row(directory: Path) -> None:
    engine = RocksEngine(absolute_path(place(directory)))
    view = engine.view(FAMILY)
    items = view.items(b"", b"\xff" * 16, ROWS)
    view.release()
    key, value = next(item for item in items if item[0] != STATE_KEY)
    changes = Changes()
    changes.put(FAMILY, key, b"another value" + value[13:])
    engine.write(changes)
    engine.close()


def damage_a_table(directory: Path) -> None:
    tables = sorted(place(directory).glob("*.sst"), key=lambda path: path.stat().st_size)
    assert tables[-1].stat().st_size > ROWS * 500, tables
    with tables[-1].open("r+b") as file:
        for at in range(2000, 300_000, 9000):
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))
