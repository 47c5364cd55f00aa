"""Takes, creates and scans the sessions and groups of the archive.

A caller takes a session or group by writing its owner row, and reads it only when that write is
durable. After this commit the former owner can save nothing, and all its earlier saves are visible.
The new owner therefore never has to retry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from typing import Final

from siltstone.errors import ConflictError, PreconditionError
from siltstone.session.archive.index import NO_INDEX, move
from siltstone.session.archive.owned.rows import Content, StoredState, TransactionSource
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.log.read.pieces import Row
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.operations import COMMIT_SERIAL, count_in
from siltstone.store.tx.transaction import Transaction

# How many times another process may create the key between the drop and the creation.
_ATTEMPTS: Final = 10


class _ShardTransactions:
    """Begins transactions on one shard."""

    __slots__ = ("_database", "shard")

    def __init__(self, database: KeyValueDatabase, shard: int) -> None:
        self._database = database
        self.shard = shard

    def __call__(self) -> Transaction:
        return self._database.transaction(shard=self.shard, timeout=0.0)


class ArchiveRows:
    """The rows of the archive. Methods may be called from any thread."""

    def __init__(self, database: KeyValueDatabase) -> None:
        self._database = database

    def begin(self, key: str) -> TransactionSource:
        """Return the function that begins transactions for the owner of a key; they do not wait."""
        return _ShardTransactions(self._database, self._database.shard_of(key))

    def fence(self, key: str, *, owner_topic: str, state_topic: str) -> CommitTicket:
        """Begin to take the session or group of these topics; the commit fails if it is missing."""
        tx = self._database.transaction(key=key)
        tx.require_present(state_topic)
        tx.write(owner_topic, COMMIT_SERIAL)
        return tx.submit()

    def create_many(
        self, keyed: Sequence[tuple[str, Content]], drop: Callable[[str], None]
    ) -> list[tuple[StoredState, int]]:
        """Store new sessions or groups by their keys, in one or a few group commits.

        `drop` drops the one that already has a key. Returns for each what was stored, and its
        serial.

        Raises: ConflictError if other processes repeatedly create the same key.
        """
        states = [content.stored(1) for _, content in keyed]
        tickets = [
            self._create(key, content, stored)
            for (key, content), stored in zip(keyed, states, strict=True)
        ]
        serials = [serial_of(ticket) for ticket in tickets]
        return [
            (stored, self._replace(key, content, stored, drop) if serial is None else serial)
            for (key, content), stored, serial in zip(keyed, states, serials, strict=True)
        ]

    def _create(self, key: str, content: Content, stored: StoredState) -> CommitTicket:
        """Begin to store a new session or group; the commit fails if the key is in use."""
        keys = content.keys
        tx = self._database.transaction(key=key)
        tx.require_absent(keys.owner)
        tx.write(keys.owner, COMMIT_SERIAL)
        tx.write(keys.state, stored.state)
        for topic in content.topics():
            value = content.row(topic)
            if value is not None:
                tx.write(topic, value)
        move(tx, NO_INDEX, stored.found)
        return tx.submit()

    def _replace(
        self, key: str, content: Content, stored: StoredState, drop: Callable[[str], None]
    ) -> int:
        for _ in range(_ATTEMPTS):
            try:
                drop(key)
            except PreconditionError:
                # Another owner has taken it in between, and is fenced off in the next attempt.
                continue
            serial = serial_of(self._create(key, content, stored))
            if serial is not None:
                return serial
        raise ConflictError(
            f"another process creates the same key at the same time, try again: key={key!r}"
        )

    def rows(self, key: str, topic_filter: str) -> Iterator[Row]:
        """Yield the rows of a filter on the shard of a key."""
        return self._database.read(topic_filter, key=key)

    def walk(self, topic_filter: str, first_topic: str = "") -> Iterator[Row]:
        """Yield the rows of a filter from all shards, in the order of a stream. The filter must
        match rows of one stream. If only the second level varies, this is the order of that level.
        """
        shards = [
            self._database.read(topic_filter, shard=shard, first_topic=first_topic)
            for shard in self.shards()
        ]
        if len(shards) == 1:
            return shards[0]
        single = topic_filter.count("+") == 1
        return merge(*shards, key=second_word if single else _topic)

    def count(self, topic: str) -> int:
        """Return the value of a counter, summed over all shards."""
        return sum(count_in(self._database.get(topic, shard=shard)) for shard in self.shards())

    def shards(self) -> range:
        """Return the numbers of the shards."""
        return range(self._database.settings.shards)


def serial_of(ticket: CommitTicket) -> int | None:
    """Wait for a commit and return its serial, None when its requirements were not met."""
    try:
        return ticket.wait().serial
    except PreconditionError as exc:
        # The ticket holds the error. With its traceback, the error would keep itself alive by a
        # reference cycle through its frames.
        exc.__traceback__ = None
        return None


def second_word(row: Row) -> str:
    """Return the topic level that names the session, group or filter of a row."""
    return row.topic.split("/", 2)[1]


def _topic(row: Row) -> str:
    return row.topic
