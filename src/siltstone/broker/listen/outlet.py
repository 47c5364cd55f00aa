"""A connection as the client behind it sees it, and a client as its parts do: protocols, and the
outlet of a client that has none.
"""

from __future__ import annotations

from typing import Protocol

from siltstone.broker.access.access import Credentials
from siltstone.mqtt.packets import Connect
from siltstone.mqtt.reason import Reason


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


class Nowhere:
    """The outlet of a client that has ended: it has no connection any more."""

    def credentials(self, connect: Connect, client_id: str) -> Credentials:
        """Refuse: a client that has ended does not log in."""
        raise AssertionError(f"{client_id} has ended and logs in: version={connect.version}")

    def write(self, data: bytes) -> None:
        """Send nothing."""

    def close(self) -> None:
        """Close nothing."""

    def pause_reading(self) -> None:
        """Stop nothing."""

    def resume_reading(self) -> None:
        """Bring nothing."""


class Owner(Protocol):
    """The client of one connection, as its parts see it."""

    ended: bool

    def end(self, reason: Reason, text: str = "") -> None:
        """Tell the client why, and close."""

    def stop(self) -> None:
        """Read no more until as many have said go on."""

    def go_on(self) -> None:
        """Read again, if nobody else says stop."""

    def report(
        self, level: int, event: str, reason: Reason, text: str, topic: bytes | None = None
    ) -> None:
        """Log something that happened to this client."""
