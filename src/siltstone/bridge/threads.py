"""The threads of a link, which wait for the disk in place of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

Value = TypeVar("Value")

# One stores, the other reads and discards.
_COUNT: Final = 2


class Threads:
    """Runs work beside a loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._executor = ThreadPoolExecutor(_COUNT, "siltstone-link")

    def act(self, work: Callable[[], None], then: Callable[[], None]) -> None:
        """Do work in a thread, then something on the loop."""
        future = self._loop.run_in_executor(self._executor, work)
        future.add_done_callback(lambda _: then())

    async def run(self, work: Callable[[], Value]) -> Value:
        """Do work in a thread; return what it returns. Raises: what it raises."""
        return await self._loop.run_in_executor(self._executor, work)

    def close(self) -> None:
        """Wait for what is being done."""
        self._executor.shutdown(wait=True)
