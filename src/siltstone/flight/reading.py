"""Reads over Flight: options become a plan of tickets, and tickets become rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import PurePath
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import flight

from siltstone.errors import NotFoundError, SlabDroppedError, UsageError
from siltstone.flight.access import FlightUser
from siltstone.flight.wire import (
    ReadTicket,
    SerialSpan,
    decode_ticket,
    dump,
    identity_in,
    options_in,
    positions_in,
)
from siltstone.fs.api import FileSystem
from siltstone.fs.paths import StorePaths
from siltstone.scan.columns.schema import table_schema
from siltstone.scan.options import ReadOptions, parse_options, request_options
from siltstone.scan.plan import PartitionLimits, SlabFrames, pack
from siltstone.scan.portion import Portion
from siltstone.scan.survey import (
    Plan,
    choose,
    find_database,
    plan_batch,
    plan_micro_batch,
    require_read,
)
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.log.read.selection import SlabExtent
from siltstone.store.slab.manifest import SlabId
from siltstone.store.slab.marks import read_tiered

_EVERYTHING: Final = PartitionLimits(bytes_max=1 << 62)
_NODE_ONLY: Final = ("path", "url")


class Reads:
    """Plans and runs reads of one store, with the rights of the user."""

    def __init__(self, fs: FileSystem, store: Store) -> None:
        self._fs = fs
        self._store = store

    def options(self, values: object, visitor: FlightUser) -> ReadOptions:
        """Parse the options of a request, and check the rights of the user. Raises: UsageError."""
        given = options_in(values)
        if named := [name for name in given if name.lower() in _NODE_ONLY]:
            raise UsageError(
                f"option {named[0]} is for the client only: do not send it to the node"
            )
        options = parse_options(given | {"path": str(self._store.path)})
        if options.decode != "raw":
            raise UsageError("a node does not decode payloads: decode them in the client")
        refused = visitor.may_read(options.filters)
        if refused is not None:
            raise UsageError(f"this user may not read the topics of the filter: filter={refused!r}")
        return options

    def database(self, options: ReadOptions) -> Database:
        """Open the database of the options. Raises: NotFoundError, UsageError."""
        return public_database(self._store, options.database)

    def tiered(self, database: str) -> dict[int, int]:
        """Return the serial of each shard before which all rows were copied to the lake."""
        return read_tiered(self._fs, StorePaths(self._store.path).database(database)) or {}

    def plan(
        self, descriptor: flight.FlightDescriptor, request: dict[str, Any], visitor: FlightUser
    ) -> flight.FlightInfo:
        """Plan a read; each endpoint is for one reader. Raises: SiltstoneError."""
        between = request.pop("between", None)
        options = self.options(request, visitor)
        database = self.database(options)
        if isinstance(between, Mapping):
            require_read(database, positions_in(between.get("end")))
        plan = _planned(database, options, between)
        asked = request_options(replace(options, database=database.name))
        endpoints = [
            flight.FlightEndpoint(
                ReadTicket(
                    options=asked, spans=_spans(portion), identity=database.identity
                ).encode(),
                [],
            )
            for portion in plan.partitions
        ]
        return flight.FlightInfo(
            table_schema(options.columns),
            descriptor,
            endpoints,
            -1,
            plan.report.bytes_read,
            app_metadata=dump(asdict(plan.report)),
        )

    def get(
        self, encoded: bytes, visitor: FlightUser
    ) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Return the rows of a ticket. Raises: SiltstoneError, also while they are read."""
        ticket = decode_ticket(encoded)
        options = self.options(ticket.options, visitor)
        schema = table_schema(options.columns)
        database = self.database(options)
        _require_same(database, ticket.identity, "ticket")
        ends: dict[int, int] = {}
        for span in ticket.spans:
            shard = span.slab.shard
            ends[shard] = max(span.serials.stop, ends.get(shard, 0))
        require_read(database, ends)
        rows = self._rows(options, ticket.spans, schema, visitor)
        return schema, rows

    def _rows(
        self,
        options: ReadOptions,
        spans: tuple[SerialSpan, ...],
        schema: pa.Schema,
        visitor: FlightUser,
    ) -> Iterator[pa.RecordBatch]:
        database = self.database(options)
        portions = self._portions(database, options, spans)
        if visitor.unlimited:
            for portion in portions:
                yield from portion.batches(self._fs, options, schema)
            return
        known: dict[bytes, bool] = {}
        with_topic = table_schema([*dict.fromkeys(["topic", *options.columns])])
        for portion in portions:
            for batch in portion.batches(self._fs, options, with_topic):
                allowed = _allowed(batch, visitor, known)
                if allowed.num_rows:
                    yield allowed.select(options.columns)

    def _portions(
        self, database: Database, options: ReadOptions, spans: tuple[SerialSpan, ...]
    ) -> list[Portion]:
        chosen: list[SlabFrames] = []
        for span in spans:
            extent = SlabExtent(slab=span.slab, serials=span.serials, since_us=0, until_us=None)
            choice = choose(database, options, extent, span.serials)
            if choice is not None:
                chosen.append(
                    SlabFrames(
                        slab=span.slab,
                        wanted=choice.wanted,
                        serials=span.serials,
                        frames=_EVERYTHING.joined(choice),
                    )
                )
        directory = StorePaths(PurePath(options.path)).database(database.name)
        return pack(chosen, _EVERYTHING, str(directory)).partitions


