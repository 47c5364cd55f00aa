"""The outcome of a call, and the ticket that reports it to the caller. Compiled."""

from __future__ import annotations

import sys
import threading
from array import array
from collections.abc import Callable, Sequence
from threading import TIMEOUT_MAX, Lock
from typing import Any, Final, Self

from siltstone.errors import OutcomeUnknownError, SiltstoneError, UsageError

# A longer time has no end: it is at least a month.
_SECONDS_MAX: Final = int(TIMEOUT_MAX)


def seconds_to_wait(timeout: object) -> float | None:
    """Return the seconds to wait; None means without limit. Raises: UsageError."""
    if timeout is None:
        return None
    # Each type by itself: compiled code compares two numbers of one type directly.
    if isinstance(timeout, int) and not isinstance(timeout, bool):
        if timeout >= 0:
            return float(timeout) if timeout < _SECONDS_MAX else None
    elif isinstance(timeout, float):
        # Not `timeout < 0.0`: NaN must be refused, too.
        if timeout >= 0.0:
            return timeout if timeout < TIMEOUT_MAX else None
    else:
        raise UsageError(f"timeout must be a number of seconds: type={type(timeout).__name__}")
    raise UsageError(f"timeout must be 0 seconds or more: timeout={timeout}")


class RowPlaces:
    """The positions of rows in their frame, by order of arrival.

    They are computed once for all calls of the frame, when the first caller asks.
    """

    def __init__(self, times: Callable[[], memoryview]) -> None:
        self._times = times
        self._places: array[int] | None = None

    @classmethod
    def of(cls, first: int, places: Sequence[int]) -> RowPlaces:
        """Return places that another site has computed, of the rows from `first` on."""
        known = cls(_no_times)
        known._places = array("I", [0] * first + list(places))
        return known

    def between(self, start: int, stop: int) -> array[int]:
        """Return the positions of the rows [start, stop), counted in order of arrival."""
        if self._places is None:
            times = self._times()
            first = min(times)
            # In order of arrival, each row has a time 1 µs after the row before it.
            places = array("I", bytes(4 * len(times)))
            for place, time in enumerate(times):
                places[time - first] = place
            self._places = places
        return self._places[start:stop]


def _no_times() -> memoryview:
    raise AssertionError("the places are known")


class Outcome:
    """The outcome of a stored call or a duplicate. Serials are computed only on request.

    It does not change. A frozen dataclass would take as long to create as a row takes to encode.
    """

    def __init__(
        self,
        *,
        duplicate: bool,
        count: int,
        timestamp_us: int,
        frame_serial: int,
        frame_timestamp_us: int,
        frame_places: RowPlaces | None,
    ) -> None:
        self.duplicate = duplicate
        self.count = count
        self.timestamp_us = timestamp_us
        self.frame_serial = frame_serial
        self.frame_timestamp_us = frame_timestamp_us
        self.frame_places = frame_places

    def serials(self) -> list[int]:
        """Return the serial of each row, in the order of the call."""
        first = self.timestamp_us - self.frame_timestamp_us
        if self.frame_places is None:
            return list(range(self.frame_serial + first, self.frame_serial + first + self.count))
        places = self.frame_places.between(first, first + self.count)
        return [self.frame_serial + place for place in places]


