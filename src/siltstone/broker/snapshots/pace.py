"""How a snapshot is written beside a loop that must not be kept waiting.

The loop itself makes bytes of what is in memory, a moment at a time: a thread would hold the
interpreter meanwhile, and the loop would wait for a thread that itself waits for a processor. The
thread does what needs no interpreter, and a moment at a time too, for a processor is what the
others need: large contents, compression, the disk. A store, which is on the disk, is read there.

While nobody sends anything, neither rests: a snapshot takes what the loop leaves. The first message
then waits for a moment of the loop, or for one of a thread that reads a store, and those behind it
find both at their pace again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Final

from siltstone.errors import ClosedError
from siltstone.snapshot.format.records import Record
from siltstone.snapshot.writer import SnapshotWriter

# So long the loop works at once, and so long it then does other things.
_TURN_SECONDS: Final = 0.00015
_TURN_REST_SECONDS: Final = 0.001
# The same for the thread.
_WORK_SECONDS: Final = 0.0001
_REST_SECONDS: Final = 0.0004
_HURRIED_SECONDS: Final = 0.005
# Nobody sends anything if nothing came for so long.
_LULL_SECONDS: Final = 0.01
# The moments of a thread in a lull. It must sleep: one that only lets go of the interpreter has it
# back before the loop wakes up.
_LULL_WORK_SECONDS: Final = 0.001
_LULL_REST_SECONDS: Final = 0.00005


class Lull:
    """Tells whether nobody has sent anything for a while; any thread may ask."""

    def __init__(self, now: Callable[[], float], received: Callable[[], int]) -> None:
        """`received` is a count of what others have sent."""
        self._now = now
        self._received = received
        self._last_received = received()
        self._since = now()

    def is_on(self) -> bool:
        """Look whether anything has come."""
        now = self._now()
        received = self._received()
        if received != self._last_received:
            self._last_received = received
            self._since = now
        return now - self._since >= _LULL_SECONDS


class LoopPace:
    """Fills on the loop, and rests in the thread. `hurry` and `stop` are the loop's to call."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        now: Callable[[], float],
        sleep: Callable[[float], None],
        received: Callable[[], int],
    ) -> None:
        """`received` is a count of what others have sent."""
        self._loop = loop
        self._now = now
        self._sleep = sleep
        # The loop and the thread look at different times.
        self._lull = Lull(now, received)
        self._thread_lull = Lull(now, received)
        self._is_hurried = False
        self._is_stopped = False
        self._filling: Future[bool] | None = None

    def hurry(self) -> None:
        """Do not rest any more: there is nobody left to disturb."""
        self._is_hurried = True

    def stop(self) -> None:
        """Fill no more, because the loop is about to end: what is being written fails."""
        self.hurry()
        self._is_stopped = True
        if self._filling is not None:
            self._filling.cancel()

    def fill(self, writer: SnapshotWriter, records: Iterator[Record | None]) -> bool:
        """Let the loop fill the writer. Raises: ClosedError when it was stopped."""
        filling = asyncio.run_coroutine_threadsafe(self._fill(writer, records), self._loop)
        self._filling = filling
        # Looked at last: who stops either sees what is to be filled, or is seen here.
        if self._is_stopped:
            filling.cancel()
        try:
            return filling.result()
        except CancelledError as exc:
            raise ClosedError("the broker stops before its snapshot was written") from exc

    def rest(self) -> None:
        """Leave the processor to others."""
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
        """Return how long the loop is to do other things, behind a turn."""
        return 0.0 if self._lull.is_on() or self._is_hurried else _TURN_REST_SECONDS


class ThreadPace:
    """Does all in the thread, with a rest behind each moment of work."""

    def __init__(
        self,
        now: Callable[[], float],
        sleep: Callable[[float], None],
        received: Callable[[], int],
    ) -> None:
        """`received` is a count of what others have sent."""
        self._now = now
        self._sleep = sleep
        self._lull = Lull(now, received)
        self._is_hurried = False

    def hurry(self) -> None:
        """Do not rest any more."""
        self._is_hurried = True

    def stop(self) -> None:
        """Come to an end soon, which needs no loop."""
        self.hurry()

    def fill(self, writer: SnapshotWriter, records: Iterator[Record | None]) -> bool:
        """Fill the writer here."""
        while self._turn(writer, records):
            if writer.is_full:
                return True
            if not self._is_hurried:
                self._sleep(_LULL_REST_SECONDS if self._lull.is_on() else _REST_SECONDS)
        return False

    def rest(self) -> None:
        """Leave interpreter and processor to others, behind work that held no interpreter."""
        if not self._is_hurried and not self._lull.is_on():
            self._sleep(_REST_SECONDS)

    def _turn(self, writer: SnapshotWriter, records: Iterator[Record | None]) -> bool:
        end = self._now() + (_LULL_WORK_SECONDS if self._lull.is_on() else _WORK_SECONDS)
        return writer.take(records, lambda: self._now() < end)
