"""The archive of durable sessions and share groups. It outlives connections, brokers, power cuts.

A disconnected session consists of rows in the key-value database `commits` and takes no memory. It
is loaded when its client returns. To take a session, a caller first fences off the former owner and
then reads, so it sees the last state that the former owner could save.

Methods that wait for the disk must run in a thread. `save_later` and `drop_later` of a session or
group that was taken do not wait.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from itertools import groupby, islice
from typing import Final

from siltstone.clock import Clock
from siltstone.errors import UsageError
from siltstone.fs.paths import COMMITS
from siltstone.logs import log
from siltstone.session.archive.codec import decode_group, decode_session
from siltstone.session.archive.index import KINDS, expires_at_us
from siltstone.session.archive.keys import (
    AWAY_FILTER,
    CONNECTED_FILTER,
    COUNT_RUN,
    COUNT_SESSIONS,
    GROUPS_FILTER,
    SESSIONS_FILTER,
    GroupKeys,
    SessionKeys,
    due_time,
    due_topic,
    group_id,
    group_parts,
)
from siltstone.session.archive.owned import group as owned_group
from siltstone.session.archive.owned import session as owned_session
from siltstone.session.archive.owned.group import GroupContent, OwnedGroup
from siltstone.session.archive.owned.rows import StoredState
from siltstone.session.archive.owned.session import OwnedSession, SessionContent
from siltstone.session.archive.places import Page, sessions_before
from siltstone.session.archive.records import SavedGroup, SavedSession
from siltstone.session.archive.rows import ArchiveRows, second_word, serial_of
from siltstone.session.archive.start_over import StartOver, group_in, session_in
from siltstone.store.directory import COMMITS_SETTINGS
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.identity import DatabaseIdentity, told
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.operations import COUNT_BYTES, SERIAL_BYTES, count_in
from siltstone.store.tx.transaction import Transaction

ARCHIVE_NAME: Final = COMMITS
ARCHIVE_SETTINGS: Final = COMMITS_SETTINGS

_MANY: Final = 1000
_LOG: Final = logging.getLogger("siltstone.sessions")


@dataclass(frozen=True, slots=True)
class RunStart:
    """A run of the broker: its number, and the clients that were connected when the run before it
    stopped without saving their sessions.
    """

    run: int
    orphans: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A timer that is due: `will`, `expiry`, or `group` with its share filter as the id.

    It stays due until the session or group is saved without it, or dropped.
    """

    kind: str
    client_id: str
    at_us: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSummary:
    """A session as lists show it."""

    client_id: str
    user: str
    version: int
    connected: bool
    run: int
    away_since_us: int | None
    expires_at_us: int | None
    has_will: bool
    dropped: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AwayFilter:
    """A filter of disconnected sessions: the number of subscriptions, and their highest QoS."""

    filter: str
    count: int
    qos_max: int


# Inside the class, `list` is a method.
Summaries = list[SessionSummary]
Groups = list[SavedGroup]
Dues = list[Due]
TakenSessions = list[OwnedSession | None]
CreatedSessions = list[OwnedSession]
TakenGroups = list[OwnedGroup | None]
CreatedGroups = list[OwnedGroup]


