"""The address of a node that serves Arrow Flight, and the credentials for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from urllib.parse import urlsplit

from siltstone.errors import UsageError

PORT: Final = 8815
NODE_OPTIONS: Final = (
    "url",
    "username",
    "password",
    "token",
    "rootCertificates",
    "certificate",
    "key",
)
_SCHEMES: Final = ("grpc", "grpc+tcp", "grpc+tls", "grpc+unix")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node; password and token are never part of its repr."""

    url: str
    # Other sites of a cluster that have the same databases: reads continue there.
    others: tuple[str, ...] = ()
    username: str = ""
    password: str = field(default="", repr=False)
    # Instead of user and password.
    token: str = field(default="", repr=False)
    # File with the CA certificates that the node's certificate is checked against; default: the
    # system's.
    root_certificates: str = ""
    # Files with a client certificate and its key, for a node that requires one.
    certificate: str = ""
    key: str = ""


def parse_node(
    url: str,
    *,
    username: str = "",
    password: str = "",
    token: str = "",
    root_certificates: str = "",
    certificate: str = "",
    key: str = "",
) -> Node:
    """Check an address like grpc+tcp://host:port, and its credentials. Several addresses, separated
    by commas, are sites of one cluster. Raises: UsageError.
    """
    found = [
        _parse_node(
            each,
            username=username,
            password=password,
            token=token,
            root_certificates=root_certificates,
            certificate=certificate,
            key=key,
        )
        for each in url.split(",")
    ]
    return replace(found[0], others=tuple(node.url for node in found[1:]))


def _parse_node(
    url: str,
    *,
    username: str,
    password: str,
    token: str,
    root_certificates: str,
    certificate: str,
    key: str,
) -> Node:
    parts = urlsplit(url.strip())
    # Check this before any error message that contains the url.
    if "@" in url and parts.scheme != "grpc+unix":
        raise UsageError(
            "url must not contain a login, which logs would show: set username and password"
        )
    if parts.scheme not in _SCHEMES:
        raise UsageError(
            f"url must have the form grpc+tcp://HOST:{PORT}, grpc+tls://HOST:{PORT} or "
            f"grpc+unix:///PATH: url={url!r}"
        )
    if parts.scheme == "grpc+unix":
        address = f"grpc+unix://{parts.path}"
        if not parts.path.startswith("/"):
            raise UsageError(f"url must have the absolute path of a socket: url={url!r}")
    else:
        address = _network_address(url, parts.scheme)
    if password and not username:
        raise UsageError("password needs username")
    if ":" in username:
        raise UsageError(f"username must not have a colon: username={username!r}")
    if token and username:
        raise UsageError("set either token or username, not both")
    if not all("!" <= letter <= "~" for letter in token):
        raise UsageError("token must have ASCII characters only, without spaces")
    files = {"rootCertificates": root_certificates, "certificate": certificate, "key": key}
    for name, file in files.items():
        if file and parts.scheme != "grpc+tls":
            raise UsageError(f"{name} is only for grpc+tls")
    if bool(certificate) != bool(key):
        raise UsageError("set both certificate and key, or neither")
    return Node(
        url=address,
        username=username,
        password=password,
        token=token,
        root_certificates=root_certificates,
        certificate=certificate,
        key=key,
    )


def node_from(given: Mapping[str, str]) -> Node | None:
    """Return the node of these options, whose names are in lower case; None if they have no url.

    Raises: UsageError.
    """
    if not given.get("url"):
        for name in NODE_OPTIONS[1:]:
            if name.lower() in given:
                raise UsageError(f"{name} is only for a node: set url too")
        return None
    if given.get("path"):
        raise UsageError("set either path (a data directory) or url (a node), not both")
    return parse_node(
        given["url"],
        username=given.get("username", ""),
        password=given.get("password", ""),
        token=given.get("token", ""),
        root_certificates=given.get("rootcertificates", ""),
        certificate=given.get("certificate", ""),
        key=given.get("key", ""),
    )


def _network_address(url: str, scheme: str) -> str:
    parts = urlsplit(url.strip())
    try:
        host, port = parts.hostname, parts.port
    except ValueError as exc:
        raise UsageError(f"url must have a port from 0 to 65535: url={url!r}") from exc
    if not host:
        raise UsageError(f"url must have a host: url={url!r}")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise UsageError(
            f"url must end after its port; set the option database instead: url={url!r}"
        )
    shown = f"[{host}]" if ":" in host else host
    kind = "grpc+tls" if scheme == "grpc+tls" else "grpc+tcp"
    return f"{kind}://{shown}:{PORT if port is None else port}"
