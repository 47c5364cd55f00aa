"""Stores of several sites over one shared log: what counted is everywhere, once and in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import PurePath
from random import Random

import pytest

from siltstone.errors import SiltstoneError, UsageError
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.write.partition import Columns
from siltstone.store.shard.replicated.copying import Offer
from siltstone.store.shard.replicated.port import NotLeaderError
from siltstone.store.slab.manifest import SlabId
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


def split_whole(table: bytes) -> list[bytes]:
    """Return the names in a table of producers."""
    return [table[at : at + 16] for at in range(0, len(table), 25)]


def rows_of(database: Database) -> list[tuple[str, bytes]]:
    batches = database.read("#", columns=["serial", "topic", "value"])
    return [(row["topic"], row["value"]) for batch in batches for row in batch.to_pylist()]


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

    def start_cut(
        self, name: str, *, copies: int = 1 << 60, operations: int | None = None
    ) -> MemorySite:
        """Start a site that can copy only so many parts, or whose power is cut while it copies;
        return it when that has happened, or when it has copied.
        """
        site = self.sites[name] = self.logs.site(name)
        site.copies = copies
        site.cut_after = operations
        store = site.open(self.files[name])
        self.closing.callback(_close, store)
        self.databases[name] = store.ensure("m", SETTINGS)
        until(lambda: site.copying is not None, f"{name} begins to copy")
        return site

    def lead(self, name: str) -> None:
        log = self.sites[name].attached["m", 0]
        # A claim that knows an older term only is ignored.
        until(
            lambda: log.view.progress.sequence == len(self.logs.messages["m", 0]), f"{name} reads"
        )
        log.claim()
        until(lambda: log.view.leads, f"{name} leads")

    @property
    def alive(self) -> set[str]:
        return {name for name, site in self.sites.items() if not site.is_cut}

    def leader(self) -> str:
        # A site that was deposed may not have read it yet.
        views = {name: self.sites[name].attached["m", 0].view for name in self.alive}
        return max((view.term, name) for name, view in views.items() if view.leads)[1]

    def crash(self, name: str, rng: Random) -> None:
        """Cut the power of a site; what it had not synced is kept in part."""
        self.sites[name].crash()
        self.files[name] = self.files[name].crash_clone(rng)

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
        return rows_of(self.databases[name])

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
        # How far a site has synced must not show in the bytes.
        before = three.sites["a"].attached["m", 0]
        before.tick()
        until(lambda: before.view.synced == before.view.progress.sequence, "a has synced")  # noqa: B023
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


def test_without_a_cluster_a_replicated_database_can_be_made_a_local_one(three: Three) -> None:
    three.lead("a")
    three.append("a", b"1", b"2")
    three.databases["a"].seal()
    three.append("b", b"3")
    three.settle()
    log = three.sites["b"].attached["m", 0]
    log.tick()
    until(lambda: log.view.synced == log.view.progress.sequence, "b has synced")
    before, identity = three.rows("b"), three.databases["b"].origin
    files = three.files["b"].crash_clone()
    with Store(PurePath("/store"), fs=files) as store:
        assert store.make_local("m")
        assert not store.make_local("m")
        database = store.database("m")
        assert (rows_of(database), database.origin) == (before, identity)
        assert database.settings.backend == "local"
        database.append([Row("t", b"x")]).wait()
        database.seal()
    with Store(PurePath("/store"), fs=files) as store:
        assert rows_of(store.database("m")) == [*before, ("t", b"x")]
        assert "replication" not in [entry.name for entry in files.list(PurePath("/store/data/m"))]


@pytest.mark.parametrize("operations", range(12))
def test_a_power_cut_leaves_a_replicated_or_a_local_database(three: Three, operations: int) -> None:
    three.lead("a")
    three.append("a", b"1", b"2")
    three.settle()
    log = three.sites["b"].attached["m", 0]
    log.tick()
    until(lambda: log.view.synced == log.view.progress.sequence, "b has synced")
    before = three.rows("b")
    files = three.files["b"].crash_clone()
    store = Store(PurePath("/store"), fs=files)
    files.operations_left = operations
    with suppress(PowerCut):
        store.make_local("m")
    files = files.crash_clone()
    with Store(PurePath("/store"), fs=files) as store:
        store.make_local("m")
        assert rows_of(store.database("m")) == before


def test_generations_drops_and_settings_are_the_same_at_all_sites(three: Three) -> None:
    three.lead("a")
    leader = three.databases["a"]
    three.append("a", b"1")
    leader.seal()
    three.append("a", b"2")
    leader.configure(flush_interval=0.005, rotate_bytes=1 << 20)
    leader.seal()
    three.append("b", b"3")
    three.settle()
    leader.drop_slab(SlabId(0, 1))
    three.settle()
    manifests = [three.databases[name].slabs() for name in "abc"]
    assert [[slab.slab.generation for slab in slabs] for slabs in manifests] == [[2, 3]] * 3
    assert [three.databases[name].settings for name in "abc"] == [leader.settings] * 3
    assert [value for _, value in three.rows("b")] == [b"2", b"3"]
    assert three.rows("a") == three.rows("b") == three.rows("c")


def test_a_store_with_a_cluster_drops_local_databases_only() -> None:
    files, logs = MemoryFileSystem(), SharedLogs()
    with logs.site("a").open(files) as store:
        store.ensure("m", SETTINGS)
        store.ensure("own", DatabaseSettings(segment_bytes=64 * 1024))
        with pytest.raises(UsageError, match="'m' is replicated, and a cluster cannot drop it"):
            store.drop("m")
        store.drop("own")
        assert store.names() == ["m"]
    with Store(PurePath("/store"), fs=files) as store:
        store.drop("m")
        assert store.names() == []


def test_only_the_leader_drops_and_changes_settings(three: Three) -> None:
    three.lead("a")
    three.append("a", b"1")
    three.databases["a"].seal()
    three.settle()
    with pytest.raises(NotLeaderError, match="run this there: a"):
        three.databases["b"].drop_slab(SlabId(0, 1))
    with pytest.raises(NotLeaderError, match="run this there: a"):
        three.databases["b"].configure(flush_interval=0.5)
    with pytest.raises(NotLeaderError, match="run this there: a"):
        three.databases["b"].seal()
    assert three.rows("b") == three.rows("a")


def test_a_log_that_stores_messages_twice_changes_nothing(three: Three) -> None:
    three.sites["a"].repeats = three.sites["b"].repeats = True
    three.lead("a")
    three.append("b", *[b"%d" % i for i in range(10)])
    three.settle()
    assert [value for _, value in three.rows("c")] == [b"%d" % i for i in range(10)]


def test_what_a_cut_off_leader_had_taken_goes_to_the_next_one(three: Three) -> None:
    three.lead("a")
    three.append("a", b"1")
    three.sites["a"].is_cut = True
    ticket = three.databases["a"].append(Columns([b"t"], [b"2"]))
    three.lead("b")
    three.sites["a"].is_cut = False

    def is_done() -> bool:
        three.tick()
        return ticket.done

    until(is_done, "the call has an outcome")
    ticket.wait(0)
    three.append("a", b"3")
    three.settle()
    for name in "abc":
        assert [value for _, value in three.rows(name)] == [b"1", b"2", b"3"]


def test_the_end_of_a_producer_is_published_until_it_counts(three: Three) -> None:
    three.lead("a")
    three.append("b", b"1")
    three.settle()
    log = three.sites["a"].attached["m", 0]
    offers: list[Offer | None] = []
    log.ask_for_offer(offers.append)
    until(lambda: offers, "an offer")
    assert offers[0] is not None
    (producer,) = split_whole(offers[0].marked.producers.encode())
    # It is lost on the way to the log, and no row follows.
    three.sites["a"].is_cut = True
    log.retire([(producer[:8], None)])
    until(lambda: log.view.waiting, "it is published")
    three.sites["a"].is_cut = False

    def has_counted() -> bool:
        three.tick()
        return not log.view.waiting

    until(has_counted, "it has counted")
    # The site is not gone after all.
    three.append("b", b"2")
    three.settle()
    for name in "abc":
        assert [value for _, value in three.rows(name)] == [b"1", b"2"]


@pytest.mark.parametrize("seed", range(12))
def test_power_cuts_lose_nothing_and_repeat_nothing(three: Three, seed: int) -> None:
    rng = Random(seed)
    sent: list[bytes] = []
    three.lead("a")
    for step in range(6):
        values = [b"%d-%d" % (step, i) * rng.choice([1, 900]) for i in range(rng.randrange(1, 9))]
        three.append(rng.choice(sorted(three.alive)), *values)
        sent += values
        if rng.random() < 0.5:
            three.tick()
        if rng.random() < 0.3:
            leader = three.leader()
            three.databases[leader].seal()
        victim = rng.choice("abc")
        three.crash(victim, rng)
        survivor = rng.choice(sorted(three.alive))
        three.lead(survivor)
        three.append(survivor, b"between")
        sent.append(b"between")
        three.start(victim)
    three.settle()
    for name in "abc":
        found = [value for _, value in three.rows(name)]
        assert sorted(found) == sorted(sent)
    assert three.rows("a") == three.rows("b") == three.rows("c")


def test_a_call_whose_answer_was_lost_is_stored_once(three: Three) -> None:
    three.lead("a")
    three.sites["b"].loses_answers = True
    ticket = three.databases["b"].append(Columns([b"t"], [b"1"]))
    until(lambda: three.rows("a") != [], "the row is stored")
    assert not ticket.done
    three.sites["b"].loses_answers = False

    def is_done() -> bool:
        three.tick()
        return ticket.done

    until(is_done, "the call has an outcome")
    ticket.wait(0)
    three.append("b", b"2")
    three.settle()
    assert [value for _, value in three.rows("c")] == [b"1", b"2"]


def test_a_leader_publishes_again_what_the_log_has_lost(three: Three) -> None:
    three.lead("a")
    three.sites["a"].is_cut = True
    ticket = three.databases["a"].append(Columns([b"t"], [b"1"]))
    until(lambda: three.sites["a"].attached["m", 0].view.waiting > 0, "it is published")
    three.sites["a"].is_cut = False
    until(lambda: ticket.done, "it is published again")
    three.settle()
    assert [value for _, value in three.rows("b")] == [b"1"]


def test_a_leader_that_hears_the_other_sites_publishes_again_too(three: Three) -> None:
    three.lead("a")
    three.settle()
    three.sites["a"].is_cut = True
    log = three.sites["a"].attached["m", 0]
    ticket = three.databases["a"].append(Columns([b"t"], [b"1"]))
    until(lambda: log.view.waiting > 0, "it is published")
    three.sites["a"].is_cut = False

    def is_done() -> bool:
        # The others have read as much as this site, so each of their beats is compared.
        log.heard(three.sites["b"].attached["m", 0].view.progress)
        return ticket.done

    until(is_done, "it is published again although beats come all the time")
    three.settle()
    assert [value for _, value in three.rows("b")] == [b"1"]


def test_a_new_leader_knows_the_topics_that_the_other_one_learned(three: Three) -> None:
    topics = [b"x/%d/y" % i for i in range(6)]
    for round_, name in enumerate(["a", "b", "a", "c", "a"]):
        three.lead(name)
        three.databases[name].append(Columns(topics[: round_ + 2], [b"v"] * (round_ + 2))).wait(20)
    three.settle()
    streams = [
        [(info.pattern, info.rows) for info in three.databases[name].structure()] for name in "abc"
    ]
    assert streams[0] == streams[1] == streams[2]
    assert sum(rows for _, rows in streams[0]) == 20
    assert len(streams[0]) == len(topics)


def test_rows_wait_while_the_shared_log_is_nearly_full(three: Three) -> None:
    three.lead("a")
    log = three.sites["a"].attached["m", 0]
    log.limit_rows(is_full=True)
    tickets = [
        three.databases[name].append(Columns([b"t"], [name.encode()])) for name in ("a", "b")
    ]
    for _ in range(20):
        three.tick()
        _NEVER.wait(0.005)
    assert [ticket.done for ticket in tickets] == [False, False]
    # Everything else goes on: the generation ends.
    three.databases["a"].seal()
    log.limit_rows(is_full=False)

    def are_done() -> bool:
        three.tick()
        return all(ticket.done for ticket in tickets)

    until(are_done, "both are stored")
    three.settle()
    assert sorted(three.rows("b")) == [("t", b"a"), ("t", b"b")]


def test_a_leader_without_space_for_its_mark_says_nothing_wrong(three: Three) -> None:
    three.lead("a")
    three.append("a", b"1")
    three.append("b", b"2")
    log, files = three.sites["a"].attached["m", 0], three.files["a"]
    capacity = files.capacity_bytes
    # What is published counts later. Meanwhile, marks are due.
    three.sites["a"].is_cut = True
    tickets = [
        three.databases[name].append(Columns([b"t"], [value]))
        for name, value in (("a", b"3"), ("b", b"4"))
    ]
    until(lambda: log.view.waiting > 0, "it is published")
    # The segment has room for these rows, because its space was allocated before.
    files.capacity_bytes -= files.free_bytes(PurePath("/store"))

    def is_known() -> bool:
        three.tick()
        return log.view.is_full

    until(is_known, "the site knows that its disk is full")
    assert not any(ticket.done for ticket in tickets)
    three.sites["a"].is_cut = False

    def are_done() -> bool:
        three.tick()
        return all(ticket.done for ticket in tickets)

    until(are_done, "the calls have an outcome")
    for ticket in tickets:
        ticket.wait(0)
    three.append("a", b"5")
    three.append("b", b"6")
    assert log.view.is_full
    files.capacity_bytes = capacity
    three.tick()
    until(lambda: not log.view.is_full, "the site knows that there is space")
    three.settle()
    for name in "abc":
        assert sorted(value for _, value in three.rows(name)) == [b"%d" % i for i in range(1, 7)]
