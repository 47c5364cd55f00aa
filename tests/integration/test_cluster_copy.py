"""A site that was away for long, or lost its files, copies from another site and then continues."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.broker_process import run_command, stored
from tests.support.sites import NAMES, Sites, three_sites, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.xdist_group("cluster")]
SHARD = "messages/0"


def test_a_site_that_was_away_or_lost_its_files_copies_from_another(tmp_path: Path) -> None:
    with three_sites(tmp_path, {"cluster.away_after": 2}) as sites:
        sites.start()
        leader = sites.wait_for_leader(*NAMES)
        away, other = [name for name in NAMES if name != leader]
        until(lambda: _in_sync(sites, leader) == list(NAMES), "all sites are in sync")
        sites.publish(leader, "first", [b"1-%d" % i for i in range(20)])
        sites.wait_for_rows(20)
        sites.brokers[away].kill()
        _trim_away(sites, leader, away, b"2")
        sites.start(away)
        _returns(sites, leader, away)
        # Now without any file of the database.
        sites.brokers[away].kill()
        _trim_away(sites, leader, away, b"3")
        shutil.rmtree(tmp_path / away / "data" / "messages")
        sites.start(away)
        _returns(sites, leader, away)
        sites.publish(away, "last", [b"last"])
        sites.wait_for_rows(len(sites.acknowledged))
        assert sites.rows(leader) == sites.rows(away) == sites.rows(other)
        assert sorted(sites.rows(leader)) == sorted(sites.acknowledged)
        assert len(sites.brokers[away].events("shard_copied")) == 2
        _check_backup(tmp_path, away, sites.rows(leader))


def _check_backup(directory: Path, name: str, rows: list[bytes]) -> None:
    """Make a backup of a site while it runs, and a local database of it."""
    file, restored = str(directory / "site.gz"), directory / "restored"
    for words in (
        ("backup", file, "--data", str(directory / name)),
        ("restore", file, "--data", str(restored)),
        ("cluster", "export-local", "--data", str(restored)),
        ("append", "messages", "--data", str(restored)),
    ):
        done = run_command(*words, stdin=b'{"topic": "plant/x", "value": "after"}')
        assert done.returncode == 0, done.stderr
    assert [value for _, value in stored(restored)] == [*rows, b"after"]


def _trim_away(sites: Sites, leader: str, away: str, prefix: bytes) -> None:
    """Publish until the shared log begins behind what the site that is away has read."""
    until(lambda: away not in _in_sync(sites, leader), f"{away} leaves the in-sync sites")
    before = sites.status(leader)["shards"][SHARD]["last"]
    sites.publish(leader, "more", [prefix + b"-%d" % i for i in range(250)])
    until(lambda: sites.status(leader)["shards"][SHARD]["first"] > before, "the log is trimmed")


def _returns(sites: Sites, leader: str, away: str) -> None:
    until(lambda: _in_sync(sites, leader) == list(NAMES), f"{away} is in sync again")
    until(lambda: sites.rows(away) == sites.rows(leader), f"{away} has all rows")


def _in_sync(sites: Sites, name: str) -> list[str]:
    found: list[str] = sites.status(name)["shards"][SHARD]["in_sync"]
    return found
