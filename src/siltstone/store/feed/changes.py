"""The changes of a key-value database as a source of feeds, in the order of their commits.

Each change is a row of a feed, and its serial is the number of the change in its shard. The
database keeps the last changes only. A feed whose place is before them loses the changes in
between, as a feed over dropped slabs does.

Invariant: a batch that was just committed and the same changes read later have the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Final

from siltstone.errors import NotFoundError, RetryError, UsageError
from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.pool import ReadResult
from siltstone.store.feed.position import START, Position
from siltstone.store.feed.settings import FeedSettings
from siltstone.store.kv.api import Engine, Item, View
from siltstone.store.slab.manifest import SlabId
from siltstone.store.tx.commit.changes import (
    CHANGES_FAMILY,
    ChangeList,
    RecordHead,
    changes_key,
    decode_changes,
    head_of,
)
from siltstone.store.tx.commit.committer import TransactionCommitter
from siltstone.topic.grammar import TopicFilter

# The approximate size of a row as Python objects, in addition to its bytes.
_ROW_BYTES: Final = 160
# The number of records that are read at first, and at once; the latter also by their bytes.
_RECORDS: Final = 8
_RECORDS_MAX: Final = 512
_CHUNK_BYTES: Final = 1024 * 1024


class ChangeSource:
    """The kept changes of a key-value database. From any thread."""

    def __init__(self, engine: Engine, committers: Sequence[TransactionCommitter]) -> None:
        self._engine = engine
        self.committers = committers
        # The shards whose changes are being replaced by a copy from another site.
        self.loading: frozenset[int] = frozenset()

    def refresh(self) -> None:
        """Do nothing: only this process writes the database."""

    def ends(self) -> list[int]:
        """Return for each shard the number of the next change."""
        return [committer.changes.end for committer in self.committers]

    def followed_ends(self) -> list[int]:
        """Return 0 for each shard: no other process writes one."""
        return [0] * len(self.committers)

    def position_at(self, since_us: int) -> Position:
        """Return the position before all kept changes."""
        assert not since_us, "rows are not in order of time"
        return START

    def first_serial(self, slab: SlabId) -> int:
        """Refuse an iterator: it is a place among keys. Raises: UsageError."""
        raise UsageError(
            f"an iterator of a key-value database is a place among its keys, so a feed cannot "
            f"continue it: slab={slab}"
        )

    def read(
        self, shard: int, start: int, filters: list[TopicFilter], settings: FeedSettings
    ) -> ReadResult:
        """Read from a change on, as much as the settings allow.

        Raises: CorruptionError; RetryError while the shard is replaced by a copy.
        """
        # Read the end first: everything before it is in the view.
        end = self.committers[shard].changes.end
        try:
            view = self._engine.view(CHANGES_FAMILY)
        except NotFoundError:
            return ReadResult(start, end, end, None)
        try:
            # Set before the first change is removed, so a view that was taken before is whole.
            if shard in self.loading:
                raise RetryError(
                    "the shard is being replaced by a copy from another site, try again"
                )
            return self._read(view, shard, start, end, filters, settings)
        finally:
            view.release()

    def _read(
        self,
        view: View,
        shard: int,
        start: int,
        end: int,
        filters: list[TopicFilter],
        settings: FeedSettings,
    ) -> ReadResult:
        number, rows_from = start, start
        found = _Gathering(filters)
        for head, record in _records(view, shard, start, end):
            if number < head.first:
                # Changes are missing. Return the earlier ones first.
                if number > start:
                    return found.result(shard, start, number, rows_from)
                number = rows_from = head.first
            # All rows of a batch are of one generation.
            if found.serials and found.changes.generation != head.generation:
                return found.result(shard, start, number, rows_from)
            found.changes.generation = head.generation
            found.records += 1
            changes = decode_changes(record)
            while number < head.stop:
                found.add(changes, number - head.first, number)
                number += 1
                if found.is_full(settings):
                    return found.result(shard, start, number, rows_from)
        if number == start:
            number = rows_from = end
        return found.result(shard, start, number, rows_from)


class _Gathering:
    """The changes that a read has found so far."""

    def __init__(self, filters: list[TopicFilter]) -> None:
        self._filters = filters
        self._wanted: dict[bytes, bool] = {}
        self.records = 0
        self.changes = ChangeList(0)
        self.serials: list[int] = []

    def add(self, changes: ChangeList, index: int, number: int) -> None:
        """Add a change if its topic is wanted."""
        topic = changes.topics[index]
        wanted = self._wanted.get(topic)
        if wanted is None:
            wanted = any(each.matches(topic) for each in self._filters)
            self._wanted[topic] = wanted
        if wanted:
            self.changes.copy(changes, index)
            self.serials.append(number)

    def is_full(self, settings: FeedSettings) -> bool:
        """Return whether the limits of a read are reached."""
        return (
            len(self.serials) >= settings.read_rows
            or self.changes.size_bytes >= settings.read_bytes
            or self.records > settings.read_frames
        )

    def result(self, shard: int, start: int, stop: int, rows_from: int) -> ReadResult:
        """Return the changes that were found from the start of the read to `stop`."""
        if not self.serials:
            return ReadResult(start, stop, rows_from, None)
        batch = batch_of(self.changes, shard, self.serials, rows_from, stop)
        return ReadResult(start, stop, rows_from, batch)


def _records(view: View, shard: int, start: int, end: int) -> Iterator[tuple[RecordHead, bytes]]:
    """Yield the records with changes in [start, end), in order."""
    first = view.last(changes_key(shard, 0), changes_key(shard, start + 1))
    items: list[Item] = [] if first is None else [first]
    key = changes_key(shard, start)
    limit = _RECORDS
    while True:
        for key, record in items:
            head = head_of(key, record)
            if head.stop > start:
                yield head, record
        key += b"\x00"
        items = view.items(key, changes_key(shard, end), limit)
        if not items:
            return
        # Records may be large.
        size_bytes = sum(len(record) for _, record in items) // len(items)
        limit = max(1, min(_RECORDS_MAX, _CHUNK_BYTES // max(size_bytes, 1)))


def batch_of(
    changes: ChangeList, shard: int, serials: list[int], start: int, stop: int
) -> StoredBatch:
    """Return changes as a batch of rows; the lists are not copied."""
    count = len(serials)
    batch = StoredBatch(shard, changes.generation, start, stop, count)
    batch.serials = serials
    batch.names = list(dict.fromkeys(changes.topics))
    batch.topics = changes.topics
    batch.values = changes.values
    batch.timestamps = changes.times
    batch.flags = [0] * count
    batch.publishers = [b""] * count
    if any(changes.untils):
        batch.untils = changes.untils
    batch.size_bytes = changes.size_bytes + _ROW_BYTES * count
    runs = [(stream_id, len(list(same))) for stream_id, same in groupby(changes.streams)]
    batch.stream_loader = lambda: runs
    return batch


def listen_for_changes(
    committers: Sequence[TransactionCommitter], callback: Callable[[StoredBatch], None]
) -> Callable[[], None]:
    """Call back with the changes of each commit, on its shard's thread; return a function to end
    it.
    """
    tellers: list[tuple[TransactionCommitter, Callable[[int, ChangeList], None]]] = []

    def begin(committer: TransactionCommitter) -> None:
        shard = committer.record.shard

        def tell(first: int, changes: ChangeList) -> None:
            stop = first + len(changes.topics)
            callback(batch_of(changes, shard, list(range(first, stop)), first, stop))

        committer.listeners = (*committer.listeners, tell)
        tellers.append((committer, tell))

    for committer in committers:
        begin(committer)

    def end() -> None:
        for committer, tell in tellers:
            committer.listeners = tuple(each for each in committer.listeners if each is not tell)

    return end
