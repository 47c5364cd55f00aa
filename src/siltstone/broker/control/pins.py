"""What keeps rows from being reclaimed for a while: a backup that copies them, a session that is
moved back to them.

Invariant: once `settled` has returned to whoever took a pin, no slab is reclaimed until the pin is
let go of. A drop that had begun before is done by then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock


class Pins:
    """Counts those that need all rows as they are. Taken and let go of on the loop; any thread may
    ask.
    """

    def __init__(self) -> None:
        # Held for moments only, never while the disk is waited for.
        self._lock = Lock()
        self._count = 0
        # How often one was taken.
        self.taken = 0
        # Set while no slab is being dropped.
        self._is_quiet = Event()
        self._is_quiet.set()

    def take(self) -> Callable[[], None]:
        """Let no drop begin from now on; return what lets go, once. One that has begun goes on:
        await `settled` before rows are looked at.
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
        """Return when no drop is under way that had begun before a pin was taken."""
        if not self._is_quiet.is_set():
            await asyncio.get_running_loop().run_in_executor(None, self._is_quiet.wait)

    def is_free(self, taken: int) -> bool:
        """Tell whether none is held, and none was taken since there were so many."""
        with self._lock:
            return self._count == 0 and self.taken == taken

    @contextmanager
    def dropping(self, taken: int) -> Iterator[bool]:
        """Tell whether a slab may be dropped, as `is_free` does, and let those who take a pin
        meanwhile know when that is done. One thread at a time.
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
