"""A hub on rows in memory, with manual commits, reads and deliveries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from siltstone.errors import SiltstoneError
from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.dispatch import Dispatch
from siltstone.store.feed.hub import FeedHub
from siltstone.store.feed.pool import Feed, ReadJob, ReadResult
from siltstone.store.feed.position import START, Position
from siltstone.store.feed.settings import FeedSettings
from siltstone.topic.grammar import TopicFilter


def parsed(*texts: str) -> list[TopicFilter]:
    return [TopicFilter.parse(text) for text in texts]


def batch_of(shard: int, serials: Sequence[int], topics: Sequence[str], stop: int) -> StoredBatch:
    """Return a loaded batch; the value of a row is its serial."""
    start = serials[0] if serials else stop
    batch = StoredBatch(shard, 1, start, stop, len(serials))
    batch.serials = list(serials)
    batch.names = [topic.encode() for topic in dict.fromkeys(topics)]
    batch.topics = [topic.encode() for topic in topics]
    batch.values = [b"%d" % serial for serial in serials]
    batch.size_bytes = len(serials)
    return batch


@dataclass
class RowsInMemory:
    """A source: topics by serial, for each shard. Rows before `dropped` do not exist."""

    topics: list[list[str]]
    dropped: int = 0
    error: SiltstoneError | None = None
    # The reads so far: shard, start, filters.
    reads: list[tuple[int, int, list[str]]] = field(default_factory=list)

    def ends(self) -> list[int]:
        return [len(topics) for topics in self.topics]

    def read(
        self, shard: int, start: int, filters: list[TopicFilter], settings: FeedSettings
    ) -> ReadResult:
        self.reads.append((shard, start, sorted(each.text for each in filters)))
        if self.error is not None:
            raise self.error
        rows_from = max(start, self.dropped)
        serials: list[int] = []
        stop = rows_from
        while stop < len(self.topics[shard]) and len(serials) < settings.read_rows:
            if any(each.matches(self.topics[shard][stop].encode()) for each in filters):
                serials.append(stop)
            stop += 1
        topics = [self.topics[shard][serial] for serial in serials]
        batch = batch_of(shard, serials, topics, stop) if serials else None
        return ReadResult(start, stop, rows_from, batch)


class HubByHand:
    """A hub, with its requested reads and its deliveries."""

    def __init__(self, *topics: str, shards: int = 1, **settings: Any) -> None:
        self.source = RowsInMemory([list(topics), *([] for _ in range(shards - 1))])
        self.jobs: list[ReadJob] = []
        self.dispatches: list[Dispatch] = []
        # The rows that each feed received, by its tag: (shard, serial).
        self.got: dict[object, list[tuple[int, int]]] = {}
        self.hub = FeedHub(self.source, self._deliver, self.jobs.append, FeedSettings(**settings))

    def _deliver(self, dispatch: Dispatch) -> None:
        self.dispatches.append(dispatch)
        batch = dispatch.batch
        for feed, rows in dispatch.shares:
            self.got.setdefault(feed.tag, []).extend(
                (batch.shard, batch.serials[row])
                for row in (range(batch.count) if rows is None else rows)
            )

    def add(self, tag: str, *filters: str, at: Position = START, credit: int = 1000) -> Feed:
        return self.hub.add(parsed(*filters), at, credit, tag)

    def now(self) -> Position:
        return Position(dict(enumerate(self.source.ends())))

    def commit(self, *topics: str, shard: int = 0) -> StoredBatch:
        """Store rows, and return the batch to announce."""
        known = self.source.topics[shard]
        first = len(known)
        known.extend(topics)
        return batch_of(shard, range(first, len(known)), topics, len(known))

    def announce(self, *topics: str, shard: int = 0) -> None:
        """Store rows and announce them at once."""
        self.hub.announce(self.commit(*topics, shard=shard))

    def read(self) -> None:
        """Run the oldest requested read."""
        job = self.jobs.pop(0)
        job.run()
        self.hub.finish(job)

    def read_all(self) -> None:
        while self.jobs:
            self.read()

    def serials(self, tag: str) -> list[int]:
        return [serial for _, serial in self.got.get(tag, [])]
