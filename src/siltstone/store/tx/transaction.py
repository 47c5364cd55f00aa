"""A transaction as its client sees it: a view of one moment, and changes to commit. Compiled.

Nothing is stored before the commit, and nothing is read before the first read. A transaction
belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from types import TracebackType
from typing import Final, Protocol, Self, overload

from siltstone.clock import Clock
from siltstone.errors import OutcomeUnknownError, OverloadedError, UsageError
from siltstone.store.kv.keys import TIME_END
from siltstone.store.kv.slab import Found, KeyValueSlab
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabId
from siltstone.store.tx.arguments import bytes_of, filter_of, topic_of, whole_number
from siltstone.store.tx.commit.conflicts import exact_topic
from siltstone.store.tx.commit.shard import KeyValueShard
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.operations import (
    COUNT_MAX,
    LATEST,
    MONOTONIC,
    SERIAL_BYTES,
    Addition,
    CommitSerial,
    Deletion,
    Operations,
    Requirement,
    Value,
    end_of,
    start_of,
)
from siltstone.store.tx.view import TransactionView
from siltstone.topic.grammar import check_topic

TRANSACTION_BYTES_MAX: Final = 64 * 1024 * 1024
# The approximate bytes of a write in addition to its topic and value.
_WRITE_OVERHEAD: Final = 64


class LeaderReads(Protocol):
    """Lets a transaction of a replicated shard read what was committed before it began."""

    def enter(self, timeout: float | None) -> int:
        """Wait until this site has everything that the leader had; return the leader's term.

        Raises: RetryError if that takes too long, or no leader is known.
        """


class Context:
    """The common context of the transactions of one shard and generation."""

    def __init__(
        self,
        queue: KeyValueShard,
        clock: Clock,
        slab: KeyValueSlab,
        slab_id: SlabId,
        term: int,
        leader_reads: LeaderReads | None = None,
    ) -> None:
        self.queue = queue
        self.clock = clock
        self.slab = slab
        self.slab_id = slab_id
        self.generation = slab_id.generation
        self.timed = slab.timed
        self.term = term
        # Only if the shard is replicated.
        self.leader_reads = leader_reads


class Transaction:
    """Reads of one shard and generation, and changes to it that are stored together or not at all.

    As a context manager it commits at the end of the block, and is discarded if the block raises.
    It is not retried, because a block cannot run twice: use `transact` with a function for that.
    """

    __slots__ = (
        "_callbacks",
        "_context",
        "_ended",
        "_given_times",
        "_operations",
        "_owner",
        "_timed",
        "_timeout",
        "_view",
        "committed",
    )

    def __init__(
        self, context: Context, latest: bool, id_digest: bytes, timeout: float | None
    ) -> None:
        self._context = context
        self._timed = context.timed
        self._operations = Operations(context.term, context.generation, latest, id_digest)
        self._timeout = timeout
        self._view: TransactionView | None = None
        self._ended = False
        self._owner = get_ident()
        # Whether the commit is done; an error of `commit` after that comes from a callback.
        self.committed = False
        self._given_times = 0
        self._callbacks: list[Callable[[int], None]] | None = None

    def __enter__(self) -> Self:
        """Return the transaction itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Commit, unless the block has raised or ended the transaction itself."""
        if kind is None and not self._ended:
            self.commit()
        else:
            self.discard()

    @property
    def serial(self) -> int:
        """The serial of the commit; -1 before it."""
        return self._operations.serial

    @property
    def duplicate(self) -> bool:
        """Whether this id was committed before; then this transaction changed nothing."""
        return self._operations.duplicate

    @property
    def term(self) -> int:
        """The term of the shard's leader under which the transaction began."""
        return self._operations.term

    @property
    def generation(self) -> int:
        """The generation that the transaction reads and changes."""
        return self._operations.generation

    @property
    def read_serial(self) -> int:
        """The serial of the last commit that the transaction sees; this counts as a read."""
        self._looked()
        return self._operations.read_serial

    @overload
    def read(self, topic_filter: str) -> list[Row]: ...
    @overload
    def read(
        self, topic_filter: str, since_us: int = 0, until_us: int | None = None
    ) -> list[Row]: ...
    def read(
        self, topic_filter: object, since_us: object = 0, until_us: object = None
    ) -> list[Row]:
        """Return the rows of a filter in [since, until), sorted by topic and then by time.

        A row that this transaction wrote, and whose time the commit assigns, has the time MONOTONIC
        and is the last row of its topic. It is in the range if the range ends later than now.

        Raises: InvalidTopicError, UsageError.
        """
        until = end_of(until_us)
        since = start_of(since_us, until)
        parsed = filter_of(topic_filter)
        topic = exact_topic(parsed)
        found = self._looked().read(topic, None if topic else parsed, since, until)
        return [self._row(row) for row in found]

    @overload
    def get(self, topic: str) -> bytes | None: ...
    @overload
    def get(self, topic: str, time_us: int = LATEST) -> bytes | None: ...
    def get(self, topic: object, time_us: object = LATEST) -> bytes | None:
        """Return the value of a topic: at a time, or the newest; in a plain map its only one.

        Raises: InvalidTopicError, UsageError.
        """
        encoded = self._checked(topic)
        view = self._view
        if view is None:
            view = self._looked()
        if self._timed and time_us == LATEST:
            return view.newest(encoded)
        return view.get(encoded, self._time(time_us, LATEST))

    @overload
    def write(self, topic: str, value: Value) -> None: ...
    @overload
    def write(self, topic: str, value: Value, time_us: int = MONOTONIC) -> None: ...
    def write(self, topic: object, value: object, time_us: object = MONOTONIC) -> None:
        """Set the value of a row, and replace an existing one; by default the commit assigns a new
        time.

        The value COMMIT_SERIAL is replaced by the serial of the commit.

        Raises: InvalidTopicError, UsageError.
        """
        encoded = self._checked(topic)
        stored: Value = value if isinstance(value, CommitSerial) else bytes_of("value", value)
        size_bytes = len(stored) if isinstance(stored, bytes) else SERIAL_BYTES
        if not self._timed:
            at = self._time(time_us, MONOTONIC)
        elif time_us == MONOTONIC:
            self._given_times += 1
            at = -self._given_times
        else:
            at = self._time(time_us, MONOTONIC)
        self._put(encoded, at, stored, size_bytes)

    @overload
    def add(self, topic: str, amount: int) -> None: ...
    @overload
    def add(self, topic: str, amount: int, note: bytes = b"") -> None: ...
    def add(self, topic: object, amount: object, note: object = b"") -> None:
        """Add to the number in a row of a plain map, at the time of the commit.

        Transactions that only add never conflict with each other. A row whose number is 0 does not
        exist. `count_in` reads the number from a value; the note follows it.

        Raises: InvalidTopicError, UsageError.
        """
        encoded = self._checked(topic)
        if self._timed:
            raise UsageError("counts need a plain map: a database with the setting timed = false")
        added = whole_number("amount", amount)
        behind = bytes_of("note", note)
        if not -COUNT_MAX <= added <= COUNT_MAX:
            raise UsageError(f"the amount must fit into 64 bits: amount={added}")
        own = self._operations.writes.get((encoded, 0))
        if isinstance(own, Addition):
            added += own.amount
        elif own is not None:
            raise UsageError(
                f"this transaction writes the row, so it cannot add to it: topic={topic!r}"
            )
        self._operations.adds = True
        self._put(encoded, 0, Addition(added, behind), SERIAL_BYTES + len(behind))

    @overload
    def delete(self, topic_filter: str) -> None: ...
    @overload
    def delete(self, topic_filter: str, since_us: int = 0, until_us: int | None = None) -> None: ...
    def delete(self, topic_filter: object, since_us: object = 0, until_us: object = None) -> None:
        """Delete the rows of a filter in [since, until) that exist at the time of the commit.

        The end MONOTONIC means everything before the times that this commit assigns, so that a
        topic can be cleared and written again.

        Raises: InvalidTopicError, UsageError.
        """
        self._check_open()
        parsed = filter_of(topic_filter)
        until = MONOTONIC if until_us == MONOTONIC else end_of(until_us)
        since = start_of(since_us, 0 if until == MONOTONIC else until)
        operations = self._operations
        if operations.writes:
            # The commit deletes first, so own writes that this deletion covers are removed now.
            view = self._looked()
            end = view.settled(until)
            operations.writes = {
                row: value
                for row, value in operations.writes.items()
                if not (since <= view.settled(row[1]) < end and parsed.matches(row[0]))
            }
        operations.add_deletion(Deletion(parsed, since, until))
        if not exact_topic(parsed):
            operations.deletes_by_wildcard = True
        operations.size_bytes += len(parsed.text) + _WRITE_OVERHEAD

    @overload
    def require_present(self, topic: str) -> None: ...
    @overload
    def require_present(
        self, topic: str, time_us: int = LATEST, value: bytes | None = None
    ) -> None: ...
    def require_present(
        self, topic: object, time_us: object = LATEST, value: object = None
    ) -> None:
        """Refuse the commit unless this row exists then, with this value if one is given."""
        wanted = None if value is None else bytes_of("value", value)
        self._require(topic, time_us, present=True, value=wanted, guard=False)

    @overload
    def require_absent(self, topic: str) -> None: ...
    @overload
    def require_absent(self, topic: str, time_us: int = LATEST) -> None: ...
    def require_absent(self, topic: object, time_us: object = LATEST) -> None:
        """Refuse the commit if this row exists then."""
        self._require(topic, time_us, present=False, value=None, guard=False)

    @overload
    def require_owner(self, topic: str, serial: int) -> None: ...
    @overload
    def require_owner(self, topic: str, serial: int, time_us: int = LATEST) -> None: ...
    def require_owner(self, topic: object, serial: object, time_us: object = LATEST) -> None:
        """Refuse the commit with FencedError unless this row still has this serial, which an
        earlier commit wrote as COMMIT_SERIAL.
        """
        number = whole_number("serial", serial)
        if not 0 <= number <= COUNT_MAX:
            raise UsageError(f"a serial must be from 0 to 2**63 - 1, got {number}")
        value = number.to_bytes(SERIAL_BYTES, "big")
        self._require(topic, time_us, present=True, value=value, guard=True)

    def on_commit(self, callback: Callable[[int], None]) -> None:
        """Call back with the serial once the transaction is committed, in the order of these calls.

        The thread that commits makes the call, or the shard's thread if `submit` is used.
        """
        self._check_open()
        if not callable(callback):
            raise UsageError(f"a callback must be callable: type={type(callback).__name__}")
        if self._callbacks is None:
            self._callbacks = []
        self._callbacks.append(callback)

    def commit(self) -> int:
        """Commit and return the serial; a transaction that only read succeeds without the shard.

        Raises: ConflictError and OverloadedError: nothing happened, and another attempt may
        succeed. PreconditionError, with the row that was found. QuotaExceededError.
        OutcomeUnknownError if the time runs out or a write fails while the transaction is being
        stored: it may be committed. PoisonedError. ClosedError.
        """
        if self._is_effective():
            self._wait(self._hand_in())
        else:
            self._settle_reads()
            if self._context.leader_reads is not None:
                self._wait(self._context.queue.settled(self._operations))
        self.committed = True
        self._call_back()
        return self._operations.serial

    def submit(self) -> CommitTicket:
        """Commit without waiting; the ticket reports the result, and then `serial` is set.

        Raises: OverloadedError, PoisonedError, ClosedError; the ticket the errors of `commit`.
        """
        if self._is_effective():
            ticket = self._hand_in()
        else:
            self._settle_reads()
            ticket = self._context.queue.settled(self._operations)
        if self._callbacks is not None:
            ticket.on_done(self._call_back_when)
        return ticket

    def discard(self) -> None:
        """Discard the transaction; a second call does nothing."""
        if not self._ended:
            self._end()

    def _put(self, topic: bytes, at: int, value: Value, size_bytes: int) -> None:
        operations = self._operations
        size_bytes += operations.size_bytes + len(topic) + _WRITE_OVERHEAD
        if size_bytes > TRANSACTION_BYTES_MAX:
            raise UsageError(
                f"the transaction is too large, split it: "
                f"size_bytes={size_bytes} max={TRANSACTION_BYTES_MAX}"
            )
        operations.size_bytes = size_bytes
        operations.writes[topic, at] = value

    def _hand_in(self) -> CommitTicket:
        self._end()
        return self._context.queue.submit(self._operations, self._timeout)

    def _wait(self, ticket: CommitTicket) -> None:
        try:
            ticket.wait(self._timeout)
        except OutcomeUnknownError as exc:
            if ticket.done:
                # The transaction ended with this error, or was decided at the last moment.
                ticket.wait()
            elif self._context.queue.withdraw(ticket):
                raise OverloadedError(
                    f"the commit did not begin within its timeout, try again: "
                    f"timeout={self._timeout}"
                ) from exc
            else:
                raise

    def _settle_reads(self) -> None:
        """End a transaction without changes and requirements: it read everything at one moment."""
        self._looked()
        self._end()
        self._operations.serial = self._operations.read_serial

    def _is_effective(self) -> bool:
        operations = self._operations
        return not operations.changes_nothing() or operations.requirements is not None

    def _end(self) -> None:
        self._check_open()
        self._ended = True
        if self._view is not None:
            self._view.release()
            self._view = None

    def _call_back_when(self, ticket: CommitTicket) -> None:
        if ticket.error is None:
            self._call_back()

    def _call_back(self) -> None:
        callbacks, self._callbacks = self._callbacks, None
        if callbacks is not None:
            for callback in callbacks:
                callback(self._operations.serial)

    def _check_open(self) -> None:
        if self._ended:
            raise UsageError("the transaction has ended, begin another one")
        if get_ident() != self._owner:
            raise UsageError("the transaction belongs to the thread that began it")

    def _checked(self, topic: object) -> bytes:
        """Return a topic as bytes. Raises: InvalidTopicError, UsageError."""
        self._check_open()
        encoded = topic_of(topic)
        if encoded not in self._context.slab.places:
            check_topic(encoded)
        return encoded

    def _time(self, time_us: object, default: int) -> int:
        """Return the time of one row; 0 in a plain map. Raises: UsageError."""
        time = whole_number("time_us", time_us)
        if not self._timed:
            if time != default:
                raise UsageError(f"rows of a plain map do not have a time: time_us={time}")
            return 0
        if time == default:
            raise UsageError(
                "time_us is missing: rows of a database with the setting timed = true have a time"
            )
        if not 0 <= time < TIME_END:
            raise UsageError(f"time_us must be from 0 to 2**63 - 1, got {time}")
        return time

    def _require(
        self, topic: object, time_us: object, *, present: bool, value: bytes | None, guard: bool
    ) -> None:
        encoded = self._checked(topic)
        at = self._time(time_us, LATEST)
        self._operations.add_requirement(Requirement(encoded, at, present, value, guard))

    def _looked(self) -> TransactionView:
        """Return the view of the transaction. The first read determines its moment."""
        self._check_open()
        view = self._view
        if view is None:
            context = self._context
            if context.leader_reads is not None:
                self._operations.term = context.leader_reads.enter(self._timeout)
            view = self._view = TransactionView(context.slab, context.clock, self._operations)
        return view

    def _row(self, found: Found) -> Row:
        return Row(
            found.topic.decode(),
            found.value,
            timestamp_us=MONOTONIC if found.time_us < 0 else found.time_us,
            shard=self._context.slab_id.shard,
            generation=self._context.slab_id.generation,
            stream=found.stream_id,
        )
