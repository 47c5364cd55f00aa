"""A Flight server in this process, over a store that a test has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from siltstone.bulk.node import Node
from siltstone.bulk.staging import Staging
from siltstone.directory import Store
from siltstone.flight.appending import Announce, Commits
from siltstone.flight.desk import Desk
from siltstone.flight.gate import Gate, OpenGate
from siltstone.flight.server import FlightServer
from siltstone.fs.api import FileSystem
from siltstone.fs.posix import PosixFileSystem
from siltstone.store.partition import Columns

END_SECONDS = 10.0


def unheard(database: str, rows: Columns) -> None:
    """Hear of rows, and do nothing."""


def desk_of(store: Store, fs: FileSystem | None = None, announce: Announce = unheard) -> Desk:
    """Return what serves a store."""
    disk = fs or PosixFileSystem()
    return Desk(disk, store, Commits(Staging(disk, store.path), announce), announce)


@contextmanager
def served(
    store: Store,
    fs: FileSystem | None = None,
    *,
    gate: Gate | None = None,
    announce: Announce = unheard,
) -> Iterator[Node]:
    """Serve a store; yield how it is reached."""
    server = FlightServer(
        "grpc+tcp://127.0.0.1:0", desk_of(store, fs, announce), gate or OpenGate()
    )
    try:
        yield Node(url=f"grpc+tcp://127.0.0.1:{server.port}")
    finally:
        assert server.close(END_SECONDS)
