"""Feeds over a key-value database against a naive copy of its rows.

A follower applies the changes that its feed delivers to an empty dictionary. Whenever it has
received everything, its dictionary is what the database holds, whatever happened in between: writes
and deletions of all kinds, small windows, generations that end, writes that fail and are stored or
not, crashes and reopening, slow followers, and followers that continue from a saved position. A
follower that lost changes is told how many, and copies the rows again.
"""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from siltstone.errors import OutcomeUnknownError, SiltstoneError
from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.dispatch import Dispatch
from siltstone.store.feed.hub import FeedHub
from siltstone.store.feed.pool import Feed, ReadJob
from siltstone.store.feed.position import Position
from siltstone.store.feed.settings import FeedSettings
from siltstone.store.tx.operations import MONOTONIC
from siltstone.store.tx.transaction import Transaction
from siltstone.topic.grammar import TopicFilter
from tests.support.tx_builders import World, problems_in

TOPICS = ("a", "a/x", "a/y", "b/x/1", "$s/x")
FILTERS = (*TOPICS, "#", "a/#", "+/x", "$s/#", "b/#")
# The second one belongs to all topics that do not begin with `$`.
FOLLOWED = ("$s/x", "#", "a/+")
TIMES = (0, 1, 2, 3, 1 << 40)
KINDS = ("write", "write", "write", "many", "add", "delete", "delete", "clear")
Row = tuple[int, str, int]

numbers = st.integers(0, 2**32)
hub_settings = st.builds(
    FeedSettings,
    read_rows=st.sampled_from((1, 3, 1000)),
    read_bytes=st.sampled_from((1, 1 << 20)),
    read_frames=st.sampled_from((1, 2, 1000)),
    held_bytes=st.sampled_from((0, 1000, 1 << 20)),
    held_max=st.sampled_from((1, 1000)),
    decode=st.booleans(),
)


class Follower:
    """A dictionary, the feed that fills it, and where the feed would continue."""

    def __init__(self, topic_filter: str) -> None:
        self.filter = TopicFilter.parse(topic_filter)
        self.rows: dict[Row, bytes] = {}
        self.feed: Feed | None = None
        # The place before the first change, not that before the oldest kept change.
        self.position = Position({0: 0})
        self.lost = 0
        self.serials: list[int] = []

    def receive(self, batch: StoredBatch, picked: list[int] | None) -> None:
        batch.load()
        serials = batch.number_rows()
        for index in range(batch.count) if picked is None else picked:
            topic = batch.topics[index].decode()
            assert self.filter.matches(batch.topics[index])
            self.serials.append(serials[index])
            since = batch.timestamps[index]
            until = batch.untils[index] if batch.untils else 0
            generation = batch.generation
            if until:
                self.rows = {
                    row: value
                    for row, value in self.rows.items()
                    if not (row[:2] == (generation, topic) and since <= row[2] < until)
                }
            else:
                self.rows[generation, topic, since] = batch.values[index]


class ChangeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.jobs: list[ReadJob] = []
        self.announced: list[StoredBatch] = []
        self.followers = [Follower(each) for each in FOLLOWED]
        self.random = Random(0)

    @initialize(
        timed=st.booleans(),
        feed_bytes=st.sampled_from((1, 200, 2000, 1 << 20)),
        hub=hub_settings,
        seed=numbers,
    )
    def open(self, timed: bool, feed_bytes: int, hub: FeedSettings, seed: int) -> None:
        self.world = World(timed=timed, feed_bytes=feed_bytes)
        self.timed = timed
        self.hub_settings = hub
        self.random = Random(seed)
        self.begin_hub()

    def begin_hub(self) -> None:
        """Follow the database that is open now, from where the followers were."""
        self.jobs.clear()
        self.announced.clear()
        database = self.world.database
        database.on_commit(self.announced.append)
        self.hub = FeedHub(
            database.feed_source(), self.deliver, self.jobs.append, self.hub_settings
        )
        for each in self.followers:
            each.position = Position.from_bytes(each.position.to_bytes())
            each.feed = self.hub.add([each.filter], each.position, 3, each)

    def deliver(self, dispatch: Dispatch) -> None:
        assert dispatch.error is None
        for feed, lost in dispatch.lost:
            assert isinstance(feed.tag, Follower)
            feed.tag.lost += lost
        for feed, picked in dispatch.shares:
            assert isinstance(feed.tag, Follower)
            feed.tag.receive(dispatch.batch, picked)

    def stored(self, topic_filter: TopicFilter) -> dict[Row, bytes]:
        """Return the rows that the database holds."""
        return {
            (row.generation, row.topic, row.timestamp_us): row.value
            for row in self.world.database.read(topic_filter.text)
        }

    def operate(self, transaction: Transaction, kind: str) -> None:
        topic = self.random.choice(TOPICS)
        value = b"%d" % self.random.randrange(1000)
        match kind:
            case "write" if self.timed:
                transaction.write(topic, value, self.random.choice((*TIMES, MONOTONIC)))
            case "many" if self.timed:
                # Later deletions of the topic delete them as a range.
                for time_us in range(20):
                    transaction.write(topic, value, time_us)
            case "write" | "many":
                transaction.write(topic, value)
            case "add" if not self.timed:
                transaction.add("count", self.random.choice((-1, 0, 1)))
            case "delete" if self.timed:
                since = self.random.choice((0, 0, 1))
                until = self.random.choice((*TIMES[1:], None, MONOTONIC))
                transaction.delete(self.random.choice(FILTERS), since, until)
            case "clear":
                transaction.delete("#")
            case _:
                transaction.delete(self.random.choice(FILTERS))

    @rule(kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=5), group=st.integers(1, 3))
    def change(self, kinds: list[str], group: int) -> None:
        """Commit one transaction, or several in one group."""
        tickets = []
        for _ in range(group):
            transaction = self.world.database.transaction()
            for kind in kinds:
                self.operate(transaction, kind)
            tickets.append(transaction.submit())
        for ticket in tickets:
            ticket.wait()

    @rule(stored=st.booleans(), kinds=st.lists(st.sampled_from(KINDS), min_size=1, max_size=3))
    def fail(self, stored: bool, kinds: list[str]) -> None:
        """Cut the power in a write, which is stored or not."""
        self.world.fail_write(stored=stored)
        with suppress(OutcomeUnknownError), self.world.database.transaction() as transaction:
            for kind in kinds:
                self.operate(transaction, kind)
        self.hear()
        self.end_hub()
        self.world.crash()
        self.begin_hub()

    @rule()
    def reopen(self) -> None:
        self.hear()
        self.end_hub()
        self.world.reopen()
        self.begin_hub()

    @rule()
    def seal(self) -> None:
        if self.timed:
            self.world.database.seal()

    @rule(feed_bytes=st.sampled_from((0, 0, 1, 500, 1 << 20)))
    def configure(self, feed_bytes: int) -> None:
        """Change the window; with 0, changes are not kept for a while."""
        self.world.database.configure(feed_bytes=feed_bytes)

    def end_hub(self) -> None:
        for each in self.followers:
            assert each.feed is not None
            each.position = each.feed.position()

    @rule(number=st.integers(0, 2))
    def hear(self, number: int = 3) -> None:
        """Announce some of the commits, in order."""
        for _ in range(number):
            if self.announced:
                self.hub.announce(self.announced.pop(0))

    @rule(which=st.integers(0, len(FOLLOWED) - 1), rows=st.integers(1, 5))
    def grant(self, which: int, rows: int) -> None:
        feed = self.followers[which].feed
        assert feed is not None
        self.hub.grant(feed, rows)

    @rule()
    def run_job(self) -> None:
        if self.jobs:
            job = self.jobs.pop(0)
            job.run()
            self.hub.finish(job)

    @rule()
    def drain(self) -> None:
        """Let all followers receive everything, and compare."""
        while self.announced:
            self.hub.announce(self.announced.pop(0))
        # Commits while changes were not kept are not announced.
        self.hub.advance(self.world.database.feed_source().ends())
        while True:
            for each in self.followers:
                assert each.feed is not None
                self.hub.grant(each.feed, 1000)
            if not self.jobs:
                break
            job = self.jobs.pop(0)
            job.run()
            self.hub.finish(job)
        keeps = self.world.database.settings.feed_bytes
        for each in self.followers:
            assert each.feed is not None
            assert each.feed.has_caught_up()
            assert each.feed.position().serials == dict(enumerate(self.hub.ends))
            stored = self.stored(each.filter)
            if each.lost or not keeps:
                each.rows, each.lost = stored, 0
            assert each.rows == stored

    @invariant()
    def serials_rise(self) -> None:
        for each in self.followers:
            assert each.serials == sorted(set(each.serials))

    def teardown(self) -> None:
        with suppress(SiltstoneError):
            self.world.database.close()
        assert problems_in(self.world.memory.reopened()) == []


TestChangeFeeds = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)(ChangeMachine.TestCase)
TestChangeFeeds.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
