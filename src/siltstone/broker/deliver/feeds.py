"""Rows of the store on the loop: one hub for all durable sessions and share groups.

Shards announce committed rows from their threads. Other threads read rows from the disk. The loop
decides which consumer gets which rows, and delivers them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol, cast

from siltstone.clock import Clock
from siltstone.errors import OutcomeUnknownError
from siltstone.guard import contain, contain_with
from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.dispatch import Dispatch
from siltstone.store.feed.hub import FeedHub
from siltstone.store.feed.pool import Feed, ReadJob, RowSource, StagedFilters
from siltstone.store.feed.position import Position
from siltstone.store.feed.settings import FeedSettings
from siltstone.topic.grammar import TopicFilter

Act = Callable[[], None]
Announce = Callable[[StoredBatch], None]


class FeedShell(Protocol):
    """The functions of the loop that feeds need."""

    def now(self) -> float:
        """Return the loop's time."""

    def soon(self, act: Act) -> None:
        """Run `act` when the current work is done."""

    def soon_from_thread(self, act: Act) -> None:
        """Run `act` on the loop; may be called from any thread."""

    def read_in_thread(self, work: Act, then: Act) -> None:
        """Run `work`, which waits for the disk, in a thread, then `then` on the loop."""


class Consumer(Protocol):
    """A receiver of the rows of a feed: a durable session or a share group."""

    feed: Feed | None

    def receive(self, batch: StoredBatch, rows: list[int] | None, now: float, wall_us: int) -> None:
        """Receive some rows of a batch; None means all of them."""

    def freed(self) -> int:
        """Return how many more rows it can receive; 0 if the number is too small to report."""

    def lost(self, serials: int) -> None:
        """Handle the loss of rows: the store dropped this many serials before they were read."""

    def broken(self, error: Exception) -> None:
        """Handle an error: the rows cannot be read."""


class SessionFeeds:
    """The feed hub of a broker."""

    def __init__(self, source: RowSource, shell: FeedShell, clock: Clock) -> None:
        self._shell = shell
        self._clock = clock
        self.source = source
        self.hub = FeedHub(source, self._deliver, self._read, FeedSettings())
        self._is_clearing = False
        # Begins to announce rows, for the first feed; None if they are announced already.
        self._listen: Callable[[Announce], object] | None = None

    def listen_with(self, listen: Callable[[Announce], object]) -> None:
        """Call `listen` when the first feed begins: without feeds no row need be announced."""
        self._listen = listen

    def ends(self) -> dict[int, int]:
        """Return for each shard the serial after the last announced row; without feeds, that after
        the last row.
        """
        if self._listen is not None:
            self.hub.advance(self.source.ends())
        return dict(enumerate(self.hub.ends))

    def _begin_to_listen(self) -> None:
        listen, self._listen = self._listen, None
        if listen is not None:
            # In this order: a row that is stored meanwhile is announced, or is before these ends.
            listen(self.announce_from_thread)
            self.hub.advance(self.source.ends())

    def announce_from_thread(self, batch: StoredBatch) -> None:
        """Announce rows that a shard has committed; called on the thread of the shard."""
        self._shell.soon_from_thread(partial(self.hub.announce, batch))

    def begin(
        self,
        consumer: Consumer,
        filters: Iterable[TopicFilter],
        position: Mapping[int, int],
        credit: int,
        staged: StagedFilters | None = None,
    ) -> None:
        """Start the feed of a consumer at a position, with credit for a number of rows."""
        self._begin_to_listen()
        consumer.feed = self.hub.add(filters, Position(position), credit, consumer, staged)
        self._clear_soon()

    def filter(self, consumer: Consumer, filters: Iterable[TopicFilter]) -> None:
        """Replace the filters of the feed of a consumer."""
        assert consumer.feed is not None
        self.hub.filter(consumer.feed, filters)
        self._clear_soon()

    def unstage(self, staged: StagedFilters) -> None:
        """Give up a feed whose filters were staged."""
        self.hub.unstage(staged)
        self._clear_soon()

    def end(self, consumer: Consumer) -> None:
        """End the feed of a consumer."""
        if consumer.feed is not None:
            self.hub.remove(consumer.feed)
            # Break the reference cycle. The consumer keeps its feed, because it still needs the
            # position of the feed.
            consumer.feed.tag = None
            self._clear_soon()

    def _clear_soon(self) -> None:
        """Forget the filters of feeds that have ended, some in each turn of the loop."""
        if not self._is_clearing and self.hub.clear():
            self._is_clearing = True
            self._shell.soon(self._clear_more)

    def _clear_more(self) -> None:
        self._is_clearing = False
        self._clear_soon()

    def replenish(self, consumer: Consumer) -> None:
        """Give the feed of a consumer more credit, if the consumer has room."""
        if consumer.feed is not None:
            freed = consumer.freed()
            if freed:
                self.hub.grant(consumer.feed, freed)

    def _deliver(self, dispatch: Dispatch) -> None:
        now = self._shell.now()
        wall_us = self._clock.now_us()
        for feed, serials in dispatch.lost:
            consumer = _consumer_of(feed)
            if consumer is not None:
                contain_with(consumer.lost, serials)
        for feed, rows in dispatch.shares:
            consumer = _consumer_of(feed)
            if consumer is None:
                continue
            if dispatch.error is not None:
                self._clear_soon()
                contain_with(consumer.broken, dispatch.error)
            elif not feed.removed:
                contain(
                    partial(self._hand_over, consumer, feed, dispatch.batch, rows, now, wall_us),
                    partial(self._take_back, consumer, feed, dispatch.batch, rows),
                )

    def _hand_over(
        self,
        consumer: Consumer,
        feed: Feed,
        batch: StoredBatch,
        rows: list[int] | None,
        now: float,
        wall_us: int,
    ) -> None:
        consumer.receive(batch, rows, now, wall_us)
        freed = consumer.freed()
        if freed:
            self.hub.grant(feed, freed)

    def _take_back(
        self, consumer: Consumer, feed: Feed, batch: StoredBatch, rows: list[int] | None
    ) -> None:
        """End a feed whose consumer raised an internal error when it received rows.

        The feed is set back to the first of these rows, so they come again when it restarts.
        """
        self.hub.remove(feed)
        self._clear_soon()
        feed.places[batch.shard] = batch.serials[rows[0] if rows else 0]
        mistake = OutcomeUnknownError("internal error: see the log of the broker")
        contain_with(consumer.broken, mistake)

    def _read(self, job: ReadJob) -> None:
        self._shell.read_in_thread(job.run, partial(self.hub.finish, job))


def _consumer_of(feed: Feed) -> Consumer | None:
    """Return the consumer of a feed; None if it has ended."""
    return cast("Consumer | None", feed.tag)
