"""Follow a database as another process writes it: every row once, in order within its shard.

Invariant: a row is released only when no row of its shard that is still to be read can precede it,
which is so when
- a row at or behind it was known before the streams were listed: a frame becomes visible as a
  whole, so a stream that is not listed has later rows only, and the others were read since;
- no stream of the shard was left off before it, for having more rows than are read at once.
What cannot be released is held; a stream that was left off is not read on meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.database import Database
from siltstone.errors import SlabDroppedError
from siltstone.store.iterator import StreamIterator, StreamRef
from siltstone.store.manifest import SlabId
from siltstone.store.rows import schema_of
from siltstone.store.scan import Status

_ROWS_MAX: Final = 4096

Key = tuple[SlabId, int]


@dataclass(slots=True)
class _Stream:
    """A position, with the number of rows when all were read, or the time where it was left off."""

    iterator: StreamIterator
    seen: int = -1
    left_off_us: int | None = None


@dataclass(slots=True)
class _Shard:
    """What is held of a shard; times of the last row read, read before this poll, and released."""

    read_us: int = -1
    known_us: int = -1
    released_us: int = -1
    held: list[pa.Table] = field(default_factory=list)


class Follower:
    """Reads a database on and on; `poll` returns what can be released."""

    def __init__(
        self,
        database: Database,
        topic_filter: str,
        *,
        since_us: int,
        columns: Sequence[str],
        rows_max: int = _ROWS_MAX,
    ) -> None:
        self._database = database
        self._filter = topic_filter
        self._since_us = since_us
        self._columns = list(columns)
        self._carried = self._columns + ["timestamp"] * ("timestamp" not in columns)
        self._rows_max = rows_max
        self._streams: dict[Key, _Stream] = {}
        self._shards: dict[int, _Shard] = {}

    @property
    def behind(self) -> bool:
        """Whether another poll gives more rows, even if nobody writes any."""
        return any(shard.held for shard in self._shards.values()) or any(
            stream.left_off_us is not None for stream in self._streams.values()
        )

    def poll(self) -> pa.Table:
        """Read what has come, and return what no other row can precede, in order of time."""
        for shard in self._shards.values():
            shard.known_us = shard.read_us
        for key, rows in self._list().items():
            self._read(key, rows)
        ripe = [
            table
            for number, shard in self._shards.items()
            for table in self._release(number, shard)
        ]
        merged = pa.concat_tables([*ripe, schema_of(self._carried).empty_table()])
        order = pc.sort_indices(merged, sort_keys=[("timestamp", "ascending")])
        return merged.take(order).select(self._columns)

    def _list(self) -> dict[Key, int]:
        """Return the streams there are with their numbers of rows; forget those that are gone."""
        rows = {(info.slab, info.stream_id): info.rows for info in self._database.structure()}
        listed: dict[Key, int] = {}
        for stream in self._database.streams(self._filter, self._since_us):
            key = (stream.slab, stream.stream_id)
            if key in rows and (key in self._streams or self._begin(key, stream)):
                listed[key] = rows[key]
        self._streams = {key: self._streams[key] for key in listed}
        return listed

    def _begin(self, key: Key, stream: StreamRef) -> bool:
        try:
            iterator = self._database.iterator(stream, self._filter, self._since_us)
        except SlabDroppedError:
            return False
        self._streams[key] = _Stream(iterator)
        return True

    def _read(self, key: Key, rows: int) -> None:
        """Read a stream on, unless nothing came or what was read of it is still held."""
        stream = self._streams[key]
        shard = self._shards.setdefault(key[0].shard, _Shard())
        if stream.left_off_us is None:
            if stream.seen == rows:
                return
        elif stream.left_off_us > shard.released_us:
            return
        try:
            found = self._database.next(stream.iterator, self._rows_max)
        except SlabDroppedError:
            del self._streams[key]
            return
        stream.iterator = found.iterator
        stream.left_off_us = None
        if len(found.batch):
            table = found.batch.table(self._carried)
            last_us: int = table["timestamp"][table.num_rows - 1].value
            shard.held.append(table)
            shard.read_us = max(shard.read_us, last_us)
            if found.status is Status.MORE:
                stream.left_off_us = last_us
        if found.status is not Status.MORE:
            stream.seen = rows

    def _release(self, number: int, shard: _Shard) -> Iterator[pa.Table]:
        bound_us = min(
            [
                shard.known_us,
                *(
                    stream.left_off_us
                    for key, stream in self._streams.items()
                    if key[0].shard == number and stream.left_off_us is not None
                ),
            ]
        )
        shard.released_us = max(shard.released_us, bound_us)
        held, shard.held = shard.held, []
        for table in held:
            # The rows of one stream rise in time.
            count = pc.sum(pc.less_equal(table["timestamp"].cast(pa.int64()), bound_us)).as_py()
            if count:
                yield table.slice(0, count)
            if count < table.num_rows:
                shard.held.append(table.slice(count))


def follow(follower: Follower, wait: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """Yield rows for ever; `wait` is called whenever there are none."""
    while True:
        yield from follower.poll().combine_chunks().to_batches()
        if not follower.behind:
            wait()
