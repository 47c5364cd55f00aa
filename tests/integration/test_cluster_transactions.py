"""Three sites with real NATS servers: transactions of key-value databases, from each site."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from siltstone.errors import ConflictError, OutcomeUnknownError, RetryError, SiltstoneError
from siltstone.manage.connection import RunningKeyValue, connect
from siltstone.manage.running_transaction import RunningTransaction
from siltstone.store.tx.settings import KeyValueSettings
from tests.support.broker_process import run_command
from tests.support.sites import NAMES, PATIENCE, Sites, three_sites, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("cluster")]
SHARD = "kv/stock/0"


def test_a_map_is_created_written_and_read_at_every_site(tmp_path: Path) -> None:
    with three_sites(tmp_path) as sites:
        sites.start()
        options = ("--backend", "replicated", "--replicas", "3", "--map", "--feed-bytes", "1MiB")
        made = run_command("kv", "create", "stock", *options, "--data", str(tmp_path / "b"))
        assert made.returncode == 0, made.stderr
        wait_for_map(sites)
        for name in NAMES:
            put = run_command(
                "kv", "put", "stock", f"t/{name}", name, "--data", str(tmp_path / name)
            )
            assert put.returncode == 0, put.stderr
        for name in NAMES:
            with connect(tmp_path / name) as store, store.keyvalue("stock").transaction() as begun:
                assert {row.topic: row.value for row in begun.read("#")} == {
                    "t/a": b"a",
                    "t/b": b"b",
                    "t/c": b"c",
                }

        def is_healthy() -> bool:
            status = run_command("cluster", "status", "--json", "--data", str(tmp_path / "a"))
            return bool(json.loads(status.stdout)["shards"][SHARD]["health"] == "ok")

        until(is_healthy, "all sites are in sync")


def test_counters_lose_nothing_when_the_leader_is_killed(tmp_path: Path) -> None:
    with three_sites(tmp_path) as sites:
        sites.start()
        create(sites)
        leader = wait_for_map(sites)
        others = [name for name in NAMES if name != leader]
        tally = Tally(tmp_path)
        threads = [tally.begin(name, 60) for name in NAMES]
        until(lambda: tally.acknowledged > 30, "some increments are acknowledged")
        sites.brokers[leader].kill()
        sites.kill_nats(leader)
        for thread in threads:
            thread.join(PATIENCE)
        assert sites.wait_for_leader_of(SHARD, *others) != leader
        sites.start(leader)
        found = {name: read_count(sites, name) for name in NAMES}
        assert len(set(found.values())) == 1, found
        assert tally.acknowledged <= found["a"] <= tally.acknowledged + tally.unknown, tally
        # The two other sites have counted everything.
        assert tally.acknowledged >= 120


def test_a_transaction_id_is_committed_once_over_a_failover(tmp_path: Path) -> None:
    with three_sites(tmp_path) as sites:
        sites.start()
        create(sites)
        leader = wait_for_map(sites)
        others = [name for name in NAMES if name != leader]
        with connect(tmp_path / others[0]) as store:
            stock = store.keyvalue("stock")
            first = stock.transact(add, id="order 7", retries=50)
            sites.brokers[leader].kill()
            sites.kill_nats(leader)
            second = stock.transact(add, id="order 7", retries=50, timeout=30.0)
            assert (second.duplicate, second.serial) == (True, first.serial)
            assert stock.outcome("order 7") == first.serial
        assert read_count(sites, others[1], encoded=True) == 1


def test_a_map_is_dropped_at_all_sites_also_at_one_that_was_away(tmp_path: Path) -> None:
    with three_sites(tmp_path) as sites:
        sites.start()
        create(sites)
        wait_for_map(sites)
        put(sites, "b", "t", "former")
        until(lambda: directories(sites) == list(NAMES), "all sites have it")
        sites.brokers["c"].kill()
        sites.kill_nats("c")
        sites.wait_for_leader_of(SHARD, "a", "b")

        def is_dropped() -> bool:
            # A server that is being elected does not answer for a moment.
            done = run_command("kv", "drop", "stock", "--yes", "--data", str(tmp_path / "a"))
            return done.returncode == 0

        until(is_dropped, "the map is dropped")
        until(lambda: directories(sites) == ["c"], "the other site drops it")
        create(sites)
        sites.wait_for_leader_of(SHARD, "a", "b")
        put(sites, "b", "t", "later")
        sites.start("c")
        wait_for_map(sites)
        until(lambda: rows_at(sites, "c") == {"t": b"later"}, "the site has the new map only")
        assert sites.brokers["c"].events("database_not_of_cluster") == []
        assert [len(sites.brokers[name].events("database_dropped")) for name in "bc"] == [1, 1]


def put(sites: Sites, name: str, topic: str, value: str) -> None:
    def is_done() -> bool:
        done = run_command(
            "kv", "put", "stock", topic, value, "--data", str(sites.directory / name)
        )
        return done.returncode == 0

    until(is_done, f"{value} is written")


def rows_at(sites: Sites, name: str) -> dict[str, bytes]:
    """Return the rows that a site itself has."""
    try:
        with (
            connect(sites.directory / name) as store,
            store.keyvalue("stock").transaction() as begun,
        ):
            return {row.topic: row.value for row in begun.read("#")}
    except SiltstoneError:
        return {}


def directories(sites: Sites) -> list[str]:
    """Return the sites with a directory of the map."""
    return [name for name in NAMES if (sites.directory / name / "kv" / "stock").exists()]


class Tally:
    """Increments from several sites, each with a read."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.acknowledged = 0
        self.unknown = 0
        self._lock = threading.Lock()

    def begin(self, name: str, count: int) -> threading.Thread:
        thread = threading.Thread(target=self._count, args=(name, count))
        thread.start()
        return thread

    def _count(self, name: str, count: int) -> None:
        with connect(self.directory / name) as store:
            stock = store.keyvalue("stock")
            done = 0
            while done < count:
                try:
                    stock.transact(increment, retries=200)
                except OutcomeUnknownError:
                    with self._lock:
                        self.unknown += 1
                    if not is_there(stock):
                        return
                except RetryError:
                    if not is_there(stock):
                        return
                    continue
                else:
                    with self._lock:
                        self.acknowledged += 1
                done += 1

    def __repr__(self) -> str:
        return f"acknowledged={self.acknowledged} unknown={self.unknown}"


