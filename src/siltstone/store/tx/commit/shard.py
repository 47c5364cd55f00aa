"""One shard of a key-value database that this process writes: transactions are queued for its
thread. Compiled.
"""

from __future__ import annotations

from collections.abc import Callable

from siltstone.clock import Clock
from siltstone.store.tx.commit.committer import Committer
from siltstone.store.tx.commit.layout import KeyValueLayout
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.operations import Operations
from siltstone.store.writer.queue import ShardWriter


class KeyValueShard:
    """One shard of a key-value database that this process writes."""

    def __init__(
        self, committer: Committer, clock: Clock, keep: Callable[[], None] | None = None
    ) -> None:
        """Create the queue; its thread calls `keep` once a second if there are limits."""
        self._layout = KeyValueLayout(committer, clock, keep)
        self._writer: ShardWriter[Operations] = ShardWriter(
            "tx", committer.record.shard, self._layout, clock
        )
        if self._layout.idle_seconds() is not None:
            self._writer.start()

    @property
    def committer(self) -> Committer:
        """The committer. It belongs to the thread of the shard."""
        return self._layout.committer

    def submit(self, operations: Operations, timeout: float | None) -> CommitTicket:
        """Queue a transaction; wait while too many bytes are pending.

        Raises: OverloadedError if too many are still pending at the timeout; PoisonedError;
        ClosedError.
        """
        ticket = CommitTicket(operations, self._writer.mutex)
        self._writer.submit(operations, ticket, timeout)
        return ticket

    def settled(self, operations: Operations) -> CommitTicket:
        """Return the settled ticket of a transaction that has nothing to commit."""
        ticket = CommitTicket(operations, self._writer.mutex)
        ticket.resolve(None, None)
        return ticket

    def withdraw(self, ticket: CommitTicket) -> bool:
        """Remove a waiting transaction from the queue; return False if it waits no more."""
        return self._writer.withdraw(ticket.operations)

    def order(self, act: Callable[[], None]) -> None:
        """Make the thread call `act` after everything queued so far; return when it is done.

        Raises: the errors of `act`, PoisonedError, ClosedError.
        """

        def obey() -> None:
            act()
            self._writer.look_after()

        self._writer.order(obey).wait()

    def close(self) -> None:
        """Commit the queued transactions and end the thread."""
        self._writer.close()
