"""The writer of a shard: a queue, and one thread that commits calls and runs orders. Compiled.

A call is data to store. The thread collects calls and decides when to flush them. An order is a
function that the thread runs between two commits.

Invariants:
- calls are committed in the order in which they were submitted; an order runs after all calls that
  were submitted before it;
- every call and every order gets an outcome, even if an internal error ends the thread;
- the bytes of the waiting calls are bounded: a new call waits for room, or is refused;
- one thread at a time uses the layout.

One mutex protects the queue. The layout, which stores the calls, belongs to the thread. While the
thread sleeps and nothing waits, a caller may borrow the layout and commit one call itself
(`commit_here`). That saves two changes of threads, which cost more than the commit of a few rows.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from threading import Condition, Lock, Thread
from typing import Final, Generic, Protocol, TypeVar

from mypy_extensions import mypyc_attr

from siltstone.clock import Clock
from siltstone.errors import ClosedError, OverloadedError, SiltstoneError
from siltstone.logs import log
from siltstone.store.writer.ticket import Outcome, Ticket

_LOG: Final = logging.getLogger("siltstone.store")
# If commits on the threads of callers take longer than this on average, the thread of the shard
# does all commits for a while. The last commit counts as an eighth of the average.
_SLOW_SECONDS: Final = 0.001
_LAST_WEIGHT: Final = 0.125
# The first such pause. Each one is twice as long as the one before it, up to the maximum, until
# callers have committed without a pause for as long as the last one was. A caller that serves
# others therefore waits only rarely for a disk that stays slow.
_WARY_SECONDS: Final = 1.0
_WARY_SECONDS_MAX: Final = 60.0
# How often the thread of the shard does maintenance while callers commit on their own threads.
_UPKEEP_SECONDS: Final = 0.1

Act = Callable[[], None]
Order = tuple[Act, Ticket]


class FlushSettings(Protocol):
    """The settings that decide when a flush begins, and how many bytes may wait for it."""

    @property
    def flush_interval(self) -> float:
        """The maximum seconds that a call waits before a flush begins."""

    @property
    def idle_flush_interval(self) -> float:
        """The seconds without a new call after which a flush begins."""

    @property
    def max_items(self) -> int:
        """The number of items at which a flush begins at once."""

    @property
    def pending_bytes_max(self) -> int:
        """The maximum bytes of the waiting calls, unless one call alone is larger."""


@mypyc_attr(acyclic=True, allow_interpreted_subclasses=True)
class Queued:
    """A call that waits for its flush."""

    def __init__(self) -> None:
        self.size_bytes = 0
        # The ticket that gets the outcome, and the row numbers in the caller's call (None for all).
        self.ticket: Ticket | None = None
        self.rows: list[int] | None = None

    def item_count(self) -> int:
        """Return the number of items in the call, as `max_items` counts them: at least 1."""
        return 1


C = TypeVar("C", bound=Queued)


class Layout(Protocol[C]):
    """Stores the calls of one shard. Only the writer's thread calls it, except where stated."""

    @property
    def flush_settings(self) -> FlushSettings:
        """The current settings. From any thread."""

    @property
    def batch_items_max(self) -> int:
        """The maximum number of items in one commit, unless one call alone has more."""

    @property
    def batch_bytes_max(self) -> int:
        """The maximum bytes of one commit, unless one call alone is larger."""

    def check(self) -> None:
        """Raise PoisonedError if a write or sync of the shard failed. From any thread."""

    def is_poisoned(self) -> bool:
        """Return whether a write or sync of the shard failed."""

    def refused(self, call: C) -> None:
        """Record that a call found no room. From the caller's thread, which holds the mutex."""

    def commit(self, batch: list[C]) -> Sequence[Outcome | Exception | None]:
        """Store calls; return the outcome of each. An error is an outcome, too."""

    def idle_seconds(self) -> float | None:
        """Return the seconds without work after which `look_after` is due; None means never."""

    def look_after(self) -> None:
        """Do the maintenance that is due, after a commit or without one.

        The work is to sync, to turn generations over, and to drop them. After a SiltstoneError it
        stays due.
        """

    def release(self) -> SiltstoneError | None:
        """Release the resources of the layout; return the error that prevented the last sync."""

    def fail(self, cause: Exception) -> tuple[SiltstoneError, SiltstoneError]:
        """Refuse all writes after an internal error ended the thread.

        Return two errors: one for the calls that were being committed, and one for the waiting
        calls and the orders.
        """


