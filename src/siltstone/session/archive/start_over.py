"""Sessions and groups whose database was dropped and created again start at its beginning.

Their places are serials of the former database, and would skip rows of the new one. What was in
flight of the former one is gone; a packet id that the client may hold by QoS 2 is released first,
or the client would take the next message of that id for the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from siltstone.session.archive.records import (
    DUP,
    NOT_STORED,
    RELEASED,
    SavedGroup,
    SavedInflight,
    SavedSession,
    SavedSubscription,
    ShardSerial,
)
from siltstone.store.slab.identity import DatabaseIdentity


@dataclass(frozen=True, slots=True)
class StartOver:
    """What a session or group gave up: so many rows were behind it, and so many in flight."""

    former: str
    rows_behind: int
    inflight: int


def session_in(
    session: SavedSession, origin: DatabaseIdentity
) -> tuple[SavedSession, StartOver | None]:
    """Return a session as it stands in a database, and what it gave up if it starts over."""
    if origin.owns(session.identity):
        return replace(session, identity=origin.text), None
    kept = tuple(
        each for one in session.inflight if (each := _kept(one, session.unclean)) is not None
    )
    started = replace(
        session,
        subscriptions=tuple(_without_since(one) for one in session.subscriptions),
        position=(),
        done=(),
        inflight=kept,
        # No row of the new database was sent before.
        unclean=False,
        identity=origin.text,
    )
    stored = sum(one.shard != NOT_STORED for one in session.inflight)
    return started, StartOver(session.identity, _rows(session.position), stored)


def group_in(group: SavedGroup, origin: DatabaseIdentity) -> tuple[SavedGroup, StartOver | None]:
    """Return a group as it stands in a database, and what it gave up if it starts over."""
    if origin.owns(group.identity):
        return replace(group, identity=origin.text), None
    started = replace(group, since=(), position=(), done=(), identity=origin.text)
    return started, StartOver(group.identity, _rows(group.position), 0)


def _kept(one: SavedInflight, unclean: bool) -> SavedInflight | None:
    if one.shard == NOT_STORED:
        # What was to be sent when the broker stopped without a word may have been.
        return one._replace(flags=one.flags | DUP) if unclean else one
    if one.flags & 3 == 2:
        return SavedInflight(one.packet_id, NOT_STORED, 0, 2 | RELEASED)
    return None


def _without_since(subscription: SavedSubscription) -> SavedSubscription:
    return replace(subscription, since=())


def _rows(position: tuple[ShardSerial, ...]) -> int:
    return sum(place.serial for place in position)
