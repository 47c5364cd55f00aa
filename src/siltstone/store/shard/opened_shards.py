"""The shards of a database that this process writes, each opened when it is first used.

A database of topic logs may have thousands of shards. Opening a shard reads and syncs its last
segment and needs memory, so unused shards stay closed.

One thread opens a shard, and the other threads that need it wait. The common lock is not held
meanwhile: a shard with a long recovery delays only its own users.
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
        # An event for each shard that is being opened. It is set when the opening ends.
        self._opening: dict[int, Event] = {}
        self._is_closed = False

    def __len__(self) -> int:
        """Return the number of shards, open or not."""
        return len(self._shards)

    def get(self, number: int) -> LogShard:
        """Return a shard; open it if necessary. Raises: the error that prevents opening it."""
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
            # This reads the settings now. `configure` waits until the shard can be found.
            shard = self._open_shard(number)
            self._shards[number] = shard
            return shard
        finally:
            with self._lock:
                self._opening.pop(number).set()

    def wait_for_opening(self) -> None:
        """Wait until each shard that is being opened is open or has failed."""
        with self._lock:
            opening = list(self._opening.values())
        for each in opening:
            each.wait()

    def find(self, number: int) -> LogShard | None:
        """Return a shard if it is open, else None."""
        shards = self._shards
        return shards[number] if number < len(shards) else None

    def opened(self) -> list[LogShard]:
        """Return the open shards, by number."""
        return [shard for shard in self._shards if shard is not None]

    def open_first(self, count: int) -> None:
        """Open the first `count` shards. Raises: the error that prevents opening one."""
        for number in range(min(count, len(self._shards))):
            self.get(number)

    def add(self, shard: LogShard) -> None:
        """Add a shard after the others."""
        with self._lock:
            self._shards.append(shard)

    def close(self) -> list[LogShard]:
        """Refuse to open further shards, and remove all; return those that were open."""
        with self._lock:
            self._is_closed = True
        self.wait_for_opening()
        with self._lock:
            opened, self._shards = self.opened(), []
            # The function refers to the database, which would keep its maps until it is collected.
            self._open_shard = _refuse
            return opened

    def _check_open(self, number: int) -> None:
        if self._is_closed or number >= len(self._shards):
            raise ClosedError("the database is closed")


def _refuse(_number: int) -> LogShard:
    raise ClosedError("the database is closed")
