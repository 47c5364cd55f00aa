"""A flipped bit in the files of one site is found and repaired from another site."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.broker_process import run_command
from tests.support.cluster_faults import flip_a_bit, is_sound
from tests.support.sites import NAMES, three_sites, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("cluster")]
SHARD = "messages/0"


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
        # One site has compacted it, and the others have not: only the rows are compared.
        done = run_command("compact", "messages", "--data", str(tmp_path / leader))
        assert done.returncode == 0, done.stderr
        checked = sites.status(leader)["counters"]["segments_checked"]
        until(
            lambda: sites.status(leader)["counters"]["segments_checked"] > checked + 2,
            "it is checked again",
        )
        assert [sites.status(name)["counters"]["segments_damaged"] for name in NAMES] == [0, 0, 0]
        # While all run: the background check finds it, also at the leader, which hands over.
        before = sites.rows(leader)
        flip_a_bit(sites, leader)
        # It may be repaired before a check from outside could see the damage.
        until(lambda: sites.brokers[leader].events("segment_damaged") != [], "it is found")
        until(lambda: sites.brokers[leader].events("shard_copied") != [], "it is copied")
        until(lambda: is_sound(sites, leader), "the leader is repaired")
        assert sites.rows(leader) == before
        # At a site that is stopped: `verify --repair` leaves the rest to the next start.
        stopped = next(name for name in NAMES if name != leader)
        sites.brokers[stopped].terminate()
        assert sites.brokers[stopped].wait_for_status() == 0
        flip_a_bit(sites, stopped)
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
            assert is_sound(sites, name)
            assert sites.brokers[name].events("segments_undecided") == []
