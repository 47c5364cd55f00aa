from __future__ import annotations

import asyncio
import errno
import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import PurePath
from threading import Event
from typing import NoReturn, TypeVar

import pytest

from siltstone.broker.retained.log import Retained
from siltstone.broker.retained.spilled import whole
from siltstone.broker.snapshots.pace import LoopPace, ThreadPace
from siltstone.broker.snapshots.run import (
    OF_BROKER,
    OF_STORE,
    BegunSnapshot,
    Snapshots,
    begin_backup,
    begin_capture,
    bounded_contents,
    check_persistence,
    load_state,
    open_keeper,
)
from siltstone.clock import ManualClock
from siltstone.errors import ClosedError, CorruptionError, StorageFullError, UsageError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.mqtt.packets import Connect, Disconnect, PubAck, Publish
from siltstone.mqtt.properties import Properties
from siltstone.session.sending.delivery import Delivery, Run
from siltstone.snapshot.directory import Saved, list_snapshots, name_of
from siltstone.snapshot.format.contents import BoundedContents
from siltstone.snapshot.format.records import Record, WaitingWill
from siltstone.snapshot.loader import verify_snapshot
from siltstone.store.directory import Store
from siltstone.store.slab.settings import DatabaseSettings
from tests.support.broker_core import Wire
from tests.support.memory_core import MemoryCore
from tests.support.snapshots import (
    in_memory,
    names_in,
    queued,
    retained,
    session,
    subscription,
)

DATA = PurePath("/data")
DIRECTORY = DATA / "snapshots"
T = TypeVar("T")


class Office:
    """Snapshots on a disk in memory, of whatever a test says."""

    def __init__(self, *, interval: float = 0.0) -> None:
        self.memory = MemoryFileSystem()
        self.memory.make_directory(DATA)
        self.fs = FaultyFileSystem(self.memory)
        self.clock = ManualClock()
        loop = asyncio.get_running_loop()
        self.snapshots = Snapshots(
            partial(open_keeper, self.fs, self.clock, DATA, 2), interval=interval, loop=loop
        )
        self.ended = 0
        self.pace: LoopPace | ThreadPace | None = None
        self.use(lambda: iter([session("c")]))

    def use(self, records: Callable[[], Iterator[Record | None]]) -> None:
        self.snapshots.use(OF_BROKER, lambda: BegunSnapshot(records(), self._end, self.pace))

    def _end(self) -> None:
        self.ended += 1

    def serials(self) -> list[int]:
        if not self.memory.exists(DIRECTORY):
            return []
        return [serial for serial, _ in list_snapshots(self.memory, DIRECTORY)]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.get_running_loop().run_in_executor(None, lambda: None)


def test_one_is_written_when_asked_for_and_none_before() -> None:
    async def scenario() -> None:
        office = Office()
        running = asyncio.create_task(office.snapshots.run())
        await asyncio.wait({running}, timeout=0.0)
        assert office.serials() == []
        office.snapshots.ask()
        await office.until(lambda: office.ended == 1)
        assert office.serials() == [1]
        running.cancel()
        office.snapshots.close()

    asyncio.run(scenario())


def test_those_who_ask_while_one_is_written_share_the_next() -> None:
    async def scenario() -> None:
        office = Office()
        begun, may_go_on = Event(), Event()

        def slowly() -> Iterator[Record]:
            begun.set()
            assert may_go_on.wait(20)
            yield session("c")

        office.use(slowly)
        running = asyncio.create_task(office.snapshots.run())
        office.snapshots.ask()
        await office.until(begun.is_set)
        for _ in range(3):
            office.snapshots.ask()
        may_go_on.set()
        await office.until(lambda: office.ended == 2)
        await asyncio.wait({running}, timeout=0.0)
        assert office.serials() == [1, 2]
        assert not running.done()
        running.cancel()
        office.snapshots.close()

    asyncio.run(scenario())


