"""The index of sessions and groups: timers, connected clients and counts.

The index finds sessions without reading each of them. It depends on their states alone. Each save
updates the index from the state saved before to the state saved now, in the same transaction. The
functions are pure: they compute the rows and counts that a state implies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from siltstone.session.archive.keys import (
    COUNT_GROUPS,
    COUNT_SESSIONS,
    GroupKeys,
    SessionKeys,
    away_topic,
    due_topic,
)
from siltstone.session.archive.records import (
    NEVER_EXPIRES,
    SavedGroup,
    SavedSession,
    SavedSubscription,
)
from siltstone.store.tx.transaction import Transaction

WILL: Final = "will"
EXPIRY: Final = "expiry"
GROUP: Final = "group"
# At the same time the will comes first: the end of the session would delete it.
KINDS: Final = (WILL, EXPIRY, GROUP)

_SECOND_US: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Index:
    """The rows of an index by topic, and the topics that count one more, each with its note."""

    rows: dict[str, bytes]
    counts: dict[str, bytes]


NO_INDEX: Final = Index({}, {})


def expires_at_us(session: SavedSession) -> int | None:
    """Return when a disconnected session expires; None if it never does or is connected."""
    if session.away_since_us is None or session.expiry_seconds == NEVER_EXPIRES:
        return None
    return session.away_since_us + session.expiry_seconds * _SECOND_US


def will_at_us(session: SavedSession) -> int | None:
    """Return when the will is due: after its delay or when the session ends; None if it is not."""
    if session.away_since_us is None or session.will is None:
        return None
    delay = min(session.will.delay_seconds, session.expiry_seconds)
    return session.away_since_us + delay * _SECOND_US


def session_index(
    session: SavedSession, subscriptions: Mapping[str, SavedSubscription], keys: SessionKeys
) -> Index:
    """Return the index of a session with these subscriptions, given by the topics of their rows."""
    client_id = session.client_id.encode()
    rows: dict[str, bytes] = {}
    for kind, at_us in ((WILL, will_at_us(session)), (EXPIRY, expires_at_us(session))):
        if at_us is not None:
            rows[due_topic(at_us, kind, keys.word)] = client_id
    counts = {COUNT_SESSIONS: b""}
    if session.connected:
        rows[f"connected/{keys.word}"] = client_id
    else:
        for topic, subscription in subscriptions.items():
            # The topic has the word of the filter: to make it anew takes long for many filters.
            away = away_topic(keys.filter_word(topic), subscription.qos)
            counts[away] = subscription.filter.encode()
    return Index(rows, counts)


def group_index(group: SavedGroup, keys: GroupKeys) -> Index:
    """Return the index of a group."""
    rows: dict[str, bytes] = {}
    if group.empty_since_us is not None and group.expiry_seconds != NEVER_EXPIRES:
        at_us = group.empty_since_us + group.expiry_seconds * _SECOND_US
        rows[due_topic(at_us, GROUP, keys.word)] = keys.id.encode()
    return Index(rows, {COUNT_GROUPS: b""})


def gone(old: Index, new: Index) -> list[str]:
    """Return the topics of the rows that the new state no longer has."""
    return [topic for topic in old.rows if topic not in new.rows]


def move(tx: Transaction, old: Index, new: Index) -> None:
    """Update the index from the old state to the new one; the caller deletes the rows of `gone`."""
    for topic, value in new.rows.items():
        if topic not in old.rows:
            tx.write(topic, value)
    for topic, note in old.counts.items():
        if topic not in new.counts:
            tx.add(topic, -1, note)
    for topic, note in new.counts.items():
        if topic not in old.counts:
            tx.add(topic, 1, note)
