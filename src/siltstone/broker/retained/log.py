"""Retained messages on disk: a database of changes, in which the last change of a topic counts.

A row is a message as it was published. A row with an empty value means that its topic was cleared.
Facts that have no column are stored as a user property, before the properties of the message:

    26 0005 "times" 0021 | when it arrived | when it expires | "$" or "-"

Both times are µs since 1970, as 16 hexadecimal digits; an expiry of 0 means never. The timestamp of
the row cannot replace them: the store assigns it, it never goes back although the clock may, and it
changes when compaction writes the message again. The last character tells whether the topic begins
with $. The topic of the row then has ! instead of $, because no filter matches all topics with $.

Invariant: a replay of the rows in order gives the messages of the last append that was stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import pyarrow as pa

from siltstone.clock import Clock
from siltstone.mqtt.publish import stored_properties
from siltstone.rows.batch import RETAIN
from siltstone.session.sending.delivery import Spilled
from siltstone.store.database import Database, Durability
from siltstone.store.log.write.partition import Columns
from siltstone.store.slab.manifest import SlabId
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.ticket import Ticket

LOG_NAME: Final = "_retained"

# One shard, because the order of changes matters. Every level varies from the start: there are many
# retained topics, and each is written rarely. Separate streams would take most of every frame, and
# learned words would stay after their topics are gone. Segments are small, because the live data is
# small. There is no rotation or retention, because only compaction knows which rows are obsolete.
LOG_SETTINGS: Final = DatabaseSettings(
    shards=1, thresholds=(0,), segment_bytes=16 * 1024 * 1024, topic_cache=10_000
)

# The approximate overhead of a row on disk, if it is alone in its frame.
_ROW_BYTES: Final = 256
# Obsolete data up to these limits is always tolerated: its replay takes a fraction of a second.
_WASTED_ROWS: Final = 20_000
_WASTED_BYTES: Final = 32 * 1024 * 1024

_COLUMNS: Final = ("topic", "timestamp", "publisher", "qos", "properties", "value")
_TIMES: Final = b"\x26\x00\x05times\x00\x21"
_TIMES_BYTES: Final = len(_TIMES) + 33


class Retained(NamedTuple):
    """A retained message. In the log, an empty payload means that the topic has no message.

    Flags are QoS and retain, as in a row. Properties are as received, without length and alias.
    Times are of the wall clock. The message never expires if `expires_us` is 0. If the payload of a
    snapshot stays on disk, `spilled` is its place and `payload` is empty.
    """

    topic: bytes
    payload: bytes
    flags: int
    properties: bytes
    stored_us: int
    expires_us: int
    publisher: bytes
    spilled: Spilled | None = None

    def body(self) -> bytes:
        """Return the payload, from memory or from disk."""
        return self.payload if self.spilled is None else self.spilled.read()

    @property
    def size_bytes(self) -> int:
        """The size that counts for the limit."""
        topic, payload, _, properties, _, _, publisher, spilled = self
        length = len(payload) if spilled is None else spilled.length
        return len(topic) + length + len(properties) + len(publisher)

    def is_expired(self, now_us: int) -> bool:
        """Return whether the message must not be sent any more."""
        return 0 < self.expires_us <= now_us

    def is_over(self, clock: Clock) -> bool:
        """Return whether the message can be deleted: its lifetime has certainly passed.

        Unlike `is_expired`, this does not trust a wall clock that jumped.
        """
        lasts_us = self.expires_us - self.stored_us
        return self.expires_us > 0 and clock.passed_us(self.stored_us) >= lasts_us

    def coming_at(self, now_us: int) -> Retained:
        """Return the message as if it had arrived at this time."""
        expires_us = self.expires_us and self.expires_us - self.stored_us + now_us
        return self._replace(stored_us=now_us, expires_us=expires_us)


def cleared(topic: bytes, now_us: int) -> Retained:
    """Return the change that clears a topic in the log."""
    return Retained(topic, b"", RETAIN, b"", now_us, 0, b"")


class RetainedLog:
    """The changes of retained messages, in order.

    `rows` and `size_bytes` count the rows on disk, live or obsolete. They belong to the thread that
    appends, which may differ from the thread that seals and drops.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.rows = 0
        self.size_bytes = 0

    def replay(self) -> Iterator[Retained]:
        """Yield every change in order; rows are read in batches of some thousands."""
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
        """Return whether compaction is worthwhile: more than half of the rows or bytes is obsolete.

        `rows` and `size_bytes` are those of the live messages. A fixed amount of obsolete data is
        always tolerated.
        """
        return (
            self.rows > 2 * rows + _WASTED_ROWS
            or self.size_bytes > 2 * (size_bytes + rows * _ROW_BYTES) + _WASTED_BYTES
        )

    def discount(self, *, rows: int, size_bytes: int) -> None:
        """Subtract dropped rows from the counts."""
        self.rows -= rows
        self.size_bytes -= size_bytes

    def seal(self) -> list[SlabId]:
        """Seal all rows appended so far; return all sealed slabs, oldest first. Blocks."""
        self._database.seal()
        *sealed, _ = self._database.slabs()
        return [info.slab for info in sealed]

    def sync(self) -> None:
        """Wait until all appended rows are durable. Blocks."""
        self._database.sync()

    def drop(self, slabs: list[SlabId]) -> None:
        """Delete sealed slabs. Blocks."""
        # Oldest first: a change must not be deleted before the message that it clears.
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
    # A few publishers send many messages, so each name is kept in memory once.
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
        # A row that another program appended has no times: it arrived at its own timestamp, and
        # never expires.
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
