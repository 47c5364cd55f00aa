"""Compares the key-value shards of this site with those of the others, and replaces damaged ones.

Sites are compared at one index of the shared log. RocksDB holds all shards of a database in common
files, so a damaged shard is not replaced alone: this site deletes its copy of the database and
opens it again as a new site does, which copies every shard from the others.

Invariants:
- a copy is deleted only if each of its shards can be copied from a site that answers now: one with
  an equal copy, or, for a damaged shard, with the copy of a majority;
- the new copy of a shard comes from one of these sites: another one may have other rows;
- one site at a time deletes its copy, and it leads none of the shards then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Final

from nats.errors import Error as NatsError

from siltstone.cluster.settings import SiteSettings
from siltstone.cluster.sites.copier import Ask
from siltstone.cluster.sites.placing import Placing
from siltstone.cluster.sites.seen import SiteShard, key_of
from siltstone.errors import SiltstoneError
from siltstone.logs import log
from siltstone.store.shard.replicated.damage import DAMAGED_MAP
from siltstone.store.writer.replication.sites.scrubbing import (
    CopyFinding,
    CopyState,
    are_of_one_index,
    compare,
    sources_of,
)

_LOG: Final = logging.getLogger("siltstone.cluster")
# The distance from the index of this site to the index of the comparison. The first one is enough
# if few records are committed.
_AHEAD: Final = (8, 100, 2_000)
_POLL_SECONDS: Final = 0.25
# A site that has not answered for this long is left out.
_PATIENCE_SECONDS: Final = 60.0
# A site that reads a large shard answers that it has not finished. This limits the time of such
# answers.
_LONGEST_SECONDS: Final = 4 * 3600.0
# The note for an intact shard that is replaced because of another shard of its database.
_BESIDE: Final = "beside"

# Deletes the copy of a database, and lets it be opened again; the shards are copied from these
# sites.
ReplaceMap = Callable[[str, Mapping[str, frozenset[str]]], Coroutine[Any, Any, None]]


class MapScrubber:
    """The check of key-value databases in the background. On the loop of the site."""

    def __init__(
        self, settings: SiteSettings, placing: Placing, ask: Ask, replace: ReplaceMap
    ) -> None:
        self._settings = settings
        self._placing = placing
        self._ask = ask
        self._replace = replace
        self.checked = 0
        self.damaged = 0
        self.undecided: set[str] = set()

    async def scrub(self, shards: Sequence[SiteShard]) -> None:
        """Compare all shards of a database; remember which are damaged. Raises: SiltstoneError."""
        bad = [shard for shard in shards if await self._is_bad(shard)]
        self.damaged += len(bad)
        for shard in shards if bad else ():
            found = DAMAGED_MAP if shard in bad else _BESIDE
            await asyncio.to_thread(shard.log.remember_damaged, {found})

    async def repair(self, shards: Sequence[SiteShard]) -> bool:
        """Replace a database with damage, if this is possible now; return whether it is replaced.

        Raises: SiltstoneError.
        """
        for shard in shards:
            shard.damaged = await asyncio.to_thread(shard.log.damaged)
        if not any(shard.damaged for shard in shards):
            return False
        for shard in shards:
            # While it leads, another site is asked to lead first.
            shard.damaged = shard.damaged or frozenset({_BESIDE})
        if not self._may_replace(shards):
            return False
        sources: dict[str, frozenset[str]] = {}
        for shard in shards:
            found = sources[key_of(shard.log)] = await self._sources(shard)
            if not found:
                return False
        if not self._may_replace(shards):
            return False
        database = shards[0].log.database
        log(_LOG, logging.WARNING, "map_replaced", database=database)
        await self._replace(database, sources)
        return True

    def _may_replace(self, shards: Sequence[SiteShard]) -> bool:
        return not any(shard.log.view.leads for shard in shards) and all(
            self._placing.may_be_replaced(key_of(shard.log)) for shard in shards
        )

    async def _is_bad(self, shard: SiteShard) -> bool:
        key = key_of(shard.log)
        own, others = await self._states(shard)
        if own is None:
            return False
        self.checked += 1
        digest = own.digest or None
        if digest is None:
            log(_LOG, logging.ERROR, "map_damaged", shard=key)
        found = compare(digest, _digests(others), copies=self._copies(shard, others))
        if found.finding is CopyFinding.REPAIR:
            if digest is not None:
                log(_LOG, logging.ERROR, "map_differs", shard=key, index=own.index)
            return True
        place = f"{key}/{DAMAGED_MAP}"
        if found.finding is CopyFinding.UNDECIDED and place not in self.undecided:
            self.undecided.add(place)
            log(_LOG, logging.CRITICAL, "segments_undecided", shard=key, segment=DAMAGED_MAP)
        elif found.finding is CopyFinding.SOUND:
            self.undecided.discard(place)
        return False

    async def _sources(self, shard: SiteShard) -> frozenset[str]:
        """Return the sites from which a shard may be copied; no site if our copy must stay."""
        own, others = await self._states(shard)
        if own is None:
            return frozenset()
        is_damaged = DAMAGED_MAP in shard.damaged
        digest = None if is_damaged else own.digest or None
        return sources_of(digest, _digests(others), copies=self._copies(shard, others))

    async def _states(self, shard: SiteShard) -> tuple[CopyState | None, dict[str, CopyState]]:
        """Return the states of this site and the others, all at one index; None if that fails."""
        key = key_of(shard.log)
        for ahead in _AHEAD:
            names = sorted(self._placing.able(key))
            index = shard.log.view.progress.index + ahead
            own, *answers = await asyncio.gather(
                self._own(shard, index), *(self._theirs(name, key, index) for name in names)
            )
            others = {
                name: state for name, state in zip(names, answers, strict=True) if state is not None
            }
            if own is None:
                return None, {}
            if are_of_one_index([own, *others.values()]):
                return own, others
        return None, {}

    def _copies(self, shard: SiteShard, others: Mapping[str, CopyState]) -> int:
        """Return the number of all copies, also of sites that do not answer now."""
        replicas = frozenset() if shard.placement is None else shard.placement.replicas
        return len(replicas | others.keys() | {self._placing.site})

    async def _own(self, shard: SiteShard, index: int) -> CopyState | None:
        rate = self._settings.scrub_rate

        async def look() -> CopyState | None:
            return await asyncio.to_thread(shard.log.state, index, rate)

        return await _patiently(look)

    async def _theirs(self, name: str, key: str, index: int) -> CopyState | None:
        request = {"do": "state", "shard": key, "index": index, "rate": self._settings.scrub_rate}

        async def look() -> CopyState | None:
            answer = await self._ask(name, request)
            if answer[:1] != b"+":
                raise SiltstoneError(answer[1:].decode(errors="replace"))
            return CopyState.decode(answer[1:]) if answer[1:] else None

        return await _patiently(look)


async def _patiently(look: Callable[[], Coroutine[Any, Any, CopyState | None]]) -> CopyState | None:
    """Ask until there is a state; None if there is none."""
    loop = asyncio.get_running_loop()
    began = heard = loop.time()
    while loop.time() - heard < _PATIENCE_SECONDS and loop.time() - began < _LONGEST_SECONDS:
        try:
            state = await look()
        except (TimeoutError, NatsError, OSError):
            pass
        except (SiltstoneError, ValueError):
            return None
        else:
            if state is not None:
                return state
            heard = loop.time()
        await asyncio.sleep(_POLL_SECONDS)
    return None


def _digests(others: Mapping[str, CopyState]) -> dict[str, bytes]:
    """Return the digests of the copies that can be read."""
    return {name: state.digest for name, state in others.items() if state.digest}
