"""Reads over Flight at sites of a cluster: they continue at another site, with the same rows."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from contextlib import closing as release
from dataclasses import replace
from pathlib import Path

import pytest

import siltstone
from siltstone import Store
from siltstone.clock import SystemClock
from siltstone.errors import RetryError, UsageError
from siltstone.flight.client import NodeClient
from siltstone.flight.origin import RemotePortion
from siltstone.fs.posix import PosixFileSystem
from siltstone.scan.node import Node, parse_node
from siltstone.scan.options import ReadOptions
from siltstone.scan.origin import DirectoryOrigin
from siltstone.store.database import Database
from siltstone.store.feed.position import Position
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.settings import DatabaseSettings
from tests.integration.test_replicated_store import until
from tests.support.compacting import compact_all
from tests.support.cutting_proxy import CuttingProxy
from tests.support.flight import served
from tests.support.shared_log import MemorySite, SharedLogs

pytestmark = [pytest.mark.timeout(200)]
ROWS = 600
PLAN = {"options": {"database": "m", "columns": "topic,payload,serial"}}


class Site:
    """A site with its store on disk, and its Flight server until `die`."""

    def __init__(self, closing: ExitStack, logs: SharedLogs, directory: Path, name: str) -> None:
        self.site = MemorySite(name, logs)
        self.store = Store(
            directory / name, fs=PosixFileSystem(), clock=SystemClock(), cluster=self.site
        )
        closing.callback(self.store.close)
        settings = DatabaseSettings(backend="replicated", segment_bytes=64 * 1024)
        self.database: Database = self.store.ensure("m", settings)
        self._serving = ExitStack()
        closing.callback(self._serving.close)
        self.node: Node = self._serving.enter_context(served(self.store))

    def die(self) -> None:
        """End the server."""
        self._serving.close()

    def cut(self) -> None:
        """Let the site read nothing more."""
        self.site.crash()


@pytest.fixture
def closing() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def two(closing: ExitStack, directory: Path) -> tuple[Site, Site]:
    """Return two sites with the same rows, which the second one has compacted."""
    logs = SharedLogs()
    first, second = (Site(closing, logs, directory, name) for name in "ab")
    log = first.site.attached["m", 0]
    log.claim()
    until(lambda: log.view.leads, "a leads")
    fill(first, second, 0, ROWS)
    first.database.seal()
    fill(first, second, ROWS, 10)
    assert compact_all(second.database)
    assert first.database.slabs()[0].compacted == 0
    return first, second


def fill(first: Site, second: Site, start: int, count: int) -> None:
    for at in range(start, start + count, 5):
        values = [b"%d-%s" % (number, secrets.token_hex(1000).encode()) for number in range(5)]
        rows = [Row(f"t/{at % 7}", value) for value in values]
        first.database.append(rows).wait()
    end = count_of(first.database)
    until(lambda: count_of(second.database) == end, "both have all rows")


def count_of(database: Database) -> int:
    return sum(batch.num_rows for batch in database.read("#", columns=["serial"]))


def both(first: Site, second: Site) -> Node:
    return parse_node(f"{first.node.url},{second.node.url}")


def rows_of(client: NodeClient, tickets: list[bytes]) -> list[dict[str, object]]:
    return [row for ticket in tickets for batch in client.get(ticket) for row in batch.to_pylist()]


def tickets_of(client: NodeClient) -> list[bytes]:
    return [endpoint.ticket.ticket for endpoint in client.plan(PLAN["options"]).endpoints]


def test_a_ticket_gives_the_same_rows_in_the_same_order_at_each_site(
    closing: ExitStack, tmp_path: Path
) -> None:
    first, second = two(closing, tmp_path)
    with NodeClient(first.node) as one, NodeClient(second.node) as other:
        for client in (one, other):
            tickets = tickets_of(client)
            rows = rows_of(one, tickets)
            assert len(rows) == ROWS + 10
            assert rows == rows_of(other, tickets)


def test_a_query_continues_at_another_site_when_one_dies(
    closing: ExitStack, tmp_path: Path
) -> None:
    first, second = two(closing, tmp_path)
    with NodeClient(first.node) as one:
        expected = rows_of(one, tickets_of(one))
    with NodeClient(both(first, second)) as client:
        tickets = tickets_of(client)
        first.die()
        assert rows_of(client, tickets) == expected
        # A plan works there too.
        assert rows_of(client, tickets_of(client)) == expected


@pytest.mark.parametrize("after_bytes", [100_000, 400_000, 900_000])
def test_a_query_continues_behind_the_rows_that_it_has(
    closing: ExitStack, tmp_path: Path, after_bytes: int
) -> None:
    first, second = two(closing, tmp_path)
    with NodeClient(first.node) as one:
        tickets = tickets_of(one)
        expected = rows_of(one, tickets)
    port = int(first.node.url.rpartition(":")[2])
    proxy = closing.enter_context(CuttingProxy(port, cuts=1, after_bytes=after_bytes))
    failing = parse_node(f"grpc+tcp://127.0.0.1:{proxy.port},{second.node.url}")
    with NodeClient(failing) as client:
        assert rows_of(client, tickets) == expected
    assert proxy.cuts_left == 0


def test_a_query_that_accepts_loss_does_not_continue_behind_the_rows_that_it_has(
    closing: ExitStack, tmp_path: Path
) -> None:
    first, second = two(closing, tmp_path)
    with NodeClient(first.node) as one:
        # A query of several batches.
        plan = one.plan(PLAN["options"] | {"rowsPerBatch": "50"})
        ticket = plan.endpoints[0].ticket.ticket
        schema = next(iter(one.get(ticket))).schema
    port = int(first.node.url.rpartition(":")[2])
    proxy = closing.enter_context(CuttingProxy(port, cuts=1, after_bytes=400_000))
    failing = parse_node(f"grpc+tcp://127.0.0.1:{proxy.port},{second.node.url}")
    options = ReadOptions(database="m", node=failing, fails_on_loss=False)
    batches = RemotePortion(ticket).batches(PosixFileSystem(), options, schema)
    assert next(batches).num_rows > 0
    with pytest.raises(RetryError, match="cannot connect"):
        list(batches)
    first.die()
    failing = both(first, second)
    options = ReadOptions(database="m", node=failing, fails_on_loss=False)
    whole = RemotePortion(ticket).batches(PosixFileSystem(), options, schema)
    assert sum(batch.num_rows for batch in whole) > 0


def test_a_program_reads_at_the_site_that_is_left(closing: ExitStack, tmp_path: Path) -> None:
    first, second = two(closing, tmp_path)
    first.die()
    with siltstone.connect(f"{first.node.url},{second.node.url}") as node:
        assert node.databases() == ["m"]
        assert node.read(database="m").arrow().num_rows == ROWS + 10


def test_a_site_that_is_behind_answers_not_yet_rather_than_fewer_rows(
    closing: ExitStack, tmp_path: Path
) -> None:
    first, second = two(closing, tmp_path)
    with NodeClient(first.node) as one, NodeClient(second.node) as other:
        second.cut()
        rows = [Row("t/1", b"new-%d" % number) for number in range(20)]
        first.database.append(rows).wait()
        tickets = tickets_of(one)
        with pytest.raises(RetryError, match="has not read all rows"):
            rows_of(other, tickets)
    with NodeClient(both(second, first)) as client:
        # The one that is behind comes first.
        found = rows_of(client, tickets)
        assert [row["payload"] for row in found[-20:]] == [b"new-%d" % n for n in range(20)]
        assert len(found) == ROWS + 30


def test_a_stream_of_the_directory_of_a_site_that_is_behind_does_not_go_back(
    closing: ExitStack, tmp_path: Path
) -> None:
    first, second = two(closing, tmp_path)
    second.cut()
    before = second.database.extents()
    rows = [Row("t/1", b"new-%d" % number) for number in range(20)]
    first.database.append(rows).wait()
    end = max(each.serials.stop for each in first.database.extents())
    options = ReadOptions(database="m", path=str(tmp_path / "b"), fails_on_loss=False)
    with release(DirectoryOrigin(PosixFileSystem(), options)) as origin:
        reached = Position({0: end}, origin.identity().text)
        with pytest.raises(RetryError, match="has not read all rows"):
            origin.extents(reached)
    strict = replace(options, fails_on_loss=True)
    with release(DirectoryOrigin(PosixFileSystem(), strict)) as origin:
        # The caller refuses the loss.
        assert origin.extents(reached) == before


def test_without_any_site_the_error_of_the_last_one_is_told(
    closing: ExitStack, tmp_path: Path
) -> None:
    first, second = two(closing, tmp_path)
    first.die()
    second.die()
    with (
        NodeClient(both(first, second)) as client,
        pytest.raises(RetryError, match="cannot connect"),
    ):
        tickets_of(client)


def test_each_address_must_be_one() -> None:
    with pytest.raises(UsageError, match="url must have"):
        parse_node("grpc+tcp://a:1,b:2")