def public_database(store: Store, name: str) -> Database:
    """Open a database that clients may access. Raises: NotFoundError, UsageError."""
    # The internal databases of the broker are hidden: a write to them would change its state.
    if name.startswith("_"):
        raise NotFoundError(f"database {name!r} does not exist")
    return find_database(store, name)


def _planned(database: Database, options: ReadOptions, between: object) -> Plan[Portion]:
    if between is None:
        for named in (options.batch_start(), options.ending):
            if named.is_of(database.origin):
                require_read(database, named.serials)
        return plan_batch(database, options)
    if not isinstance(between, Mapping):
        raise UsageError("between must be a JSON object with start and end")
    _require_same(database, identity_in(between), "step")
    start, end = positions_in(between.get("start")), positions_in(between.get("end"))
    return plan_micro_batch(database, options, start, end)


def _require_same(database: Database, identity: str, noun: str) -> None:
    """Raise SlabDroppedError if the serials belong to another database of this name."""
    if identity not in ("", database.identity):
        raise SlabDroppedError(
            f"the {noun} belongs to an earlier database of this name, which was dropped; plan the "
            f"read again: {noun}={identity} database={database.identity}"
        )


def _spans(portion: Portion) -> tuple[SerialSpan, ...]:
    """Return the range of serials of a portion in each slab; no other portion has rows in it."""
    bounds: dict[SlabId, range] = {}
    for run in portion.runs:
        first = bounds.get(run.slab, range(run.start_serial, run.start_serial)).start
        bounds[run.slab] = range(first, run.stop_serial)
    return tuple(SerialSpan(slab=slab, serials=serials) for slab, serials in bounds.items())


def _allowed(
    batch: pa.RecordBatch, visitor: FlightUser, known: dict[bytes, bool]
) -> pa.RecordBatch:
    """Return the rows of a batch whose topics the user may read."""
    topics = batch.column("topic")
    distinct = [topic.encode() for topic in topics.unique().to_pylist()]
    unknown = [topic for topic in distinct if topic not in known]
    if unknown:
        refused = visitor.unreadable(unknown)
        known.update({topic: topic not in refused for topic in unknown})
    readable = pa.array([topic.decode() for topic in distinct if known[topic]], pa.string())
    if len(readable) == len(distinct):
        return batch
    return batch.filter(pc.is_in(topics, readable))
