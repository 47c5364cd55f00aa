"""The ticket of a transaction that was submitted: how its client learns the outcome. Compiled."""

from __future__ import annotations

from threading import Lock

from siltstone.store.tx.operations import Operations
from siltstone.store.writer.ticket import Ticket


class CommitTicket(Ticket):
    """A promise of an outcome: settled by the shard's thread, awaited by any."""

    def __init__(self, operations: Operations, mutex: Lock) -> None:
        super().__init__(0, 1, mutex=mutex)
        self.operations = operations

    @property
    def serial(self) -> int:
        """The serial of the commit; -1 before it."""
        return self.operations.serial

    @property
    def duplicate(self) -> bool:
        """Whether a transaction with this id was committed before; then this one did nothing."""
        return self.operations.duplicate
