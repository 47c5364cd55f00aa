"""What became of a call, and the ticket by which its caller learns it."""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import TIMEOUT_MAX, Lock
from typing import Final, Self

from siltstone.errors import OutcomeUnknownError, SiltstoneError, UsageError


def seconds_to_wait(timeout: object) -> float | None:
    """Return for how long to wait, None for ever. Raises: UsageError."""
    if timeout is None:
        return None
    if not isinstance(timeout, int | float) or isinstance(timeout, bool):
        raise UsageError(f"timeout must be a number of seconds: type={type(timeout).__name__}")
    # Put so that what is not a number fails it too.
    if not timeout >= 0:
        raise UsageError(f"timeout must be 0 seconds or more: timeout={timeout}")
    return timeout if timeout < TIMEOUT_MAX else None


class RowPlaces:
    """Where the rows of one frame stand, by their arrival; worked out once for all its calls, when
    the first of them asks.
    """

    def __init__(self, times: Callable[[], memoryview]) -> None:
        self._times = times
        self._places: array[int] | None = None

    def between(self, start: int, stop: int) -> array[int]:
        """Return the places of rows by the order of their arrival."""
        if self._places is None:
            times = self._times()
            first = min(times)
            # Times rise by one a row in order of arrival.
            places = array("I", bytes(4 * len(times)))
            for place, time in enumerate(times):
                places[time - first] = place
            self._places = places
        return self._places[start:stop]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A stored call. Its serials are worked out only when somebody asks."""

    duplicate: bool
    count: int
    timestamp_us: int
    frame_serial: int
    frame_timestamp_us: int
    frame_places: RowPlaces | None

    def serials(self) -> list[int]:
        """Return the serial of each row, in the order of the call."""
        first = self.timestamp_us - self.frame_timestamp_us
        if self.frame_places is None:
            return list(range(self.frame_serial + first, self.frame_serial + first + self.count))
        places = self.frame_places.between(first, first + self.count)
        return [self.frame_serial + place for place in places]


class Ticket:
    """A promise of an outcome: resolved by the shards' threads, awaited by any."""

    def __init__(self, count: int, parts: int, *, waits: bool) -> None:
        self._count = count
        self._waits = waits
        self._waiting = parts
        self._outcomes: list[tuple[Outcome, Sequence[int] | None]] = []
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Ticket], None]] = []
        self._lock = Lock()
        self._pending = Lock()
        self._pending.acquire()
        if parts == 0:
            self._pending.release()

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._waiting == 0

    @property
    def error(self) -> Exception | None:
        """What went wrong, if something did."""
        return self._error

    @property
    def duplicate(self) -> bool:
        """Whether an idempotent producer had sent this before; then nothing was stored now."""
        return bool(self._outcomes) and all(outcome.duplicate for outcome, _ in self._outcomes)

    def wait(self, timeout: float | None = None) -> Self:
        """Wait for the outcome and return the ticket; at once where the caller chose durability
        none.

        Raises: OutcomeUnknownError when time runs out; the error that befell the call; UsageError.
        """
        seconds = seconds_to_wait(timeout)
        if self._waits:
            self._settle(seconds)
        return self

    def _settle(self, timeout: float | None = None) -> None:
        if not self._pending.acquire(timeout=-1 if timeout is None else timeout):
            raise OutcomeUnknownError(f"the outcome is not known after {timeout} seconds")
        self._pending.release()
        if self._error is not None:
            # Without the traces of earlier calls, or each would keep its caller's frames alive.
            raise self._error.with_traceback(None)

    def serials(self) -> list[int]:
        """Return the serial of each row, waiting for them; 0 for a duplicate's."""
        self._settle()
        serials = [0] * self._count
        for outcome, rows in self._outcomes:
            for index, serial in enumerate(outcome.serials()):
                serials[index if rows is None else rows[index]] = serial
        return serials

    def first_serial(self) -> int:
        """Return the serial of the first row of a call to one shard and stream, waiting for it.

        Raises: UsageError where the call had no row.
        """
        self._settle()
        if not self._outcomes:
            raise UsageError("the call did not append a row, so it does not have a first row")
        outcome = self._outcomes[0][0]
        return outcome.frame_serial + outcome.timestamp_us - outcome.frame_timestamp_us

    def timestamps(self) -> list[int]:
        """Return the timestamp_us of each row, waiting for them; 0 for a duplicate's."""
        self._settle()
        timestamps = [0] * self._count
        for outcome, rows in self._outcomes:
            for index in range(outcome.count):
                timestamps[index if rows is None else rows[index]] = outcome.timestamp_us + index
        return timestamps

    def on_done(self, callback: Callable[[Ticket], None]) -> None:
        """Call back when the outcome is known, from whatever thread makes it known; at once if it
        is.
        """
        with self._lock:
            if self._waiting:
                self._callbacks.append(callback)
                return
        callback(self)

    def resolve(self, outcome: Outcome | Exception, rows: Sequence[int] | None) -> None:
        """Tell the outcome of one part; rows says which rows of the call it held."""
        with self._lock:
            if isinstance(outcome, Exception):
                # A part that failed while another was stored leaves the whole in doubt.
                self._error = self._error or outcome
            else:
                self._outcomes.append((outcome, rows))
            self._waiting -= 1
            if self._waiting:
                return
            if self._error is not None and self._outcomes:
                self._error = _partly_stored(self._error)
            callbacks, self._callbacks = self._callbacks, []
            self._pending.release()
        for callback in callbacks:
            _call_back(callback, self)


def _partly_stored(error: Exception) -> SiltstoneError:
    unknown = OutcomeUnknownError(f"only the rows of some shards were stored: {error}")
    unknown.__cause__ = error
    return unknown


def _call_back(callback: Callable[[Ticket], None], ticket: Ticket) -> None:
    """Call back from a shard's thread, which must not die of a mistake that is not its own."""
    try:
        callback(ticket)
    except Exception:  # noqa: BLE001 - told as the thread would tell it, and the thread goes on
        threading.excepthook(
            threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
        )


# The outcome of an order to a writer, which stores no row.
ORDER_DONE: Final = Outcome(
    duplicate=False,
    count=0,
    timestamp_us=0,
    frame_serial=0,
    frame_timestamp_us=0,
    frame_places=None,
)
