"""Interfaces between a connection and its client, and between a client and its parts.

`Nowhere` is the outlet of a client that has ended.
"""

from __future__ import annotations

from typing import Protocol

from siltstone.broker.access.access import Credentials
from siltstone.mqtt.packets import Connect
from siltstone.mqtt.reason import Reason


class Outlet(Protocol):
    """The connection, as its client sees it."""

    def credentials(self, connect: Connect, client_id: str) -> Credentials:
        """Return the credentials of the client, from its CONNECT and its connection."""

    def write(self, data: bytes) -> None:
        """Send bytes."""

    def close(self) -> None:
        """Close, after the client has had time to read the bytes that were sent."""

    def pause_reading(self) -> None:
        """Pause reading from the socket."""

    def resume_reading(self) -> None:
        """Resume reading from the socket."""


class Nowhere:
    """The outlet of a client that has ended and has no connection."""

    def credentials(self, connect: Connect, client_id: str) -> Credentials:
        """Refuse: a client that has ended does not log in."""
        raise AssertionError(f"{client_id} has ended and logs in: version={connect.version}")

    def write(self, data: bytes) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def pause_reading(self) -> None:
        """Do nothing."""

    def resume_reading(self) -> None:
        """Do nothing."""


class Owner(Protocol):
    """The client of one connection, as its parts see it."""

    ended: bool

    def end(self, reason: Reason, text: str = "") -> None:
        """Send the client the reason, and close."""

    def stop(self) -> None:
        """Stop reading until `go_on` was called as often as `stop`."""

    def go_on(self) -> None:
        """End one `stop`; read again if it was the last."""

    def report(
        self, level: int, event: str, reason: Reason, text: str, topic: bytes | None = None
    ) -> None:
        """Log an event of this client."""
