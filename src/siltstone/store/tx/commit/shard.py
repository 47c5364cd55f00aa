"""The key-value layout of one shard: transactions become groups. Compiled.

The writer owns the queue and the thread; the committer belongs to the thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from siltstone.clock import Clock
from siltstone.errors import OutcomeUnknownError, PoisonedError, SiltstoneError
from siltstone.store.tx.commit.committer import Committer
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.operations import Operations
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.writer.queue import ShardWriter
from siltstone.store.writer.ticket import Outcome

_KEEP_SECONDS: Final = 1.0
# A group is cut by the number of its transactions; the committer cuts it by its bytes.
_NO_LIMIT: Final = 1 << 62


class KeyValueShard:
    """One shard of a key-value database that this process writes."""

    def __init__(
        self, committer: Committer, clock: Clock, keep: Callable[[], None] | None = None
    ) -> None:
        """Make the queue; its thread calls `keep` now and then where generations have limits."""
        self.committer = committer
        self._clock = clock
        self._keep = keep
        self._kept_at = clock.monotonic()
        self._writer: ShardWriter[Operations] = ShardWriter(
            "tx", committer.record.shard, self, clock
        )
        if self.idle_seconds() is not None:
            self._writer.start()

    def submit(self, operations: Operations, timeout: float | None) -> CommitTicket:
        """Queue a transaction; wait while too much is pending.

        Raises: OverloadedError when there is no room in time, PoisonedError, ClosedError.
        """
        ticket = CommitTicket(operations, self._writer.mutex)
        self._writer.submit(operations, ticket, timeout)
        return ticket

    def settled(self, operations: Operations) -> CommitTicket:
        """Return the ticket of a transaction that asks for nothing."""
        ticket = CommitTicket(operations, self._writer.mutex)
        ticket.resolve(None, None)
        return ticket

    def withdraw(self, ticket: CommitTicket) -> bool:
        """Take a transaction back; say whether it was still waiting, so that nothing happened."""
        return self._writer.withdraw(ticket.operations)

    def order(self, act: Callable[[], None]) -> None:
        """Let the thread act behind everything queued so far; return when it has.

        Raises: what act raises, PoisonedError, ClosedError.
        """

        def obey() -> None:
            act()
            self.look_after()

        self._writer.order(obey).wait()

    def close(self) -> None:
        """Commit what is queued and end the thread."""
        self._writer.close()

    # The layout, for the writer.

    @property
    def flush_settings(self) -> KeyValueSettings:
        """The settings in force."""
        return self.committer.settings

    @property
    def batch_items_max(self) -> int:
        """The number of transactions of a group."""
        return self.committer.settings.max_items

    @property
    def batch_bytes_max(self) -> int:
        """The bytes of a group."""
        return _NO_LIMIT

    def check(self) -> None:
        """Raise PoisonedError when a write has failed here."""
        self.committer.check()

    def is_poisoned(self) -> bool:
        """Say whether a write has failed here."""
        return self.committer.is_poisoned()

    def refused(self, call: Operations) -> None:
        """Do nothing: a transaction that found no room leaves nothing behind."""

    def commit(self, batch: list[Operations]) -> Sequence[Outcome | Exception | None]:
        """Store the transactions that may be stored."""
        try:
            return self.committer.commit(batch)
        except PoisonedError as exc:
            return [exc] * len(batch)

    def idle_seconds(self) -> float | None:
        """Return after how long without work generations are looked after; None: never."""
        has_limits = self._keep is not None and self.committer.settings.has_limits
        return _KEEP_SECONDS if has_limits else None

    def look_after(self) -> None:
        """Let generations be turned over and dropped, at most once in a while."""
        if self._keep is None or not self.committer.settings.has_limits:
            return
        now = self._clock.monotonic()
        if now - self._kept_at < _KEEP_SECONDS:
            return
        self._kept_at = now
        try:
            self._keep()
        except SiltstoneError:
            # What is due stays due, and poison is kept by the committer, which refuses the next
            # call with it.
            return

    def release(self) -> SiltstoneError | None:
        """Do nothing: the engine belongs to the database."""
        return None

    def fail(self, cause: Exception) -> tuple[SiltstoneError, SiltstoneError]:
        """Say that the thread has ended."""
        text = "the committing thread has ended, close the database and open it again"
        unknown, refused = OutcomeUnknownError(text), PoisonedError(text)
        unknown.__cause__ = refused.__cause__ = cause
        return unknown, refused
