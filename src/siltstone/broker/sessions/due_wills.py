"""Wills of disconnected durable sessions, published when they are due.

After a failure they are published again, until every bridge and the store have them.

Invariant: while the broker runs, a bridge or the store that has a will does not get it again,
however often the others fail. The bridges come first: a will that they cannot spool is not stored
or sent to subscribers either, so neither must be repeated. After a crash between the two, bridges
may get a will again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from siltstone.broker.publish.observers import PublishObservers
from siltstone.broker.sessions.wills import batch_of
from siltstone.session.archive.owned.session import OwnedSession
from siltstone.session.archive.records import SavedWill

Settle = Callable[[Exception | None], None]
# Stores a will and sends it to subscribers.
Keep = Callable[[str, SavedWill, Settle], None]

# The number of unfinished wills that are recorded; above it the oldest ones may be repeated.
_REMEMBERED_MAX: Final = 10_000


class _Given:
    """The receivers that have a will: bridges by their numbers, and the store."""

    def __init__(self) -> None:
        self.bridges: set[int] = set()
        self.is_kept = False


class DueWills:
    """Publishes wills, and records which receivers have the unfinished ones."""

    def __init__(self, taps: PublishObservers, keep: Keep) -> None:
        self._taps = taps
        self._keep = keep
        # By client id and the time of the disconnect, which distinguishes the wills of a client.
        self._known: dict[tuple[str, int | None], _Given] = {}

    def publish(self, owned: OwnedSession, will: SavedWill, settle: Settle) -> None:
        """Publish a will; if this fails, the will stays due."""

        def bridged(error: Exception | None) -> None:
            if error is None:
                self._store(owned, will, settle)
            else:
                settle(error)

        self._bridge(owned, will, bridged)

    def publish_last(self, owned: OwnedSession, will: SavedWill, settle: Settle) -> None:
        """Publish a will for the last time: the caller deletes it, whatever the outcome is.

        The will is stored even if a bridge cannot spool it.
        """

        def bridged(error: Exception | None) -> None:
            self._store(owned, will, lambda other: settle(error or other))

        self._bridge(owned, will, bridged)

    def forget(self, owned: OwnedSession) -> None:
        """Delete the record of a will, because the session is saved without the will."""
        self._known.pop(_key(owned), None)

    def _bridge(self, owned: OwnedSession, will: SavedWill, then: Settle) -> None:
        given = self._given(owned)
        self._taps.take_missing(batch_of(will), owned.client_id.encode(), given.bridges, then)

    def _store(self, owned: OwnedSession, will: SavedWill, settle: Settle) -> None:
        given = self._given(owned)
        if given.is_kept:
            settle(None)
        else:
            self._keep(owned.client_id, will, partial(_note_kept, given, settle))

    def _given(self, owned: OwnedSession) -> _Given:
        key = _key(owned)
        given = self._known.get(key)
        if given is None:
            if len(self._known) >= _REMEMBERED_MAX:
                del self._known[next(iter(self._known))]
            given = self._known[key] = _Given()
        return given


def _note_kept(given: _Given, settle: Settle, error: Exception | None) -> None:
    given.is_kept = error is None
    settle(error)


def _key(owned: OwnedSession) -> tuple[str, int | None]:
    return owned.client_id, owned.bare.away_since_us
