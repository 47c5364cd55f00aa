"""One shard of a key-value database that this process writes: transactions are queued for its
thread. Compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from siltstone.clock import Clock
from siltstone.store.tx.commit.committer import TransactionCommitter
from siltstone.store.tx.commit.layout import KeyValueLayout, SharedCommits
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.operations import Operations
from siltstone.store.writer.queue import ShardWriter
from siltstone.store.writer.ticket import Ticket


class TransactionRouter(Protocol):
    """Brings transactions to the site that leads a shard."""

    def submit(self, operations: Operations, ticket: CommitTicket, timeout: float | None) -> None:
        """Commit a transaction where the shard is led. Raises: OverloadedError, ClosedError."""

    def confirm(self, operations: Operations, ticket: CommitTicket) -> None:
        """Settle a transaction that only read, if its term has not ended."""

    def withdraw(self, ticket: CommitTicket) -> bool:
        """Remove a transaction that no leader has; return False if one may have it."""


class KeyValueShard:
    """One shard of a key-value database that this process writes.

    If all sites of a cluster share the shard, `router` brings transactions to its leader, and the
    queue has those of all sites while this site leads.
    """

    def __init__(
        self, committer: TransactionCommitter, clock: Clock, keep: Callable[[], None] | None = None
    ) -> None:
        """Create the queue; its thread calls `keep` once a second if there are limits."""
        self._layout = KeyValueLayout(committer, clock, keep)
        self._writer: ShardWriter[Operations] = ShardWriter(
            "tx", committer.record.shard, self._layout, clock
        )
        self._router: TransactionRouter | None = None
        if self._layout.idle_seconds() is not None:
            self._writer.start()

    def share(self, shared: SharedCommits, router: TransactionRouter) -> None:
        """Commit through a log that all sites of a cluster share, from now on."""
        self._layout.shared = shared
        self._router = router

    @property
    def is_shared(self) -> bool:
        """Whether all sites of a cluster share the shard."""
        return self._router is not None

    @property
    def committer(self) -> TransactionCommitter:
        """The committer. It belongs to the thread of the shard."""
        return self._layout.committer

    def submit(self, operations: Operations, timeout: float | None) -> CommitTicket:
        """Queue a transaction; wait while too many bytes are pending.

        Raises: OverloadedError if too many are still pending at the timeout; PoisonedError;
        ClosedError.
        """
        ticket = CommitTicket(operations, self._writer.mutex)
        if self._router is not None:
            # This site would never read the record with the outcome.
            self.committer.check()
            self._router.submit(operations, ticket, timeout)
        else:
            self._writer.submit(operations, ticket, timeout)
        return ticket

    def submit_here(self, operations: Operations, ticket: Ticket) -> None:
        """Queue a transaction on this site, which leads the shard.

        Raises: OverloadedError, PoisonedError, ClosedError.
        """
        self._writer.submit(operations, ticket, 0.0)

    def settled(self, operations: Operations) -> CommitTicket:
        """Return the ticket of a transaction that has nothing to commit; it is settled, or soon."""
        ticket = CommitTicket(operations, self._writer.mutex)
        if self._router is not None:
            self._router.confirm(operations, ticket)
        else:
            ticket.resolve(None, None)
        return ticket

    def withdraw(self, ticket: CommitTicket) -> bool:
        """Remove a waiting transaction from the queue; return False if it waits no more."""
        if self._router is not None:
            return self._router.withdraw(ticket)
        return self._writer.withdraw(ticket.operations)

    def post(self, act: Callable[[], None]) -> Ticket:
        """Make the thread call `act` after everything queued so far; do not wait.

        Raises: PoisonedError, ClosedError.
        """
        return self._writer.order(act)

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
