"""One share group that its leader owns: the leader changes it and decides when to save it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypedDict, Unpack

from siltstone.session.archive.codec import (
    NO_PROGRESS,
    SavedProgress,
    decode_group,
    decode_progress,
    encode_group,
    encode_progress,
)
from siltstone.session.archive.index import group_index
from siltstone.session.archive.keys import GroupKeys
from siltstone.session.archive.owned.rows import Owned, OwnedRows, StoredState, TransactionSource
from siltstone.session.archive.records import SavedGroup, SerialRange
from siltstone.session.archive.start_over import StartOver, group_in
from siltstone.store.feed.position import Position
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.identity import DatabaseIdentity


class GroupChanges(TypedDict, total=False):
    """The fields that `put_meta` can change."""

    strategy: str
    expiry_seconds: int
    empty_since_us: int | None
    since: Position
    position: Position


class GroupContent:
    """The content of a group, as it is divided into rows."""

    __slots__ = ("keys", "meta", "progress")

    def __init__(self, group: SavedGroup, keys: GroupKeys) -> None:
        self.keys = keys
        # The identity of the position has no row of its own.
        self.meta = replace(group, position=Position({}, group.position.identity), done=())
        self.progress = SavedProgress(Position(group.position.serials), group.done)

    def group(self) -> SavedGroup:
        """Return the whole group as one value."""
        position = self.progress.position.of(self.meta.identity)
        return replace(self.meta, position=position, done=self.progress.done)

    def topics(self) -> list[str]:
        """Return the topics of the rows other than the owner and the state."""
        return [self.keys.progress]

    def is_plain(self, topic: str) -> bool:
        """Tell whether a row can be saved without the state and the index."""
        return topic == self.keys.progress

    def row(self, topic: str) -> bytes | None:
        """Return the value of a row; None if it has only defaults and is not stored."""
        assert topic == self.keys.progress
        return encode_progress(self.progress) if self.progress != NO_PROGRESS else None

    def stored(self, revision: int) -> StoredState:
        """Return the state to store."""
        state = encode_group(self.meta, revision)
        return StoredState(state, group_index(self.meta, self.keys), revision)


class OwnedGroup(Owned):
    """A share group that was taken, or created. It belongs to one thread."""

    __slots__ = ("_content",)

    def __init__(
        self, begin: TransactionSource, content: GroupContent, stored: StoredState, serial: int
    ) -> None:
        """Own the stored group, by the commit with this serial."""
        super().__init__(OwnedRows(begin, content, stored, serial))
        self._content = content

    @property
    def state(self) -> SavedGroup:
        """The group as it is now, whether saved or not."""
        return self._content.group()

    def start_in(self, origin: DatabaseIdentity) -> StartOver | None:
        """Continue in this database: at the saved position, or at the beginning of a new database.

        In the second case, return the loss of the group. The changes are saved with the next save.
        """
        state, started = group_in(self.state, origin)
        self.put_meta(position=Position({}, state.identity), since=state.since)
        if started is not None:
            self.put_progress(position=state.position, done=state.done)
        return started

    def put_meta(self, **changes: Unpack[GroupChanges]) -> None:
        """Change fields other than the progress; the save also updates the expiry timer."""
        meta = replace(self._content.meta, **changes)
        if meta != self._content.meta:
            self._content.meta = meta
            self._rows.touch(self._content.keys.state)

    def put_progress(self, *, position: Position, done: tuple[SerialRange, ...] = ()) -> None:
        """Set the common progress of the members; the group stays in its database."""
        progress = SavedProgress(Position(position.serials), done)
        if progress != self._content.progress:
            self._content.progress = progress
            self._rows.touch(self._content.keys.progress)


def content_of(rows: Iterable[Row], keys: GroupKeys) -> tuple[GroupContent, StoredState] | None:
    """Return a group from its rows, and its stored form; None if there is none.

    Raises: CorruptionError.
    """
    values = {row.topic: row.value for row in rows}
    state = values.get(keys.state)
    if state is None:
        return None
    group, revision = decode_group(state)
    content = GroupContent(group, keys)
    if keys.progress in values:
        content.progress = decode_progress(values[keys.progress])
    # Keep the stored bytes: another version may encode the same state differently.
    return content, content.stored(revision)._replace(state=state)
