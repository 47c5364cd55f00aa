"""The ticket of a transaction that was handed in: how its client learns the outcome. Compiled.

Groups are settled many at a time, so a ticket has no lock of its own: it shares the one of its
queue, and gets something to wait on only when somebody waits.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Self

from siltstone.errors import OutcomeUnknownError
from siltstone.store.tx.operations import Operations
from siltstone.store.writer.queue import Queued
from siltstone.store.writer.ticket import ORDER_DONE, Ticket


class CommitTicket(Queued):
    """A promise of an outcome: settled by the shard's thread, awaited by any."""

    def __init__(self, operations: Operations, mutex: Lock) -> None:
        super().__init__()
        self.operations = operations
        self.size_bytes = operations.size_bytes
        self._mutex = mutex
        self._waiter: Lock | None = None
        # Has the callbacks, if any: it calls back so that a mistake there stays there.
        self._relay: Ticket | None = None
        self.done = False
        self.error: Exception | None = None

    @property
    def serial(self) -> int:
        """The serial of the commit; -1 before it."""
        return self.operations.serial

    @property
    def duplicate(self) -> bool:
        """Whether a transaction with this id was committed before; then this one did nothing."""
        return self.operations.duplicate

    def wait(self, timeout: float | None = None) -> Self:
        """Wait for the outcome and return the ticket.

        Raises: OutcomeUnknownError when time runs out; the error that befell the transaction.
        """
        if not self.done and not self._wait(timeout):
            raise OutcomeUnknownError(f"the outcome is not known after {timeout} seconds")
        error = self.error
        if error is not None:
            # Without the traces of earlier calls, or each would keep its caller's frames alive.
            raise error.with_traceback(None)
        return self

    def on_done(self, callback: Callable[[CommitTicket], None]) -> None:
        """Call back when the outcome is known, from whatever thread makes it known; at once if it
        is.
        """
        with self._mutex:
            if not self.done:
                if self._relay is None:
                    self._relay = Ticket(0, 1, waits=True)
                self._relay.on_done(lambda _: callback(self))
                return
        callback(self)

    def settle(self, error: Exception | None) -> None:
        """Set the outcome; the caller holds the lock that the ticket shares, and then tells it."""
        self.error = error
        self.done = True

    def tell(self) -> None:
        """Let those know who wait, once it is settled."""
        if self._waiter is not None:
            self._waiter.release()
        if self._relay is not None:
            self._relay.resolve(ORDER_DONE, None)

    def _wait(self, timeout: float | None) -> bool:
        with self._mutex:
            if self.done:
                return True
            waiter = self._waiter
            if waiter is None:
                waiter = self._waiter = Lock()
                waiter.acquire()
        if not waiter.acquire(timeout=-1 if timeout is None else timeout):
            return False
        # Passed on to the next who waits.
        waiter.release()
        return True
