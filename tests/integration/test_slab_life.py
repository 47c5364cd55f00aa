"""Slabs turn over and go by themselves, on a real disk, with a thread for each shard."""

from __future__ import annotations

from pathlib import Path, PurePath
from threading import Barrier, Thread

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import QuotaExceededError, UsageError
from siltstone.fs.posix import PosixFileSystem
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.log.info import SlabInfo
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabId
from siltstone.store.slab.settings import DatabaseSettings
from tests.support.builders import NOW_US, as_given, read_rows
from tests.support.reading import check_everything

VALUE = bytes(4000)
MINUTE_US = 60_000_000


def new_store(path: Path, clock: ManualClock) -> Store:
    return Store(PurePath(path), fs=PosixFileSystem(), clock=clock)


def append(database: Database, *values: bytes) -> None:
    """Append rows and wait until what is due behind them is done."""
    database.append([Row("t", value) for value in values]).wait()
    database.sync()


def fill(database: Database) -> list[bytes]:
    """Append until the quota is reached; return the values that were stored."""
    stored: list[bytes] = []
    for number in range(1000):
        value = b"%d " % number + VALUE
        try:
            append(database, value)
        except QuotaExceededError:
            return stored
        stored.append(value)
    raise AssertionError("the quota was never reached")


def bounds(infos: list[SlabInfo]) -> list[tuple[str, int, int, int | None]]:
    return [
        (info.state, info.rows, info.since_us - NOW_US, info.until_us and info.until_us - NOW_US)
        for info in infos
    ]


def test_a_slab_turns_over_when_its_time_has_come(tmp_path: Path) -> None:
    clock = ManualClock(NOW_US)
    with new_store(tmp_path, clock) as store:
        database = store.create("one", DatabaseSettings(segment_bytes=65536, rotate_seconds=60.0))
        append(database, b"1", b"2")
        clock.advance(59.0)
        append(database, b"3")
        assert bounds(database.slabs()) == [("current", 3, 0, None)]
        clock.advance(1.0)
        append(database, b"4")
        # The row that finds the time over is the last of its slab.
        assert bounds(database.slabs()) == [
            ("sealed", 4, 0, MINUTE_US + 1),
            ("current", 0, MINUTE_US + 1, None),
        ]
        append(database, b"5")
        assert [row.value for row in check_everything(database)] == [b"1", b"2", b"3", b"4", b"5"]


def test_a_slab_turns_over_when_it_is_large_enough(tmp_path: Path) -> None:
    clock = ManualClock(NOW_US)
    with new_store(tmp_path, clock) as store:
        settings = DatabaseSettings(segment_bytes=65536, rotate_bytes=128 * 1024)
        database = store.create("one", settings)
        for number in range(60):
            append(database, b"%d " % number + VALUE)
        infos = database.slabs()
        assert [info.state for info in infos] == ["sealed"] * (len(infos) - 1) + ["current"]
        assert len(infos) > 2
        for info in infos[:-1]:
            assert 128 * 1024 <= info.size_bytes <= 3 * 65536 + 16384
        rows = check_everything(database)
        assert [row.value.split()[0] for row in rows] == [b"%d" % number for number in range(60)]


def test_slabs_go_when_they_are_too_old(tmp_path: Path) -> None:
    clock = ManualClock(NOW_US)
    with new_store(tmp_path, clock) as store:
        settings = DatabaseSettings(segment_bytes=65536, retain_seconds=100.0, rotate_seconds=1e6)
        database = store.create("one", settings)
        for number in range(3):
            append(database, b"%d" % number)
            database.seal()
            clock.jump(60.0)
        # Sealed 180, 120 and 60 seconds ago.
        assert database.enforce_retention() == [SlabId(0, 1), SlabId(0, 2)]
        assert [row.value for row in check_everything(database)] == [b"2"]
        clock.advance(60.0)
        append(database, b"3")
        # By itself, behind an append.
        assert [row.value for row in check_everything(database)] == [b"3"]
        assert sorted(path.name for path in (tmp_path / "data/one/0").iterdir()) == ["4"]


