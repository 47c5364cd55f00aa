"""One durable session that an owner has: the owner changes it and decides when to save it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypedDict, Unpack

from siltstone.errors import CorruptionError
from siltstone.session.archive.codec import (
    NO_PROGRESS,
    PATH,
    SavedProgress,
    decode_message,
    decode_progress,
    decode_received,
    decode_session,
    decode_subscription,
    encode_message,
    encode_progress,
    encode_received,
    encode_session,
    encode_subscription,
)
from siltstone.session.archive.index import session_index
from siltstone.session.archive.keys import SessionKeys
from siltstone.session.archive.owned.rows import Owned, OwnedRows, StoredState, TransactionSource
from siltstone.session.archive.records import (
    SavedInflight,
    SavedMessage,
    SavedReceived,
    SavedSession,
    SavedSubscription,
    SavedWill,
    SerialRange,
)
from siltstone.session.archive.start_over import StartOver, session_in
from siltstone.store.feed.position import Position
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.identity import DatabaseIdentity


class SessionChanges(TypedDict, total=False):
    """The fields that `put_meta` can change."""

    user: str
    version: int
    expiry_seconds: int
    connected: bool
    run: int
    away_since_us: int | None
    unclean: bool
    will: SavedWill | None
    dropped: int
    position: Position


class SessionContent:
    """The content of a session, as it is divided into rows."""

    __slots__ = ("extra", "keys", "meta", "progress", "received", "subscriptions")

    def __init__(self, session: SavedSession, keys: SessionKeys) -> None:
        self.keys = keys
        # Only the fields that have no rows of their own are used from it. The identity of the
        # position is one of them, its serials are not.
        self.meta = replace(session, position=Position({}, session.position.identity))
        self.subscriptions = {keys.filter(one.filter): one for one in session.subscriptions}
        self.progress = SavedProgress(
            Position(session.position.serials),
            session.done,
            session.inflight,
            session.next_packet_id,
        )
        self.received = session.received
        self.extra = {keys.message(one.packet_id): one for one in session.extra}

    def session(self) -> SavedSession:
        """Return the whole session: subscriptions sorted by filter, messages by packet id."""
        subscriptions = sorted(self.subscriptions.values(), key=lambda one: one.filter)
        return replace(self.bare(), subscriptions=tuple(subscriptions))

    def bare(self) -> SavedSession:
        """Return the session without its subscriptions; messages are sorted by packet id."""
        position, done, inflight, next_packet_id = self.progress
        return replace(
            self.meta,
            subscriptions=(),
            position=position.of(self.meta.identity),
            done=done,
            inflight=inflight,
            next_packet_id=next_packet_id,
            received=self.received,
            extra=tuple(sorted(self.extra.values())),
        )

    def topics(self) -> list[str]:
        """Return the topics of the rows other than the owner and the state."""
        return [self.keys.progress, self.keys.received, *self.subscriptions, *self.extra]

    def is_plain(self, topic: str) -> bool:
        """Tell whether a row can be saved without the state and the index."""
        return topic in (self.keys.progress, self.keys.received)

    def row(self, topic: str) -> bytes | None:
        """Return the value of a row; None if the row does not exist or has only defaults."""
        if topic == self.keys.progress:
            return encode_progress(self.progress) if self.progress != NO_PROGRESS else None
        if topic == self.keys.received:
            return encode_received(self.received) if self.received else None
        subscription = self.subscriptions.get(topic)
        if subscription is not None:
            return encode_subscription(subscription)
        message = self.extra.get(topic)
        return None if message is None else encode_message(message)

    def stored(self, revision: int) -> StoredState:
        """Return the state to store."""
        index = session_index(self.meta, self.subscriptions, self.keys)
        return StoredState(encode_session(self.meta, revision), index, revision)


class OwnedSession(Owned):
    """A durable session that was taken, or created. It belongs to one thread."""

    __slots__ = ("_content",)

    def __init__(
        self, begin: TransactionSource, content: SessionContent, stored: StoredState, serial: int
    ) -> None:
        """Own the stored session, by the commit with this serial."""
        super().__init__(OwnedRows(begin, content, stored, serial))
        self._content = content

    @property
    def client_id(self) -> str:
        """The client id of the session."""
        return self._content.meta.client_id

    @property
    def state(self) -> SavedSession:
        """The session as it is now, saved or not; sorted like SessionContent.session."""
        return self._content.session()

    @property
    def bare(self) -> SavedSession:
        """The same without the subscriptions; thousands of them take time to sort."""
        return self._content.bare()

    @property
    def dropped(self) -> int:
        """How many messages the session has lost to its limits, saved or not."""
        return self._content.meta.dropped

    def start_in(self, origin: DatabaseIdentity) -> StartOver | None:
        """Continue in this database: at the saved position, or at the beginning of a new database.

        In the second case, return the loss of the session. The changes are saved with the next
        save.
        """
        state, started = session_in(self.state, origin)
        self.put_meta(position=Position({}, state.identity), unclean=state.unclean)
        if started is not None:
            for subscription in state.subscriptions:
                self.put_subscription(subscription)
            self.put_progress(
                position=state.position,
                done=state.done,
                inflight=state.inflight,
                next_packet_id=state.next_packet_id,
            )
        return started

    def put_meta(self, **changes: Unpack[SessionChanges]) -> None:
        """Change fields that are not lists; the save also updates the expiry and will timers."""
        content = self._content
        meta = replace(content.meta, **changes)
        if meta != content.meta:
            content.meta = meta
            self._rows.touch(content.keys.state)

    def put_subscription(self, subscription: SavedSubscription) -> None:
        """Add a subscription, or replace the one with the same filter."""
        topic = self._content.keys.filter(subscription.filter)
        if self._content.subscriptions.get(topic) != subscription:
            self._content.subscriptions[topic] = subscription
            self._rows.touch(topic)

    def drop_subscription(self, topic_filter: str) -> bool:
        """Remove a subscription; return whether there was one."""
        topic = self._content.keys.filter(topic_filter)
        if self._content.subscriptions.pop(topic, None) is None:
            return False
        self._rows.touch(topic)
        return True

    def put_progress(
        self,
        *,
        position: Position,
        done: tuple[SerialRange, ...] = (),
        inflight: tuple[SavedInflight, ...] = (),
        next_packet_id: int = 1,
    ) -> None:
        """Set the progress of the session; it stays in its database."""
        if position.identity is not None:
            position = Position(position.serials)
        progress = SavedProgress(position, done, inflight, next_packet_id)
        if progress != self._content.progress:
            self._content.progress = progress
            self._rows.touch(self._content.keys.progress)

    def put_received(self, messages: Iterable[SavedReceived]) -> None:
        """Set the QoS 2 messages from the client that it has not released."""
        received = tuple(messages)
        if received != self._content.received:
            self._content.received = received
            self._rows.touch(self._content.keys.received)

    def put_extra(self, message: SavedMessage) -> None:
        """Add a message in flight that is not in the store."""
        topic = self._content.keys.message(message.packet_id)
        self._content.extra[topic] = message
        self._rows.touch(topic)

    def drop_extra(self, packet_id: int) -> bool:
        """Remove a message that `put_extra` added; return whether there was one."""
        topic = self._content.keys.message(packet_id)
        if self._content.extra.pop(topic, None) is None:
            return False
        self._rows.touch(topic)
        return True


def content_of(rows: Iterable[Row], keys: SessionKeys) -> tuple[SessionContent, StoredState] | None:
    """Return a session from its rows, and its stored form; None if there is none.

    Raises: CorruptionError.
    """
    values = {row.topic: row.value for row in rows}
    state = values.pop(keys.state, None)
    if state is None:
        return None
    session, revision = decode_session(state)
    content = SessionContent(session, keys)
    for topic, value in values.items():
        match topic.split("/", 3)[2]:
            case "progress":
                content.progress = decode_progress(value)
            case "received":
                content.received = decode_received(value)
            case "filter":
                content.subscriptions[topic] = decode_subscription(value)
            case "extra":
                content.extra[topic] = decode_message(value)
            case "owner":
                pass
            case _:
                raise CorruptionError(f"unknown row {topic!r} in a session", path=PATH)
    # Keep the stored bytes: another version may encode the same state differently.
    return content, content.stored(revision)._replace(state=state)
