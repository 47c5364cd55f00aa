"""One committing thread: gathers transactions, decides when to flush, tells their outcomes.

State has two owners: the queue is shared under one condition, the committer belongs to the thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Lock, Thread
from typing import Final

from siltstone.clock import Clock
from siltstone.errors import (
    ClosedError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    SiltstoneError,
)
from siltstone.store.tx.commit.committer import Committer
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.operations import Operations
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.writer.ticket import Outcome, Ticket

Order = tuple[Callable[[], None], Ticket]

_KEEP_SECONDS: Final = 1.0


def flush_delay(
    settings: KeyValueSettings, *, now: float, first_at: float, last_at: float, items: int
) -> float:
    """Return how long to wait before the flush of what is pending; 0 or less means now."""
    if items >= settings.max_items:
        return 0.0
    return min(
        first_at + settings.flush_interval - now, last_at + settings.idle_flush_interval - now
    )


class KeyValueShard:
    """The queue and thread of one shard."""

    def __init__(
        self, committer: Committer, clock: Clock, keep: Callable[[], None] | None = None
    ) -> None:
        """Start the thread; it calls `keep` now and then where generations have limits."""
        self.committer = committer
        self._clock = clock
        self._keep = keep
        self._kept_at = clock.monotonic()
        self._mutex = Lock()
        self._condition = Condition(self._mutex)
        self._pending: deque[CommitTicket] = deque()
        self._pending_bytes = 0
        self._orders: deque[Order] = deque()
        self._first_at = 0.0
        self._last_at = 0.0
        # How many must be pending for the thread to be woken; 0 while it is awake.
        self._wakes_at = 0
        self._crowd = 0
        self._closing = False
        # Whether nothing more is taken in: it is closing, or a write has failed.
        self._stopped = False
        self._taken: list[CommitTicket] = []
        self._obeyed: list[Ticket] = []
        self._worker = Thread(
            target=self._run, name=f"siltstone-tx-{committer.record.shard}", daemon=True
        )
        self._worker.start()

    def submit(self, operations: Operations, timeout: float | None) -> CommitTicket:
        """Queue a transaction; wait while too much is pending.

        Raises: OverloadedError when there is no room in time, PoisonedError, ClosedError.
        """
        ticket = CommitTicket(operations, self._mutex)
        # The lock itself: entering by way of the condition takes twice as long.
        with self._mutex:
            if self._stopped:
                self._check_open()
            settings = self.committer.settings
            limit = settings.pending_bytes_max
            if self._pending_bytes and self._pending_bytes + operations.size_bytes > limit:
                self._wait_for_room(limit - operations.size_bytes, timeout)
            pending = self._pending
            if not pending or settings.idle_flush_interval:
                self._last_at = self._clock.monotonic()
                if not pending:
                    self._first_at = self._last_at
            pending.append(ticket)
            self._pending_bytes += operations.size_bytes
            if 0 < self._wakes_at <= len(pending):
                self._wake()
        return ticket

    def settled(self, operations: Operations) -> CommitTicket:
        """Return the ticket of a transaction that asks for nothing."""
        ticket = CommitTicket(operations, self._mutex)
        ticket.settle(None)
        return ticket

    def withdraw(self, ticket: CommitTicket) -> bool:
        """Take a transaction back; say whether it was still waiting, so that nothing happened."""
        with self._mutex:
            if ticket not in self._pending:
                return False
            self._pending.remove(ticket)
            self._pending_bytes -= ticket.operations.size_bytes
            return True

    def order(self, act: Callable[[], None]) -> None:
        """Let the thread act behind everything queued so far; return when it has.

        Raises: what act raises, PoisonedError, ClosedError.
        """
        ticket = Ticket(0, 1, waits=True)
        with self._mutex:
            self._check_open()
            self._orders.append((act, ticket))
            self._wake()
        ticket.wait()

    def close(self) -> None:
        """Commit what is queued and end the thread."""
        with self._mutex:
            self._closing = self._stopped = True
            self._wake()
        self._worker.join()

    def _wake(self) -> None:
        self._wakes_at = 0
        self._condition.notify_all()

    def _wait_for_room(self, size_bytes: int, timeout: float | None) -> None:
        """Wait until no more than this is pending, or nothing; the flush comes at once."""
        self._crowd += 1
        self._wake()
        try:
            fits = self._condition.wait_for(
                lambda: (
                    self._closing or self._pending_bytes == 0 or self._pending_bytes <= size_bytes
                ),
                timeout,
            )
        finally:
            self._crowd -= 1
        if not fits:
            raise OverloadedError(
                f"too many bytes wait to be committed, try again: "
                f"pending_bytes={self._pending_bytes}"
            )
        self._check_open()

    def _check_open(self) -> None:
        self.committer.check()
        if self._closing:
            raise ClosedError("the database is closed")

    def _run(self) -> None:
        ended = False
        try:
            while True:
                batch, orders = self._take()
                if batch:
                    self._commit(batch)
                for act, ticket in orders:
                    self._obey(act, ticket)
                if self._keep is not None and self.committer.settings.has_limits:
                    self._look_after(self._keep)
                if not batch and not orders and self._closing:
                    ended = True
                    return
        finally:
            if not ended:
                # The mistake itself is told by the thread's hook.
                self._fail_all()

    def _take(self) -> tuple[list[CommitTicket], list[Order]]:
        """Wait for work; return transactions, and orders when none precede them; neither at the
        end.
        """
        with self._mutex:
            while not self._closing and not self._orders:
                delay: float | None = None
                if self._keep is not None and self.committer.settings.has_limits:
                    delay = _KEEP_SECONDS
                if self._pending:
                    if self._crowd:
                        break
                    delay = flush_delay(
                        self.committer.settings,
                        now=self._clock.monotonic(),
                        first_at=self._first_at,
                        last_at=self._last_at,
                        items=len(self._pending),
                    )
                    if delay <= 0:
                        break
                self._wakes_at = self.committer.settings.max_items if self._pending else 1
                if not self._condition.wait(delay) and not self._pending:
                    # Nothing to commit, but maybe something to look after.
                    break
            self._wakes_at = 0
            batch = self._take_batch()
            orders: list[Order] = []
            if not self._pending:
                orders = list(self._orders)
                self._orders.clear()
            self._taken = batch
            self._obeyed = [ticket for _, ticket in orders]
            if self._crowd:
                self._condition.notify_all()
            return batch, orders

    def _take_batch(self) -> list[CommitTicket]:
        most = self.committer.settings.max_items
        if len(self._pending) <= most:
            batch = list(self._pending)
            self._pending.clear()
            self._pending_bytes = 0
            return batch
        batch = [self._pending.popleft() for _ in range(most)]
        self._pending_bytes -= sum(ticket.operations.size_bytes for ticket in batch)
        self._first_at = self._clock.monotonic()
        return batch

    def _commit(self, batch: list[CommitTicket]) -> None:
        outcomes: list[SiltstoneError | None]
        try:
            outcomes = self.committer.commit([ticket.operations for ticket in batch])
        except PoisonedError as exc:
            outcomes = [exc] * len(batch)
        with self._mutex:
            self._stopped = self._closing or self.committer.is_poisoned()
            for ticket, error in zip(batch, outcomes, strict=True):
                ticket.settle(error)
        for ticket in batch:
            ticket.tell()

    def _obey(self, act: Callable[[], None], ticket: Ticket) -> None:
        outcome: Outcome | Exception = _OBEYED
        try:
            act()
        except SiltstoneError as exc:
            outcome = exc
        with self._mutex:
            self._stopped = self._closing or self.committer.is_poisoned()
        ticket.resolve(outcome, None)

    def _look_after(self, keep: Callable[[], None]) -> None:
        """Let generations be turned over and dropped, at most once in a while."""
        now = self._clock.monotonic()
        if now - self._kept_at < _KEEP_SECONDS:
            return
        self._kept_at = now
        try:
            keep()
        except SiltstoneError:
            # What is due stays due, and poison is kept by the committer, which refuses the next
            # call with it.
            return

    def _fail_all(self) -> None:
        """Leave nobody waiting when the thread ends by a mistake of ours."""
        text = "the committing thread has ended, close the database and open it again"
        with self._mutex:
            self._closing = self._stopped = True
            begun = [ticket for ticket in self._taken if not ticket.done]
            waiting = list(self._pending)
            for ticket in begun:
                ticket.settle(OutcomeUnknownError(text))
            for ticket in waiting:
                ticket.settle(PoisonedError(text))
            orders = self._obeyed + [order for _, order in self._orders]
            self._pending.clear()
            self._orders.clear()
            self._condition.notify_all()
        for ticket in begun + waiting:
            ticket.tell()
        for order in orders:
            if not order.done:
                order.resolve(PoisonedError(text), None)


_OBEYED: Final = Outcome(
    duplicate=False,
    count=0,
    timestamp_us=0,
    frame_serial=0,
    frame_timestamp_us=0,
    frame_places=None,
)
