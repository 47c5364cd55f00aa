"""The unit of delivery: one batch, and who gets which of its rows. Compiled."""

from __future__ import annotations

from bisect import bisect_left

from siltstone.errors import SiltstoneError
from siltstone.store.feed.pool import Feed, Rows
from siltstone.store.feed.rows.batch import FeedBatch


class Dispatch:
    """One batch, and who gets which of its rows: None for all.

    `lost` tells who lost how many serials before these rows, because a slab was dropped. With an
    `error` the feeds were removed: what stands at their place cannot be read.
    """

    def __init__(self, batch: FeedBatch) -> None:
        self.batch = batch
        self.shares: list[tuple[Feed, Rows]] = []
        self.lost: list[tuple[Feed, int]] = []
        self.error: SiltstoneError | None = None


def hand_over(dispatch: Dispatch, feed: Feed, rows: Rows, place: int, stop: int) -> int:
    """Give a feed its rows from a place on, as far as its credit goes; return its next place."""
    batch = dispatch.batch
    serials = batch.number_rows()
    first = bisect_left(serials, place) if batch.count and place > serials[0] else 0
    if rows is None:
        count = batch.count - first
        if count > feed.credit:
            count = feed.credit
            stop = serials[first + count]
        if count < batch.count:
            rows = list(range(first, first + count))
    else:
        start = bisect_left(rows, first) if first else 0
        count = len(rows) - start
        if count > feed.credit:
            count = feed.credit
            stop = serials[rows[start + count]]
        if count < len(rows):
            rows = rows[start : start + count]
    if count:
        feed.credit -= count
        dispatch.shares.append((feed, rows))
    return stop
