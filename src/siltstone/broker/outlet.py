"""A connection, as the client behind it sees it: a protocol without code."""

from __future__ import annotations

from typing import Protocol

from siltstone.broker.access import Credentials
from siltstone.mqtt.packets import Connect


class Outlet(Protocol):
    """The connection, as its client sees it."""

    def credentials(self, connect: Connect, client_id: str) -> Credentials:
        """Return what the client and its connection say of who it is."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def close(self) -> None:
        """Close once the peer has had a moment to read what was sent."""

    def pause_reading(self) -> None:
        """Stop bringing bytes."""

    def resume_reading(self) -> None:
        """Bring bytes again."""
