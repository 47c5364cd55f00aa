"""A view that meets an error is released: RocksDB keeps every version that an open view may see."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import DiskError
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.kv.api import Item, View
from siltstone.store.kv.faulty import FaultyEngine
from siltstone.store.kv.memory import MemoryEngine, MemoryView
from siltstone.store.tx import catalog
from tests.support.builders import NOW_US


class BrittleView:
    """A view that fails when it is read, if its engine says so."""

    def __init__(self, engine: BrittleEngine, inner: MemoryView) -> None:
        self._engine = engine
        self._inner = inner
        self._is_released = False
        engine.held += 1

    def get(self, key: bytes) -> bytes | None:
        self._engine.check_readable()
        return self._inner.get(key)

    def items(self, start: bytes, stop: bytes, limit: int) -> list[Item]:
        self._engine.check_readable()
        return self._inner.items(start, stop, limit)

    def last(self, start: bytes, stop: bytes) -> Item | None:
        self._engine.check_readable()
        return self._inner.last(start, stop)

    def release(self) -> None:
        if not self._is_released:
            self._is_released = True
            self._engine.held -= 1
        self._inner.release()


class BrittleEngine(FaultyEngine):
    """An engine in memory that counts its open views, which fail after a number of reads."""

    def __init__(self) -> None:
        self.memory = MemoryEngine()
        super().__init__(self.memory)
        self.held = 0
        self.reads_left: int | None = None

    def view(self, family: str) -> View:
        return BrittleView(self, self.memory.view(family))

    def check_readable(self) -> None:
        if self.reads_left is not None:
            self.reads_left -= 1
            if self.reads_left < 0:
                raise DiskError(PurePath("brittle"), "read", "scripted", errno=5)


def read_in_transaction(database: KeyValueDatabase, engine: BrittleEngine) -> object:
    transaction = database.transaction()
    try:
        return transaction.get("a/b")
    finally:
        transaction.discard()


CALLS: dict[str, Callable[[KeyValueDatabase, BrittleEngine], object]] = {
    "streams": lambda database, _: database.streams("#"),
    "read": lambda database, _: list(database.read("#")),
    "slabs": lambda _, engine: catalog.read_slabs(engine),
    "ids": lambda _, engine: catalog.oldest_ids(engine, 0, 10),
    "transaction": read_in_transaction,
}


@pytest.mark.parametrize("name", CALLS)
def test_a_view_is_released_whichever_read_fails(name: str) -> None:
    engine = BrittleEngine()
    database = KeyValueDatabase(engine, ManualClock(NOW_US), "kv", None)
    with database.transaction() as transaction:
        transaction.write("a/b", b"1")
        transaction.write("c", b"2")
    assert engine.held == 0
    # While an error is kept, so are the variables of the functions that it passed.
    kept: list[tuple[DiskError, int]] = []
    while True:
        engine.reads_left = len(kept)
        try:
            CALLS[name](database, engine)
            break
        except DiskError as exc:
            kept.append((exc, engine.held))
    engine.reads_left = None
    assert kept
    assert [held for _, held in kept] == [0] * len(kept)
    assert engine.held == 0
    database.close()
