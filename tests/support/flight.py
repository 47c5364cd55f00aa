"""A Flight server in this process, for a store of a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from siltstone.flight.access import FlightAccess, OpenAccess
from siltstone.flight.appending import Announce, StagedCommits
from siltstone.flight.operations import FlightOperations
from siltstone.flight.server import FlightServer
from siltstone.fs.api import FileSystem
from siltstone.fs.posix import PosixFileSystem
from siltstone.scan.ingest.staging import Staging
from siltstone.scan.node import Node
from siltstone.store.directory import Store
from siltstone.store.log.write.partition import Columns

END_SECONDS = 10.0


def unheard(database: str, rows: Columns) -> None:
    """Ignore announced rows."""


def desk_of(
    store: Store, fs: FileSystem | None = None, announce: Announce = unheard
) -> FlightOperations:
    """Return the operations on a store."""
    disk = fs or PosixFileSystem()
    return FlightOperations(
        disk, store, StagedCommits(Staging(disk, store.path), announce), announce
    )


@contextmanager
def served(
    store: Store,
    fs: FileSystem | None = None,
    *,
    gate: FlightAccess | None = None,
    announce: Announce = unheard,
) -> Iterator[Node]:
    """Serve a store; yield its address."""
    server = FlightServer(
        "grpc+tcp://127.0.0.1:0", desk_of(store, fs, announce), gate or OpenAccess()
    )
    try:
        yield Node(url=f"grpc+tcp://127.0.0.1:{server.port}")
    finally:
        assert server.close(END_SECONDS)
