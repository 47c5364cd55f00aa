"""A message on its way to one session, and what all such may take in memory."""

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
from siltstone.session.durable.progress import ShardProgress
from siltstone.store.feed.rows.batch import FeedBatch

NEVER: Final = 0.0
DUP: Final = 8
_US: Final = 1_000_000
# What a waiting message takes beside its bytes.
_OVERHEAD: Final = 250


class Loan:
    """What a row lent by a share group was before a member's subscription changed it."""

    def __init__(self, flags: int, properties: bytes, publisher: bytes) -> None:
        self.flags = flags
        self.properties = properties
        self.publisher = publisher


class Spilled:
    """A payload that is on disk, because there is more of them than memory."""

    def __init__(self, file: File, start: int, length: int) -> None:
        self._file = file
        self._start = start
        self._length = length

    def read(self) -> bytes:
        """Return the payload. Raises: DiskError, CorruptionError when it is not all there."""
        payload = self._file.read_at(self._start, self._length)
        if len(payload) != self._length:
            raise CorruptionError(
                "the file ends before the payload does",
                path=self._file.path,
                offset=self._start + len(payload),
            )
        return payload


@mypyc_attr(acyclic=True)
class Delivery:
    """A message on its way to one session; `expires_at` is in the broker's own time, 0 is never."""

    def __init__(
        self, topic: bytes, payload: bytes, flags: int, properties: bytes, expires_at: float
    ) -> None:
        self.topic = topic
        self.payload = payload
        self.flags = flags
        self.properties = properties
        self.expires_at = expires_at
        # Where the payload is while the message waits, if it is not here.
        self.spilled: Spilled | None = None
        # The row of the store that it is, of which the lane takes note; None for any other message.
        self.lane: ShardProgress | None = None
        self.serial = 0
        self.loan: Loan | None = None
        self.packet_id = 0
        # Whether it has a packet id though it was never sent.
        self.is_unsent = False
        # Whether it was sent on this connection, and whether its receiver has it (QoS 2).
        self.sent = False
        self.released = False

    def body(self) -> bytes:
        """Return the payload, wherever it is."""
        spilled = self.spilled
        return self.payload if spilled is None else spilled.read()

    def have(self, payload: bytes) -> None:
        """Have the payload here from now on."""
        self.payload = payload
        self.spilled = None

    def size(self) -> int:
        """Return what it takes in memory, about."""
        return len(self.topic) + len(self.payload) + len(self.properties) + _OVERHEAD


class Budget:
    """What all sessions together may hold, in bytes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0


def properties_of(batch: FeedBatch, index: int) -> bytes:
    """Return the properties of a row as its receivers may have them.

    They were checked when they were stored, but not by version 0.1.0. So each distinct value of a
    batch is looked at once, however many rows and sessions have it.
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
    """Return how long a message that came at a time is of use yet; NO_EXPIRY for ever."""
    seconds = expiry_of(properties) if properties else NO_EXPIRY
    return NO_EXPIRY if seconds == NO_EXPIRY else max(0, arrived_us + seconds * _US - wall_us)


def is_last(first: int, delivery: Delivery) -> bool:
    """Tell whether an acknowledgement is the one that ends a message."""
    if first == PUBACK:
        return delivery.flags & 3 == 1
    return first == PUBCOMP and delivery.released


def grow_old(delivery: Delivery, now: float) -> None:
    """[MQTT-3.3.2-6]: what is left of its interval is less the time that it has waited here."""
    if delivery.expires_at != NEVER:
        left_us = round((delivery.expires_at - now) * _US)
        delivery.properties = with_time_left(delivery.properties, left_us)
