"""How a site of a cluster begins, and what it decides without NATS."""

from __future__ import annotations

from pathlib import PurePath
from threading import Thread

import pytest

from siltstone.clock import ManualClock
from siltstone.cluster.nats_process import NatsProcess, Ports
from siltstone.cluster.settings import Address, ClusterSettings
from siltstone.cluster.site import ClusterSite
from siltstone.errors import SiltstoneError
from siltstone.fs.posix import PosixFileSystem

pytestmark = pytest.mark.timeout(30)


def test_a_start_that_fails_unexpectedly_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: PurePath
) -> None:
    async def start(_: NatsProcess) -> Ports:
        raise ValueError("an error of a library")

    monkeypatch.setattr(NatsProcess, "start", start)
    settings = ClusterSettings(
        name="plant",
        site="a",
        seeds=(Address("127.0.0.1", 7400),),
        listen=None,
        secret=b"the secret of this cluster",
        directory=PurePath(tmp_path),
    )
    site = ClusterSite(settings, PosixFileSystem(), ManualClock())
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