class Ticket:
    """The result of a call. Shard threads set the outcome; any thread can wait for it.

    A call to several shards has one part for each shard.
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
        # Tickets of one writer may share its mutex, so that the writer settles many at a time.
        self.mutex = Lock() if mutex is None else mutex
        # Created by the first thread that waits.
        self._waiter: Lock | None = None

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._missing == 0

    @property
    def error(self) -> Exception | None:
        """The error of the call; None if it has none, or if the outcome is not known yet."""
        return self._error

    @property
    def outcome(self) -> Outcome | None:
        """The outcome of the first part that was stored; None if none was."""
        outcomes = self._outcomes
        return outcomes[0][0] if outcomes else None

    @property
    def duplicate(self) -> bool:
        """Whether the call repeated a stored call of its producer; then it stored nothing."""
        outcomes = self._outcomes
        return outcomes is not None and all(outcome.duplicate for outcome, _ in outcomes)

    def wait(self, timeout: float | Any | None = None) -> Self:
        """Wait for the outcome and return the ticket. With durability `none`, return at once.

        Raises: OutcomeUnknownError when the timeout expires; the error of the call; UsageError.
        """
        # `Any`: otherwise compiled code raises TypeError for a wrong type, before this check.
        seconds = None if timeout is None else seconds_to_wait(timeout)
        if self._waits:
            self._await(seconds)
        return self

    def serials(self) -> list[int]:
        """Wait for the outcome; return the serial of each row, 0 for a row of a duplicate."""
        self._await(None)
        serials = [0] * self._count
        for outcome, rows in self._outcomes or ():
            for index, serial in enumerate(outcome.serials()):
                serials[index if rows is None else rows[index]] = serial
        return serials

    def first_serial(self) -> int:
        """Wait for the outcome; return the serial of the first row.

        Only for a call to one shard and one stream.

        Raises: UsageError if the call did not append a row.
        """
        self._await(None)
        if not self._outcomes:
            raise UsageError("the call did not append a row, so it does not have a first row")
        outcome = self._outcomes[0][0]
        return outcome.frame_serial + outcome.timestamp_us - outcome.frame_timestamp_us

    def timestamps(self) -> list[int]:
        """Wait for the outcome; return the timestamp_us of each row, 0 for a row of a duplicate."""
        self._await(None)
        timestamps = [0] * self._count
        for outcome, rows in self._outcomes or ():
            for index in range(outcome.count):
                timestamps[index if rows is None else rows[index]] = outcome.timestamp_us + index
        return timestamps

    def on_done(self, callback: Callable[[Self], None]) -> None:
        """Call `callback` when the outcome is known; at once if it is known already.

        If it is not, the thread that sets the outcome makes the call.
        """
        with self.mutex:
            if self._missing:
                if self._callbacks is None:
                    self._callbacks = []
                self._callbacks.append(callback)
                return
        callback(self)

    def resolve(self, outcome: Outcome | Exception | None, rows: Sequence[int] | None) -> None:
        """Set the outcome of one part; after the last part, notify.

        `rows` has the numbers of the part's rows in the call, None for all rows.
        """
        with self.mutex:
            is_last = self.settle(outcome, rows)
        if is_last:
            self.tell()

    def settle(self, outcome: Outcome | Exception | None, rows: Sequence[int] | None) -> bool:
        """Set the outcome of one part; return whether all parts have an outcome.

        None is the outcome of a part that stores no row. The caller holds the mutex. If this
        returns True, the caller must call `tell` after it released the mutex.
        """
        # Check None first: it is the outcome of every transaction, and a type check is slower.
        if outcome is None:
            pass
        elif isinstance(outcome, Exception):
            self._error = self._error or outcome
        else:
            if self._outcomes is None:
                self._outcomes = []
            self._outcomes.append((outcome, rows))
        if self._missing == 1 and self._error is not None and self._outcomes:
            # One part failed and another was stored: the outcome of the whole call is unknown.
            self._error = _partly_stored(self._error)
        # Last, because a thread that waits reads it without the mutex.
        self._missing -= 1
        return self._missing == 0

    def tell(self) -> None:
        """Wake the waiting threads and call the callbacks, after all parts are settled."""
        if self._waiter is not None:
            self._waiter.release()
        callbacks, self._callbacks = self._callbacks, None
        for callback in callbacks or ():
            _call_back(callback, self)

    def _await(self, timeout: float | None) -> None:
        if self._missing and not self._wait(timeout):
            raise OutcomeUnknownError(f"the outcome is not known after {timeout:g} seconds")
        error = self._error
        if error is not None:
            # Drop the traceback of earlier raises: it would keep the frames of their callers alive.
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
        # Release the lock again for the next waiting thread.
        waiter.release()
        return True


def _partly_stored(error: Exception) -> SiltstoneError:
    unknown = OutcomeUnknownError(f"only the rows of some shards were stored: {error}")
    unknown.__cause__ = error
    return unknown


def _call_back(callback: Callable[[Any], None], ticket: Ticket) -> None:
    """Call a callback on the thread of a shard, which must survive an error of the callback."""
    try:
        callback(ticket)
    except Exception:  # noqa: BLE001 - reported like an uncaught error; the thread continues
        threading.excepthook(
            threading.ExceptHookArgs((*sys.exc_info(), threading.current_thread()))
        )
