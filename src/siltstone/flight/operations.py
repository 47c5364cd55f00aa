"""The operations of a node that Flight clients call, without the Flight calls themselves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol

import pyarrow as pa
from pyarrow import flight

from siltstone.errors import UsageError
from siltstone.flight.access import FlightUser
from siltstone.flight.appending import Announce, StagedCommits, append_rows, check_writable
from siltstone.flight.reading import Reads, public_database
from siltstone.flight.wire import (
    BEGIN,
    END,
    REQUEST,
    admitted_to_json,
    extents_to_json,
    identity_to_json,
    positions_in,
)
from siltstone.fs.api import FileSystem
from siltstone.scan.columns.schema import SCHEMA
from siltstone.scan.ingest.columns import Given, check_rows, rows_of
from siltstone.scan.ingest.staging import WriteBatch
from siltstone.scan.options import parse_start_times
from siltstone.scan.origin import DatabaseOrigin
from siltstone.scan.survey import require_read
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.feed.position import Position
from siltstone.store.log.arguments import DURABILITIES
from siltstone.store.writer.ticket import Ticket

ACTIONS: Final = {
    "admit": "How far the next step of a stream goes.",
    "commit": "Append staged rows, exactly once.",
    "discard": "Remove staged rows.",
    "extents": "The serials of every slab of a database.",
    "seek": "The first serial of every shard at or after a time.",
    BEGIN: "Begin a link for management and transactions.",
    REQUEST: "Manage the store, or use a transaction.",
    END: "End a link.",
}
_UNDER_WAY_MAX: Final = 8
# A put of a producer has one sequence; this number of low bits counts its parts.
_PART_BITS: Final = 24

Answer = dict[str, Any]


class Management(Protocol):
    """Executes requests of management; its methods may be called from any thread, and block."""

    def begin(self) -> str:
        """Begin a link; return its id. Raises: OverloadedError."""
        ...

    def answer(self, link: str, request: bytes) -> bytes:
        """Execute a request: a line, and bytes. Raises: RetryError if the link has ended."""
        ...

    def end(self, link: str) -> None:
        """End a link; its open transaction is discarded."""
        ...


class FlightOperations:
    """The operations on one store; `announce` receives the rows that are appended.

    Without `management`, the node only reads and appends.
    """

    def __init__(
        self,
        fs: FileSystem,
        store: Store,
        commits: StagedCommits,
        announce: Announce,
        management: Management | None = None,
    ) -> None:
        self._store = store
        self._commits = commits
        self._announce = announce
        self._management = management
        self.reads = Reads(fs, store)

    def flights(self, criteria: str, visitor: FlightUser) -> Iterator[flight.FlightInfo]:
        """Yield the databases, or the streams of the database that the criteria name.

        Raises: UsageError, NotFoundError.
        """
        if not criteria:
            for name in self._store.names():
                # The internal databases of the broker are not listed.
                if not name.startswith("_"):
                    yield _info([name], -1)
            return
        rows: dict[str, int] = {}
        for info in public_database(self._store, criteria).structure():
            rows[info.pattern] = rows.get(info.pattern, 0) + info.rows
        for pattern, count in sorted(rows.items()):
            if visitor.may_read([pattern]) is None:
                yield _info([criteria, pattern], count)

    def act(self, name: str, request: Answer, visitor: FlightUser) -> Answer:
        """Run one of ACTIONS. Raises: SiltstoneError."""
        match name:
            case "extents":
                database = self.reads.database(self.reads.options(request.get("options"), visitor))
                reached = Position.parse(str(request.get("reached", "earliest")), "reached")
                if reached.is_of(database.origin):
                    require_read(database, reached.serials)
                tiered = self.reads.tiered(database.name)
                return identity_to_json(database.origin) | {
                    "extents": extents_to_json(database.extents()),
                    "tiered": {str(shard): serial for shard, serial in tiered.items()},
                }
            case "admit":
                start, end = positions_in(request.get("start")), positions_in(request.get("end"))
                if start.keys() != end.keys():
                    raise UsageError("start and end must have the same shards")
                origin = self._origin(request, visitor)
                require_read(origin.database, end)
                admitted = origin.admit(
                    {shard: range(serial, end[shard]) for shard, serial in start.items()},
                    rows_max=_number(request, "rows"),
                    bytes_max=_number(request, "bytes"),
                )
                return admitted_to_json(admitted)
            case "seek":
                times = parse_start_times(str(request.get("times")), "times")
                starts = self._origin(request, visitor).seek(times)
                return {"starts": {str(key): at for key, at in starts.items()}}
            case "commit":
                done = self._commits.commit(
                    self._database(request),
                    _batch(request),
                    _names(request),
                    visitor=visitor,
                    forget=request.get("forget") is True,
                )
                return {"rows": done.rows, "repeated": done.repeated}
            case "discard":
                self._commits.staging.discard(_batch(request), _names(request))
                return {}
            case _:
                raise UsageError(f"unknown action {name!r} (supported: {', '.join(ACTIONS)})")

    def manage(self, name: str, body: bytes, visitor: FlightUser) -> bytes:
        """Run one of the actions of management. Raises: SiltstoneError; then nothing happened."""
        if not visitor.may_manage:
            raise UsageError(
                "this user may not manage the store over Flight: add the user to the setting "
                "flight.managers of the broker"
            )
        if self._management is None:
            raise UsageError("this node serves no management")
        if name == BEGIN:
            return self._management.begin().encode()
        link, _, request = body.partition(b"\n")
        if name == REQUEST:
            return self._management.answer(link.decode(errors="replace"), request)
        self._management.end(link.decode(errors="replace"))
        return b""

    def put(
        self, request: Answer, batches: Iterable[pa.RecordBatch], visitor: FlightUser
    ) -> Iterator[Answer]:
        """Append or stage rows. Raises: SiltstoneError."""
        match request:
            case {"append": dict(how)}:
                return self._append(how, batches, visitor)
            case {"stage": dict(which)}:
                return self._stage(which, batches, visitor)
            case _:
                raise UsageError("the request must be append or stage")

    def _append(
        self, how: Answer, batches: Iterable[pa.RecordBatch], visitor: FlightUser
    ) -> Iterator[Answer]:
        """Append each batch, a few at a time; answer in order, once they are as durable as
        requested.
        """
        database = self._database(how)
        durability = how.get("durability", "synced")
        if durability not in DURABILITIES:
            raise UsageError(f"durability must be one of {DURABILITIES}: durability={durability!r}")
        producer, sequence = how.get("producer"), _number(how, "sequence")
        if (producer is None) != (sequence is None):
            raise UsageError("set both producer and sequence, or neither")
        number = 0
        under_way: list[tuple[int, list[Ticket]]] = []
        for batch in batches:
            tickets = []
            for part in rows_of(batch, Given()):
                place = None
                if producer is not None and sequence is not None:
                    place = (str(producer), sequence << _PART_BITS | number)
                tickets.append(
                    append_rows(
                        database,
                        part,
                        visitor=visitor,
                        announce=self._announce,
                        durability=durability,
                        producer=place,
                    )
                )
                number += 1
            under_way.append((batch.num_rows, tickets))
            if len(under_way) == _UNDER_WAY_MAX:
                yield _appended(*under_way.pop(0))
        for rows, tickets in under_way:
            yield _appended(rows, tickets)

    def _stage(
        self, which: Answer, batches: Iterable[pa.RecordBatch], visitor: FlightUser
    ) -> Iterator[Answer]:
        def checked() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                check_rows(batch)
                check_writable(batch.column("topic").unique().to_pylist(), visitor)
                yield batch

        yield {"name": self._commits.staging.stage(_batch(which), checked())}

    def _origin(self, request: Answer, visitor: FlightUser) -> DatabaseOrigin:
        options = self.reads.options(request.get("options"), visitor)
        return DatabaseOrigin(self.reads.database(options), options)

    def _database(self, request: Answer) -> Database:
        return public_database(self._store, str(request.get("database") or ""))


def _info(path: list[str], rows: int) -> flight.FlightInfo:
    return flight.FlightInfo(SCHEMA, flight.FlightDescriptor.for_path(*path), [], rows, -1)


def _appended(rows: int, tickets: list[Ticket]) -> Answer:
    for ticket in tickets:
        ticket.wait()
    return {"rows": rows, "duplicate": bool(tickets) and all(each.duplicate for each in tickets)}


def _number(request: Answer, name: str) -> int | None:
    number = request.get(name)
    if number is not None and (type(number) is not int or not 0 <= number < 1 << 62):
        raise UsageError(f"{name} must be a number of 0 or more: {name}={number!r}")
    return number


def _batch(request: Answer) -> WriteBatch:
    number = _number(request, "batch")
    write = request.get("write")
    if number is None or not isinstance(write, str):
        raise UsageError("the request to stage rows must have write and batch")
    return WriteBatch(write=write, number=number)


def _names(request: Answer) -> list[str]:
    names = request.get("names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError("names must be a list of the names of staged files")
    return names
