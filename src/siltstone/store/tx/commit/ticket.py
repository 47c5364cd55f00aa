"""The ticket of a submitted transaction: it reports the outcome to the caller. Compiled."""

from __future__ import annotations

from threading import Lock

from siltstone.store.tx.operations import Operations
from siltstone.store.writer.ticket import Ticket


class CommitTicket(Ticket):
    """The result of a commit. The shard thread sets the outcome; any thread can wait for it."""

    def __init__(self, operations: Operations, mutex: Lock) -> None:
        super().__init__(0, 1, mutex=mutex)
        self.operations = operations

    @property
    def serial(self) -> int:
        """The serial of the commit; -1 before the commit."""
        return self.operations.serial

    @property
    def duplicate(self) -> bool:
        """Whether a transaction with this id was committed before; then this one stored nothing."""
        return self.operations.duplicate
