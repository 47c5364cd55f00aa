"""Targets of staged rows: a data directory, or a node.

A directory has one writer. If no process has it open, the committer opens it for the time of the
commit. If a broker has it open, the commit goes through the socket of the broker in the directory,
so that subscribers receive the rows too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import PurePath
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import quote

import pyarrow as pa

from siltstone.errors import LockedError, OutcomeUnknownError, RetryError
from siltstone.flight.access import AnyUser
from siltstone.flight.appending import StagedCommits
from siltstone.flight.client import NodeClient
from siltstone.fs.api import FileSystem
from siltstone.fs.paths import StorePaths
from siltstone.scan.ingest.columns import ROWS_SCHEMA
from siltstone.scan.ingest.staging import Staging, StagingResult, WriteBatch
from siltstone.scan.node import Node
from siltstone.scan.survey import find_database
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.log.write.partition import Columns

DATABASE: Final = "messages"
# Enough time for a node to restart, or for another writer to close the directory.
_PATIENCE_SECONDS: Final = 30.0
_PAUSE_SECONDS: Final = 0.1
T = TypeVar("T")


class StagingTarget(Protocol):
    """Accepts rows of ROWS_SCHEMA in two steps: many tasks stage, one commits."""

    def prepare(self) -> None:
        """Make sure that rows can be staged; called once, before the first `stage`."""
        ...

    def stage(self, batch: WriteBatch, rows: Iterable[pa.RecordBatch]) -> str | None:
        """Write rows durably; return their name, None for no rows."""
        ...

    def commit(self, batch: WriteBatch, names: Sequence[str], *, forget: bool) -> StagingResult:
        """Append the staged rows, exactly once. Raises: SiltstoneError; then commit again."""
        ...

    def discard(self, batch: WriteBatch, names: Sequence[str]) -> None:
        """Remove staged rows that will not be committed."""
        ...


class NodeTarget:
    """A node that serves Flight."""

    def __init__(self, node: Node, database: str) -> None:
        self._node = node
        self._database = database

    def prepare(self) -> None:
        pass

    def stage(self, batch: WriteBatch, rows: Iterable[pa.RecordBatch]) -> str | None:
        request = {"stage": {"write": batch.write, "batch": batch.number}}
        with NodeClient(self._node) as client:
            (answer,) = client.put(request, ROWS_SCHEMA, rows)
        name: str | None = answer["name"]
        return name

    def commit(self, batch: WriteBatch, names: Sequence[str], *, forget: bool) -> StagingResult:
        return _patiently(lambda: self.commit_once(batch, names, forget=forget))

    def commit_once(
        self, batch: WriteBatch, names: Sequence[str], *, forget: bool
    ) -> StagingResult:
        """Commit without waiting for a node that does not answer. Raises: RetryError."""
        answer = self._act("commit", batch, names, forget=forget)
        return StagingResult(rows=answer["rows"], repeated=answer["repeated"])

    def discard(self, batch: WriteBatch, names: Sequence[str]) -> None:
        self._act("discard", batch, names)

    def _act(
        self, name: str, batch: WriteBatch, names: Sequence[str], *, forget: bool = False
    ) -> dict[str, Any]:
        request = {
            "database": self._database,
            "write": batch.write,
            "batch": batch.number,
            "names": list(names),
            "forget": forget,
        }
        with NodeClient(self._node) as client:
            return client.act(name, request)


class DirectoryTarget:
    """A data directory; it and its database are created if they do not exist."""

    def __init__(self, fs: FileSystem, path: PurePath, database: str) -> None:
        self._fs = fs
        self._path = path
        self._database = database
        self._staging = Staging(fs, path)

    def prepare(self) -> None:
        """Create the data directory, unless it exists or another process creates it."""
        if not self._fs.exists(StorePaths(self._path).version):
            with suppress(LockedError), Store(self._path, fs=self._fs) as store:
                self._opened(store)

    def stage(self, batch: WriteBatch, rows: Iterable[pa.RecordBatch]) -> str | None:
        return self._staging.stage(batch, rows)

    def commit(self, batch: WriteBatch, names: Sequence[str], *, forget: bool) -> StagingResult:
        return _patiently(lambda: self.commit_once(batch, names, forget=forget))

    def discard(self, batch: WriteBatch, names: Sequence[str]) -> None:
        self._staging.discard(batch, names)

    def commit_once(
        self, batch: WriteBatch, names: Sequence[str], *, forget: bool
    ) -> StagingResult:
        """Commit without waiting for another writer to close. Raises: LockedError, RetryError."""
        try:
            with Store(self._path, fs=self._fs) as store:
                return StagedCommits(self._staging, _unheard).commit(
                    self._opened(store), batch, names, visitor=AnyUser(), forget=forget
                )
        except LockedError as exc:
            if not self._fs.exists(StorePaths(self._path).flight_socket):
                raise LockedError(
                    f"a broker writes this directory and does not accept rows from Spark: set "
                    f"flight.enabled = true in its settings: path={self._path}"
                ) from exc
        broker = NodeTarget(socket_node(self._path), self._database)
        return broker.commit_once(batch, names, forget=forget)

    def _opened(self, store: Store) -> Database:
        if not self._database and not [name for name in store.names() if name[0] != "_"]:
            return store.ensure(DATABASE)
        if self._database:
            return store.ensure(self._database)
        return find_database(store, "")


def socket_node(data: PurePath) -> Node:
    """Return the node of the broker's socket in its data directory."""
    return Node(url=f"grpc+unix://{quote(str(StorePaths(data).flight_socket))}")


def _unheard(database: str, rows: Columns) -> None:
    """Do nothing: without a broker there are no subscribers."""


def _patiently(commit: Callable[[], T]) -> T:
    """Retry a commit for a limited time; committing twice has the same result as once."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            return commit()
        except (LockedError, OutcomeUnknownError, RetryError):
            if time.monotonic() >= deadline:
                raise
        time.sleep(_PAUSE_SECONDS)
