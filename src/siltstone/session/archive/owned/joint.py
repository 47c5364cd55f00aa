"""Saves of many owners in one transaction.

A transaction, its ticket and its way through the queue cost more than the row of a position. The
positions of many sessions are therefore saved together. Each save requires its own owner.

Invariant: if the owner of one save has changed, nothing is stored, and every save gets a
RetryError. Each owner then saves alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from siltstone.errors import (
    OutcomeUnknownError,
    PreconditionError,
    RetryError,
    SiltstoneError,
)
from siltstone.guard import contain_with
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.transaction import Transaction

# The most saves in one transaction, and the bytes of rows after which the next one begins.
_SAVES_MAX: Final = 256
_BYTES_MAX: Final = 1024 * 1024

BeginTransaction = Callable[[], Transaction]


class JointTicket:
    """The ticket of a transaction that may not be submitted yet."""

    __slots__ = ("_callbacks", "_error", "_ticket", "_tx", "saves", "size_bytes")

    def __init__(self, tx: Transaction) -> None:
        self._tx: Transaction | None = tx
        self._ticket: CommitTicket | None = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[JointTicket], None]] = []
        self.saves = 0
        self.size_bytes = 0

    @property
    def transaction(self) -> Transaction:
        """The transaction, before it is submitted."""
        assert self._tx is not None
        return self._tx

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._error is not None or (self._ticket is not None and self._ticket.done)

    @property
    def error(self) -> Exception | None:
        """The error of the commit, for each of the saves."""
        error = self._error
        if error is None and self._ticket is not None:
            error = self._ticket.error
        if isinstance(error, PreconditionError) and self.saves > 1:
            return RetryError("one of the sessions that were saved together has another owner")
        return error

    def on_done(self, callback: Callable[[JointTicket], None]) -> None:
        """Call `callback` when the outcome is known; it may run in any thread."""
        if self._tx is not None:
            self._callbacks.append(callback)
        elif self._ticket is None:
            callback(self)
        else:
            self._ticket.on_done(lambda _: callback(self))

    def submit(self) -> None:
        """Submit the transaction; its errors become those of the ticket."""
        tx, self._tx = self.transaction, None
        callbacks, self._callbacks = self._callbacks, []
        contain_with(self._hand_in, tx, self._mistaken)
        if self._ticket is None:
            self._tell(callbacks)
        else:
            self._ticket.on_done(lambda _: self._tell(callbacks))

    def _hand_in(self, tx: Transaction) -> None:
        try:
            self._ticket = tx.submit()
        except SiltstoneError as exc:
            self._error = exc

    def _mistaken(self) -> None:
        self._error = OutcomeUnknownError("internal error: see the log of the broker")

    def _tell(self, callbacks: list[Callable[[JointTicket], None]]) -> None:
        for callback in callbacks:
            contain_with(callback, self)


class JointSaves:
    """The saves of one turn. They are stored after `submit`. It belongs to one thread."""

    def __init__(self) -> None:
        # The open transaction of each shard.
        self._open: dict[int, JointTicket] = {}

    def join(self, shard: int, begin: BeginTransaction, size_bytes: int) -> JointTicket:
        """Return the ticket of the transaction for one more save.

        Raises: ClosedError, PoisonedError.
        """
        ticket = self._open.get(shard)
        if ticket is not None and (ticket.saves >= _SAVES_MAX or ticket.size_bytes > _BYTES_MAX):
            # Removed first: beginning another transaction may fail.
            del self._open[shard]
            ticket.submit()
            ticket = None
        if ticket is None:
            ticket = self._open[shard] = JointTicket(begin())
        ticket.saves += 1
        ticket.size_bytes += size_bytes
        return ticket

    def submit(self) -> None:
        """Submit the open transactions."""
        tickets, self._open = list(self._open.values()), {}
        for ticket in tickets:
            ticket.submit()
