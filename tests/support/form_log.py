"""Subjects of the form comparison that write a log: the committer with its segments, the queue of a
shard, and the records of changes.
"""

from __future__ import annotations

import errno
import struct
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import PurePath
from random import Random
from threading import Event
from typing import Any

from siltstone.clock import ManualClock
from siltstone.errors import (
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    SiltstoneError,
    StorageFullError,
)
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.log.read.pieces import Batch
from siltstone.store.log.read.scan import Span, read_slab
from siltstone.store.log.write.committer import Committer
from siltstone.store.log.write.frame_builder import ROW_OVERHEAD, Block, Call
from siltstone.store.segment.writer import Room
from siltstone.store.tx.commit.changes import (
    ChangeList,
    changes_end,
    changes_key,
    decode_changes,
    head_of,
)
from siltstone.store.tx.commit.changes import decode_state as decode_change_state
from siltstone.store.writer.queue import Queued, ShardWriter
from siltstone.store.writer.ticket import Outcome, Ticket
from siltstone.topic.grammar import TopicFilter
from tests.support.builders import NOW_US, World, begun, reopened, settings_of, slab_place
from tests.support.form_packets import attempt, changed
from tests.support.row_batches import row_batch

NAMES = (b"a", b"b", b"a/b", b"a/c", b"$x/y", "é".encode())
Commit = Callable[[list[Call]], list[Outcome | Exception]]
EDGES = (0, 1, 2**31, 2**32, 2**63, 2**64 - 1)
PATIENCE_SECONDS = 60.0


# The committer.


def _call(rng: Random) -> Call:
    count = rng.choice((1, 1, 2, 7))
    topics = [rng.choice((*NAMES, b"n/%d" % rng.randrange(9))) for _ in range(count)]
    values = [rng.randbytes(rng.choice((0, 1, 30, 6_000))) for _ in range(count)]
    batch = row_batch(topics, values, rng.choice((b"", b"p")))
    if rng.random() < 0.2:
        batch.publishers = [rng.choice((b"", b"q", b"r")) for _ in range(count)]
        batch.measure()
    if rng.random() < 0.05:
        batch.topics[0] = rng.choice((b"", b"a/#", b"\xff"))
    call = Call(batch)
    call.wants_sync = rng.random() < 0.7
    if rng.random() < 0.4:
        call.producer = rng.choice((b"x" * 16, b"y" * 16))
        call.sequence = rng.choice((0, 1, 2, 3, 2**40))
    call.size_bytes = batch.size_bytes + ROW_OVERHEAD * count
    return call


def _block(rng: Random, rooms: list[Room]) -> Call:
    values = rng.randbytes(rng.choice((8, 100, 9_000)))
    cuts = sorted(rng.randrange(len(values)) for _ in range(rng.randrange(3)))
    offsets = struct.pack(f"<{len(cuts) + 2}i", 0, *cuts, len(values))
    room = None
    fitting = [each for each in rooms if each.size == len(values)]
    if fitting:
        room = fitting[0]
        rooms.remove(room)
        room.view[: len(values)] = values
        room.filled = len(values)
    call = Call(row_batch([], [], b""))
    call.block = Block(rng.choice(NAMES), offsets, b"" if room else values, room)
    return call


def _told(outcome: Outcome | Exception) -> Any:
    if isinstance(outcome, Exception):
        return attempt(str, outcome), type(outcome).__name__
    return outcome.duplicate, outcome.count, outcome.timestamp_us, outcome.serials()


def _committed(commit: Commit, calls: list[Call]) -> list[Any]:
    return [_told(outcome) for outcome in commit(calls)]


def _rows(committer: Committer) -> Any:
    slab = committer.slab
    found = read_slab(slab, slab.match(TopicFilter.parse("#")), Span())
    return [tuple(row) for pieces in found for row in Batch(pieces, 0).rows()]


def _tend(rng: Random, committer: Committer, rooms: list[Room]) -> Any:
    """Do anything besides committing rows; return what can be seen of it."""
    match rng.randrange(12):
        case 0:
            committer.sync()
        case 1:
            committer.end_segment()
        case 2:
            committer.configure(settings_of(topic_cache=rng.choice((2, 100)), thresholds=(3,)))
        case 3:
            committer.allocate_ahead()
            committer.index_words()
        case 4 | 5:
            size = rng.choice((8, 100, 9_000, 70_000))
            take = committer.make_room if rng.random() < 0.5 else committer.take_room
            room = take(size, rows=3, topic=b"a/b")
            if room is not None:
                rooms.append(room)
                return room.start, room.end, room.capacity, len(room.contents())
        case 6 if rooms:
            committer.give_up_room(rooms.pop(rng.randrange(len(rooms))))
        case 7:
            committer.park()
        case 8:
            committer.resume()
            committer.measure()
        case _:
            return (
                committer.is_handy(rng.choice((1, 100, 30_000, 2**40))),
                committer.is_scattered(1, rng.choice((1, 3)), NOW_US + rng.choice((0, 10**7))),
                committer.has_stored(b"x" * 16, rng.choice((0, 1, 2))),
                committer.rows,
                committer.size_bytes(),
                committer.used_bytes(),
                committer.seed,
                committer.state(),
                committer.inherited([2]).export(),
            )
    return None


