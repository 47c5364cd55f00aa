"""The reset of sessions and groups whose database was dropped and created again.

They start at the beginning of the new database, because their places are serials of the former
database and would skip rows of the new one. Messages in flight from the former database are lost. A
packet id that the client may hold for QoS 2 is released first; otherwise the client would take the
next message with that id for the same message.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from siltstone.session.archive.records import (
    DUP,
    NOT_STORED,
    RELEASED,
    SavedGroup,
    SavedInflight,
    SavedSession,
    SavedSubscription,
)
from siltstone.store.feed.position import START, Position
from siltstone.store.slab.identity import DatabaseIdentity

_SHARED: Final = "$share/"


@dataclass(frozen=True, slots=True)
class StartOver:
    """The loss of a session or group: the number of rows before its position, and of those in
    flight.

    `may_miss` says whether rows of the former database may have waited for it. None wait for a
    session without subscriptions of its own: those of share groups wait for the group.
    """

    former: str
    rows_behind: int
    inflight: int
    may_miss: bool = True


def session_in(
    session: SavedSession, origin: DatabaseIdentity
) -> tuple[SavedSession, StartOver | None]:
    """Return a session as it continues in a database, and its loss if it starts over."""
    if origin.owns(session.identity):
        return replace(session, position=session.position.of(origin.text)), None
    kept = tuple(
        each for one in session.inflight if (each := _kept(one, session.unclean)) is not None
    )
    started = replace(
        session,
        subscriptions=tuple(_without_since(one) for one in session.subscriptions),
        position=Position({}, origin.text),
        done=(),
        inflight=kept,
        # No row of the new database was sent before.
        unclean=False,
    )
    stored = sum(one.shard != NOT_STORED for one in session.inflight)
    rows_behind = _rows(session.position)
    is_reader = any(not one.filter.startswith(_SHARED) for one in session.subscriptions)
    may_miss = bool(rows_behind or stored or is_reader)
    return started, StartOver(session.identity, rows_behind, stored, may_miss)


def group_in(group: SavedGroup, origin: DatabaseIdentity) -> tuple[SavedGroup, StartOver | None]:
    """Return a group as it continues in a database, and its loss if it starts over."""
    if origin.owns(group.identity):
        return replace(group, position=group.position.of(origin.text)), None
    started = replace(group, since=START, position=Position({}, origin.text), done=())
    return started, StartOver(group.identity, _rows(group.position), 0)


def _kept(one: SavedInflight, unclean: bool) -> SavedInflight | None:
    if one.shard == NOT_STORED:
        # After an unclean stop, a message that was ready to be sent may have been sent.
        return one._replace(flags=one.flags | DUP) if unclean else one
    if one.flags & 3 == 2:
        return SavedInflight(one.packet_id, NOT_STORED, 0, 2 | RELEASED)
    return None


def _without_since(subscription: SavedSubscription) -> SavedSubscription:
    return replace(subscription, since=START)


def _rows(position: Position) -> int:
    return sum(position.serials.values())
