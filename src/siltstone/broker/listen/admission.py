"""How many connections there may be, in all and from one address, before anything is known of them.

Clients beyond `connections_max` are told so by CONNACK; those who have not said who they are yet
may come in some number beyond it, and no more: each costs memory too.
"""

from __future__ import annotations

from typing import Final

from siltstone.broker.settings.broker import Limits

_TELL_SECONDS: Final = 10.0

# Connections that are being made, or closed, while all places are taken.
_STRANGERS_MAX: Final = 1000


class Admission:
    """Counts connections by address."""

    def __init__(self, limits: Limits) -> None:
        self._max = limits.connections_max + _STRANGERS_MAX
        self._per_address_max = limits.connections_per_address_max
        self._count = 0
        self._by_address: dict[str, int] = {}
        self._refused = 0
        self._told_at: float | None = None

    def bound(self, connections_max: int) -> None:
        """Let no more in than there are file descriptors for."""
        self._max = min(self._max, connections_max)

    @property
    def connections(self) -> int:
        """How many were let in and are there."""
        return self._count

    def refused(self, now: float) -> int:
        """Count a connection that was not let in; return how many to tell of, 0 for not now."""
        self._refused += 1
        if self._told_at is not None and now - self._told_at < _TELL_SECONDS:
            return 0
        self._told_at = now
        count, self._refused = self._refused, 0
        return count

    def enter(self, address: str) -> bool:
        """Count a connection in, if there is room for it."""
        here = self._by_address.get(address, 0)
        if self._count >= self._max or 0 < self._per_address_max <= here:
            return False
        self._count += 1
        self._by_address[address] = here + 1
        return True

    def leave(self, address: str) -> None:
        """Count a connection out that was let in."""
        self._count -= 1
        here = self._by_address[address] - 1
        if here:
            self._by_address[address] = here
        else:
            del self._by_address[address]
