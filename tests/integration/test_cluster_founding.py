"""A cluster that begins with the rows of one site: imported, restored, or left after a loss."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.broker_process import run_command, stored
from tests.support.sites import NAMES, Sites, three_sites, until

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("cluster")]


def command(*words: str, stdin: bytes = b"") -> str:
    done = run_command(*words, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


def appended(data: Path, values: list[str]) -> list[str]:
    """Append messages to a local database; return all rows as the command shows them."""
    lines = [json.dumps({"topic": "plant/x", "value": value}) for value in values]
    command("append", "messages", "--data", str(data), stdin="\n".join(lines).encode())
    return shown(data)


def shown(data: Path) -> list[str]:
    return command("read", "messages", "--format", "jsonl", "--data", str(data)).splitlines()


def check_equal(sites: Sites, before: list[str], names: tuple[str, ...] = NAMES) -> None:
    """Publish at each site; all sites have these rows first, and the same ones after them."""
    count = len(before)
    for name in names:
        sites.publish(name, f"client-{name}", [f"after-{name}".encode()])
    for name in names:
        until(
            lambda name=name: len(sites.rows(name)) == count + len(names),  # type: ignore[misc]
            f"{name} has all rows",
        )
    rows = {name: shown(sites.directory / name) for name in names}
    assert rows[names[0]][:count] == before
    assert all(rows[name] == rows[names[0]] for name in names)
    values = {value for _, value in stored(sites.directory / names[0])}
    assert {f"after-{name}".encode() for name in names} <= values


def test_a_local_database_with_its_rows_becomes_that_of_a_new_cluster(tmp_path: Path) -> None:
    with three_sites(tmp_path) as sites:
        command("db", "create", "messages", "--data", str(tmp_path / "a"))
        before = appended(tmp_path / "a", [f"old-{number}" for number in range(300)])
        command("cluster", "import-local", "messages", "--data", str(tmp_path / "a"))
        # All at once: the others wait for the rows, and create no database of their own.
        sites.start()
        sites.wait_for_leader(*NAMES)
        check_equal(sites, before)
        for name in NAMES:
            assert sites.brokers[name].mistakes() == []


def test_a_site_that_is_killed_while_it_imports_goes_on(tmp_path: Path) -> None:
    with three_sites(tmp_path) as sites:
        command("db", "create", "messages", "--data", str(tmp_path / "a"))
        before = appended(tmp_path / "a", [f"old-{number}" for number in range(50)])
        command("cluster", "import-local", "messages", "--data", str(tmp_path / "a"))
        # Without a majority it waits.
        sites.brokers["a"].begin()
        until(lambda: bool(sites.nats_pid("a")), "NATS runs at a")
        sites.brokers["a"].kill()
        sites.start()
        sites.wait_for_leader(*NAMES)
        check_equal(sites, before)


def test_a_backup_is_restored_into_a_cluster_of_another_size(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    with three_sites(tmp_path / "old") as sites:
        sites.start()
        leader = sites.wait_for_leader(*NAMES)
        sites.publish(leader, "first", [b"%d" % number for number in range(30)])
        sites.wait_for_rows(30)
        file = str(tmp_path / "plant.gz")
        command("backup", file, "--data", str(tmp_path / "old" / "b"))
        before = shown(tmp_path / "old" / "b")
    with three_sites(tmp_path) as sites:
        only = sites.alone("a")
        command("restore", file, "--data", str(tmp_path / "a"))
        command("cluster", "export-local", "--data", str(tmp_path / "a"))
        command("cluster", "import-local", "messages", "--data", str(tmp_path / "a"))
        sites.start(*only)
        sites.wait_for_leader(*only)
        check_equal(sites, before, only)


def test_a_cluster_that_lost_two_of_three_seeds_begins_anew(tmp_path: Path) -> None:
    with three_sites(tmp_path) as sites:
        sites.start()
        leader = sites.wait_for_leader(*NAMES)
        sites.publish(leader, "first", [b"%d" % number for number in range(50)])
        sites.wait_for_rows(50)
        for name in NAMES:
            sites.brokers[name].kill()
            sites.kill_nats(name)
        before = shown(tmp_path / "c")
        # The seeds a and b are lost with their disks; c is left.
        for name in "ab":
            (tmp_path / name).rename(tmp_path / f"lost-{name}")
        told = command("cluster", "refound", "--data", str(tmp_path / "c"))
        assert "messages/0" in told
        assert "--epoch 2" in told
        command("cluster", "refound", "--epoch", "2", "--data", str(tmp_path / "c"))
        sites.set_epoch(2)
        sites.start()
        sites.wait_for_leader(*NAMES)
        check_equal(sites, before)
        # A lost seed comes back, with its old files and settings, at its old address.
        sites.brokers["a"].kill()
        sites.kill_nats("a")
        (tmp_path / "a").rename(tmp_path / "new-a")
        (tmp_path / "lost-a").rename(tmp_path / "a")
        sites.set_epoch(1, "a")
        sites.brokers["a"].begin()
        until(lambda: bool(sites.nats_pid("a")), "NATS runs at the old seed")
        rows = shown(tmp_path / "c")
        leader = sites.wait_for_leader("b", "c")
        sites.publish(leader, "second", [b"x-%d" % number for number in range(20)])
        sites.wait_for_rows(len(rows) + 20, "b", "c")
        assert len(stored(tmp_path / "a")) == 50
        # The site a of the new epoch was killed above; it takes seconds to count as away.
        until(
            lambda: sites.status("b")["sites"].get("a", {}).get("state") != "there",
            "the old seed is not taken for a site of the new epoch",
        )
        sites.brokers["a"].kill()
        sites.kill_nats("a")
        # With the settings of the new epoch its old directory is refused.
        sites.set_epoch(2, "a")
        sites.brokers["a"].begin()
        assert sites.brokers["a"].wait_for_status() == 2
        shutil.rmtree(tmp_path / "a")
        sites.start("a")
        sites.wait_for_rows(len(rows) + 20, "a")
        assert shown(tmp_path / "a") == shown(tmp_path / "b")