def test_the_last_one_waits_for_one_that_is_being_written() -> None:
    async def scenario() -> None:
        office = Office()
        begun, may_go_on = Event(), Event()

        def slowly() -> Iterator[Record]:
            begun.set()
            assert may_go_on.wait(20)
            yield session("c")

        office.use(slowly)
        running = asyncio.create_task(office.snapshots.run())
        office.snapshots.ask()
        await office.until(begun.is_set)
        running.cancel()
        last = asyncio.create_task(office.snapshots.save())
        await asyncio.wait({last}, timeout=0.0)
        may_go_on.set()
        assert (await last).serial == 2
        assert office.ended == 2
        office.snapshots.close()

    asyncio.run(scenario())


def test_closing_cancels_one_that_no_thread_writes_yet(caplog: pytest.LogCaptureFixture) -> None:
    """The broker stops while the snapshot waits for a pause of the store."""

    async def scenario() -> None:
        office = Office()
        pause = asyncio.Event()
        prepared = asyncio.Event()
        ended = asyncio.Event()

        async def prepare() -> None:
            prepared.set()
            await pause.wait()

        begin = lambda: BegunSnapshot(iter([session("c")]), ended.set, None, prepare)  # noqa: E731
        office.snapshots.use(OF_STORE, begin)
        running = asyncio.create_task(office.snapshots.run())
        office.snapshots.ask()
        await prepared.wait()
        running.cancel()
        office.snapshots.close()
        pause.set()
        await ended.wait()
        assert office.serials() == []

    asyncio.run(scenario())
    gc.collect()
    assert [record.message for record in caplog.records] == []


def test_the_clock_asks_too() -> None:
    async def scenario() -> None:
        office = Office(interval=0.001)
        running = asyncio.create_task(office.snapshots.run())
        await office.until(lambda: office.ended >= 3)
        running.cancel()
        office.snapshots.close()

    asyncio.run(scenario())


