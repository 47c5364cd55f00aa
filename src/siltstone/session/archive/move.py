"""Moves of sessions and groups to another position: back to read rows again, or forward to skip."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, Protocol

from siltstone.session.archive.owned.group import OwnedGroup
from siltstone.session.archive.owned.session import OwnedSession
from siltstone.session.archive.records import RELEASED
from siltstone.store.feed.position import Position

# The beginning of the store, its end, or a time in µs.
Place = Literal["earliest", "latest"] | int


class Timeline(Protocol):
    """The positions of the rows of a store in time."""

    def ends(self) -> list[int]:
        """Return for each shard the serial after its last row that can be read."""
        ...

    def position_at(self, since_us: int) -> Position:
        """Return for each shard the position of the first frame with a row at or after a time."""
        ...


def find_place(source: Timeline, place: Place) -> Position:
    """Return the serial of each shard at a place; a time is resolved to the start of a frame."""
    if place == "earliest":
        return Position(dict.fromkeys(range(len(source.ends())), 0))
    if place == "latest":
        return Position(dict(enumerate(source.ends())))
    return Position(dict(source.position_at(place).serials))


def move_session(owned: OwnedSession, position: Position) -> None:
    """Let a session continue at a position, with all its subscriptions. The caller saves it.

    Messages in flight are forgotten, except those that the client has received and must still
    release.
    """
    state = owned.state
    owned.put_progress(
        position=position,
        inflight=tuple(one for one in state.inflight if one.flags & RELEASED),
        next_packet_id=state.next_packet_id,
    )
    for message in state.extra:
        owned.drop_extra(message.packet_id)
    for subscription in state.subscriptions:
        owned.put_subscription(replace(subscription, since=position))


def move_group(owned: OwnedGroup, position: Position) -> None:
    """Let a group continue at a position. The caller saves it."""
    owned.put_progress(position=position)
