"""The shards of a database that this process writes, each opened when it is first asked for.

A database has thousands of shards where each is a topic log. Opening one reads and syncs its last
segment, and takes memory, so those that nothing asks for are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock

from siltstone.errors import ClosedError
from siltstone.store.shard import Shard


class Shards:
    """All shards by their numbers, from any thread."""

    def __init__(self, count: int, open_shard: Callable[[int], Shard]) -> None:
        self._shards: list[Shard | None] = [None] * count
        self._open_shard = open_shard
        self._lock = RLock()

    def __len__(self) -> int:
        """Return how many there are, opened or not."""
        return len(self._shards)

    def get(self, number: int) -> Shard:
        """Return a shard, having opened it. Raises: what keeps it from being opened."""
        shard = self.find(number)
        if shard is not None:
            return shard
        with self._lock:
            if number >= len(self._shards):
                raise ClosedError("the database is closed")
            shard = self._shards[number]
            if shard is None:
                shard = self._shards[number] = self._open_shard(number)
            return shard

    def find(self, number: int) -> Shard | None:
        """Return a shard that is open, None where it is not."""
        shards = self._shards
        return shards[number] if number < len(shards) else None

    def opened(self) -> list[Shard]:
        """Return those that are open, by number."""
        return [shard for shard in self._shards if shard is not None]

    def open_first(self, count: int) -> None:
        """Open so many. Raises: what keeps one from being opened."""
        for number in range(min(count, len(self._shards))):
            self.get(number)

    def add(self, shard: Shard) -> None:
        """Add a shard behind the others."""
        with self._lock:
            self._shards.append(shard)

    def close(self) -> list[Shard]:
        """Open none any more and let go of all; return those that were open."""
        with self._lock:
            opened, self._shards = self.opened(), []
            # It refers to the database, which would stay, with its maps, until it is collected.
            self._open_shard = _refuse
            return opened


def _refuse(_number: int) -> Shard:
    raise ClosedError("the database is closed")