def test_one_that_fails_is_told_and_the_next_is_tried(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        office = Office()
        office.fs.add(Fault(operation="sync", errno=errno.ENOSPC))
        running = asyncio.create_task(office.snapshots.run())
        office.snapshots.ask()
        await office.until(lambda: office.ended == 1)
        office.snapshots.ask()
        await office.until(lambda: office.ended == 2)
        assert office.serials() == [1]
        running.cancel()
        office.snapshots.close()

    asyncio.run(scenario())
    assert [record.message for record in caplog.records][:1] == ["snapshot_failed"]


def test_a_mistake_of_ours_ends_one_and_not_those_that_follow() -> None:
    async def scenario() -> None:
        office = Office()
        save = office.snapshots._save  # noqa: SLF001 - fails once
        failures = [ValueError("ours")]

        async def fail_once(*, is_last: bool) -> Saved:
            if failures:
                raise failures.pop()
            return await save(is_last=is_last)

        office.snapshots._save = fail_once  # type: ignore[method-assign] # noqa: SLF001
        running = asyncio.create_task(office.snapshots.run())
        office.snapshots.ask()
        await office.until(lambda: not failures)
        office.snapshots.ask()
        await office.until(lambda: office.ended == 1)
        assert not running.done()
        running.cancel()
        office.snapshots.close()

    asyncio.run(scenario())


def test_the_last_one_must_not_fail() -> None:
    async def scenario() -> None:
        office = Office()
        office.fs.add(Fault(operation="write_at", errno=errno.ENOSPC))
        try:
            with pytest.raises(StorageFullError):
                await office.snapshots.save()
        finally:
            office.snapshots.close()

    asyncio.run(scenario())


def test_the_directory_is_made_and_locked_when_it_is_first_needed() -> None:
    async def scenario() -> None:
        office = Office()
        office.snapshots.close()
        assert not office.memory.exists(DIRECTORY)

    asyncio.run(scenario())


def test_what_a_broker_has_in_memory_is_captured_and_loaded() -> None:
    core = MemoryCore()
    wire = core.connect("c", session_expiry_interval=100)
    wire.subscribe("a")
    wire.send(Disconnect())
    core.connect("p").publish("a", "1", qos=1, packet_id=1, retain=True)
    fs = MemoryFileSystem()
    fs.make_directory(DATA)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        snapshots = Snapshots(
            partial(open_keeper, fs, core.clock, DATA, 2), interval=0.0, loop=loop
        )
        snapshots.use(OF_BROKER, partial(begin_capture, core.broker, loop))
        await snapshots.save()
        snapshots.close()

    asyncio.run(scenario())
    assert core.broker.ready.watch is None
    again = MemoryCore()
    load_state(again.broker, open_keeper(fs, core.clock, DATA, 2), in_memory(), allow_empty=False)
    assert again.state() == core.state()


def waiting_messages(count: int) -> list[Record]:
    """Return a session for which messages of 1,000 bytes wait, and one that is in flight."""
    sent = queued("a", b"sent" * 250)
    return [
        session("c"),
        replace(sent, packet_id=7),
        *(replace(queued("a", b"%04d" % n * 250), packet_id=0) for n in range(count)),
    ]


@pytest.mark.parametrize(("memory_max", "spilled"), [(0, 50), (20_000, 39), (1 << 20, 0)])
def test_payloads_beyond_the_memory_wait_on_disk_and_come_back_whole(
    caplog: pytest.LogCaptureFixture, memory_max: int, spilled: int
) -> None:
    fs, core = MemoryFileSystem(), MemoryCore()
    fs.make_directory(DATA)
    keeper = open_keeper(fs, core.clock, DATA, 2)
    keeper.save(waiting_messages(50), source=OF_BROKER)
    contents = bounded_contents(fs, keeper.directory, memory_max)
    load_state(core.broker, keeper, contents, allow_empty=False)
    found = core.broker.registry.sessions["c"].outbox.waiting()
    assert sum(delivery.spilled is not None for delivery in found) == spilled
    assert [delivery.body() for delivery in found] == [b"%04d" % n * 250 for n in range(50)]
    told = [each for each in caplog.records if each.message == "snapshot_payloads_on_disk"]
    assert len(told) == (1 if spilled else 0)
    # What is on disk counts as what it takes in memory.
    assert sum(delivery.size() for delivery in found) < 50 * 300 + (50 - spilled) * 1000
    # The next snapshot has all of them again.
    with asyncio.Runner() as runner:
        begun = begin_capture(core.broker, runner.get_loop())
        saved = keeper.save(begun.records, source=OF_BROKER)
        begun.end()
    with fs.open(saved.path, writable=False) as file:
        assert verify_snapshot(file).counts["QueuedMessage"] == 51
    assert [name for name in names_in(fs, keeper.directory) if "payloads" in name] == []


@pytest.mark.parametrize(("memory_max", "spilled"), [(0, 50), (20_000, 37), (1 << 20, 0)])
def test_retained_payloads_beyond_the_memory_stay_on_disk_and_are_sent_whole(
    caplog: pytest.LogCaptureFixture, memory_max: int, spilled: int
) -> None:
    fs, core = MemoryFileSystem(), MemoryCore()
    fs.make_directory(DATA)
    keeper = open_keeper(fs, core.clock, DATA, 2)
    kept = [retained(f"r/{n:02}", b"%04d" % n * 250) for n in range(50)]
    keeper.save(kept, source=OF_BROKER)
    load_state(
        core.broker, keeper, bounded_contents(fs, keeper.directory, memory_max), allow_empty=False
    )
    held = [each for each in core.broker.retained.all() if isinstance(each, Retained)]
    in_memory_bytes = sum(len(message.payload) for message in held)
    assert in_memory_bytes == (50 - spilled) * 1000
    # For the limit of retained messages, a payload counts wherever it is.
    assert core.broker.retained.size_bytes == sum(len(each.topic) + 1001 for each in kept)
    told = [each for each in caplog.records if each.message == "snapshot_payloads_on_disk"]
    assert [each.__dict__["facts"]["messages"] for each in told] == ([spilled] if spilled else [])
    found = core.connect("c").subscribe("r/#")
    sent = {each.topic.decode(): each.payload for each in found if isinstance(each, Publish)}
    assert sent == {each.topic.decode(): each.payload for each in kept}
    # The next snapshot has all of them again.
    with asyncio.Runner() as runner:
        begun = begin_capture(core.broker, runner.get_loop())
        keeper.save(begun.records, source=OF_BROKER)
        begun.end()
    again = MemoryCore()
    load_state(again.broker, keeper, in_memory(), allow_empty=False)
    restored = {
        message.topic: message.payload for message in map(whole, again.broker.retained.all())
    }
    assert restored == {each.topic: each.payload for each in kept}


@pytest.mark.parametrize(("memory_max", "spilled"), [(145_000, 0), (144_999, 1), (0, 100)])
def test_the_payloads_of_waiting_messages_count_once(
    caplog: pytest.LogCaptureFixture, memory_max: int, spilled: int
) -> None:
    fs, core = MemoryFileSystem(), MemoryCore()
    fs.make_directory(DATA)
    keeper = open_keeper(fs, core.clock, DATA, 2)
    # A session, its subscription, and for each message a payload and the message itself.
    assert 3_000 + 900 + 100 * (1_000 + 60 + 351) == 145_000
    messages = [queued("a", b"%04d" % n * 250) for n in range(100)]
    keeper.save([session("c"), subscription("a"), *messages], source=OF_BROKER)
    contents = bounded_contents(fs, keeper.directory, memory_max)
    load_state(core.broker, keeper, contents, allow_empty=False)
    told = [each for each in caplog.records if each.message == "snapshot_payloads_on_disk"]
    assert [each.__dict__["facts"]["messages"] for each in told] == ([spilled] if spilled else [])
    outbox = core.broker.registry.sessions["c"].outbox
    assert [each.body() for each in outbox.waiting()] == [b"%04d" % n * 250 for n in range(100)]


def reloaded(
    records: list[Record], memory_max: int, caplog: pytest.LogCaptureFixture
) -> MemoryCore:
    """Return a core that has loaded a snapshot with so much memory, after another snapshot."""
    fs, core = MemoryFileSystem(), MemoryCore()
    fs.make_directory(DATA)
    keeper = open_keeper(fs, core.clock, DATA, 2)
    keeper.save(records, source=OF_BROKER)
    for _ in range(2):
        core = MemoryCore()
        contents = bounded_contents(fs, keeper.directory, memory_max)
        load_state(core.broker, keeper, contents, allow_empty=False)
        with asyncio.Runner() as runner:
            begun = begin_capture(core.broker, runner.get_loop())
            keeper.save(begun.records, source=OF_BROKER)
            begun.end()
    [*_, told] = [each for each in caplog.records if each.message == "snapshot_payloads_on_disk"]
    assert told.__dict__["facts"]["messages"] > 0
    return core


def come_back(core: MemoryCore, client_id: str) -> Wire:
    wire = core.wire()
    kept = Properties(session_expiry_interval=100)
    wire.send(
        Connect(version=wire.version, client_id=client_id, clean_start=False, properties=kept)
    )
    return wire


def publishes(wire: Wire) -> list[Publish]:
    return [packet for packet in wire.take() if isinstance(packet, Publish)]


def test_small_messages_beyond_the_memory_wait_on_disk_and_leave_in_order(
    caplog: pytest.LogCaptureFixture,
) -> None:
    records: list[Record] = []
    for name in ("c1", "c2"):
        records += (session(name), subscription("a"))
        records.extend(queued("a", b"%d" % n) for n in range(600))
    core = reloaded(records, 100_000, caplog)
    outbox = core.broker.registry.sessions["c2"].outbox
    assert [type(part) for part in outbox.waiting_parts()] == [Delivery, Run, Run, Run]
    assert outbox.queued == 600
    core.connect("p").publish("a", "600", 1, 1)
    for name in ("c1", "c2"):
        wire = come_back(core, name)
        payloads: list[bytes] = []
        while sent := publishes(wire):
            payloads.extend(each.payload for each in sent)
            wire.send(*[PubAck(packet_id=each.packet_id) for each in sent])
        assert payloads == [b"%d" % n for n in range(601)]


def test_small_messages_on_disk_that_cannot_be_read_stop_no_publisher(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = MemoryCore(queued_messages_max=600)
    fs = MemoryFileSystem()
    fs.make_directory(DATA)
    keeper = open_keeper(fs, core.clock, DATA, 2)
    messages = [queued("a", b"%d" % n) for n in range(600)]
    keeper.save([session("c"), subscription("a"), *messages], source=OF_BROKER)
    contents = bounded_contents(fs, keeper.directory, 0)
    load_state(core.broker, keeper, contents, allow_empty=False)
    file, _ = contents.put(b"")
    file.truncate(0)
    publisher, watcher = core.connect("p"), core.connect("watcher")
    watcher.subscribe("a")
    for number in range(600, 610):
        publisher.publish("a", str(number), 1, number)
    assert [each.payload for each in publishes(watcher)] == [b"%d" % n for n in range(600, 610)]
    told = [each for each in caplog.records if each.message == "waiting_lost"]
    assert [each.__dict__["facts"]["session"] for each in told] == ["c"]
    assert core.broker.registry.sessions["c"].outbox.dropped == 250


def test_messages_in_flight_beyond_the_memory_are_sent_again_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sent = [replace(queued("a", b"%04d" % n * 250), packet_id=n) for n in range(1, 11)]
    core = reloaded([session("c"), *sent], 0, caplog)
    outbox = core.broker.registry.sessions["c"].outbox
    assert [each.payload for each in outbox.deliveries()] == [b""] * 10
    again = publishes(come_back(core, "c"))
    assert [(each.packet_id, each.payload, each.dup) for each in again] == [
        (each.packet_id, each.payload, True) for each in sent
    ]


def test_a_will_beyond_the_memory_whose_time_passed_meanwhile_is_published_at_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    payload = b"gone" * 250
    due_us = ManualClock().now_us() - 20_000_000
    will = WaitingWill(topic=b"w", payload=payload, flags=1, properties=b"", due_us=due_us)
    watching = (session("watcher"), subscription("w"))
    core = reloaded([*watching, session("c"), will], 0, caplog)
    assert [each.payload for each in publishes(come_back(core, "watcher"))] == [payload]


def test_wills_beyond_the_memory_are_published_whole(caplog: pytest.LogCaptureFixture) -> None:
    payload = b"gone" * 250
    due_us = ManualClock().now_us() + 20_000_000
    will = WaitingWill(topic=b"w", payload=payload, flags=1, properties=b"", due_us=due_us)
    # The session ends after its will.
    core = reloaded(
        [retained("r", b"x" * 1000), replace(session("c"), expiry_seconds=1 << 31), will], 0, caplog
    )
    watcher = core.connect("watcher")
    watcher.subscribe("w")
    core.advance(19)
    assert publishes(watcher) == []
    core.advance(2)
    assert [each.payload for each in publishes(watcher)] == [payload]


def test_where_there_is_not_enough_memory_a_sentence_says_so() -> None:
    fs, core = MemoryFileSystem(), MemoryCore()
    fs.make_directory(DATA)
    keeper = open_keeper(fs, core.clock, DATA, 2)
    keeper.save(waiting_messages(3), source=OF_BROKER)

    def create() -> NoReturn:
        raise MemoryError

    with pytest.raises(UsageError, match=r"does not fit into memory; lower snapshot\.memory_max"):
        load_state(core.broker, keeper, BoundedContents(0, create), allow_empty=False)
    assert gc.isenabled()


def test_loading_tells_what_was_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    fs, clock = MemoryFileSystem(), ManualClock()
    fs.make_directory(DATA)
    keeper = open_keeper(fs, clock, DATA, 2)
    load_state(MemoryCore().broker, keeper, in_memory(), allow_empty=False)
    keeper.save([session("c")], source=OF_BROKER)
    keeper.save([session("c")], source=OF_BROKER)
    with fs.open(DIRECTORY / name_of(2), writable=True) as file:
        file.truncate(10)
    load_state(MemoryCore().broker, keeper, in_memory(), allow_empty=False)
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    assert [(level, text.split(" moved_to")[0].split(" file")[0]) for level, text in told] == [
        ("INFO", "snapshot_not_found"),
        ("ERROR", "snapshot_damaged"),
        ("WARNING", "snapshot_loaded"),
    ]


def test_without_a_valid_snapshot_an_empty_start_must_be_allowed() -> None:
    fs, clock = MemoryFileSystem(), ManualClock()
    fs.make_directory(DATA)
    keeper = open_keeper(fs, clock, DATA, 2)
    keeper.save([session("c")], source=OF_BROKER)
    with fs.open(DIRECTORY / name_of(1), writable=True) as file:
        file.truncate(0)
    with pytest.raises(CorruptionError, match="no snapshot is valid"):
        load_state(MemoryCore().broker, keeper, in_memory(), allow_empty=False)
    load_state(MemoryCore().broker, keeper, in_memory(), allow_empty=True)


def test_a_store_is_refused_by_a_broker_in_memory_and_the_other_way_round() -> None:
    fs, clock = MemoryFileSystem(), ManualClock()
    store = Store(DATA, fs=fs, clock=clock)
    check_persistence(fs, store, "snapshot")
    check_persistence(fs, store, "store")
    keeper = open_keeper(fs, clock, DATA, 2)
    check_persistence(fs, store, "store")
    keeper.save([], source=OF_STORE)
    check_persistence(fs, store, "store")
    keeper.save([], source=OF_BROKER)
    with pytest.raises(UsageError, match="/data/snapshots has the state of a broker"):
        check_persistence(fs, store, "store")
    fs.remove(DIRECTORY / name_of(2))
    check_persistence(fs, store, "store")
    store.create("m", DatabaseSettings(segment_bytes=64 * 1024))
    with pytest.raises(UsageError, match=r"/data has a store, .*databases=m"):
        check_persistence(fs, store, "snapshot")
    store.close()


def test_a_store_is_read_as_others_would() -> None:
    fs, clock = MemoryFileSystem(), ManualClock()
    with Store(DATA, fs=fs, clock=clock) as store:
        store.create("m", DatabaseSettings(segment_bytes=64 * 1024))
        records, end, pace, _ = begin_backup(MemoryCore().broker, fs, DATA)
        saved = open_keeper(fs, clock, DATA, 2).save(records, source=OF_STORE, pace=pace)
        end()
    with fs.open(saved.path, writable=False) as file:
        assert verify_snapshot(file).counts == {"StoredFile": 2, "FilePart": 3}


def test_the_collector_leaves_alone_what_was_loaded() -> None:
    fs, core = MemoryFileSystem(), MemoryCore()
    fs.make_directory(DATA)
    keeper = open_keeper(fs, core.clock, DATA, 2)
    keeper.save([session(f"c{number}") for number in range(1000)], source=OF_BROKER)
    before = gc.get_freeze_count()
    load_state(MemoryCore().broker, keeper, in_memory(), allow_empty=False)
    try:
        assert gc.get_freeze_count() - before > 1000
        assert gc.isenabled()
    finally:
        gc.unfreeze()


def test_the_last_one_and_the_one_that_it_waits_for_do_not_rest() -> None:
    async def scenario() -> None:
        office = Office()
        begun, may_go_on = Event(), Event()
        rests: list[float] = []
        office.pace = ThreadPace(office.clock.monotonic, rests.append, count().__next__)

        def slowly() -> Iterator[Record]:
            yield session("c")
            office.clock.advance(1.0)
            yield session("d")
            begun.set()
            assert may_go_on.wait(20)
            for number in range(100):
                office.clock.advance(1.0)
                yield session(str(number))

        office.use(slowly)
        running = asyncio.create_task(office.snapshots.run())
        office.snapshots.ask()
        await office.until(begun.is_set)
        running.cancel()
        office.pace = ThreadPace(office.clock.monotonic, rests.append, count().__next__)
        last = asyncio.create_task(office.snapshots.save())
        await asyncio.wait({last}, timeout=0.0)
        assert len(rests) == 1
        may_go_on.set()
        assert (await last).serial == 2
        assert len(rests) == 1
        office.snapshots.close()

    asyncio.run(scenario())


def test_closing_does_not_wait_for_a_loop_that_waits_for_it() -> None:
    async def scenario() -> None:
        office = Office()
        begun = asyncio.Event()

        def without_end() -> Iterator[None]:
            while True:
                office.clock.advance(1.0)
                begun.set()
                yield None

        loop = asyncio.get_running_loop()
        office.pace = LoopPace(loop, office.clock.monotonic, lambda _: None, lambda: 0)
        office.use(without_end)
        saving = asyncio.create_task(office.snapshots.save())
        await begun.wait()
        office.snapshots.close()
        with pytest.raises(ClosedError, match="the broker stopped"):
            await saving
        assert office.serials() == []
        assert office.ended == 1

    asyncio.run(scenario())
