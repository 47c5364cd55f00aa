"""A flipped bit in the files of one site is found and repaired from another site."""

from __future__ import annotations

from pathlib import Path

import pytest

from siltstone.fs.paths import StorePaths
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.store.segment.segment import open_segment
from tests.support.broker_process import run_command
from tests.support.sites import NAMES, Sites, three_sites, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("cluster")]
SHARD = "messages/0"


def _flip(sites: Sites, name: str) -> None:
    """Flip a bit in the middle of the first segment of a site, which is sealed."""
    place = StorePaths(absolute_path(sites.directory / name)).data / "messages" / "0" / "1"
    fs = PosixFileSystem()
    path = place / min(entry.name for entry in fs.list(place) if entry.name.endswith(".seg"))
    segment = open_segment(fs, path)
    segment.follow()
    at = int(segment.index.positions[len(segment.index.positions) // 2]) + 90
    with fs.open(path, writable=True) as file:
        file.write_at(at, bytes([file.read_at(at, 1)[0] ^ 1]))


def _is_sound(sites: Sites, name: str) -> bool:
    return run_command("verify", "messages", "--data", str(sites.directory / name)).returncode == 0


def test_a_flipped_bit_is_repaired_from_another_site(tmp_path: Path) -> None:
    with three_sites(tmp_path, {"cluster.scrub_interval": 2}) as sites:
        sites.start()
        leader = sites.wait_for_leader(*NAMES)
        until(lambda: sites.status(leader)["shards"][SHARD]["in_sync"] == list(NAMES), "in sync")
        sites.publish(leader, "first", [b"1-%d" % i for i in range(40)])
        sites.wait_for_rows(40)
        sealed = run_command("seal", "messages", "--data", str(tmp_path / leader))
        assert sealed.returncode == 0, sealed.stderr
        sites.publish(leader, "second", [b"2-%d" % i for i in range(5)])
        sites.wait_for_rows(45)
        # While all run: the background check finds it, also at the leader, which hands over.
        before = sites.rows(leader)
        _flip(sites, leader)
        # It may be repaired before a check from outside could see the damage.
        until(lambda: sites.brokers[leader].events("segment_damaged") != [], "it is found")
        until(lambda: sites.brokers[leader].events("shard_copied") != [], "it is copied")
        until(lambda: _is_sound(sites, leader), "the leader is repaired")
        assert sites.rows(leader) == before
        # At a site that is stopped: `verify --repair` leaves the rest to the next start.
        stopped = next(name for name in NAMES if name != leader)
        sites.brokers[stopped].terminate()
        assert sites.brokers[stopped].wait_for_status() == 0
        _flip(sites, stopped)
        done = run_command("verify", "messages", "--repair", "--data", str(tmp_path / stopped))
        assert done.returncode == 1
        assert "copies it from another one when it starts" in " ".join(done.stdout.decode().split())
        sites.start(stopped)
        until(lambda: sites.brokers[stopped].events("shard_copied") != [], "it has copied")
        until(lambda: sites.rows(stopped) == before, "it has all rows")
        sites.publish(stopped, "last", [b"last"])
        sites.wait_for_rows(46)
        assert sites.rows("a") == sites.rows("b") == sites.rows("c")
        for name in NAMES:
            assert _is_sound(sites, name)
            assert sites.brokers[name].events("segments_undecided") == []
