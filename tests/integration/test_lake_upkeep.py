"""A job that keeps house: small files are merged, beside a job that adds rows, and rows stay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

import siltstone
from siltstone.clock import ManualClock
from siltstone.errors import DiskError, LockedError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import PowerCut
from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.jobs.upkeep import compact_lake, locked_files, vacuum_lake
from siltstone.pipeline.lake.delta import stored_files
from siltstone.pipeline.lake.merge import FAN_IN
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.builders import settings_of
from tests.support.lake import lake_of, tier_all, tiered_rows, tiering
from tests.support.pipeline import stored_rows

TABLE = "dev_v"
ROUNDS = 4 * FAN_IN


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def database(path: Path) -> Iterator[Database]:
    with siltstone.open(path) as store:
        yield store.create("messages", settings_of(thresholds=(100, 0, 10)))


def append(database: Database, number: int) -> None:
    late = ', "late": true' if number > ROUNDS // 2 else ""
    payload = f'{{"v": {number}{late}}}'.encode()
    database.append([Row(f"dev/{one}/v", payload) for one in "cab"]).wait()


def files_of(path: Path) -> list[str]:
    return [file.path for file in stored_files(lake_of(path) / TABLE)]


def test_a_job_that_goes_on_keeps_its_files_few_and_its_memory_of_versions_short(
    database: Database, path: Path
) -> None:
    clock = ManualClock()
    most = 0
    with tiering(path, clock=clock, keep_hours=0) as job:
        for number in range(ROUNDS):
            append(database, number)
            job.step()
            job.tidy()
            most = max(most, len(files_of(path)))
        assert most <= 2 * FAN_IN
        assert tiered_rows(path) == stored_rows(database, ["#"])
        clock.advance(3600)
        job.tidy()
        names = {file.name for file in (lake_of(path) / TABLE).rglob("*.parquet")}
        names -= {file.name for file in (lake_of(path) / TABLE / "_delta_log").iterdir()}
        assert names == {Path(name).name for name in files_of(path)}
        assert list((lake_of(path) / TABLE / "_delta_log").glob("*.checkpoint.parquet"))
    assert tiered_rows(path) == stored_rows(database, ["#"])
    dataset = DeltaTable(str(lake_of(path) / TABLE)).to_pyarrow_dataset()  # noqa: F841 - by name
    asked = duckdb.sql("SELECT count(*), sum(v), count(late) FROM dataset")
    assert asked is not None
    late = ROUNDS - ROUNDS // 2 - 1
    assert asked.fetchall() == [(3 * ROUNDS, 3 * sum(range(ROUNDS)), 3 * late)]


def test_a_merged_file_is_sorted_by_topic_and_time(database: Database, path: Path) -> None:
    for number in range(3):
        append(database, number)
        tier_all(path)
    assert sum(done.files_added for done in compact_lake(str(path))) == 1
    (name,) = files_of(path)
    rows = pq.ParquetFile(lake_of(path) / TABLE / name).read().to_pylist()
    assert [(row["topic"], row["v"]) for row in rows] == [
        (f"dev/{one}/v", float(number)) for one in "abc" for number in range(3)
    ]


def test_files_are_merged_and_removed_by_hand_while_a_job_has_a_batch_open(
    database: Database, path: Path
) -> None:
    for number in range(3):
        append(database, number)
        tier_all(path)
    database.append([Row("first", b"1")]).wait()
    append(database, 3)
    # The table of `first` is new, and its commit fails: the batch is open, and its other files are
    # in no table yet.
    broken = Fault(operation="link", errno=5, path_suffix=f"first/_delta_log/{1:020}.json")
    with tiering(path, FaultyFileSystem(PosixFileSystem(), broken)) as job:
        with pytest.raises(DiskError):
            job.step()
        pending = {file.name for file in (lake_of(path) / TABLE).rglob("00000004-*.parquet")}
        assert len(pending) == 1
        assert not any(Path(name).name in pending for name in files_of(path))
        done = {item.table: item for item in compact_lake(str(path))}[TABLE]
        assert (done.files_removed, done.files_added) == (3, 1)
        assert len(vacuum_lake(str(path), hours=0)[TABLE]) == 3
        assert pending <= {file.name for file in (lake_of(path) / TABLE).rglob("*.parquet")}
    tier_all(path)
    assert tiered_rows(path) == stored_rows(database, ["#"])
    # What the cut left behind goes when its batch has ended.
    vacuum_lake(str(path), hours=0)
    left = {file.name for file in (lake_of(path) / TABLE).glob("date=*/*.parquet")}
    assert left == {Path(name).name for name in files_of(path)}


def test_a_job_leaves_the_files_to_another_process_that_merges_them(
    database: Database, path: Path
) -> None:
    fs = PosixFileSystem()
    with tiering(path) as job:
        for number in range(FAN_IN + 1):
            append(database, number)
            job.step()
        with locked_files(fs, lake_of(path)):
            assert job.tidy() == []
            with pytest.raises(LockedError), locked_files(fs, lake_of(path), wait=False):
                pass
        assert [done.table for done in job.tidy()] == [TABLE]


@pytest.mark.parametrize("operations", range(12))
def test_a_cut_while_files_are_merged_loses_and_doubles_nothing(
    database: Database, path: Path, operations: int
) -> None:
    fs = FaultyFileSystem(PosixFileSystem())
    with tiering(path, fs) as job:
        for number in range(FAN_IN):
            append(database, number)
            job.step()
        fs.operations_left = operations
        with suppress(PowerCut):
            job.tidy()
    assert tiered_rows(path) == stored_rows(database, ["#"])
    append(database, 99)
    tier_all(path)
    compact_lake(str(path))
    assert len(files_of(path)) == 1
    assert tiered_rows(path) == stored_rows(database, ["#"])
