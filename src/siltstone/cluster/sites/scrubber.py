"""Reads all sealed segments of this site again from time to time, and compares them with others.

A segment that cannot be read, or whose rows are not those of most sites, is copied from one of
them. If no majority shows which rows are right, nothing is changed, and an alarm is raised. On the
loop of the site; segments are read on a thread, slowly.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from threading import Event
from typing import Any, Final

from nats.errors import Error as NatsError

from siltstone.cluster.settings import SiteSettings
from siltstone.cluster.sites.copier import Ask, Copier
from siltstone.cluster.sites.map_scrubber import MapScrubber, ReplaceMap
from siltstone.cluster.sites.placing import Placing
from siltstone.cluster.sites.seen import SiteShard, key_of
from siltstone.errors import CorruptionError, NotFoundError, SiltstoneError
from siltstone.logs import log
from siltstone.store.shard.replicated.damage import digest_of_rows
from siltstone.store.shard.replicated.log import ReplicatedLog
from siltstone.store.writer.replication.sites.scrubbing import CopyFinding, compare

_LOG: Final = logging.getLogger("siltstone.cluster")
_FIRST_SECONDS: Final = 2.0
_AGAIN_SECONDS: Final = 30.0


class Scrubber:
    """The check in the background."""

    def __init__(
        self,
        settings: SiteSettings,
        shards: Mapping[str, SiteShard],
        placing: Placing,
        ask: Ask,
        copier: Copier,
        replace_map: ReplaceMap,
    ) -> None:
        self._settings = settings
        self._shards = shards
        self._placing = placing
        self._ask = ask
        self._copier = copier
        self._maps = MapScrubber(settings, placing, ask, replace_map)
        self._stopped = Event()
        # The time of the next search for sites from which a shard can be repaired.
        self._asked_again_at: dict[str, float] = {}
        # The items that no majority has decided, and the numbers of damaged or different, and of
        # checked items.
        self._undecided: set[str] = set()
        self._damaged = 0
        self._checked = 0

    @property
    def undecided(self) -> set[str]:
        """The segments and key-value shards for which no majority agrees on a copy."""
        return self._undecided | self._maps.undecided

    @property
    def damaged(self) -> int:
        """The number of segments and key-value shards that were damaged or different."""
        return self._damaged + self._maps.damaged

    @property
    def checked(self) -> int:
        """The number of segments and key-value shards that were compared."""
        return self._checked + self._maps.checked

    async def run(self) -> None:
        """Repair the known damage, then check everything, again and again."""
        await asyncio.sleep(_FIRST_SECONDS)
        due = 0.0
        loop = asyncio.get_running_loop()
        while True:
            self._copier.forget_sources()
            for shard in self._of_messages():
                await self.repair_known(shard)
            for database in list(self._maps_here()):
                await self._tend_map(database, self._maps.repair)
            if loop.time() >= due:
                due = loop.time() + self._settings.scrub_interval
                for shard in self._of_messages():
                    await self._scrub(shard)
                for database in list(self._maps_here()):
                    await self._tend_map(database, self._maps.scrub)
            await asyncio.sleep(_FIRST_SECONDS)

    def _of_messages(self) -> list[SiteShard]:
        return [shard for shard in self._shards.values() if not shard.log.is_map]

    def _maps_here(self) -> dict[str, list[SiteShard]]:
        """Return the shards of each key-value database that this site has."""
        found: dict[str, list[SiteShard]] = {}
        for shard in self._shards.values():
            if shard.log.is_map:
                found.setdefault(shard.log.database, []).append(shard)
        return found

    async def _tend_map(
        self, database: str, act: Callable[[list[SiteShard]], Coroutine[Any, Any, object]]
    ) -> None:
        """Do something with all shards of a database, if it is still there."""
        shards = self._maps_here().get(database, [])
        if not shards:
            return
        try:
            await act(shards)
        except SiltstoneError as exc:
            log(_LOG, logging.ERROR, "scrub_failed", error=str(exc), shard=database)

    async def repair_known(self, shard: SiteShard) -> None:
        """Repair the damage that a check, or `verify --repair` before the start, has found."""
        try:
            known = await asyncio.to_thread(shard.log.damaged)
        except SiltstoneError as exc:
            log(_LOG, logging.ERROR, "scrub_failed", error=str(exc), shard=key_of(shard.log))
            return
        shard.damaged = known
        key, now = key_of(shard.log), asyncio.get_running_loop().time()
        if not known or shard.log.view.leads or now < self._asked_again_at.get(key, 0.0):
            # While it leads, another site is asked to lead first.
            return
        sources = await self._sources(key, known)
        if sources is None:
            # Each answer costs the other sites the reading of a segment.
            self._asked_again_at[key] = now + _AGAIN_SECONDS
        else:
            await self._copier.repair(shard, known, sources)

    async def _sources(self, key: str, paths: frozenset[str]) -> frozenset[str] | None:
        """Return the sites from which all these segments may be copied: those that agree about
        each. An empty result means any site, because none has a sealed copy of them. None means no
        site now.
        """
        if not self._placing.able(key):
            return None
        agreed: frozenset[str] | None = None
        for path in sorted(paths):
            if others := await self._others(key, path):
                sources = compare(None, others).sources
                agreed = sources if agreed is None else agreed & sources
        return frozenset() if agreed is None else agreed or None

    async def _scrub(self, shard: SiteShard) -> None:
        key, bad = key_of(shard.log), set[str]()
        try:
            paths = await asyncio.to_thread(shard.log.sealed_segments)
            for path in paths:
                if self._shards.get(key) is not shard:
                    return
                if await self._is_bad(shard, key, path):
                    bad.add(path)
            if bad:
                self._damaged += len(bad)
                await asyncio.to_thread(shard.log.remember_damaged, bad)
        except SiltstoneError as exc:
            log(_LOG, logging.ERROR, "scrub_failed", error=str(exc), shard=key)
        if bad:
            await self.repair_known(shard)

    async def _is_bad(self, shard: SiteShard, key: str, path: str) -> bool:
        """Compare a segment with those of the other sites; return whether to replace ours."""
        try:
            own: bytes | None = await asyncio.to_thread(self._read, shard.log, path)
        except NotFoundError:
            # The slab was dropped, or the shard was replaced.
            return False
        except CorruptionError as exc:
            log(_LOG, logging.ERROR, "segment_damaged", shard=key, segment=path, error=str(exc))
            own = None
        self._checked += 1
        others = await self._others(key, path)
        replicas = frozenset() if shard.placement is None else shard.placement.replicas
        found = compare(own, others, copies=len(replicas | others.keys() | {self._placing.site}))
        if found.finding is CopyFinding.REPAIR:
            if own is not None:
                log(_LOG, logging.ERROR, "segment_differs", shard=key, segment=path)
            return True
        place = f"{key}/{path}"
        if found.finding is CopyFinding.UNDECIDED and place not in self._undecided:
            self._undecided.add(place)
            log(_LOG, logging.CRITICAL, "segments_undecided", shard=key, segment=path)
        elif found.finding is CopyFinding.SOUND:
            self._undecided.discard(place)
        return False

    def _read(self, shard: ReplicatedLog, path: str) -> bytes:
        """Read a segment at the rate of the settings; return the digest of its rows."""
        with shard.fs.open(shard.place / path, writable=False) as file:
            size = file.size()
        digest = digest_of_rows(shard.fs, shard.place, path)
        self._stopped.wait(min(size / self._settings.scrub_rate, 60.0))
        return digest

    async def _others(self, key: str, path: str) -> dict[str, bytes]:
        """Return the digests of the sites that answer."""
        names = sorted(self._placing.able(key))
        request: dict[str, Any] = {"do": "rows", "shard": key, "path": path}
        answers = await asyncio.gather(
            *(self._ask(name, request) for name in names), return_exceptions=True
        )
        found: dict[str, bytes] = {}
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, bytes) and answer[:1] == b"+":
                found[name] = answer[1:]
            elif isinstance(answer, BaseException) and not isinstance(
                answer, TimeoutError | NatsError | OSError
            ):
                raise answer
        return found
