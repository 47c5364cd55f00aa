"""The shared logs of a database begin with the rows that one site has in its files."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import PurePath
from random import Random

import pytest

from siltstone.errors import SiltstoneError, UsageError
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.log.check.verify import verify_database
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.write.partition import Columns
from siltstone.store.shard.replicated.founding import SKIPPED_SERIALS
from siltstone.store.slab.settings import DatabaseSettings
from tests.support.shared_log import MemorySite, SharedLogs

PATIENCE = 20.0
PLACE = PurePath("/store")
LOCAL = DatabaseSettings(segment_bytes=64 * 1024)
_NEVER = threading.Event()
Known = list[tuple[int, int, str, bytes]]


def until(holds: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what
        _NEVER.wait(0.002)


def rows_of(database: Database) -> Known:
    batches = database.read("#", columns=["serial", "timestamp", "topic", "value"])
    return [
        (row["serial"], row["timestamp"], row["topic"], row["value"])
        for batch in batches
        for row in batch.to_pylist()
    ]


def values_of(database: Database) -> list[bytes]:
    return [value for *_, value in rows_of(database)]


def filled(files: MemoryFileSystem, settings: DatabaseSettings = LOCAL) -> Known:
    """Create a local database with several generations; return its rows."""
    with Store(PLACE, fs=files) as store:
        database = store.create("m", settings)
        for generation in range(2):
            for number in range(6):
                value = b"%d-%d" % (generation, number)
                database.append([Row(f"t/{number % 3}", value)]).wait()
            if not generation:
                database.seal()
        return rows_of(database)


class Cluster:
    """Sites that are started one after another."""

    def __init__(self, closing: ExitStack, *, epoch: int = 1) -> None:
        self._closing = closing
        self.logs = SharedLogs()
        self.logs.epoch = epoch
        self.sites: dict[str, MemorySite] = {}
        self.databases: dict[str, Database] = {}

    def start(self, name: str, files: MemoryFileSystem) -> Database:
        site = self.sites[name] = self.logs.site(name)
        store = site.open(files)
        self._closing.callback(_close, store)
        settings = DatabaseSettings(backend="replicated", segment_bytes=64 * 1024)
        database = self.databases[name] = store.ensure("m", settings)
        return database

    def lead(self, name: str) -> None:
        for key in self.logs.messages:
            log = self.sites[name].attached[key]
            log.claim()
            until(lambda log=log: log.view.leads, f"{name} leads")  # type: ignore[misc]

    def append(self, name: str, value: bytes) -> None:
        ticket = self.databases[name].append(Columns([b"t/9"], [value]))

        def is_stored() -> bool:
            self.tick()
            return ticket.done

        until(is_stored, "it is stored")
        ticket.wait(0)

    def tick(self) -> None:
        for site in list(self.sites.values()):
            for log in list(site.attached.values()):
                log.tick()


def _close(store: Store) -> None:
    with suppress(SiltstoneError):
        store.close()


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def imported(files: MemoryFileSystem) -> bool:
    with Store(PLACE, fs=files) as store:
        return store.make_replicated("m")


def check_sites(cluster: Cluster, files: MemoryFileSystem, before: Known) -> None:
    """Start the site with the rows, then two new ones; all have the same rows, and go on."""
    cluster.start("a", files)
    cluster.lead("a")
    others = {name: MemoryFileSystem() for name in "bc"}
    for name in "bc":
        cluster.start(name, others[name])
        until(lambda name=name: len(rows_of(cluster.databases[name])) >= len(before), "copied")  # type: ignore[misc]
    cluster.append("b", b"after")
    cluster.append("a", b"last")
    for name in "abc":
        until(
            lambda name=name: len(rows_of(cluster.databases[name])) == len(before) + 2,  # type: ignore[misc]
            f"{name} has all rows",
        )
        rows = rows_of(cluster.databases[name])
        assert rows[: len(before)] == before
        assert [value for *_, value in rows[len(before) :]] == [b"after", b"last"]
    assert cluster.databases["b"].origin == cluster.databases["a"].origin


def test_a_local_database_becomes_a_replicated_one_with_serials_and_times(
    closing: ExitStack,
) -> None:
    files = MemoryFileSystem()
    before = filled(files)
    assert imported(files)
    assert not imported(files)
    with Store(PLACE, fs=files) as store:
        assert store.founding() == ["m"]
        assert rows_of(store.database("m")) == before
    check_sites(Cluster(closing), files, before)
    with Store(PLACE, fs=files.crash_clone(), read_only=True) as store:
        assert store.founding() == []


def test_a_local_database_of_several_shards_becomes_a_replicated_one(closing: ExitStack) -> None:
    files = MemoryFileSystem()
    before = filled(files, DatabaseSettings(shards=3, segment_bytes=64 * 1024))
    assert imported(files)
    cluster = Cluster(closing)
    cluster.start("a", files)
    cluster.lead("a")
    database = cluster.start("b", MemoryFileSystem())
    until(lambda: len(rows_of(database)) == len(before), "b has copied all shards")
    assert sorted(rows_of(database)) == sorted(before)


def test_an_import_can_be_cancelled_before_the_site_starts() -> None:
    files = MemoryFileSystem()
    before = filled(files)
    assert imported(files)
    with Store(PLACE, fs=files) as store:
        assert store.make_local("m")
        assert store.founding() == []
        store.database("m").append([Row("t", b"x")]).wait()
        assert rows_of(store.database("m"))[:-1] == before


def test_another_database_of_this_name_in_the_cluster_refuses_the_import(
    closing: ExitStack,
) -> None:
    files = MemoryFileSystem()
    before = filled(files)
    assert imported(files)
    cluster = Cluster(closing)
    cluster.start("b", MemoryFileSystem())
    with pytest.raises(UsageError, match="another database"):
        cluster.start("a", files)
    with Store(PLACE, fs=files.crash_clone()) as store:
        assert store.make_local("m")
        assert rows_of(store.database("m")) == before


@pytest.mark.parametrize("operations", range(0, 60, 3))
def test_a_power_cut_while_it_is_imported_loses_nothing(
    closing: ExitStack, operations: int
) -> None:
    files = MemoryFileSystem()
    before = filled(files)
    store = Store(PLACE, fs=files)
    files.operations_left = operations
    with suppress(PowerCut):
        store.make_replicated("m")
    files = files.crash_clone(Random(operations))
    with Store(PLACE, fs=files) as store:
        assert rows_of(store.database("m")) == before
    imported(files)
    check_sites(Cluster(closing), files, before)


@pytest.mark.parametrize("operations", range(0, 40, 2))
def test_a_power_cut_while_the_logs_begin_loses_nothing(
    closing: ExitStack, operations: int
) -> None:
    files = MemoryFileSystem()
    before = filled(files)
    assert imported(files)
    cluster = Cluster(closing)
    files.operations_left = operations
    with suppress(PowerCut):
        cluster.start("a", files)
    cluster.sites["a"].crash()
    check_sites(cluster, files.crash_clone(Random(operations)), before)


def _left_behind(closing: ExitStack) -> tuple[MemoryFileSystem, MemoryFileSystem, Known, Known]:
    """Return the files of two sites of a cluster that is lost, and their rows: the second one has
    not read the last row.
    """
    cluster = Cluster(closing)
    files = {name: MemoryFileSystem() for name in "ab"}
    for name in "ab":
        cluster.start(name, files[name])
    cluster.lead("a")
    for number in range(5):
        cluster.append("a", b"%d" % number)
    until(lambda: len(rows_of(cluster.databases["b"])) == 5, "b has all rows")
    log = cluster.sites["b"].attached["m", 0]
    cluster.tick()
    until(lambda: log.view.synced == log.view.progress.sequence, "b has synced")
    cluster.sites["b"].crash()
    short = files["b"].crash_clone(Random(1))
    cluster.append("a", b"5")
    log = cluster.sites["a"].attached["m", 0]
    cluster.tick()
    until(lambda: log.view.synced == log.view.progress.sequence, "a has synced")
    rows = rows_of(cluster.databases["a"])
    cluster.sites["a"].crash()
    return files["a"].crash_clone(Random(2)), short, rows, rows[:-1]


def begun(files: MemoryFileSystem, *, follows: bool) -> None:
    with Store(PLACE, fs=files) as store:
        assert store.begin_anew("m", follows=follows)


def test_a_cluster_begins_anew_with_the_rows_of_the_best_site(closing: ExitStack) -> None:
    best, short, rows, _ = _left_behind(closing)
    begun(best, follows=False)
    begun(short, follows=True)
    cluster = Cluster(closing, epoch=2)
    cluster.start("a", best)
    cluster.lead("a")
    for name, files in (("b", short), ("d", MemoryFileSystem())):
        cluster.start(name, files)
    cluster.append("b", b"6")
    for name in "abd":
        database = cluster.databases[name]
        until(lambda database=database: len(rows_of(database)) == 7, f"{name} has all rows")  # type: ignore[misc]
        assert rows_of(database)[:6] == rows
        assert values_of(database) == [b"%d" % number for number in range(7)]
    for files in (best, short):
        copy = files.crash_clone()
        assert not [
            finding
            for finding in verify_database(copy, PLACE / "data/m", quarantine=PLACE / "q").findings
            if finding.severity == "damage"
        ]


def test_serials_of_lost_rows_are_not_used_again(closing: ExitStack) -> None:
    _, short, rows, left = _left_behind(closing)
    begun(short, follows=False)
    cluster = Cluster(closing, epoch=2)
    database = cluster.start("b", short)
    cluster.lead("b")
    cluster.append("b", b"new")
    found = rows_of(database)
    assert found[:5] == left
    # The site that has the lost row gave it the next serial.
    assert rows[5][0] == left[4][0] + 1
    assert found[5][0] >= left[4][0] + SKIPPED_SERIALS
    assert found[5][3] == b"new"


def test_a_site_of_an_earlier_epoch_is_refused(closing: ExitStack) -> None:
    best, short, *_ = _left_behind(closing)
    begun(best, follows=False)
    cluster = Cluster(closing, epoch=2)
    cluster.start("a", best)
    with pytest.raises(UsageError, match="another epoch"):
        cluster.start("b", short)


@pytest.mark.parametrize("operations", range(0, 60, 3))
def test_a_power_cut_while_it_begins_anew_loses_nothing(
    closing: ExitStack, operations: int
) -> None:
    best, _, rows, _ = _left_behind(closing)
    store = Store(PLACE, fs=best)
    best.operations_left = operations
    with suppress(PowerCut):
        store.begin_anew("m", follows=False)
    best = best.crash_clone(Random(operations))
    begun(best, follows=False)
    cluster = Cluster(closing, epoch=2)
    best.operations_left = operations
    with suppress(PowerCut):
        cluster.start("a", best)
    cluster.sites["a"].crash()
    database = cluster.start("a", best.crash_clone(Random(operations)))
    cluster.lead("a")
    cluster.append("a", b"6")
    assert rows_of(database)[:6] == rows
    assert values_of(database)[6:] == [b"6"]
