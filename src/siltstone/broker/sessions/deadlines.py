"""Deadlines of disconnected sessions and of groups: delayed wills, and expiry.

The archive has them in order of time, so they survive the broker. It is read every second. No
deadline is handled early or lost: a will is deleted only after it was stored, and a session counts
as deleted when the deletion is durable. Deadlines that passed while the broker was down are handled
after its start.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from siltstone.broker.sessions.due_wills import DueWills
from siltstone.broker.sessions.durables import Durables, Found
from siltstone.broker.sessions.groups import StoredShareGroups
from siltstone.broker.sessions.timers import Timers
from siltstone.broker.sessions.turns import Turn
from siltstone.clock import Clock
from siltstone.errors import SiltstoneError
from siltstone.guard import contain
from siltstone.session.archive.owned.session import OwnedSession
from siltstone.session.archive.store import Due

Act = Callable[[], None]

_LOOK_SECONDS: Final = 1.0
# Deadlines that are handled between two reads.
_MANY: Final = 1000


class DeadlineShell(Protocol):
    """The functions of the loop that are needed."""

    def now(self) -> float:
        """Return the time of the loop."""

    def read_in_thread(self, work: Act, then: Act) -> None:
        """Run `work`, which waits for the disk, in a thread, then `then` on the loop."""


class Deadlines:
    """Handles the deadlines as long as the broker runs."""

    def __init__(
        self,
        durables: Durables,
        groups: StoredShareGroups,
        *,
        shell: DeadlineShell,
        timers: Timers,
        clock: Clock,
        wills: DueWills,
        ended: Callable[[str], None],
    ) -> None:
        self._durables = durables
        self._groups = groups
        self._shell = shell
        self._timers = timers
        self._clock = clock
        self._wills = wills
        self._ended = ended
        self._dealing: set[tuple[str, str]] = set()
        self._again()

    def _again(self) -> None:
        self._timers.at(self._shell.now() + _LOOK_SECONDS, self._look)

    def _look(self) -> None:
        found: list[Due] = []

        def work() -> None:
            try:
                found.extend(self._durables.archive.due(limit=_MANY))
            except SiltstoneError as exc:
                self._durables.tell("", exc)

        def then() -> None:
            for due in found:
                contain(partial(self._begin, due))
            self._again()

        self._shell.read_in_thread(partial(contain, work), then)

    def _begin(self, due: Due) -> None:
        key = (due.kind, due.client_id)
        if key in self._dealing:
            return
        self._dealing.add(key)
        turn = Turn(due.client_id, lambda: self._take(turn, due), partial(self._over, due))
        self._durables.turns.begin(turn)

    def _over(self, due: Due, _turn: Turn) -> None:
        self._dealing.discard((due.kind, due.client_id))

    def _take(self, turn: Turn, due: Due) -> None:
        if due.kind == "group":
            self._groups.expire(due.client_id, turn)
        elif due.client_id in self._durables.sessions:
            # The client connected again before the deadline.
            turn.end()
        else:
            step = turn.step("its session to be loaded", partial(self._taken, turn))
            self._durables.find(due.client_id, step)

    def _taken(self, turn: Turn, owned: Found) -> None:
        if owned is None or isinstance(owned, SiltstoneError):
            if owned is not None:
                self._durables.tell(turn.client_id, owned)
            turn.end()
            return
        will = self._durables.due_will(owned.bare)
        is_over = self._durables.is_expired(owned.bare)
        if will is not None:
            step = turn.step("its will to be stored", partial(self._published, turn, owned))
            self._wills.publish(owned, will, step)
        elif is_over:
            self._drop(turn, owned)
        else:
            turn.end()

    def _published(self, turn: Turn, owned: OwnedSession, error: Exception | None) -> None:
        if error is not None:
            # The will stays due.
            self._durables.tell(turn.client_id, error)
            turn.end()
        elif self._durables.is_expired(owned.bare):
            self._drop(turn, owned)
        else:
            known = partial(self._wills.forget, owned)
            owned.put_meta(will=None)
            step = turn.step("its session to be saved", turn.end)
            self._durables.carry_out(owned.client_id, owned.save_later, step, known)

    def _drop(self, turn: Turn, owned: OwnedSession) -> None:
        self._ended(turn.client_id)
        self._durables.drop_away(owned, turn.step("its session to be deleted", turn.end))
