"""Turns by client id: they serialize the changes to the durable state of one session.

A turn begins at once if its client id has none, otherwise when all earlier turns have ended.

Invariant: a turn that has begun ends, once. Everything in a turn is a step. A step that raises ends
the turn. A callback that arrives after the end does nothing. This module cannot detect a callback
that never arrives: `look` logs turns that take too long, and what they wait for.
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
# A turn that lasts this long is logged, and again whenever its duration has doubled.
SLOW_SECONDS: Final = 5.0
# One call of `look` logs at most this many turns, because a slow disk may delay all of them.
_TOLD_MAX: Final = 10


class Turn:
    """A turn of a client id: its action, and the callback for its end, whatever the cause."""

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
        # Reports the end to `Turns`; set only between the begin and the end of the turn.
        self._end: Callable[[Turn], None] | None = None
        self.since = 0.0
        self.told_at = 0.0
        # What the turn waits for, for log and error messages.
        self.waits_for = "its turn"
        self.has_acted = False

    def begin(self, now: float, end: Callable[[Turn], None] | None) -> None:
        """Begin the turn; with `end` None, return to the queue before it has acted."""
        self._end = end
        self.since = now
        self.told_at = now + SLOW_SECONDS

    def act(self) -> None:
        """Run the action of the turn."""
        self.has_acted = True
        contain(self._act, self.end)

    def step(self, waits_for: str, act: Callable[P, None]) -> Callable[P, None]:
        """Return a callback for the next step, and set what the turn waits for until then.

        The callback ends the turn if `act` raises, and does nothing after the end of the turn.
        """
        self.waits_for = waits_for

        def do(*args: P.args, **kwargs: P.kwargs) -> None:
            if self._end is not None:
                contain(partial(act, *args, **kwargs), self.end)

        return do

    def end(self) -> None:
        """End the turn, so that the next one begins; only the first call counts."""
        end, self._end = self._end, None
        if end is None:
            return
        over, self._over, self._act = self._over, None, _nothing
        if over is not None:
            contain(partial(over, self))
        end(self)


def _nothing() -> None:
    """Do nothing. It replaces the action of an ended turn, which must keep no references."""


class Turns:
    """The turns of all client ids."""

    def __init__(self, soon: Callable[[Act], None], now: Callable[[], float]) -> None:
        self._soon = soon
        self._now = now
        # The turns that have begun, oldest first, and the queues of turns that wait for them.
        self._begun: dict[str, Turn] = {}
        self._lines: dict[str, deque[Turn]] = {}
        # The number of ended turns since the start.
        self.count = 0

    def __len__(self) -> int:
        """Return the number of client ids that have a turn."""
        return len(self._begun)

    def is_free(self, client_id: str) -> bool:
        """Return whether a turn would begin at once."""
        return client_id not in self._begun

    def holder(self, client_id: str) -> Turn | None:
        """Return the current turn of a client id; others wait for it."""
        return self._begun.get(client_id)

    def begun(self) -> list[Turn]:
        """Return the turns that have begun and not ended."""
        return list(self._begun.values())

    def begin(self, turn: Turn) -> None:
        """Begin a turn, now or after the earlier ones; the caller must end it."""
        if turn.client_id in self._begun:
            self._lines.setdefault(turn.client_id, deque()).append(turn)
        else:
            self._let(turn)
            turn.act()

    def begin_next(self, turn: Turn) -> None:
        """Begin a turn before all others that have not acted yet."""
        holder = self._begun.get(turn.client_id)
        if holder is None:
            self.begin(turn)
            return
        line = self._lines.setdefault(turn.client_id, deque())
        if holder.has_acted:
            line.appendleft(turn)
        else:
            # The holder has not acted yet. The session of a connection that just ended must be
            # saved first.
            holder.begin(0.0, None)
            line.appendleft(holder)
            self._let(turn)

    def withdraw(self, turn: Turn) -> None:
        """Remove a turn from its queue; a turn that has begun is not changed."""
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
        # The turn begins now, so that no other turn can begin before it acts.
        self._let(following)
        self._soon(partial(self._act, client_id))

    def _act(self, client_id: str) -> None:
        holder = self._begun.get(client_id)
        if holder is not None and not holder.has_acted:
            holder.act()

    def look(self) -> None:
        """Log the turns that take too long. Costs nothing if there are no turns."""
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
