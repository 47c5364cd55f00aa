"""Copies shards from other sites: for a site that is behind, and to repair damaged segments.

A site that is behind stops reading until it has the copy. A site that repairs continues: it
collects the files while it reads the log, then pauses, fetches the bytes that were added meanwhile,
and replaces its own files. It does not lead in this time. On the loop of the site; the files are
copied on a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from time import sleep
from typing import Any, Final

from nats.errors import Error as NatsError

from siltstone.cluster.copying import PeerFiles
from siltstone.cluster.settings import SiteSettings
from siltstone.cluster.sites.seen import AWAY_SECONDS, Copying, PeerSite, SiteShard, key_of
from siltstone.errors import RetryError, SiltstoneError
from siltstone.logs import log
from siltstone.store.segment.sift import index_path
from siltstone.store.shard.replicated.copying import collect
from siltstone.store.writer.replication.follower import FollowerStatus

_LOG: Final = logging.getLogger("siltstone.cluster")
_AGAIN_SECONDS: Final = 1.0
_REPAIR_ATTEMPTS: Final = 10
# Messages that were read before a pause are stored after this time.
_PAUSE_SECONDS: Final = 0.5

# Sends a request to a site; returns its answer.
Ask = Callable[[str, dict[str, Any]], Coroutine[Any, Any, bytes]]


class Copier:
    """The copies that are under way at this site, one at a time."""

    def __init__(
        self,
        settings: SiteSettings,
        shards: Mapping[str, SiteShard],
        peers: Mapping[str, PeerSite],
        ask: Ask,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._loop = loop
        self._settings = settings
        self._shards = shards
        self._peers = peers
        self._ask = ask
        self._turn = asyncio.Lock()
        self.under_way: dict[str, Copying] = {}
        # The only sites from which a shard is copied, after this site has deleted its damaged copy.
        self.sources: dict[str, frozenset[str]] = {}

    def stop(self, key: str) -> None:
        """End the copy of a shard that is being closed."""
        if (copying := self.under_way.get(key)) is not None:
            copying.stop.set()

    def forget_sources(self) -> None:
        """Let the shards that have everything again be copied from any site the next time."""
        for key in list(self.sources):
            shard = self._shards.get(key)
            is_current = shard is not None and shard.log.view.status is FollowerStatus.CURRENT
            if shard is not None and is_current and not shard.damaged:
                del self.sources[key]

    async def copy(self, shard: SiteShard, first: int) -> None:
        """Copy a shard that is behind the trim of the log, from a site that has the missing
        rows.
        """
        key = key_of(shard.log)
        if key in self.under_way:
            return
        log(_LOG, logging.WARNING, "shard_behind_trim", first=first, **_facts(shard))
        await self._copy(shard, Copying(first, sources=self.sources.get(key, frozenset())))

    async def repair(
        self, shard: SiteShard, damaged: frozenset[str], sources: frozenset[str]
    ) -> None:
        """Replace damaged segments by those of other sites; an empty `sources` means any site.

        It is given up after some attempts.
        """
        if key_of(shard.log) in self.under_way:
            return
        log(_LOG, logging.WARNING, "shard_repairs", segments=sorted(damaged), **_facts(shard))
        await self._copy(shard, Copying(1, repairs=damaged, sources=sources))

    async def _copy(self, shard: SiteShard, copying: Copying) -> None:
        key = key_of(shard.log)
        self.under_way[key] = copying
        try:
            attempts = 0
            while not copying.stop.is_set() and self._shards.get(key) is shard:
                # One shard at a time: the others of this site, and the peers, go on. A shard that
                # finds no source does not stop the copies of others.
                async with self._turn:
                    if await self._try(shard, copying):
                        return
                attempts += 1
                if copying.repairs and attempts == _REPAIR_ATTEMPTS:
                    # Choose the sources again: they may be away, or damaged by now.
                    return
                await asyncio.sleep(_AGAIN_SECONDS)
        finally:
            del self.under_way[key]
            if shard.tail is not None:
                shard.tail.is_paused = False

    async def _try(self, shard: SiteShard, copying: Copying) -> bool:
        """Copy from the best site; return whether it succeeded."""
        if copying.repairs and shard.log.view.leads:
            # Another site is asked to lead first.
            return False
        peer = copying.peer = self._best_peer(key_of(shard.log), copying)
        if not peer:
            return False
        try:
            await asyncio.to_thread(self._copy_from, peer, shard, copying)
        except (TimeoutError, SiltstoneError, NatsError, OSError) as exc:
            reason = str(exc) or type(exc).__name__
            facts = _facts(shard)
            log(_LOG, logging.WARNING, "copy_failed", peer=peer, reason=reason, **facts)
            if shard.tail is not None:
                shard.tail.is_paused = False
            return False
        return True

    def _best_peer(self, key: str, copying: Copying) -> str:
        """Return the site that has most of a shard, "" if none has the rows that the log lacks. A
        site that knows of damage in its own copy is the last choice.
        """
        now = self._loop.time()
        known = {
            name: int(peer.shards[key]["sequence"])
            for name, peer in self._peers.items()
            if key in peer.shards
            and now - peer.heard_at < AWAY_SECONDS
            and peer.shards[key]["status"] == FollowerStatus.CURRENT.value
            and (not copying.sources or name in copying.sources)
        }
        able = {name: at for name, at in known.items() if at + 1 >= copying.first}

        def rank(name: str) -> tuple[bool, int, str]:
            return not self._peers[name].shards[key].get("damaged"), able[name], name

        return max(able, key=rank, default="")

    def _copy_from(self, peer: str, shard: SiteShard, copying: Copying) -> None:
        """Copy a shard and continue from there. On a thread of its own."""

        def request(values: dict[str, Any]) -> Future[bytes]:
            return asyncio.run_coroutine_threadsafe(self._ask(peer, values), self._loop)

        source = PeerFiles(
            key_of(shard.log),
            request,
            bytes_per_second=self._settings.copy_rate,
            stop=copying.stop,
        )
        # The offer of a large map takes long.
        copying.hold = max(copying.hold, copying.first)
        offer = source.offer()
        copying.hold = offer.marked.position.sequence + 1
        copying.begin(offer.size_bytes, source)
        if not copying.repairs:
            collect(shard.log.staging(), offer, source)
            shard.log.install(offer)
            return
        sound = _sound(shard, copying.repairs)
        collect(shard.log.staging(), offer, source, sound)
        if shard.tail is None:
            raise RetryError("the shared log is not read at this moment")
        shard.tail.is_paused = True
        sleep(_PAUSE_SECONDS)
        offer = source.offer()
        copying.hold = offer.marked.position.sequence + 1
        collect(shard.log.staging(), offer, source, sound)
        shard.log.install(offer, again=True)


def _sound(shard: SiteShard, damaged: frozenset[str]) -> frozenset[str]:
    """Return the files of this site that are kept: the sealed segments without damage."""
    kept = [path for path in shard.log.sealed_segments() if path not in damaged]
    place = shard.log.place
    indexes = [str(index_path(place / path).relative_to(place)) for path in kept]
    return frozenset([*kept, *indexes])


def _facts(shard: SiteShard) -> dict[str, Any]:
    return {"database": shard.log.database, "shard": shard.log.shard}
