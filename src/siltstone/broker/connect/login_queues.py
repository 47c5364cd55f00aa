"""Queues of logins: for one user and address, a few are checked at a time, the others wait.

Failures of the first logins are therefore known before the others are tried, however many arrive at
the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

Act = Callable[[], None]

# The number of threads that hash passwords.
LANES: Final = 4
WAITING_MAX: Final = 1000


class LoginQueues:
    """The logins under way and waiting, for each user and address."""

    def __init__(self, soon: Callable[[Act], None]) -> None:
        self._soon = soon
        self._under_way: dict[tuple[str, str], int] = {}
        self._waiting: dict[tuple[str, str], deque[Act]] = {}

    def __len__(self) -> int:
        """Return how many logins are under way."""
        return sum(self._under_way.values())

    def begin(self, key: tuple[str, str], act: Act) -> bool:
        """Call `act` now or when a lane is free; return False if too many logins wait.

        The login must call `end` exactly once after `act` was called.
        """
        under_way = self._under_way.get(key, 0)
        if under_way < LANES:
            self._under_way[key] = under_way + 1
            act()
            return True
        waiting = self._waiting.setdefault(key, deque())
        if len(waiting) >= WAITING_MAX:
            return False
        waiting.append(act)
        return True

    def end(self, key: tuple[str, str]) -> None:
        """Give the lane to the next waiting login."""
        waiting = self._waiting.get(key)
        if waiting:
            act = waiting.popleft()
            if not waiting:
                del self._waiting[key]
            self._soon(act)
        elif self._under_way[key] == 1:
            del self._under_way[key]
        else:
            self._under_way[key] -= 1
