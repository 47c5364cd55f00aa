"""One shard as the log of one topic: blocks are appended and values are read, both by offset.

The offset of a row is its serial. The shard accepts only blocks, which are always synced, so the
serials have no gap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Final

from siltstone.errors import CorruptionError, SlabDroppedError
from siltstone.rows.batch import RowBatch
from siltstone.store.log.slab import Slab
from siltstone.store.log.write.frame_builder import Block, Call
from siltstone.store.segment.frame import ROWS, VALUE_OFFSETS, VALUES
from siltstone.store.segment.writer import Room
from siltstone.store.shard.shards import Shards
from siltstone.store.shard.writable import WritableShard
from siltstone.store.writer.ticket import Ticket
from siltstone.topic.grammar import check_topic

# The bytes of a block in the queue in addition to its values.
_BLOCK_BYTES: Final = 512
# Frames may be small: a read for little data should not open many of them.
_FRAMES_A_READ: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRun:
    """Consecutive rows, as slices of the map.

    Value i is data[offsets[i] - offsets[0] : offsets[i + 1] - offsets[0]].
    """

    first_offset: int
    offsets: memoryview
    data: memoryview

    @property
    def count(self) -> int:
        """The number of rows."""
        return len(self.offsets) - 1

    @property
    def next_offset(self) -> int:
        """The offset after the last row."""
        return self.first_offset + self.count


class BlockLog:
    """The log of one topic. All methods may be called from any thread."""

    def __init__(self, shard: WritableShard, topic: str) -> None:
        self._shard = shard
        self.number = shard.number
        self.topic = topic
        self.topic_bytes = topic.encode()

    @property
    def is_open(self) -> bool:
        """Whether the shard is open.

        If it is not, the next call recovers it first, which may take long.
        """
        return self._shard.opened is not None

    def open(self) -> None:
        """Open and recover the shard, if it is not open. Raises: CorruptionError, ClosedError."""
        self._shard.queue()

    def append(self, offsets: bytes, values: bytes, *, timeout: float | None = None) -> Ticket:
        """Queue rows: i32 offsets from 0, one for each row plus one, and the values.

        The ticket is done when the rows survive a power cut.

        Raises: OverloadedError, PoisonedError, ClosedError; the ticket StorageFullError,
        QuotaExceededError.
        """
        block = Block(self.topic_bytes, offsets, values, None)
        return self._submit(block, len(values) + len(offsets), timeout)

    def append_room(self, offsets: bytes, room: Room, *, timeout: float | None = None) -> Ticket:
        """Queue rows whose values are in a room; the values are not copied."""
        return self._submit(Block(self.topic_bytes, offsets, b"", room), len(offsets), timeout)

    def _submit(self, block: Block, size_bytes: int, timeout: float | None) -> Ticket:
        call = Call(RowBatch())
        call.block = block
        call.size_bytes = size_bytes + _BLOCK_BYTES
        ticket = Ticket(block.count, 1, waits=True)
        self._shard.append(call, ticket, timeout)
        return ticket

    def take_room(self, size: int, rows: int, then: Callable[[Room | Exception], None]) -> None:
        """Take a room of `size` bytes in the segment; `then` receives it, at once or on the shard's
        thread.

        Raises: the error that prevents the request.
        """
        queue = self._shard.queue()
        room = queue.take_room(size, rows=rows, topic=self.topic_bytes)
        if room is not None:
            then(room)
        else:
            queue.make_room(size, rows=rows, topic=self.topic_bytes, then=then)

    def give_up_room(self, room: Room) -> None:
        """Return a room that will not be used."""
        self._shard.queue().give_up_room(room)

    def bounds(self) -> range:
        """Return the range of existing offsets: from the oldest row left to after the newest."""
        slabs = self._shard.slabs()
        return range(slabs[0].record.first_serial, slabs[-1].next_serial())

    def length(self, offset: int) -> int:
        """Return the length of the message at an offset, 0 if there is none."""
        runs = self.read(offset, bytes_max=1, rows_max=1)
        if not runs or runs[0].first_offset != offset:
            return 0
        return runs[0].offsets[1] - runs[0].offsets[0]

    def read(self, offset: int, *, bytes_max: int, rows_max: int = 1 << 30) -> list[BlockRun]:
        """Return rows from an offset on, up to the limits but at least one row if there is one.

        Rows that are lost by damage are skipped. Raises: CorruptionError.
        """
        runs: list[BlockRun] = []
        for slab in self._shard.slabs():
            until = slab.record.until_serial
            if until is not None and until <= offset:
                continue
            try:
                for run in _runs(slab, offset):
                    cut = _cut(run, bytes_max, rows_max)
                    if cut.count == 0 and runs:
                        return runs
                    runs.append(cut if cut.count else _cut(run, len(run.data), 1))
                    offset = runs[-1].next_offset
                    bytes_max -= len(runs[-1].data)
                    rows_max -= runs[-1].count
                    if bytes_max <= 0 or rows_max <= 0 or offset < run.next_offset:
                        return runs
            except SlabDroppedError:
                continue
        return runs


class BlockLogs:
    """The shards of a database; each is the log of one topic."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        self._lock = Lock()
        self._logs = {
            topic: BlockLog(shards.leader(number), topic)
            for number, topic in enumerate(shards.manifest.logs)
        }

    def topics(self) -> list[str]:
        """Return the topics in the order of their creation."""
        return list(self._logs)

    def add(self, topic: str) -> BlockLog:
        """Create the log of a topic, durably.

        Raises: ExistsError, InvalidTopicError, UsageError, StorageFullError.
        """
        check_topic(topic.encode())
        with self._lock:
            log = BlockLog(self._shards.leader(self._shards.add_log(topic)), topic)
            self._logs = self._logs | {topic: log}
            return log

    def find(self, topic: str) -> BlockLog | None:
        """Return the log of a topic, None if it was not created."""
        return self._logs.get(topic)


