from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import flight

from siltstone.errors import UsageError
from siltstone.flight.client import NodeClient
from siltstone.flight.connection import Appended, Connection, RemoteStream
from siltstone.scan.columns.schema import table_schema

BATCH = pa.RecordBatch.from_pydict({"topic": ["a/b"], "serial": [7]})


class FakeClient:
    """A node that remembers what it was asked, and answers as scripted."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answers: list[dict[str, Any]] = []
        self.closed = False

    def flights(self, criteria: bytes = b"") -> list[flight.FlightInfo]:
        path = ["messages", "a/+"] if criteria else ["messages"]
        descriptor = flight.FlightDescriptor.for_path(*path)
        return [flight.FlightInfo(BATCH.schema, descriptor, [], 5, -1)]

    def plan(self, request: object) -> flight.FlightInfo:
        self.asked.append(request)
        endpoints = [flight.FlightEndpoint(ticket, []) for ticket in (b"1", b"2")]
        return flight.FlightInfo(
            BATCH.schema, flight.FlightDescriptor.for_command(b""), endpoints, -1, -1
        )

    def get(self, ticket: bytes) -> list[pa.RecordBatch]:
        self.asked.append(ticket)
        return [BATCH]

    def put(
        self, request: object, schema: pa.Schema, batches: list[pa.RecordBatch]
    ) -> list[dict[str, Any]]:
        self.asked.append((request, pa.Table.from_batches(batches, schema).to_pylist()))
        return self.answers

    def close(self) -> None:
        self.closed = True


def connection() -> tuple[FakeClient, Connection]:
    client = FakeClient()
    return client, Connection(cast("NodeClient", client))


def test_databases_and_streams_are_named() -> None:
    client, node = connection()
    with node:
        assert node.databases() == ["messages"]
        assert node.streams("messages") == [RemoteStream(pattern="a/+", rows=5)]
    assert client.closed


def test_the_rows_of_all_tickets_are_one_table() -> None:
    client, node = connection()
    rows = node.read("a/#", columns=["levels", "serial"])
    table = rows.arrow()
    assert table.schema == table_schema(["levels", "serial"])
    assert table.to_pylist() == [{"levels": ["a", "b"], "serial": 7}] * 2
    assert client.asked == [{"filter": ["a/#"], "columns": "topic,serial"}, b"1", b"2"]


def test_times_are_asked_for_in_a_form_that_cannot_be_mistaken() -> None:
    client, node = connection()
    node.read(
        ["a", "b"],
        database="d",
        since=1_500_000,
        until=datetime(2026, 1, 31, tzinfo=UTC),
        columns=["topic"],
    )
    node.read(since="2026-01-01", columns=["topic"])
    assert client.asked == [
        {
            "filter": ["a", "b"],
            "columns": "topic",
            "database": "d",
            "startTime": "1970-01-01T00:00:01.500000+00:00",
            "endTime": "2026-01-31T00:00:00+00:00",
        },
        {"filter": ["#"], "columns": "topic", "startTime": "2026-01-01"},
    ]


def test_an_unknown_column_is_refused_here() -> None:
    with pytest.raises(UsageError, match=r"unknown column colour .supported: topic"):
        connection()[1].read(columns=["colour"])


def test_rows_of_python_are_sent_with_the_types_of_the_table() -> None:
    client, node = connection()
    client.answers = [{"rows": 2, "duplicate": True}]
    rows = [
        {"topic": "a", "payload": "x", "properties": {"k": "v"}},
        {"topic": "b", "payload": b"y"},
    ]
    assert node.append(rows, producer=("p", 3)) == Appended(rows=2, duplicate=True)
    how = {"database": "", "durability": "synced", "producer": "p", "sequence": 3}
    assert client.asked == [
        (
            {"append": how},
            [
                {"topic": "a", "payload": b"x", "properties": [("k", "v")]},
                {"topic": "b", "payload": b"y", "properties": None},
            ],
        )
    ]


def test_tables_and_batches_are_sent_as_they_are() -> None:
    client, node = connection()
    node.append(BATCH)
    node.append(pa.Table.from_batches([BATCH]), durability="none", database="d")
    assert [asked[1] for asked in client.asked] == [BATCH.to_pylist()] * 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"topic": "a", "colour": 1}, "unknown column colour .supported: topic, payload"),
        ({"topic": 5, "payload": b""}, "rows have values of a wrong type"),
    ],
)
def test_a_row_that_cannot_be_sent_is_refused_here(row: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        connection()[1].append([row])
