"""What became of a call, and the ticket by which its caller learns it. Compiled."""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import TIMEOUT_MAX, Lock
from typing import Any, Self

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
    """A promise of an outcome: settled by the shards' threads, awaited by any.

    A call to several shards has a part for each of them. Tickets of one writer may share its mutex,
    so that the writer settles many at a time. A lock to wait on is made when somebody waits.
    """

    def __init__(
        self, count: int, parts: int, *, waits: bool = True, mutex: Lock | None = None
    ) -> None:
        self._count = count
        self._waits = waits
        self._missing = parts
        self._outcomes: list[tuple[Outcome, Sequence[int] | None]] | None = None
        self._error: Exception | None = None
        self._callbacks: list[Callable[[Self], None]] | None = None
        self.mutex = Lock() if mutex is None else mutex
        self._waiter: Lock | None = None

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._missing == 0

    @property
    def error(self) -> Exception | None:
        """What went wrong, if something did."""
        return self._error

    @property
    def duplicate(self) -> bool:
        """Whether an idempotent producer had sent this before; then nothing was stored now."""
        outcomes = self._outcomes
        return outcomes is not None and all(outcome.duplicate for outcome, _ in outcomes)

    def wait(self, timeout: float | None = None) -> Self:
        """Wait for the outcome and return the ticket; at once where the caller chose durability
        none.

        Raises: OutcomeUnknownError when time runs out; the error that befell the call; UsageError.
        """
        seconds = None if timeout is None else seconds_to_wait(timeout)
        if self._waits:
            self._await(seconds)
        return self

    def serials(self) -> list[int]:
        """Return the serial of each row, waiting for them; 0 for a duplicate's."""
        self._await(None)
        serials = [0] * self._count
        for outcome, rows in self._outcomes or ():
            for index, serial in enumerate(outcome.serials()):
                serials[index if rows is None else rows[index]] = serial
        return serials

    def first_serial(self) -> int:
        """Return the serial of the first row of a call to one shard and stream, waiting for it.

        Raises: UsageError where the call had no row.
        """
        self._await(None)
        if not self._outcomes:
            raise UsageError("the call did not append a row, so it does not have a first row")
        outcome = self._outcomes[0][0]
        return outcome.frame_serial + outcome.timestamp_us - outcome.frame_timestamp_us

    def timestamps(self) -> list[int]:
        """Return the timestamp_us of each row, waiting for them; 0 for a duplicate's."""
        self._await(None)
        timestamps = [0] * self._count
        for outcome, rows in self._outcomes or ():
            for index in range(outcome.count):
                timestamps[index if rows is None else rows[index]] = outcome.timestamp_us + index
        return timestamps

    def on_done(self, callback: Callable[[Self], None]) -> None:
        """Call back when the outcome is known, from whatever thread makes it known; at once if it
        is.
        """
        with self.mutex:
            if self._missing:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback(self)

    def resolve(self, outcome: Outcome | Exception | None, rows: Sequence[int] | None) -> None:
        """Tell the outcome of one part; rows says which rows of the call it held."""
        with self.mutex:
            is_last = self.settle(outcome, rows)
        if is_last:
            self.tell()

    def settle(self, outcome: Outcome | Exception | None, rows: Sequence[int] | None) -> bool:
        """Set the outcome of one part, None for one that stores no row. The caller holds the mutex,
        and tells the outcome if this says that all parts have theirs.
        """
        if isinstance(outcome, Exception):
            self._error = self._error or outcome
        elif outcome is not None:
            if self._outcomes is None:
                self._outcomes = []
            self._outcomes.append((outcome, rows))
        self._missing -= 1
        if self._missing:
            return False
        if self._error is not None and self._outcomes:
            # A part that failed while another was stored leaves the whole in doubt.
            self._error = _partly_stored(self._error)
        return True

    def tell(self) -> None:
        """Let those know who wait, once all parts are settled."""
        if self._waiter is not None:
            self._waiter.release()
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            _call_back(callback, self)

    def _await(self, timeout: float | None) -> None:
        if self._missing and not self._wait(timeout):
            raise OutcomeUnknownError(f"the outcome is not known after {timeout} seconds")
        error = self._error
        if error is not None:
            # Without the traces of earlier calls, or each would keep its caller's frames alive.
            raise error.with_traceback(None)

    def _wait(self, timeout: float | None) -> bool:
        with self.mutex:
            if self._missing == 0:
                return True
            waiter = self._waiter
            if waiter is None:
                waiter = self._waiter = Lock()
                waiter.acquire()
        if not waiter.acquire(timeout=-1 if timeout is None else timeout):
            return False
        # Passed on to the next who waits.
        waiter.release()
        return True


def _partly_stored(error: Exception) -> SiltstoneError:
    unknown = OutcomeUnknownError(f"only the rows of some shards were stored: {error}")
    unknown.__cause__ = error
    return unknown


def _call_back(callback: Callable[[Any], None], ticket: Ticket) -> None:
    """Call back from a shard's thread, which must not die of a mistake that is not its own."""
    try:
        callback(ticket)
    except Exception:  # noqa: BLE001 - told as the thread would tell it, and the thread goes on
        threading.excepthook(
            threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
        )