FAULTS = (
    Fault(operation="allocate", errno=errno.ENOSPC),
    Fault(operation="write_at", errno=errno.ENOSPC),
    Fault(operation="write_at", errno=errno.ENOSPC, nth=2, keep_bytes=20),
    Fault(operation="sync", errno=errno.EIO),
    Fault(operation="create", errno=errno.EMFILE),
)


def committer(rng: Random) -> Any:
    """Commit rows and blocks, with rooms, new segments, errors of the disk and power cuts."""
    memory = MemoryFileSystem(capacity_bytes=rng.choice((1 << 60, 300_000)))
    fs = FaultyFileSystem(memory)
    world = World(fs, ManualClock(NOW_US))
    changes: dict[str, Any] = {
        "compression": rng.choice(("none", "zstd", "lz4")),
        "thresholds": rng.choice(((0,), (2, 1), (100,))),
        "topic_cache": rng.choice((2, 100)),
    }
    found: list[Committer] = []
    writing = attempt(lambda: found.append(begun(world, shard=0, **changes)))
    if not found:
        return writing
    made, rooms, told = found[0], list[Room](), list[Any]()
    heard: list[Any] = []
    made.on_stored = lambda slab, serial, built: heard.append((slab, serial, built.row_count))
    for _ in range(rng.randrange(2, 14)):
        world.clock.advance(rng.choice((0.0, 0.0, 1e-6, 2.0, -5.0)))
        match rng.randrange(9):
            case 0:
                fs.add(rng.choice(FAULTS))
            case 1:
                fs.clear()
            case 2:
                calls = [_block(rng, rooms) for _ in range(rng.choice((1, 1, 3)))]
                told.append(attempt(_committed, made.commit_blocks, calls))
            case 3:
                told.append(attempt(_tend, rng, made, rooms))
            case 4 if rng.random() < 0.3:
                rooms.clear()
                fs = FaultyFileSystem(memory.crash_clone(Random(rng.random())))
                world = World(fs, world.clock)
                attempt(made.close)
                memory = fs.inner  # type: ignore[assignment]
                made, report = reopened(world, shard=0, **changes)
                told.append(str(report))
            case _:
                calls = [_call(rng) for _ in range(rng.choice((1, 1, 2, 4)))]
                told.append(attempt(_committed, made.commit, calls))
        told.append((made.next_serial, made.last_timestamp_us, str(made.poisoned_by)))
    told.append(attempt(_rows, made))
    if rng.random() < 0.5:
        told.append(attempt(lambda: made.seal(*made.state())))
    attempt(made.close)
    place = slab_place()
    fs.clear()
    files = {
        entry.name: sha256(memory.read(place / entry.name)).hexdigest()
        for entry in memory.list(place)
        if entry.name.endswith(".seg")
    }
    return told, heard, files


# The queue.


class _Settings:
    flush_interval = 0.0
    idle_flush_interval = 0.0
    max_items = 100
    pending_bytes_max = 50


class _Note(Queued):
    def __init__(self, name: int, size_bytes: int, items: int) -> None:
        super().__init__()
        self.name = name
        self.size_bytes = size_bytes
        self.items = items
        self.promise = Ticket(items, 1)

    def item_count(self) -> int:
        return self.items


class _Layout:
    """Records what the queue asks of it; fails when it is told to."""

    batch_items_max = 6
    batch_bytes_max = 40

    def __init__(self) -> None:
        self.flush_settings = _Settings()
        self.seen: list[Any] = []
        self.fails: Exception | None = None
        self.poisoned = False

    def check(self) -> None:
        if self.poisoned:
            raise PoisonedError("a sync failed")

    def is_poisoned(self) -> bool:
        return self.poisoned

    def refused(self, call: _Note) -> None:
        self.seen.append(("refused", call.name))

    def commit(self, batch: list[_Note]) -> list[Outcome | Exception | None]:
        self.seen.append([call.name for call in batch])
        if isinstance(self.fails, PoisonedError):
            self.poisoned = True
        if self.fails is not None and not isinstance(self.fails, SiltstoneError):
            raise self.fails
        return [self.fails or _outcome_of(call) for call in batch]

    def idle_seconds(self) -> float | None:
        return None

    def look_after(self) -> None:
        pass

    def release(self) -> SiltstoneError | None:
        return PoisonedError("the last sync failed") if self.poisoned else None

    def fail(self, cause: Exception) -> tuple[SiltstoneError, SiltstoneError]:
        self.poisoned = True
        return OutcomeUnknownError(str(cause)), PoisonedError("the thread has ended")


