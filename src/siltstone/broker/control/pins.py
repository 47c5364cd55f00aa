"""Pins, which keep rows from being reclaimed for a while.

A backup takes a pin while it copies rows, and a request that moves a session back to earlier rows.

Invariant: after a caller took a pin and `settled` returned, no slab is reclaimed until the pin is
released. A drop that had begun before is done by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock


class Pins:
    """Counts the pins. They are taken and released on the loop; any thread may call `is_free`."""

    def __init__(self) -> None:
        # Held for a short time only, never during I/O.
        self._lock = Lock()
        self._count = 0
        # How many pins were taken since the start.
        self.taken = 0
        # Set while no slab is being dropped.
        self._is_quiet = Event()
        self._is_quiet.set()

    def take(self) -> Callable[[], None]:
        """Take a pin, so that no new drop begins; return the function that releases it.

        A drop that has begun continues: await `settled` before you read rows. Only the first call
        of the returned function counts.
        """
        with self._lock:
            self._count += 1
            self.taken += 1
        let_go = False

        def release() -> None:
            nonlocal let_go
            with self._lock:
                if not let_go:
                    let_go = True
                    self._count -= 1

        return release

    async def settled(self) -> None:
        """Wait until no drop is under way that began before the pin was taken."""
        if not self._is_quiet.is_set():
            await asyncio.get_running_loop().run_in_executor(None, self._is_quiet.wait)

    def is_free(self, taken: int) -> bool:
        """Return whether no pin is held, and none was taken since `self.taken` had this value."""
        with self._lock:
            return self._count == 0 and self.taken == taken

    @contextmanager
    def dropping(self, taken: int) -> Iterator[bool]:
        """Yield whether a slab may be dropped, by the rule of `is_free`.

        Until the block ends, `settled` waits. One thread at a time may use it.
        """
        with self._lock:
            may_drop = self._count == 0 and self.taken == taken
            if may_drop:
                self._is_quiet.clear()
        try:
            yield may_drop
        finally:
            if may_drop:
                self._is_quiet.set()
