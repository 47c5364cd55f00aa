"""The feeds of one database, from any thread; their threads run while a feed is open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock
from typing import Final

from siltstone.errors import (
    ClosedError,
    RetryError,
    SiltstoneError,
    SlabDroppedError,
    UsageError,
)
from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.position import EARLIEST, LATEST, NEVER, Position
from siltstone.store.feed.reader import FeedReader
from siltstone.store.feed.rows.committed import committed_batch
from siltstone.store.feed.runner import FeedRunner, FeedSource, Listen
from siltstone.store.feed.settings import FeedSettings
from siltstone.store.log.arguments import require_kind, require_number
from siltstone.store.log.iterator import StreamIterator
from siltstone.store.log.write.frame_builder import BuiltFrame
from siltstone.store.shard.shards import Shards
from siltstone.store.slab.identity import DatabaseIdentity, told
from siltstone.store.slab.manifest import SlabId
from siltstone.topic.grammar import TopicFilter

CREDIT: Final = 1 << 18
# Large enough for Arrow, and small enough for Python's collector, which visits rows while they
# exist. Nothing is decoded before the user asks for it.
_SETTINGS: Final = FeedSettings(read_rows=1 << 14, read_bytes=16 * 1024 * 1024, decode=False)

Wanted = str | Sequence[str] | StreamIterator


def listen(shards: Shards, callback: Callable[[StoredBatch], None]) -> Callable[[], None]:
    """Call back with the rows of each flush, on its shard's thread; return a function to end it."""

    def stored(slab: SlabId, first_serial: int, built: BuiltFrame) -> None:
        callback(committed_batch(slab.shard, slab.generation, first_serial, built))

    return shards.on_stored(stored)


class Feeds:
    """Opens feeds on rows that this process or another one writes."""

    def __init__(
        self,
        source: FeedSource,
        origin: DatabaseIdentity,
        listen: Listen | None,
        *,
        polls: bool,
        is_replicated: bool,
    ) -> None:
        self._source = source
        self._is_replicated = is_replicated
        self._origin = origin
        self._listen = listen
        self._polls = polls
        self._lock = Lock()
        self._runner: FeedRunner | None = None
        self._open = 0
        self._closed = False

    def open(
        self, wanted: Wanted, *, position: Position | None, since_us: int, credit: int
    ) -> FeedReader:
        """Begin a feed. Raises: UsageError, RetryError, ClosedError."""
        require_number("credit", credit)
        require_number("since_us", since_us)
        if position is not None:
            require_kind("position", position, Position, "a Position")
        if credit < 1:
            raise UsageError(f"credit must be at least 1, got {credit}")
        if isinstance(wanted, StreamIterator):
            if position is not None or since_us:
                raise UsageError(
                    "give either an iterator or a start, not both: an iterator is a start"
                )
            filters = [wanted.filter]
            since_us = wanted.since_us
            position = self._position_of(wanted)
        else:
            texts = [wanted] if isinstance(wanted, str) else wanted
            require_kind("wanted", texts, Iterable, "a filter, filters or a StreamIterator")
            filters = [TopicFilter.parse(text) for text in texts]
            if not filters:
                raise UsageError("a feed needs at least one filter")
            if position is not None:
                position = self._placed(position)
        with self._lock:
            if self._closed:
                raise ClosedError("the database is closed")
            if self._runner is None:
                self._runner = FeedRunner(self._source, self._listen, _SETTINGS, polls=self._polls)
            self._open += 1
            start = self._source.position_at(since_us) if position is None else position
            return self._runner.add(
                filters,
                Position(start.serials, self._origin.text),
                credit=credit,
                since_us=since_us,
                left=self._left,
            )

    def end_position(self) -> Position:
        """Return the position after the last row."""
        self._source.refresh()
        return Position(dict(enumerate(self._source.ends())), self._origin.text)

    def look(self) -> None:
        """Let the feeds read rows that no commit has announced."""
        with self._lock:
            if self._runner is not None:
                self._runner.look()

    def end(self, error: SiltstoneError) -> None:
        """End all feeds with this error; later ones may begin."""
        with self._lock:
            runner, self._runner = self._runner, None
        if runner is not None:
            runner.end(error)

    def close(self) -> None:
        """End all feeds: their users get ClosedError."""
        with self._lock:
            self._closed = True
        self.end(ClosedError("the database is closed"))

    def _placed(self, position: Position) -> Position:
        """Return a position with serials only; a shard at its earliest row is not listed.

        Raises: SlabDroppedError for one of another database; UsageError for one after the end, or
        RetryError at a site of a cluster, which may be behind.
        """
        if not position.is_of(self._origin):
            raise SlabDroppedError(
                f"the position belongs to an earlier database of this name, which was dropped; "
                f"start without a position: position={told(position.identity)} "
                f"database={self._origin.text}"
            )
        ends = self.end_position().serials
        asked = dict.fromkeys(ends, position.default) | dict(position.serials)
        serials = {
            shard: ends.get(shard, 0) if serial == LATEST else serial
            for shard, serial in asked.items()
            if serial != EARLIEST
        }
        for shard, serial in serials.items():
            if serial != NEVER and serial > ends.get(shard, 0):
                if self._is_replicated:
                    raise RetryError(
                        f"this site has not read up to the position yet, try again; if that does "
                        f"not help, the position belongs to another database: shard={shard} "
                        f"serial={serial} end={ends.get(shard, 0)}"
                    )
                raise UsageError(
                    f"the position is after the last row, so it belongs to another database: "
                    f"shard={shard} serial={serial} end={ends.get(shard, 0)}"
                )
        return Position(serials, position.identity)

    def _left(self) -> None:
        with self._lock:
            self._open -= 1
            runner = None
            if not self._open:
                runner, self._runner = self._runner, None
        if runner is not None:
            runner.end(ClosedError("the feed is closed"))

    def _position_of(self, iterator: StreamIterator) -> Position:
        """Return the start of a feed that continues an iterator: in its shard and in no other."""
        shard = iterator.slab.shard
        serial = max(
            iterator.next_serial,
            self._source.first_serial(iterator.slab),
            self._source.position_at(iterator.since_us).serial(shard) if iterator.since_us else 0,
        )
        shards = range(len(self._source.ends()))
        return Position({number: serial if number == shard else NEVER for number in shards})