def flush_delay(
    settings: FlushSettings, *, now: float, first_at: float, last_at: float, items: int
) -> float:
    """Return the seconds until the pending calls must be flushed; 0 or less means now."""
    if items >= settings.max_items:
        return 0.0
    return min(
        first_at + settings.flush_interval - now, last_at + settings.idle_flush_interval - now
    )


def _mistake_of(act: Act) -> Exception | None:
    """Call a function; return the error that it raised, an internal one, or None."""
    try:
        act()
    except Exception as exc:  # noqa: BLE001 - a thread that ends silently leaves callers waiting
        return exc
    return None


class ShardWriter(Generic[C]):
    """The queue and the thread of one shard."""

    def __init__(self, kind: str, number: int, layout: Layout[C], clock: Clock) -> None:
        self._kind = kind
        self._number = number
        self._layout = layout
        self._clock = clock
        # Tickets that have no lock of their own share it.
        self.mutex = Lock()
        # Callers that wait for room wait for it.
        self._condition = Condition(self.mutex)
        # The thread sleeps until the bell is released. A Condition would create a lock for each
        # wait, and most flushes of a quiet shard have a single row.
        self._bell = Lock()
        self._bell.acquire()
        self._is_asleep = False
        self._pending: deque[C] = deque()
        self._pending_bytes = 0
        self._pending_items = 0
        self._first_at = 0.0
        self._last_at = 0.0
        # The number of pending items at which the thread is woken; 0 while it is awake.
        self._wakes_at = 0
        # The number of callers that wait for room.
        self._waits_for_room = 0
        self._orders: deque[Order] = deque()
        self._closing = False
        # Whether new calls are refused: the queue is closing, or a write has failed.
        self._stopped = False
        self._close_error: SiltstoneError | None = None
        # The type of the error that stopped the last maintenance; None if it succeeded.
        self._trouble: type[SiltstoneError] | None = None
        # The error for all later calls, after an internal error ended the thread.
        self._failure: SiltstoneError | None = None
        # Whether a caller has borrowed the layout, and the internal error that its commit raised.
        self._is_lent = False
        # Whether the thread of the shard waits until the layout is given back.
        self._wants_back = False
        self._mistake: Exception | None = None
        # The average seconds of such commits, since when they are possible again, and the pause
        # before that.
        self._here_seconds = 0.0
        self._lends_at = 0.0
        self._wary_seconds = 0.0
        # Whether the thread must do maintenance, and when callers made it do so. Later commits of
        # callers leave the next maintenance to the thread, which therefore looks for them.
        self._upkeep_due = False
        self._upkeep_at = 0.0
        self._is_unkept = False
        self._looks_again = False
        self._begun: list[C] = []
        self._obeyed: list[Ticket] = []
        # Started by the first call or order: a database may have thousands of idle shards.
        self._worker: Thread | None = None

    def start(self) -> None:
        """Start the thread before the first call, so that it does the maintenance of the layout."""
        with self.mutex:
            if self._worker is None and not self._closing:
                self._start()

    def submit(self, call: C, ticket: Ticket, timeout: float | None) -> None:
        """Queue a call; wait while too many bytes are pending.

        Raises: OverloadedError if too many are still pending at the timeout; PoisonedError;
        ClosedError.
        """
        # Take the lock directly: entering the condition takes twice as long.
        with self.mutex:
            if self._stopped:
                self.check_open()
            settings = self._layout.flush_settings
            size = call.size_bytes
            limit = settings.pending_bytes_max
            if self._pending_bytes and self._pending_bytes + size > limit:
                self._wait_for_room(call, limit - size, timeout)
            pending = self._pending
            if not pending or settings.idle_flush_interval:
                self._last_at = self._clock.monotonic()
                if not pending:
                    self._first_at = self._last_at
            if self._worker is None:
                # First, because the process may have no more threads.
                self._start()
            call.ticket = ticket
            pending.append(call)
            self._pending_bytes += size
            self._pending_items += call.item_count()
            if 0 < self._wakes_at <= self._pending_items:
                self._wake()

    def commit_here(self, call: C, ticket: Ticket) -> bool:
        """Commit a call on this thread and settle its ticket. Return False if nothing happened,
        because other work waits or is under way, or the disk was slow a moment ago.

        If an internal error prevents the commit, the thread of the shard settles the ticket soon.
        """
        with self.mutex:
            if self._stopped or self._pending or self._orders or not self._is_asleep:
                return False
            began = self._clock.monotonic()
            if self._is_lent or began < self._lends_at:
                return False
            self._is_lent = True
            call.ticket = ticket
            self._begun = [call]
        # Whatever interrupts the commit, the thread must get the layout back.
        mistake: Exception | None = RuntimeError("a commit on the thread of its caller was cut off")
        try:
            mistake = _mistake_of(self._commit_begun)
        finally:
            self._take_back(mistake, began)
        return True

    def _commit_begun(self) -> None:
        outcomes = self._layout.commit(self._begun)
        # Before settling: after a failure the next call must be refused.
        self._stop_if_poisoned()
        self._tell(self._begun, outcomes)

    def _take_back(self, mistake: Exception | None, began: float) -> None:
        """End the loan of the layout, and wake the thread if it has work."""
        ended = self._clock.monotonic()
        with self.mutex:
            self._is_lent = False
            self._mistake = mistake
            self._note_duration(began, ended)
            # A thread that does not look again by itself would do the maintenance of this commit
            # only with the next one, which may come much later.
            if ended - self._upkeep_at >= _UPKEEP_SECONDS or not self._looks_again:
                self._upkeep_at = ended
                self._upkeep_due = self._looks_again = True
            else:
                self._is_unkept = True
            has_work = self._upkeep_due or self._pending or self._orders or self._closing
            if has_work or self._wants_back or mistake is not None:
                self._wake()

    def _note_duration(self, began: float, ended: float) -> None:
        """After slow commits on the threads of callers, begin a pause without such commits."""
        self._here_seconds += (ended - began - self._here_seconds) * _LAST_WEIGHT
        if self._here_seconds > _SLOW_SECONDS:
            if ended - self._lends_at > self._wary_seconds:
                self._wary_seconds = 0.0
            self._wary_seconds = min(max(_WARY_SECONDS, 2 * self._wary_seconds), _WARY_SECONDS_MAX)
            self._here_seconds = 0.0
            self._lends_at = ended + self._wary_seconds

    def withdraw(self, call: C) -> bool:
        """Remove a waiting call from the queue; return False if it does not wait any more."""
        with self.mutex:
            if call not in self._pending:
                return False
            self._pending.remove(call)
            call.ticket = None
            self._pending_bytes -= call.size_bytes
            self._pending_items -= call.item_count()
            if self._waits_for_room:
                self._condition.notify_all()
            return True

    def order(self, act: Act) -> Ticket:
        """Make the thread call `act` after all calls that were queued so far.

        Raises: PoisonedError, ClosedError. An error of `act` becomes the error of the ticket.
        """
        ticket = Ticket(0, 1)
        with self.mutex:
            self.check_open()
            if self._worker is None:
                self._start()
            self._orders.append((act, ticket))
            self._wake()
        return ticket

    def close(self) -> SiltstoneError | None:
        """Commit the queued calls, run the queued orders and end the thread.

        Return the error that prevented the last sync, or None.
        """
        with self.mutex:
            self._closing = self._stopped = True
            self._wake()
            self._condition.notify_all()
            thread = self._worker
        if thread is None:
            self._run()
        else:
            thread.join()
        return self._close_error

    def check_open(self) -> None:
        """Raise PoisonedError or ClosedError if the queue accepts no more calls."""
        self._layout.check()
        if self._failure is not None:
            raise self._failure
        if self._closing:
            raise ClosedError("the database is closed")

    def _start(self) -> None:
        worker = Thread(
            target=self._run, name=f"siltstone-{self._kind}-{self._number}", daemon=True
        )
        worker.start()
        self._worker = worker

    def _wake(self) -> None:
        self._wakes_at = 0
        if self._is_asleep:
            self._is_asleep = False
            self._bell.release()

    def _sleep(self, seconds: float | None) -> bool:
        """Release the mutex until the thread is woken or the time is over; return whether it was
        woken.
        """
        self._is_asleep = True
        self.mutex.release()
        try:
            is_woken = self._bell.acquire(timeout=-1 if seconds is None else max(0.0, seconds))
        finally:
            self.mutex.acquire()
        if not is_woken and not self._is_asleep:
            # The thread was woken after the time was over and before the mutex was taken.
            self._bell.acquire()
            is_woken = True
        self._is_asleep = False
        return is_woken

    def _wait_for_room(self, call: C, size_bytes: int, timeout: float | None) -> None:
        """Wait until at most `size_bytes` are pending, or none. The flush begins at once."""
        self._waits_for_room += 1
        self._wake()
        try:
            fits = self._condition.wait_for(
                lambda: (
                    self._closing or self._pending_bytes == 0 or self._pending_bytes <= size_bytes
                ),
                timeout,
            )
        finally:
            self._waits_for_room -= 1
        if not fits:
            self._layout.refused(call)
            raise OverloadedError(
                f"too many bytes wait to be written, try again: pending_bytes={self._pending_bytes}"
            )
        self.check_open()

    def _run(self) -> None:
        mistake = _mistake_of(self._work)
        if mistake is not None:
            self._fail_all(mistake)

    def _work(self) -> None:
        while (work := self._take()) is not None:
            batch, orders = work
            if batch:
                self._commit_begun()
            for act, ticket in orders:
                self._obey(act, ticket)
            if batch or not orders:
                self.look_after()
        self._close_error = self._layout.release()

    def _take(self) -> tuple[list[C], list[Order]] | None:
        """Wait for work; return the calls to commit, and the orders if no more calls wait.

        Both are empty when maintenance is due. Returns None at the end.
        """
        with self.mutex:
            self._wait_for_loan()
            while not self._closing and not self._orders:
                settings = self._layout.flush_settings
                if self._pending:
                    if self._waits_for_room:
                        break
                    delay: float | None = flush_delay(
                        settings,
                        now=self._clock.monotonic(),
                        first_at=self._first_at,
                        last_at=self._last_at,
                        items=self._pending_items,
                    )
                    if delay is not None and delay <= 0:
                        break
                    self._wakes_at = settings.max_items
                elif self._upkeep_due:
                    self._upkeep_due = self._is_unkept = False
                    return [], []
                else:
                    delay = self._idle_delay()
                    self._wakes_at = 1
                is_woken = self._sleep(delay)
                self._wait_for_loan()
                if not is_woken and not self._pending:
                    self._wakes_at = 0
                    if self._looks_again:
                        self._look_after_others()
                    return [], []
            self._wakes_at = 0
            if self._closing and not self._pending and not self._orders:
                return None
            batch = self._take_batch()
            orders: list[Order] = []
            if not self._pending:
                orders = list(self._orders)
                self._orders.clear()
            self._begun = batch
            self._obeyed = [ticket for _, ticket in orders]
            if self._waits_for_room:
                self._condition.notify_all()
            return batch, orders

    def _look_after_others(self) -> None:
        """Record that the maintenance after the last commits of callers is done."""
        self._looks_again = self._is_unkept
        self._is_unkept = False
        self._upkeep_at = self._clock.monotonic()

    def _idle_delay(self) -> float | None:
        """Return the seconds without work after which maintenance is due; None means never.

        After callers have committed, the thread looks again soon whether more of them did.
        """
        delay = self._layout.idle_seconds()
        if not self._looks_again:
            return delay
        return _UPKEEP_SECONDS if delay is None else min(delay, _UPKEEP_SECONDS)

    def _wait_for_loan(self) -> None:
        """Wait until the layout is given back. Raises: the internal error of the borrower."""
        while self._is_lent:
            self._wants_back = True
            self._wakes_at = 0
            self._sleep(None)
            self._wants_back = False
        if self._mistake is not None:
            raise self._mistake

    def _take_batch(self) -> list[C]:
        items_max = self._layout.batch_items_max
        bytes_max = self._layout.batch_bytes_max
        if self._pending_items <= items_max and self._pending_bytes <= bytes_max:
            batch = list(self._pending)
            self._pending.clear()
            self._pending_bytes = self._pending_items = 0
            return batch
        batch = []
        size = items = 0
        while self._pending:
            call = self._pending[0]
            count = call.item_count()
            if batch and (size + call.size_bytes > bytes_max or items + count > items_max):
                break
            batch.append(self._pending.popleft())
            size += call.size_bytes
            items += count
        self._pending_bytes -= size
        self._pending_items -= items
        return batch

    def _obey(self, act: Act, ticket: Ticket) -> None:
        error: SiltstoneError | None = None
        try:
            act()
        except SiltstoneError as exc:
            error = exc
        self._stop_if_poisoned()
        ticket.resolve(error, None)

    def look_after(self) -> None:
        """Let the layout do the maintenance that is due; log its errors. Only from the thread."""
        try:
            self._layout.look_after()
            self._trouble = None
        except ClosedError:
            # The database is being closed. The work is due again after the next start.
            self._trouble = None
        except SiltstoneError as exc:
            # If the disk is full, the next call reports it. A change of the error is logged once.
            if type(exc) is not self._trouble:
                self._trouble = type(exc)
                log(
                    _LOG,
                    logging.WARNING,
                    "shard_upkeep_failed",
                    shard=self._number,
                    error=str(exc),
                )
        self._stop_if_poisoned()

    def _stop_if_poisoned(self) -> None:
        # Only ever set here, because another thread may be closing the queue.
        if self._layout.is_poisoned():
            self._stopped = True

    def _tell(self, batch: list[C], outcomes: Sequence[Outcome | Exception | None]) -> None:
        """Settle the tickets. Those that share the mutex are all settled before any is told."""
        settled: list[Ticket] = []
        others: list[tuple[Ticket, Outcome | Exception | None, list[int] | None]] = []
        # If their numbers differ, this raises while each call still has its ticket.
        pairs = list(zip(batch, outcomes, strict=True))
        with self.mutex:
            for call, outcome in pairs:
                ticket = call.ticket
                if ticket is None:
                    continue
                # Break the reference cycle: the ticket may refer to the call.
                call.ticket = None
                if ticket.mutex is not self.mutex:
                    others.append((ticket, outcome, call.rows))
                elif ticket.settle(outcome, call.rows):
                    settled.append(ticket)
            self._begun = []
        for ticket in settled:
            ticket.tell()
        for ticket, outcome, rows in others:
            ticket.resolve(outcome, rows)

    def _fail_all(self, cause: Exception) -> None:
        """Settle all tickets with an error after an internal error ended the thread."""
        _LOG.error("shard_failed", exc_info=cause, extra={"facts": {"shard": self._number}})
        unknown, refused = self._layout.fail(cause)
        with self.mutex:
            self._failure = refused
            self._closing = self._stopped = True
            waiting = list(self._pending)
            orders = self._obeyed + [ticket for _, ticket in self._orders]
            self._pending.clear()
            self._orders.clear()
            self._condition.notify_all()
        begun = self._begun
        self._tell(begun, [unknown] * len(begun))
        self._tell(waiting, [refused] * len(waiting))
        for ticket in orders:
            if not ticket.done:
                ticket.resolve(refused, None)
        self._close_error = self._layout.release()