def _runs(slab: Slab, offset: int) -> list[BlockRun]:
    """Return the rest of the frame that holds an offset, and some frames after it."""
    runs: list[BlockRun] = []
    handles = slab.handles()
    for handle in handles[slab.chain.handle_at_serial(offset) :]:
        segment = handle.segment()
        index = segment.index
        for number in range(index.frame_at_serial(offset), index.frame_count):
            after = index.serials[number] + index.row_counts[number]
            if after <= offset:
                continue
            frame = segment.frame(number)
            if frame.header.kind != ROWS:
                continue
            first = frame.rows_in(range(offset, after)).start
            offsets, data = frame.section(VALUE_OFFSETS), frame.section(VALUES)
            if offsets is None or data is None:
                raise CorruptionError(
                    "a frame of a topic log does not have values",
                    path=segment.path,
                    offset=index.positions[number],
                )
            ends = offsets.cast("i")[first:]
            runs.append(
                BlockRun(
                    first_offset=frame.serial_of(first),
                    offsets=ends,
                    data=data[ends[0] : ends[len(ends) - 1]],
                )
            )
            offset = after
            if len(runs) >= _FRAMES_A_READ:
                return runs
        if segment.damage is not None and runs:
            return runs
        segment.check_whole()
    return runs


def _cut(run: BlockRun, bytes_max: int, rows_max: int) -> BlockRun:
    """Return the first rows of a run that are within limits."""
    first = run.offsets[0]
    rows = min(run.count, rows_max)
    if run.offsets[rows] - first > bytes_max:
        rows = bisect_right(run.offsets, first + bytes_max, 0, rows + 1) - 1
    if rows == run.count:
        return run
    return BlockRun(
        first_offset=run.first_offset,
        offsets=run.offsets[: rows + 1],
        data=run.data[: run.offsets[rows] - first],
    )
