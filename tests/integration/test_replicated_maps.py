"""Key-value databases of several sites over one shared log: every site has the same commits, and a
transaction of any site is committed once, or not at all.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import PurePath

import pytest

from siltstone.errors import (
    ClosedError,
    ConflictError,
    DiskError,
    NotFoundError,
    OutcomeUnknownError,
    PoisonedError,
    PreconditionError,
    RetryError,
    SiltstoneError,
    UsageError,
)
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.directory import Store
from siltstone.store.feed.reader import FeedReader
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.kv.api import Changes
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.log.write.partition import Columns
from siltstone.store.slab.manifest import SlabId
from siltstone.store.tx import catalog
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.tx.transaction import Transaction
from siltstone.store.writer.replication.sites.scrubbing import CopyState
from tests.support.shared_log import MemorySite, SharedLogs

SETTINGS = KeyValueSettings(backend="replicated", timed=False, feed_bytes=1 << 20)
KEY = ("kv/m", 0)
PATIENCE = 20.0
_NEVER = threading.Event()


def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, what
        _NEVER.wait(0.002)


class FailingEngine(MemoryEngine):
    """An engine whose next writes fail."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0

    def write(self, changes: Changes) -> None:
        if self.failures:
            self.failures -= 1
            raise DiskError(PurePath("/store"), "write", "scripted", errno=5)
        super().write(changes)

    def reopened(self) -> FailingEngine:
        engine = FailingEngine()
        vars(engine).update(vars(super().reopened()))
        return engine


