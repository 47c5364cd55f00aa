"""Follow a database while another process writes it.

Every row is returned once, in order of time within its shard. A feed returns whole frames, and the
frames of a shard are in order of time. The rows of one poll are sorted by time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.scalars import scalar
from siltstone.store.database import Database
from siltstone.store.feed.dispatch import Dispatch
from siltstone.store.feed.hub import FeedHub
from siltstone.store.feed.pool import ReadJob
from siltstone.store.feed.rows.arrow import arrow_of
from siltstone.store.feed.settings import FeedSettings
from siltstone.store.log.read.pieces import schema_of
from siltstone.topic.grammar import TopicFilter

_ROWS_MAX: Final = 8192
# Unlimited: a frame is never cut.
_CREDIT: Final = 1 << 62


class FeedFollower:
    """Follows a database with a feed of its own; `poll` returns the new rows."""

    def __init__(
        self,
        database: Database,
        topic_filter: str,
        *,
        since_us: int,
        columns: Sequence[str],
        rows_max: int = _ROWS_MAX,
    ) -> None:
        self._since = scalar(since_us, pa.int64())
        self._columns = list(columns)
        self._carried = self._columns + ["timestamp"] * ("timestamp" not in columns)
        self._jobs: list[ReadJob] = []
        self._found: list[pa.Table] = []
        self._source = database.feed_source()
        self._source.refresh()
        settings = FeedSettings(read_rows=rows_max, held_bytes=0, decode=False)
        self._hub = FeedHub(self._source, self._take, self._jobs.append, settings)
        position = self._source.position_at(since_us)
        self._hub.add([TopicFilter.parse(topic_filter)], position, _CREDIT, None)

    @property
    def behind(self) -> bool:
        """Whether another poll returns more rows, even if no new rows are written."""
        return bool(self._jobs)

    def poll(self) -> pa.Table:
        """Read a part of the new rows, and return them in order of time."""
        self._source.refresh()
        self._hub.advance(self._source.ends())
        jobs = list(self._jobs)
        self._jobs.clear()
        for job in jobs:
            job.run()
            self._hub.finish(job)
        found, self._found = self._found, []
        merged = pa.concat_tables([*found, schema_of(self._carried).empty_table()])
        order = pc.sort_indices(merged, sort_keys=[("timestamp", "ascending")])
        return merged.take(order).select(self._columns)

    def _take(self, dispatch: Dispatch) -> None:
        if dispatch.error is not None:
            raise dispatch.error
        for _, rows in dispatch.shares:
            table = pa.Table.from_batches([arrow_of(dispatch.batch, rows, self._carried)])
            # The first frames may begin before the requested time.
            recent = pc.greater_equal(table["timestamp"].cast(pa.int64()), self._since)
            self._found.append(table.filter(recent))


def follow(follower: FeedFollower, wait: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """Yield rows for ever; `wait` is called whenever there are none."""
    while True:
        yield from follower.poll().combine_chunks().to_batches()
        if not follower.behind:
            wait()
