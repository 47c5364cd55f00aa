"""A moment at which no shard of the cluster stores a call, so that a site can make a backup.

This site asks the leaders of all shards to let calls wait for some seconds, and to report how far
their logs have counted. It reads the logs up to there. Then its files are cut. Afterwards it asks
the leaders again. If there are no new rows up to the new positions, the cut shows one moment:

- every shard was asked after the cut, and had counted nothing in between. So everything that was
  acknowledged before the cut, at any site, is in it;
- everything in the cut was published before it. So if a row was published after another one was
  acknowledged, the other one is in the cut too.

Both follow from a BARRIER of the leader's own term, which counts only while no other site leads.
The waiting calls only make success likely. They wait at most `REST_SECONDS`, also if the backup
ends earlier. On the loop of the site.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from typing import Any, Final

from nats.errors import Error as NatsError

from siltstone.cluster.sites.seen import SiteShard
from siltstone.errors import RetryError
from siltstone.store.shard.replicated.log import ReplicatedLog

# How long calls wait for a backup, at most.
REST_SECONDS: Final = 5.0
# The time limit for reaching the moment. The clients of a broker wait for 10 s at most.
_REACH_SECONDS: Final = 8.0
# The time limit for one answer.
ASK_SECONDS: Final = 2.0
_POLL_SECONDS: Final = 0.01

# Sends a question to another site; returns its answer.
Ask = Callable[[str, dict[str, Any]], Coroutine[Any, Any, bytes]]


class ClusterStandstill:
    """Reaches a standstill at one site."""

    def __init__(self, site: str, shards: Mapping[str, SiteShard], ask: Ask) -> None:
        self._site = site
        self._shards = shards
        self._ask = ask

    async def reach(self, keys: Collection[str]) -> dict[str, int]:
        """Let calls wait at the leaders of these shards, until this site has everything that was
        acknowledged; return the next serial of each shard. Raises: RetryError.
        """
        deadline = _now() + _REACH_SECONDS
        while True:
            await self._read_all(keys, REST_SECONDS, deadline)
            serials = {key: self._shard(key).next_serial for key in keys}
            # Stored rows are visible to other processes when the log was read once more.
            if await self._has_only(serials, deadline):
                return serials

    async def lasted(self, serials: Mapping[str, int]) -> bool:
        """Return whether nothing was stored since `reach`. Raises: RetryError."""
        return await self._has_only(serials, _now() + _REACH_SECONDS)

    async def end(self, keys: Collection[str]) -> None:
        """Let the leaders continue."""
        await asyncio.gather(*map(self._go_on, keys))

    async def _has_only(self, serials: Mapping[str, int], deadline: float) -> bool:
        """Return whether the shards have no more rows, as far as their leaders know."""
        await self._read_all(serials, None, deadline)
        return all(self._shard(key).next_serial == serial for key, serial in serials.items())

    async def _read_all(
        self, keys: Collection[str], seconds: float | None, deadline: float
    ) -> None:
        """Wait until this site has everything that had counted in these shards. Raises:
        RetryError.
        """
        await asyncio.gather(*[self._read(key, seconds, deadline) for key in keys])

    async def _read(self, key: str, seconds: float | None, deadline: float) -> None:
        index: int | None = None
        while _now() < deadline:
            shard = self._shard(key)
            if index is None:
                index = await self._ask_leader(shard, key, seconds)
            elif shard.view.progress.index >= index and not shard.view.is_full:
                return
            await asyncio.sleep(_POLL_SECONDS)
        if index is None:
            leader = self._shard(key).view.leader or "none"
            raise RetryError(f"no site that leads {key} has answered, try again: leader={leader}")
        raise RetryError(f"this site is behind the leader of {key}, try again")

    def _shard(self, key: str) -> ReplicatedLog:
        shard = self._shards.get(key)
        if shard is None:
            raise RetryError(f"this site has not opened {key} at this moment, try again")
        return shard.log

    async def _ask_leader(
        self, shard: ReplicatedLog, key: str, seconds: float | None
    ) -> int | None:
        """Return how far the log has counted; None if no leader has answered."""
        view = shard.view
        if view.leads:
            return await counted(shard, seconds)
        if view.leader in ("", self._site):
            return None
        try:
            answer = await self._ask(view.leader, {"shard": key, "rest": seconds})
            found = json.loads(answer)["index"]
        except (TimeoutError, NatsError, OSError, ValueError, KeyError, TypeError):
            return None
        return found if isinstance(found, int) else None

    async def _go_on(self, key: str) -> None:
        shard = self._shards.get(key)
        if shard is None:
            return
        # If the leader has changed, the calls wait for some seconds at a site that does not lead.
        if shard.log.view.leads:
            shard.log.rest(0)
        else:
            await self._ask_leader(shard.log, key, 0)


async def counted(shard: ReplicatedLog, seconds: float | None) -> int | None:
    """Let the calls of a shard wait for some seconds; 0 ends the wait. Return how far its log has
    counted, None if this site does not lead it. With None for `seconds`, nothing changes for the
    calls.
    """
    if seconds is not None:
        shard.rest(min(seconds, REST_SECONDS))
    loop = asyncio.get_running_loop()
    found: asyncio.Future[int | None] = loop.create_future()

    def settle(index: int | None) -> None:
        if not found.done():
            found.set_result(index)

    def tell(index: int | None) -> None:
        # The loop has ended if this site stops.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(settle, index)

    shard.ask_what_counted(tell)
    try:
        return await asyncio.wait_for(found, ASK_SECONDS)
    except TimeoutError:
        return None


def _now() -> float:
    return asyncio.get_running_loop().time()
