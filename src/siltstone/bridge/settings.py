"""What a link is told: where its peer is, and which topics go which way."""

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
    """Topics that go over a link: the pattern follows the prefix of its side, which is replaced by
    that of the other.
    """

    pattern: str
    direction: Direction = "out"
    qos: int = 1
    local_prefix: str = ""
    remote_prefix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """One link. `client.client_id` is ours at the peer, and nobody else's."""

    name: str
    target: Target
    tls: ssl.SSLContext | None
    client: ClientSettings
    topics: tuple[LinkTopic, ...]
    spool_bytes_max: int
    when_full: WhenFull = "refuse"
