"""Sites join, drain and leave, and shards move, while clients publish."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any, Self

import pytest

from siltstone.fs.paths import StorePaths
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.store.shard.replicated.mark_file import read_mark
from tests.support.broker_process import run_command
from tests.support.mqtt_socket import connected
from tests.support.sites import NAMES, Sites, three_sites, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("cluster")]
SHARD = "messages/0"


class Steady:
    """A client that publishes with QoS 1 all the time, and remembers the longest wait."""

    def __init__(self, sites: Sites, name: str) -> None:
        self._sites = sites
        self._name = name
        self._end = threading.Event()
        self.longest = 0.0
        self.sent: list[bytes] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()
        self._sites.acknowledged += self.sent

    def _run(self) -> None:
        with connected(self._sites.brokers[self._name].port, f"steady-{self._name}") as socket:
            socket.socket.settimeout(90.0)
            number = 0
            while not self._end.wait(0.005):
                number += 1
                payload = b"steady-%d" % number
                began = time.monotonic()
                socket.publish("plant/steady", payload, packet_id=number % 60_000 + 1)
                self.longest = max(self.longest, time.monotonic() - began)
                self.sent.append(payload)


def test_a_drain_moves_the_leader_and_a_fourth_site_joins_and_replaces_one(
    tmp_path: Path,
) -> None:
    with three_sites(tmp_path) as sites:
        sites.start()
        leader = sites.wait_for_leader(*NAMES)
        until(lambda: _shard(sites, leader)["in_sync"] == list(NAMES), "all are in sync")
        client = next(name for name in NAMES if name != leader)
        with Steady(sites, client) as steady:
            until(lambda: len(steady.sent) > 20, "some are acknowledged")
            _run(sites, leader, "drain", leader)
            assert _shard(sites, client)["leader"] not in ("", leader)
            until(lambda: len(steady.sent) > 200, "more are acknowledged")
        assert steady.longest < 5.0, "the drain is a handover, not an election"
        assert _shard(sites, client)["in_sync"] == list(NAMES)
        # A site outside the seeds follows at once, and is a replica when it has joined.
        sites.add("d")
        sites.start("d")
        until(lambda: sites.rows("d") == sites.rows(client), "the new site has all rows")
        until(lambda: _role(sites, client, "d") == "observer", "it observes")
        assert _shard(sites, client)["replicas"]["d"]["observes"]
        _run(sites, client, "join", "d")
        with Steady(sites, "d") as steady:
            # The drained site leaves: the new one takes its place.
            _run(sites, client, "leave", leader)
            until(lambda: len(steady.sent) > 100, "some are acknowledged")
        rest = sorted({*NAMES, "d"} - {leader})
        assert _shard(sites, client)["placed"] == rest == _shard(sites, client)["in_sync"]
        assert _shard(sites, client)["transition"] is None
        assert _role(sites, client, leader) == "observer"
        _run(sites, client, "move-shard", SHARD, "--leader", "d")
        until(lambda: sites.leader(client) == "d", "the preferred site leads")
        sites.publish("d", "last", [b"last"])
        sites.wait_for_rows(len(sites.acknowledged), *rest)
        assert sites.rows("d") == sites.rows(client)
        assert sorted(sites.rows("d")) == sorted(sites.acknowledged)
        for broker in sites.brokers.values():
            assert broker.events("shard_stopped") == []


def test_a_leader_that_is_stopped_hands_over_first(tmp_path: Path) -> None:
    with three_sites(tmp_path) as sites:
        sites.start()
        leader = sites.wait_for_leader(*NAMES)
        until(lambda: _shard(sites, leader)["in_sync"] == list(NAMES), "all are in sync")
        client = next(name for name in NAMES if name != leader)
        with Steady(sites, client) as steady:
            until(lambda: len(steady.sent) > 20, "some are acknowledged")
            sites.brokers[leader].terminate()
            assert sites.brokers[leader].wait_for_status() == 0
            before = len(steady.sent)
            until(lambda: len(steady.sent) > before + 20, "more are acknowledged")
        handed = sites.brokers[leader].events("shard_handed_over")
        assert [each["shard"] for each in handed[:1]] == [SHARD]
        assert len(sites.brokers[leader].events("shard_stepped_down")) == 1
        rest = [name for name in NAMES if name != leader]
        sites.wait_for_rows(len(sites.acknowledged), *rest)
        assert sites.rows(rest[0]) == sites.rows(rest[1])
        assert sorted(sites.rows(client)) == sorted(sites.acknowledged)


def test_a_site_that_is_lost_is_forgotten_and_replaced(tmp_path: Path) -> None:
    with three_sites(tmp_path, {"cluster.away_after": 2}) as sites:
        sites.add("d")
        sites.start(*NAMES, "d")
        leader = sites.wait_for_leader(*NAMES)
        until(lambda: _shard(sites, leader)["in_sync"] == list(NAMES), "all are in sync")
        until(lambda: _role(sites, leader, "d") == "observer", "it observes")
        _run(sites, leader, "join", "d")
        assert run_command("cluster", "status", "--ready", *_data(sites, "d")).returncode == 0
        lost = next(name for name in NAMES if name != leader)
        sites.publish(lost, "early", [b"early"])
        refused = run_command("cluster", "forget", lost, *_data(sites, leader))
        assert refused.returncode == 2
        assert b"is running: use 'siltstone cluster leave" in refused.stderr
        sites.brokers[lost].kill()
        sites.kill_nats(lost)
        until(lambda: _alarms(sites, leader) == {"under-replicated"}, "the alarm is raised")
        assert sites.brokers[leader].events("cluster_alarm_raised") != []
        _run(sites, leader, "forget", lost)
        rest = sorted({*NAMES, "d"} - {lost})
        until(lambda: _shard(sites, leader)["in_sync"] == rest, "the new site took its place")
        until(lambda: _alarms(sites, leader) == set(), "the alarm is over")
        sites.publish("d", "last", [b"%d" % i for i in range(10)])
        sites.wait_for_rows(11, *rest)
        # The number of its calls is forgotten: only those of the running processes are left.
        until(lambda: _producers(sites, "d") <= len(rest), "its producer is retired")
        # It may come back, and observes then.
        sites.start(lost)
        sites.wait_for_rows(11, lost)
        assert _role(sites, leader, lost) == "gone"
        assert _shard(sites, leader)["placed"] == rest


def _producers(sites: Sites, name: str) -> int:
    """Return how many producers the mark of a site has."""
    place = StorePaths(absolute_path(sites.directory / name)).data / "messages"
    marked = read_mark(PosixFileSystem(), place, 0)
    assert marked is not None
    entries = marked.producers.encode()
    # The last byte of an entry is 2 if it is a RETIRE.
    return sum(flag != 2 for flag in entries[24::25])


def _alarms(sites: Sites, name: str) -> set[str]:
    return {alarm["kind"] for alarm in sites.status(name)["alarms"]}


def _data(sites: Sites, name: str) -> tuple[str, str]:
    return "--data", str(sites.directory / name)


def _run(sites: Sites, name: str, *words: str) -> None:
    done = run_command("cluster", *words, "--data", str(sites.directory / name))
    assert done.returncode == 0, done.stderr


def _role(sites: Sites, name: str, of: str) -> str:
    """Return the role of a site, as another one knows it."""
    found: str = sites.status(name)["sites"].get(of, {}).get("role", "")
    return found


def _shard(sites: Sites, name: str) -> dict[str, Any]:
    found: dict[str, Any] = sites.status(name)["shards"][SHARD]
    return found
