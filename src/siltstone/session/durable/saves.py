"""The saves of a durable session: one at a time, with callbacks when they are durable.

A caller that requests a save is called back when all earlier changes are durable. Requests that
arrive during a save become part of the next one. A save that fails with RetryError is tried again.
After any other failure no caller is called back, and the owner is notified.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from siltstone.errors import OutcomeUnknownError, RetryError, SiltstoneError
from siltstone.guard import contain, contain_with

Act = Callable[[], None]
# The delay before a failed save is tried again.
_AGAIN_SECONDS: Final = 0.5
_LAST_TRIES: Final = 20


class SaveTicket(Protocol):
    """The outcome of a save."""

    @property
    def error(self) -> Exception | None:
        """The error of the save; None if it has none."""

    def on_done(self, callback: Callable[[SaveTicket], None]) -> None:
        """Call `callback` when the outcome is known; it may run in any thread."""


def _nothing_changed() -> SaveTicket | None:
    """Submit nothing."""
    return None


def _unheard(_: Exception) -> None:
    """Ignore a failure: there is no owner any more."""


class SaveScheduler:
    """The saves of one session.

    `submit` submits the changes and returns the ticket, or None if there are none. `hop` runs a
    function in the owner's thread. `later` runs a function after a number of seconds.
    """

    def __init__(
        self,
        submit: Callable[[], SaveTicket | None],
        *,
        hop: Callable[[Act], None],
        later: Callable[[float, Act], object],
        failed: Callable[[Exception], None],
    ) -> None:
        self._submit = submit
        self._hop = hop
        self._later = later
        self._failed = failed
        self._is_saving = False
        self._is_wanted = False
        self._waiting: list[Act] = []
        self._last: Act | None = None
        self._tries = 0

    def save(self, then: Act | None = None) -> None:
        """Save all changes up to now; call `then` when they are durable."""
        if then is not None:
            self._waiting.append(then)
        self._is_wanted = True
        if not self._is_saving:
            self._begin()

    def close(self, then: Act) -> None:
        """Save for the last time; call `then` when the changes are durable, or cannot be saved."""
        self._last = then
        self.save()

    def end(self) -> None:
        """Drop the references to the owner, to break the cycle: there is nothing more to save."""
        self._submit = _nothing_changed
        self._failed = _unheard

    def _begin(self) -> None:
        self._is_saving = True
        self._is_wanted = False
        waiting, self._waiting = self._waiting, []
        contain_with(self._hand_over, waiting, partial(self._mistaken, waiting))

    def _mistaken(self, waiting: list[Act]) -> None:
        self._end(waiting, OutcomeUnknownError("internal error: see the log of the broker"))

    def _hand_over(self, waiting: list[Act]) -> None:
        try:
            ticket = self._submit()
        except SiltstoneError as exc:
            self._end(waiting, exc)
            return
        if ticket is None:
            self._end(waiting, None)
        else:
            ticket.on_done(lambda done: self._hop(partial(self._end, waiting, done.error)))

    def _end(self, waiting: list[Act], error: Exception | None) -> None:
        if isinstance(error, RetryError) and self._may_retry():
            self._waiting = waiting + self._waiting
            self._later(_AGAIN_SECONDS, self._begin)
            return
        self._is_saving = False
        if error is None:
            for act in waiting:
                contain(act)
        else:
            self._waiting = []
            self._is_wanted = False
            contain(partial(self._failed, error))
        if self._is_wanted and not self._is_saving:
            self._begin()
        elif self._last is not None and not self._is_saving:
            last, self._last = self._last, None
            contain(last)

    def _may_retry(self) -> bool:
        """Tell whether to try again: always, except that the last save has a limit."""
        self._tries += self._last is not None
        return self._tries < _LAST_TRIES
