"""The feeds of a hub, and for each shard the waiting feeds and the rows in memory. Compiled."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Protocol, cast

from siltstone.errors import SiltstoneError
from siltstone.rows.stored import StoredBatch, rows_by_name, rows_of_names
from siltstone.store.feed.position import Position
from siltstone.store.feed.settings import FeedSettings
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.matcher import Matcher

Rows = list[int] | None
# Returns the groups that want a topic.
Wanting = Callable[[bytes], "tuple[FilterGroup, ...]"]

# A matcher of this number of filters is made at once.
_FEW_FILTERS: Final = 100


class ReadResult:
    """The result of a read: all wanted rows with serials from start to stop.

    Rows before `rows_from` are gone with a slab that was dropped. The batch is None if no row
    matched.
    """

    def __init__(self, start: int, stop: int, rows_from: int, batch: StoredBatch | None) -> None:
        self.start = start
        self.stop = stop
        self.rows_from = rows_from
        self.batch = batch


class RowSource(Protocol):
    """The source that a hub reads: the current slabs of a database."""

    def ends(self) -> list[int]:
        """Return for each shard the serial after its last readable row."""
        ...

    def read(
        self, shard: int, start: int, filters: list[TopicFilter], settings: FeedSettings
    ) -> ReadResult:
        """Read from a serial on, as much as the settings allow. Raises: SiltstoneError."""
        ...


class GroupEntry:
    """The entry of a group in a matcher.

    A group that replaces another one takes its entry over, so that only the filters that differ are
    changed in the matcher.
    """

    def __init__(self, group: FilterGroup) -> None:
        self.group = group


class StagedFilters:
    """Filters that are in a matcher before their feed begins. Nothing is found by them until
    then.
    """

    def __init__(self, place: GroupEntry) -> None:
        self.place = place
        self.filters: dict[str, TopicFilter] = {}


def plain_text(topic_filter: TopicFilter) -> str:
    """Return the text of a filter without the name of a share group.

    A string knows its hash. That of a tuple of levels is computed for each look-up, which takes
    long for thousands of filters.
    """
    if topic_filter.group is None:
        return topic_filter.text
    return b"/".join(topic_filter.levels).decode()


class FilterGroup:
    """Feeds with the same filters: they are matched together."""

    def __init__(self, filters: Iterable[TopicFilter], shards: int) -> None:
        self.by_text: dict[str, TopicFilter] = {plain_text(each): each for each in filters}
        self.filters = tuple(self.by_text.values())
        # The key of the group: the texts of all filters.
        self.key = frozenset(self.by_text)
        self.members = 0
        self.live: list[dict[Feed, None]] = []
        for _ in range(shards):
            self.live.append({})
        self._matcher: Matcher | None = None

    def has_matcher(self) -> bool:
        """Return whether its own matcher exists, or costs little."""
        return self._matcher is not None or len(self.filters) <= _FEW_FILTERS

    def join(self, matcher: Matcher) -> None:
        """Add this group to a matcher, under its filters."""
        for topic_filter in self.filters:
            matcher.put(topic_filter.levels, self, self)

    def matcher(self) -> Matcher:
        """Return a matcher that contains only this group."""
        matcher = self._matcher
        if matcher is None:
            matcher = Matcher()
            self.join(matcher)
            self._matcher = matcher
        return matcher


class Feed:
    """A subscription to the store. `tag` belongs to the user, everything else to the hub."""

    def __init__(self, group: FilterGroup, start: Position, credit: int, tag: object) -> None:
        self._start = start
        self.tag = tag
        self.group = group
        self.credit = credit
        # The highest credit so far.
        self.window = credit
        # The number of serials that it lost, because their slab was dropped before it read them.
        self.gaps = 0
        self.error: SiltstoneError | None = None
        self.removed = False
        self.ends: list[int] = []
        # The next serial by shard; for a live shard it may be lower than the hub's end.
        self.places: list[int] = []
        # Whether it began at a given place, and not with the first existing row.
        self.is_placed: list[bool] = []
        self.live: list[bool] = []
        self.waiting: list[bool] = []
        self.queued: list[bool] = []
        self.passed: list[bool] = []

    def add_shard(self) -> None:
        """Add one more shard, at the start position of the feed."""
        shard = len(self.places)
        self.places.append(self._start.serial(shard))
        self.is_placed.append(shard in self._start.serials)
        for states in (self.live, self.waiting, self.queued, self.passed):
            states.append(False)

    def place(self, shard: int) -> int:
        """Return the next serial of a shard: everything before was delivered or did not match."""
        place = self.places[shard]
        return max(place, self.ends[shard]) if self.live[shard] else place

    def serials(self) -> dict[int, int]:
        """Return the next serial of each shard."""
        return {shard: self.place(shard) for shard in range(len(self.places))}

    def position(self) -> Position:
        """Return the position from which the feed would continue."""
        return Position(self.serials(), self._start.identity)

    def has_caught_up(self) -> bool:
        """Return whether it has received everything that the hub knows, in all shards."""
        return all(self.live)

    def is_live(self, shard: int) -> bool:
        """Return whether it has received everything that the hub knows of a shard."""
        return self.live[shard]


class Held:
    """Rows in memory: all rows of some serials, or those that some groups want."""

    def __init__(self, start: int, stop: int, rows_from: int, batch: StoredBatch | None) -> None:
        self.start = start
        self.stop = stop
        self.rows_from = rows_from
        self.batch = batch
        self.complete = False
        self.size_bytes = 0 if batch is None else batch.size_bytes
        # The rows of each group; None means all.
        self._rows: dict[FilterGroup, Rows] = {}

    def give(self, rows: dict[FilterGroup, Rows]) -> None:
        """Set the rows that each group of the read wants."""
        self._rows = rows

    def covers(self, group: FilterGroup) -> bool:
        """Return whether all rows of these serials that a group wants are here."""
        return self.complete or group in self._rows

    def rows_of(self, group: FilterGroup, wanting: Wanting) -> Rows:
        """Return the rows that a covered group wants, None for all.

        A matcher for thousands of filters takes long to make, so `wanting` finds the groups of each
        topic instead.
        """
        if group in self._rows:
            return self._rows[group]
        batch = self.batch
        assert batch is not None
        if group.has_matcher():
            rows = wanted_rows(batch, {group: None})[group]
        else:
            batch.load()
            names = batch.names
            mine = [number for number in range(len(names)) if group in wanting(names[number])]
            rows = None
            if len(mine) < len(names):
                rows = rows_of_names(rows_by_name(batch, set(mine)), mine)
        self._rows[group] = rows
        return rows


def wanted_rows(batch: StoredBatch, groups: dict[FilterGroup, None]) -> dict[FilterGroup, Rows]:
    """Return the rows of a batch that each group wants, None for all of them."""
    batch.load()
    names = batch.names
    numbers = _wanted_names(names, groups)
    partly: set[int] = set()
    for mine in numbers.values():
        if len(mine) < len(names):
            partly.update(mine)
    by_name = rows_by_name(batch, partly)
    rows: dict[FilterGroup, Rows] = {}
    for group in groups:
        mine = numbers[group]
        rows[group] = None if len(mine) == len(names) else rows_of_names(by_name, mine)
    return rows


def _wanted_names(
    names: list[bytes], groups: dict[FilterGroup, None]
) -> dict[FilterGroup, list[int]]:
    """Return the numbers of the topics that each group wants; all groups are matched together."""
    numbers: dict[FilterGroup, list[int]] = {group: [] for group in groups}
    if len(groups) == 1:
        matcher = next(iter(groups)).matcher()
    else:
        matcher = Matcher()
        for group in groups:
            group.join(matcher)
    for number in range(len(names)):
        for found in matcher.match(names[number]):
            mine = numbers[cast("FilterGroup", found)]
            # Several filters of a group may match.
            if not mine or mine[-1] != number:
                mine.append(number)
    return numbers


class ReadJob:
    """One read for all feeds at and near a place. `run` may be called on any thread."""

    def __init__(
        self,
        shard: int,
        start: int,
        groups: dict[FilterGroup, None],
        source: RowSource,
        settings: FeedSettings,
    ) -> None:
        self.shard = shard
        self.start = start
        self.groups = groups
        self._source = source
        self._settings = settings
        self.held: Held | None = None
        self.error: SiltstoneError | None = None

    def run(self) -> None:
        """Read, and find the rows that each group wants; do nothing if there is no group."""
        if not self.groups:
            return
        wanted: dict[tuple[bytes, ...], TopicFilter] = {}
        for group in self.groups:
            for topic_filter in group.filters:
                wanted[topic_filter.levels] = topic_filter
        try:
            found = self._source.read(self.shard, self.start, list(wanted.values()), self._settings)
        except SiltstoneError as exc:
            self.error = exc
            return
        batch = found.batch
        held = Held(found.start, found.stop, found.rows_from, batch)
        if batch is None or len(self.groups) == 1:
            held.give(dict.fromkeys(self.groups))
        else:
            held.give(wanted_rows(batch, self.groups))
        if batch is not None and self._settings.decode:
            batch.load()
        self.held = held


class ShardFeeds:
    """One shard: its end, the waiting feeds and their queue, and the rows in memory."""

    def __init__(self, shard: int, end: int, settings: FeedSettings) -> None:
        self.shard = shard
        self.end = end
        self.job: ReadJob | None = None
        self.due = False
        self.queue: deque[Feed] = deque()
        self._bytes_max = settings.held_bytes
        self._held_max = settings.held_max
        # The places where feeds wait, in rising order, and the feeds at each place.
        self._positions: list[int] = []
        self._at: dict[int, dict[Feed, None]] = {}
        # The last committed rows, in order, and the first serial of each.
        self._recent: list[Held] = []
        self._starts: list[int] = []
        self._recent_bytes = 0
        # The last rows that were read, the newest at the end.
        self._read: list[Held] = []
        self._read_bytes = 0

    def put(self, feed: Feed) -> None:
        """Let a feed wait at its place, and add it to the queue."""
        place = feed.places[self.shard]
        there = self._at.get(place)
        if there is None:
            there = {}
            self._at[place] = there
            insort(self._positions, place)
        there[feed] = None
        feed.waiting[self.shard] = True
        if not feed.queued[self.shard]:
            feed.queued[self.shard] = True
            self.queue.append(feed)

    def take(self, feed: Feed) -> None:
        """End the waiting of a feed; it stays in the queue until its turn."""
        if not feed.waiting[self.shard]:
            return
        feed.waiting[self.shard] = False
        place = feed.places[self.shard]
        there = self._at[place]
        del there[feed]
        if not there:
            del self._at[place]
            del self._positions[bisect_left(self._positions, place)]

    def between(self, start: int, stop: int) -> list[Feed]:
        """Return the feeds that wait from start to stop, the lowest place first."""
        found: list[Feed] = []
        positions = self._positions
        for number in range(bisect_left(positions, start), bisect_left(positions, stop)):
            found.extend(self._at[positions[number]])
        return found

    def remember(self, held: Held) -> None:
        """Keep committed rows, within the limits."""
        self._recent.append(held)
        self._starts.append(held.start)
        self._recent_bytes += held.size_bytes
        while self._recent and (
            self._recent_bytes > self._bytes_max or len(self._recent) > self._held_max
        ):
            self._recent_bytes -= self._recent.pop(0).size_bytes
            del self._starts[0]

    def keep(self, held: Held) -> None:
        """Keep rows that were read, within the limits."""
        self._read.append(held)
        self._read_bytes += held.size_bytes
        while self._read and (
            self._read_bytes > self._bytes_max or len(self._read) > self._held_max
        ):
            self._read_bytes -= self._read.pop(0).size_bytes

    def find(self, place: int, group: FilterGroup) -> Held | None:
        """Return the rows in memory at a place, if they include all that a group wants."""
        number = bisect_right(self._starts, place) - 1
        if number >= 0 and place < self._recent[number].stop:
            return self._recent[number]
        for held in self._read:
            if held.start <= place < held.stop and held.covers(group):
                return held
        return None
