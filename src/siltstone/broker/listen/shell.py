"""The event loop and the threads of the broker, for the modules that know neither. Compiled.

The acts of a turn of the loop run together, in the order in which they were requested, from all
threads. Acts that they request run in a second round of the same turn: the messages of a turn are
stored, and then their acknowledgements are written, without a look at the sockets in between. A
third round waits for the next turn, so that a chain of requests does not keep the loop from the
sockets.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from siltstone.guard import contain

Act = Callable[[], None]

_LOGIN_THREADS: Final = 4
_READER_THREADS: Final = 4
_ROUNDS: Final = 2
# uvloop counts whole milliseconds. A timer that came a moment early would be set again, and would
# keep the loop busy until the millisecond is over.
_TIMER_SECONDS: Final = 0.001


class LoopShell:
    """Gives the broker access to the loop and to threads; `tick` is called at the time of
    `wake_at`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, tick: Act) -> None:
        self._loop = loop
        self._tick = tick
        # An attribute, not a method, because it is called for every packet.
        self.now: Callable[[], float] = loop.time
        # The acts to run, in order, from all threads. A deque may be changed without a lock.
        self._acts: deque[Act] = deque()
        # Whether the loop will call `_run`.
        self._is_due = False
        self._owner = threading.get_ident()
        self._executor = ThreadPoolExecutor(_LOGIN_THREADS, "siltstone-login")
        # Separate threads: reads are short, and must not wait for password hashes.
        self._readers = ThreadPoolExecutor(_READER_THREADS, "siltstone-reader")
        self._timer: asyncio.TimerHandle | None = None

    def soon(self, act: Act) -> None:
        """Run `act` when the current work is done."""
        self._acts.append(act)
        if not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._run)

    def soon_from_thread(self, act: Act) -> None:
        """Run `act` on the loop, behind everything before it; may be called from any thread."""
        self._acts.append(act)
        if self._is_due:
            return
        self._is_due = True
        # A shard may complete its last tickets after the loop has closed.
        with suppress(RuntimeError):
            if threading.get_ident() == self._owner:
                # The loop is awake.
                self._loop.call_soon(self._run)
            else:
                self._loop.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        # Set this first: a thread that still sees True has added its act before, and this turn runs
        # it.
        self._is_due = False
        acts = self._acts
        try:
            for _ in range(_ROUNDS):
                for _ in range(len(acts)):
                    contain(acts.popleft())
        finally:
            # An act that is cancelled ends this round, and must not hold up the acts behind it.
            if acts and not self._is_due:
                self._is_due = True
                self._loop.call_soon(self._run)

    def in_thread(self, work: Act, then: Act) -> None:
        """Run `work` in a thread, then `then` on the loop."""
        self._executor.submit(self._work, work, then)

    def read_in_thread(self, work: Act, then: Act) -> None:
        """Run `work`, which waits for the disk, in a thread, then `then` on the loop."""
        self._readers.submit(self._work, work, then)

    def _work(self, work: Act, then: Act) -> None:
        """Run `work` on this thread, then `then` on the loop.

        The futures of `run_in_executor` would form a reference cycle, which only the garbage
        collector frees.
        """
        contain(work)
        self.soon_from_thread(then)

    def wake_at(self, at: float) -> None:
        """Call `tick` at a time or soon after, and not at the time that was set before."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at + _TIMER_SECONDS, self._tick)

    def close(self) -> None:
        """Cancel the timer and all waiting work of threads; do not wait for the threads."""
        if self._timer is not None:
            self._timer.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._readers.shutdown(wait=False, cancel_futures=True)
