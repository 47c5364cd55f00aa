"""The lag of a session or group: the rows of the store that it has not received yet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final, cast

from siltstone.rows.stored import StoredBatch
from siltstone.session.archive.records import (
    NOT_STORED,
    SavedGroup,
    SavedSession,
    SerialRange,
)
from siltstone.session.durable.wanted import WantedFilter
from siltstone.session.sending.delivery import left_us_of, properties_of
from siltstone.store.feed.pool import RowSource
from siltstone.store.feed.position import Position
from siltstone.store.feed.settings import FeedSettings
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.matcher import Matcher

_SETTINGS: Final = FeedSettings(decode=False)
_NOWHERE: Final[Mapping[int, int]] = {}

# Tells whether a row, by its index in a batch, counts.
Counts = Callable[[StoredBatch, int], bool]


@dataclass(frozen=True, slots=True)
class Lag:
    """The number of waiting messages, the size of their values, and the time of the oldest, if any.

    `is_more` says that there are more messages, which were not counted. `gone` is the number of
    rows, wanted or not, that retention dropped from the store before they could be read.
    """

    messages: int
    size_bytes: int
    oldest_us: int | None
    is_more: bool
    gone: int = 0


def group_lag(
    source: RowSource, saved: SavedGroup, now_us: int, *, count_max: int | None = None
) -> Lag:
    """Count the rows that the members of a group have not received yet."""
    filters = [TopicFilter.parse(saved.filter)]
    rows = _Rows(source, filters, saved.position, {})
    return _lag(rows, _counts_of_group(saved, now_us), count_max)


def session_lag(
    source: RowSource, saved: SavedSession, now_us: int, *, count_max: int | None = None
) -> Lag:
    """Count the rows that a session has not acknowledged, by its own subscriptions. Rows that share
    groups lend to it count for the group.
    """
    wanted = _Wanted(saved, now_us)
    rows = _Rows(source, wanted.filters, saved.position, {})
    return _lag(rows, wanted.counts, count_max)


def backlog_lag(
    source: RowSource, saved: SavedSession, ends: Mapping[int, int], age_max_us: int, now_us: int
) -> Lag:
    """Count the rows that wait for a session before `ends`, except rows that were sent before and
    rows that are too old. An age of 0 means no limit.
    """
    wanted = _Wanted(saved, now_us)
    sent = {(one.shard, one.serial) for one in saved.inflight if one.shard != NOT_STORED}

    def counts(batch: StoredBatch, index: int) -> bool:
        is_old = age_max_us and batch.came_us(index) + age_max_us < now_us
        return (
            not is_old
            and (batch.shard, batch.serials[index]) not in sent
            and wanted.counts(batch, index)
        )

    return _lag(_Rows(source, wanted.filters, saved.position, ends), counts, None)


def session_first(
    source: RowSource,
    saved: SavedSession,
    ends: Mapping[int, int],
    now_us: int,
    *,
    starts: Mapping[int, int] = _NOWHERE,
) -> dict[int, int]:
    """Return for each shard the first row before its end that a session has not received or not
    acknowledged; the end if there is none. The caller knows that the session wants no row before
    `starts`.
    """
    wanted = _Wanted(saved, now_us)
    rows = _Rows(source, wanted.filters, _later(saved.position, starts), ends)
    found = rows.first(wanted.counts)
    for one in saved.inflight:
        if one.shard in found:
            found[one.shard] = min(found[one.shard], one.serial)
    return found


def group_first(
    source: RowSource, saved: SavedGroup, ends: Mapping[int, int], now_us: int
) -> dict[int, int]:
    """Return for each shard the first row before its end that the members of a group have not
    received yet; the end if there is none.
    """
    rows = _Rows(source, [TopicFilter.parse(saved.filter)], saved.position, ends)
    return rows.first(_counts_of_group(saved, now_us))


class _Wanted:
    """The rows that a disconnected session will receive. A row of QoS 1 or 2 counts if it matches a
    subscription of QoS 1 or 2 and is not older than that subscription. It must not be done or
    expired, and not be the session's own message where the subscription says no local.
    """

    def __init__(self, saved: SavedSession, now_us: int) -> None:
        self._publisher = saved.client_id.encode()
        self._done = _serials(saved.done)
        self._now_us = now_us
        self._matcher = Matcher()
        self.filters: list[TopicFilter] = []
        for one in saved.subscriptions:
            topic_filter = TopicFilter.parse(one.filter)
            if topic_filter.group is None and one.qos:
                self.filters.append(topic_filter)
                wanted = WantedFilter(
                    one.qos,
                    one.no_local,
                    one.retain_as_published,
                    b"",
                    dict(one.since.serials),
                    None,
                )
                self._matcher.put(topic_filter.levels, one.filter, wanted)

    def counts(self, batch: StoredBatch, index: int) -> bool:
        """Tell whether the session will receive a row."""
        shard, serial = batch.shard, batch.serials[index]
        if batch.flags[index] & 3 == 0 or (shard, serial) in self._done:
            return False
        is_own = batch.publishers[index] == self._publisher
        for value in self._matcher.match(batch.topics[index]):
            wanted = cast("WantedFilter", value)
            if serial >= wanted.since.get(shard, 0) and not (is_own and wanted.no_local):
                return not _is_expired(batch, index, self._now_us)
        return False


class _Rows:
    """The rows that any filter matches from a position to the given or the current ends."""

    def __init__(
        self,
        source: RowSource,
        filters: Collection[TopicFilter],
        position: Position,
        ends: Mapping[int, int],
    ) -> None:
        self._source = source
        self._filters = list(filters)
        self._starts = position.serials
        self._ends = ends
        self.gone = 0

    def __iter__(self) -> Iterator[tuple[StoredBatch, int]]:
        for shard, last in enumerate(self._source.ends() if self._filters else ()):
            yield from self._of_shard(shard, self._ends.get(shard, last))

    def first(self, counts: Counts) -> dict[int, int]:
        """Return for each shard the first row that counts; its end if there is none."""
        found = dict(self._ends)
        for shard, end in self._ends.items():
            for batch, rows in groupby(self._of_shard(shard, end), key=lambda row: row[0]):
                # A batch groups its rows by stream, so they are not in the order of serials.
                counted = [batch.serials[index] for _, index in rows if counts(batch, index)]
                if counted:
                    found[shard] = min(counted)
                    break
        return found

    def _of_shard(self, shard: int, end: int) -> Iterator[tuple[StoredBatch, int]]:
        serial = self._starts.get(shard, 0)
        while self._filters and serial < end:
            found = self._source.read(shard, serial, self._filters, _SETTINGS)
            if shard in self._starts:
                self.gone += max(0, found.rows_from - serial)
            if found.batch is not None:
                found.batch.load()
                for index, each in enumerate(found.batch.serials):
                    if each < end:
                        yield found.batch, index
            if found.stop <= serial:
                break
            serial = found.stop


def _lag(rows: _Rows, counts: Counts, count_max: int | None) -> Lag:
    count = size_bytes = 0
    oldest_us: int | None = None
    is_more = False
    for batch, index in rows:
        if not counts(batch, index):
            continue
        if count == count_max:
            is_more = True
            break
        count += 1
        size_bytes += len(batch.values[index])
        at_us = batch.timestamps[index]
        oldest_us = at_us if oldest_us is None else min(oldest_us, at_us)
    return Lag(count, size_bytes, oldest_us, is_more, rows.gone)


def _counts_of_group(saved: SavedGroup, now_us: int) -> Counts:
    done = _serials(saved.done)

    def counts(batch: StoredBatch, index: int) -> bool:
        return (batch.shard, batch.serials[index]) not in done and not _is_expired(
            batch, index, now_us
        )

    return counts


def _later(position: Position, starts: Mapping[int, int]) -> Position:
    """Return a position that is not before the start of any shard."""
    shards = position.serials.keys() | starts.keys()
    return Position({shard: max(position.serial(shard), starts.get(shard, 0)) for shard in shards})


def _serials(ranges: Iterable[SerialRange]) -> set[tuple[int, int]]:
    return {(part.shard, serial) for part in ranges for serial in range(part.first, part.stop)}


def _is_expired(batch: StoredBatch, index: int, now_us: int) -> bool:
    return left_us_of(properties_of(batch, index), batch.came_us(index), now_us) == 0
