"""Retained messages on disk: a database of changes, of which the last one of a topic counts.

A row is a message as it was published; one without a value says that its topic was cleared. What a
row cannot say stands before the properties of its message, as a user property of its own:

    26 0005 "times" 0021 | when it arrived | when it expires | "$" or "-"

Both times are µs since 1970 in 16 hexadecimal digits, 0 for one that never expires. They must not
depend on the row's own time, which the store gives: it never goes back though the clock does, and
it is a new one when compaction writes the message again. The last character says whether the topic
begins with $; its row then has ! in place of it, for no filter finds all topics with $.

Invariant: replaying the rows in order gives the messages of the last append that was stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from siltstone.clock import Clock
from siltstone.mqtt.publish import stored_properties
from siltstone.store.database import Database, Durability
from siltstone.store.log.read.pieces import RETAIN
from siltstone.store.log.write.partition import Columns
from siltstone.store.slab.manifest import SlabId
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.ticket import Ticket

LOG_NAME: Final = "_retained"

# One shard, because the order of changes is the truth. Every level varies from the start: retained
# topics are many and each is written now and then, so that streams of their own would be most of
# every frame, and learned words would stay when their topics are gone. Segments are small, for what
# is live is; no rotation or retention, for only compaction knows which rows are needed no more.
LOG_SETTINGS: Final = DatabaseSettings(
    shards=1, thresholds=(0,), segment_bytes=16 * 1024 * 1024, topic_cache=10_000
)

# What a row takes on disk beside its bytes, about, when it is alone in its frame.
_ROW_BYTES: Final = 256
# So much may be wasted however little is live: a fraction of a second to replay.
_WASTED_ROWS: Final = 20_000
_WASTED_BYTES: Final = 32 * 1024 * 1024

_COLUMNS: Final = ("topic", "timestamp", "publisher", "qos", "properties", "value")
_TIMES: Final = b"\x26\x00\x05times\x00\x21"
_TIMES_BYTES: Final = len(_TIMES) + 33


class Retained(NamedTuple):
    """A retained message. In the log, one without payload says that its topic has none.

    Flags are QoS and retain as in a row; properties are as received, without length and alias;
    times are of the wall clock, and it never expires when `expires_us` is 0.
    """

    topic: bytes
    payload: bytes
    flags: int
    properties: bytes
    stored_us: int
    expires_us: int
    publisher: bytes

    @property
    def size_bytes(self) -> int:
        """What counts against the limit."""
        topic, payload, _, properties, _, _, publisher = self
        return len(topic) + len(payload) + len(properties) + len(publisher)

    def is_expired(self, now_us: int) -> bool:
        """Say whether it is not to be sent any more."""
        return 0 < self.expires_us <= now_us

    def is_over(self, clock: Clock) -> bool:
        """Say whether it can be deleted: the time that it may take has passed for certain."""
        lasts_us = self.expires_us - self.stored_us
        return self.expires_us > 0 and clock.passed_us(self.stored_us) >= lasts_us

    def coming_at(self, now_us: int) -> Retained:
        """Return the message as if it had come at this time."""
        expires_us = self.expires_us and self.expires_us - self.stored_us + now_us
        return self._replace(stored_us=now_us, expires_us=expires_us)


def cleared(topic: bytes, now_us: int) -> Retained:
    """Return what the log says of a topic that has no message any more."""
    return Retained(topic, b"", RETAIN, b"", now_us, 0, b"")


class RetainedLog:
    """The changes of retained messages, in order.

    `rows` and `size_bytes` count what is on disk, live or not; they belong to the thread that
    appends, which may be another than the one that seals and drops.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.rows = 0
        self.size_bytes = 0

    def replay(self) -> Iterator[Retained]:
        """Yield every change in order; reads some thousands at a time."""
        for batch in self._database.read("#", columns=_COLUMNS):
            for message in _messages_of(batch):
                self._count(message)
                yield message

    def append(self, messages: list[Retained], durability: Durability) -> Ticket:
        """Add changes in one append, without waiting for room.

        Raises: OverloadedError, PoisonedError, ClosedError.
        """
        columns = Columns(
            [_row_topic(message.topic) for message in messages],
            [message.payload for message in messages],
            [message.publisher for message in messages],
            [message.flags for message in messages],
            [_row_properties(message) for message in messages],
        )
        ticket = self._database.append(columns, durability=durability, timeout=0.0)
        for message in messages:
            self._count(message)
        return ticket

    def is_wasteful(self, rows: int, size_bytes: int) -> bool:
        """Say whether so much more is on disk than the live messages, that writing those once more
        pays.
        """
        return (
            self.rows > 2 * rows + _WASTED_ROWS
            or self.size_bytes > 2 * (size_bytes + rows * _ROW_BYTES) + _WASTED_BYTES
        )

    def discount(self, *, rows: int, size_bytes: int) -> None:
        """Count what was dropped no more."""
        self.rows -= rows
        self.size_bytes -= size_bytes

    def seal(self) -> list[SlabId]:
        """Seal what was appended before; return all that is sealed, oldest first. Blocks."""
        self._database.seal()
        *sealed, _ = self._database.slabs()
        return [info.slab for info in sealed]

    def sync(self) -> None:
        """Return when all that was appended is durable. Blocks."""
        self._database.sync()

    def drop(self, slabs: list[SlabId]) -> None:
        """Delete what was sealed. Blocks."""
        # Oldest first: a change must not go before what it undoes.
        for slab in slabs:
            self._database.drop_slab(slab)

    def _count(self, message: Retained) -> None:
        self.rows += 1
        self.size_bytes += message.size_bytes + _ROW_BYTES


def _row_topic(topic: bytes) -> bytes:
    return b"!" + topic[1:] if topic.startswith(b"$") else topic


def _row_properties(message: Retained) -> bytes:
    mark = b"$" if message.topic.startswith(b"$") else b"-"
    times = b"%016x%016x%b" % (message.stored_us, message.expires_us, mark)
    return _TIMES + times + message.properties


def _messages_of(batch: pa.RecordBatch) -> Iterator[Retained]:
    """Yield the messages of some rows."""
    # Few publishers send many messages: each name is kept once.
    names: dict[bytes, bytes] = {}
    for topic, timestamp_us, name, qos, properties, payload in zip(
        batch.column("topic").cast(pa.binary()).to_pylist(),
        batch.column("timestamp").cast(pa.int64()).to_pylist(),
        batch.column("publisher").cast(pa.binary()).to_pylist(),
        batch.column("qos").to_pylist(),
        batch.column("properties").to_pylist(),
        batch.column("value").to_pylist(),
        strict=True,
    ):
        stored_us, expires_us, is_special, size = timestamp_us, 0, False, 0
        # A row that somebody else appended has no times: it came when it was stored, and stays.
        if properties.startswith(_TIMES):
            times = properties[len(_TIMES) : _TIMES_BYTES]
            stored_us, expires_us = int(times[:16], 16), int(times[16:32], 16)
            is_special, size = times.endswith(b"$"), _TIMES_BYTES
        yield Retained(
            b"$" + topic[1:] if is_special else topic,
            payload,
            qos | RETAIN,
            stored_properties(properties[size:]),
            stored_us,
            expires_us,
            names.setdefault(name, name),
        )
