"""One share group in the hands of its leader: changed here, saved when the leader says so."""

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
from siltstone.session.archive.owned.rows import Begin, Owned, OwnedRows, Stored
from siltstone.session.archive.records import SavedGroup, SerialRange, ShardSerial
from siltstone.session.archive.start_over import StartOver, group_in
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.identity import DatabaseIdentity


class GroupChanges(TypedDict, total=False):
    """What `put_meta` can change."""

    strategy: str
    expiry_seconds: int
    empty_since_us: int | None
    since: tuple[ShardSerial, ...]
    identity: str


class GroupContent:
    """A group by its rows."""

    __slots__ = ("keys", "meta", "progress")

    def __init__(self, group: SavedGroup, keys: GroupKeys) -> None:
        self.keys = keys
        self.meta = replace(group, position=(), done=())
        self.progress = SavedProgress(group.position, group.done)

    def group(self) -> SavedGroup:
        """Return all of it as one value."""
        return replace(self.meta, position=self.progress.position, done=self.progress.done)

    def topics(self) -> list[str]:
        """Return the topics of the rows beside the state's."""
        return [self.keys.progress]

    def is_plain(self, topic: str) -> bool:
        """Say whether a row can be saved without a look at the state and the index."""
        return topic == self.keys.progress

    def row(self, topic: str) -> bytes | None:
        """Return the value of a row; None when it says nothing."""
        assert topic == self.keys.progress
        return encode_progress(self.progress) if self.progress != NO_PROGRESS else None

    def stored(self, revision: int) -> Stored:
        """Return the state as it is to be stored."""
        state = encode_group(self.meta, revision)
        return Stored(state, group_index(self.meta, self.keys), revision)


class OwnedGroup(Owned):
    """A share group that was taken, or created. It belongs to one thread."""

    __slots__ = ("_content",)

    def __init__(self, begin: Begin, content: GroupContent, stored: Stored, serial: int) -> None:
        """Own what is stored, by this commit."""
        super().__init__(OwnedRows(begin, content, stored, serial))
        self._content = content

    @property
    def state(self) -> SavedGroup:
        """The group as it is now, saved or not."""
        return self._content.group()

    def start_in(self, origin: DatabaseIdentity) -> StartOver | None:
        """Stand in this database: where the group was saved, or at the beginning of another one.

        What it gave up is returned in the latter case; all of it changes with the next save.
        """
        state, started = group_in(self.state, origin)
        self.put_meta(identity=state.identity, since=state.since)
        if started is not None:
            self.put_progress(position=state.position, done=state.done)
        return started

    def put_meta(self, **changes: Unpack[GroupChanges]) -> None:
        """Change what is no progress; the timer for its end follows with the save."""
        meta = replace(self._content.meta, **changes)
        if meta != self._content.meta:
            self._content.meta = meta
            self._rows.touch(self._content.keys.state)

    def put_progress(
        self, *, position: tuple[ShardSerial, ...], done: tuple[SerialRange, ...] = ()
    ) -> None:
        """Set how far the members have come."""
        progress = SavedProgress(position, done)
        if progress != self._content.progress:
            self._content.progress = progress
            self._rows.touch(self._content.keys.progress)


def content_of(rows: Iterable[Row], keys: GroupKeys) -> tuple[GroupContent, Stored] | None:
    """Return a group by its rows, and how it is stored; None when there is none.

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
    # The bytes as they are there: another version may have written them otherwise.
    return content, content.stored(revision)._replace(state=state)
