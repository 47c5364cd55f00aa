"""Third-party clients behind one interface, so that one suite can run on all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tests.support.certificates import CertificateFiles

WAIT_SECONDS = 20.0


class ClosedError(Exception):
    """The broker closed the connection; the code is its reason, if it gave one."""

    def __init__(self, code: int = 0) -> None:
        super().__init__(f"closed with {code:#x}")
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The address to connect to; `path` is that of a Unix socket or a URL."""

    kind: str = "tcp"
    port: int = 0
    path: str = ""
    authority: str = ""
    files: CertificateFiles | None = None

    @property
    def is_secure(self) -> bool:
        return self.kind in {"tls", "wss"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """The MQTT 5 properties of a message."""

    user: tuple[tuple[str, str], ...] = ()
    content_type: str = ""
    response_topic: str = ""
    correlation: bytes = b""
    expiry: int | None = None
    identifiers: tuple[int, ...] = ()


NO_EXTRAS = Extras()


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A message, published or received."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    extras: Extras = NO_EXTRAS


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The options of a connection. A session that is not clean outlives it by an hour."""

    client_id: str
    clean: bool = True
    will: Message | None = None
    username: str = ""
    password: str = ""


SESSION_SECONDS = 3600


class StockClient(Protocol):
    """One client. Reason codes are those of MQTT 5, in both versions."""

    def connect(self, login: Login) -> bool:
        """Connect; return whether a session existed. Raises: ClosedError."""

    def subscribe(self, text: str, qos: int = 0, *, identifier: int = 0) -> int:
        """Subscribe; return the reason code."""

    def publish(self, message: Message) -> int:
        """Publish, and wait until it is acknowledged; return the reason code.

        Raises: ClosedError.
        """

    def publish_all(self, topic: str, payloads: Sequence[bytes], qos: int) -> None:
        """Publish many messages as fast as the client can, and wait until they are sent."""

    def receive(self) -> Message:
        """Return the next message."""

    def disconnect(self) -> None:
        """Send DISCONNECT."""

    def drop(self) -> None:
        """Close the connection without DISCONNECT."""

    def close(self) -> None:
        """Release all resources, in any state."""
