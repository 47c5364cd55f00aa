"""A message on its way to one session, and what all such may take in memory."""

from __future__ import annotations

from typing import Final

from mypy_extensions import mypyc_attr

from siltstone.mqtt.publish import NO_EXPIRY, expiry_of
from siltstone.session.progress import Lane

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
        # The row of the store that it is, of which the lane takes note; None for any other message.
        self.lane: Lane | None = None
        self.serial = 0
        self.loan: Loan | None = None
        self.packet_id = 0
        # Whether it has a packet id though it was never sent.
        self.is_unsent = False
        # Whether it was sent on this connection, and whether its receiver has it (QoS 2).
        self.sent = False
        self.released = False

    def size(self) -> int:
        return len(self.topic) + len(self.payload) + len(self.properties) + _OVERHEAD


class Budget:
    """What all sessions together may hold, in bytes."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0


def left_us_of(properties: bytes, arrived_us: int, wall_us: int) -> int:
    """Return how long a message that came at a time is of use yet; NO_EXPIRY for ever."""
    seconds = expiry_of(properties) if properties else NO_EXPIRY
    return NO_EXPIRY if seconds == NO_EXPIRY else max(0, arrived_us + seconds * _US - wall_us)
