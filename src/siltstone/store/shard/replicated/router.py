"""Routes calls to the leader of a replicated shard, at whatever site.

The router is one producer: it numbers the calls, and each call names the one before it. So the
leader stores each call once and in order, however often the router sends it. A call that has a
producer of its own is recognised by that one instead.

Invariants:
- a call gets the outcome of any attempt that was stored. It is refused only if every attempt was;
- while no leader is known, or its answer does not come, the calls wait;
- if the cluster has given this site up, and closed its producer, the router continues as another
  producer. A call with an unanswered attempt then has an unknown outcome;
- it also continues as another producer behind a call that is refused for good while another attempt
  has no answer. That attempt may be stored or not, so no later call can name it or overtake it;
- no call of a producer is sent while one of the producer before it has no outcome;
- the bytes of the waiting calls are bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Condition

from siltstone.errors import (
    ClosedError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    RetryError,
    SiltstoneError,
)
from siltstone.store.log.write.frame_builder import Call
from siltstone.store.shard.replicated.calls import (
    decode_answer,
    decode_call,
    encode_answer,
    encode_call,
)
from siltstone.store.shard.replicated.log import ReplicatedLog
from siltstone.store.shard.replicated.port import (
    ClosedProducerError,
    NotLeaderError,
    OutOfOrderError,
    Replication,
    UnknownVersionError,
)
from siltstone.store.writer.replication.sender import Sender
from siltstone.store.writer.ticket import Outcome, Ticket

Answer = Outcome | Exception | None
# These refusals say nothing about the call: it is sent again.
_AGAIN = (NotLeaderError, OutOfOrderError, OverloadedError, UnknownVersionError)


class _Waiting:
    """A call without an outcome, and the attempt that is under way, 0 if none is.

    The number is 0 if the call has a producer of its own.
    """

    __slots__ = ("attempt", "call", "number", "place", "sender", "term", "ticket")

    def __init__(self, place: int, sender: Sender, call: Call, ticket: Ticket) -> None:
        self.place = place
        self.sender = sender
        self.number = 0 if call.producer else sender.begin()
        self.call = call
        self.ticket = ticket
        self.attempt = 0
        # The term of the leader that has the attempt.
        self.term = 0


class CallRouter:
    """Gives the calls of this site to the leader of one shard. From any thread."""

    def __init__(
        self,
        log: ReplicatedLog,
        cluster: Replication,
        *,
        producer: bytes,
        submit: Callable[[Call, Ticket], None],
        pending_bytes_max: Callable[[], int],
    ) -> None:
        self._log = log
        self._cluster = cluster
        self.submit = submit
        self._pending_bytes_max = pending_bytes_max
        self._condition = Condition()
        self._sender = Sender(producer)
        # Whether calls of the producer before this one wait.
        self._has_former = False
        self._waiting: dict[int, _Waiting] = {}
        self._pending_bytes = 0
        self._attempts = 0
        self._places = 0
        self._closed = False

    def append(self, call: Call, ticket: Ticket, timeout: float | None) -> None:
        """Take a call; its ticket gets the outcome. Raises: OverloadedError, ClosedError."""
        size = call.size_bytes
        with self._condition:
            if self._pending_bytes and self._pending_bytes + size > self._pending_bytes_max():
                self._wait_for_room(size, timeout)
            if self._closed:
                raise ClosedError("the database is closed")
            self._places += 1
            waiting = _Waiting(self._places, self._sender, call, ticket)
            self._waiting[self._places] = waiting
            self._pending_bytes += size
            if not self._is_held(waiting):
                self._send(waiting)

    def follow(self, log: ReplicatedLog, submit: Callable[[Call, Ticket], None]) -> None:
        """Use the log and the queue of the shard after it was opened again."""
        with self._condition:
            self._log, self.submit = log, submit

    def look(self) -> None:
        """Send the calls that are not under way. Called when the leader has changed, and from time
        to time.
        """
        with self._condition:
            term = self._log.view.term
            for waiting in list(self._waiting.values()):
                # A deposed leader may be dead, so do not wait for its answer.
                is_due = waiting.attempt == 0 or waiting.term < term
                if is_due and not self._is_held(waiting) and not self._send(waiting):
                    break

    def _is_held(self, waiting: _Waiting) -> bool:
        """Return whether a call must wait for those of the producer before its own."""
        return self._has_former and waiting.number > 0 and waiting.sender is self._sender

    @property
    def pending(self) -> int:
        """The number of calls without an outcome."""
        return len(self._waiting)

    def close(self) -> None:
        """Close the router. The waiting calls keep an unknown outcome."""
        with self._condition:
            self._closed = True
            left, self._waiting = list(self._waiting.values()), {}
            self._condition.notify_all()
        unknown = OutcomeUnknownError("the store was closed before the call had an outcome")
        for waiting in left:
            waiting.ticket.resolve(unknown, waiting.call.rows)

    def _wait_for_room(self, size: int, timeout: float | None) -> None:
        fits = self._condition.wait_for(
            lambda: (
                self._closed
                or not self._pending_bytes
                or self._pending_bytes + size <= self._pending_bytes_max()
            ),
            timeout,
        )
        if not fits:
            raise OverloadedError(
                f"too many bytes wait for the leader of the shard, try again: "
                f"pending_bytes={self._pending_bytes}"
            )

    def _send(self, waiting: _Waiting) -> bool:
        """Send a call to the leader; return whether one is known. The caller holds the lock."""
        view = self._log.view
        if not view.leads and view.leader in ("", self._cluster.site):
            return False
        self._attempts += 1
        attempt = waiting.attempt = self._attempts
        waiting.term = view.term
        call = waiting.call
        if waiting.number:
            call.claim = waiting.sender.attempt(waiting.number, attempt)
        then = partial(self._answered, waiting, attempt)
        if not view.leads:
            self._cluster.send(self._log, view.leader, encode_call(call), partial(_told, then))
            return True
        # The shard may still hold the call of an earlier attempt, so it gets one of its own.
        own = Call(call.batch)
        own.shard, own.size_bytes, own.wants_sync = call.shard, call.size_bytes, call.wants_sync
        own.producer, own.sequence, own.claim = call.producer, call.sequence, call.claim
        ticket = Ticket(call.row_count, 1)
        try:
            self.submit(own, ticket)
        except SiltstoneError as exc:
            ticket.resolve(exc, None)
        # Its outcome comes from the thread of the shard, which needs no lock that is held here.
        ticket.on_done(partial(_settled, then))
        return True

    def _answered(self, waiting: _Waiting, attempt: int, answer: Answer) -> None:
        with self._condition:
            if waiting.place not in self._waiting:
                return
            if waiting.attempt == attempt:
                waiting.attempt = 0
            if waiting.number and isinstance(answer, ClosedProducerError):
                waiting.sender.refused(waiting.number, attempt)
                settled, answer = self._begin_anew(0), _unknown(answer)
            elif self._settles(waiting, attempt, answer):
                settled = [waiting]
            elif waiting.number and _is_permanent(answer):
                settled, answer = self._begin_anew(waiting.place), _unknown(answer)
            else:
                return
            for each in settled:
                del self._waiting[each.place]
                self._pending_bytes -= each.call.size_bytes
            self._condition.notify_all()
            if self._has_former:
                self._end_former()
        for each in settled:
            each.ticket.resolve(answer, each.call.rows)

    def _begin_anew(self, first: int) -> list[_Waiting]:
        """Continue as another producer from this call on, in the same order; return the calls that
        may have been stored. The caller holds the lock.
        """
        self._sender = Sender(self._cluster.producer())
        unknown: list[_Waiting] = []
        for waiting in self._waiting.values():
            if not waiting.number or waiting.place < first:
                continue
            if waiting.sender.give_up(waiting.number):
                waiting.sender, waiting.attempt = self._sender, 0
                waiting.number = self._sender.begin()
            else:
                unknown.append(waiting)
        self._has_former = True
        return unknown

    def _end_former(self) -> None:
        """Send the calls that were held, if those of the producer before have an outcome."""
        self._has_former = any(
            waiting.number and waiting.sender is not self._sender
            for waiting in self._waiting.values()
        )
        if not self._has_former:
            self.look()

    def _settles(self, waiting: _Waiting, attempt: int, answer: Answer) -> bool:
        """Return whether an answer is the outcome of the call; otherwise it is sent again."""
        number, sender = waiting.number, waiting.sender
        if isinstance(answer, Outcome):
            if number:
                sender.stored(number)
            return True
        if answer is None or isinstance(answer, OutcomeUnknownError | ClosedError):
            # A shard is closed for a moment while copied files are installed. If this call ended
            # then, no later one could be stored: each names the one before it.
            return False
        if isinstance(answer, PoisonedError):
            # This site stores nothing more; the outcome is unknown.
            return True
        if number:
            sender.refused(number, attempt)
        return not isinstance(answer, _AGAIN) and (not number or sender.give_up(number))


def _is_permanent(answer: Answer) -> bool:
    """Return whether every leader would refuse the call, as far as this one knows."""
    passing = RetryError | OutcomeUnknownError | ClosedError | PoisonedError
    return isinstance(answer, Exception) and not isinstance(answer, passing)


def _unknown(refusal: Answer) -> OutcomeUnknownError:
    return OutcomeUnknownError(f"an attempt has no answer, and another was refused: {refusal}")


def take_call(
    submit: Callable[[Call, Ticket], None], data: bytes, answer: Callable[[bytes], None]
) -> None:
    """Give a call of another site to the queue of the shard that may lead here."""
    try:
        call = decode_call(data)
        ticket = Ticket(call.row_count, 1)
        submit(call, ticket)
    except SiltstoneError as exc:
        answer(encode_answer(exc))
        return
    ticket.on_done(partial(_answer, answer))


def _answer(answer: Callable[[bytes], None], ticket: Ticket) -> None:
    outcome = ticket.error or ticket.outcome
    if outcome is not None:
        answer(encode_answer(outcome))


def _told(then: Callable[[Answer], None], data: bytes | None) -> None:
    then(None if data is None else decode_answer(data))


def _settled(then: Callable[[Answer], None], ticket: Ticket) -> None:
    then(ticket.error or ticket.outcome)
