from __future__ import annotations

import pytest

from siltstone.errors import DiskError
from siltstone.store.kv.api import DEFAULT_FAMILY
from siltstone.store.kv.faulty import FaultyEngine, WriteFault
from siltstone.store.kv.memory import MemoryEngine
from tests.support import kv_suite
from tests.support.kv_suite import changes_of

KEY = b"k"


def value_of(engine: FaultyEngine) -> bytes | None:
    return engine.get(DEFAULT_FAMILY, KEY)


def write(engine: FaultyEngine, value: bytes) -> None:
    engine.write(changes_of(DEFAULT_FAMILY, {KEY: value}))


def test_without_a_fault_it_is_what_it_wraps() -> None:
    kv_suite.check_families(FaultyEngine(MemoryEngine()))
    kv_suite.check_views(FaultyEngine(MemoryEngine()))
    kv_suite.check_size(FaultyEngine(MemoryEngine()))


@pytest.mark.parametrize(("stored", "expected"), [(False, b"1"), (True, b"2")])
def test_the_scripted_write_fails_stored_or_not_and_later_ones_do_not(
    stored: bool, expected: bytes
) -> None:
    engine = FaultyEngine(MemoryEngine(), WriteFault(nth=2, stored=stored))
    write(engine, b"1")
    with pytest.raises(DiskError, match="write failed: scripted: path=faulty errno=5"):
        write(engine, b"2")
    assert value_of(engine) == expected
    write(engine, b"3")
    assert (value_of(engine), engine.writes) == (b"3", 3)


def test_a_fault_counts_from_when_it_is_scripted() -> None:
    engine = FaultyEngine(MemoryEngine())
    write(engine, b"1")
    engine.script(WriteFault())
    with pytest.raises(DiskError):
        write(engine, b"2")
    engine.close()
    assert isinstance(engine.inner, MemoryEngine)
    assert engine.inner.closed
