"""The pace at which a snapshot is written, so that the event loop stays responsive.

The loop itself encodes the state in memory, in short turns. A thread would hold the GIL meanwhile,
and the loop would wait for a thread that itself waits for a processor. The thread does the work
that does not need the GIL: large contents, compression, the disk. It works in short turns too,
because other threads need the processor. A store, which is on disk, is read in the thread.

While no client sends anything, the loop and the thread do not rest: the snapshot uses all time that
the loop leaves. The first message then waits for one turn of the loop, or of the thread that reads
a store. For the messages after it, both are at their slow pace again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Final

from siltstone.errors import ClosedError
from siltstone.snapshot.format.records import Record
from siltstone.snapshot.writer import SnapshotWriter

# The length of a turn of the loop, and of the rest after it, in which the loop does other work.
_TURN_SECONDS: Final = 0.00015
_TURN_REST_SECONDS: Final = 0.001
# The same for the thread.
_WORK_SECONDS: Final = 0.0001
_REST_SECONDS: Final = 0.0004
_HURRIED_SECONDS: Final = 0.005
# Clients are idle if nothing was received for this long.
_LULL_SECONDS: Final = 0.01
# The turn and rest of a thread while clients are idle. The thread must sleep: if it only released
# the GIL, it would have it back before the loop wakes up.
_LULL_WORK_SECONDS: Final = 0.001
_LULL_REST_SECONDS: Final = 0.00005


class Lull:
    """Finds out whether clients are idle; any thread may ask."""

    def __init__(self, now: Callable[[], float], received: Callable[[], int]) -> None:
        """Watch `received`, a counter of the received bytes."""
        self._now = now
        self._received = received
        self._last_received = received()
        self._since = now()

    def is_on(self) -> bool:
        """Return whether nothing was received for `_LULL_SECONDS`."""
        now = self._now()
        received = self._received()
        if received != self._last_received:
            self._last_received = received
            self._since = now
        return now - self._since >= _LULL_SECONDS


class LoopPace:
    """Fills the writer on the loop, and rests in the thread.

    `hurry` and `stop` are called on the loop, `fill` and `rest` on the thread.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now: Callable[[], float],
        sleep: Callable[[float], None],
        received: Callable[[], int],
    ) -> None:
        """Watch `received`, a counter of the received bytes."""
        self._loop = loop
        self._now = now
        self._sleep = sleep
        # Two objects, because the loop and the thread look at different times.
        self._lull = Lull(now, received)
        self._thread_lull = Lull(now, received)
        self._is_hurried = False
        self._is_stopped = False
        self._filling: Future[bool] | None = None

    def hurry(self) -> None:
        """Do not rest any more: no client is left that would have to wait."""
        self._is_hurried = True

    def stop(self) -> None:
        """Stop filling, because the loop is about to end; the current snapshot fails."""
        self.hurry()
        self._is_stopped = True
        if self._filling is not None:
            self._filling.cancel()

    def fill(self, writer: SnapshotWriter, records: Iterator[Record | None]) -> bool:
        """Let the loop fill the writer. Raises: ClosedError if it was stopped."""
        filling = asyncio.run_coroutine_threadsafe(self._fill(writer, records), self._loop)
        self._filling = filling
        # Check this last: `stop` either sees the future, or its flag is seen here.
        if self._is_stopped:
            filling.cancel()
        try:
            return filling.result()
        except CancelledError as exc:
            raise ClosedError("the broker stopped before its snapshot was complete") from exc

    def rest(self) -> None:
        """Sleep, unless clients are idle, so that others can use the processor."""
        if not self._is_hurried and not self._thread_lull.is_on():
            self._sleep(_REST_SECONDS)

    async def _fill(self, writer: SnapshotWriter, records: Iterator[Record | None]) -> bool:
        while self._turn(writer, records):
            if writer.is_full:
                return True
            await asyncio.sleep(self.turn_rest())
        return False

    def _turn(self, writer: SnapshotWriter, records: Iterator[Record | None]) -> bool:
        end = self._now() + (_HURRIED_SECONDS if self._is_hurried else _TURN_SECONDS)
        return writer.take(records, lambda: self._now() < end)

    def turn_rest(self) -> float:
        """Return how many seconds the loop does other work after a turn."""
        return 0.0 if self._lull.is_on() or self._is_hurried else _TURN_REST_SECONDS


class ThreadPace:
    """Does all work in the thread, with a rest after each turn."""

    def __init__(
        self,
        now: Callable[[], float],
        sleep: Callable[[float], None],
        received: Callable[[], int],
    ) -> None:
        """Watch `received`, a counter of the received bytes."""
        self._now = now
        self._sleep = sleep
        self._lull = Lull(now, received)
        self._is_hurried = False

    def hurry(self) -> None:
        """Do not rest any more."""
        self._is_hurried = True

    def stop(self) -> None:
        """Finish soon; this needs no loop, so the snapshot does not fail."""
        self.hurry()

    def fill(self, writer: SnapshotWriter, records: Iterator[Record | None]) -> bool:
        """Fill the writer in this thread."""
        while self._turn(writer, records):
            if writer.is_full:
                return True
            if not self._is_hurried:
                self._sleep(_LULL_REST_SECONDS if self._lull.is_on() else _REST_SECONDS)
        return False

    def rest(self) -> None:
        """Sleep, unless clients are idle, after work that did not hold the GIL."""
        if not self._is_hurried and not self._lull.is_on():
            self._sleep(_REST_SECONDS)

    def _turn(self, writer: SnapshotWriter, records: Iterator[Record | None]) -> bool:
        end = self._now() + (_LULL_WORK_SECONDS if self._lull.is_on() else _WORK_SECONDS)
        return writer.take(records, lambda: self._now() < end)
