"""Limits for the number of connections, in total and from one address, before CONNECT.

A client above `connections_max` is refused with CONNACK. For this, some connections above the limit
are accepted until they have sent CONNECT. Their number is limited too, because each takes memory.
At this limit, a new connection takes the place of one that has sent its last packet and only waits
for its client to close.
"""

from __future__ import annotations

from typing import Final, Protocol

from siltstone.broker.settings.broker import Limits

_TELL_SECONDS: Final = 10.0

# Connections that are being opened or closed, in addition to `connections_max`.
STRANGERS_MAX: Final = 1000
# Where the limit of file descriptors allows fewer, one of this many descriptors is for them ...
_STRANGERS_PART: Final = 16
# ... but at least this many descriptors are.
_STRANGERS_MIN: Final = 4


class Closing(Protocol):
    """A connection that has sent its last packet."""

    def give_way(self) -> None:
        """Leave the admission, and close at once."""


def clients_within(connections: int) -> int:
    """Return how many of these connections clients may keep; the others are for refusals."""
    part = max(_STRANGERS_MIN, connections // _STRANGERS_PART)
    return connections - min(STRANGERS_MAX, part)


class Admission:
    """Counts connections by address."""

    def __init__(self, limits: Limits) -> None:
        self._max = limits.connections_max + STRANGERS_MAX
        self._per_address_max = limits.connections_per_address_max
        self._count = 0
        self._by_address: dict[str, int] = {}
        # In the order in which they began to close.
        self._closing: dict[Closing, None] = {}
        self._refused = 0
        self._told_at: float | None = None

    def bound(self, connections_max: int) -> None:
        """Lower the limit to the number of connections that have file descriptors."""
        self._max = min(self._max, connections_max)

    @property
    def connections(self) -> int:
        """The number of admitted connections that are open."""
        return self._count

    def refused(self, now: float) -> int:
        """Count a refused connection; return how many to report now, or 0 if none are due."""
        self._refused += 1
        if self._told_at is not None and now - self._told_at < _TELL_SECONDS:
            return 0
        self._told_at = now
        count, self._refused = self._refused, 0
        return count

    def enter(self, address: str) -> bool:
        """Count a new connection if the limits allow it; return whether they do."""
        if 0 < self._per_address_max <= self._by_address.get(address, 0):
            return False
        if self._count >= self._max:
            if not self._closing:
                return False
            oldest = next(iter(self._closing))
            del self._closing[oldest]
            oldest.give_way()
        self._count += 1
        self._by_address[address] = self._by_address.get(address, 0) + 1
        return True

    def closes(self, connection: Closing) -> None:
        """Let an admitted connection give way to a new one from now on."""
        self._closing[connection] = None

    def closed(self, connection: Closing) -> None:
        """Forget a connection that is closed, if it was closing."""
        self._closing.pop(connection, None)

    def leave(self, address: str) -> None:
        """Remove an admitted connection from the counts."""
        self._count -= 1
        here = self._by_address[address] - 1
        if here:
            self._by_address[address] = here
        else:
            del self._by_address[address]
