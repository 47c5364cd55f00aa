"""Routes transactions to the leader of a replicated shard, at whatever site.

The outcome of an attempt is the answer of the leader, or one of two messages that this site reads
in the shared log: the record with the attempt, or a term that counted before such a record. If the
answer is lost, the same attempt is sent to the same leader again. The leader takes it once, and
remembers the answer if there is no record of it. If the leader has restarted meanwhile, it does not
lead any more, and knows nothing of the attempt: then the shared log decides. A transaction that
changes nothing is sent as a new attempt.

Invariants:
- a transaction gets a new attempt only if the one before it was refused for certain, or if it
  changes nothing;
- a transaction whose caller has stopped waiting is not sent again, and its outcome is unknown;
- the bytes of the waiting transactions are bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from threading import Condition
from typing import Final

from siltstone.errors import (
    ClosedError,
    OutcomeUnknownError,
    OverloadedError,
    PoisonedError,
    PreconditionError,
    RetryError,
    SiltstoneError,
    UsageError,
)
from siltstone.store.shard.replicated.kv.calls import (
    CommittedCall,
    Point,
    decode_answer,
    encode_commit,
)
from siltstone.store.shard.replicated.log import ReplicatedLog
from siltstone.store.shard.replicated.port import (
    NotLeaderError,
    Replication,
    UnknownVersionError,
)
from siltstone.store.tx.commit.attempts import Attempt, AttemptSender, StoredAttempt, Unstored
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.operations import ANY_GENERATION, NO_ID, Operations

Answer = CommittedCall | Exception | None
# Commits a transaction on this site, which leads; the function gets the answer.
CommitHere = Callable[[Attempt, Operations, Callable[[Answer], None]], None]
# These refusals say nothing about the transaction: it is sent again.
_AGAIN: Final = frozenset({RetryError, NotLeaderError, UnknownVersionError})
# The answers of a site that does not know an earlier answer of the leader.
_UNSETTLED: Final = NotLeaderError | UnknownVersionError
# A larger transaction does not fit into a message between sites.
CALL_BYTES_MAX: Final = 32 * 1024 * 1024


class _Waiting:
    """A transaction without an outcome. `number` is its attempt, 0 if none is under way."""

    __slots__ = (
        "attempt",
        "is_lost",
        "is_repeated",
        "is_unanswered",
        "number",
        "operations",
        "ticket",
    )

    def __init__(self, operations: Operations, ticket: CommitTicket) -> None:
        self.operations = operations
        self.ticket = ticket
        self.number = 0
        self.attempt: Attempt | None = None
        # Whether the answer to the attempt was lost: it is sent again.
        self.is_unanswered = False
        self.is_repeated = False
        # Whether an attempt of it may have been stored in a part of the log that was not read.
        self.is_lost = False

    @property
    def may_be_stored(self) -> bool:
        """Whether an attempt may have changed something, or still may."""
        is_open = self.number > 0 or self.is_lost
        return is_open and not self.operations.changes_nothing()


class CommitRouter:
    """Gives the transactions of this site to the leader of one shard. From any thread."""

    def __init__(
        self,
        log: ReplicatedLog,
        cluster: Replication,
        *,
        sender: bytes,
        commit_here: CommitHere,
        pending_bytes_max: Callable[[], int],
    ) -> None:
        self._log = log
        self._cluster = cluster
        self._commit_here = commit_here
        self._pending_bytes_max = pending_bytes_max
        self._condition = Condition()
        self._sender = AttemptSender(sender)
        # In the order in which they came.
        self._waiting: dict[CommitTicket, _Waiting] = {}
        self._sent: dict[int, _Waiting] = {}
        self._pending_bytes = 0
        self._closed = False

    def submit(self, operations: Operations, ticket: CommitTicket, timeout: float | None) -> None:
        """Take a transaction; its ticket gets the outcome. Raises: OverloadedError, ClosedError."""
        size = operations.size_bytes
        with self._condition:
            if self._pending_bytes and self._pending_bytes + size > self._pending_bytes_max():
                self._wait_for_room(size, timeout)
            self._add(_Waiting(operations, ticket))

    def confirm(self, operations: Operations, ticket: CommitTicket) -> None:
        """Settle a transaction that only read, if the term in which it began has not ended."""
        asked = Operations(operations.term, ANY_GENERATION, True, NO_ID)  # noqa: FBT003 - compiled
        with self._condition:
            self._add(_Waiting(asked, ticket))

    def withdraw(self, ticket: CommitTicket) -> bool:
        """Give a transaction up; return whether it was certainly not committed."""
        with self._condition:
            waiting = self._waiting.get(ticket)
            if waiting is None:
                return False
            self._remove(waiting)
            if waiting.number:
                self._sender.give_up(waiting.number)
            return not waiting.may_be_stored

    def follow(self, log: ReplicatedLog) -> None:
        """Use the log of the shard after the shard was copied."""
        with self._condition:
            self._log = log

    def look(self) -> None:
        """Send the transactions that are not under way. Called when the leader has changed, and
        from time to time.
        """
        view = self._log.view
        with self._condition:
            if self._closed:
                return
            for number in self._sender.counted_term(view.term):
                # The attempt was refused for certain, so the new leader decides.
                self._again(self._sent[number])
            for waiting in list(self._waiting.values()):
                if waiting.is_unanswered:
                    self._repeat(waiting)
                elif not waiting.number and not self._send(waiting):
                    break

    def counted(self, stored: Iterable[StoredAttempt]) -> None:
        """Take the transactions of a record that counted. On the thread of the shard."""
        with self._condition:
            if self._closed:
                return
            found = [
                (self._sent[each.number], CommittedCall(each.serial, duplicate=False))
                for each in self._sender.counted(stored)
            ]
            for waiting, _ in found:
                self._remove(waiting)
        for waiting, committed in found:
            _settle(waiting, committed)

    def lose(self) -> None:
        """Note that this site has not read a part of the log, because the shard was copied from
        another site.
        """
        with self._condition:
            if self._closed:
                return
            lost: list[_Waiting] = []
            for waiting in list(self._sent.values()):
                self._sender.give_up(waiting.number)
                if waiting.operations.id_digest or not waiting.may_be_stored:
                    # The transaction can be found by its id.
                    waiting.is_lost = True
                    self._again(waiting)
                else:
                    self._remove(waiting)
                    lost.append(waiting)
        unknown = OutcomeUnknownError("this site has copied the shard and not read the record")
        for waiting in lost:
            _settle(waiting, unknown)

    @property
    def pending(self) -> int:
        """The number of transactions without an outcome."""
        return len(self._waiting)

    def close(self) -> None:
        """Close the router. The transactions that a leader has keep an unknown outcome."""
        with self._condition:
            self._closed = True
            left, self._waiting = list(self._waiting.values()), {}
            self._sent.clear()
            self._condition.notify_all()
        for waiting in left:
            text = "the store was closed before the transaction had an outcome"
            error = OutcomeUnknownError if waiting.may_be_stored else ClosedError
            _settle(waiting, error(text))

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

    # The caller holds the lock.

    def _add(self, waiting: _Waiting) -> None:
        if self._closed:
            raise ClosedError("the database is closed")
        if self._sender.is_full():
            raise OverloadedError(
                "too many transactions were given up while an older one has no outcome, try again"
            )
        self._waiting[waiting.ticket] = waiting
        self._pending_bytes += waiting.operations.size_bytes
        self._send(waiting)

    def _remove(self, waiting: _Waiting) -> None:
        del self._waiting[waiting.ticket]
        self._sent.pop(waiting.number, None)
        self._pending_bytes -= waiting.operations.size_bytes
        self._condition.notify_all()

    def _again(self, waiting: _Waiting) -> None:
        self._sent.pop(waiting.number, None)
        waiting.number = 0
        waiting.is_unanswered = waiting.is_repeated = False

    def _repeat(self, waiting: _Waiting) -> None:
        """Send the same attempt again, to the leader of the same term."""
        view, attempt = self._log.view, waiting.attempt
        if attempt is None or view.term != attempt.term or view.leader in ("", self._cluster.site):
            return
        waiting.is_unanswered, waiting.is_repeated = False, True
        self._call(view.leader, attempt, waiting.operations)

    def _call(self, leader: str, attempt: Attempt, operations: Operations) -> None:
        """Send an attempt to another site."""
        then = partial(self._answered, attempt.number)
        call = encode_commit(attempt, operations)
        if len(call) <= CALL_BYTES_MAX:
            self._cluster.send(self._log, leader, call, partial(_told, then))
            return
        then(
            UsageError(
                f"the transaction is too large for another site, split it: "
                f"size_bytes={len(call)} max={CALL_BYTES_MAX}"
            )
        )

    def _send(self, waiting: _Waiting) -> bool:
        """Send a transaction to the leader; return False if none can be sent now."""
        view = self._log.view
        if not view.leads and view.leader in ("", self._cluster.site):
            return False
        if self._sender.is_full():
            return False
        attempt = self._sender.begin(view.term)
        waiting.number, waiting.attempt = attempt.number, attempt
        self._sent[attempt.number] = waiting
        if view.leads:
            then = partial(self._answered, attempt.number)
            # A later attempt may be committed elsewhere before this one is refused.
            self._commit_here(attempt, waiting.operations.copied(), then)
        else:
            self._call(view.leader, attempt, waiting.operations)
        return True

    def _says_nothing(self, waiting: _Waiting, answer: CommittedCall | Exception) -> bool:
        """Return whether an answer leaves open whether the attempt was stored."""
        if waiting.is_repeated and isinstance(answer, _UNSETTLED):
            # The site may have taken the attempt before it ended and began again.
            return True
        return isinstance(answer, OutcomeUnknownError | ClosedError)

    def _answered(self, number: int, answer: Answer) -> None:
        with self._condition:
            waiting = self._sent.get(number)
            if waiting is None:
                return
            if answer is None or self._says_nothing(waiting, answer):
                if waiting.operations.changes_nothing():
                    self._sender.ended(number)
                    self._again(waiting)
                else:
                    # The shared log has its record or a later term, or the leader knows an answer.
                    waiting.is_unanswered = True
                return
            if isinstance(answer, PoisonedError) and not self._log.view.leads:
                # That site is broken. The record may have counted.
                return
            self._sender.ended(number)
            if type(answer) in _AGAIN:
                # No leader has the attempt any more. The transaction is sent again when a leader is
                # known.
                self._again(waiting)
                return
            self._remove(waiting)
        _settle(waiting, answer)


def unstored_of(answer: Answer) -> Unstored | None:
    """Return the part of an answer that the leader remembers; None if the attempt is stored, or may
    be.
    """
    match answer:
        case CommittedCall():
            return answer.serial if answer.duplicate else None
        case ClosedError():
            return None
        case RetryError() | PreconditionError() | UsageError():
            return answer
        case _:
            return None


def answer_of(unstored: Unstored) -> CommittedCall | SiltstoneError:
    """Return the answer to a copy of an attempt that is not stored.

    A copy that meets a site which does not lead learns nothing, so a refusal that is certain must
    not look like this.
    """
    if isinstance(unstored, _UNSETTLED):
        return RetryError(str(unstored))
    return CommittedCall(unstored, duplicate=True) if isinstance(unstored, int) else unstored


def _settle(waiting: _Waiting, answer: CommittedCall | Exception) -> None:
    ticket = waiting.ticket
    if isinstance(answer, Exception):
        ticket.resolve(answer, None)
        return
    if ticket.operations is waiting.operations:
        ticket.operations.serial = answer.serial
        ticket.operations.duplicate = answer.duplicate
    ticket.resolve(None, None)


def _told(then: Callable[[Answer], None], data: bytes | None) -> None:
    answer = None if data is None else decode_answer(data)
    if isinstance(answer, Point):
        answer = OutcomeUnknownError("another site has answered another question")
    then(answer)