def test_slabs_go_when_they_are_too_much(tmp_path: Path) -> None:
    clock = ManualClock(NOW_US)
    with new_store(tmp_path, clock) as store:
        settings = DatabaseSettings(
            segment_bytes=65536, rotate_bytes=128 * 1024, retain_bytes=512 * 1024
        )
        database = store.create("one", settings)
        sizes = []
        # A slab has 16 rows: the last one is not new.
        for number in range(410):
            append(database, b"%d " % number + VALUE)
            sizes.append(database.size_bytes())
        # What is retained, and the slab that was just begun.
        assert max(sizes) <= 512 * 1024 + 65536
        rows = check_everything(database)
        numbers = [int(row.value.split()[0]) for row in rows]
        assert numbers == list(range(numbers[0], 410))
        assert numbers[0] > 0
        assert sum(len(row.value) for row in rows) > 200 * 1024


def test_shards_that_turn_over_and_drop_at_once_do_not_trip_over_each_other(tmp_path: Path) -> None:
    settings = DatabaseSettings(
        shards=4,
        segment_bytes=65536,
        rotate_bytes=65536,
        retain_bytes=1024 * 1024,
        reserve_bytes=0,
    )
    with new_store(tmp_path, ManualClock(NOW_US)) as store:
        database = store.create("one", settings)
        begin = Barrier(4)

        def produce(publisher: str) -> None:
            begin.wait()
            for number in range(60):
                row = Row(f"t/{publisher}", b"%d" % number, publisher)
                database.append([row]).wait()

        threads = [Thread(target=produce, args=(name,)) for name in ("a", "b", "c", "d")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        database.sync()
        rows = check_everything(database)
        for name in ("a", "b", "c", "d"):
            numbers = [int(row.value) for row in rows if row.publisher == name]
            assert numbers == list(range(60 - len(numbers), 60))
        assert database.size_bytes() <= 1024 * 1024 + 4 * 65536


def test_a_quota_refuses_rows_and_a_drop_makes_room(tmp_path: Path) -> None:
    with new_store(tmp_path, ManualClock(NOW_US)) as store:
        settings = DatabaseSettings(segment_bytes=65536, quota_bytes=256 * 1024)
        database = store.create("one", settings)
        append(database, b"first")
        database.seal()
        stored = fill(database)
        with pytest.raises(QuotaExceededError, match="drop sealed slabs or raise the quota"):
            append(database, VALUE)
        assert database.size_bytes() <= 256 * 1024 + 65536
        assert [row.value for row in read_rows(database)] == [b"first", *stored]
        database.drop_slab(SlabId(0, 1))
        append(database, b"again")
        assert [row.value for row in read_rows(database)] == [*stored, b"again"]
    with new_store(tmp_path, ManualClock(NOW_US)) as store:
        rows = check_everything(store.database("one"))
        assert as_given(rows)[-1] == Row("t", b"again")


@pytest.mark.parametrize("shards", [1, 4])
def test_a_retention_by_bytes_alone_keeps_more_than_half_of_it_and_never_more(
    tmp_path: Path, shards: int
) -> None:
    limit = shards * 1024 * 1024
    with new_store(tmp_path, ManualClock(NOW_US)) as store:
        database = store.create("one", DatabaseSettings(shards=shards, retain_bytes=limit))
        kept, sizes = [], []
        for number in range(6 * limit // (16 * len(VALUE))):
            rows = [Row("t", VALUE, f"p{number % 16}") for _ in range(16)]
            database.append(rows).wait()
            sizes.append(database.size_bytes())
            kept.append(sum(info.rows for info in database.slabs()) * len(VALUE))
        # A shard looks after its slabs behind an append, so the next frames may be there before.
        assert max(sizes) <= limit + shards * 128 * 1024
        database.enforce_retention()
        assert database.size_bytes() <= limit
        assert min(kept[len(kept) // 2 :]) >= limit // 2


def test_a_retention_that_no_generations_fit_is_refused_unless_it_was_there_before(
    tmp_path: Path,
) -> None:
    too_little = r"retain_bytes must be at least 1048576 \(1 MiB\) for each shard"
    with new_store(tmp_path, ManualClock(NOW_US)) as store:
        with pytest.raises(UsageError, match=too_little):
            store.create("one", DatabaseSettings(shards=2, retain_bytes=2 * 1024 * 1024 - 1))
        database = store.create("one", DatabaseSettings(shards=2, retain_bytes=2 * 1024 * 1024))
        with pytest.raises(UsageError, match=too_little):
            database.configure(retain_bytes=200 * 1024)
        # Generations of a chosen size are the caller's business.
        database.configure(retain_bytes=200 * 1024, rotate_bytes=64 * 1024)
        with pytest.raises(UsageError, match=too_little):
            database.configure(rotate_bytes=None)
        database.configure(compression="zstd")
