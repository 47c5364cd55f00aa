"""Tier without Spark, and read the lake without Spark."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from siltstone.clock import Clock
from siltstone.fs.api import FileSystem
from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.jobs.tasks import Runner, Task, TaskFailure, run_task
from siltstone.pipeline.jobs.tier import TierJob, TierSettings
from siltstone.pipeline.lake.delta import list_tables
from siltstone.pipeline.lake.files import MadeFile, Written
from siltstone.pipeline.lake.names import ROW_COLUMNS
from tests.support.pipeline import plain, through_pickle

DATABASE = "messages"


def here(fs: FileSystem) -> Runner:
    """Return a runner for tasks in this process, pickled as for an executor."""

    def run(tasks: Sequence[Task]) -> list[Written | MadeFile | TaskFailure]:
        return [through_pickle(run_task(through_pickle(task), fs)) for task in tasks]

    return run


@contextmanager
def tiering(
    path: str | Path,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
    **settings: Any,
) -> Iterator[TierJob]:
    """Open a job that runs its tasks in this process."""
    used = fs or PosixFileSystem()
    job = TierJob(TierSettings(path=str(path), **settings), here(used), fs=used, clock=clock)
    try:
        yield job
    finally:
        job.close()


def tier_all(path: str | Path, fs: FileSystem | None = None, **settings: Any) -> int:
    """Tier everything; return the number of rows."""
    rows = 0
    with tiering(path, fs, **settings) as job:
        while (step := job.step()) is not None:
            rows += step.rows
    return rows


def lake_of(path: str | Path) -> Path:
    """Return the directory of the tables."""
    return Path(path) / "lake" / DATABASE


def tables_of(path: str | Path) -> list[str]:
    """Return the names of the tables."""
    return list_tables(PosixFileSystem(), lake_of(path))


def read_table(path: str | Path, name: str) -> pa.Table:
    """Return a table as delta-rs reads it."""
    return DeltaTable(str(lake_of(path) / name)).to_pyarrow_table()


def tiered_rows(path: str | Path) -> list[dict[str, Any]]:
    """Return the rows of all tables by place, in the form of the source; duplicates stay."""
    rows: list[dict[str, Any]] = []
    for name in tables_of(path):
        table = read_table(path, name).select(ROW_COLUMNS).combine_chunks()
        for batch in table.to_batches():
            rows += [dict(row) | {"levels": row["topic"].split("/")} for row in plain(batch)]
    return sorted(rows, key=lambda row: (row["shard"], row["serial"]))
