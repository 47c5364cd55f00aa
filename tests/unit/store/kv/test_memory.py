from __future__ import annotations

from siltstone.store.kv.api import Engine
from siltstone.store.kv.memory import MemoryEngine
from tests.support import kv_suite


def reopened(engine: Engine) -> Engine:
    assert isinstance(engine, MemoryEngine)
    return engine.reopened()


def test_families_exist_from_creation_to_drop() -> None:
    kv_suite.check_families(MemoryEngine())


def test_values_are_those_last_written() -> None:
    kv_suite.check_values(MemoryEngine())


def test_a_view_stays_as_it_was_until_it_is_released() -> None:
    kv_suite.check_views(MemoryEngine())


def test_bounds_are_half_open() -> None:
    kv_suite.check_bounds(MemoryEngine())


def test_ranges_are_deleted_before_values_are_set() -> None:
    kv_suite.check_ranges(MemoryEngine())


def test_what_was_written_is_there_when_it_is_opened_again() -> None:
    kv_suite.check_reopening(MemoryEngine(), reopened)


def test_the_size_grows_with_what_is_written() -> None:
    kv_suite.check_size(MemoryEngine())
