"""Commits on the loop beside those of the thread of a shard, in random histories.

The loop and the thread take turns with the layout. The first test has a layout that notices two
threads at once. The second one has a real store under a batcher of the broker, and faults: a full
disk, a quota, a failed sync, a power cut.
"""

from __future__ import annotations

import errno
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from random import Random
from threading import Event, Thread

from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.broker.publish.append import AppendBatcher
from siltstone.clock import SystemClock
from siltstone.errors import (
    ClosedError,
    OutcomeUnknownError,
    PoisonedError,
    RetryError,
    SiltstoneError,
    StorageFullError,
)
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.mqtt.publish import PublishBatch
from siltstone.store.database import Database, Durability
from siltstone.store.directory import Store
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.queue import Queued, ShardWriter
from siltstone.store.writer.ticket import Outcome, Ticket

PATH = PurePath("/data")
NAME = "messages"
PATIENCE_SECONDS = 30.0
# Waiting for it lets other threads run.
NEVER = Event()
seeds = st.integers(0, 2**32)


# The queue.


@dataclass(frozen=True)
class Control:
    flush_interval: float = 0.0
    idle_flush_interval: float = 0.0
    max_items: int = 8
    pending_bytes_max: int = 1_000


class Note(Queued):
    """A call of one thread, with its number there."""

    def __init__(self, thread: int, number: int) -> None:
        super().__init__()
        self.thread = thread
        self.number = number
        self.size_bytes = 1
        self.promise = Ticket(1, 1)


class Watched:
    """A layout that records its calls, fails now and then, and notices two threads at once."""

    batch_items_max = 5
    batch_bytes_max = 1_000

    def __init__(self, rng: Random) -> None:
        # With an interval, the thread sleeps while calls wait.
        interval = rng.choice((0.0, 0.002))
        self.flush_settings = Control(flush_interval=interval, idle_flush_interval=interval)
        self.rng = rng
        self.stored: list[tuple[int, int]] = []
        self.refused_calls = 0
        self.crowds = 0
        self.poisoned = False
        self.mistake_at = rng.choice((-1, -1, rng.randrange(60)))
        self.poison_at = rng.choice((-1, -1, rng.randrange(60)))
        self._is_used = False

    @contextmanager
    def _used(self) -> Iterator[None]:
        self.crowds += self._is_used
        self._is_used = True
        if self.rng.random() < 0.2:
            NEVER.wait(0.0001)
        yield
        self._is_used = False

    def check(self) -> None:
        if self.poisoned:
            raise PoisonedError("a sync failed")

    def is_poisoned(self) -> bool:
        return self.poisoned

    def refused(self, call: Note) -> None:
        self.refused_calls += 1

    def commit(self, batch: list[Note]) -> list[Outcome | Exception | None]:
        with self._used():
            if 0 <= self.mistake_at <= len(self.stored):
                self._is_used = False
                raise ZeroDivisionError("on purpose")
            if 0 <= self.poison_at <= len(self.stored):
                self.poisoned = True
                return [PoisonedError("the sync failed")] * len(batch)
            if self.rng.random() < 0.1:
                return [StorageFullError(PATH, needed_bytes=1)] * len(batch)
            self.stored += [(call.thread, call.number) for call in batch]
            return [None] * len(batch)

    def idle_seconds(self) -> float | None:
        return self.rng.choice((None, 0.0005))

    def look_after(self) -> None:
        with self._used():
            pass

    def release(self) -> SiltstoneError | None:
        with self._used():
            return None

    def fail(self, cause: Exception) -> tuple[SiltstoneError, SiltstoneError]:
        # The real layout is poisoned before its error is known.
        self.poisoned = True
        return OutcomeUnknownError(str(cause)), PoisonedError("the thread has ended")


@dataclass
class Work:
    """What one thread asked of the queue."""

    calls: list[Note] = field(default_factory=list)
    here: int = 0
    # For each order: how many calls of the thread were submitted before it, and were done by then.
    orders: list[tuple[int, int]] = field(default_factory=list)


