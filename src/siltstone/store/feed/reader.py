"""One feed as its user sees it: rows arrive in reads, and the user acknowledges them.

Rows wait here until the user asks for them, never more than the feed had credit for. All methods
may be called from any thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Condition
from types import TracebackType
from typing import Self

import pyarrow as pa

from siltstone.errors import ClosedError, SiltstoneError
from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.pool import Rows
from siltstone.store.feed.position import Position
from siltstone.store.feed.rows.arrow import arrow_of, rows_of_batch
from siltstone.store.log.read.pieces import COLUMNS, Row


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """The new value of a row, or a deletion: its value is None, and it deletes the rows of the
    topic from `timestamp_us` to before `until_us`.

    Only key-value databases have deletions. The rows of a plain map have the time 0.
    """

    topic: str
    value: bytes | None
    timestamp_us: int
    until_us: int
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedRead:
    """Rows of one shard, in order of serials, and the position of the feed after them.

    `lost` is the number of serials before these rows that are gone, because their slab was dropped.
    """

    position: Position
    lost: int
    batch: StoredBatch
    picked: Rows

    def __len__(self) -> int:
        """Return the number of rows, with the deletions."""
        return self.batch.count if self.picked is None else len(self.picked)

    def arrow(self, columns: Sequence[str] = COLUMNS) -> pa.RecordBatch:
        """Return the rows as a record batch, without deletions.

        Raises: UsageError for an unknown column.
        """
        return arrow_of(self.batch, self._written(), columns)

    def rows(self) -> list[Row]:
        """Return the rows as Python values, without deletions."""
        return rows_of_batch(self.batch, self._written())

    def changes(self) -> list[Change]:
        """Return the rows as changes, with deletions, in order of serials."""
        batch = self.batch
        batch.load()
        serials = batch.number_rows()
        found: list[Change] = []
        for index in range(batch.count) if self.picked is None else self.picked:
            until_us = batch.untils[index] if batch.untils else 0
            timestamp_us = batch.timestamps[index]
            found.append(
                Change(
                    topic=batch.topics[index].decode(),
                    value=None if until_us else batch.values[index],
                    timestamp_us=timestamp_us,
                    until_us=until_us or timestamp_us + 1,
                    serial=serials[index],
                )
            )
        return found

    def _written(self) -> Rows:
        """Return the rows without deletions."""
        batch = self.batch
        if not batch.untils:
            return self.picked
        rows = range(batch.count) if self.picked is None else self.picked
        return [index for index in rows if not batch.untils[index]]


class FeedReader:
    """A subscription to the store. `Database.feed` creates it; the user closes it."""

    def __init__(self, position: Position) -> None:
        self._changed = Condition()
        self._reads: deque[FeedRead] = deque()
        self._unacknowledged: deque[FeedRead] = deque()
        self._position = position
        self._error: SiltstoneError | None = None
        self._hear: Callable[[], None] | None = None
        self.grant: Callable[[int], None] = _ignore
        self.leave: Callable[[], None] = _nothing

    @property
    def position(self) -> Position:
        """The position after all rows that were returned; a new feed can continue there."""
        return self._position

    def next(self, timeout: float | None = None) -> FeedRead | None:
        """Wait for the next rows and return them, or None after the timeout.

        Raises: ClosedError when the feed or its database was closed; the error that ended the feed.
        """
        with self._changed:
            if not self._reads and self._error is None:
                self._changed.wait_for(lambda: self._reads or self._error is not None, timeout)
            if self._reads:
                read = self._reads.popleft()
                self._unacknowledged.append(read)
                self._position = read.position
                return read
            if self._error is not None:
                raise self._error.with_traceback(None)
            return None

    def ack(self, position: Position) -> None:
        """Acknowledge all returned rows before a position: the feed gets credit for as many new
        rows.
        """
        rows = 0
        with self._changed:
            while self._unacknowledged and position.reaches(self._unacknowledged[0].position):
                rows += len(self._unacknowledged.popleft())
        if rows:
            self.grant(rows)

    def __iter__(self) -> Iterator[FeedRead]:
        """Yield rows until the feed is closed; the next step acknowledges the rows before."""
        while True:
            try:
                read = self.next()
            except ClosedError:
                return
            if read is not None:
                yield read
                self.ack(read.position)

    def on_arrival(self, hear: Callable[[], None] | None) -> None:
        """Call back whenever `next` would return at once, from the thread that adds rows."""
        with self._changed:
            self._hear = hear
            arrived = bool(self._reads) or self._error is not None
        if arrived and hear is not None:
            hear()

    def close(self) -> None:
        """End the feed; rows that were not requested are discarded."""
        self.end(ClosedError("the feed is closed"))
        with self._changed:
            self._reads.clear()
            leave, self.leave = self.leave, _nothing
        leave()

    def __enter__(self) -> Self:
        """Return the feed itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the feed."""
        self.close()

    def put(self, read: FeedRead) -> None:
        """Add rows for the user; called by the thread that delivers them."""
        with self._changed:
            if self._error is not None:
                return
            self._reads.append(read)
            hear = self._hear
            self._changed.notify_all()
        if hear is not None:
            hear()

    def end(self, error: SiltstoneError) -> None:
        """End the feed with this error, after the rows that wait."""
        with self._changed:
            if self._error is not None:
                return
            self._error = error
            hear = self._hear
            self._changed.notify_all()
        if hear is not None:
            hear()


def _ignore(_rows: int) -> None:
    """Do nothing; a placeholder until the feed has begun."""


def _nothing() -> None:
    """Do nothing; a placeholder before the feed begins and after it was closed."""
