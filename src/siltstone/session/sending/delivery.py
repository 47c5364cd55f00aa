"""A message on its way to one session, and the memory limit for all of them."""

from __future__ import annotations

import struct
from typing import Final

from mypy_extensions import mypyc_attr

from siltstone.errors import CorruptionError
from siltstone.fs.api import File
from siltstone.mqtt.publish import (
    NO_EXPIRY,
    PUBACK,
    PUBCOMP,
    expiry_of,
    stored_properties,
    with_time_left,
)
from siltstone.rows.stored import StoredBatch
from siltstone.session.durable.progress import ShardProgress
from siltstone.units import SECOND_US

NEVER: Final = 0.0
# The memory of a waiting message beside its bytes.
_OVERHEAD: Final = 250
# A message of a run: expiry, flags, lengths of topic, properties and payload, and the start of the
# payload in the file, if the run does not contain it.
_HEAD: Final = struct.Struct("<dBHIIQ")
_INSIDE: Final = (1 << 64) - 1


class Loan:
    """The original form of a row that a share group lent, before the options of a subscription."""

    def __init__(self, flags: int, properties: bytes, publisher: bytes) -> None:
        self.flags = flags
        self.properties = properties
        self.publisher = publisher


@mypyc_attr(acyclic=True)
class Spilled:
    """Bytes that were written to disk to save memory: a payload, or one or more messages."""

    __slots__ = ("file", "length", "start")

    def __init__(self, file: File, start: int, length: int) -> None:
        self.file = file
        self.start = start
        self.length = length

    def read(self) -> bytes:
        """Return the bytes. Raises: DiskError, CorruptionError if the file is too short."""
        data = self.file.read_at(self.start, self.length)
        if len(data) != self.length:
            raise CorruptionError(
                "the file ends before the payload does",
                path=self.file.path,
                offset=self.start + len(data),
            )
        return data


@mypyc_attr(acyclic=True)
class Delivery:
    """A message to one session; `expires_at` is in the monotonic time of the broker, 0 is never."""

    def __init__(
        self, topic: bytes, payload: bytes, flags: int, properties: bytes, expires_at: float
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.flags = flags
        self.properties = properties
        self.expires_at = expires_at
        # The place of the payload on disk while the message waits, if it is not in memory.
        self.spilled: Spilled | None = None
        # The progress of the shard whose row this is; None if the message is not a row of the
        # store.
        self.lane: ShardProgress | None = None
        self.serial = 0
        # Its place in the queue of the session, while it waits there.
        self.place = 0
        self.loan: Loan | None = None
        self.packet_id = 0
        # Whether it has a packet id but was never sent.
        self.is_unsent = False
        # Whether it was sent on this connection, and whether the receiver has it (QoS 2).
        self.sent = False
        self.released = False

    def body(self) -> bytes:
        """Return the payload, from memory or from disk."""
        spilled = self.spilled
        return self.payload if spilled is None else spilled.read()

    def have(self, payload: bytes) -> None:
        """Put the payload into memory."""
        self.payload = payload
        self.spilled = None

    def size(self) -> int:
        """Return its approximate size in memory."""
        return len(self.topic) + len(self.payload) + len(self.properties) + _OVERHEAD


class Run:
    """Messages that wait one after another, and were written to disk together to save memory.

    `size_bytes` is their size in memory.
    """

    def __init__(self, place: Spilled, count: int, size_bytes: int) -> None:
        self._place = place
        self.count = count
        self.size_bytes = size_bytes

    def read(self) -> list[Delivery]:
        """Return the messages. Raises: what `Spilled.read` raises."""
        data = self._place.read()
        found: list[Delivery] = []
        position = 0
        for _ in range(self.count):
            head = _HEAD.unpack_from(data, position)
            expires_at: float = head[0]
            flags: int = head[1]
            topic_end: int = position + _HEAD.size + head[2]
            properties_end: int = topic_end + head[3]
            length: int = head[4]
            start: int = head[5]
            topic = data[position + _HEAD.size : topic_end]
            properties = data[topic_end:properties_end]
            position = properties_end
            if start == _INSIDE:
                payload = data[position : position + length]
                position += length
                found.append(Delivery(topic, payload, flags, properties, expires_at))
            else:
                delivery = Delivery(topic, b"", flags, properties, expires_at)
                delivery.spilled = Spilled(self._place.file, start, length)
                found.append(delivery)
        return found


def encode_run(messages: list[Delivery]) -> bytes:
    """Return the bytes of a run of messages without packet ids that are not rows of the store.

    The payloads that are on disk must be in the file to which the run is written.
    """
    parts: list[bytes] = []
    for each in messages:
        spilled = each.spilled
        start = _INSIDE if spilled is None else spilled.start
        length = len(each.payload) if spilled is None else spilled.length
        parts.append(
            _HEAD.pack(
                each.expires_at, each.flags, len(each.topic), len(each.properties), length, start
            )
        )
        parts += (each.topic, each.properties, each.payload)
    return b"".join(parts)


class Budget:
    """The number of bytes that all sessions together may hold."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0


def properties_of(batch: StoredBatch, index: int) -> bytes:
    """Return the properties of a row, as receivers may get them.

    Properties are checked before they are stored, but version 0.1.0 did not check them. Each
    distinct value of a batch is therefore checked once, for all rows and sessions.
    """
    if not batch.properties:
        return b""
    stored = batch.properties[index]
    if not stored:
        return stored
    known = batch.receivable.get(stored)
    if known is None:
        known = stored_properties(stored)
        batch.receivable[stored] = known
    return known


def left_us_of(properties: bytes, arrived_us: int, wall_us: int) -> int:
    """Return the time in µs until a message expires; NO_EXPIRY if it never does."""
    seconds = expiry_of(properties) if properties else NO_EXPIRY
    return NO_EXPIRY if seconds == NO_EXPIRY else max(0, arrived_us + seconds * SECOND_US - wall_us)


def is_last(first: int, delivery: Delivery) -> bool:
    """Tell whether an acknowledgement completes a delivery."""
    if first == PUBACK:
        return delivery.flags & 3 == 1
    return first == PUBCOMP and delivery.released


def grow_old(delivery: Delivery, now: float) -> None:
    """Reduce the expiry interval by the time that the message has waited [MQTT-3.3.2-6]."""
    if delivery.expires_at != NEVER:
        left_us = round((delivery.expires_at - now) * SECOND_US)
        delivery.properties = with_time_left(delivery.properties, left_us)
