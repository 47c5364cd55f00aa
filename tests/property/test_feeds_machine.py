"""Feeds against a naive model: appends, seals, drops, slow and fast feeds, and reads and
announcements that overtake each other in every way.

Announcements are held back as a busy owner would, in order for each shard, and some are lost; a
read is run at one moment and given back at another. Each feed sees exactly the rows that match
after its start, in order, once, whatever the timing; credit is never overshot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import count
from random import Random

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from siltstone.rows.stored import StoredBatch
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.feed.dispatch import Dispatch
from siltstone.store.feed.hub import FeedHub
from siltstone.store.feed.pool import ReadJob
from siltstone.store.feed.position import START, Position
from siltstone.store.feed.settings import FeedSettings
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabId
from siltstone.store.slab.settings import COMPRESSIONS, DatabaseSettings
from tests.support.builders import NAME, SEGMENT_BYTES, World
from tests.support.feed_model import FeedTruth, ModelFeed

TOPICS = (*(f"a/{word}/c" for word in "12345"), "a/1", "b", "b/x/y", "$SYS/a", "$SYS/b")
FILTERS = ("#", "a/#", "a/+/c", "a/3/c", "a/1/c", "+/1", "b/#", "$SYS/#", "$SYS/+", "none/+")
# The large ones fill segments.
SIZES = (0, 1, 8, 8, 100, 20_000)
FEEDS_MAX = 6
CREDITS = (0, 1, 2, 3, 5, 20, 1000)
GRANTS = (1, 1, 2, 3, 10)
PLACES = ("start", "now", "now", "another")

numbers = st.integers(0, 2**32)
hub_settings = st.builds(
    FeedSettings,
    read_rows=st.sampled_from((1, 3, 1000)),
    read_bytes=st.sampled_from((1, 1 << 20)),
    read_frames=st.sampled_from((1, 2, 1000)),
    held_bytes=st.sampled_from((0, 1000, 1 << 20)),
    held_max=st.sampled_from((1, 2, 1000)),
    filters_max=st.sampled_from((1, 3, 100)),
    resume_rows=st.sampled_from((1, 3, 100)),
    dispatches_max=st.sampled_from((1, 2, 64)),
    decode=st.booleans(),
)
database_settings = st.builds(
    DatabaseSettings,
    shards=st.sampled_from((1, 2)),
    shard_by=st.just("topic"),
    thresholds=st.sampled_from(((100, 10), (2, 1), (0,))),
    segment_bytes=st.just(SEGMENT_BYTES),
    compression=st.sampled_from(COMPRESSIONS),
    topic_cache=st.sampled_from((2, 1000)),
    idle_flush_interval=st.just(0.0),
)


class FeedMachine(RuleBasedStateMachine):
    """Feeds in the process that writes, which hear of each commit."""

    polls = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.store: Store | None = None
        self.reading: Store | None = None
        self.feeds: list[ModelFeed] = []
        self.jobs: list[ReadJob] = []
        self.ran: set[ReadJob] = set()
        self.announced: list[deque[StoredBatch]] = []
        self.values = count()
        self.nested = False
        self.random = Random(0)

    @initialize(hub=hub_settings, database=database_settings, seed=numbers)
    def open(self, hub: FeedSettings, database: DatabaseSettings, seed: int) -> None:
        self.store = self.world.store()
        self.database: Database = self.store.create(NAME, database)
        self.random = Random(seed)
        self.truth = FeedTruth(database.shards)
        self.announced = [deque() for _ in range(database.shards)]
        source = self.database.feed_source()
        if self.polls:
            self.reading = self.world.store(read_only=True)
            source = self.reading.database(NAME).feed_source()
            source.refresh()
        else:
            self.database.on_commit(lambda batch: self.announced[batch.shard].append(batch))
        for _ in range(self.random.randrange(3)):
            self.append(seed=self.random.randrange(1 << 32), size=3)
        self.source = source
        self.hub = FeedHub(source, self._deliver, self.jobs.append, hub)

    def _deliver(self, dispatch: Dispatch) -> None:
        assert not self.nested, "delivered inside a delivery"
        self.nested = True
        assert dispatch.error is None
        dispatch.batch.load()
        for feed, lost in dispatch.lost:
            assert isinstance(feed.tag, ModelFeed)
            feed.tag.lost += lost
        assert len({feed for feed, _ in dispatch.shares}) == len(dispatch.shares)
        for feed, rows in dispatch.shares:
            assert isinstance(feed.tag, ModelFeed)
            assert feed.credit >= 0
            feed.tag.receive(dispatch, rows)
        # A user may answer at once; now and then ours does.
        for feed, _ in dispatch.shares:
            assert isinstance(feed.tag, ModelFeed)
            if self.random.random() < 0.3:
                feed.tag.grant(1)
        self.nested = False

    @rule(seed=numbers, size=st.integers(1, 6))
    def append(self, seed: int, size: int) -> None:
        random = Random(seed)
        rows = [
            Row(
                random.choice(TOPICS),
                b"%d " % next(self.values) + bytes(random.choice(SIZES)),
                publisher=random.choice(("", "p", "q")),
                qos=random.randrange(3),
                retain=random.random() < 0.2,
                properties=random.choice((b"", b"", b"&\0\1k\0\1v")),
            )
            for _ in range(size)
        ]
        self.truth.append(self.database, rows)

    @rule()
    def seal(self) -> None:
        self.database.seal()
        self.truth.generation += 1

    @rule()
    def compact(self) -> None:
        self.database.seal()
        self.truth.generation += 1
        compaction = self.database.compaction
        for job in compaction.jobs():
            compaction.run(job)

    @rule(choice=numbers)
    def drop(self, choice: int) -> None:
        sealed = [info.slab for info in self.database.slabs() if info.until_us is not None]
        if sealed:
            slab = sealed[choice % len(sealed)]
            self.database.drop_slab(slab)
            self.truth.dropped.add(SlabId(slab.shard, slab.generation))

    @rule(
        seed=numbers,
        place=st.sampled_from(PLACES),
        credit=st.sampled_from(CREDITS),
    )
    def subscribe(self, seed: int, place: str, credit: int) -> None:
        if len(self.feeds) >= FEEDS_MAX:
            return
        random = Random(seed)
        position = START
        if place == "now":
            position = Position(dict(enumerate(self.source.ends())))
        elif place == "another" and self.feeds:
            other = random.choice(self.feeds).feed
            assert other is not None
            position = other.position()
        feed = ModelFeed(self.truth, self.hub, random.sample(FILTERS, random.randrange(1, 4)))
        self.feeds.append(feed)
        feed.begin(position, credit)

    @rule(choice=numbers, rows=st.sampled_from(GRANTS))
    @precondition(lambda self: self.feeds)
    def grant(self, choice: int, rows: int) -> None:
        self.feeds[choice % len(self.feeds)].grant(rows)

    @rule(choice=numbers, seed=numbers)
    @precondition(lambda self: self.feeds)
    def filter(self, choice: int, seed: int) -> None:
        random = Random(seed)
        filters = random.sample(FILTERS, random.randrange(4))
        self.feeds[choice % len(self.feeds)].filter(filters)

    @rule(choice=numbers, credit=st.sampled_from(CREDITS))
    @precondition(lambda self: self.feeds)
    def reconnect(self, choice: int, credit: int) -> None:
        self.feeds[choice % len(self.feeds)].reconnect(credit)

    @rule(choice=numbers)
    @precondition(lambda self: self.feeds)
    def unsubscribe(self, choice: int) -> None:
        gone = self.feeds.pop(choice % len(self.feeds)).feed
        assert gone is not None
        self.hub.remove(gone)

    @rule(choice=numbers)
    def announce(self, choice: int) -> None:
        waiting = [batches for batches in self.announced if batches]
        if waiting:
            self.hub.announce(waiting[choice % len(waiting)].popleft())

    @rule(choice=numbers)
    def miss(self, choice: int) -> None:
        """Lose an announcement, as somebody does who begins to listen too late."""
        waiting = [batches for batches in self.announced if batches]
        if waiting:
            waiting[choice % len(waiting)].popleft()

    @rule()
    def poll(self) -> None:
        self.source.refresh()
        self.hub.advance(self.source.ends())

    @rule(choice=numbers)
    def read(self, choice: int) -> None:
        waiting = [job for job in self.jobs if job not in self.ran]
        if waiting:
            job = waiting[choice % len(waiting)]
            job.run()
            self.ran.add(job)

    @rule(choice=numbers)
    def give_back(self, choice: int) -> None:
        done = [job for job in self.jobs if job in self.ran]
        if done:
            self._finish(done[choice % len(done)])

    def _finish(self, job: ReadJob) -> None:
        self.jobs.remove(job)
        self.ran.discard(job)
        self.hub.finish(job)

    @rule()
    def rest(self) -> None:
        """Let everything come to its end, with credit for all; then nothing may be missing."""
        for batches in self.announced:
            while batches:
                self.hub.announce(batches.popleft())
        self.poll()
        for feed in self.feeds:
            feed.grant(10_000)
        while self.jobs:
            job = self.jobs[0]
            if job not in self.ran:
                job.run()
            self._finish(job)
        for feed in self.feeds:
            feed.check_rest()
            # What they have left would last for ever.
            feed.reconnect(self.random.choice(CREDITS))

    @rule(seed=numbers)
    def storm(self, seed: int) -> None:
        """Do many things, those that race with each other most of all."""
        random = Random(seed)

        def number() -> int:
            return random.randrange(1 << 32)

        def credit() -> int:
            return random.choice(CREDITS)

        acts: list[tuple[int, Callable[[], object]]] = [
            (6, lambda: self.append(seed=number(), size=random.randrange(1, 13))),
            (8, lambda: self.announce(choice=number())),
            (4, lambda: self.read(choice=number())),
            (4, lambda: self.give_back(choice=number())),
            (3 if self.polls else 1, self.poll),
            (1, lambda: self.miss(choice=number())),
            (1, self.seal),
            (1, lambda: self.drop(choice=number())),
            (
                3,
                lambda: self.subscribe(seed=number(), place=random.choice(PLACES), credit=credit()),
            ),
        ]
        with_feeds: list[tuple[int, Callable[[], object]]] = [
            (6, lambda: self.grant(choice=number(), rows=random.choice(GRANTS))),
            (2, lambda: self.filter(choice=number(), seed=number())),
            (2, lambda: self.reconnect(choice=number(), credit=credit())),
            (1, lambda: self.unsubscribe(choice=number())),
        ]
        for _ in range(100):
            usable = acts + with_feeds if self.feeds else acts
            weights, choices = zip(*usable, strict=True)
            random.choices(choices, weights)[0]()

    def teardown(self) -> None:
        try:
            if self.store is not None:
                for _ in range(2):
                    self.storm(seed=self.random.randrange(1 << 32))
                self.rest()
        finally:
            if self.reading is not None:
                self.reading.close()
            if self.store is not None:
                self.store.close()


class PollingMachine(FeedMachine):
    """Feeds in a process that reads what another one writes: nobody announces anything."""

    polls = True


QUICK = settings(
    stateful_step_count=10,
    deadline=None,
    derandomize=True,
    database=None,
    # A failing history is told as it is: to shorten it would take longer than a test may.
    phases=(Phase.generate,),
)
LONG = settings(QUICK, max_examples=2000, stateful_step_count=30, derandomize=False)


# A disk in memory is slow to look at again and again.
@pytest.mark.parametrize(("machine", "examples"), [(FeedMachine, 20), (PollingMachine, 8)])
def test_each_feed_sees_the_rows_that_match_in_order_once(
    machine: type[FeedMachine], examples: int
) -> None:
    run_state_machine_as_test(machine, settings=settings(QUICK, max_examples=examples))


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("machine", [FeedMachine, PollingMachine])
def test_each_feed_sees_the_rows_that_match_over_many_more_histories(
    machine: type[FeedMachine],
) -> None:
    run_state_machine_as_test(machine, settings=LONG)
