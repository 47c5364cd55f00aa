"""Checks of the archive: every session and group can be read, and the index matches them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from siltstone.errors import CorruptionError
from siltstone.session.archive.codec import PATH, decode_group, decode_session
from siltstone.session.archive.index import Index
from siltstone.session.archive.keys import (
    AWAY_FILTER,
    CONNECTED_FILTER,
    COUNT_GROUPS,
    COUNT_SESSIONS,
    GROUPS_FILTER,
    SESSIONS_FILTER,
    GroupKeys,
    SessionKeys,
    group_id,
)
from siltstone.session.archive.owned import group as owned_group
from siltstone.session.archive.owned import session as owned_session
from siltstone.store.log.read.pieces import Row
from siltstone.store.tx.operations import count_in

# Yields the rows that match a filter.
Read = Callable[[str], Iterator[Row]]


def archive_problems(read: Read) -> Iterator[str]:
    """Yield the problems of sessions, groups, timers and counts.

    Memory grows with the number of sessions. Raises: UsageError for rows that a newer version
    wrote.
    """
    expected = _Expected()
    for topic_filter, index_of in ((SESSIONS_FILTER, _session), (GROUPS_FILTER, _group)):
        for row in read(topic_filter):
            try:
                expected.add(row.topic, index_of(row, read))
            except CorruptionError as exc:
                yield f"{row.topic!r}: {exc.reason}"
    yield from _strays(read, expected.owners)
    yield from _misled(read, expected)


class _Expected:
    """The index rows and counts that the sessions and groups imply."""

    def __init__(self) -> None:
        self.owners: set[str] = set()
        self.rows: dict[str, bytes] = {}
        self.counts: Counter[str] = Counter()

    def add(self, state_topic: str, index: Index) -> None:
        self.owners.add(_owner(state_topic))
        self.rows |= index.rows
        self.counts.update(topic for topic, _ in index.all_counts())


def _session(row: Row, read: Read) -> Index:
    session, _ = decode_session(row.value)
    keys = SessionKeys(session.client_id)
    found = owned_session.content_of(read(keys.all), keys)
    return _index(row.topic, keys.state, None if found is None else found[1].found)


def _group(row: Row, read: Read) -> Index:
    group, _ = decode_group(row.value)
    keys = GroupKeys(group_id(group.name, group.filter))
    found = owned_group.content_of(read(keys.all), keys)
    return _index(row.topic, keys.state, None if found is None else found[1].found)


def _index(topic: str, state_topic: str, index: Index | None) -> Index:
    if topic != state_topic or index is None:
        raise CorruptionError("the state has a key that does not belong to it", path=PATH)
    return index


def _strays(read: Read, owners: set[str]) -> Iterator[str]:
    for topic_filter in ("session/#", "group/#"):
        for row in read(topic_filter):
            if _owner(row.topic) not in owners:
                yield f"{row.topic!r}: a row of nothing that is kept"


def _misled(read: Read, expected: _Expected) -> Iterator[str]:
    """Yield timers, connected entries and counts that do not match the sessions and groups."""
    rows = dict(expected.rows)
    for topic_filter in ("due/#", CONNECTED_FILTER):
        for row in read(topic_filter):
            if rows.pop(row.topic, None) != row.value:
                yield f"{row.topic!r}: nothing is to be found there"
    yield from (f"{topic!r}: missing, it would not be found" for topic in rows)
    counts = Counter(expected.counts)
    for topic_filter in (AWAY_FILTER, COUNT_SESSIONS, COUNT_GROUPS):
        for row in read(topic_filter):
            counts[row.topic] -= count_in(row.value)
    yield from (f"{topic!r}: counts {-off:+d}" for topic, off in counts.items() if off)


def _owner(topic: str) -> str:
    """Return the first two levels of a topic, which identify the session or group of a row."""
    return "/".join(topic.split("/", 2)[:2])
