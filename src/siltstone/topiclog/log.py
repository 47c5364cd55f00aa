"""Topic logs: topics, messages by offset, and the offsets that clients commit.

Each topic is a shard of one database, `topics`, so its messages are rows of the store like any
others. The offset of a message is its serial: from 0 on, without a gap. Committed offsets are in
the key-value database of all positions. Everything that is acknowledged survives a power cut.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import blake2b
from typing import Final, Protocol
from urllib.parse import quote

from siltstone.errors import NotFoundError, UsageError
from siltstone.logs import log
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.segment.writer import Room
from siltstone.store.shard.block_log import BlockRun
from siltstone.store.slab.identity import DatabaseIdentity, told
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.writer.ticket import Ticket
from siltstone.topic.grammar import check_topic

DATABASE: Final = "topics"
COMMITS: Final = "commits"
CLIENT_BYTES_MAX: Final = 1024
_OFFSET_BYTES: Final = 8
_LOG: Final = logging.getLogger("siltstone.topiclog")

Done = Callable[[Exception | None], None]


class Log(Protocol):
    """The messages of one topic, in order."""

    @property
    def topic(self) -> str: ...

    @property
    def is_open(self) -> bool:
        """Whether the log was recovered; if not, the first call of another method recovers it."""
        ...

    def open(self) -> None:
        """Recover the log. Raises: CorruptionError."""
        ...

    def append(self, offsets: bytes, values: bytes, *, timeout: float | None = None) -> Ticket:
        """Store messages; the ticket reports when they are durable, and their first serial."""
        ...

    def take_room(self, size: int, rows: int, then: Callable[[Room | Exception], None]) -> None:
        """Allocate room in a segment, into which the receiver of messages writes them."""
        ...

    def append_room(self, offsets: bytes, room: Room, *, timeout: float | None = None) -> Ticket:
        """Store the messages in a room."""
        ...

    def give_up_room(self, room: Room) -> None:
        """Release a room that is not used."""
        ...

    def bounds(self) -> range:
        """Return the offsets of the stored messages."""
        ...

    def length(self, offset: int) -> int:
        """Return the size of a message in bytes, 0 if there is none."""
        ...

    def read(self, offset: int, *, bytes_max: int, rows_max: int = ...) -> list[BlockRun]:
        """Return messages from an offset on."""
        ...


class Logs(Protocol):
    """The logs of all topics."""

    def topics(self) -> list[str]: ...

    def add(self, topic: str) -> Log: ...

    def find(self, topic: str) -> Log | None: ...


class Commits:
    """The offsets that clients have committed, each durable when it is acknowledged.

    A value is u64 offset | the identity of the database of the logs, 16 bytes. An earlier version
    wrote the offset alone.
    """

    def __init__(self, database: KeyValueDatabase, origin: DatabaseIdentity) -> None:
        self._database = database
        self._origin = origin
        self._identity = bytes.fromhex(origin.text)

    def put(self, client: str, topic: str, offset: int, done: Done) -> None:
        """Save an offset; `done` is called with the outcome, in any thread."""
        key = _key(client, topic)
        transaction = self._database.transaction(key=key)
        transaction.write(key, offset.to_bytes(_OFFSET_BYTES, "big") + self._identity)
        transaction.submit().on_done(lambda ticket: done(ticket.error))

    def get(self, client: str, topic: str) -> int | None:
        """Return the offset that a client has committed for a topic, None if there is none.

        An offset that was committed before the logs were dropped and created again is ignored.
        """
        key = _key(client, topic)
        value = self._database.get(key, key=key)
        if value is None:
            return None
        offset = int.from_bytes(value[:_OFFSET_BYTES], "big")
        former = value[_OFFSET_BYTES:].hex()
        if self._origin.owns(former):
            return offset
        log(
            _LOG,
            logging.WARNING,
            "committed_offset_ignored",
            client=client,
            topic=topic,
            offset=offset,
            former=told(former),
            database=self._origin.text,
        )
        return None


class TopicLogs:
    """The interface of topic logs, for the server and for programs that open the store directly."""

    def __init__(self, logs: Logs, commits: Commits) -> None:
        self._logs = logs
        self._commits = commits

    def create_topic(self, topic: str) -> None:
        """Create a topic, durably. Raises: ExistsError, InvalidTopicError, StorageFullError."""
        check_topic(topic.encode())
        self._logs.add(topic)

    def topics(self) -> list[str]:
        """Return the topics in the order of their creation."""
        return self._logs.topics()

    def log(self, topic: str) -> Log:
        """Return the log of a topic. Raises: NotFoundError."""
        found = self._logs.find(topic)
        if found is None:
            raise NotFoundError(f"topic {topic!r} does not exist")
        return found

    def commit(self, client: str, topic: str, offset: int, done: Done) -> None:
        """Save the offset of the message that a client wants next.

        Raises: NotFoundError, UsageError for an offset after the end or an invalid client name.
        """
        end = self.log(topic).bounds().stop
        if offset > end:
            raise UsageError(
                f"offset must not be greater than the end of the topic: offset={offset} end={end}"
            )
        self._commits.put(client, topic, offset, done)

    def committed(self, client: str, topic: str) -> int:
        """Return the committed offset of a client. It is the end of the topic if the committed
        offset is after the end, which happens after an older copy of the data was restored. Raises:
        NotFoundError, UsageError.
        """
        end = self.log(topic).bounds().stop
        offset = self._commits.get(client, topic)
        if offset is None:
            raise NotFoundError(
                f"client {client!r} has not committed an offset for topic {topic!r}"
            )
        return min(offset, end)


def open_topic_logs(store: Store, settings: DatabaseSettings) -> tuple[TopicLogs, Database]:
    """Open the topic logs of a data directory; the settings apply if the database is created.

    Each log is recovered at its first use. Raises: CorruptionError, UsageError.
    """
    database = store.ensure(DATABASE, settings)
    commits = store.keyvalue(COMMITS, KeyValueSettings(timed=False))
    return TopicLogs(database.block_logs(), Commits(commits, database.origin)), database


def _key(client: str, topic: str) -> str:
    """Return the key of a committed offset; client and topic names cannot affect its structure."""
    encoded = client.encode()
    if not 0 < len(encoded) <= CLIENT_BYTES_MAX:
        raise UsageError(
            f"a client name must have 1 to {CLIENT_BYTES_MAX} bytes, got {len(encoded)}"
        )
    digest = blake2b(topic.encode(), digest_size=16).hexdigest()
    return f"topiclog/{digest}/{quote(client, safe='')}"
