"""How a site of a cluster begins, and what it decides without NATS."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path, PurePath
from threading import Thread
from types import SimpleNamespace
from typing import cast

import pytest

from siltstone.clock import ManualClock
from siltstone.cluster.nats_process import NatsProcess, Ports
from siltstone.cluster.registry import ClusterRegistry, DroppedDatabase, Registered
from siltstone.cluster.settings import Address, SiteSettings
from siltstone.cluster.site import ClusterSite
from siltstone.errors import CorruptionError, RetryError, SiltstoneError
from siltstone.fs.posix import PosixFileSystem
from siltstone.store.shard.replicated.log import ReplicatedLog
from siltstone.store.shard.replicated.port import Founding
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.writer.replication.messages import LogIdentity

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


IDENTITY = b"i" * 16


class FakeRegistry:
    """A registry with one database that was dropped."""

    def __init__(self, *, is_cleared: bool) -> None:
        self.is_cleared = is_cleared
        self.cleared = 0

    async def dropped(self) -> frozenset[bytes]:
        return frozenset({IDENTITY})

    async def dropped_database(self, identity: bytes) -> DroppedDatabase:
        return DroppedDatabase(
            name="kv/stock", identity=identity, shards=1, is_cleared=self.is_cleared, revision=3
        )

    async def clear(self, _: DroppedDatabase) -> None:
        self.cleared += 1
        self.is_cleared = True


class Dropping:
    """A site that looks at what was dropped in the cluster."""

    def __init__(self, directory: PurePath, *, is_cleared: bool = False) -> None:
        self.site = make_site(directory)
        self.registry = FakeRegistry(is_cleared=is_cleared)
        self.calls: list[tuple[str, bytes]] = []
        self.error: SiltstoneError | None = None
        self.site.serve(self.ignore, self.ignore, self.drop)

    def ignore(self, *_: object) -> None:
        raise AssertionError("nothing is opened here")

    def drop(self, name: str, identity: bytes) -> bool:
        self.calls.append((name, identity))
        if self.error is not None:
            raise self.error
        return True

    def look(self) -> None:
        work = self.site._drop_databases(cast("ClusterRegistry", self.registry))  # noqa: SLF001 -- as its loop does
        self.site._loop.run_until_complete(work)  # noqa: SLF001

    def attach(self) -> None:
        identity = LogIdentity(database=IDENTITY, shard=0, epoch=1)
        log = SimpleNamespace(
            database="kv/stock", shard=0, identity=identity, hold_rows=lambda _: None
        )
        self.site._attach(cast("ReplicatedLog", log))  # noqa: SLF001

    def detach(self) -> None:
        self.site._shards.clear()  # noqa: SLF001


def test_a_database_that_was_dropped_is_deleted_once_and_cleared(tmp_path: Path) -> None:
    dropping = Dropping(PurePath(tmp_path))
    for _ in range(3):
        dropping.look()
    assert dropping.calls == [("stock", IDENTITY)]
    assert dropping.registry.cleared == 1
    dropping.site.stop()


def test_what_another_site_has_cleared_is_not_cleared_again(tmp_path: Path) -> None:
    dropping = Dropping(PurePath(tmp_path), is_cleared=True)
    dropping.look()
    assert dropping.calls == [("stock", IDENTITY)]
    assert dropping.registry.cleared == 0
    dropping.site.stop()


def test_a_site_that_had_it_open_clears_what_it_may_have_written_since(tmp_path: Path) -> None:
    dropping = Dropping(PurePath(tmp_path), is_cleared=True)
    dropping.attach()
    dropping.detach()
    dropping.look()
    assert dropping.registry.cleared == 1
    dropping.site.stop()


def test_a_copy_that_was_opened_again_is_deleted_again(tmp_path: Path) -> None:
    dropping = Dropping(PurePath(tmp_path))
    dropping.look()
    dropping.attach()
    dropping.look()
    assert len(dropping.calls) == 2
    dropping.site.stop()


def test_a_copy_that_cannot_be_deleted_now_is_deleted_later(tmp_path: Path) -> None:
    dropping = Dropping(PurePath(tmp_path))
    dropping.error = CorruptionError("a damaged file", path=PurePath("x"))
    dropping.look()
    assert dropping.registry.cleared == 0
    dropping.error = None
    dropping.look()
    assert (len(dropping.calls), dropping.registry.cleared) == (2, 1)
    dropping.site.stop()


class OneDatabase(FakeRegistry):
    """A registry with one database, until it is dropped."""

    def __init__(self) -> None:
        super().__init__(is_cleared=False)
        settings = KeyValueSettings(backend="replicated", timed=False)
        self.known: Registered | None = Registered(
            name="kv/stock",
            founding=Founding(salt=7, created_us=1, settings=settings),
            nonces=(b"n" * 16,),
            is_ready=True,
            revision=3,
        )
        self.created: list[str] = []
        self.dropping: list[bytes] = []

    async def databases(self) -> list[str]:
        return [] if self.known is None else [self.known.name]

    async def database(self, _: str) -> Registered | None:
        return self.known

    async def found(self, name: str, _: object) -> Registered:
        self.created.append(name)
        raise AssertionError("it was dropped")

    async def drop(self, known: Registered) -> None:
        self.dropping.append(known.identity)

    async def clear(self, dropped: DroppedDatabase) -> None:
        await super().clear(dropped)
        self.known = None


class Opening:
    """A site that opens the databases of others."""

    def __init__(self, directory: PurePath) -> None:
        self.site = make_site(directory)
        self.registry = OneDatabase()
        self.site._registry = cast("ClusterRegistry", self.registry)  # noqa: SLF001
        self.site._ready.set()  # noqa: SLF001
        self.errors: list[SiltstoneError] = []
        self.act: Callable[[], object] = lambda: None
        self.site.serve(self.open, self.open, lambda *_: False)

    def open(self, *_: object) -> None:
        try:
            self.act()
        except SiltstoneError as exc:
            self.errors.append(exc)
            raise

    def run(self, work: Coroutine[object, object, object]) -> object:
        return self.site._loop.run_until_complete(work)  # noqa: SLF001

    def look(self) -> None:
        self.run(self.site._open_databases(frozenset()))  # noqa: SLF001


def test_a_site_does_not_create_what_is_dropped_while_it_opens_it(tmp_path: Path) -> None:
    opening = Opening(PurePath(tmp_path))
    settings = KeyValueSettings(backend="replicated", timed=False)

    def create() -> None:
        opening.registry.known = None
        opening.site.found("kv/stock", settings)

    opening.act = create
    opening.look()
    assert [type(error) for error in opening.errors] == [RetryError]
    assert opening.registry.created == []
    opening.site.stop()


def test_a_database_that_cannot_be_opened_now_is_opened_later(tmp_path: Path) -> None:
    opening = Opening(PurePath(tmp_path))
    tries: list[int] = []

    def fail_once() -> None:
        tries.append(len(tries))
        if len(tries) == 1:
            raise RetryError("the disk is full")

    opening.act = fail_once
    for _ in range(3):
        opening.look()
    assert tries == [0, 1]
    opening.site.stop()


def test_a_database_is_cleared_before_its_drop_is_acknowledged(tmp_path: Path) -> None:
    opening = Opening(PurePath(tmp_path))
    assert opening.registry.known is not None
    identity = opening.registry.known.identity
    opening.run(opening.site._drop("kv/stock", identity))  # noqa: SLF001
    assert opening.registry.dropping == [identity]
    assert opening.registry.cleared == 1
    opening.site.stop()
