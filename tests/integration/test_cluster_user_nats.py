"""Sites use NATS servers that the user runs, unless these could lose data."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.sites import NAMES, PATIENCE, Sites, three_sites, until
from tests.support.user_nats import UserServers, user_servers

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("cluster")]


@contextmanager
def sites_of(directory: Path, servers: UserServers) -> Iterator[Sites]:
    """Three sites that use these servers."""
    with three_sites(directory, servers.settings) as sites:
        for broker in sites.brokers.values():
            broker.set("cluster.listen", "")
        yield sites


def test_sites_replicate_through_servers_of_the_user(tmp_path: Path) -> None:
    with (
        user_servers(tmp_path / "nats") as servers,
        sites_of(tmp_path, servers) as sites,
    ):
        sites.start()
        leader = sites.wait_for_leader(*NAMES)
        for name in NAMES:
            sites.publish(name, f"first-{name}", [f"{name}-{i}".encode() for i in range(5)])
        others = [name for name in NAMES if name != leader]
        sites.brokers[leader].kill()
        sites.wait_for_leader(*others)
        sites.publish(others[0], "second", [b"2-%d" % i for i in range(5)])
        sites.start(leader)
        sites.wait_for_rows(20)
        assert sites.rows("a") == sites.rows("b") == sites.rows("c")
        assert sorted(sites.rows("a")) == sorted(sites.acknowledged)
        assert [sites.nats_pid(name) for name in NAMES] == [0, 0, 0]
        # Another cluster needs an account of its own.
        stranger = sites.brokers["c"]
        stranger.stop()
        stranger.set("cluster.name", "other")
        before = len(stranger.events())
        stranger.begin()
        told = stranger.wait_for("cluster_waiting", skip=before)
        assert "used by the cluster 'plant'" in str(told["error"])


def test_rows_wait_while_a_server_could_lose_them(tmp_path: Path) -> None:
    with (
        user_servers(tmp_path / "nats") as servers,
        sites_of(tmp_path, servers) as sites,
    ):
        sites.start()
        leader = sites.wait_for_leader(*NAMES)
        sites.publish(leader, "first", [b"1"])
        servers.restart(2, "2m")
        until(lambda: all(_alarm(sites, name) for name in NAMES), "all sites raise the alarm")
        assert f"{servers.pages[2]}: the NATS server does not sync each message" in _alarm(
            sites, leader
        )
        publishing = threading.Thread(target=sites.publish, args=("a", "second", [b"2"]))
        publishing.start()
        until(lambda: sites.status("a")["shards"]["messages/0"]["waiting_calls"] == 1, "it waits")
        publishing.join(1.0)
        assert sites.acknowledged == [b"1"]
        servers.restart(2, "always")
        publishing.join(PATIENCE)
        assert sites.acknowledged == [b"1", b"2"]
        until(lambda: not any(_alarm(sites, name) for name in NAMES), "the alarm is over")


def _alarm(sites: Sites, name: str) -> str:
    """Return the text of the alarm of unsafe servers at a site, "" if it is not raised."""
    alarms = sites.status(name)["alarms"]
    return "".join(alarm["text"] for alarm in alarms if alarm["kind"] == "unsafe NATS")


def test_servers_that_do_not_sync_are_refused(tmp_path: Path) -> None:
    with (
        user_servers(tmp_path / "nats", sync="2m") as servers,
        sites_of(tmp_path, servers) as sites,
    ):
        broker = sites.brokers["a"]
        broker.begin()
        assert broker.wait_for_status() == 2
        (told,) = [str(each) for each in broker.events() if "sync_interval" in str(each)]
        assert f"{servers.pages[2]}: the NATS server does not sync each message" in told
