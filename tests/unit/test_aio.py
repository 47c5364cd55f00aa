from __future__ import annotations

import asyncio

import pytest

from siltstone.aio import AsyncFeed
from siltstone.errors import ClosedError, DiskError
from siltstone.store.feed.position import START, Position
from siltstone.store.feed.reader import FeedRead, FeedReader
from tests.support.builders import PATH
from tests.support.feed_builders import batch_of


def read_of(first: int, stop: int) -> FeedRead:
    batch = batch_of(0, range(first, stop), ["a"] * (stop - first), stop)
    return FeedRead(position=Position({0: stop}), lost=0, batch=batch, picked=None)


class Feed:
    """A reader with nobody behind it, and what is given back of its credit."""

    def __init__(self) -> None:
        self.reader = FeedReader(START)
        self.granted: list[int] = []
        self.reader.grant = self.granted.append


def test_rows_come_as_they_arrive_and_asking_for_more_acknowledges_them() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        feed = Feed()
        feed.reader.put(read_of(0, 2))
        iterator = AsyncFeed(feed.reader)
        assert len(await anext(iterator)) == 2
        assert (feed.granted, iterator.position) == ([], Position({0: 2}))
        waiting = asyncio.ensure_future(anext(iterator))
        await asyncio.wait([waiting], timeout=0)
        assert (feed.granted, waiting.done()) == ([2], False)
        await loop.run_in_executor(None, feed.reader.put, read_of(2, 5))
        assert len(await waiting) == 3
        feed.reader.put(read_of(5, 6))
        feed.reader.put(read_of(6, 9))
        feed.reader.end(ClosedError("the database is closed"))
        assert [len(read) async for read in iterator] == [1, 3]
        assert feed.granted == [2, 3, 1, 3]

    asyncio.run(main())


def test_what_keeps_the_feed_from_reading_is_raised() -> None:
    async def main() -> None:
        feed = Feed()
        iterator = AsyncFeed(feed.reader)
        feed.reader.end(DiskError(PATH, "read", "broken", errno=5))
        with pytest.raises(DiskError, match="broken"):
            await anext(iterator)

    asyncio.run(main())


def test_leaving_closes_the_feed_and_ends_who_waits() -> None:
    async def main() -> None:
        feed = Feed()
        async with AsyncFeed(feed.reader) as iterator:
            waiting = asyncio.ensure_future(anext(iterator))
            await asyncio.wait([waiting], timeout=0)
        with pytest.raises(ClosedError):
            feed.reader.next()
        await iterator.close()
        with pytest.raises(StopAsyncIteration):
            await waiting

    asyncio.run(main())


def test_rows_that_come_when_the_loop_is_gone_harm_nobody() -> None:
    feed = Feed()

    async def main() -> None:
        AsyncFeed(feed.reader)

    asyncio.run(main())
    feed.reader.put(read_of(0, 1))
    feed.reader.put(read_of(1, 2))
    found = feed.reader.next()
    assert found is not None
    assert len(found) == 1
