"""Appends of published messages: batches become appends, and outcomes return to the event loop.

The batches of one turn of the loop, and those that arrive while the disk is busy, form one append.
For each durability at most two appends are under way: one that is being synced and, if it has
enough rows, one that follows as soon as the disk is free. Everything here runs on the loop. The
thread of a shard only passes the outcome to the loop. A few rows are stored on the loop itself, if
every message waits for the disk anyway and the disk is fast.

Invariants: the store receives the rows of one publisher in their order, whatever their durability.
If earlier rows of the publisher still wait here, later rows wait with them, and the append has the
stronger durability of both. Each batch is settled exactly once: stored, refused, or failed. This
also holds after an internal error.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from siltstone.errors import OutcomeUnknownError, OverloadedError, SiltstoneError
from siltstone.guard import contain, contain_with
from siltstone.mqtt.publish import PublishBatch
from siltstone.rows.batch import RowBatch
from siltstone.store.database import Database, Durability
from siltstone.store.writer.ticket import Ticket

# Runs a callback on the loop.
Soon = Callable[[Callable[[], None]], object]
# Runs a callback on the loop after a number of seconds.
Later = Callable[[float, Callable[[], None]], object]
Settle = Callable[[Exception | None], None]
# A producer name and a sequence number: an append repeated with both is stored once.
Producer = tuple[str, int]

_UNDER_WAY_MAX: Final = 2
# A smaller append waits until the previous one is on disk, and collects more rows meanwhile.
_PIPELINED_ROWS: Final = 256
# No client waits for a row of durability none, so its append waits this long for more rows.
_LAZY_SECONDS: Final = 0.005
# An append with at most this many rows and bytes may be stored on the loop. More bytes would hold
# up other clients while they are compressed and written.
_HERE_ROWS: Final = 128
_HERE_BYTES: Final = 64 * 1024
# At this size a new append is started, so that the store can refuse one without the other.
_APPEND_BYTES: Final = 16 * 1024 * 1024
# Bytes of memory that a waiting message takes in addition to its own bytes.
_OVERHEAD: Final = 64


def _may_not() -> bool:
    return False


def stronger(one: Durability, other: Durability) -> Durability:
    """Return the stronger of two durabilities."""
    if one == "synced" or other == "synced":
        return "synced"
    return "written" if one == "written" or other == "written" else "none"


class _Append:
    """The rows of one append, and the callbacks that wait for its outcome.

    The first batch is handed on as it is. With the second one, both are copied into a batch of the
    append.
    """

    __slots__ = ("_is_own", "_names", "durability", "producer", "rows", "settles", "size_bytes")

    def __init__(self, durability: Durability, producer: Producer | None = None) -> None:
        self.durability: Durability = durability
        # An append with a producer has the rows of one batch only. It does not count as under
        # way, so it does not wait for appends that are.
        self.producer = producer
        self.rows: RowBatch | None = None
        self._is_own = False
        # The publishers, each once for consecutive batches.
        self._names: list[bytes] = []
        self.settles: list[Settle] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return 0 if self.rows is None else len(self.rows.topics)

    def add(self, batch: RowBatch) -> int:
        """Add a batch whose totals are set; return the size of its messages in memory."""
        rows = self.rows
        if rows is None:
            self.rows = batch
        else:
            if not self._is_own:
                self._is_own = True
                own = RowBatch()
                own.extend(rows)
                rows = own
                self.rows = own
            rows.extend(batch)
        if not self._names or self._names[-1] != batch.publisher:
            self._names.append(batch.publisher)
        size = batch.size_bytes + _OVERHEAD * len(batch.topics)
        self.size_bytes += size
        return size

    def has(self, publisher: bytes) -> bool:
        """Return whether any row has this publisher."""
        return publisher in self._names


class _DurabilityQueue:
    """The appends of one durability, in order; some of them have a stronger durability."""

    __slots__ = ("open", "under_way", "waiting")

    def __init__(self) -> None:
        self.waiting: list[_Append] = []
        self.open: _Append | None = None
        self.under_way = 0


class AppendBatcher:
    """Groups the batches of the broker into appends.

    `soon` and `later` are called on the loop, `soon_from_thread` from any thread. `may_wait`
    returns whether all messages wait for a sync anyway, so that the loop itself may wait for it.
    """

    def __init__(
        self,
        database: Database | None,
        soon: Soon,
        soon_from_thread: Soon,
        later: Later,
        pending_bytes_max: int,
        *,
        append_bytes: int = _APPEND_BYTES,
        pipelined_rows: int = _PIPELINED_ROWS,
        may_wait: Callable[[], bool] = _may_not,
    ) -> None:
        self._database = database
        self._soon = soon
        self._soon_from_thread = soon_from_thread
        self._later = later
        self._pending_bytes_max = pending_bytes_max
        self._append_bytes = append_bytes
        self._pipelined_rows = pipelined_rows
        self._may_wait = may_wait
        self.pending_bytes = 0
        self.rows = 0
        self._lanes: dict[Durability, _DurabilityQueue] = {
            "synced": _DurabilityQueue(),
            "written": _DurabilityQueue(),
            "none": _DurabilityQueue(),
        }
        # The same as a list, because it is walked for every batch.
        self._all = list(self._lanes.values())
        self._waiting: list[Callable[[], None]] = []
        self._flush_due = False
        self._lazy_due = False
        # Whether `_flush` runs, and whether it must look again because an append ended meanwhile.
        self._is_flushing = False
        self._looks_again = False

    @property
    def is_full(self) -> bool:
        """Whether the pending bytes reached their limit, so that sockets should not be read."""
        return self.pending_bytes >= self._pending_bytes_max

    def when_room(self, resume: Callable[[], None]) -> None:
        """Call `resume` once, when the pending bytes are below the limit again."""
        self._waiting.append(resume)

    def append(
        self,
        batch: PublishBatch,
        publisher: bytes,
        durability: Durability,
        settle: Settle | None,
        producer: Producer | None = None,
    ) -> None:
        """Store a batch together with others, or alone if it has a producer.

        `settle` is called with the outcome, on the loop.
        """
        lane = self._lane_of(durability, publisher)
        append = lane.open
        if producer is not None or append is None or append.size_bytes >= self._append_bytes:
            append = _Append(durability, producer)
            lane.waiting.append(append)
            lane.open = append if producer is None else None
        else:
            append.durability = stronger(append.durability, durability)
        batch.publisher = publisher
        if not batch.checked:
            batch.measure()
        self.pending_bytes += append.add(batch)
        if settle is not None:
            append.settles.append(settle)
        self.rows += len(batch.topics)
        if self._flush_due:
            return
        if durability != "none" or len(append) >= self._pipelined_rows:
            self._flush_due = True
            self._soon(self._flush)
        elif not self._lazy_due:
            self._lazy_due = True
            self._later(_LAZY_SECONDS, self._flush_lazily)

    def _lane_of(self, durability: Durability, publisher: bytes) -> _DurabilityQueue:
        """Return the queue for new rows: the one where rows of the publisher wait, if any."""
        lane = self._lanes[durability]
        for other in self._all:
            if other is lane:
                continue
            for append in other.waiting:
                if append.has(publisher):
                    return other
        return lane

    def _flush_lazily(self) -> None:
        self._lazy_due = False
        self._flush()

    def _flush(self) -> None:
        """Give appends to the store. An append that ends at once does not start a second flush."""
        self._flush_due = False
        self._looks_again = True
        if self._is_flushing:
            return
        self._is_flushing = True
        try:
            while self._looks_again:
                self._looks_again = False
                self._give_out()
        finally:
            self._is_flushing = False

    def _give_out(self) -> None:
        for lane in self._all:
            while lane.waiting and self._may_follow(lane, lane.waiting[0]):
                append = lane.waiting.pop(0)
                if append is lane.open:
                    lane.open = None
                if not self._submit(lane, append):
                    break

    def _may_follow(self, lane: _DurabilityQueue, append: _Append) -> bool:
        """Return whether an append may be given to the store now."""
        if append.producer is not None or lane.under_way == 0:
            return True
        return lane.under_way < _UNDER_WAY_MAX and len(append) >= self._pipelined_rows

    def _submit(self, lane: _DurabilityQueue, append: _Append) -> bool:
        """Give an append to the database; return whether the next one may follow now."""
        if append.producer is None:
            lane.under_way += 1
        outcomes: list[Ticket | SiltstoneError] = []
        contain(partial(self._hand_over, append, outcomes))
        if not outcomes:
            self._settle(
                lane, append, OutcomeUnknownError("internal error: see the log of the broker")
            )
            return True
        outcome = outcomes[0]
        if isinstance(outcome, Ticket):
            if outcome.done:
                self._settle(lane, append, outcome.error)
                return True
            outcome.on_done(partial(self._hear, lane, append))
            return True
        if isinstance(outcome, OverloadedError) and append.producer is None:
            return self._postpone(lane, append, outcome)
        self._settle(lane, append, outcome)
        return True

    def _hand_over(self, append: _Append, outcomes: list[Ticket | SiltstoneError]) -> None:
        """Give an append to the database; add its ticket or the error to the outcomes."""
        assert self._database is not None, "without a database nothing is stored"
        assert append.rows is not None
        try:
            rows = append.rows.stored()
            ticket = self._append_here(append, rows)
            if ticket is None:
                ticket = self._database.append(
                    rows, durability=append.durability, producer=append.producer, timeout=0.0
                )
        except SiltstoneError as exc:
            outcomes.append(exc)
        else:
            outcomes.append(ticket)

    def _append_here(self, append: _Append, rows: RowBatch) -> Ticket | None:
        """Store a few rows on the loop, if the loop has nothing to do meanwhile; else return None.

        Handing them to the thread of a shard and back costs several times as much.
        """
        assert self._database is not None
        if (
            append.durability != "synced"
            or append.producer is not None
            or len(rows.topics) > _HERE_ROWS
            or append.size_bytes > _HERE_BYTES
            or not rows.checked
            or not self._may_wait()
        ):
            return None
        return self._database.append_here(rows)

    def _hear(self, lane: _DurabilityQueue, append: _Append, ticket: Ticket) -> None:
        """Pass an outcome from the thread of a shard to the loop."""
        self._soon_from_thread(partial(self._settle, lane, append, ticket.error))

    def _postpone(self, lane: _DurabilityQueue, append: _Append, error: OverloadedError) -> bool:
        """Retry a refused append when another append ends; return whether the next may follow now.

        If no other append is under way, settle this one with the error.
        """
        if sum(other.under_way for other in self._all) == 1:
            # Only this append is under way: no other one would end and start a retry.
            self._settle(lane, append, error)
            return True
        lane.under_way -= 1
        lane.waiting.insert(0, append)
        return False

    def _settle(self, lane: _DurabilityQueue, append: _Append, error: Exception | None) -> None:
        if append.producer is None:
            lane.under_way -= 1
        self.pending_bytes -= append.size_bytes
        for settle in append.settles:
            contain_with(settle, error)
        self._flush()
        self._make_room()

    def hold(self, size_bytes: int) -> None:
        """Add bytes to `pending_bytes` that another component is writing, for example a spool."""
        self.pending_bytes += size_bytes

    def release(self, size_bytes: int) -> None:
        """Subtract bytes that were added by `hold`."""
        self.pending_bytes -= size_bytes
        self._make_room()

    def _make_room(self) -> None:
        if self._waiting and not self.is_full:
            waiting, self._waiting = self._waiting, []
            for resume in waiting:
                contain(resume)
