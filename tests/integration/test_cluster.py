"""Three sites with real NATS servers: what is acknowledged is at all sites and outlives any one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support.broker_process import run_command
from tests.support.sites import NAMES, Sites, three_sites, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("cluster")]


def test_a_killed_leader_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    with three_sites(tmp_path) as sites:
        sites.start()
        leader = sites.wait_for_leader(*NAMES)
        for name in NAMES:
            sites.publish(name, f"first-{name}", [f"{name}-{i}".encode() for i in range(5)])
        sites.wait_for_rows(15)
        assert sites.rows("a") == sites.rows("b") == sites.rows("c")
        others = [name for name in NAMES if name != leader]
        _kill_while_publishing(sites, leader, others)
        assert sites.wait_for_leader(*others) != leader
        sites.start(leader)
        sites.wait_for_rows(len(sites.acknowledged))
        until(lambda: sites.rows(leader) == sites.rows(others[0]), "the killed site caught up")
        _check(sites)
        # What all sites have synced leaves the shared log.
        sites.publish(others[0], "third", [b"3-%d" % i for i in range(250)])
        until(lambda: sites.status("a")["shards"]["messages/0"]["first"] > 1, "the log is trimmed")
        made = run_command(
            "db", "create", "extra", "--backend", "replicated", "--data", str(tmp_path / leader)
        )
        assert made.returncode == 0, made.stderr
        for name in NAMES:
            manifest = tmp_path / name / "data" / "extra" / "manifest"
            until(manifest.exists, f"site {name} has the new database")
        # The servers end with the sites, and everything is there again after a start of all.
        for broker in sites.brokers.values():
            broker.terminate()
        for broker in sites.brokers.values():
            assert broker.wait_for_status() == 0
        assert [sites.nats_pid(name) for name in NAMES] == [0, 0, 0]
        sites.start()
        sites.publish("b", "last", [b"last"])
        sites.wait_for_rows(len(sites.acknowledged))
        _check(sites)


def test_the_leader_continues_when_its_nats_server_is_killed(tmp_path: Path) -> None:
    with three_sites(tmp_path) as sites:
        sites.start()
        leader = sites.wait_for_leader(*NAMES)
        _publish_everywhere(sites, NAMES, lambda: sites.kill_nats(leader))
        sites.wait_for_rows(len(sites.acknowledged))
        _check(sites)
        for name in NAMES:
            assert sites.brokers[name].events("shard_stopped") == []


def _kill_while_publishing(sites: Sites, leader: str, others: list[str]) -> None:
    """Publish at two sites, kill the leader in the middle, and wait until all is acknowledged."""
    _publish_everywhere(sites, others, sites.brokers[leader].kill)


def _publish_everywhere(sites: Sites, names: Sequence[str], fault: Callable[[], None]) -> None:
    """Publish at these sites, cause a fault in the middle, and wait until all is acknowledged."""
    before = len(sites.acknowledged)
    threads = [
        threading.Thread(
            target=sites.publish,
            args=(
                name,
                f"{before}-{name}",
                [b"%d-%s-%d" % (before, name.encode(), i) for i in range(100)],
            ),
        )
        for name in names
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(sites.acknowledged) > before + 20, "some are acknowledged")
    fault()
    for thread in threads:
        thread.join()
    assert len(sites.acknowledged) == before + 100 * len(names)


def _check(sites: Sites) -> None:
    """Check that every site has what was acknowledged, once, and in the order of each client."""
    rows = sites.rows("a")
    assert rows == sites.rows("b") == sites.rows("c")
    assert sorted(rows) == sorted(sites.acknowledged)
    prefixes = {payload.rpartition(b"-")[0] + b"-" for payload in sites.acknowledged}
    for prefix in prefixes:
        wanted = [payload for payload in sites.acknowledged if payload.startswith(prefix)]
        assert [payload for payload in rows if payload.startswith(prefix)] == wanted
