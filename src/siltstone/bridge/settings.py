"""The settings of a bridge: the address of the remote broker, and the topics of each direction."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from typing import Literal

from siltstone.client.settings import ClientSettings
from siltstone.client.target import Target

Direction = Literal["out", "in", "both"]
WhenFull = Literal["refuse", "drop"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTopic:
    """Topics that a bridge copies. The pattern follows the prefix of its side, and that prefix is
    replaced by the prefix of the other side.
    """

    pattern: str
    direction: Direction = "out"
    qos: int = 1
    local_prefix: str = ""
    remote_prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """One bridge. No other client of the remote broker may use `client.client_id`."""

    name: str
    target: Target
    tls: ssl.SSLContext | None
    client: ClientSettings
    topics: tuple[LinkTopic, ...]
    spool_bytes_max: int
    when_full: WhenFull = "refuse"
