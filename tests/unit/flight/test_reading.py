from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from siltstone.errors import SlabDroppedError, UsageError
from siltstone.flight.access import AnyUser, FlightUser
from siltstone.flight.reading import Reads
from siltstone.flight.wire import decode_ticket
from siltstone.scan.columns.schema import table_schema
from siltstone.store.directory import Store
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import NAME, World, rows_on, settings_of
from tests.support.visitors import Limited

ANYBODY = AnyUser()
DESCRIPTOR = flight.FlightDescriptor.for_command(b"{}")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def store(world: World) -> Iterator[Store]:
    with world.store() as opened:
        database = opened.create(NAME, settings_of())
        database.append(rows_on("a/1", "b/1", "a/2")).wait()
        database.seal()
        database.append(rows_on("a/1", "b/2")).wait()
        yield opened


@pytest.fixture
def reads(world: World, store: Store) -> Reads:
    return Reads(world.fs, store)


def topics(reads: Reads, request: dict[str, Any], visitor: FlightUser = ANYBODY) -> list[list[str]]:
    """Return the topics of each endpoint of a plan, fetched by its ticket."""
    info = reads.plan(DESCRIPTOR, dict(request), visitor)
    found = []
    for endpoint in info.endpoints:
        schema, rows = reads.get(endpoint.ticket.ticket, visitor)
        table = pa.Table.from_batches(rows, schema=schema)
        found.append(table.column("topic").to_pylist())
    return found


def test_a_plan_is_read_by_its_tickets(reads: Reads) -> None:
    assert topics(reads, {}) == [["a/1", "a/2", "b/1", "a/1", "b/2"]]
    parts = topics(reads, {"filter": "a/+", "maxRowsPerPartition": 2})
    assert parts == [["a/1"], ["a/2"], ["a/1"]]


def test_a_step_of_a_stream_is_planned_by_its_positions(reads: Reads) -> None:
    between = {"start": {"0": 2}, "end": {"0": 4}}
    assert [len(part) for part in topics(reads, {"between": between})] == [2]
    with pytest.raises(UsageError, match="between must be a JSON object"):
        topics(reads, {"between": 5})


def test_a_plan_says_what_it_reads(reads: Reads) -> None:
    info = reads.plan(DESCRIPTOR, {"columns": "topic,serial"}, ANYBODY)
    assert info.schema == table_schema(["topic", "serial"])
    assert b'"frames_read":2' in info.app_metadata
    (endpoint,) = info.endpoints
    ticket = decode_ticket(endpoint.ticket.ticket)
    assert ticket.options["database"] == NAME
    assert [(span.slab, span.serials) for span in ticket.spans] == [
        (SlabId(0, 1), range(3)),
        (SlabId(0, 2), range(3, 5)),
    ]


def test_rows_that_a_visitor_may_not_read_are_left_out(reads: Reads) -> None:
    limited = Limited(reads=b"a/")
    assert topics(reads, {}, limited) == [["a/1", "a/2", "a/1"]]
    with pytest.raises(
        UsageError, match="this user may not read the topics of the filter: filter='no/#'"
    ):
        topics(reads, {"filter": "no/#"}, limited)


def test_a_ticket_gives_nobody_more_rights(reads: Reads) -> None:
    info = reads.plan(DESCRIPTOR, {"filter": "nowhere/#,b/#"}, ANYBODY)
    with pytest.raises(UsageError, match="this user may not read the topics of the filter: filter"):
        reads.get(info.endpoints[0].ticket.ticket, Limited())


def test_a_slab_that_was_dropped_since_is_told_of(reads: Reads, store: Store) -> None:
    plans = [
        reads.plan(DESCRIPTOR, {"failOnDataLoss": word}, ANYBODY).endpoints[0].ticket.ticket
        for word in ("true", "false")
    ]
    store.database(NAME).drop_slab(SlabId(0, 1))
    with pytest.raises(SlabDroppedError, match="failOnDataLoss"):
        list(reads.get(plans[0], ANYBODY)[1])
    assert sum(batch.num_rows for batch in reads.get(plans[1], ANYBODY)[1]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "/etc"}, "option path is for the client only"),
        ({"URL": "grpc://x"}, "option URL is for the client only"),
        ({"decode": "json"}, "a node does not decode payloads: decode them in the client"),
        ({"colour": "red"}, "unknown option colour"),
    ],
    ids=str,
)
def test_options_that_are_not_for_a_node_are_refused(
    reads: Reads, options: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        topics(reads, options)
