"""Logins of one user from one address: a few at a time are judged, the others wait.

So the failures of the first ones are known before the others are tried, however many come at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

Act = Callable[[], None]

# As many as there are threads that hash passwords.
LANES: Final = 4
WAITING_MAX: Final = 1000


class LoginQueues:
    """The lanes of every user and address that has a login under way."""

    def __init__(self, soon: Callable[[Act], None]) -> None:
        self._soon = soon
        self._under_way: dict[tuple[str, str], int] = {}
        self._waiting: dict[tuple[str, str], deque[Act]] = {}

    def __len__(self) -> int:
        """Return how many logins are under way."""
        return sum(self._under_way.values())

    def begin(self, key: tuple[str, str], act: Act) -> bool:
        """Let a login be judged, now or when a lane is free; it must see to it that `end` is
        called, once. False: too many wait.
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
        """Give a lane to the next one."""
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