def work(writer: ShardWriter[Note], number: int, rng: Random, done: Work) -> None:
    """Submit calls, commit some of them here, and give orders; stop at the first refusal."""
    mine: list[Note] = []
    for index in range(40):
        note = Note(number, index)
        kind = rng.random()
        try:
            if kind < 0.5:
                if writer.commit_here(note, note.promise):
                    done.here += 1
                    mine.append(note)
                    done.calls.append(note)
                    continue
                writer.check_open()
            if kind < 0.9:
                writer.submit(note, note.promise, None)
                mine.append(note)
                done.calls.append(note)
            else:
                count = len(mine)
                writer.order(
                    lambda count=count: done.orders.append(  # type: ignore[misc]
                        (count, sum(each.promise.done for each in mine[:count]))
                    )
                )
        except (PoisonedError, ClosedError):
            return
        if rng.random() < 0.3:
            NEVER.wait(rng.random() * 0.0004)


@settings(deadline=None)
@given(seed=seeds)
def test_callers_and_the_thread_take_turns_and_every_call_ends_once(seed: int) -> None:
    rng = Random(seed)
    layout = Watched(rng)
    writer: ShardWriter[Note] = ShardWriter("test", 0, layout, SystemClock())
    writer.start()
    everything = [Work() for _ in range(3)]
    threads = [
        Thread(target=work, args=(writer, number, Random(f"{seed}/{number}"), done))
        for number, done in enumerate(everything)
    ]
    for thread in threads:
        thread.start()
    if rng.random() < 0.3:
        NEVER.wait(rng.random() * 0.003)
        writer.close()
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    writer.close()
    assert layout.crowds == 0
    for number, done in enumerate(everything):
        assert all(note.promise.done for note in done.calls)
        succeeded = [note.number for note in done.calls if note.promise.error is None]
        stored = [index for thread, index in layout.stored if thread == number]
        assert stored == succeeded == sorted(set(stored))
        assert [before for before, _ in done.orders] == [count for _, count in done.orders]


# The batcher over a store.


@dataclass
class Batch:
    """A batch of one publisher, with the outcomes that it was told."""

    publisher: bytes
    values: list[bytes]
    durability: Durability
    told: list[Exception | None] = field(default_factory=list)


