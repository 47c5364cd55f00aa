"""The store as durable sessions and share groups read it.

A slab that was dropped because all sessions had received its rows is not a loss. The saved position
of a session may be far behind, because it did not want the later rows or has no subscription. If
these rows were dropped as delivered, the session continues after them and no loss is reported.
"""

from __future__ import annotations

from siltstone.store.feed.pool import ReadResult
from siltstone.store.feed.position import Position
from siltstone.store.feed.reading import StoreSource
from siltstone.store.feed.settings import FeedSettings
from siltstone.topic.grammar import TopicFilter


class DeliveredSource:
    """The slabs of a database and its reclaimed rows. Methods may be called from any thread."""

    def __init__(self, source: StoreSource) -> None:
        self._source = source

    def ends(self) -> list[int]:
        """Return for each shard the serial after its last row that can be read."""
        return self._source.ends()

    def position_at(self, since_us: int) -> Position:
        """Return for each shard the position of the first frame with a row at or after a time."""
        return self._source.position_at(since_us)

    def read(
        self, shard: int, start: int, filters: list[TopicFilter], settings: FeedSettings
    ) -> ReadResult:
        """Read rows from a serial on, up to the limits of the settings. Raises: SiltstoneError."""
        reclaimed = self._source.reclaimed(shard)
        if start < reclaimed:
            return ReadResult(start, reclaimed, start, None)
        return self._source.read(shard, start, filters, settings)
