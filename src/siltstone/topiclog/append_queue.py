"""The sends to one topic, in the order in which they arrived; small ones are combined.

At most two appends of small sends are in progress: one that is being synced, and one that follows
as soon as the disk is free. Sends that arrive meanwhile form the next append. A large send is
already in its segment, so it is an append of its own; it waits only for small sends that arrived
before it. All code here runs on the event loop; the thread of a shard only schedules a callback
there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from siltstone.errors import OverloadedError, SiltstoneError
from siltstone.guard import contain
from siltstone.store.segment.writer import Room
from siltstone.store.writer.ticket import Ticket
from siltstone.topiclog.log import Log
from siltstone.topiclog.tables import joined_offsets

# Receives the outcome of a send: its first offset, or an error.
Settle = Callable[[int | Exception], None]
Soon = Callable[[Callable[[], None]], object]

_UNDER_WAY_MAX: Final = 2
_APPEND_BYTES: Final = 8 * 1024 * 1024


class _Part:
    """One send, in the format of the store: its values, or the room that holds them."""

    __slots__ = ("offsets", "room", "settle", "values")

    def __init__(self, offsets: bytes, values: bytes, settle: Settle, room: Room | None) -> None:
        self.offsets = offsets
        self.values = values
        self.settle = settle
        self.room = room


class TopicQueue:
    """The sends to one topic, in order."""

    def __init__(self, log: Log, soon: Soon, soon_from_thread: Soon) -> None:
        self._log = log
        self._soon = soon
        self._soon_from_thread = soon_from_thread
        self._waiting: deque[_Part] = deque()
        self._under_way = 0
        self._flush_due = False
        self.pending_bytes = 0

    def add(self, offsets: bytes, values: bytes, settle: Settle) -> None:
        """Add a small send; it is stored together with others of this turn of the event loop."""
        self._waiting.append(_Part(offsets, values, settle, None))
        self.pending_bytes += len(values)
        if not self._flush_due:
            self._flush_due = True
            self._soon(self._flush)

    def add_room(self, offsets: bytes, room: Room, settle: Settle) -> None:
        """Add a large send; it is stored now, or after the small sends that wait."""
        part = _Part(offsets, b"", settle, room)
        if self._waiting:
            self._waiting.append(part)
        else:
            self._submit_room(part, room)

    def _flush(self) -> None:
        self._flush_due = False
        while self._waiting:
            room = self._waiting[0].room
            if room is not None:
                self._submit_room(self._waiting.popleft(), room)
            elif self._under_way == _UNDER_WAY_MAX or not self._submit(self._take()):
                break

    def _take(self) -> list[_Part]:
        """Take the small sends of the next append, up to a large one."""
        parts: list[_Part] = []
        size = 0
        while self._waiting:
            part = self._waiting[0]
            size += len(part.values)
            if part.room is not None or (parts and size > _APPEND_BYTES):
                break
            parts.append(self._waiting.popleft())
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

    def _submit_room(self, part: _Part, room: Room) -> None:
        def done(ticket: Ticket) -> None:
            self._soon_from_thread(lambda: self._tell([part], _outcome(ticket)))

        try:
            ticket = self._log.append_room(part.offsets, room, timeout=0.0)
        except SiltstoneError as exc:
            self._tell([part], exc)
        else:
            ticket.on_done(done)

    def _settle(self, parts: list[_Part], ticket: Ticket) -> None:
        self._under_way -= 1
        self._tell(parts, _outcome(ticket))
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


def _outcome(ticket: Ticket) -> int | Exception:
    return ticket.error or ticket.first_serial()
