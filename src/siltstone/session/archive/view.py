"""A read-only view of the archive: sessions and groups as saved last, while a broker may run."""

from __future__ import annotations

from collections.abc import Iterator

from siltstone.session.archive.codec import decode_group, decode_session
from siltstone.session.archive.keys import (
    GROUPS_FILTER,
    SESSIONS_FILTER,
    GroupKeys,
    SessionKeys,
    group_id,
)
from siltstone.session.archive.owned import group as owned_group
from siltstone.session.archive.owned import session as owned_session
from siltstone.session.archive.records import SavedGroup, SavedSession
from siltstone.session.archive.start_over import group_in, session_in
from siltstone.store.slab.identity import DatabaseIdentity
from siltstone.store.tx.reading import KeyValueReader


class ArchiveView:
    """The sessions and groups in a key-value database."""

    def __init__(self, reader: KeyValueReader, origin: DatabaseIdentity | None = None) -> None:
        """Show states that were saved in another database at the beginning of `origin`."""
        self._reader = reader
        self._origin = origin

    def client_ids(self) -> list[str]:
        """Return the client ids of all sessions, in order."""
        rows = self._reader.read(SESSIONS_FILTER)
        return sorted(decode_session(row.value)[0].client_id for row in rows)

    def session(self, client_id: str) -> SavedSession | None:
        """Return the whole session of a client id."""
        keys = SessionKeys(client_id)
        found = owned_session.content_of(self._reader.read(keys.all), keys)
        if found is None:
            return None
        saved = found[0].session()
        return saved if self._origin is None else session_in(saved, self._origin)[0]

    def groups(self) -> Iterator[SavedGroup]:
        """Yield all share groups, in order of their filters."""
        known = [decode_group(row.value)[0] for row in self._reader.read(GROUPS_FILTER)]
        for group in sorted(known, key=lambda one: group_id(one.name, one.filter)):
            found = self.group(group_id(group.name, group.filter))
            if found is not None:
                yield found

    def group(self, text: str) -> SavedGroup | None:
        """Return the group of a `$share/…` filter."""
        keys = GroupKeys(text)
        found = owned_group.content_of(self._reader.read(keys.all), keys)
        if found is None:
            return None
        saved = found[0].group()
        return saved if self._origin is None else group_in(saved, self._origin)[0]
