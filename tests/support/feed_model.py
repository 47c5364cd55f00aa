"""A naive model of feeds: every row by shard and serial, and the rows that each feed received.

A feed is checked at each delivery: the rows are as they were appended, in order of serials, none
twice, wanted, and covered by credit. When nothing is pending any more, it has received every row
that its filters wanted at the time, except rows that were dropped with a slab before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from siltstone.rows.batch import QOS_BITS, RETAIN
from siltstone.store.database import Database
from siltstone.store.feed.dispatch import Dispatch
from siltstone.store.feed.hub import FeedHub
from siltstone.store.feed.pool import Feed
from siltstone.store.feed.position import Position
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.write.partition import shard_of
from siltstone.store.slab.manifest import SlabId
from siltstone.topic.grammar import TopicFilter
from tests.support.builders import naive_match


@dataclass
class FeedTruth:
    """The rows of a database, as appended."""

    shards: int
    rows: list[dict[int, Row]] = field(default_factory=list)
    generations: dict[tuple[int, int], int] = field(default_factory=dict)
    generation: int = 1
    dropped: set[SlabId] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.rows = [{} for _ in range(self.shards)]

    def append(self, database: Database, rows: Sequence[Row]) -> None:
        """Append, and record the serials."""
        # These tests do not depend on the disk, and in memory a sync is expensive.
        ticket = database.append(rows, durability="written").wait()
        for row, serial, timestamp_us in zip(
            rows, ticket.serials(), ticket.timestamps(), strict=True
        ):
            shard = shard_of(row.topic.encode(), self.shards)
            self.rows[shard][serial] = row._replace(timestamp_us=timestamp_us)
            self.generations[shard, serial] = self.generation

    def is_gone(self, shard: int, serial: int) -> bool:
        return SlabId(shard, self.generations[shard, serial]) in self.dropped


class ModelFeed:
    """One feed, the rows that it must receive, and those that it has received."""

    def __init__(self, truth: FeedTruth, hub: FeedHub, filters: Sequence[str]) -> None:
        self._truth = truth
        self._hub = hub
        self.granted = 0
        # Serials that were reported as lost, since it was added and in total.
        self.lost = 0
        self.lost_before = 0
        self.seen: list[list[int]] = [[] for _ in range(truth.shards)]
        # The filters, and the serials from which on they applied.
        self.wishes: list[tuple[dict[int, int], list[str]]] = []
        self._filters = list(filters)
        self.feed: Feed | None = None

    def begin(self, position: Position, credit: int) -> None:
        """Begin, or continue after it was removed."""
        self.granted += credit
        self.wishes.append((self._serials(position), self._filters))
        self.feed = self._hub.add(_parsed(self._filters), position, credit, self)

    def filter(self, filters: Sequence[str]) -> None:
        assert self.feed is not None
        self._filters = list(filters)
        self.wishes.append((self._serials(self.feed.position()), self._filters))
        self._hub.filter(self.feed, _parsed(filters))

    def grant(self, rows: int) -> None:
        assert self.feed is not None
        self.granted += rows
        self._hub.grant(self.feed, rows)

    def reconnect(self, credit: int) -> None:
        """Remove the feed, and add it again at the saved position."""
        assert self.feed is not None
        self._hub.remove(self.feed)
        saved = Position.from_bytes(self.feed.position().to_bytes())
        assert self.feed.gaps == self.lost
        self.lost_before += self.lost
        self.lost = 0
        self.granted = sum(map(len, self.seen))
        self.begin(saved, credit)

    def _serials(self, position: Position) -> dict[int, int]:
        return {shard: position.serial(shard) for shard in range(self._truth.shards)}

    def _wanted(self, shard: int, serial: int) -> bool:
        """Return whether the filters at that time wanted a row."""
        held: list[str] = []
        for serials, filters in self.wishes:
            if serials[shard] <= serial:
                held = filters
        topic = self._truth.rows[shard][serial].topic
        return any(naive_match(text, topic) for text in held)

    def receive(self, dispatch: Dispatch, rows: Sequence[int] | None) -> None:
        """Check a delivery."""
        batch = dispatch.batch
        seen = self.seen[batch.shard]
        for i in range(batch.count) if rows is None else rows:
            serial = batch.serials[i]
            assert not seen or serial > seen[-1], "a row came twice, or out of order"
            seen.append(serial)
            got = Row(
                batch.topics[i].decode(),
                batch.values[i],
                batch.publishers[i].decode(),
                batch.flags[i] & QOS_BITS,
                bool(batch.flags[i] & RETAIN),
                batch.properties[i] if batch.properties else b"",
                batch.timestamps[i],
            )
            assert got == self._truth.rows[batch.shard][serial]
            assert batch.generation == self._truth.generations[batch.shard, serial]
            assert self._wanted(batch.shard, serial), "a row came that nobody asked for"
        assert sum(map(len, self.seen)) <= self.granted, "more came than there was credit for"

    def check_rest(self) -> None:
        """Check that no row is missing."""
        assert self.feed is not None
        first, _ = self.wishes[0]
        missed_in_all = 0
        for shard, rows in enumerate(self._truth.rows):
            expected = [
                serial
                for serial in sorted(rows)
                if serial >= first[shard] and self._wanted(shard, serial)
            ]
            seen = set(self.seen[shard])
            assert seen <= set(expected)
            missed = [serial for serial in expected if serial not in seen]
            assert all(self._truth.is_gone(shard, serial) for serial in missed), "a row was lost"
            assert self.feed.place(shard) >= max(rows, default=-1) + 1
            missed_in_all += len(missed) if first[shard] else 0
        assert self.feed.gaps == self.lost
        assert missed_in_all <= self.lost_before + self.lost, "a loss was not told"


def _parsed(filters: Sequence[str]) -> list[TopicFilter]:
    return [TopicFilter.parse(text) for text in filters]
