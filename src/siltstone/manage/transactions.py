"""The transaction that a connection of the control socket has open in the broker.

A transaction belongs to the thread that began it, so each connection that uses transactions has a
thread. Its number is limited. A connection has at most one open transaction, which is discarded
when the connection ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, Final, TypeVar

from siltstone.errors import OverloadedError, UsageError
from siltstone.manage.keyvalues import (
    AddChanges,
    Begin,
    Begun,
    Commit,
    CommitResult,
    Get,
    ReadRows,
    Rows,
    Seen,
    Value,
    apply,
    begin,
    commit,
)
from siltstone.manage.verb import Host
from siltstone.store.log.read.pieces import Row
from siltstone.store.tx.operations import LATEST
from siltstone.store.tx.transaction import Transaction

T = TypeVar("T")

# The verbs that run on the thread of their connection.
TRANSACTION_VERBS: Final = frozenset(
    {
        "kv-commit",
        "tx-begin",
        "tx-change",
        "tx-see",
        "tx-get",
        "tx-read",
        "tx-more",
        "tx-commit",
        "tx-discard",
    }
)
CONNECTIONS_MAX: Final = 64
# The rows and bytes of one response. A response is encoded in one step, during which no other
# thread runs.
_ROWS_MAX: Final = 2000
_BYTES_MAX: Final = 1 << 20


class TransactionThreads:
    """The threads of all connections that use transactions."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.count = 0

    def add(self) -> ThreadPoolExecutor:
        """Return a new thread. Raises: OverloadedError."""
        if self.count >= CONNECTIONS_MAX:
            raise OverloadedError(
                f"too many connections use transactions, try again: connections={self.count}"
            )
        self.count += 1
        return ThreadPoolExecutor(1, "siltstone-transaction")

    def remove(self, thread: ThreadPoolExecutor) -> None:
        """End a thread when its work is done."""
        self.count -= 1
        thread.shutdown(wait=False)


class ConnectionTransactions:
    """The transactions of one connection, one after the other; called on the loop."""

    def __init__(self, threads: TransactionThreads) -> None:
        self._threads = threads
        self._thread: ThreadPoolExecutor | None = None
        self._open: Transaction | None = None
        self._rest: Iterator[Row] = iter(())

    async def answer(self, name: str, request: Any) -> Any:
        """Run one of the verbs of transactions. Raises: SiltstoneError."""
        if self._thread is None:
            self._thread = self._threads.add()
        work: Callable[[], Any] = lambda: self._work(name, request)  # noqa: E731 - for the thread
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def end(self) -> None:
        """Discard the open transaction, and end the thread."""
        if self._thread is not None:
            self._thread.submit(self._discard)
            self._threads.remove(self._thread)
            self._thread = None

    def _work(self, name: str, request: Any) -> Any:
        match name, request:
            case "kv-commit", Commit():
                return commit(self._threads.host, request)
            case "tx-begin", Begin():
                self._discard()
                self._open = begin(self._threads.host, request)
                return self._begun(self._open)
            case "tx-change", AddChanges():
                opened = self._opened()
                apply(opened, request.operations, request.payload)
                return self._begun(opened)
            case "tx-see", _:
                return Seen(serial=self._opened().read_serial)
            case "tx-get", Get():
                time_us = LATEST if request.time_us is None else request.time_us
                found = self._opened().get(request.topic, time_us)
                return Value(found=found is not None, payload=found or b"")
            case "tx-read", ReadRows():
                rows = self._opened().read(request.filter, request.since_us, request.until_us)
                self._rest = iter(rows)
                return self._next_rows()
            case "tx-more", _:
                return self._next_rows()
            case "tx-commit", _:
                opened, self._open = self._opened(), None
                serial = opened.commit()
                return CommitResult(serial=serial, duplicate=opened.duplicate)
            case _:
                opened = self._opened()
                self._discard()
                return self._begun(opened)

    def _begun(self, transaction: Transaction) -> Begun:
        return Begun(term=transaction.term, generation=transaction.generation)

    def _opened(self) -> Transaction:
        if self._open is None:
            raise UsageError("the connection has no open transaction: send tx-begin first")
        return self._open

    def _discard(self) -> None:
        self._rest = iter(())
        if self._open is not None:
            self._open.discard()
            self._open = None

    def _next_rows(self) -> Rows:
        found: list[Row] = []
        size_bytes = 0
        for row in islice(self._rest, _ROWS_MAX):
            found.append(row)
            size_bytes += len(row.topic) + len(row.value)
            if size_bytes >= _BYTES_MAX:
                break
        # There may be none; the next response is then empty.
        more = len(found) == _ROWS_MAX or size_bytes >= _BYTES_MAX
        return Rows(
            shard=found[0].shard if found else 0,
            generation=self._opened().generation,
            rows=[(row.topic, row.timestamp_us, row.stream, len(row.value)) for row in found],
            more=more,
            payload=b"".join(row.value for row in found),
        )
