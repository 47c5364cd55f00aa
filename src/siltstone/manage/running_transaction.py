"""A transaction in the key-value database of a running broker.

Changes are collected here, and sent with the next read or with the commit. A transaction without
reads is one request. A transaction that reads is open in the broker, on a connection of its own;
if the connection is lost, nothing is committed.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from types import TracebackType
from typing import Any, Final, Protocol, Self

from siltstone.errors import SiltstoneError, UsageError
from siltstone.manage.keyvalues import (
    NOW,
    SERIAL,
    AddChanges,
    Begin,
    Commit,
    Get,
    Operation,
    ReadRows,
    Rows,
)
from siltstone.manage.running import RunningBroker
from siltstone.manage.verb import Nothing
from siltstone.manage.verbs import VERBS
from siltstone.store.log.read.pieces import Row
from siltstone.store.tx.arguments import bytes_of, filter_of, topic_of, whole_number
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.operations import (
    LATEST,
    MONOTONIC,
    NO_ID,
    NO_SERIAL,
    CommitSerial,
    Operations,
    Value,
)
from siltstone.topic.grammar import check_topic

# Changes are sent when they have more bytes or more topics than this.
_BYTES_MAX: Final = 4 << 20
_TEXT_MAX: Final = 256 << 10
# The approximate bytes of a change in JSON, in addition to its topic. A topic of control characters
# takes six bytes for each.
_CHANGE_BYTES: Final = 80
_ESCAPED: Final = 6
_ANSWER_SECONDS: Final = 60.0


class Connections(Protocol):
    """Lends connections to the broker."""

    def borrow(self) -> RunningBroker: ...

    def give_back(self, broker: RunningBroker) -> None: ...


class RunningTransaction:
    """Reads and changes of one shard in a running broker, committed together or not at all.

    It has the methods and errors of `Transaction`. As a context manager it commits at the end of
    the block, and is discarded if the block raises. If the connection is lost during the commit,
    the outcome is unknown.
    """

    def __init__(self, connections: Connections, begin: Begin) -> None:
        self._connections = connections
        self._begin = begin
        self._broker: RunningBroker | None = None
        self._is_open_there = False
        self._ended = False
        self._operations: list[Operation] = []
        self._values: list[bytes] = []
        self._size_bytes = 0
        self._text_bytes = 0
        self._callbacks: list[Callable[[int], None]] = []
        # Whether the commit is done; an error of `commit` after that comes from a callback.
        self.committed = False
        self._serial = NO_SERIAL
        self._duplicate = False

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
        return self._serial

    @property
    def duplicate(self) -> bool:
        """Whether this id was committed before; then this transaction changed nothing."""
        return self._duplicate

    @property
    def read_serial(self) -> int:
        """The serial of the last commit that the transaction sees; this counts as a read."""
        return int(self._ask("tx-see", Nothing()).serial)

    def read(self, topic_filter: str, since_us: int = 0, until_us: int | None = None) -> list[Row]:
        """Return the rows of a filter in [since, until), sorted by topic and then by time.

        All rows are loaded into memory. Raises: InvalidTopicError, UsageError; RetryError if the
        connection is lost.
        """
        request = ReadRows(
            filter=filter_of(topic_filter).text, since_us=since_us, until_us=until_us
        )
        found: Rows = self._ask("tx-read", request)
        rows = _rows_of(found)
        while found.more:
            found = self._ask("tx-more", Nothing())
            rows += _rows_of(found)
        return rows

    def get(self, topic: str, time_us: int = LATEST) -> bytes | None:
        """Return the value of a topic: at a time, or the newest; in a plain map its only one.

        Raises: InvalidTopicError, UsageError; RetryError if the connection is lost.
        """
        time = _time(time_us, LATEST)
        found = self._ask("tx-get", Get(topic=_checked(topic), time_us=time))
        return bytes(found.payload) if found.found else None

    def write(self, topic: str, value: Value, time_us: int = MONOTONIC) -> None:
        """Set the value of a row, and replace an existing one; by default the commit assigns a new
        time.

        The value COMMIT_SERIAL is replaced by the serial of the commit.

        Raises: InvalidTopicError, UsageError.
        """
        time = _time(time_us, MONOTONIC)
        if isinstance(value, CommitSerial):
            self._change(["write", _checked(topic), time, SERIAL])
        else:
            stored = bytes_of("value", value)
            self._change(["write", _checked(topic), time, len(stored)], stored)

    def add(self, topic: str, amount: int, note: bytes = b"") -> None:
        """Add to the number in a row of a plain map, at the time of the commit.

        Raises: InvalidTopicError, UsageError.
        """
        added, behind = whole_number("amount", amount), bytes_of("note", note)
        self._change(["add", _checked(topic), added, len(behind)], behind)

    def delete(self, topic_filter: str, since_us: int = 0, until_us: int | None = None) -> None:
        """Delete the rows of a filter in [since, until) that exist at the time of the commit.

        The end MONOTONIC means everything before the times that this commit assigns.

        Raises: InvalidTopicError, UsageError.
        """
        since = whole_number("since_us", since_us)
        until = NOW if until_us == MONOTONIC else until_us
        self._change(["delete", filter_of(topic_filter).text, since, until])

    def require_present(
        self, topic: str, time_us: int = LATEST, value: bytes | None = None
    ) -> None:
        """Refuse the commit unless this row exists then, with this value if one is given."""
        time = _time(time_us, LATEST)
        if value is None:
            self._change(["require", _checked(topic), time, None])
        else:
            wanted = bytes_of("value", value)
            self._change(["require", _checked(topic), time, len(wanted)], wanted)

    def require_absent(self, topic: str, time_us: int = LATEST) -> None:
        """Refuse the commit if this row exists then."""
        self._change(["absent", _checked(topic), _time(time_us, LATEST)])

    def require_owner(self, topic: str, serial: int, time_us: int = LATEST) -> None:
        """Refuse the commit with FencedError unless this row still has this serial, which an
        earlier commit wrote as COMMIT_SERIAL.
        """
        number = whole_number("serial", serial)
        self._change(["owner", _checked(topic), _time(time_us, LATEST), number])

    def on_commit(self, callback: Callable[[int], None]) -> None:
        """Call back with the serial once the transaction is committed, in the order of these
        calls.
        """
        self._check_open()
        if not callable(callback):
            raise UsageError(f"a callback must be callable: type={type(callback).__name__}")
        self._callbacks.append(callback)

    def commit(self) -> int:
        """Commit and return the serial.

        Raises: ConflictError and OverloadedError: nothing happened, and another attempt may
        succeed. RetryError if the broker cannot be reached. PreconditionError, with the row that
        was found. QuotaExceededError. OutcomeUnknownError if the connection is lost, or if the time
        runs out or a write fails while the transaction is being stored: it may be committed.
        PoisonedError. ClosedError.
        """
        self._check_open()
        try:
            if self._broker is None:
                done = self._commit_at_once()
            else:
                self._send_changes(self._broker)
                self._is_open_there = False
                done = self._broker.run(VERBS["tx-commit"], Nothing(), timeout=self._patience())
        finally:
            self._end()
        self._serial, self._duplicate = done.serial, done.duplicate
        self.committed = True
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self._serial)
        return self._serial

    def submit(self) -> CommitTicket:
        """Commit; return a ticket that is done and has the result."""
        operations = Operations(0, self._begin.generation or 0, True, NO_ID)  # noqa: FBT003 - compiled
        ticket = CommitTicket(operations, Lock())
        failure: SiltstoneError | None = None
        try:
            operations.serial = self.commit()
            operations.duplicate = self._duplicate
        except SiltstoneError as exc:
            failure = exc
        ticket.resolve(failure, None)
        return ticket

    def discard(self) -> None:
        """Discard the transaction; a second call does nothing."""
        if not self._ended:
            self._end()

    def _commit_at_once(self) -> Any:
        """Commit a transaction that has not read, and whose changes fit into one request."""
        request = Commit(
            begin=self._begin, operations=self._operations, payload=b"".join(self._values)
        )
        self._broker = self._connections.borrow()
        return self._broker.run(VERBS["kv-commit"], request, timeout=self._patience())

    def _change(self, operation: Operation, value: bytes = b"") -> None:
        self._check_open()
        self._operations.append(operation)
        self._values.append(value)
        self._size_bytes += len(value)
        self._text_bytes += _ESCAPED * len(operation[1]) + _CHANGE_BYTES
        if self._size_bytes > _BYTES_MAX or self._text_bytes > _TEXT_MAX:
            self._send_changes(self._opened())

    def _ask(self, name: str, request: Any) -> Any:
        """Send all changes, then a read."""
        self._check_open()
        broker = self._opened()
        self._send_changes(broker)
        return broker.run(VERBS[name], request)

    def _opened(self) -> RunningBroker:
        if self._broker is None:
            broker = self._connections.borrow()
            try:
                broker.run(VERBS["tx-begin"], self._begin)
            except SiltstoneError:
                self._connections.give_back(broker)
                raise
            self._broker = broker
            self._is_open_there = True
        return self._broker

    def _send_changes(self, broker: RunningBroker) -> None:
        if not self._operations:
            return
        request = AddChanges(operations=self._operations, payload=b"".join(self._values))
        self._operations, self._values = [], []
        self._size_bytes = self._text_bytes = 0
        try:
            broker.run(VERBS["tx-change"], request)
        except SiltstoneError:
            # The broker has only a part of the changes.
            self._end()
            raise

    def _patience(self) -> float:
        """Return how long to wait for the answer to a commit; the broker itself waits `timeout`."""
        timeout = self._begin.timeout
        return _ANSWER_SECONDS + (24 * 3600.0 if timeout is None else timeout)

    def _end(self) -> None:
        self._ended = True
        broker, self._broker = self._broker, None
        if broker is None:
            return
        if self._is_open_there and not broker.closed:
            # If this fails, the broker discards the transaction with the connection.
            with suppress(SiltstoneError):
                broker.run(VERBS["tx-discard"], Nothing())
        self._connections.give_back(broker)

    def _check_open(self) -> None:
        if self._ended:
            raise UsageError("the transaction has ended, begin another one")


def _checked(topic: str) -> str:
    check_topic(topic_of(topic))
    return topic


def _time(time_us: int, default: int) -> int | None:
    time = whole_number("time_us", time_us)
    return None if time == default else time


def _rows_of(found: Rows) -> list[Row]:
    rows: list[Row] = []
    start = 0
    for topic, time_us, stream, size in found.rows:
        rows.append(
            Row(
                topic,
                found.payload[start : start + size],
                timestamp_us=time_us,
                shard=found.shard,
                generation=found.generation,
                stream=stream,
            )
        )
        start += size
    return rows
