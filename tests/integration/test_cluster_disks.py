"""The disk of a site is full, or has wrong bytes: the others continue, and the site returns."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.ledger import Ledger
from tests.support.sites import NAMES, Sites, three_sites, until
from tests.support.small_disk import mounted, take_the_rest

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("cluster")]
_DISK_BYTES = 48 * 1024 * 1024


@pytest.mark.parametrize("which", ["leader", "follower"])
def test_a_full_disk_of_one_site_stops_only_that_site(tmp_path: Path, which: str) -> None:
    with ExitStack() as disks:
        for name in NAMES:
            disks.enter_context(mounted(tmp_path / name, _DISK_BYTES))
        sites = disks.enter_context(three_sites(tmp_path))
        sites.start()
        leader = sites.wait_for_leader(*NAMES)
        full = leader if which == "leader" else next(name for name in NAMES if name != leader)
        ledger = Ledger(sites, NAMES, seed=2, roaming=0)
        disks.callback(ledger.end)
        ledger.start()
        ledger.wait_for_progress()
        rest = tmp_path / full / "rest"
        take_the_rest(rest)
        others = [name for name in NAMES if name != full]
        for _ in range(5):
            ledger.wait_for_progress(*(f"at.{name}" for name in others))
        until(lambda: sites.leader(others[0]) in others, "a site with space leads")
        until(lambda: not sites.nats_is_well(full), "NATS at the full site keeps no logs")
        rest.unlink()
        ledger.wait_for_progress()
        ledger.check()
        for name in NAMES:
            until(lambda name=name: sites.nats_is_well(name), f"NATS at {name} has all logs")  # type: ignore[misc]
        for name in NAMES:
            assert sites.brokers[name].mistakes() == []
            assert sites.brokers[name].events("shard_stopped") == []


def test_wrong_bytes_in_the_log_of_a_site_are_read_from_another_site(tmp_path: Path) -> None:
    with three_sites(tmp_path) as sites:
        sites.start()
        leader = sites.wait_for_leader(*NAMES)
        away = next(name for name in NAMES if name != leader)
        sites.publish(leader, "first", [b"1-%d" % i for i in range(20)])
        sites.wait_for_rows(20)
        # Its NATS server stores what the broker has not read.
        sites.brokers[away].kill()
        sites.publish(leader, "more", [b"2-%d" % i for i in range(100)])
        sites.kill_nats(away)
        assert _damage_log(sites, away, b"more")
        sites.start(away)
        until(lambda: sites.rows(away) == sites.rows(leader), f"{away} has all rows")
        assert sorted(sites.rows(away)) == sorted(sites.acknowledged)
        for name in NAMES:
            assert sites.brokers[name].events("shard_stopped") == []


def _damage_log(sites: Sites, name: str, text: bytes) -> int:
    """Flip a bit of each record with this text in the stored messages of a NATS server."""
    count = 0
    streams = sites.directory / name / "cluster" / "jetstream"
    for path in streams.rglob("streams/silt_*/msgs/*.blk"):
        data = bytearray(path.read_bytes())
        at = data.find(text)
        while at >= 0:
            data[at] ^= 1
            count += 1
            at = data.find(text, at + 1)
        path.write_bytes(data)
    return count
