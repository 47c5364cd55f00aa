"""The address of a server: host and port, a socket file, or an mqtt:// or mqtts:// URL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urlsplit

from siltstone.errors import UsageError

PORT: Final = 1883
PORT_TLS: Final = 8883


@dataclass(frozen=True, slots=True)
class TcpTarget:
    """A host and port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class UnixTarget:
    """A Unix socket of this machine."""

    path: str

    def __str__(self) -> str:
        return self.path


Target = TcpTarget | UnixTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerUrl:
    """The parts of `mqtt://user:password@host:port/topic`; None means absent."""

    host: str
    port: int
    tls: bool
    username: str | None = None
    password: str | None = None
    topic: str | None = None


def parse_url(text: str) -> ServerUrl:
    """Parse the URL of a server. Raises: UsageError."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as exc:
        raise UsageError(f"invalid URL {text!r}: {exc}") from exc
    if parts.scheme not in {"mqtt", "mqtts"} or not parts.hostname:
        raise UsageError(f"invalid URL {text!r}: write mqtt://HOST[:PORT] or mqtts://HOST[:PORT]")
    if parts.query:
        raise UsageError(f"invalid URL {text!r}: write %3F for a '?' in the topic")
    tls = parts.scheme == "mqtts"
    # urlsplit removes the part after '#', which belongs to a filter here.
    topic = parts.path[1:] + (f"#{parts.fragment}" if "#" in text else "")
    return ServerUrl(
        host=parts.hostname,
        port=port or (PORT_TLS if tls else PORT),
        tls=tls,
        username=_unquoted(parts.username),
        password=_unquoted(parts.password),
        topic=unquote(topic) or None,
    )


def _unquoted(text: str | None) -> str | None:
    return None if text is None else unquote(text)