class LoadingEngine(FailingEngine):
    """An engine that is looked at after each write of a copy that is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.look: Callable[[], None] | None = None

    @classmethod
    def of(cls, engine: FailingEngine) -> LoadingEngine:
        made = cls()
        vars(made).update(vars(engine))
        return made

    def write(self, changes: Changes) -> None:
        super().write(changes)
        if self.look is not None and (changes.ranges or "0.1" in changes.values):
            self.look()

    def reopened(self) -> LoadingEngine:
        engine = LoadingEngine.of(super().reopened())
        engine.look = self.look
        return engine


class Three:
    """Three sites with a store each. Their engines outlive their stores."""

    def __init__(self, closing: ExitStack, settings: KeyValueSettings = SETTINGS) -> None:
        self.logs = SharedLogs()
        self.settings = settings
        self.closing = closing
        self.files = {name: MemoryFileSystem() for name in "abc"}
        self.engines: dict[str, FailingEngine] = {}
        self.sites: dict[str, MemorySite] = {}
        self.databases: dict[str, KeyValueDatabase] = {}
        self.stores: dict[str, Store] = {}
        for name in "abc":
            self.start(name)

    def start(self, name: str) -> KeyValueDatabase:
        site = self.sites[name] = self.logs.site(name)

        def open_engine(_: PurePath) -> FailingEngine:
            before = self.engines.get(name)
            engine = self.engines[name] = FailingEngine() if before is None else before.reopened()
            return engine

        store = site.open(self.files[name], open_engine=open_engine)
        self.closing.callback(_close, store)
        self.stores[name] = store
        database = self.databases[name] = store.keyvalue("m", self.settings)
        return database

    def start_cut(self, name: str, operations: int) -> None:
        """Start a site, and wait until its power is cut after some operations of a copy."""
        site = self.sites[name] = self.logs.site(name)
        site.cut_after = operations

        def open_engine(_: PurePath) -> FailingEngine:
            engine = self.engines[name] = self.engines[name].reopened()
            return engine

        store = site.open(self.files[name], open_engine=open_engine)
        self.closing.callback(_close, store)
        store.keyvalue("m", self.settings)
        until(lambda: site.copying is not None, f"{name} begins to copy")
        assert site.copying is not None
        site.copying.join(PATIENCE)

    def crash(self, name: str) -> None:
        """End a site as a process that was killed: what its engine has written stays."""
        self.sites[name].crash()
        self.files[name] = self.files[name].kill_clone()
        self.engines[name] = self.engines[name].reopened()

    def lead(self, name: str) -> None:
        log = self.sites[name].attached[KEY]
        # A claim that knows an older term only is ignored.
        until(lambda: log.view.progress.sequence == len(self.logs.messages[KEY]), f"{name} reads")
        log.claim()
        until(lambda: log.view.leads, f"{name} leads")

    def nudge(self) -> None:
        for site in list(self.sites.values()):
            for log in list(site.attached.values()):
                log.tick()

    def settle(self) -> None:
        """Wait until all sites have read everything."""
        last = len(self.logs.messages[KEY])
        for site in self.sites.values():
            log = site.attached.get(KEY)
            if log is not None:
                until(lambda: log.view.progress.sequence == last, "all is read")  # noqa: B023

    def rows(self, name: str) -> dict[str, bytes]:
        return {row.topic: row.value for row in self.databases[name].read()}


def _close(store: Store) -> None:
    with suppress(SiltstoneError):
        store.close()


@pytest.fixture
def three() -> Iterator[Three]:
    with ExitStack() as closing:
        sites = Three(closing)
        done = threading.Event()

        def nudge() -> None:
            while not done.wait(0.02):
                sites.nudge()

        # As the beats of a site do.
        thread = threading.Thread(target=nudge)
        thread.start()
        closing.callback(thread.join)
        closing.callback(done.set)
        yield sites


def write(database: KeyValueDatabase, topic: str, value: bytes) -> int:
    with database.transaction() as transaction:
        transaction.write(topic, value)
    return transaction.serial


def increment(transaction: Transaction) -> int:
    count = int(transaction.get("count") or b"0") + 1
    transaction.write("count", b"%d" % count)
    return count


def test_a_commit_at_any_site_is_at_every_site(three: Three) -> None:
    three.lead("a")
    assert [write(three.databases[name], f"t/{name}", name.encode()) for name in "abc"] == [1, 2, 3]
    three.settle()
    expected = {"t/a": b"a", "t/b": b"b", "t/c": b"c"}
    assert [three.rows(name) for name in "abc"] == [expected] * 3


def test_a_transaction_reads_what_was_committed_at_another_site_before_it_began(
    three: Three,
) -> None:
    three.lead("a")
    for number in range(30):
        name = "abc"[number % 3]
        done = three.databases[name].transact(increment)
        assert done.value == number + 1


def test_a_transaction_conflicts_with_one_of_another_site(three: Three) -> None:
    three.lead("a")
    first = three.databases["b"].transaction()
    increment(first)
    second = three.databases["c"].transaction()
    increment(second)
    second.commit()
    with pytest.raises(ConflictError):
        first.commit()
    three.settle()
    assert [three.rows(name) for name in "abc"] == [{"count": b"1"}] * 3


def test_a_requirement_is_checked_at_the_leader(three: Three) -> None:
    three.lead("a")
    write(three.databases["a"], "t", b"1")
    transaction = three.databases["c"].transaction()
    transaction.require_present("t", value=b"2")
    transaction.write("t", b"3")
    with pytest.raises(PreconditionError) as refused:
        transaction.commit()
    assert refused.value.unmet[0].found == b"1"


def test_a_transaction_that_began_under_another_leader_conflicts(three: Three) -> None:
    three.lead("a")
    write(three.databases["b"], "count", b"5")
    transaction = three.databases["b"].transaction()
    assert increment(transaction) == 6
    three.lead("c")
    with pytest.raises(ConflictError, match="new leader"):
        transaction.commit()
    assert three.databases["b"].transact(increment).value == 6


def test_a_read_only_transaction_is_committed_only_in_its_term(three: Three) -> None:
    three.lead("a")
    write(three.databases["a"], "t", b"1")
    transaction = three.databases["b"].transaction()
    assert transaction.get("t") == b"1"
    three.lead("c")
    with pytest.raises(ConflictError):
        transaction.commit()


def test_a_deposed_leader_does_not_answer_reads_with_old_data(three: Three) -> None:
    three.lead("a")
    write(three.databases["a"], "t", b"old")
    # It reads and publishes nothing, as a process that is stopped, and does not know it.
    with three.logs.lock:
        log = three.sites["a"].attached.pop(KEY)
    three.lead("b")
    write(three.databases["b"], "t", b"new")
    transaction = three.databases["a"].transaction(timeout=0.2)
    assert transaction.get("t") == b"old"
    with pytest.raises(RetryError):
        transaction.commit()
    with three.logs.lock:
        start = log.view.progress.sequence
        for sequence, data in enumerate(three.logs.messages[KEY][start:], start + 1):
            log.deliver(sequence, data)
        three.sites["a"].attached[KEY] = log
    assert three.databases["a"].get("t") == b"new"


def test_a_deposed_leader_does_not_refuse_because_of_old_data(three: Three) -> None:
    three.lead("a")
    write(three.databases["a"], "t", b"old")
    with three.logs.lock:
        three.sites["a"].attached.pop(KEY)
    three.lead("b")
    write(three.databases["b"], "t", b"new")
    transaction = three.databases["a"].transaction(timeout=0.2)
    transaction.require_present("t", value=b"new")
    transaction.write("u", b"1")
    with pytest.raises(OutcomeUnknownError):
        transaction.commit()


def test_a_transaction_id_is_committed_once_over_a_failover(three: Three) -> None:
    three.lead("a")

    def add(transaction: Transaction) -> None:
        transaction.add("count", 1)

    database = three.databases["b"]
    assert database.transact(add, id="order 7").duplicate is False
    three.crash("a")
    three.lead("c")
    done = database.transact(add, id="order 7")
    assert (done.duplicate, done.serial) == (True, 1)
    assert database.outcome("order 7") == 1
    assert database.outcome("order 8") is None
    three.settle()
    assert three.rows("b") == three.rows("c") == {"count": (1).to_bytes(8, "big")}


def test_a_commit_whose_answer_is_lost_is_found_in_the_log(three: Three) -> None:
    three.lead("a")
    three.sites["b"].loses_answers = True
    assert write(three.databases["b"], "t", b"1") == 1
    three.settle()
    assert three.rows("b") == {"t": b"1"}


def test_a_refusal_whose_answer_is_lost_is_known_without_another_leader(three: Three) -> None:
    three.lead("a")
    write(three.databases["a"], "t", b"1")
    three.settle()
    b = three.sites["b"]
    transaction = three.databases["b"].transaction(timeout=PATIENCE)
    transaction.require_present("t", value=b"2")
    transaction.write("t", b"3")
    b.loses_answers = True
    ticket = transaction.submit()
    _NEVER.wait(0.05)
    assert not ticket.done
    b.loses_answers = False
    three.nudge()
    with pytest.raises(PreconditionError):
        ticket.wait(PATIENCE)
    assert three.rows("b") == {"t": b"1"}


def test_the_lost_answer_for_an_id_that_was_committed_before_is_given_again(three: Three) -> None:
    three.lead("a")
    b = three.databases["b"]
    first = b.transact(lambda begun: begun.add("count", 1), id="order 7")
    three.sites["b"].loses_answers = True
    transaction = b.transaction(id="order 7")
    transaction.add("count", 1)
    ticket = transaction.submit()
    _NEVER.wait(0.05)
    assert not ticket.done
    three.sites["b"].loses_answers = False
    three.nudge()
    ticket.wait(PATIENCE)
    assert (ticket.serial, ticket.duplicate) == (first.serial, True)


def test_what_a_dead_leader_did_not_store_is_committed_by_the_next_one(three: Three) -> None:
    three.lead("a")
    write(three.databases["a"], "t", b"0")
    # The call arrives, and nothing comes of it.
    three.sites["a"].is_cut = True
    ticket = three.databases["b"].append(Columns([b"t"], [b"1"]))
    _NEVER.wait(0.05)
    assert not ticket.done
    three.lead("c")
    ticket.wait(PATIENCE)
    three.settle()
    assert three.rows("c") == {"t": b"1"}
    three.sites["a"].is_cut = False
    until(lambda: three.rows("a") == {"t": b"1"}, "a follows")
    assert three.databases["a"].transact(increment).value == 1


def test_a_site_that_was_killed_follows_from_its_mark(three: Three) -> None:
    three.lead("a")
    for number in range(20):
        write(three.databases["b"], f"t/{number}", b"x")
    three.crash("c")
    for number in range(20, 40):
        write(three.databases["b"], f"t/{number}", b"x")
    three.start("c")
    three.settle()
    assert three.rows("c") == three.rows("a")
    assert len(three.rows("c")) == 40


def test_concurrent_counters_lose_nothing(three: Three) -> None:
    three.lead("a")
    acknowledged: list[int] = []
    unknown: list[int] = []

    def count(name: str) -> None:
        for number in range(25):
            try:
                three.databases[name].transact(increment, retries=1000)
                acknowledged.append(number)
            except OutcomeUnknownError:
                unknown.append(number)

    threads = [threading.Thread(target=count, args=(name,)) for name in "bcbc"]
    for thread in threads:
        thread.start()
    until(lambda: len(acknowledged) > 20, "some are counted")
    three.lead("b")
    until(lambda: len(acknowledged) > 50, "more are counted")
    three.lead("c")
    for thread in threads:
        thread.join(PATIENCE)
    three.settle()
    found = int(three.rows("b")["count"])
    assert len(acknowledged) + len(unknown) == 100
    assert len(acknowledged) <= found <= 100
    assert [three.rows(name) for name in "abc"] == [{"count": b"%d" % found}] * 3


def test_a_feed_has_the_same_changes_in_the_same_order_at_every_site(three: Three) -> None:
    three.lead("a")
    feeds = {name: three.databases[name].feed("#") for name in "abc"}
    for number in range(10):
        write(three.databases["abc"[number % 3]], f"t/{number % 4}", b"%d" % number)
    three.settle()
    seen: dict[str, list[tuple[int, str, bytes | None]]] = {}
    for name, feed in feeds.items():
        found = seen[name] = []
        while len(found) < 10:
            read = feed.next(PATIENCE)
            assert read is not None
            found += [(change.serial, change.topic, change.value) for change in read.changes()]
    assert seen["a"] == seen["b"] == seen["c"]
    assert [value for _, _, value in seen["a"]] == [b"%d" % number for number in range(10)]


def test_generations_drops_and_settings_are_the_same_at_every_site() -> None:
    settings = KeyValueSettings(backend="replicated", shards=2)
    with ExitStack() as closing:
        three = Three(closing, settings)
        for name, number in (("a", 0), ("b", 1)):
            log = three.sites[name].attached["kv/m", number]
            log.claim()
            until(lambda: log.view.leads, "it leads")  # noqa: B023
        for name in "abc":
            until(
                lambda: all(log.view.term for log in three.sites[name].attached.values()),  # noqa: B023
                "all know the leaders",
            )
        database = three.databases["c"]
        for shard in range(2):
            with database.transaction(shard=shard) as transaction:
                transaction.write("t/1", b"old", 1)
        database.seal()
        for shard in range(2):
            until(lambda: len(three.databases["c"].slabs()) == 4, "all are sealed")
            with database.transaction(shard=shard) as transaction:
                transaction.write("t/2", b"new", 2)
        database.configure(retain_seconds=3600.0)
        oldest = database.slabs()[0].id
        database.drop_slab(oldest)
        for other in three.databases.values():
            until(lambda: len(other.slabs()) == 3, "the slab is dropped")  # noqa: B023
            until(lambda: other.settings.retain_seconds == 3600.0, "the settings are there")  # noqa: B023
        assert len({str(other.slabs()) for other in three.databases.values()}) == 1


def trim(three: Three) -> None:
    """Remove all but the last message of the log."""
    with three.logs.lock:
        three.logs.first = len(three.logs.messages[KEY])


def add_two(transaction: Transaction) -> None:
    transaction.add("sum", 2)


def are_equal(three: Three, first: str, second: str) -> bool:
    """Return whether two sites have the same rows; one that loads a copy shows none."""
    with suppress(RetryError):
        return three.rows(first) == three.rows(second)
    return False


@pytest.mark.parametrize("wiped", [False, True])
def test_a_site_behind_the_trim_copies_the_shard(three: Three, wiped: bool) -> None:
    three.lead("a")
    for number in range(30):
        write(three.databases["c"], f"t/{number}", b"x" * 100)
    three.crash("c")
    if wiped:
        three.files["c"] = MemoryFileSystem()
        del three.engines["c"]
    with three.databases["b"].transaction() as transaction:
        transaction.delete("t/1")
        transaction.write("t/30", b"y")
    three.databases["b"].transact(add_two, id="order 9")
    three.settle()
    trim(three)
    three.start("c")
    until(lambda: are_equal(three, "c", "a"), "c has copied")
    copying = three.sites["c"].copying
    assert copying is not None
    copying.join(PATIENCE)
    assert three.sites["c"].failed is None
    assert len(three.rows("c")) == 31
    # It goes on with the log, leads, and remembers the ids.
    write(three.databases["a"], "after", b"1")
    three.settle()
    three.lead("c")
    done = three.databases["a"].transact(add_two, id="order 9", retries=100)
    assert done.duplicate
    assert three.databases["c"].transact(increment, retries=0).serial == done.serial + 2
    three.settle()
    assert three.rows("c") == three.rows("b")
    feed = three.databases["c"].feed("after")
    read = feed.next(PATIENCE)
    assert read is not None
    assert [change.topic for change in read.changes()] == ["after"]


def test_rows_are_not_read_while_a_copy_is_loaded(three: Three) -> None:
    three.lead("a")
    for number in range(10):
        write(three.databases["a"], f"t/{number}", b"x")
    three.settle()
    three.crash("c")
    # Nothing is committed meanwhile, so the serial of this site is that of the leader.
    for _ in range(5):
        three.databases["a"].transact(lambda begun: begun.get("t/1"))
    three.settle()
    trim(three)
    seen: list[object] = []

    def look(database: KeyValueDatabase) -> None:
        try:
            seen.append(len(list(database.read())))
        except RetryError as exc:
            seen.append(str(exc))

    loading = three.engines["c"] = LoadingEngine.of(three.engines["c"])
    loading.look = lambda: look(three.databases["c"])
    three.start("c")
    until(lambda: bool(seen) and are_equal(three, "c", "a"), "c has copied")
    assert set(seen) == {"the shard is being replaced by a copy from another site, try again"}
    assert len(three.rows("c")) == 10


def topics_of(feed: FeedReader) -> list[str]:
    read = feed.next(PATIENCE)
    assert read is not None
    assert read.lost == 0
    return [change.topic for change in read.changes()]


def test_a_feed_loses_nothing_while_a_copy_is_loaded(three: Three) -> None:
    three.lead("a")
    for number in range(3):
        write(three.databases["a"], f"t/{number}", b"x")
    three.settle()
    former = three.databases["c"]
    three.crash("c")
    for number in range(3):
        write(three.databases["a"], f"new/{number}", b"x")
    three.settle()
    trim(three)
    seen: list[str] = []
    live: list[FeedReader] = []

    def look() -> None:
        if live:
            return
        until(lambda: three.databases["c"] is not former, "c is open")
        database = three.databases["c"]
        live.append(database.feed("#", position=database.end_position()))
        with pytest.raises(RetryError, match="this site has not read up to the position yet"):
            database.feed("#", position=three.databases["a"].end_position())
        try:
            seen.extend(topics_of(database.feed("#")))
        except RetryError as exc:
            seen.append(str(exc))

    loading = three.engines["c"] = LoadingEngine.of(three.engines["c"])
    loading.look = look
    three.start("c")
    until(lambda: bool(seen) and are_equal(three, "c", "a"), "c has copied")
    assert seen == ["the shard is being replaced by a copy from another site, try again"]
    # No other commit announces it.
    new = ["new/0", "new/1", "new/2"]
    assert topics_of(live[0]) == new
    assert topics_of(three.databases["c"].feed("#")) == ["t/0", "t/1", "t/2", *new]


@pytest.mark.parametrize("operations", range(1, 40, 3))
def test_a_copy_that_is_cut_is_finished_at_the_next_start(operations: int, three: Three) -> None:
    three.lead("a")
    for number in range(10):
        write(three.databases["a"], f"t/{number}", b"x" * 100)
    three.crash("c")
    three.settle()
    for number in range(10, 13):
        write(three.databases["a"], f"t/{number}", b"x")
    trim(three)
    three.start_cut("c", operations)
    three.crash("c")
    three.start("c")
    until(lambda: are_equal(three, "c", "a"), "c has copied")


def test_a_replicated_map_needs_its_cluster(three: Three) -> None:
    engine = three.engines["a"].reopened()
    store = Store(PurePath("/other"), fs=MemoryFileSystem(), open_engine=lambda _: engine)
    with store, pytest.raises(UsageError, match="needs a cluster"):
        store.keyvalue("m", create=True)


def test_a_replicated_map_becomes_a_local_one_with_its_rows_and_ids(three: Three) -> None:
    three.lead("a")
    serial = three.databases["a"].transact(increment, id="order 7").serial
    write(three.databases["c"], "t/c", b"c")
    three.settle()
    identity = three.databases["b"].origin
    three.crash("b")
    engines = [three.engines["b"]]

    def open_engine(_: PurePath) -> FailingEngine:
        engines.append(engines[-1].reopened())
        return engines[-1]

    with Store(PurePath("/store"), fs=three.files["b"], open_engine=open_engine) as store:
        assert [store.make_keyvalue_local("m") for _ in range(2)] == [True, False]
        store.check_begins_anew()
        database = store.keyvalue("m", create=False)
        assert (database.settings.backend, database.origin) == ("local", identity)
        assert {row.topic: row.value for row in database.read()} == {"count": b"1", "t/c": b"c"}
        again = database.transact(increment, id="order 7")
        assert (again.duplicate, again.serial) == (True, serial)
        assert write(database, "t/new", b"new") == serial + 2
        with pytest.raises(UsageError, match="'m' is in use"):
            store.make_keyvalue_local("m")
        with pytest.raises(NotFoundError, match="'other' does not exist"):
            store.make_keyvalue_local("other")


def test_a_site_with_a_replicated_database_does_not_begin_a_cluster_anew(three: Three) -> None:
    three.lead("a")
    three.settle()
    three.crash("b")
    engine, files = three.engines["b"], three.files["b"]
    with Store(PurePath("/store"), fs=files, open_engine=lambda _: engine.reopened()) as store:
        with pytest.raises(UsageError, match="cannot begin anew: m; make them local"):
            store.check_begins_anew()
        store.drop_keyvalue("m")
        store.check_begins_anew()


def test_a_write_that_fails_while_following_stops_the_site_before_the_record(three: Three) -> None:
    three.lead("a")
    write(three.databases["a"], "t/0", b"x")
    three.settle()
    three.engines["c"].failures = 1
    for number in range(1, 4):
        write(three.databases["a"], f"t/{number}", b"x")
    until(lambda: three.databases["c"].failure() is not None, "c is poisoned")
    with pytest.raises(PoisonedError):
        write(three.databases["c"], "t/c", b"x")
    assert sorted(three.rows("c")) == ["t/0"]
    three.crash("c")
    three.start("c")
    three.settle()
    assert three.rows("c") == three.rows("a")
    assert len(three.rows("c")) == 4


def test_a_leader_whose_write_failed_leads_no_more(three: Three) -> None:
    three.lead("a")
    write(three.databases["a"], "t/0", b"x")
    log = three.sites["a"].attached[KEY]
    three.engines["a"].failures = 1
    with pytest.raises((OutcomeUnknownError, PoisonedError)):
        write(three.databases["a"], "t/1", b"x")
    until(lambda: not log.view.leads and log.view.is_full, "a gives the lead up")
    three.lead("b")
    write(three.databases["b"], "t/2", b"x")
    three.crash("a")
    three.start("a")
    three.settle()
    assert three.rows("a") == three.rows("b")
    assert sorted(three.rows("a")) == ["t/0", "t/1", "t/2"]


def test_a_drop_that_the_leader_cannot_write_is_done_at_the_next_start() -> None:
    with ExitStack() as closing:
        three = Three(closing, KeyValueSettings(backend="replicated"))
        three.lead("a")
        database = three.databases["a"]
        until(lambda: three.sites["a"].attached[KEY].view.leads, "a leads")
        with database.transaction() as transaction:
            transaction.write("t/1", b"old", 1)
        database.seal()
        oldest = database.slabs()[0].id
        three.engines["a"].failures = 1
        with pytest.raises(PoisonedError):
            database.drop_slab(oldest)
        assert database.failure() is not None
        three.crash("a")
        reopened = three.start("a")
        for other in (reopened, three.databases["b"]):
            until(lambda: len(other.slabs()) == 1, "the slab is dropped")  # noqa: B023


def test_a_question_for_an_id_that_has_no_answer_is_not_kept(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.lead("a")
    write(three.databases["a"], "t", b"1")
    three.settle()
    monkeypatch.setattr("siltstone.store.keyvalue.TIMEOUT", 0.2)
    three.sites["b"].loses_answers = True
    with pytest.raises(OutcomeUnknownError):
        three.databases["b"].outcome("order 1")
    assert three.sites["b"].attached[KEY].waits == 0
    three.sites["b"].loses_answers = False
    assert three.databases["b"].outcome("order 1") is None


def test_a_read_does_not_wait_for_a_record_that_never_counts(three: Three) -> None:
    three.lead("a")
    write(three.databases["a"], "t", b"1")
    three.settle()
    three.sites["a"].is_cut = True
    three.databases["a"].append(Columns([b"t"], [b"lost"]))
    committer = three.databases["a"]._queues[0].committer  # noqa: SLF001
    until(lambda: committer.serial == 2, "the record is under way")
    found: list[bytes | SiltstoneError | None] = []

    def read() -> None:
        try:
            found.append(three.databases["b"].get("t"))
        except SiltstoneError as exc:
            found.append(exc)

    thread = threading.Thread(target=read)
    thread.start()
    # It learns what the leader has, and waits for that.
    _NEVER.wait(0.1)
    assert not found
    three.lead("c")
    thread.join(PATIENCE)
    assert found == [b"1"]


def test_a_local_map_is_not_taken_for_the_replicated_one_of_its_name() -> None:
    logs, files, engines = SharedLogs(), MemoryFileSystem(), [MemoryEngine()]

    def open_engine(_: PurePath) -> MemoryEngine:
        engines.append(engines[-1].reopened())
        return engines[-1]

    with logs.site("a").open(files, open_engine=open_engine) as store:
        with store.keyvalue("m", KeyValueSettings(timed=False)).transaction() as transaction:
            transaction.write("t", b"1")
        with pytest.raises(UsageError, match="local key-value database 'm'"):
            store.keyvalue("m", SETTINGS)
    with logs.site("a").open(files, open_engine=open_engine) as store:
        with pytest.raises(UsageError, match="local key-value database 'm'"):
            store.keyvalue("m", SETTINGS)
        assert store.keyvalue("m", KeyValueSettings(timed=False)).get("t") == b"1"
        store.drop_keyvalue("m")
        assert store.keyvalue_names() == []


def test_a_known_database_is_opened_without_the_other_sites(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.lead("a")
    write(three.databases["a"], "t", b"1")
    three.settle()
    three.crash("c")

    def away(*_: object) -> None:
        raise OutcomeUnknownError("too few sites are there")

    monkeypatch.setattr(MemorySite, "found", away)
    assert [row.value for row in three.start("c").read()] == [b"1"]


def test_a_database_whose_creation_was_cut_asks_the_cluster_again() -> None:
    logs, files = SharedLogs(), MemoryFileSystem()
    with logs.site("a").open(files, open_engine=lambda _: MemoryEngine()) as store:
        store.keyvalue("m", SETTINGS)
    # Nothing but the directory is left.
    site = logs.site("a")
    with site.open(files, open_engine=lambda _: MemoryEngine()) as store:
        assert store.keyvalue("m", SETTINGS).settings.backend == "replicated"
        assert KEY in site.attached


def identity_of(database: KeyValueDatabase) -> bytes:
    return bytes.fromhex(database.origin.text)


def test_a_replicated_map_is_dropped_at_all_sites(three: Three) -> None:
    three.lead("a")
    write(three.databases["b"], "t", b"1")
    identity = identity_of(three.databases["b"])
    three.stores["b"].drop_keyvalue("m")
    assert three.logs.dropped == {identity}
    assert three.stores["b"].keyvalue_names() == []
    # Each other site learns of it, whether it has the database open or not.
    three.crash("c")
    c = three.sites["c"] = three.logs.site("c")
    engine = three.engines["c"].reopened()
    with c.open(three.files["c"], open_engine=lambda _: engine.reopened()) as store:
        for name, each in (("a", three.stores["a"]), ("c", store)):
            assert each.drop_copy("m", identity), name
            assert not each.drop_copy("m", identity), name
            assert each.keyvalue_names() == [], name
    with pytest.raises(ClosedError):
        three.databases["a"].get("t")


def test_a_site_may_delete_its_copy_before_its_command_has_ended(
    three: Three, monkeypatch: pytest.MonkeyPatch
) -> None:
    three.lead("a")
    store, drop = three.stores["a"], MemorySite.drop

    def drop_here_too(site: MemorySite, database: str, identity: bytes) -> None:
        drop(site, database, identity)
        assert store.drop_copy("m", identity)

    monkeypatch.setattr(MemorySite, "drop", drop_here_too)
    store.drop_keyvalue("m")
    assert store.keyvalue_names() == []


def test_a_map_that_was_created_again_is_not_dropped_with_the_former_one(three: Three) -> None:
    three.lead("a")
    former = identity_of(three.databases["a"])
    for name in "abc":
        three.stores[name].drop_copy("m", former)
    three.logs.founded.clear()
    three.logs.messages.clear()
    three.engines.clear()
    again = three.databases["a"] = three.stores["a"].keyvalue("m", SETTINGS)
    assert identity_of(again) != former
    assert not three.stores["a"].drop_copy("m", former)
    three.lead("a")
    write(again, "t", b"2")
    assert three.rows("a") == {"t": b"2"}


@pytest.mark.parametrize("is_open", [False, True])
def test_a_map_that_was_made_local_is_not_dropped_with_the_shared_one(
    three: Three, is_open: bool
) -> None:
    """It may have been restored from a backup, because it was dropped by mistake."""
    three.lead("a")
    write(three.databases["a"], "t", b"1")
    identity = identity_of(three.databases["a"])
    three.settle()
    three.stores["c"].close()
    engine = three.engines["c"].reopened()
    settings = Changes()
    catalog.put_settings(settings, replace(SETTINGS, backend="local"))
    engine.write(settings)
    site = three.sites["c"] = three.logs.site("c")
    with site.open(three.files["c"], open_engine=lambda _: engine.reopened()) as store:
        if is_open:
            store.keyvalue("m", create=False)
        assert not store.drop_copy("m", identity)
        assert [row.value for row in store.keyvalue("m", create=False).read()] == [b"1"]


def test_a_map_is_not_dropped_while_the_cluster_does_not_answer(three: Three) -> None:
    three.lead("a")
    write(three.databases["b"], "t", b"1")
    three.settle()
    three.sites["b"].is_cut = True
    with pytest.raises(OutcomeUnknownError):
        three.stores["b"].drop_keyvalue("m")
    assert three.stores["b"].keyvalue_names() == ["m"]
    assert three.rows("b") == {"t": b"1"}


def test_a_local_map_is_dropped_without_the_cluster() -> None:
    logs = SharedLogs()
    with logs.site("a").open(MemoryFileSystem(), open_engine=lambda _: MemoryEngine()) as store:
        store.keyvalue("own", KeyValueSettings())
        store.drop_keyvalue("own")
        assert store.keyvalue_names() == []
    assert logs.dropped == set()


def state_of(three: Three, name: str, index: int) -> CopyState:
    """Return the state of a site at an index. What computes it may wait for the time to pass."""
    found: list[CopyState] = []

    def is_found() -> bool:
        state = three.sites[name].attached[KEY].state(index, 1 << 40)
        three.nudge()
        found.extend([] if state is None else [state])
        return bool(found)

    until(is_found, f"the state of {name}")
    return found[0]


def test_all_sites_have_the_same_state_at_one_index() -> None:
    settings = replace(SETTINGS, timed=True)
    with ExitStack() as closing:
        three = Three(closing, settings)
        three.lead("a")
        for number in range(5):
            write(three.databases["b"], f"t/{number}", b"x")
        three.databases["b"].transact(lambda begun: begun.write("id", b"1"), id="order 1")
        three.databases["c"].seal()
        three.settle()
        write(three.databases["c"], "t/1", b"y")
        three.settle()
        three.databases["a"].drop_slab(SlabId(0, 1))
        three.databases["a"].configure(feed_bytes=1 << 21)
        three.settle()
        three.lead("b")
        write(three.databases["c"], "t/2", b"z")
        three.settle()
        index = three.sites["a"].attached[KEY].view.progress.index
        states = [state_of(three, name, index) for name in "abc"]
        assert states[0] == states[1] == states[2]
        assert (states[0].index, len(states[0].digest)) == (index, 16)


def test_a_state_under_load_is_of_the_index_that_was_asked_for(three: Three) -> None:
    three.lead("a")
    write(three.databases["a"], "t", b"0")
    three.settle()
    index = three.sites["a"].attached[KEY].view.progress.index + 10
    logs = [three.sites[name].attached[KEY] for name in "abc"]
    assert [log.state(index, 1 << 40) for log in logs] == [None, None, None]
    for number in range(30):
        write(three.databases["b"], f"t/{number}", b"x")
    states = [state_of(three, name, index) for name in "abc"]
    assert states[0] == states[1] == states[2]
    assert states[0].index == index


@pytest.mark.parametrize("family", ["default", "0.1", "changes"])
def test_a_state_tells_that_one_byte_differs(three: Three, family: str) -> None:
    three.lead("a")
    write(three.databases["a"], "t", b"0")
    three.settle()
    engine = three.engines["c"]
    view = engine.view(family)
    start, stop = {
        "default": catalog.settings_range(),
        "0.1": (b"", b"\xff" * 9),
        "changes": (b"", b"\xff" * 9),
    }[family]
    key, value = view.items(start, stop, 9)[-1]
    changes = Changes()
    changes.put(family, key, value[:-1] + bytes([value[-1] ^ 1]))
    engine.write(changes)
    index = three.sites["a"].attached[KEY].view.progress.index
    a, b, c = (state_of(three, name, index) for name in "abc")
    assert a == b
    assert a.index == c.index
    assert a.digest != c.digest
