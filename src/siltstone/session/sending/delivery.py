"""A message on its way to one session, and the memory limit for all of them."""

from __future__ import annotations

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


class Loan:
    """The original form of a row that a share group lent, before the options of a subscription."""

    def __init__(self, flags: int, properties: bytes, publisher: bytes) -> None:
        self.flags = flags
        self.properties = properties
        self.publisher = publisher


class Spilled:
    """A payload that was written to disk to save memory."""

    def __init__(self, file: File, start: int, length: int) -> None:
        self._file = file
        self._start = start
        self.length = length

    def read(self) -> bytes:
        """Return the payload. Raises: DiskError, CorruptionError if the file is too short."""
        payload = self._file.read_at(self._start, self.length)
        if len(payload) != self.length:
            raise CorruptionError(
                "the file ends before the payload does",
                path=self._file.path,
                offset=self._start + len(payload),
            )
        return payload


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
    """[MQTT-3.3.2-6]: reduce the expiry interval by the time that the message has waited."""
    if delivery.expires_at != NEVER:
        left_us = round((delivery.expires_at - now) * SECOND_US)
        delivery.properties = with_time_left(delivery.properties, left_us)
