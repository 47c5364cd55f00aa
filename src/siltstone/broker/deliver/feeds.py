"""The store's rows on the loop: one hub for all durable sessions and share groups.

What shards commit is announced here from their threads; what must be read is read in others; who
gets which rows is decided and done on the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol, cast

from siltstone.clock import Clock
from siltstone.errors import OutcomeUnknownError
from siltstone.guard import contain, contain_with
from siltstone.store.feed.dispatch import Dispatch
from siltstone.store.feed.hub import FeedHub
from siltstone.store.feed.pool import Feed, ReadJob, Source
from siltstone.store.feed.position import FeedPosition
from siltstone.store.feed.rows.batch import FeedBatch
from siltstone.store.feed.settings import FeedSettings
from siltstone.topic.grammar import TopicFilter

Act = Callable[[], None]


class Shell(Protocol):
    """What feeding needs of the loop."""

    def now(self) -> float:
        """Return the loop's time."""

    def soon_from_thread(self, act: Act) -> None:
        """Run something on the loop, called from any thread."""

    def read_in_thread(self, work: Act, then: Act) -> None:
        """Do work that waits for the disk in a thread, then something on the loop."""


class Consumer(Protocol):
    """Who takes the rows of a feed."""

    feed: Feed | None

    def receive(self, batch: FeedBatch, rows: list[int] | None, now: float, wall_us: int) -> None:
        """Take some rows of a batch, all of them for None."""

    def freed(self) -> int:
        """Return how many more rows it could take, if that is worth telling; else 0."""

    def lost(self, serials: int) -> None:
        """Hear that so many serials were dropped from the store before they came by."""

    def broken(self, error: Exception) -> None:
        """Hear that the rows cannot be read."""


class SessionFeeds:
    """The hub of a broker."""

    def __init__(self, source: Source, shell: Shell, clock: Clock) -> None:
        self._shell = shell
        self._clock = clock
        self.source = source
        self.hub = FeedHub(source, self._deliver, self._read, FeedSettings())

    def ends(self) -> dict[int, int]:
        """Return for each shard the row behind the last that was announced."""
        return dict(enumerate(self.hub.ends))

    def announce_from_thread(self, batch: FeedBatch) -> None:
        """Take what a shard has committed, on its thread."""
        self._shell.soon_from_thread(partial(self.hub.announce, batch))

    def begin(
        self,
        consumer: Consumer,
        filters: Iterable[TopicFilter],
        position: Mapping[int, int],
        credit: int,
    ) -> None:
        """Let rows come by from a place on, so many before more are asked for."""
        consumer.feed = self.hub.add(filters, FeedPosition(position), credit, consumer)

    def end(self, consumer: Consumer) -> None:
        """Let no more rows come by."""
        if consumer.feed is not None:
            self.hub.remove(consumer.feed)
            # The two refer to each other, and the consumer still asks how far its feed has come.
            consumer.feed.tag = None

    def replenish(self, consumer: Consumer) -> None:
        """Let more rows come by where there is room for them."""
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
        batch: FeedBatch,
        rows: list[int] | None,
        now: float,
        wall_us: int,
    ) -> None:
        consumer.receive(batch, rows, now, wall_us)
        freed = consumer.freed()
        if freed:
            self.hub.grant(feed, freed)

    def _take_back(
        self, consumer: Consumer, feed: Feed, batch: FeedBatch, rows: list[int] | None
    ) -> None:
        """End a feed whose consumer could not take its rows for a mistake of ours: they come by
        again when it begins anew.
        """
        self.hub.remove(feed)
        feed.places[batch.shard] = batch.serials[rows[0] if rows else 0]
        mistake = OutcomeUnknownError("internal error: see the log of the broker")
        contain_with(consumer.broken, mistake)

    def _read(self, job: ReadJob) -> None:
        self._shell.read_in_thread(job.run, partial(self.hub.finish, job))


def _consumer_of(feed: Feed) -> Consumer | None:
    """Return who takes the rows of a feed; None where that has ended."""
    return cast("Consumer | None", feed.tag)
