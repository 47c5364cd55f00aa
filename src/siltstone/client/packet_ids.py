"""The packet ids that a client has in use (MQTT 2.2.1).

Invariant: an id is given out once until it is freed. Ids are given in turn, so an id is not reused
at once, and a late answer to its last use finds no message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from siltstone.errors import OverloadedError

PACKET_ID_MAX: Final = 65_535


class PacketIds:
    """The packet ids of one session, starting at `first`."""

    def __init__(self, first: int = 1) -> None:
        self._next = first
        self._used: set[int] = set()

    def __len__(self) -> int:
        return len(self._used)

    def take(self, count: int) -> list[int]:
        """Return ids that are not in use. Raises: OverloadedError if there are too few."""
        if count > PACKET_ID_MAX - len(self._used):
            raise OverloadedError(f"too many packet ids are in use: in_use={len(self._used)}")
        run = range(self._next, self._next + count)
        if run.stop > PACKET_ID_MAX or not self._used.isdisjoint(run):
            return self._search(count)
        self._used.update(run)
        self._next = run.stop
        return list(run)

    def _search(self, count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            if self._next not in self._used:
                found.append(self._next)
            self._next = self._next % PACKET_ID_MAX + 1
        self._used.update(found)
        return found

    def free(self, ids: Iterable[int]) -> None:
        """Make ids available again."""
        self._used.difference_update(ids)
