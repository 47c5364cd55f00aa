"""Distribute rows to feeds: live feeds from memory, all others from shared reads. Compiled; no
threads, no clock, no I/O.

A hub belongs to one owner, an event loop or a thread, which makes all calls here. For each shard a
feed is in one of three states:

    live       it received every row before the hub's end of the shard; a committed batch finds it
               by its filters, so a batch costs nothing for feeds that it does not match
    waiting    its place is before the end and it has credit: reads are made for it, in turn
    dry        its place is before the end and it has no credit

Invariants:
- A feed receives the rows of a shard that match its filters in order of serials, each once. Rows
  before the place of the feed are cut off, and the place moves before rows are handed over.
- A feed never receives more rows than it has credit for; the rest comes later.
- Feeds at one place share one read, and a shard has one read in progress. All feeds whose place is
  within the rows that were read use them.
- A delivery never starts inside another delivery.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from siltstone.errors import SiltstoneError, UsageError
from siltstone.rows.stored import StoredBatch, rows_by_name, rows_of_names
from siltstone.store.feed.dispatch import Dispatch, hand_over
from siltstone.store.feed.groups import FilterGroups
from siltstone.store.feed.pool import (
    Feed,
    FilterGroup,
    Held,
    ReadJob,
    Rows,
    RowSource,
    ShardFeeds,
    StagedFilters,
)
from siltstone.store.feed.position import Position
from siltstone.store.feed.settings import FeedSettings
from siltstone.topic.grammar import TopicFilter

# The cost limit of one call of `clear`: each filter costs its number of levels, plus one.
_CLEARED_LEVELS: Final = 400


class FeedHub:
    """The feeds of a database.

    The caller of `announce` must listen for commits before it creates the hub. A commit in between
    is then announced, or it is before the ends with which the hub begins. `deliver` receives each
    dispatch. `want_read` receives a job: `run` it on any thread, then pass it to `finish` on the
    owner's thread.
    """

    def __init__(
        self,
        source: RowSource,
        deliver: Callable[[Dispatch], None],
        want_read: Callable[[ReadJob], None],
        settings: FeedSettings,
    ) -> None:
        self._source = source
        self._deliver = deliver
        self._want_read = want_read
        self._settings = settings
        # The serial after the last announced row, by shard.
        self.ends: list[int] = source.ends()
        self._shards: list[ShardFeeds] = []
        for shard in range(len(self.ends)):
            self._shards.append(ShardFeeds(shard, self.ends[shard], settings))
        self._groups = FilterGroups(len(self.ends))
        self._feeds: dict[Feed, None] = {}
        self._announced: deque[StoredBatch] = deque()
        self._finished: deque[ReadJob] = deque()
        self._due: deque[ShardFeeds] = deque()
        self._running = False

    def __len__(self) -> int:
        return len(self._feeds)

    def stage(self, staged: StagedFilters | None, filters: list[TopicFilter]) -> StagedFilters:
        """Prepare some filters of a feed with many, so that `add` takes less time; None: the first.

        The owner passes the result to the next call, and at last to `add` or to `unstage`.
        """
        return self._groups.stage(staged, filters)

    def unstage(self, staged: StagedFilters) -> None:
        """Give up a feed whose filters were staged; `clear` removes them."""
        self._groups.unstage(staged)

    def add(
        self,
        filters: Iterable[TopicFilter],
        position: Position,
        credit: int,
        tag: object,
        staged: StagedFilters | None = None,
    ) -> Feed:
        """Begin a feed at a position; nothing is delivered before its first job is passed to
        `finish`.
        """
        if credit < 0:
            raise UsageError(f"credit must be 0 or more, got {credit}")
        feed = Feed(self._groups.join(filters, staged), position, credit, tag)
        feed.ends = self.ends
        self._feeds[feed] = None
        for shard_feeds in self._shards:
            feed.add_shard()
            self._settle(shard_feeds, feed)
        while self._due and not self._running:
            # The caller does not know the new feed yet, so nothing may be delivered here.
            self._pump(self._due.popleft(), 0)
        return feed

    def filter(self, feed: Feed, filters: Iterable[TopicFilter]) -> None:
        """Replace the filters of a feed, for all rows that were not delivered yet."""
        if feed.removed:
            return
        former = feed.group
        feed.group = self._groups.follow(former, filters)
        for shard in range(len(feed.places)):
            if feed.live[shard]:
                del former.live[shard][feed]
                feed.group.live[shard][feed] = None
        self._groups.leave(former)
        self.clear()

    def grant(self, feed: Feed, rows: int) -> None:
        """Give a feed credit for `rows` more rows."""
        if rows < 0:
            raise UsageError(f"credit cannot be negative: rows={rows}")
        if feed.removed or rows == 0:
            return
        feed.credit += rows
        feed.window = max(feed.window, feed.credit)
        for shard_feeds in self._shards:
            if not feed.live[shard_feeds.shard]:
                if not feed.waiting[shard_feeds.shard]:
                    shard_feeds.put(feed)
                self._call(shard_feeds)
        self._run()

    def remove(self, feed: Feed) -> None:
        """End a feed; its position stays unchanged. `clear` removes its filters if it has many."""
        if feed.removed:
            return
        for shard_feeds in self._shards:
            feed.places[shard_feeds.shard] = self._withdraw(shard_feeds, feed)
        feed.removed = True
        del self._feeds[feed]
        self._groups.leave(feed.group)
        self.clear()

    def clear(self) -> bool:
        """Remove some filters of feeds that have ended; return whether to call this again.

        These filters match nothing, but they take memory. Removing many at once would take long.
        """
        return self._groups.clear(_CLEARED_LEVELS)

    def behind(self) -> dict[int, int]:
        """Return, for each shard that some feed has not read to its end, the lowest serial that a
        feed still has to read.
        """
        found: dict[int, int] = {}
        for feed in self._feeds:
            for shard in range(len(feed.places)):
                if not feed.live[shard]:
                    place = feed.places[shard]
                    found[shard] = min(place, found.get(shard, place))
        return found

    def announce(self, batch: StoredBatch) -> None:
        """Hand over a committed batch; batches of one shard in order."""
        self._announced.append(batch)
        self._run()

    def advance(self, ends: list[int]) -> None:
        """Record that there are rows up to these ends, which will not be announced."""
        self._add_shards(len(ends))
        for shard_feeds in self._shards:
            if ends[shard_feeds.shard] > shard_feeds.end:
                self._fall_behind(shard_feeds, ends[shard_feeds.shard])
        self._run()

    def finish(self, job: ReadJob) -> None:
        """Accept a job that has run."""
        self._finished.append(job)
        self._run()

    def _run(self) -> None:
        """Do all work that is due, including work that becomes due meanwhile; never recursively."""
        if self._running:
            return
        self._running = True
        try:
            while True:
                if self._announced:
                    self._commit(self._announced.popleft())
                elif self._finished:
                    self._take_back(self._finished.popleft())
                elif self._due:
                    self._pump(self._due.popleft(), self._settings.dispatches_max)
                else:
                    break
        finally:
            self._running = False

    def _send(self, dispatch: Dispatch) -> None:
        if dispatch.shares or dispatch.lost:
            if self._settings.decode:
                dispatch.batch.load()
            self._deliver(dispatch)

    def _add_shards(self, shards: int) -> None:
        """Add the shards that the database has gained."""
        for shard in range(len(self._shards), shards):
            shard_feeds = ShardFeeds(shard, 0, self._settings)
            self._shards.append(shard_feeds)
            self.ends.append(0)
            self._groups.add_shard()
            for feed in self._feeds:
                feed.add_shard()
                self._settle(shard_feeds, feed)

    def _set_end(self, shard_feeds: ShardFeeds, end: int) -> None:
        shard_feeds.end = end
        self.ends[shard_feeds.shard] = end

    def _settle(self, shard_feeds: ShardFeeds, feed: Feed) -> None:
        """Put a feed into the state that its place and its credit require."""
        shard = shard_feeds.shard
        if feed.places[shard] >= shard_feeds.end:
            feed.live[shard] = True
            feed.group.live[shard][feed] = None
        elif feed.credit:
            shard_feeds.put(feed)
            self._call(shard_feeds)

    def _withdraw(self, shard_feeds: ShardFeeds, feed: Feed) -> int:
        """Remove a feed from its state in a shard; return its place."""
        place = feed.place(shard_feeds.shard)
        if feed.live[shard_feeds.shard]:
            feed.live[shard_feeds.shard] = False
            del feed.group.live[shard_feeds.shard][feed]
        else:
            shard_feeds.take(feed)
        return place

    def _fall_behind(self, shard_feeds: ShardFeeds, end: int) -> None:
        """Move the end of a shard forward; live feeds must read the rows before it."""
        behind = [feed for group in self._groups.all() for feed in group.live[shard_feeds.shard]]
        for feed in behind:
            feed.places[shard_feeds.shard] = self._withdraw(shard_feeds, feed)
        self._set_end(shard_feeds, end)
        for feed in behind:
            self._settle(shard_feeds, feed)

    def _call(self, shard_feeds: ShardFeeds) -> None:
        if not shard_feeds.due:
            shard_feeds.due = True
            self._due.append(shard_feeds)

    def _commit(self, batch: StoredBatch) -> None:
        """Deliver a committed batch to the live feeds."""
        self._add_shards(batch.shard + 1)
        shard_feeds = self._shards[batch.shard]
        if batch.stop_serial <= shard_feeds.end:
            # The batch was stored before the hub was created.
            return
        if batch.start_serial > shard_feeds.end:
            # Serials were skipped, or the listener started too late: a read finds out.
            self._fall_behind(shard_feeds, batch.start_serial)
        start = batch.start_serial
        self._set_end(shard_feeds, batch.stop_serial)
        if not self._feeds:
            return
        held = Held(start, batch.stop_serial, start, batch)
        held.complete = True
        shard_feeds.remember(held)
        dispatch = Dispatch(batch)
        self._share_live(shard_feeds, start, dispatch)
        self._send(dispatch)

    def _share_live(self, shard_feeds: ShardFeeds, start: int, dispatch: Dispatch) -> None:
        batch = dispatch.batch
        names = batch.names
        found = [self._groups.who_wants(name) for name in names]
        alike = True
        for groups in found:
            if groups is not found[0]:
                alike = False
                break
        if alike:
            for group in found[0]:
                self._share_group(shard_feeds, start, dispatch, group, None)
            return
        wanted: dict[FilterGroup, list[int]] = {}
        some: set[int] = set()
        for number in range(len(found)):
            for group in found[number]:
                if group.live[shard_feeds.shard]:
                    some.add(number)
                    if group in wanted:
                        wanted[group].append(number)
                    else:
                        wanted[group] = [number]
        if not wanted:
            return
        batch.load()
        by_name = rows_by_name(batch, some)
        for group, numbers in wanted.items():
            rows = None if len(numbers) == len(names) else rows_of_names(by_name, numbers)
            self._share_group(shard_feeds, start, dispatch, group, rows)

    def _share_group(
        self,
        shard_feeds: ShardFeeds,
        start: int,
        dispatch: Dispatch,
        group: FilterGroup,
        rows: Rows,
    ) -> None:
        """Give every live feed of a group its rows; a feed without credit for all of them is no
        longer live.
        """
        shard = shard_feeds.shard
        batch = dispatch.batch
        shares = dispatch.shares
        count = batch.count if rows is None else len(rows)
        left: list[Feed] = []
        for feed in group.live[shard]:
            if feed.credit >= count and feed.places[shard] <= start:
                feed.credit -= count
                shares.append((feed, rows))
            elif feed.places[shard] < batch.stop_serial:
                stop = hand_over(dispatch, feed, rows, feed.places[shard], batch.stop_serial)
                if stop < batch.stop_serial:
                    feed.places[shard] = stop
                    left.append(feed)
        for feed in left:
            feed.live[shard] = False
            del group.live[shard][feed]

    def _take_back(self, job: ReadJob) -> None:
        shard_feeds = self._shards[job.shard]
        shard_feeds.job = None
        self._call(shard_feeds)
        if job.error is not None:
            self._fail(shard_feeds, job, job.error)
        elif job.held is not None:
            shard_feeds.keep(job.held)
            self._serve(shard_feeds, job.held)

    def _fail(self, shard_feeds: ShardFeeds, job: ReadJob, error: SiltstoneError) -> None:
        """End the feeds for which the read failed."""
        dispatch = Dispatch(StoredBatch(job.shard, 0, job.start, job.start, 0))
        dispatch.error = error
        for feed in shard_feeds.between(job.start, job.start + 1):
            if feed.group in job.groups:
                feed.error = error
                self.remove(feed)
                dispatch.shares.append((feed, []))
        self._send(dispatch)

    def _pump(self, shard_feeds: ShardFeeds, dispatches_max: int) -> None:
        """Serve a shard's queue from memory, until a read is needed or the limit is reached."""
        shard_feeds.due = False
        served = 0
        while shard_feeds.job is None:
            feed = self._next_in_turn(shard_feeds)
            if feed is None:
                return
            place = feed.places[shard_feeds.shard]
            held = shard_feeds.find(place, feed.group)
            if held is None:
                # The read may return less than the feed waits for.
                shard_feeds.put(feed)
                self._start(shard_feeds, place, self._near(shard_feeds, feed))
            elif served >= dispatches_max:
                # This job reads nothing. It lets the owner do other work before it returns.
                shard_feeds.put(feed)
                self._start(shard_feeds, place, {})
            else:
                served += 1
                self._serve(shard_feeds, held)
                if self._announced:
                    self._call(shard_feeds)
                    return

    def _start(self, shard_feeds: ShardFeeds, place: int, groups: dict[FilterGroup, None]) -> None:
        shard_feeds.job = ReadJob(shard_feeds.shard, place, groups, self._source, self._settings)
        self._want_read(shard_feeds.job)

    def _next_in_turn(self, shard_feeds: ShardFeeds) -> Feed | None:
        """Return the next feed of the queue; a feed with little credit lets the others go first,
        once.
        """
        shard = shard_feeds.shard
        while shard_feeds.queue:
            feed = shard_feeds.queue.popleft()
            feed.queued[shard] = False
            if not feed.waiting[shard]:
                continue
            enough = min(self._settings.resume_rows, feed.window // 2)
            if feed.credit < enough and not feed.passed[shard] and shard_feeds.queue:
                feed.passed[shard] = True
                feed.queued[shard] = True
                shard_feeds.queue.append(feed)
                continue
            feed.passed[shard] = False
            return feed
        return None

    def _near(self, shard_feeds: ShardFeeds, feed: Feed) -> dict[FilterGroup, None]:
        """Return the groups of all feeds whose place this read may reach; the group of `feed` is
        first.
        """
        place = feed.places[shard_feeds.shard]
        groups: dict[FilterGroup, None] = {feed.group: None}
        filters = len(feed.group.filters)
        for other in shard_feeds.between(place, place + self._settings.read_rows):
            if other.group not in groups:
                filters += len(other.group.filters)
                if filters > self._settings.filters_max:
                    break
                groups[other.group] = None
        return groups

    def _serve(self, shard_feeds: ShardFeeds, held: Held) -> None:
        """Give every feed that waits within these rows in memory its rows."""
        shard = shard_feeds.shard
        batch = held.batch
        if batch is None:
            batch = StoredBatch(shard, 0, held.start, held.stop, 0)
        dispatch = Dispatch(batch)
        for feed in shard_feeds.between(held.start, held.stop):
            if not held.covers(feed.group):
                continue
            shard_feeds.take(feed)
            place = feed.places[shard]
            if place < held.rows_from:
                if place or feed.is_placed[shard]:
                    # A feed that begins with the first existing row has lost nothing.
                    dispatch.lost.append((feed, held.rows_from - place))
                    feed.gaps += held.rows_from - place
                place = held.rows_from
            stop = held.stop
            if batch.count:
                rows = held.rows_of(feed.group, self._groups.who_wants)
                stop = hand_over(dispatch, feed, rows, place, stop)
            feed.places[shard] = stop
            self._settle(shard_feeds, feed)
        self._send(dispatch)
