"""A feed for asyncio: `async for` over what comes, where store threads meet the loop.

The thread that brings rows only tells the loop that there are some; they are taken on the loop.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from siltstone.errors import ClosedError
from siltstone.store.feed.position import FeedPosition
from siltstone.store.feed.reader import FeedRead, FeedReader


class AsyncFeed:
    """Wraps what `Database.feed` returns; belongs to the loop that it is made on, to one task.

    Asking for more acknowledges what came before.
    """

    def __init__(self, reader: FeedReader) -> None:
        self._reader = reader
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._last: FeedPosition | None = None
        reader.on_arrival(self._tell)

    @property
    def position(self) -> FeedPosition:
        """The place behind all that was handed out."""
        return self._reader.position

    def __aiter__(self) -> Self:
        """Return the feed itself."""
        return self

    async def __anext__(self) -> FeedRead:
        """Return the next rows; end when the feed or its database is closed.

        Raises: what kept the feed from reading.
        """
        if self._last is not None:
            self._reader.ack(self._last)
            self._last = None
        while True:
            # Cleared before looking: what comes in between sets it again.
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
        """Close it."""
        await self.close()

    async def close(self) -> None:
        """End the feed; its threads may take a moment, so not on the loop."""
        self._reader.on_arrival(None)
        self._arrived.set()
        await asyncio.to_thread(self._reader.close)

    def _tell(self) -> None:
        """Tell the loop, from another thread, that there is something to take."""
        try:
            self._loop.call_soon_threadsafe(self._arrived.set)
        except RuntimeError:
            # The loop is closed: nobody waits any more.
            self._reader.on_arrival(None)
