"""The threads of a bridge, which wait for the disk instead of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

Value = TypeVar("Value")

# One thread stores entries, the other reads and discards them.
_COUNT: Final = 2


class Threads:
    """Runs work in threads beside an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._executor = ThreadPoolExecutor(_COUNT, "siltstone-link")

    def act(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Run work in a thread, then `then` on the event loop."""
        future = self._loop.run_in_executor(self._executor, work)
        future.add_done_callback(lambda _: then())

    async def run(self, work: Callable[[], Value]) -> Value:
        """Run work in a thread; return its result. Raises: what it raises."""
        return await self._loop.run_in_executor(self._executor, work)

    def close(self) -> None:
        """Wait for the running work."""
        self._executor.shutdown(wait=True)
