"""How a site of a cluster begins, and what it decides without NATS."""

from __future__ import annotations

from pathlib import Path, PurePath
from threading import Thread

import pytest

from siltstone.clock import ManualClock
from siltstone.cluster.nats_process import NatsProcess, Ports
from siltstone.cluster.settings import Address, SiteSettings
from siltstone.cluster.site import ClusterSite
from siltstone.errors import SiltstoneError
from siltstone.fs.posix import PosixFileSystem

pytestmark = pytest.mark.timeout(30)


def make_site(directory: PurePath) -> ClusterSite:
    settings = SiteSettings(
        name="plant",
        site="a",
        seeds=(Address("127.0.0.1", 7400),),
        listen=None,
        secret=b"the secret of this cluster",
        directory=directory,
    )
    return ClusterSite(settings, PosixFileSystem(), ManualClock())


def test_a_start_that_fails_unexpectedly_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def start(_: NatsProcess) -> Ports:
        raise ValueError("an error of a library")

    monkeypatch.setattr(NatsProcess, "start", start)
    site = make_site(PurePath(tmp_path))
    errors: list[Exception] = []

    def begin() -> None:
        try:
            site.start()
        except SiltstoneError as exc:
            errors.append(exc)

    thread = Thread(target=begin, daemon=True)
    thread.start()
    thread.join(10)
    assert [str(error) for error in errors] == [
        "the site of the cluster cannot start: an error of a library"
    ]
    site.stop()


def test_a_loop_that_fails_unexpectedly_begins_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("siltstone.cluster.site._AGAIN_SECONDS", 0.0)
    site = make_site(PurePath(tmp_path))
    turns: list[int] = []

    async def work() -> None:
        turns.append(len(turns))
        if len(turns) < 3:
            raise KeyError("a shard that was closed")

    site._loop.run_until_complete(site._forever(work))  # noqa: SLF001 -- a real site never ends it
    assert turns == [0, 1, 2]
    site.stop()
