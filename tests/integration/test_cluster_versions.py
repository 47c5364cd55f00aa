"""A running cluster with a site of another version: it is upgraded by a restart, without loss.

No version but 1 was written so far. A site with frozen modules of it stands for the version before,
and one whose records have another number for the version after.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.broker_process import COMMAND, run_command
from tests.support.ledger import Ledger
from tests.support.other_version import command
from tests.support.sites import NAMES, Sites, three_sites, until

pytestmark = [pytest.mark.timeout(500), pytest.mark.xdist_group("cluster")]
SHARD = "messages/0"


def let_lead(sites: Sites, name: str) -> None:
    """Let a site lead when it has a replica, and wait until it does."""
    until(lambda: is_current(sites, name), f"{name} is in sync")
    data = str(sites.directory / name)
    done = run_command("cluster", "move-shard", SHARD, "--leader", name, "--data", data)
    assert done.returncode == 0, done.stderr
    until(lambda: {sites.leader(each) for each in NAMES} == {name}, f"{name} leads")


def restart(sites: Sites, name: str, program: tuple[str, ...]) -> None:
    """Stop a site, and start another version of it; wait until it is in sync again."""
    sites.brokers[name].stop()
    sites.brokers[name].use(program)
    sites.start(name)
    until(lambda: is_current(sites, name), f"{name} has read everything")


def is_current(sites: Sites, name: str) -> bool:
    shard = sites.status(name)["shards"].get(SHARD)
    if shard is None:
        return False
    return shard["replicas"][name]["status"] == "current" and name in shard["in_sync"]


def test_a_site_with_the_frozen_format_appends_follows_leads_and_is_upgraded(
    tmp_path: Path,
) -> None:
    with ExitStack() as closing:
        sites = closing.enter_context(three_sites(tmp_path))
        old, *others = NAMES
        sites.brokers[old].use(command("1"))
        sites.start()
        sites.wait_for_leader(*NAMES)
        ledger = Ledger(sites, NAMES, seed=8)
        closing.callback(ledger.end)
        ledger.start()
        for leader in (others[0], old):
            let_lead(sites, leader)
            # At each site, so also calls and answers go between the versions.
            ledger.wait_for_progress()
        ledger.check()
        restart(sites, old, COMMAND)
        ledger.wait_for_progress()
        assert ledger.check() > 0
        for name in NAMES:
            assert sites.brokers[name].mistakes() == []
            assert sites.brokers[name].events("shard_stopped") == []


def test_a_newer_site_does_not_lead_until_all_sites_can_read_its_records(tmp_path: Path) -> None:
    with ExitStack() as closing:
        sites = closing.enter_context(three_sites(tmp_path))
        sites.start()
        sites.wait_for_leader(*NAMES)
        ledger = Ledger(sites, NAMES, seed=9)
        closing.callback(ledger.end)
        ledger.start()
        ledger.wait_for_progress()
        last, *first = NAMES
        for name in first:
            restart(sites, name, command("2"))
            ledger.wait_for_progress()
        # Its records are the only ones that all sites can read.
        assert sites.wait_for_leader(*NAMES) == last
        ledger.check()
        # While it is away, the others lead, and write what it cannot read. It stops, and says so.
        sites.brokers[last].stop()
        assert sites.wait_for_leader(*first) in first
        ledger.wait_for_progress(*(f"at.{name}" for name in first))
        sites.start(last)
        until(lambda: bool(sites.brokers[last].events("shard_stopped")), "it cannot read records")
        (stopped,) = sites.brokers[last].events("shard_stopped")
        assert "upgrade this site" in str(stopped["reason"])
        # The others lead on: it can read nothing anyway.
        ledger.wait_for_progress(*(f"at.{name}" for name in first))
        # The upgrade. It can store nothing, so there is nothing that a clean end would wait for.
        sites.brokers[last].kill()
        sites.brokers[last].use(command("2"))
        sites.start(last)
        until(lambda: is_current(sites, last), "it has read everything")
        ledger.wait_for_progress()
        ledger.check()
