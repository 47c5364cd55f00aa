"""The unit of delivery: one batch, and the rows of it that each feed receives. Compiled."""

from __future__ import annotations

from bisect import bisect_left

from siltstone.errors import SiltstoneError
from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.pool import Feed, Rows


class Dispatch:
    """One batch, and for each feed the rows that it receives; None means all rows.

    `lost` has for each feed the number of serials that it lost before these rows, because a slab
    was dropped. If `error` is set, the feeds were removed, because the rows at their place cannot
    be read.
    """

    def __init__(self, batch: StoredBatch) -> None:
        self.batch = batch
        self.shares: list[tuple[Feed, Rows]] = []
        self.lost: list[tuple[Feed, int]] = []
        self.error: SiltstoneError | None = None


def hand_over(dispatch: Dispatch, feed: Feed, rows: Rows, place: int, stop: int) -> int:
    """Give a feed its rows from a place on, up to its credit; return its next place."""
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