class SessionArchive:
    """Sessions by client id, groups by name and filter, timers in order of time."""

    def __init__(
        self, database: KeyValueDatabase, clock: Clock, origin: DatabaseIdentity | None = None
    ) -> None:
        """Use this database. Raises: UsageError unless it is a plain map whose levels are fixed and
        varying in turn, like those of ARCHIVE_SETTINGS.

        `origin` is the database of the messages: a session that was saved in another database
        starts at its beginning. Without `origin`, places are used as they are.
        """
        settings = database.settings
        if settings.timed or settings.thresholds != ARCHIVE_SETTINGS.thresholds:
            raise UsageError(
                f"internal error: sessions are in the database {ARCHIVE_NAME!r}, got "
                f"{database.name!r}"
            )
        self._database = database
        self._rows = ArchiveRows(database)
        self._clock = clock
        self._origin = origin

    def begin_run(self) -> RunStart:
        """Increment the run number of the broker, durably. A session stays an orphan until it is
        saved as disconnected, so a crash before that loses none.
        """
        committed = self._database.transact(_count_run, shard=0)
        orphans = sorted(row.value.decode() for row in self._rows.walk(CONNECTED_FILTER))
        return RunStart(committed.value, orphans)

    def take(self, client_id: str) -> OwnedSession | None:
        """Load a session and fence off its former owner; None if it does not exist."""
        return self.take_many([client_id])[0]

    def take_many(self, client_ids: Sequence[str]) -> TakenSessions:
        """Take many sessions, in one or a few group commits."""
        keys = [SessionKeys(client_id) for client_id in client_ids]
        tickets = [
            self._rows.fence(client_id, owner_topic=known.owner, state_topic=known.state)
            for client_id, known in zip(client_ids, keys, strict=True)
        ]
        serials = [serial_of(ticket) for ticket in tickets]
        taken: TakenSessions = []
        for client_id, known, serial in zip(client_ids, keys, serials, strict=True):
            found = None if serial is None else self._load(client_id, known)
            if serial is None or found is None:
                taken.append(None)
            else:
                content, stored = found
                owned = OwnedSession(self._rows.begin(client_id), content, stored, serial)
                if self._origin is not None:
                    _tell(owned.start_in(self._origin), self._origin, client_id=client_id)
                taken.append(owned)
        return taken

    def peek(self, client_id: str) -> SavedSession | None:
        """Return a session as it was saved last, without taking it."""
        found = self._load(client_id, SessionKeys(client_id))
        if found is None:
            return None
        saved = found[0].session()
        return saved if self._origin is None else session_in(saved, self._origin)[0]

    def create(self, session: SavedSession) -> OwnedSession:
        """Create a session; it replaces an existing session of the client id."""
        return self.create_many([session])[0]

    def create_many(self, sessions: Sequence[SavedSession]) -> CreatedSessions:
        """Create many sessions, in one or a few group commits; the last one of an id wins."""
        if self._origin is not None:
            sessions = [
                replace(session, position=session.position.of(self._origin.text))
                for session in sessions
            ]
        keyed = [
            (session.client_id, SessionContent(session, SessionKeys(session.client_id)))
            for session in sessions
        ]
        created = self._rows.create_many(keyed, self._drop)
        return [
            OwnedSession(self._rows.begin(client_id), content, stored, serial)
            for (client_id, content), (stored, serial) in zip(keyed, created, strict=True)
        ]

    def mark_away(self, client_ids: Iterable[str], at_us: int) -> int:
        """Save sessions as disconnected since a time, because their broker stopped without doing
        it.

        Returns how many there were. Their wills and expiries count from that time.
        """
        marked = 0
        waiting = iter(client_ids)
        while some := [*islice(waiting, _MANY)]:
            tickets: list[CommitTicket | None] = []
            for session in self.take_many(some):
                if session is not None:
                    session.put_meta(connected=False, away_since_us=at_us, unclean=True)
                    tickets.append(session.save_later())
            for ticket in tickets:
                if ticket is not None:
                    ticket.wait()
            marked += len(tickets)
        return marked

    def due(self, now_us: int | None = None, limit: int = _MANY) -> Dues:
        """Return at most `limit` timers that are due, the earliest first.

        No timer is early, and a jump of the clock loses none: every timer before the current time
        stays due until it was handled. Timers in a span that the clock holds back, because it may
        not have passed, are not due yet.
        """
        now = self._clock.now_us() if now_us is None else now_us
        held = self._clock.held_us()
        # The time that has certainly passed advances with the clock.
        certain = now - len(held)
        spans = [range(certain + 1), range(max(certain + 1, held.stop), now + 1)]
        found = merge(*(self._due(kind, spans) for kind in KINDS), key=lambda due: due.at_us)
        return [*islice(found, limit)]

    def list(self, after: str = "", limit: int = _MANY) -> Summaries:
        """Return sessions in order of their client ids, starting after `after`."""
        first = SessionKeys(after).state if after else ""
        rows = self._rows.walk(SESSIONS_FILTER, first)
        return [*islice((_summary(row) for row in rows if row.topic != first), limit)]

    def sessions_before(self, floors: Mapping[int, int], after: str = "") -> Page:
        """Return sessions whose position is before any of these serials, after a client id."""
        walk = self._rows.walk
        return sessions_before(walk, floors, self._origin, after=after, limit=_MANY)

    def count(self) -> int:
        """Return the number of sessions, without a scan."""
        return self._rows.count(COUNT_SESSIONS)

    def filters(self) -> Iterator[AwayFilter]:
        """Yield the distinct filters of disconnected sessions, in no particular order."""
        rows = self._rows.walk(AWAY_FILTER)
        for _, same in groupby(rows, key=second_word):
            counts = [(int(row.topic[-1]), row.value) for row in same]
            yield AwayFilter(
                filter=counts[0][1][COUNT_BYTES:].decode(),
                count=sum(count_in(value) for _, value in counts),
                qos_max=max(qos for qos, _ in counts),
            )

    def take_group(self, name: str, topic_filter: str) -> OwnedGroup | None:
        """Load a share group and fence off its former leader; None if it does not exist."""
        return self.take_groups([(name, topic_filter)])[0]

    def take_groups(self, groups: Sequence[tuple[str, str]]) -> TakenGroups:
        """Take many share groups by name and filter, in one or a few group commits."""
        keys = [GroupKeys(group_id(name, topic_filter)) for name, topic_filter in groups]
        tickets = [
            self._rows.fence(known.id, owner_topic=known.owner, state_topic=known.state)
            for known in keys
        ]
        serials = [serial_of(ticket) for ticket in tickets]
        taken: TakenGroups = []
        for known, serial in zip(keys, serials, strict=True):
            found = None if serial is None else self._load_group(known)
            if serial is None or found is None:
                taken.append(None)
            else:
                owned = OwnedGroup(self._rows.begin(known.id), found[0], found[1], serial)
                if self._origin is not None:
                    _tell(owned.start_in(self._origin), self._origin, group=known.id)
                taken.append(owned)
        return taken

    def peek_group(self, name: str, topic_filter: str) -> SavedGroup | None:
        """Return a group as it was saved last, without taking it."""
        found = self._load_group(GroupKeys(group_id(name, topic_filter)))
        if found is None:
            return None
        saved = found[0].group()
        return saved if self._origin is None else group_in(saved, self._origin)[0]

    def create_groups(self, groups: Sequence[SavedGroup]) -> CreatedGroups:
        """Create share groups, in one or a few group commits.

        A group replaces the group that has the same name and filter.
        """
        if self._origin is not None:
            groups = [
                replace(group, position=group.position.of(self._origin.text)) for group in groups
            ]
        ids = [group_id(group.name, group.filter) for group in groups]
        keyed = [
            (key, GroupContent(group, GroupKeys(key)))
            for key, group in zip(ids, groups, strict=True)
        ]
        created = self._rows.create_many(keyed, self._drop_group)
        return [
            OwnedGroup(self._rows.begin(key), content, stored, serial)
            for (key, content), (stored, serial) in zip(keyed, created, strict=True)
        ]

    def list_groups(self, after: str = "", limit: int = _MANY) -> Groups:
        """Return groups without progress, by `$share/<name>/<filter>`, starting after `after`."""
        first = GroupKeys(after).state if after else ""
        rows = self._rows.walk(GROUPS_FILTER, first)
        return [*islice((decode_group(row.value)[0] for row in rows if row.topic != first), limit)]

    def _load(self, client_id: str, keys: SessionKeys) -> tuple[SessionContent, StoredState] | None:
        return owned_session.content_of(self._rows.rows(client_id, keys.all), keys)

    def _load_group(self, keys: GroupKeys) -> tuple[GroupContent, StoredState] | None:
        return owned_group.content_of(self._rows.rows(keys.id, keys.all), keys)

    def _drop(self, client_id: str) -> None:
        owned = self.take(client_id)
        if owned is not None:
            owned.drop()

    def _drop_group(self, key: str) -> None:
        owned = self.take_group(*group_parts(key))
        if owned is not None:
            owned.drop()

    def _due(self, kind: str, spans: Iterable[range]) -> Iterator[Due]:
        # There may be many timers between the spans; they are not scanned.
        for span in filter(None, spans):
            for row in self._rows.walk(f"due/+/{kind}/+", due_topic(span.start, kind, "")):
                at_us = due_time(row.topic)
                if at_us not in span:
                    break
                yield Due(kind=kind, client_id=row.value.decode(), at_us=at_us)


def _tell(started: StartOver | None, origin: DatabaseIdentity, **whose: str) -> None:
    # Also at position 0: rows of the former database that were not delivered are gone.
    if started is not None and started.may_miss:
        log(
            _LOG,
            logging.WARNING,
            "position_reset",
            **whose,
            rows_behind=started.rows_behind,
            inflight=started.inflight,
            former=told(started.former),
            database=origin.text,
        )


def _count_run(tx: Transaction) -> int:
    run = int.from_bytes(tx.get(COUNT_RUN) or b"", "big") + 1
    tx.write(COUNT_RUN, run.to_bytes(SERIAL_BYTES, "big"))
    return run


def _summary(row: Row) -> SessionSummary:
    session, _ = decode_session(row.value)
    return SessionSummary(
        client_id=session.client_id,
        user=session.user,
        version=session.version,
        connected=session.connected,
        run=session.run,
        away_since_us=session.away_since_us,
        expires_at_us=expires_at_us(session),
        has_will=session.will is not None,
        dropped=session.dropped,
    )
