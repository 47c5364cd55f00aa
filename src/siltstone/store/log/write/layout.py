"""The log layout of one shard: it stores calls as frames and turns generations over. Compiled.

A lock protects the refused sequences, which threads share. Everything else belongs to the thread of
the shard.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Container, Sequence
from itertools import groupby
from threading import Lock
from typing import Final

from siltstone.clock import Clock
from siltstone.errors import RetryError, SiltstoneError
from siltstone.store.log.write.committer import Committer
from siltstone.store.log.write.frame_builder import Call
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.refused_sequences import RefusedSequences
from siltstone.store.writer.ticket import Outcome

_LOG: Final = logging.getLogger("siltstone.store")
# A frame holds at most this much, unless a single call is larger.
_FRAME_BYTES: Final = 16 * 1024 * 1024
_FRAME_ROWS: Final = 1 << 20
# How long the header of a segment may be behind the frames on the disk.
_MARKS_SECONDS: Final = 1.0

TurnOver = Callable[[Committer], Committer]
# Returns for each call its outcome if it is not to be stored now, else None.
Examine = Callable[[Sequence[Call]], list[Outcome | Exception | None]]
# Returns the error that refuses this number of bytes; None if they may be stored.
Admit = Callable[[int], SiltstoneError | None]


class LogLayout:
    """Stores the calls of one shard of a log."""

    batch_items_max: Final = _FRAME_ROWS
    batch_bytes_max: Final = _FRAME_BYTES

    def __init__(
        self,
        number: int,
        committer: Committer,
        clock: Clock,
        *,
        turn_over: TurnOver,
        admit: Admit,
        housekeeping: Callable[[], None],
        examine: Examine | None = None,
    ) -> None:
        self.number = number
        self.committer = committer
        self.admit = admit
        self._clock = clock
        self._turn_over = turn_over
        self._housekeeping = housekeeping
        self._examine = examine
        self._refused = RefusedSequences()
        self._refused_lock = Lock()
        self._written_at = 0.0

    @property
    def flush_settings(self) -> DatabaseSettings:
        """The current settings."""
        return self.committer.settings

    def turn(self, turn_over: TurnOver | None = None) -> None:
        """Turn the generation over now. Only from the thread of the shard."""
        self.committer = (turn_over or self._turn_over)(self.committer)

    def refused(self, call: Call) -> None:
        """Remember that a producer must repeat this call before a later one is accepted.

        A call that was stored before is not remembered. From any thread.
        """
        if call.producer:
            with self._refused_lock:
                if not self.committer.has_stored(call.producer, call.sequence):
                    self._refused.add(call.producer, call.sequence)

    def check(self) -> None:
        """Raise PoisonedError if a write or sync of the shard failed."""
        self.committer.check()

    def is_poisoned(self) -> bool:
        """Return whether a write or sync of the shard failed."""
        return self.committer.poisoned_by is not None

    def commit(self, batch: list[Call]) -> list[Outcome | Exception]:
        """Store the calls; of a replicated shard, those that it may store."""
        if self._examine is None:
            return self._commit(batch)
        found = self._examine(batch)
        wanted = [call for call, known in zip(batch, found, strict=True) if known is None]
        stored = iter(self._commit(wanted) if wanted else ())
        return [next(stored) if known is None else known for known in found]

    def _commit(self, batch: list[Call]) -> list[Outcome | Exception]:
        """Store the admitted calls; remember which calls a producer must repeat."""
        if len(batch) == 1 and not batch[0].producer:
            refusal = self._refusal(batch[0], 0, ())
            return self._store(batch) if refusal is None else [refusal]
        admitted: list[Call] = []
        size = 0
        # A repeated call may come before the later calls of its producer in the same flush.
        coming: defaultdict[bytes, set[int]] = defaultdict(set)
        refusals: list[SiltstoneError | None] = []
        for call in batch:
            refusal = self._refusal(call, size, coming[call.producer])
            refusals.append(refusal)
            if refusal is None:
                size += call.size_bytes
                coming[call.producer].add(call.sequence)
                admitted.append(call)
        outcomes: list[Outcome | Exception | None] = list(refusals)
        if self._examine is not None and len(admitted) < len(batch):
            # A call must not be stored if the call before it was refused, which may just have
            # happened.
            found = iter(self._examine(admitted))
            outcomes = [next(found) if refusal is None else refusal for refusal in refusals]
        wanted = [call for call, known in zip(batch, outcomes, strict=True) if known is None]
        stored = iter(self._store(wanted))
        settled = [next(stored) if known is None else known for known in outcomes]
        for call, outcome in zip(batch, settled, strict=True):
            if isinstance(outcome, RetryError):
                self.refused(call)
            elif call.producer:
                with self._refused_lock:
                    self._refused.settle(call.producer, call.sequence)
        return settled

    def idle_seconds(self) -> float | None:
        """Return the seconds without work after which `look_after` is due; None means never."""
        settings = self.committer.settings
        seconds = 1.0 if settings.rotate_seconds or settings.retain_seconds else None
        if self.committer.unsynced:
            interval = settings.sync_interval
            seconds = interval if seconds is None else min(seconds, interval)
        elif self.committer.has_old_marks:
            seconds = _MARKS_SECONDS if seconds is None else min(seconds, _MARKS_SECONDS)
        return seconds

    def look_after(self) -> None:
        """Do the maintenance that is due: sync written rows, turn generations over, drop them,
        allocate disk space and prepare a segment ahead, add frames to the word index.

        Close the file descriptor if it is not needed.
        """
        try:
            self._sync_in_time()
            self._housekeeping()
            self.committer.allocate_ahead()
            self.committer.prepare_ahead()
            self.committer.index_words()
        finally:
            self.committer.park()

    def _sync_in_time(self) -> None:
        """Sync rows that were written without a sync, when `sync_interval` has passed, and the
        header of the segment, when `_MARKS_SECONDS` have passed.
        """
        committer = self.committer
        if not committer.unsynced and not committer.has_old_marks:
            self._written_at = 0.0
            return
        now = self._clock.monotonic()
        if self._written_at == 0.0:
            self._written_at = now
        interval = committer.settings.sync_interval if committer.unsynced else _MARKS_SECONDS
        if now - self._written_at >= interval:
            committer.sync()
            committer.renew_marks()
            self._written_at = 0.0

    def release(self) -> SiltstoneError | None:
        """Sync and close the files; return the error that prevented it."""
        try:
            self.committer.close()
        except SiltstoneError as exc:
            return exc
        return None

    def fail(self, cause: Exception) -> tuple[SiltstoneError, SiltstoneError]:
        """Poison the shard after an internal error."""
        error = self.committer.poison(cause)
        return error, error

    def _store(self, calls: list[Call]) -> list[Outcome | Exception]:
        stored: list[Outcome | Exception] = []
        if len(calls) == 1 and calls[0].block is None:
            # The flush of a few rows: the same without the groups.
            try:
                return self.committer.commit(calls)
            except SiltstoneError as exc:
                return [exc]
        for has_block, group in groupby(calls, key=_has_block):
            run = list(group)
            try:
                if has_block:
                    stored += self.committer.commit_blocks(run)
                else:
                    stored += self.committer.commit(run)
            except SiltstoneError as exc:
                stored += [exc] * len(run)
        return stored

    def _refusal(
        self, call: Call, size_bytes: int, coming: Container[int]
    ) -> SiltstoneError | None:
        """Return the error that refuses a call; None if the call may be stored.

        `size_bytes` is the size of the calls before it in the flush. `coming` has the numbers of
        those that have the same producer.
        """
        if call.producer:
            with self._refused_lock:
                owed = self._refused.first_before(call.producer, call.sequence, coming)
            if owed is not None:
                # If it were stored now, the earlier call would look like a repetition later.
                return RetryError(
                    f"an earlier call of this producer was refused, repeat that call first: "
                    f"sequence={call.sequence} refused={owed}"
                )
        try:
            return self.admit(size_bytes + call.size_bytes)
        except SiltstoneError as exc:
            return exc


def _has_block(call: Call) -> bool:
    return call.block is not None
