"""Turns by client id: what changes the durable state of one session happens one after the other.

A turn begins at once when nobody has one, else when those before it have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from siltstone.guard import contain

Act = Callable[[], None]


class Turns:
    """The turns of all client ids that have any."""

    def __init__(self, soon: Callable[[Act], None]) -> None:
        self._soon = soon
        self._waiting: dict[str, deque[Act]] = {}

    def __len__(self) -> int:
        """Return how many client ids have a turn."""
        return len(self._waiting)

    def is_free(self, client_id: str) -> bool:
        """Tell whether a turn would begin at once."""
        return client_id not in self._waiting

    def begin(self, client_id: str, act: Act) -> None:
        """Let something have its turn; it must see to it that `end` is called, once."""
        waiting = self._waiting.get(client_id)
        if waiting is not None:
            waiting.append(act)
            return
        self._waiting[client_id] = deque()
        contain(act)

    def begin_next(self, client_id: str, act: Act) -> None:
        """Let something have its turn before all others that wait."""
        waiting = self._waiting.get(client_id)
        if waiting is None:
            self.begin(client_id, act)
        else:
            waiting.appendleft(act)

    def end(self, client_id: str) -> None:
        """Let the next one have its turn."""
        waiting = self._waiting[client_id]
        if waiting:
            self._soon(waiting.popleft())
        else:
            del self._waiting[client_id]
