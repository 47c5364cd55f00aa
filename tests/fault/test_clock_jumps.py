"""A wall clock that jumps: nothing is dropped or expires by it before it is believed."""

from __future__ import annotations

from siltstone.clock import GuardedClock, ManualClock
from siltstone.directory import Store
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.rows import Row
from siltstone.store.settings import DatabaseSettings
from tests.support.builders import PATH, read_rows

DAY = 86_400.0
SETTINGS = DatabaseSettings(retain_seconds=DAY, segment_bytes=1024 * 1024)


def test_a_clock_that_is_three_days_ahead_for_a_moment_drops_no_rows_and_stamps_none() -> None:
    inner = ManualClock()
    clock = GuardedClock(inner, jump_seconds=60, confirm_seconds=3600)
    start_us = inner.now_us()
    with Store(PATH, fs=MemoryFileSystem(), clock=clock) as store:
        database = store.create("messages", SETTINGS)
        database.append([Row("t", b"old")]).wait()
        database.seal()
        inner.jump(3 * DAY)
        inner.advance(20)
        assert database.enforce_retention() == []
        database.append([Row("t", b"meanwhile")]).wait()
        inner.jump(-3 * DAY)
        rows = read_rows(database, "#")
        assert [row.value for row in rows] == [b"old", b"meanwhile"]
        assert all(row.timestamp_us <= start_us + 21_000_000 for row in rows)
        # Time that passes drops them.
        inner.advance(DAY + 60)
        assert [slab.generation for slab in database.enforce_retention()] == [1]