def is_there(stock: RunningKeyValue) -> bool:
    """Return whether the site still answers; it was killed otherwise."""
    return stock.settings.timed is False and _answers(stock)


def _answers(stock: RunningKeyValue) -> bool:
    try:
        with stock.transaction() as begun:
            begun.get("count")
    except ConflictError:
        return True
    except RetryError as exc:
        return "broker" not in str(exc)
    return True


def increment(begun: RunningTransaction) -> None:
    before = begun.get("count")
    if before is None:
        begun.require_absent("count")
    else:
        begun.require_present("count", value=before)
    begun.write("count", b"%d" % (int(before or b"0") + 1))


def add(begun: RunningTransaction) -> None:
    begun.add("count", 1)


def create(sites: Sites) -> None:
    with connect(sites.directory / "a") as store:
        store.keyvalue("stock", KeyValueSettings(backend="replicated", timed=False))


def wait_for_map(sites: Sites) -> str:
    """Wait until all sites have the database and agree on its leader; return it."""
    return sites.wait_for_leader_of(SHARD, *NAMES)


def read_count(sites: Sites, name: str, *, encoded: bool = False) -> int:
    """Return the count that a transaction at a site reads."""
    found: list[bytes] = []

    def read() -> bool:
        try:
            with connect(sites.directory / name) as store:
                found[:] = [store.keyvalue("stock").get("count") or b""]
        except RetryError:
            return False
        return True

    until(read, f"a read at {name}")
    return int.from_bytes(found[0], "big") if encoded else int(found[0])