class World:
    """A store, and a batcher whose loop is turned by hand."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.memory = MemoryFileSystem()
        self.fs = FaultyFileSystem(self.memory)
        self.values = DatabaseSettings(
            segment_bytes=64 * 1024,
            quota_bytes=rng.choice((None, None, 400_000)),
            sync_interval=3600.0,
            reserve_bytes=0,
        )
        self.clock = SystemClock()
        self.store = Store(PATH, fs=self.fs, clock=self.clock)
        self.database: Database = self.store.create(NAME, self.values)
        self.acts: deque[Callable[[], None]] = deque()
        self.rang = Event()
        self.lazy: list[Callable[[], None]] = []
        self.may_wait = True
        self.batches: list[Batch] = []
        self.numbers: dict[bytes, int] = {}
        # The rows that survived the last power cut.
        self.survivors: set[tuple[bytes, bytes]] = set()
        self.batcher = self.new_batcher()

    def new_batcher(self) -> AppendBatcher:
        return AppendBatcher(
            self.database,
            self.acts.append,
            self._soon_from_thread,
            lambda _, act: self.lazy.append(act),
            10_000_000,
            pipelined_rows=self.rng.choice((1, 3, 256)),
            append_bytes=self.rng.choice((500, 16 << 20)),
            may_wait=lambda: self.may_wait,
        )

    def _soon_from_thread(self, act: Callable[[], None]) -> None:
        self.acts.append(act)
        self.rang.set()

    def publish(self, durabilities: tuple[Durability, ...]) -> None:
        rng = self.rng
        publisher = rng.choice((b"p", b"q", b"r"))
        durability = rng.choice(durabilities)
        batch = PublishBatch()
        for _ in range(rng.choice((1, 1, 1, 2, 5))):
            number = self.numbers[publisher] = self.numbers.get(publisher, -1) + 1
            batch.topics.append(rng.choice((b"a/b", b"a/c", b"d", b"e/%d" % number)))
            batch.values.append(b"%d " % number + rng.randbytes(rng.choice((0, 10, 300, 9_000))))
            batch.flags.append(1)
        batch.packet_ids = list(range(1, len(batch.topics) + 1))
        batch.measure()
        batch.checked = True
        batch.publisher = publisher
        record = Batch(publisher, list(batch.values), durability)
        self.batches.append(record)
        self.batcher.append(batch, publisher, durability, record.told.append)

    def turn(self) -> None:
        """Run one turn of the loop."""
        for _ in range(len(self.acts)):
            self.acts.popleft()()

    def settle(self) -> None:
        """Turn the loop until nothing is pending."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.acts or self.lazy or self.batcher.pending_bytes:
            assert time.monotonic() < deadline, "an append has no outcome"
            while self.lazy:
                self.lazy.pop()()
            self.turn()
            if not self.acts:
                self.rang.wait(0.001)
                self.rang.clear()

    def cut_power(self) -> None:
        """Cut the power, open what survives, check it, and go on with it."""
        told = {id(batch): list(batch.told) for batch in self.batches}
        clone = self.memory.crash_clone(Random(self.rng.random()))
        # The outcomes that are on their way are lost with the process.
        self.end()
        self.memory = clone
        self.fs = FaultyFileSystem(clone)
        self.store = Store(PATH, fs=self.fs, clock=self.clock)
        self.database = self.store.database(NAME)
        self.batcher = self.new_batcher()
        self.check(told)
        self.batches = []

    def check(self, told: dict[int, list[Exception | None]]) -> None:
        """Compare the rows that survived with the outcomes that were known before."""
        found: dict[bytes, list[bytes]] = {}
        rows_found = [row for batch in self.database.read("#") for row in batch.to_pylist()]
        for row in sorted(rows_found, key=lambda row: row["timestamp"]):
            found.setdefault(row["publisher"].encode(), []).append(row["value"])
        for values in found.values():
            numbers = [int(value.split(b" ")[0]) for value in values]
            assert numbers == sorted(set(numbers))
        rows = {(publisher, value) for publisher, values in found.items() for value in values}
        for batch in self.batches:
            mine = {(batch.publisher, value) for value in batch.values}
            outcome = told[id(batch)]
            if outcome == [None] and batch.durability == "synced":
                assert mine <= rows, "acknowledged rows are gone"
            elif outcome and isinstance(outcome[0], RetryError):
                assert not mine & rows, "refused rows are stored"
        assert self.survivors <= rows, "rows that survived a power cut are gone"
        self.survivors = rows

    def end(self) -> None:
        """End the process: every batch has its outcome once."""
        self.settle()
        assert self.batcher.pending_bytes == 0
        assert [len(batch.told) for batch in self.batches] == [1] * len(self.batches)
        with suppress(*(SiltstoneError, ExceptionGroup)):
            self.store.close()


FAULTS = (
    Fault(operation="allocate", errno=errno.ENOSPC),
    Fault(operation="allocate", errno=errno.ENOSPC, nth=2),
    Fault(operation="write_at", errno=errno.ENOSPC, nth=2),
    Fault(operation="sync", errno=errno.EIO),
    Fault(operation="sync", errno=errno.EIO, nth=3),
)


def step(world: World, durabilities: tuple[Durability, ...]) -> None:
    """Do one random thing."""
    kind = world.rng.random()
    if kind < 0.55:
        world.publish(durabilities)
    elif kind < 0.75:
        world.turn()
    elif kind < 0.85:
        world.settle()
    elif kind < 0.9:
        world.may_wait = not world.may_wait
    elif kind < 0.93:
        world.fs.add(replace(world.rng.choice(FAULTS)))
    elif kind < 0.96:
        world.fs.clear()
    elif kind < 0.98:
        with suppress(SiltstoneError):
            world.database.sync()
    else:
        world.cut_power()


@settings(deadline=None)
@given(seed=seeds)
def test_every_publish_ends_once_in_order_and_what_was_acknowledged_survives(seed: int) -> None:
    rng = Random(seed)
    world = World(rng)
    durabilities: tuple[Durability, ...] = rng.choice(
        (("synced",), ("synced", "written", "none"), ("synced", "written"))
    )
    for _ in range(rng.choice((10, 40, 80))):
        step(world, durabilities)
    world.cut_power()
    world.end()
