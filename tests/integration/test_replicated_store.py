"""Stores of several sites over one shared log: what counted is everywhere, once and in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import PurePath

import pytest

from siltstone.errors import SiltstoneError, UsageError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.write.partition import Columns
from siltstone.store.slab.settings import DatabaseSettings
from tests.support.shared_log import MemorySite, SharedLogs

SETTINGS = DatabaseSettings(backend="replicated", segment_bytes=64 * 1024)
PATIENCE = 20.0
_NEVER = threading.Event()


def until(holds: object, what: str) -> None:
    assert callable(holds)
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what
        _NEVER.wait(0.002)


class Three:
    """Three sites with a store each."""

    def __init__(self, closing: ExitStack) -> None:
        self.logs = SharedLogs()
        self.closing = closing
        self.files = {name: MemoryFileSystem() for name in "abc"}
        self.sites: dict[str, MemorySite] = {}
        self.databases: dict[str, Database] = {}
        for name in "abc":
            self.start(name)

    def start(self, name: str) -> Database:
        site = self.sites[name] = self.logs.site(name)
        store = site.open(self.files[name])
        self.closing.callback(_close, store)
        database = self.databases[name] = store.ensure("m", SETTINGS)
        return database

    def lead(self, name: str) -> None:
        log = self.sites[name].attached["m", 0]
        log.claim()
        until(lambda: log.view.leads, f"{name} leads")

    def tick(self) -> None:
        for site in list(self.sites.values()):
            for log in list(site.attached.values()):
                log.tick()

    def append(self, name: str, *values: bytes) -> None:
        """Append a row for each value, one call each; wait for all."""
        tickets = [
            self.databases[name].append(Columns([b"t/%d" % (i % 3)], [value]))
            for i, value in enumerate(values)
        ]
        for ticket in tickets:
            deadline = time.monotonic() + PATIENCE
            while not ticket.done and time.monotonic() < deadline:
                self.tick()
                _NEVER.wait(0.002)
            ticket.wait(0)

    def rows(self, name: str) -> list[tuple[str, bytes]]:
        batches = self.databases[name].read("#", columns=["serial", "topic", "value"])
        return [(row["topic"], row["value"]) for batch in batches for row in batch.to_pylist()]

    def settle(self) -> None:
        """Wait until all sites have read everything."""
        key = ("m", 0)
        last = len(self.logs.messages[key])
        for site in self.sites.values():
            log = site.attached.get(key)
            if log is not None:
                until(lambda: log.view.progress.sequence == last, "all is read")  # noqa: B023

    def segments(self, name: str) -> dict[str, bytes]:
        files, slab = self.files[name], PurePath("/store/data/m/0/1")
        return {entry.name: files.read(slab / entry.name) for entry in files.list(slab)}


def _close(store: Store) -> None:
    with suppress(SiltstoneError):
        store.close()


@pytest.fixture
def three() -> Iterator[Three]:
    with ExitStack() as closing:
        yield Three(closing)


def test_rows_of_the_leader_are_at_every_site(three: Three) -> None:
    three.lead("a")
    three.append("a", b"1", b"2", b"3")
    three.settle()
    assert three.rows("a") == three.rows("b") == three.rows("c")
    assert [value for _, value in three.rows("a")] == [b"1", b"2", b"3"]


def test_rows_of_any_site_go_to_the_leader(three: Three) -> None:
    three.lead("b")
    three.append("a", b"1", b"2")
    three.append("c", b"3")
    three.settle()
    assert [value for _, value in three.rows("b")] == [b"1", b"2", b"3"]


def test_another_site_takes_over_and_keeps_what_was_acknowledged(three: Three) -> None:
    three.lead("a")
    three.append("a", *[b"%d" % i for i in range(20)])
    three.sites["a"].crash()
    three.lead("c")
    three.append("b", *[b"%d" % i for i in range(20, 30)])
    three.settle()
    assert [value for _, value in three.rows("b")] == [b"%d" % i for i in range(30)]
    assert three.rows("b") == three.rows("c")


def test_the_killed_site_catches_up(three: Three) -> None:
    three.lead("a")
    three.append("a", b"1")
    three.sites["a"].crash()
    three.files["a"] = three.files["a"].crash_clone()
    three.lead("b")
    three.append("b", b"2")
    three.start("a")
    three.settle()
    assert [value for _, value in three.rows("a")] == [b"1", b"2"]


def test_segments_are_the_same_bytes_at_all_sites(three: Three) -> None:
    three.lead("a")
    # More than one segment.
    for group in range(10):
        three.append("a", *[bytes(5000) + b"%d" % (4 * group + i) for i in range(4)])
    three.settle()
    a, b = three.rows("a"), three.rows("b")
    assert a == b
    frames_a, frames_b = three.segments("a"), three.segments("b")
    assert sorted(frames_a) == sorted(frames_b)
    assert len(frames_a) > 4
    for name, data in frames_a.items():
        # The cells of positions in the header belong to a site.
        assert data[4096:] == frames_b[name][4096:], name


def test_without_a_cluster_a_replicated_database_is_only_read(three: Three) -> None:
    three.lead("a")
    three.append("a", b"1")
    three.settle()
    files = three.files["b"].crash_clone()
    with Store(PurePath("/store"), fs=files) as store:
        database = store.database("m")
        with pytest.raises(UsageError):
            database.append([Row("t", b"x")])
