"""A feed for asyncio: `async for` over the rows of a feed.

The store thread that delivers rows only notifies the event loop. The rows are read on the event
loop.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from siltstone.errors import ClosedError
from siltstone.store.feed.position import Position
from siltstone.store.feed.reader import FeedRead, FeedReader


class AsyncFeed:
    """A wrapper of the reader that `Database.feed` returns; for one event loop and one task.

    It belongs to the event loop that is running when it is created. Each request for more rows
    acknowledges the rows before.
    """

    def __init__(self, reader: FeedReader) -> None:
        self._reader = reader
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._last: Position | None = None
        reader.on_arrival(self._tell)

    @property
    def position(self) -> Position:
        """The position after all rows that were returned."""
        return self._reader.position

    def __aiter__(self) -> Self:
        """Return the feed itself."""
        return self

    async def __anext__(self) -> FeedRead:
        """Return the next rows; stop when the feed or its database is closed.

        Raises: the error that stopped the feed.
        """
        if self._last is not None:
            self._reader.ack(self._last)
            self._last = None
        while True:
            # Clear the event before reading: rows that arrive in between set it again.
            self._arrived.clear()
            try:
                read = self._reader.next(timeout=0)
            except ClosedError:
                raise StopAsyncIteration from None
            if read is not None:
                self._last = read.position
                return read
            await self._arrived.wait()

    async def __aenter__(self) -> Self:
        """Return the feed itself."""
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the feed."""
        await self.close()

    async def close(self) -> None:
        """Close the feed, in a thread: its own threads may take a moment to end."""
        self._reader.on_arrival(None)
        self._arrived.set()
        await asyncio.to_thread(self._reader.close)

    def _tell(self) -> None:
        """Notify the event loop, from another thread, that rows have arrived."""
        try:
            self._loop.call_soon_threadsafe(self._arrived.set)
        except RuntimeError:
            # The event loop is closed, so no task waits any more.
            self._reader.on_arrival(None)