def _outcome_of(call: _Note) -> Outcome:
    return Outcome(
        duplicate=call.name % 7 == 0,
        count=call.items,
        timestamp_us=NOW_US + call.name,
        frame_serial=2**40 + call.name,
        frame_timestamp_us=NOW_US,
        frame_places=None,
    )


def _result(ticket: Ticket) -> Any:
    return (
        attempt(lambda: ticket.wait(PATIENCE_SECONDS) is ticket),
        attempt(ticket.serials),
        attempt(ticket.first_serial),
        attempt(ticket.timestamps),
        ticket.done,
        ticket.duplicate,
        str(ticket.error),
    )


def _here(writer: ShardWriter[_Note], note: _Note) -> Any:
    """Commit a call on this thread, as soon as the thread of the shard sleeps."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        writer.check_open()
        if writer.commit_here(note, note.promise):
            return _result(note.promise)
        assert time.monotonic() < deadline, "the thread does not fall asleep"


def queue(rng: Random) -> Any:
    """Submit calls to a queue, also while its thread is busy; commit here; withdraw; fail; close.

    Each step waits for the thread, so that its order is the same in every run.
    """
    layout = _Layout()
    writer: ShardWriter[_Note] = ShardWriter("form", 1, layout, ManualClock())
    writer.start()
    told: list[Any] = []
    for step in range(rng.randrange(1, 8)):
        kind = rng.randrange(8)
        if kind == 0:
            layout.fails = rng.choice(
                (
                    None,
                    StorageFullError(PurePath("/d"), needed_bytes=2**33),
                    OverloadedError("later"),
                    PoisonedError("the sync failed"),
                    ZeroDivisionError("on purpose"),
                )
            )
        elif kind < 4:
            note = _Note(10 * step, 1, rng.choice((1, 3)))
            told.append(attempt(_here, writer, note))
        else:
            told.append(attempt(_submit_while_busy, rng, writer, 10 * step))
    error = writer.close()
    told.append(attempt(writer.submit, note := _Note(99, 1, 1), note.promise, None))
    return told, str(error), layout.seen


def _submit_while_busy(rng: Random, writer: ShardWriter[_Note], first: int) -> Any:
    """Submit calls while an order runs, so that they are taken together; return the outcomes."""
    began, go = Event(), Event()

    def hold() -> None:
        began.set()
        go.wait(PATIENCE_SECONDS)

    held = writer.order(hold)
    began.wait(PATIENCE_SECONDS)
    notes = [
        _Note(first + number, rng.choice((1, 20, 45)), rng.choice((1, 3)))
        for number in range(rng.randrange(1, 5))
    ]
    told: list[Any] = []
    queued: list[_Note] = []
    for note in notes:
        answer = attempt(writer.submit, note, note.promise, 0.0)
        told.append(answer)
        if answer is None:
            queued.append(note)
    if queued and rng.random() < 0.3:
        told.append(writer.withdraw(queued.pop(rng.randrange(len(queued)))))
    ordered: list[str] = []
    last = writer.order(lambda: ordered.append("ran"))
    go.set()
    told += [_result(note.promise) for note in queued]
    told += [attempt(lambda: held.wait(PATIENCE_SECONDS) is held)]
    told += [attempt(lambda: last.wait(PATIENCE_SECONDS) is last), ordered]
    return told


# The changes of a key-value shard.


def _facts(found: ChangeList) -> Any:
    return (
        found.generation,
        found.topics,
        found.values,
        found.times,
        found.untils,
        found.streams,
        found.size_bytes,
    )


def change_records(rng: Random) -> Any:
    """Encode changes, and decode them again with changed bytes."""
    made = ChangeList(rng.choice(EDGES[:4]))
    for _ in range(rng.randrange(5)):
        if rng.random() < 0.6:
            made.put(rng.choice(NAMES), rng.choice(EDGES), rng.randbytes(3), rng.choice(EDGES))
        else:
            made.delete(rng.choice(NAMES), rng.choice(EDGES), rng.choice(EDGES), 7)
    copied = ChangeList(1)
    for index in range(len(made.topics)):
        copied.copy(made, index)
    record = attempt(made.encode, rng.choice(EDGES))
    shard, number = rng.choice((0, 1, 2**32 - 1, 2**32, -1)), rng.choice((*EDGES, 2**64, -1))
    key = attempt(changes_key, shard, number)
    told = [_facts(made), _facts(copied), record, key, attempt(changes_end, shard)]
    if isinstance(record, bytes):
        broken = changed(rng, record)
        told.append(attempt(lambda: _facts(decode_changes(broken))))
        place = key if isinstance(key, bytes) else b""
        told.append(attempt(lambda: _place(head_of(place, broken))))
        told.append(attempt(lambda: decode_change_state(broken[: rng.choice((31, 32))]).encode()))
    return told


def _place(head: Any) -> Any:
    return head.first, head.stop, head.generation, head.bytes_before
