"""The index of sessions and groups: timers, connected clients and counts.

The index finds sessions without reading each of them. It depends on their states alone. Each save
updates the index from the state saved before to the state saved now, in the same transaction. The
functions are pure: they compute the rows and counts that a state implies.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
from siltstone.units import SECOND_US

WILL: Final = "will"
EXPIRY: Final = "expiry"
GROUP: Final = "group"
# At equal times the will comes first, because the end of the session would delete it.
KINDS: Final = (WILL, EXPIRY, GROUP)

# The number of counts after which `moving` lets its caller pause.
COUNTS_AT_ONCE: Final = 200


@dataclass(frozen=True, slots=True)
class Index:
    """The rows of an index by topic, and the topics that count one more, each with its note.

    The filters of a disconnected session are counted too. There may be thousands of them, so their
    counts are made one by one, from the subscriptions by the topics of their rows.
    """

    rows: dict[str, bytes]
    counts: dict[str, bytes]
    away: dict[str, SavedSubscription] = field(default_factory=dict)

    def all_counts(self) -> Iterator[tuple[str, bytes]]:
        """Yield all topics that count one more, each with its note."""
        yield from self.counts.items()
        for topic, subscription in self.away.items():
            yield _away_count(topic, subscription)


NO_INDEX: Final = Index({}, {})


def expires_at_us(session: SavedSession) -> int | None:
    """Return when a disconnected session expires; None if it never does or is connected."""
    if session.away_since_us is None or session.expiry_seconds == NEVER_EXPIRES:
        return None
    return session.away_since_us + session.expiry_seconds * SECOND_US


def will_at_us(session: SavedSession) -> int | None:
    """Return when the will is due: after its delay or when the session ends; None if it is not."""
    if session.away_since_us is None or session.will is None:
        return None
    delay = min(session.will.delay_seconds, session.expiry_seconds)
    return session.away_since_us + delay * SECOND_US


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
        return Index(rows, counts)
    return Index(rows, counts, dict(subscriptions))


def _away_count(topic: str, subscription: SavedSubscription) -> tuple[str, bytes]:
    """Return the topic that counts a filter, and its note, from the topic of the subscription."""
    # The topic ends with the word of the filter. Computing the word again takes long for many
    # filters.
    away = away_topic(topic.rpartition("/")[2], subscription.qos)
    return away, subscription.filter.encode()


def group_index(group: SavedGroup, keys: GroupKeys) -> Index:
    """Return the index of a group."""
    rows: dict[str, bytes] = {}
    if group.empty_since_us is not None and group.expiry_seconds != NEVER_EXPIRES:
        at_us = group.empty_since_us + group.expiry_seconds * SECOND_US
        rows[due_topic(at_us, GROUP, keys.word)] = keys.id.encode()
    return Index(rows, {COUNT_GROUPS: b""})


def gone(old: Index, new: Index) -> list[str]:
    """Return the topics of the rows that the new state no longer has."""
    return [topic for topic in old.rows if topic not in new.rows]


def move(tx: Transaction, old: Index, new: Index) -> None:
    """Update the index from the old state to the new one; the caller deletes the rows of `gone`."""
    for _ in moving(tx, old, new):
        pass


def moving(tx: Transaction, old: Index, new: Index) -> Iterator[None]:
    """Do the same as `move`, and yield now and then, because it may take long."""
    for topic, value in new.rows.items():
        if topic not in old.rows:
            tx.write(topic, value)
    for topic, note in old.counts.items():
        if topic not in new.counts:
            tx.add(topic, -1, note)
    for topic, note in new.counts.items():
        if topic not in old.counts:
            tx.add(topic, 1, note)
    yield from _counting(tx, -1, old.away, new.away)
    yield from _counting(tx, 1, new.away, old.away)


def _counting(
    tx: Transaction,
    amount: int,
    away: Mapping[str, SavedSubscription],
    other: Mapping[str, SavedSubscription],
) -> Iterator[None]:
    """Count the filters of `away` that `other` does not have with the same QoS."""
    for number, (topic, subscription) in enumerate(away.items(), 1):
        same = other.get(topic)
        if same is None or same.qos != subscription.qos:
            counted, note = _away_count(topic, subscription)
            tx.add(counted, amount, note)
        if number % COUNTS_AT_ONCE == 0:
            yield
