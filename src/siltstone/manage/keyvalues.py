"""Verbs on key-value databases: create, drop, and transactions.

The changes of a transaction are lists, and their values follow the line as bytes, one behind the
other:

    ["write", topic, time, size]          time null: the commit assigns it; size -1: its serial
    ["add", topic, amount, size]          the bytes are the note
    ["delete", filter, since, until]      until null: no end; "now": the times of the commit
    ["require", topic, time, size]        time null: the newest row; size null: any value
    ["absent", topic, time]               time null: the newest row
    ["owner", topic, time, serial]        time null: the newest row

`kv-commit` is a whole transaction without reads. A transaction that reads stays open in the broker
between `tx-begin` and `tx-commit` or `tx-discard`; it belongs to its connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pydantic import Field

from siltstone.errors import ExistsError, UsageError
from siltstone.fs.paths import COMMITS
from siltstone.manage.databases import Dropped, KnownSettings
from siltstone.manage.verb import (
    Host,
    Nothing,
    PackedRequest,
    PackedResponse,
    Request,
    RequiredRight,
    Response,
    Verb,
)
from siltstone.store.keyvalue import TIMEOUT, KeyValueDatabase
from siltstone.store.tx.operations import COMMIT_SERIAL, LATEST, MONOTONIC
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.tx.transaction import Transaction

# As the end of a deletion: the times that the commit assigns.
NOW: Final = "now"
# As the size of a value: it is the serial of the commit.
SERIAL: Final = -1
Operation = list[Any]


class CreateKeyValue(Request):
    """The name of a new key-value database, and the settings that differ from the defaults."""

    database: str
    settings: dict[str, Any] = Field(default_factory=dict)


class NameKeyValue(Request):
    """A key-value database."""

    database: str


class Begin(Request):
    """The beginning of a transaction, as the arguments of `KeyValueDatabase.transaction`."""

    database: str
    shard: int | None = None
    key: str | None = None
    generation: int | None = None
    timeout: float | None = TIMEOUT
    id: str | None = None


class Commit(PackedRequest):
    """A whole transaction: its beginning, and its changes."""

    begin: Begin
    operations: list[Operation]


class FindOutcome(Request):
    """The id of a transaction, and its shard."""

    database: str
    id: str
    shard: int | None = None
    key: str | None = None


class AddChanges(PackedRequest):
    """Changes of the open transaction."""

    operations: list[Operation]


class Get(Request):
    """A row: at a time, or the newest."""

    topic: str
    time_us: int | None = None


class ReadRows(Request):
    """The rows of a filter in [since, until)."""

    filter: str
    since_us: int = 0
    until_us: int | None = None


class CommitResult(Response):
    """The serial of a commit, and whether an earlier transaction with its id was committed."""

    serial: int
    duplicate: bool


class FoundOutcome(Response):
    """The serial of a transaction; None if it was not committed."""

    serial: int | None


class Begun(Response):
    """The facts about a transaction that was begun."""

    term: int
    generation: int


class Seen(Response):
    """The serial of the last commit that the transaction sees."""

    serial: int


class Value(PackedResponse):
    """Whether a row was found; the bytes are its value."""

    found: bool


class Rows(PackedResponse):
    """Rows as topic, time, stream and size; the bytes are their values.

    With `more`, `tx-more` returns the next rows.
    """

    shard: int
    generation: int
    rows: list[tuple[str, int, int, int]]
    more: bool


def create_keyvalue(host: Host, request: CreateKeyValue) -> KnownSettings:
    """Create a key-value database. Raises: ExistsError, UsageError."""
    refuse_commits(request.database)
    settings = KeyValueSettings.from_json(request.settings)
    if request.database in host.store.keyvalue_names():
        raise ExistsError(f"key-value database {request.database!r} exists already")
    host.store.keyvalue(request.database, settings)
    return KnownSettings(database=request.database, settings=settings.to_json())


def drop_keyvalue(host: Host, request: NameKeyValue) -> Dropped:
    """Delete a key-value database with all its rows. Raises: NotFoundError, UsageError."""
    refuse_commits(request.database)
    host.store.drop_keyvalue(request.database)
    return Dropped(dropped=request.database)


def describe_keyvalue(host: Host, request: NameKeyValue) -> KnownSettings:
    """Return the settings of a key-value database. Raises: NotFoundError."""
    settings = known_keyvalue(host, request.database).settings
    return KnownSettings(database=request.database, settings=settings.to_json())


def commit(host: Host, request: Commit) -> CommitResult:
    """Commit a transaction without reads. Raises: the errors of `Transaction.commit`."""
    with begin(host, request.begin) as transaction:
        apply(transaction, request.operations, request.payload)
        serial = transaction.commit()
    return CommitResult(serial=serial, duplicate=transaction.duplicate)


def find_outcome(host: Host, request: FindOutcome) -> FoundOutcome:
    """Return whether a transaction was committed. Raises: NotFoundError, UsageError."""
    database = known_keyvalue(host, request.database)
    return FoundOutcome(serial=database.outcome(request.id, shard=request.shard, key=request.key))


def begin(host: Host, request: Begin) -> Transaction:
    """Begin a transaction. Raises: the errors of `KeyValueDatabase.transaction`."""
    return known_keyvalue(host, request.database).transaction(
        shard=request.shard,
        key=request.key,
        generation=request.generation,
        timeout=request.timeout,
        id=request.id,
    )


def known_keyvalue(host: Host, name: str) -> KeyValueDatabase:
    """Return an existing database that is not for the broker alone. Raises: NotFoundError."""
    refuse_commits(name)
    return host.store.keyvalue(name, create=False)


def refuse_commits(name: str) -> None:
    """Refuse the database of positions. Raises: UsageError."""
    if name == COMMITS:
        raise UsageError(
            f"database {COMMITS} holds the positions of sessions, share groups and topic logs; "
            f"it cannot be created, changed or dropped"
        )


def apply(transaction: Transaction, operations: Sequence[Operation], payload: bytes) -> None:
    """Make the changes in a transaction. Raises: UsageError, InvalidTopicError."""
    start = 0
    for operation in operations:
        size = 0
        match operation:
            case ["write", topic, time_us, int(size)]:
                at = MONOTONIC if time_us is None else time_us
                if size == SERIAL:
                    size = 0
                    transaction.write(topic, COMMIT_SERIAL, at)
                else:
                    transaction.write(topic, _piece(payload, start, size), at)
            case ["add", topic, amount, int(size)]:
                transaction.add(topic, amount, _piece(payload, start, size))
            case ["delete", topic_filter, since_us, until_us]:
                until = MONOTONIC if until_us == NOW else until_us
                transaction.delete(topic_filter, since_us, until)
            case ["require", topic, time_us, None]:
                transaction.require_present(topic, LATEST if time_us is None else time_us)
            case ["require", topic, time_us, int(size)]:
                at = LATEST if time_us is None else time_us
                transaction.require_present(topic, at, _piece(payload, start, size))
            case ["absent", topic, time_us]:
                transaction.require_absent(topic, LATEST if time_us is None else time_us)
            case ["owner", topic, time_us, serial]:
                transaction.require_owner(topic, serial, LATEST if time_us is None else time_us)
            case _:
                raise UsageError(f"unknown change in a transaction: {operation!r:.100}")
        start += size
    if start != len(payload):
        raise UsageError(f"the values have {start} bytes, but {len(payload)} bytes were sent")


def _piece(payload: bytes, start: int, size: int) -> bytes:
    if not 0 <= size <= len(payload) - start:
        raise UsageError(f"a value has more bytes than were sent: size_bytes={size}")
    return payload[start : start + size]


KEYVALUE_VERBS: Final = (
    Verb(
        name="kv-create",
        request=CreateKeyValue,
        response=KnownSettings,
        role=RequiredRight.MANAGE,
        where="either",
        run=create_keyvalue,
    ),
    Verb(
        name="kv-drop",
        request=NameKeyValue,
        response=Dropped,
        role=RequiredRight.MANAGE,
        where="either",
        run=drop_keyvalue,
    ),
    Verb(
        name="kv-info",
        request=NameKeyValue,
        response=KnownSettings,
        role=RequiredRight.READ,
        where="either",
        run=describe_keyvalue,
    ),
    Verb(
        name="kv-commit",
        request=Commit,
        response=CommitResult,
        role=RequiredRight.WRITE,
        where="either",
        run=commit,
    ),
    Verb(
        name="kv-outcome",
        request=FindOutcome,
        response=FoundOutcome,
        role=RequiredRight.READ,
        where="either",
        run=find_outcome,
    ),
    Verb(name="tx-begin", request=Begin, response=Begun, role=RequiredRight.READ, where="broker"),
    Verb(
        name="tx-change",
        request=AddChanges,
        response=Begun,
        role=RequiredRight.READ,
        where="broker",
    ),
    Verb(name="tx-see", request=Nothing, response=Seen, role=RequiredRight.READ, where="broker"),
    Verb(name="tx-get", request=Get, response=Value, role=RequiredRight.READ, where="broker"),
    Verb(name="tx-read", request=ReadRows, response=Rows, role=RequiredRight.READ, where="broker"),
    Verb(name="tx-more", request=Nothing, response=Rows, role=RequiredRight.READ, where="broker"),
    Verb(
        name="tx-commit",
        request=Nothing,
        response=CommitResult,
        role=RequiredRight.WRITE,
        where="broker",
    ),
    Verb(
        name="tx-discard", request=Nothing, response=Begun, role=RequiredRight.READ, where="broker"
    ),
)
