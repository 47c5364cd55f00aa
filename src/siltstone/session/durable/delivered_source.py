"""The store as durable sessions and share groups read it: a slab that was dropped because all of
them had its rows is no loss to any of them.

The saved position of a session may be far behind: rows that it did not want came by, or it has no
subscription. Where these rows were dropped as delivered, it goes on behind them and hears nothing.
"""

from __future__ import annotations

from siltstone.store.feed.pool import Found
from siltstone.store.feed.position import FeedPosition
from siltstone.store.feed.reading import StoreSource
from siltstone.store.feed.settings import FeedSettings
from siltstone.topic.grammar import TopicFilter


class DeliveredSource:
    """The slabs of a database, and what of it was reclaimed; for any number of threads."""

    def __init__(self, source: StoreSource) -> None:
        self._source = source

    def ends(self) -> list[int]:
        """Return for each shard the serial after its last row that can be read."""
        return self._source.ends()

    def position_at(self, since_us: int) -> FeedPosition:
        """Return the place of the first frame with a row at or after a time, of each shard."""
        return self._source.position_at(since_us)

    def read(
        self, shard: int, start: int, filters: list[TopicFilter], settings: FeedSettings
    ) -> Found:
        """Read on from a serial, as much as the settings allow. Raises: SiltstoneError."""
        reclaimed = self._source.reclaimed(shard)
        if start < reclaimed:
            return Found(start, reclaimed, start, None)
        return self._source.read(shard, start, filters, settings)
