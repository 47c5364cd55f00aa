"""The shards of a database that this process writes, each opened when it is first asked for.

A database has thousands of shards where each is a topic log. Opening one reads and syncs its last
segment, and takes memory, so those that nothing asks for are left alone.

Each one is opened by one thread, for which the others that ask for it wait. The lock of all is not
held meanwhile: a shard that takes long to recover keeps nothing else waiting.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Lock

from siltstone.errors import ClosedError
from siltstone.store.log.write.shard import LogShard


class Shards:
    """All shards by their numbers, from any thread."""

    def __init__(self, count: int, open_shard: Callable[[int], LogShard]) -> None:
        self._shards: list[LogShard | None] = [None] * count
        self._open_shard = open_shard
        self._lock = Lock()
        # Of each shard that is being opened, what tells that this has come to an end.
        self._opening: dict[int, Event] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """Return how many there are, opened or not."""
        return len(self._shards)

    def get(self, number: int) -> LogShard:
        """Return a shard, having opened it. Raises: what keeps it from being opened."""
        while (shard := self.find(number)) is None:
            with self._lock:
                self._check_open(number)
                others = self._opening.get(number)
                if others is None and self._shards[number] is None:
                    self._opening[number] = Event()
                    break
            if others is not None:
                others.wait()
        else:
            return shard
        try:
            # It reads the settings now: those who change them wait for it to be found.
            shard = self._open_shard(number)
            self._shards[number] = shard
            return shard
        finally:
            with self._lock:
                self._opening.pop(number).set()

    def wait_for_opening(self) -> None:
        """Return when each shard that is being opened is open, or has failed to be."""
        with self._lock:
            opening = list(self._opening.values())
        for each in opening:
            each.wait()

    def find(self, number: int) -> LogShard | None:
        """Return a shard that is open, None where it is not."""
        shards = self._shards
        return shards[number] if number < len(shards) else None

    def opened(self) -> list[LogShard]:
        """Return those that are open, by number."""
        return [shard for shard in self._shards if shard is not None]

    def open_first(self, count: int) -> None:
        """Open so many. Raises: what keeps one from being opened."""
        for number in range(min(count, len(self._shards))):
            self.get(number)

    def add(self, shard: LogShard) -> None:
        """Add a shard behind the others."""
        with self._lock:
            self._shards.append(shard)

    def close(self) -> list[LogShard]:
        """Open none any more and let go of all; return those that were open."""
        with self._lock:
            self._is_closed = True
        self.wait_for_opening()
        with self._lock:
            opened, self._shards = self.opened(), []
            # It refers to the database, which would stay, with its maps, until it is collected.
            self._open_shard = _refuse
            return opened

    def _check_open(self, number: int) -> None:
        if self._is_closed or number >= len(self._shards):
            raise ClosedError("the database is closed")


def _refuse(_number: int) -> LogShard:
    raise ClosedError("the database is closed")
