"""The key-value layout of one shard: it stores transactions in groups. Compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from siltstone.clock import Clock
from siltstone.errors import OutcomeUnknownError, PoisonedError, SiltstoneError
from siltstone.store.tx.commit.committer import TransactionCommitter
from siltstone.store.tx.operations import Operations
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.writer.ticket import Outcome

_KEEP_SECONDS: Final = 1.0
# The writer limits the transactions of a group; the committer limits its bytes.
_NO_LIMIT: Final = 1 << 62


class SharedCommits(Protocol):
    """Commits the transactions of a shard that all sites of a cluster share."""

    def commit(self, batch: list[Operations]) -> Sequence[SiltstoneError | None]:
        """Store the valid transactions; return the outcome of each. Raises: PoisonedError."""


class KeyValueLayout:
    """Stores the transactions of one shard. It belongs to the thread of the shard."""

    def __init__(
        self, committer: TransactionCommitter, clock: Clock, keep: Callable[[], None] | None
    ) -> None:
        self.committer = committer
        self._clock = clock
        self._keep = keep
        self._kept_at = clock.monotonic()
        # The last settings that were looked at, and whether they have limits.
        self._seen: KeyValueSettings | None = None
        self._limited = False
        # Set if all sites of a cluster share the shard.
        self.shared: SharedCommits | None = None

    @property
    def flush_settings(self) -> KeyValueSettings:
        """The current settings."""
        return self.committer.settings

    @property
    def batch_items_max(self) -> int:
        """The maximum number of transactions in one commit."""
        return self.committer.settings.max_items

    @property
    def batch_bytes_max(self) -> int:
        """No limit: the committer limits the bytes of a group."""
        return _NO_LIMIT

    def check(self) -> None:
        """Raise PoisonedError if a write of the shard failed."""
        self.committer.check()

    def is_poisoned(self) -> bool:
        """Return whether a write of the shard failed."""
        return self.committer.is_poisoned()

    def refused(self, call: Operations) -> None:
        """Do nothing: a transaction that found no room changed nothing."""

    def commit(self, batch: list[Operations]) -> Sequence[Outcome | Exception | None]:
        """Store the valid transactions; return the outcome of each."""
        try:
            if self.shared is not None:
                return self.shared.commit(batch)
            return self.committer.commit(batch)
        except PoisonedError as exc:
            return [exc] * len(batch)

    def idle_seconds(self) -> float | None:
        """Return the seconds without work after which `look_after` is due; None means never."""
        return _KEEP_SECONDS if self._has_limits() else None

    def look_after(self) -> None:
        """Turn over and drop generations that are due, at most once a second."""
        if self._keep is None or not self._has_limits():
            return
        now = self._clock.monotonic()
        if now - self._kept_at < _KEEP_SECONDS:
            return
        self._kept_at = now
        self._keep()

    def _has_limits(self) -> bool:
        """Return whether generations must be looked after; asked for each group."""
        settings = self.committer.settings
        if settings is not self._seen:
            self._seen = settings
            self._limited = self._keep is not None and settings.has_limits
        return self._limited

    def release(self) -> SiltstoneError | None:
        """Do nothing: the engine belongs to the database."""
        return None

    def fail(self, cause: Exception) -> tuple[SiltstoneError, SiltstoneError]:
        """Return the errors that report the end of the thread."""
        text = "the committing thread has ended, close the database and open it again"
        unknown, refused = OutcomeUnknownError(text), PoisonedError(text)
        unknown.__cause__ = refused.__cause__ = cause
        return unknown, refused
