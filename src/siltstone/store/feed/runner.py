"""The threads behind `Database.feed`: one owns the hub of a database, one reads for it.

They start with the first feed and end with the last. Users and shards queue actions; only the
owning thread accesses the hub. If another process writes the rows, a third thread polls for them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from threading import Condition, Thread, current_thread
from typing import Final, Protocol

from siltstone.errors import SiltstoneError
from siltstone.guard import contain
from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.dispatch import Dispatch
from siltstone.store.feed.hub import FeedHub
from siltstone.store.feed.pool import Feed, ReadJob, Rows, RowSource
from siltstone.store.feed.position import Position
from siltstone.store.feed.reader import FeedRead, FeedReader
from siltstone.store.feed.settings import FeedSettings
from siltstone.store.slab.manifest import SlabId
from siltstone.topic.grammar import TopicFilter

# Begins to listen for commits; returns a function that ends it.
Listen = Callable[[Callable[[StoredBatch], None]], Callable[[], None]]
Act = Callable[[], None]

POLL_SECONDS: Final = 0.05


class FeedSource(RowSource, Protocol):
    """The source of the feeds of a database, also of rows that other processes write."""

    def refresh(self) -> None:
        """Read from the disk what another process has written."""

    def followed_ends(self) -> list[int]:
        """Return the ends of the shards that other processes write; 0 for the others."""
        ...

    def position_at(self, since_us: int) -> Position:
        """Return a position before all rows at or after a time."""
        ...

    def first_serial(self, slab: SlabId) -> int:
        """Return the serial of a slab's first row. Raises: SlabDroppedError, NotFoundError."""
        ...


class _Worker:
    """A thread that runs actions in order, and optionally one action repeatedly."""

    def __init__(self, name: str, *, again: Act | None = None) -> None:
        self._changed = Condition()
        self._acts: deque[Act] = deque()
        self._ending = False
        self._again = again
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; actions that were queued before run first."""
        self._thread.start()

    def do(self, act: Act) -> None:
        """Queue an action; actions run in order."""
        with self._changed:
            self._acts.append(act)
            self._changed.notify()

    def end(self) -> None:
        """Run the remaining actions, and end the thread."""
        with self._changed:
            self._ending = True
            self._changed.notify()
        if current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._acts and not self._ending:
                    self._changed.wait(None if self._again is None else POLL_SECONDS)
                acts, self._acts = self._acts, deque()
                if not acts and self._ending:
                    return
            for act in acts:
                contain(act)
            if self._again is not None:
                contain(self._again)


class _User:
    """The user of a feed.

    A feed may begin at a time within a frame: rows before this time are left out.
    """

    def __init__(self, reader: FeedReader, since_us: int) -> None:
        self.reader = reader
        self._since_us = since_us

    def cut(self, batch: StoredBatch, rows: Rows) -> Rows:
        """Return the rows that are not too old."""
        if batch.first_timestamp_us >= self._since_us:
            return rows
        batch.load()
        times = batch.timestamps
        numbers = range(batch.count) if rows is None else rows
        return [number for number in numbers if times[number] >= self._since_us]


class FeedRunner:
    """One hub and its threads."""

    def __init__(
        self,
        source: FeedSource,
        listen: Listen | None,
        settings: FeedSettings,
        *,
        polls: bool,
    ) -> None:
        """Listen for rows that this process writes, and poll for those of other processes."""
        self._source = source
        self._readers: dict[FeedReader, None] = {}
        self._owner = _Worker("siltstone-feeds")
        self._reads = _Worker("siltstone-feed-reads")
        self._polls: _Worker | None = None
        self._unlisten: Act | None = None
        if polls:
            source.refresh()
            self._polls = _Worker("siltstone-feed-polls", again=self._poll)
        if listen is not None:
            # Listening begins before the hub reads the ends of the shards.
            self._unlisten = listen(self._hear)
        self._hub = FeedHub(source, self._deliver, self._want_read, settings)
        for worker in self._workers():
            worker.start()

    def add(
        self,
        filters: Sequence[TopicFilter],
        position: Position,
        *,
        credit: int,
        since_us: int,
        left: Act,
    ) -> FeedReader:
        """Begin a feed; `left` is called when its user has closed it."""
        reader = FeedReader(position)
        begun: list[Feed] = []

        def begin() -> None:
            self._readers[reader] = None
            begun.append(self._hub.add(filters, position, credit, _User(reader, since_us)))

        def remove() -> None:
            self._readers.pop(reader, None)
            self._hub.remove(begun[0])
            while self._hub.clear():
                pass

        def leave() -> None:
            self._owner.do(remove)
            left()

        reader.grant = lambda rows: self._owner.do(lambda: self._hub.grant(begun[0], rows))
        reader.leave = leave
        self._owner.do(begin)
        return reader

    def look(self) -> None:
        """Let the feeds read all rows up to the present ends of the shards."""
        ends = self._source.ends()
        self._owner.do(lambda: self._hub.advance(ends))

    def end(self, error: SiltstoneError) -> None:
        """End every feed with this error, and end the threads."""
        if self._unlisten is not None:
            self._unlisten()
        self._owner.do(lambda: self._end_all(error))
        # The owner ends last, because the other threads queue actions for it.
        for worker in reversed(self._workers()):
            worker.end()

    def _workers(self) -> list[_Worker]:
        workers = [self._owner, self._reads]
        return workers if self._polls is None else [*workers, self._polls]

    def _end_all(self, error: SiltstoneError) -> None:
        readers, self._readers = self._readers, {}
        for reader in readers:
            reader.end(error)

    def _hear(self, batch: StoredBatch) -> None:
        self._owner.do(lambda: self._hub.announce(batch))

    def _want_read(self, job: ReadJob) -> None:
        self._reads.do(partial(self._read, job))

    def _read(self, job: ReadJob) -> None:
        job.run()
        self._owner.do(lambda: self._hub.finish(job))

    def _poll(self) -> None:
        """Check for rows that another process has written."""
        try:
            self._source.refresh()
            ends = self._source.followed_ends()
        except SiltstoneError as exc:
            error = exc
            self._owner.do(lambda: self._end_all(error))
        else:
            self._owner.do(lambda: self._hub.advance(ends))

    def _deliver(self, dispatch: Dispatch) -> None:
        """Pass rows to the users of the feeds."""
        batch = dispatch.batch
        lost = dict(dispatch.lost)
        for feed, shared in dispatch.shares:
            user = feed.tag
            assert isinstance(user, _User)
            if dispatch.error is not None:
                user.reader.end(dispatch.error)
                continue
            picked = user.cut(batch, shared)
            if picked is not shared:
                count = batch.count if shared is None else len(shared)
                self._hub.grant(feed, count - len(picked or ()))
            _put(user.reader, feed, lost.pop(feed, 0), batch, picked)
        for feed, serials in lost.items():
            user = feed.tag
            assert isinstance(user, _User)
            _put(user.reader, feed, serials, batch, [])


def _put(reader: FeedReader, feed: Feed, lost: int, batch: StoredBatch, picked: Rows) -> None:
    if picked is None or picked or lost:
        reader.put(FeedRead(position=feed.position(), lost=lost, batch=batch, picked=picked))
