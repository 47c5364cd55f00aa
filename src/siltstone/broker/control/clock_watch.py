"""The alarm for a wall clock that jumped, with remedies for the operator.

clock.py decides whether the clock is trusted. This module raises the alarm, answers the requests of
`siltstone clock`, and corrects stored times when the time of the broker goes back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from siltstone.broker.broker import Broker
from siltstone.broker.control.alarms import CLOCK, QUIET, Alarms
from siltstone.broker.retained.management import STEP, until_stored
from siltstone.clock import Clock, ClockState, GuardedClock
from siltstone.errors import ClosedError, SiltstoneError, UsageError
from siltstone.logs import log
from siltstone.manage.sessions import NameClock
from siltstone.manage.verb import Nothing
from siltstone.store.directory import Store
from siltstone.units import SECOND_US

AHEAD: Final = (
    "the system clock jumped forward: the broker continues with its own time until the clock is "
    "corrected or clock_confirm has passed; nothing is dropped or expires because of the jump; if "
    "the clock is correct, run: siltstone clock confirm"
)
BACK: Final = (
    "the system clock was set back: the broker continues with its own time until the clock has "
    "caught up; if the clock is correct, run: siltstone clock confirm"
)
ABSENT: Final = (
    "the machine was off, or its clock is wrong: the time since the store was last used does not "
    "count for retention and expiry until the broker has run for clock_confirm; if the clock is "
    "correct, run: siltstone clock confirm"
)
STAMPED: Final = (
    "stored rows have timestamps in the future, and new rows follow them; to use the time of the "
    "clock again, run: siltstone clock reset DATABASE"
)
_TEXTS: Final = {"ok": QUIET, "ahead": AHEAD, "back": BACK, "absent": ABSENT, "stamped": STAMPED}
_HOLDS: Final = {
    "ahead": ("timestamps", "retention", "expiry"),
    "back": ("timestamps", "retention", "expiry"),
    "absent": ("retention", "expiry of sessions, wills and retained messages from before"),
}
_NOTE_SECONDS: Final = 60.0
_LOG: Final = logging.getLogger("siltstone.clock")


def clock_word(state: ClockState, newest_us: int | None, jump_us: int) -> str:
    """Return the state of the clock as one word: ahead, back, absent, stamped, or ok."""
    if state.ahead_us:
        return "ahead" if state.ahead_us > 0 else "back"
    if state.held_us:
        return "absent"
    return "stamped" if newest_us is not None and newest_us - state.now_us > jump_us else "ok"


def clock_document(
    state: ClockState, newest_us: Mapping[str, int], jump_us: int
) -> dict[str, object]:
    """Return the values that `siltstone clock status` shows."""
    word = clock_word(state, max(newest_us.values(), default=None), jump_us)
    return {
        "state": word,
        "text": _TEXTS[word],
        "store_time_us": state.now_us,
        "wall_clock_us": state.wall_us,
        "ahead_seconds": state.ahead_us / SECOND_US,
        "absent_seconds": state.held_us / SECOND_US,
        "held": state.is_held,
        "held_for_seconds": state.since_seconds,
        "believed_in_seconds": state.left_seconds,
        "holds": list(_HOLDS.get(word, ())),
        "newest_row_us": dict(newest_us),
    }


def watch_clock(
    alarms: Alarms, clock: GuardedClock, newest_us: Mapping[str, int] | None = None
) -> None:
    """Set the alarm while the wall clock is not trusted, or rows have times ahead of it."""
    state = clock.state()
    newest = newest_us or {}
    word = clock_word(state, max(newest.values(), default=None), clock.jump_us)
    facts: dict[str, object] = {"ahead_seconds": round(state.ahead_us / SECOND_US)}
    if word == "absent":
        facts = {"absent_seconds": round(state.held_us / SECOND_US)}
    elif word == "stamped":
        facts = {"databases": ",".join(_ahead(newest, state.now_us + clock.jump_us))}
    # A machine that was switched off is not an error.
    level = logging.WARNING if word == "absent" else logging.ERROR
    alarms.set(CLOCK, _TEXTS[word], level, **facts)


def _ahead(newest_us: Mapping[str, int], limit_us: int) -> list[str]:
    return [name for name, time_us in newest_us.items() if time_us > limit_us]


class ClockWatch:
    """Checks the clock of a broker every second, and executes requests about it, on the loop."""

    def __init__(self, store: Store, broker: Broker, clock: Clock) -> None:
        self._store = store
        self._broker = broker
        self._clock = clock
        self._noted_at = clock.monotonic()
        self._noting = asyncio.Lock()
        self._returning: asyncio.Task[None] | None = None
        # Corrects sessions and groups whose times are in the future (`Control.come_back`). None
        # without durable sessions.
        self.come_back: Callable[[], Awaitable[int]] | None = None
        self.deeds: Mapping[str, Callable[[Any], Awaitable[object]]] = {
            "clock-status": self.status,
            "clock-confirm": self.confirm,
            "clock-reset": self.reset,
        }

    async def look(self) -> None:
        """Update the alarm, and save the time of the clock once a minute."""
        clock = self._clock
        if not isinstance(clock, GuardedClock):
            return
        # A store that is being closed reports no times, and the alarm stays unchanged.
        with suppress(ClosedError):
            watch_clock(self._broker.alarms, clock, self._store.newest_us())
        if clock.went_back and (self._returning is None or self._returning.done()):
            self._returning = asyncio.get_running_loop().create_task(self._return(clock))
        if clock.monotonic() - self._noted_at >= _NOTE_SECONDS:
            await self._note()

    def close(self) -> None:
        """Stop the correction of stored times, if it is running."""
        if self._returning is not None:
            self._returning.cancel()

    async def status(self, _: Nothing) -> dict[str, object]:
        """Return the state of the clock."""
        clock = self._guarded()
        return clock_document(clock.state(), self._store.newest_us(), clock.jump_us)

    async def confirm(self, request: Nothing) -> dict[str, object]:
        """Trust the clock of the machine from now on; return the new state."""
        clock = self._guarded()
        before = clock.state()
        clock.confirm()
        log(
            _LOG,
            logging.WARNING,
            "clock_confirmed",
            ahead_seconds=round(before.ahead_us / SECOND_US),
            absent_seconds=round(before.held_us / SECOND_US),
        )
        await self.look()
        await self._note()
        return await self.status(request)

    async def reset(self, request: NameClock) -> int:
        """Use the time of the clock for new rows of a database; return the number of shards."""
        clock = self._guarded()
        name = request.database
        refuse_held(clock.state())
        shards: int = await self._in_thread(lambda: self._store.database(name).restart_times())
        log(_LOG, logging.WARNING, "times_restarted", database=name, shards=shards)
        await self.look()
        return shards

    async def _return(self, clock: GuardedClock) -> None:
        """Correct stored times that are in the future; after a failure it is tried again."""
        try:
            away = await self.come_back() if self.come_back is not None else 0
            retained = await self._come_again()
        except SiltstoneError as exc:
            log(_LOG, logging.WARNING, "clock_set_back_not_corrected", error=str(exc))
            return
        clock.settle()
        log(_LOG, logging.WARNING, "clock_set_back", sessions=away, retained=retained)
        await self._note()

    async def _come_again(self) -> int:
        retained = self._broker.retained
        topics = retained.after(self._clock.now_us())
        for first in range(0, len(topics), STEP):
            ticket = retained.come_again(topics[first : first + STEP])
            await until_stored(self._broker, ticket)
        return len(topics)

    async def _note(self) -> None:
        self._noted_at = self._clock.monotonic()
        try:
            # A confirmation and the correction after it may both end here at the same time.
            async with self._noting:
                await self._in_thread(self._store.note_time)
        except SiltstoneError as exc:
            log(_LOG, logging.WARNING, "clock_save_failed", error=str(exc))

    def _guarded(self) -> GuardedClock:
        if not isinstance(self._clock, GuardedClock):
            raise UsageError("this broker always trusts its clock: there is nothing to confirm")
        return self._clock

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, work)


def refuse_held(state: ClockState) -> None:
    """Check that the clock is trusted, so that rows can use its time. Raises: UsageError."""
    if state.is_held:
        raise UsageError(
            "the clock is not trusted yet, so new rows cannot use its time; "
            "if the clock is correct, run 'siltstone clock confirm' first"
        )
