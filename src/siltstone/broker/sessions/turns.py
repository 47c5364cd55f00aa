"""Turns by client id: what changes the durable state of one session happens one after the other.

A turn begins at once when nobody has one, else when those before it have ended.

Invariant: a turn that has begun ends, once. Whatever is done in it is a step, and a step that
raises ends the turn; a callback that comes after the end does nothing. A callback that never comes
cannot be seen here: `look` tells of turns that last too long, and what they wait for.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, ParamSpec

from siltstone.guard import contain
from siltstone.logs import log

Act = Callable[[], None]
P = ParamSpec("P")

_LOG: Final = logging.getLogger("siltstone.sessions")
# A turn that lasts so long is told of, and again whenever it has lasted twice as long.
SLOW_SECONDS: Final = 5.0
# One look tells of so many, should a disk hold up all of them.
_TOLD_MAX: Final = 10


class Turn:
    """A turn of a client id: what is done in it, and what hears of its end, however that came
    about.
    """

    __slots__ = (
        "_act",
        "_end",
        "_over",
        "client_id",
        "has_acted",
        "since",
        "told_at",
        "waits_for",
    )

    def __init__(
        self, client_id: str, act: Act, over: Callable[[Turn], None] | None = None
    ) -> None:
        self.client_id = client_id
        self._act = act
        self._over = over
        # Tells the line of the end; there only from the beginning to the end of the turn.
        self._end: Callable[[Turn], None] | None = None
        self.since = 0.0
        self.told_at = 0.0
        # What it waits for since it has begun.
        self.waits_for = "its turn"
        self.has_acted = False

    def begin(self, now: float, end: Callable[[Turn], None] | None) -> None:
        """Have the turn from now on, and act soon; or give it back before that."""
        self._end = end
        self.since = now
        self.told_at = now + SLOW_SECONDS

    def act(self) -> None:
        """Do what the turn is for."""
        self.has_acted = True
        contain(self._act, self.end)

    def step(self, waits_for: str, act: Callable[P, None]) -> Callable[P, None]:
        """Return the callback of what the turn waits for from now on. It ends the turn if it
        raises, and does nothing behind its end.
        """
        self.waits_for = waits_for

        def do(*args: P.args, **kwargs: P.kwargs) -> None:
            if self._end is not None:
                contain(partial(act, *args, **kwargs), self.end)

        return do

    def end(self) -> None:
        """Let the next one have its turn; only the first call counts."""
        end, self._end = self._end, None
        if end is None:
            return
        over, self._over, self._act = self._over, None, _nothing
        if over is not None:
            contain(partial(over, self))
        end(self)


def _nothing() -> None:
    """Do nothing: a turn that is over must not hold on to what it was for."""


class Turns:
    """The turns of all client ids that have any."""

    def __init__(self, soon: Callable[[Act], None], now: Callable[[], float]) -> None:
        self._soon = soon
        self._now = now
        # Those that have begun, the first one first, and the lines behind them.
        self._begun: dict[str, Turn] = {}
        self._lines: dict[str, deque[Turn]] = {}
        # How many have ended, ever.
        self.count = 0

    def __len__(self) -> int:
        """Return how many client ids have a turn."""
        return len(self._begun)

    def is_free(self, client_id: str) -> bool:
        """Tell whether a turn would begin at once."""
        return client_id not in self._begun

    def holder(self, client_id: str) -> Turn | None:
        """Return the turn that others of this client id wait for."""
        return self._begun.get(client_id)

    def begun(self) -> list[Turn]:
        """Return the turns that have begun and not ended."""
        return list(self._begun.values())

    def begin(self, turn: Turn) -> None:
        """Let something have its turn, which it must end."""
        if turn.client_id in self._begun:
            self._lines.setdefault(turn.client_id, deque()).append(turn)
        else:
            self._let(turn)
            turn.act()

    def begin_next(self, turn: Turn) -> None:
        """Let something have its turn before all others that have done nothing yet."""
        holder = self._begun.get(turn.client_id)
        if holder is None:
            self.begin(turn)
            return
        line = self._lines.setdefault(turn.client_id, deque())
        if holder.has_acted:
            line.appendleft(turn)
        else:
            # It is about to act. A connection that has ended just now must be saved before.
            holder.begin(0.0, None)
            line.appendleft(holder)
            self._let(turn)

    def withdraw(self, turn: Turn) -> None:
        """Take a turn out of its line; one that has begun is left alone."""
        line = self._lines.get(turn.client_id, deque())
        if turn in line:
            line.remove(turn)
            if not line:
                del self._lines[turn.client_id]

    def _let(self, turn: Turn) -> None:
        self._begun[turn.client_id] = turn
        turn.begin(self._now(), self._ended)

    def _ended(self, turn: Turn) -> None:
        self.count += 1
        client_id = turn.client_id
        del self._begun[client_id]
        line = self._lines.get(client_id)
        if line is None:
            return
        following = line.popleft()
        if not line:
            del self._lines[client_id]
        # It is its turn from now on, so that nobody pushes in.
        self._let(following)
        self._soon(partial(self._act, client_id))

    def _act(self, client_id: str) -> None:
        holder = self._begun.get(client_id)
        if holder is not None and not holder.has_acted:
            holder.act()

    def look(self) -> None:
        """Tell of the turns that last too long. Costs nothing where there are none."""
        now = self._now()
        untold = 0
        for turn in self._begun.values():
            lasted = now - turn.since
            if lasted < SLOW_SECONDS or now < turn.told_at:
                continue
            turn.told_at = now + lasted
            if untold < _TOLD_MAX:
                line = self._lines.get(turn.client_id, ())
                log(
                    _LOG,
                    logging.WARNING,
                    "session_busy",
                    client_id=turn.client_id,
                    waits_for=turn.waits_for,
                    seconds=round(lasted, 1),
                    waiting=len(line),
                )
            untold += 1
        if untold > _TOLD_MAX:
            log(_LOG, logging.WARNING, "more_sessions_busy", sessions=untold - _TOLD_MAX)
