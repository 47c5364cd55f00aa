"""How to reach a node that serves Arrow Flight: its address, and what it is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from siltstone.errors import UsageError

PORT: Final = 8815
NODE_OPTIONS: Final = ("url", "username", "password", "rootCertificates")
_SCHEMES: Final = ("grpc", "grpc+tcp", "grpc+tls", "grpc+unix")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node; the password is never part of a text."""

    url: str
    username: str = ""
    password: str = field(default="", repr=False)
    # File with the authorities that its certificate is checked by; else those of the system.
    root_certificates: str = ""


def parse_node(
    url: str, *, username: str = "", password: str = "", root_certificates: str = ""
) -> Node:
    """Check an address like grpc+tcp://host:port, and what goes with it. Raises: UsageError."""
    parts = urlsplit(url.strip())
    if parts.scheme not in _SCHEMES:
        raise UsageError(
            f"url must be like grpc+tcp://host:{PORT}, grpc+tls://host:{PORT} or "
            f"grpc+unix:///path: url={url!r}"
        )
    if parts.username is not None:
        raise UsageError("url holds a login, which logs would show: give username and password")
    if parts.scheme == "grpc+unix":
        address = f"grpc+unix://{parts.path}"
        if not parts.path.startswith("/"):
            raise UsageError(f"url must name a socket by its whole path: url={url!r}")
    else:
        address = _network_address(url, parts.scheme)
    if password and not username:
        raise UsageError("password is given without username")
    if root_certificates and parts.scheme != "grpc+tls":
        raise UsageError("rootCertificates is only for grpc+tls")
    return Node(
        url=address, username=username, password=password, root_certificates=root_certificates
    )


def node_from(given: Mapping[str, str]) -> Node | None:
    """Return the node that options name, which are in lower case; None: they name none.

    Raises: UsageError.
    """
    if not given.get("url"):
        for name in NODE_OPTIONS[1:]:
            if name.lower() in given:
                raise UsageError(f"{name} is only for a node that is reached by url")
        return None
    if given.get("path"):
        raise UsageError("path and url are both given: choose the directory, or the node")
    return parse_node(
        given["url"],
        username=given.get("username", ""),
        password=given.get("password", ""),
        root_certificates=given.get("rootcertificates", ""),
    )


def _network_address(url: str, scheme: str) -> str:
    parts = urlsplit(url.strip())
    try:
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise UsageError(f"url must have a port from 0 to 65535: url={url!r}") from exc
    if not host:
        raise UsageError(f"url must name a host: url={url!r}")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise UsageError(f"url ends behind its port; the database is an option: url={url!r}")
    shown = f"[{host}]" if ":" in host else host
    kind = "grpc+tls" if scheme == "grpc+tls" else "grpc+tcp"
    return f"{kind}://{shown}:{PORT if port is None else port}"
