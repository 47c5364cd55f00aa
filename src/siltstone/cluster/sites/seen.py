"""The knowledge of a site: its own shards, and the last beats of the other sites."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Final

from siltstone.cluster.copying import PeerFiles
from siltstone.cluster.shared_log import LogTail
from siltstone.store.shard.replicated.log import ReplicatedLog
from siltstone.store.writer.replication.health import ClaimTimer, OutboxTimer
from siltstone.store.writer.replication.sites.membership import ShardSites

# A site that was not heard for this long is shown as away.
AWAY_SECONDS: Final = 3.0


@dataclass(slots=True)
class SiteShard:
    """A replicated shard of this site, with its tail and its timers."""

    log: ReplicatedLog
    claims: ClaimTimer
    # The turn of this site among the sites that claim, if it has no other information.
    rank: int
    outbox: OutboxTimer = field(default_factory=OutboxTimer)
    tail: LogTail | None = None
    task: asyncio.Task[None] | None = None
    # The placement as it was last read.
    placement: ShardSites | None = None
    leading_since: float = 0.0
    # Segments that are being repaired; this site does not lead meanwhile.
    damaged: frozenset[str] = frozenset()
    # The site that was asked to lead, and is asked again until it does.
    successor: str = ""


@dataclass(slots=True)
class PeerSite:
    """The last beat of another site."""

    heard_at: float
    shards: dict[str, dict[str, Any]]
    # Whether it is about to end.
    is_stopping: bool = False
    # The newest version of records that it can read.
    reads: int = 1
    # Its wall time minus ours, when it was heard.
    skew_us: int = 0
    # The first bytes of its producers, and the first number of its process.
    producers: tuple[bytes, int] | None = None
    # Whether it may lead, as far as it can tell itself.
    is_fit: bool = True
    # The databases whose logs begin with the rows of this site.
    founding: frozenset[str] = frozenset()


@dataclass(slots=True)
class Copying:
    """A copy of a shard that is under way."""

    first: int
    peer: str = ""
    hold: int = 0
    size_bytes: int = 0
    source: PeerFiles | None = None
    # The damaged segments if this site is not behind, and repairs them.
    repairs: frozenset[str] = frozenset()
    # The sites that may be copied from; empty for all.
    sources: frozenset[str] = frozenset()
    stop: Event = field(default_factory=Event)

    def begin(self, size_bytes: int, source: PeerFiles) -> None:
        """Set the source and the size of the copy."""
        self.size_bytes, self.source = size_bytes, source

    @property
    def fetched_bytes(self) -> int:
        """The number of fetched bytes."""
        return 0 if self.source is None else self.source.fetched_bytes


def key_of(shard: ReplicatedLog) -> str:
    """Return the name of a shard in beats and in the status: DATABASE/SHARD."""
    return f"{shard.database}/{shard.shard}"
