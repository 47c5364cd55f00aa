"""What a store tells of a database that stores nothing more."""

from __future__ import annotations

import errno
from pathlib import PurePath

import pytest

from siltstone.errors import OutcomeUnknownError, PoisonedError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.directory import Store
from siltstone.store.kv.faulty import FaultyEngine, WriteFault
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.settings import DatabaseSettings

DATA = PurePath("/data")


def test_a_store_names_the_database_whose_sync_failed_and_the_cause() -> None:
    fs = FaultyFileSystem(MemoryFileSystem())
    store = Store(DATA, fs=fs)
    for name in ("one", "two"):
        store.create(name, DatabaseSettings(segment_bytes=65_536)).append([Row("t", b"v")]).wait()
    assert store.failure() is None
    fs.add(Fault(operation="sync", errno=errno.EIO, path_suffix=".seg"))
    with pytest.raises(PoisonedError):
        store.database("two").append([Row("t", b"v")]).wait()
    failure = store.failure()
    assert failure is not None
    assert (failure[0], str(failure[1]).partition(":")[0]) == ("two", "sync failed")
    store.close()


def test_a_key_value_database_is_named_too() -> None:
    engine = FaultyEngine(MemoryEngine())
    store = Store(DATA, fs=MemoryFileSystem(), open_engine=lambda _: engine)
    database = store.keyvalue("commits")
    assert store.failure() is None
    engine.script(WriteFault())
    transaction = database.transaction()
    transaction.write("t", b"v")
    with pytest.raises(OutcomeUnknownError):
        transaction.commit()
    failure = store.failure()
    assert failure is not None
    assert failure[0] == "commits"
    store.close()
