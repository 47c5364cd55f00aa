"""Combines small sends to one topic into appends.

At most two appends of a topic are in progress: one that is being synced, and one that follows as
soon as the disk is free. Sends that arrive meanwhile form the next append. All code here runs on
the event loop; the thread of a shard only schedules a callback there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from siltstone.errors import OverloadedError, SiltstoneError
from siltstone.guard import contain
from siltstone.store.writer.ticket import Ticket
from siltstone.topiclog.log import Log
from siltstone.topiclog.tables import joined_offsets

# Receives the outcome of a send: its first offset, or an error.
Settle = Callable[[int | Exception], None]
Soon = Callable[[Callable[[], None]], object]

_UNDER_WAY_MAX: Final = 2
_APPEND_BYTES: Final = 8 * 1024 * 1024


class _Part:
    """One send, in the format of the store."""

    __slots__ = ("offsets", "settle", "values")

    def __init__(self, offsets: bytes, values: bytes, settle: Settle) -> None:
        self.offsets = offsets
        self.values = values
        self.settle = settle


class TopicQueue:
    """The small sends to one topic, in order."""

    def __init__(self, log: Log, soon: Soon, soon_from_thread: Soon) -> None:
        self._log = log
        self._soon = soon
        self._soon_from_thread = soon_from_thread
        self._waiting: deque[_Part] = deque()
        self._under_way = 0
        self._flush_due = False
        self.pending_bytes = 0

    def add(self, offsets: bytes, values: bytes, settle: Settle) -> None:
        """Add a send; it is stored together with others of this turn of the event loop."""
        self._waiting.append(_Part(offsets, values, settle))
        self.pending_bytes += len(values)
        if not self._flush_due:
            self._flush_due = True
            self._soon(self._flush)

    def _flush(self) -> None:
        self._flush_due = False
        while self._waiting and self._under_way < _UNDER_WAY_MAX:
            if not self._submit(self._take()):
                break

    def _take(self) -> list[_Part]:
        parts: list[_Part] = []
        size = 0
        while self._waiting and (not parts or size + len(self._waiting[0].values) <= _APPEND_BYTES):
            part = self._waiting.popleft()
            size += len(part.values)
            parts.append(part)
        return parts

    def _submit(self, parts: list[_Part]) -> bool:
        """Append the sends to the log in one call; return whether the next may follow now."""
        values = [part.values for part in parts]
        offsets = joined_offsets([part.offsets for part in parts], [len(item) for item in values])
        self._under_way += 1

        def done(ticket: Ticket) -> None:
            self._soon_from_thread(lambda: self._settle(parts, ticket))

        try:
            ticket = self._log.append(offsets, b"".join(values), timeout=0.0)
        except OverloadedError as exc:
            self._under_way -= 1
            if self._under_way:
                self._waiting.extendleft(reversed(parts))
                return False
            # No append of this queue is in progress that would call `_flush` when it ends.
            self._tell(parts, exc)
        except SiltstoneError as exc:
            self._under_way -= 1
            self._tell(parts, exc)
        else:
            ticket.on_done(done)
        return True

    def _settle(self, parts: list[_Part], ticket: Ticket) -> None:
        self._under_way -= 1
        self._tell(parts, ticket.error or ticket.first_serial())
        self._flush()

    def _tell(self, parts: list[_Part], outcome: int | Exception) -> None:
        for part in parts:
            self.pending_bytes -= len(part.values)
            told = outcome
            _call(part.settle, told)
            if isinstance(outcome, int):
                outcome += len(part.offsets) // 4 - 1


def _call(settle: Settle, outcome: int | Exception) -> None:
    contain(lambda: settle(outcome))
