"""One shard of a log that this process writes: calls and orders are queued for its thread."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from siltstone.clock import Clock
from siltstone.errors import SiltstoneError
from siltstone.store.log.write.committer import Committer
from siltstone.store.log.write.frame_builder import Call
from siltstone.store.log.write.layout import LogLayout, TurnOver
from siltstone.store.segment.writer import Room
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.queue import ShardWriter
from siltstone.store.writer.ticket import Ticket


class LogShard:
    """One shard of a log that this process writes."""

    def __init__(self, layout: LogLayout, clock: Clock) -> None:
        self.number = layout.number
        self._layout = layout
        self._writer: ShardWriter[Call] = ShardWriter("shard", layout.number, layout, clock)
        if self._layout.idle_seconds() is not None:
            self._writer.start()

    @property
    def committer(self) -> Committer:
        """The committer of the current generation."""
        return self._layout.committer

    def turn(self, turn_over: TurnOver | None = None) -> None:
        """Turn the generation over now. Only from the thread of the shard."""
        self._layout.turn(turn_over)

    def submit(self, call: Call, ticket: Ticket, timeout: float | None) -> None:
        """Queue a call; wait while too many bytes are pending.

        Raises: OverloadedError if too many are still pending at the timeout; PoisonedError;
        ClosedError.
        """
        self._writer.submit(call, ticket, timeout)

    def commit_here(self, call: Call, ticket: Ticket) -> bool:
        """Commit a call on this thread, synced, and settle its ticket. Return False if nothing
        happened, because the thread of the shard must do it.
        """
        if not self.committer.is_handy(call.size_bytes):
            return False
        return self._writer.commit_here(call, ticket)

    def refused(self, call: Call) -> None:
        """Remember that a producer must repeat a call that another shard refused."""
        self._layout.refused(call)

    def take_room(self, size: int, *, rows: int, topic: bytes) -> Room | None:
        """Take a room for values at once; return None if that needs a new segment.

        Raises: QuotaExceededError, StorageFullError, PoisonedError, ClosedError.
        """
        self._writer.check_open()
        refusal = self._layout.admit(size)
        if refusal is not None:
            raise refusal
        return self.committer.take_room(size, rows=rows, topic=topic)

    def make_room(
        self, size: int, *, rows: int, topic: bytes, then: Callable[[Room | Exception], None]
    ) -> None:
        """Take a room for values after everything queued so far; begin a new segment if necessary.

        `then` is called with the room or an error, on the thread of the shard; on the caller's
        thread if the room was taken before this returns.

        Raises: PoisonedError, ClosedError.
        """
        found: list[Room] = []

        def act() -> None:
            found.append(self.committer.make_room(size, rows=rows, topic=topic))

        ticket = self._order(act)
        ticket.on_done(lambda ticket: then(ticket.error or found[0]))

    def give_up_room(self, room: Room) -> None:
        """Give up a room that no frame will refer to."""
        self.committer.give_up_room(room)

    def seal(self, turn_over: TurnOver | None = None) -> None:
        """Turn the generation over after everything queued so far; return when it is done.

        `turn_over` replaces the usual function if it is given.
        """
        self._order(partial(self.turn, turn_over)).wait()

    def end_scattered(self, frames_min: int, rows_max: int, before_us: int) -> None:
        """End the active segment after everything queued so far, if it is scattered."""

        def act() -> None:
            if self.committer.is_scattered(frames_min, rows_max, before_us):
                self.committer.end_segment()

        self._order(act).wait()

    def seal_before(self, serial: int, size_bytes: int) -> bool:
        """Turn the generation over after everything queued so far; return whether it was done.

        It is done only if the generation has rows, all of them before `serial`, and takes at least
        `size_bytes` of disk space.
        """
        turned: list[bool] = []

        def act() -> None:
            committer = self.committer
            is_whole = committer.next_serial <= serial and committer.rows > 0
            if is_whole and committer.size_bytes() >= size_bytes:
                self.turn()
                turned.append(True)

        self._order(act).wait()
        return bool(turned)

    def sync(self) -> None:
        """Make everything queued so far durable."""

        def act() -> None:
            # Look up the committer when the order runs: a turnover before may replace it.
            self.committer.sync()

        self._order(act).wait()

    def configure(self, settings: DatabaseSettings) -> None:
        """Apply settings after everything queued so far."""

        def change() -> None:
            self.committer.configure(settings)

        self._order(change).wait()

    def close(self) -> SiltstoneError | None:
        """Commit the queued calls and end the thread; return the error of the last sync."""
        return self._writer.close()

    def order(self, act: Callable[[], None]) -> Ticket:
        """Run a function on the thread of the shard, behind everything queued so far.

        Raises: PoisonedError, ClosedError.
        """
        return self._order(act)

    def _order(self, act: Callable[[], None]) -> Ticket:
        def obey() -> None:
            try:
                act()
            finally:
                self.committer.park()

        return self._writer.order(obey)
