"""One writer thread: gathers calls, decides when to flush, commits them in order, turns generations
over.

State has two owners: the queue and what producers owe are shared under one condition, everything
else belongs to the thread.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Container
from functools import partial
from itertools import groupby
from threading import Condition, Thread
from typing import Final

from siltstone.clock import Clock
from siltstone.errors import ClosedError, OverloadedError, RetryError, SiltstoneError
from siltstone.logs import log
from siltstone.store.log.write.committer import Committer
from siltstone.store.log.write.cook import Call
from siltstone.store.segment.room import Room
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.refused_sequences import RefusedSequences
from siltstone.store.writer.ticket import Outcome, Ticket

_LOG: Final = logging.getLogger("siltstone.store")
# A frame holds at most this much, unless a single call is larger.
_FRAME_BYTES: Final = 16 * 1024 * 1024
_FRAME_ROWS: Final = 1 << 20

Rows = list[int] | None
Pending = tuple[Call, Ticket, Rows]
TurnOver = Callable[[Committer], Committer]


def flush_delay(
    settings: DatabaseSettings, *, now: float, first_at: float, last_at: float, rows: int
) -> float:
    """Return how long to wait before the flush of what is pending; 0 or less means now."""
    if rows >= settings.max_items:
        return 0.0
    return min(
        first_at + settings.flush_interval - now, last_at + settings.idle_flush_interval - now
    )


class LogShard:
    """The queue and thread of one shard."""

    def __init__(
        self,
        number: int,
        committer: Committer,
        clock: Clock,
        *,
        turn_over: TurnOver,
        admit: Callable[[int], SiltstoneError | None],
        housekeeping: Callable[[], None],
    ) -> None:
        self.number = number
        self.committer = committer
        self._clock = clock
        self._turn_over = turn_over
        self._admit = admit
        self._housekeeping = housekeeping
        self._condition = Condition()
        self._pending: deque[Pending] = deque()
        self._pending_bytes = 0
        self._pending_rows = 0
        self._crowd = 0
        self._first_at = 0.0
        self._last_at = 0.0
        self._orders: deque[tuple[Callable[[], None], Ticket]] = deque()
        self._closing = False
        self._close_error: SiltstoneError | None = None
        self._taken: set[Ticket] = set()
        self._arrears = RefusedSequences()
        self._written_at = 0.0
        # What kept the last housekeeping from its end.
        self._trouble: type[SiltstoneError] | None = None
        # Started by the first work: a database may have thousands of shards that rest.
        self._thread: Thread | None = None
        if self._idle_seconds() is not None:
            self._start()

    def submit(self, call: Call, ticket: Ticket, rows: Rows, timeout: float | None) -> None:
        """Queue a call; wait while too much is pending.

        Raises: OverloadedError when there is no room in time, PoisonedError, ClosedError.
        """
        limit = self.committer.settings.pending_bytes_max
        with self._condition:
            self._check_open()
            if self._pending_bytes and self._pending_bytes + call.size_bytes > limit:
                try:
                    self._wait_for_room(limit - call.size_bytes, timeout)
                except OverloadedError:
                    self.owe(call)
                    raise
            self._check_open()
            now = self._clock.monotonic()
            if not self._pending:
                self._first_at = now
            self._last_at = now
            self._pending.append((call, ticket, rows))
            self._pending_bytes += call.size_bytes
            self._pending_rows += call.row_count
            self._wake()

    def owe(self, call: Call) -> None:
        """Keep in mind that a producer must send this call again, unless it is stored already,
        before any later one is taken. From any thread.
        """
        if not call.producer:
            return
        with self._condition:
            if not self.committer.has_stored(call.producer, call.sequence):
                self._arrears.add(call.producer, call.sequence)

    def take_room(self, size: int, *, rows: int, topic: bytes) -> Room | None:
        """Take a place for values at once; None where the segment must be rolled for it.

        Raises: QuotaExceededError, StorageFullError, PoisonedError, ClosedError.
        """
        self._check_open()
        refusal = self._admit(size)
        if refusal is not None:
            raise refusal
        return self.committer.take_room(size, rows=rows, topic=topic)

    def make_room(
        self, size: int, *, rows: int, topic: bytes, then: Callable[[Room | Exception], None]
    ) -> None:
        """Take a place for values behind everything queued so far; `then` hears of it, from the
        shard's thread. Raises: PoisonedError, ClosedError.
        """
        found: list[Room] = []

        def act() -> None:
            found.append(self.committer.make_room(size, rows=rows, topic=topic))

        ticket = self._queue_order(act)
        ticket.on_done(lambda ticket: then(ticket.error or found[0]))

    def give_up_room(self, room: Room) -> None:
        """Take back a place that nothing will stand in."""
        self.committer.give_up_room(room)

    def _wait_for_room(self, size_bytes: int, timeout: float | None) -> None:
        """Wait until no more than this is pending, or nothing; the flush comes at once."""
        self._crowd += 1
        self._condition.notify_all()
        try:
            if not self._condition.wait_for(
                lambda: (
                    self._closing or self._pending_bytes == 0 or self._pending_bytes <= size_bytes
                ),
                timeout,
            ):
                raise OverloadedError(
                    f"too many bytes wait to be written, try again: "
                    f"pending_bytes={self._pending_bytes}"
                )
        finally:
            self._crowd -= 1

    def seal(self, turn_over: TurnOver | None = None) -> None:
        """Turn the generation over behind everything queued so far, in another way than usual where
        one is given; return when it is done.
        """
        self._order(partial(self.turn, turn_over))

    def seal_before(self, serial: int, size_bytes: int) -> bool:
        """Turn the generation over behind everything queued so far if that ends before a serial,
        and takes at least so much of the disk; say whether it did.
        """
        turned: list[bool] = []

        def act() -> None:
            committer = self.committer
            is_whole = committer.next_serial <= serial and committer.rows > 0
            if is_whole and committer.size_bytes() >= size_bytes:
                self.turn()
                turned.append(True)

        self._order(act)
        return bool(turned)

    def sync(self) -> None:
        """Make everything queued so far durable."""

        def act() -> None:
            # The committer is looked up when the order is obeyed: the generation may turn before.
            self.committer.sync()

        self._order(act)

    def configure(self, settings: DatabaseSettings) -> None:
        """Put settings into force behind everything queued so far."""

        def change() -> None:
            self.committer.configure(settings)

        self._order(change)

    def turn(self, turn_over: TurnOver | None = None) -> None:
        """Turn the generation over now; only for the shard's own thread."""
        self.committer = (turn_over or self._turn_over)(self.committer)

    def close(self) -> SiltstoneError | None:
        """Commit what is queued and end the thread; return what kept it from its last sync."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
            thread = self._thread
        if thread is None:
            self._run()
        else:
            thread.join()
        return self._close_error

    def _order(self, act: Callable[[], None]) -> None:
        self._queue_order(act).wait()

    def _queue_order(self, act: Callable[[], None]) -> Ticket:
        ticket = Ticket(0, 1, waits=True)
        with self._condition:
            self._check_open()
            self._orders.append((act, ticket))
            self._wake()
        return ticket

    def _wake(self) -> None:
        """Let the thread look at its work, under the condition."""
        if self._thread is None:
            self._start()
        self._condition.notify_all()

    def _start(self) -> None:
        name = f"siltstone-shard-{self.number}"
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _check_open(self) -> None:
        self.committer.check()
        if self._closing:
            raise ClosedError("the database is closed")

    def _run(self) -> None:
        try:
            while True:
                batch, orders = self._take()
                if batch:
                    self._commit(batch)
                for act, ticket in orders:
                    self._obey(act, ticket)
                if not batch and not orders:
                    if self._closing:
                        break
                    self._look_after()
            self._end()
        except Exception as exc:  # noqa: BLE001 - a thread that dies silently would leave callers waiting
            self._fail_all(exc)

    def _end(self) -> None:
        try:
            self.committer.close()
        except SiltstoneError as exc:
            self._close_error = exc

    def _take(self) -> tuple[list[Pending], list[tuple[Callable[[], None], Ticket]]]:
        """Wait for work; return the calls of one frame, and orders when no call precedes them."""
        with self._condition:
            while not self._closing:
                now = self._clock.monotonic()
                if self._orders:
                    break
                if self._pending:
                    delay = flush_delay(
                        self.committer.settings,
                        now=now,
                        first_at=self._first_at,
                        last_at=self._last_at,
                        rows=self._pending_rows,
                    )
                    if delay <= 0 or self._crowd:
                        break
                    self._condition.wait(delay)
                elif not self._condition.wait(self._idle_seconds()):
                    return [], []
            batch = self._take_batch()
            orders: list[tuple[Callable[[], None], Ticket]] = []
            if not self._pending:
                orders = list(self._orders)
                self._orders.clear()
            self._taken = {ticket for _, ticket, _ in batch}
            self._taken.update(ticket for _, ticket in orders)
            self._condition.notify_all()
            return batch, orders

    def _take_batch(self) -> list[Pending]:
        batch: list[Pending] = []
        size = rows = 0
        while self._pending:
            call = self._pending[0][0]
            if batch and (
                size + call.size_bytes > _FRAME_BYTES or rows + call.row_count > _FRAME_ROWS
            ):
                break
            batch.append(self._pending.popleft())
            size += call.size_bytes
            rows += call.row_count
        self._pending_bytes -= size
        self._pending_rows -= rows
        self._first_at = self._clock.monotonic()
        return batch

    def _commit(self, batch: list[Pending]) -> None:
        admitted: list[Pending] = []
        size = 0
        # What producers owe may stand before their later calls in this very flush.
        coming: defaultdict[bytes, set[int]] = defaultdict(set)
        for item in batch:
            call = item[0]
            refusal = self._refusal(call, size, coming[call.producer])
            if refusal is None:
                size += call.size_bytes
                coming[call.producer].add(call.sequence)
                admitted.append(item)
            else:
                self._tell(item, refusal)
        for has_block, items in groupby(admitted, key=_has_block):
            run = list(items)
            calls = [call for call, _, _ in run]
            outcomes: list[Outcome | Exception]
            try:
                if has_block:
                    outcomes = self.committer.commit_blocks(calls)
                else:
                    outcomes = self.committer.commit(calls)
            except SiltstoneError as exc:
                outcomes = [exc] * len(run)
            for item, outcome in zip(run, outcomes, strict=True):
                self._tell(item, outcome)
        if self.committer.unsynced and self._written_at == 0.0:
            self._written_at = self._clock.monotonic()
        self._look_after()
        self.committer.park()

    def _refusal(
        self, call: Call, size_bytes: int, coming: Container[int]
    ) -> SiltstoneError | None:
        """Return why a call may not be stored behind so much else of its flush, and these calls of
        its producer; None if it may.
        """
        if call.producer:
            with self._condition:
                owed = self._arrears.first_before(call.producer, call.sequence, coming)
            if owed is not None:
                # Stored now it would make the earlier one look like a repetition when it comes.
                return RetryError(
                    f"an earlier call of this producer was refused, repeat that call first: "
                    f"sequence={call.sequence} refused={owed}"
                )
        try:
            return self._admit(size_bytes + call.size_bytes)
        except SiltstoneError as exc:
            return exc

    def _tell(self, item: Pending, outcome: Outcome | Exception) -> None:
        """Resolve a call, and keep in mind what its producer owes."""
        call, ticket, rows = item
        if isinstance(outcome, RetryError):
            self.owe(call)
        elif call.producer:
            with self._condition:
                self._arrears.settle(call.producer, call.sequence)
        self._taken.discard(ticket)
        ticket.resolve(outcome, rows)

    def _obey(self, act: Callable[[], None], ticket: Ticket) -> None:
        outcome: Outcome | Exception = _DONE
        try:
            act()
        except SiltstoneError as exc:
            outcome = exc
        self.committer.park()
        self._taken.discard(ticket)
        ticket.resolve(outcome, None)

    def _idle_seconds(self) -> float | None:
        settings = self.committer.settings
        waits = [
            seconds
            for seconds in (
                settings.sync_interval if self.committer.unsynced else None,
                1.0 if settings.rotate_seconds or settings.retain_seconds else None,
            )
            if seconds is not None
        ]
        return min(waits) if waits else None

    def _look_after(self) -> None:
        """Sync what was only written, and turn over or drop what is due."""
        try:
            if not self.committer.unsynced:
                self._written_at = 0.0
            elif (
                self._clock.monotonic() - self._written_at >= self.committer.settings.sync_interval
            ):
                self.committer.sync()
                self._written_at = 0.0
            self._housekeeping()
            self._trouble = None
        except SiltstoneError as exc:
            # What is due stays due. A full disk is told to whoever appends next, and poison is kept
            # by the committer, which refuses the next call with it; people hear of it once.
            if type(exc) is not self._trouble:
                self._trouble = type(exc)
                log(
                    _LOG,
                    logging.WARNING,
                    "shard_upkeep_failed",
                    shard=self.number,
                    error=str(exc),
                )

    def _fail_all(self, cause: Exception) -> None:
        """Leave nobody waiting when the thread ends by a mistake of ours."""
        _LOG.error("shard_failed", exc_info=cause, extra={"facts": {"shard": self.number}})
        error = self.committer.poison(cause)
        with self._condition:
            self._closing = True
            waiting = list(self._taken)
            waiting += [ticket for _, ticket, _ in self._pending]
            waiting += [ticket for _, ticket in self._orders]
            self._pending.clear()
            self._orders.clear()
            self._condition.notify_all()
        for ticket in waiting:
            ticket.resolve(error, None)
        self._end()


def _has_block(item: Pending) -> bool:
    return item[0].block is not None


_DONE: Final = Outcome(
    duplicate=False,
    count=0,
    timestamp_us=0,
    frame_serial=0,
    frame_timestamp_us=0,
    frame_places=None,
)
