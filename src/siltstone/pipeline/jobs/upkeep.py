"""Maintenance of the tables of a lake: compact, vacuum, describe. It does not need Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import PurePath
from typing import Final

from siltstone.clock import Clock, SystemClock
from siltstone.errors import LockedError, NotFoundError, RetryError
from siltstone.fs.api import FileSystem
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.fs.publish import create_directories
from siltstone.pipeline.lake.delta import (
    Opener,
    TableCompaction,
    batch_of,
    columns_of,
    list_files,
    list_tables,
    open_table,
    present_tables,
    refuse_overwritten,
    replace_merged,
    stored_files,
    unused_files,
)
from siltstone.pipeline.lake.files import MadeFile
from siltstone.pipeline.lake.ledger import LEDGER, lake_directory, read_ledger
from siltstone.pipeline.lake.merge import FILE_BYTES, MergeTask, choose_merges, merge_files
from siltstone.pipeline.lake.names import FILE_COLUMNS, PARTITION_COLUMNS
from siltstone.pipeline.lake.tables.commits import remove_drafts
from siltstone.pipeline.lake.tables.rewrite import read_rewrites
from siltstone.scan.survey import find_database
from siltstone.store.directory import Store
from siltstone.units import SECOND_US

# Held by the one job that adds rows.
LOCK: Final = "LOCK"
# Held while a batch is added, or tables are changed by a rewrite.
BATCH: Final = "BATCH"
# Held while waiting for the lock of the batches, so that its holder gets it in turn.
TURN: Final = "TURN"
# Held while files are merged, removed or rewritten; the job that adds rows goes on.
UPKEEP: Final = "UPKEEP"
ROUND_BYTES: Final = 64 * 1024 * 1024
# Merges files, for example on Spark.
Merger = Callable[[Sequence[MergeTask]], Sequence[MadeFile]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableInfo:
    """The description of a table of the lake, for users."""

    table: str
    rows: int
    files: int
    size_bytes: int
    columns: tuple[tuple[str, str], ...]

    def own_columns(self) -> list[tuple[str, str]]:
        """Return the columns that are not in every table."""
        shared = {*FILE_COLUMNS, *PARTITION_COLUMNS}
        return [(name, kind) for name, kind in self.columns if name not in shared]


@contextmanager
def locked_lake(fs: FileSystem, lake: PurePath) -> Iterator[None]:
    """Hold the lock of a lake, so that no other process adds rows to it. Raises: LockedError."""
    create_directories(fs, lake)
    try:
        lock = fs.lock(lake / LOCK)
    except LockedError as exc:
        raise LockedError(f"another process runs tier or rollup on {lake}: wait for it") from exc
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked_files(fs: FileSystem, lake: PurePath, *, wait: bool = True) -> Iterator[None]:
    """Hold the lock of the files of a lake, so that no other process merges or removes them.

    Raises: LockedError if another process holds it and this one does not wait.
    """
    create_directories(fs, lake)
    lock = fs.lock(lake / UPKEEP, wait=wait)
    try:
        yield
    finally:
        lock.release()


@contextmanager
def locked_batches(fs: FileSystem, lake: PurePath) -> Iterator[None]:
    """Hold the lock of the batches of a lake; it comes after the lock of the files."""
    create_directories(fs, lake)
    turn = fs.lock(lake / TURN, wait=True)
    try:
        lock = fs.lock(lake / BATCH, wait=True)
    finally:
        turn.release()
    try:
        yield
    finally:
        lock.release()


def refuse_open_rewrite(fs: FileSystem, lake: PurePath) -> None:
    """Raise RetryError if a rewrite was interrupted: its files must stay as they are."""
    rewrite = read_rewrites(fs, lake).open
    if rewrite is not None and rewrite.given_up:
        raise RetryError(
            f"a rewrite of tables in {lake} was given up, but is not yet undone; run 'siltstone "
            "pipeline retier --give-up' again, or 'siltstone pipeline tier', which also undoes it"
        )
    if rewrite is not None:
        raise RetryError(
            f"a rewrite of tables in {lake} was interrupted; run 'siltstone pipeline tier', which "
            "completes it, or 'siltstone pipeline retier --give-up', which undoes it"
        )


def lake_of(fs: FileSystem, path: str, database: str) -> PurePath:
    """Return the directory of the tables of a database. Raises: UsageError."""
    directory = absolute_path(path)
    with Store(directory, read_only=True, fs=fs) as store:
        return lake_directory(directory, find_database(store, database).name)


def ended_batch(fs: FileSystem, lake: PurePath) -> int:
    """Return the number of the last batch that has ended; 0 without a ledger."""
    path = lake / LEDGER
    return int(json.loads(fs.read(path))["batch"]) if fs.exists(path) else 0


def merge_here(fs: FileSystem) -> Merger:
    """Return a merger that works in this process."""
    return lambda tasks: [merge_files(task, fs) for task in tasks]


def tidy(
    fs: FileSystem,
    clock: Clock,
    lake: PurePath,
    tables: Sequence[str],
    merge: Merger,
    *,
    bytes_max: int = ROUND_BYTES,
    opened: Opener = open_table,
) -> list[TableCompaction]:
    """Merge small files of some tables, at most about `bytes_max` of them.

    The caller holds the lock of the files. Raises: RetryError.
    """
    # Read the batch before the files are listed: a file of a later batch may belong to an open
    # batch.
    ended = ended_batch(fs, lake)
    today = datetime.fromtimestamp(clock.now_us() / SECOND_US, UTC).date().isoformat()
    tasks = [
        MergeTask(lake=str(lake), table=name, inputs=inputs)
        for name in tables
        for inputs in choose_merges(
            stored_files(lake / name, opened),
            ended=ended,
            is_over=lambda partition: partition.get("date", today) < today,
        )
    ]
    tasks.sort(key=lambda task: task.size_bytes)
    sizes = accumulate(task.size_bytes for task in tasks)
    chosen = [task for task, size in zip(tasks, sizes, strict=True) if size <= bytes_max]
    return _merged(fs, clock, lake, chosen or tasks[:1], merge, opened)


def _merged(
    fs: FileSystem,
    clock: Clock,
    lake: PurePath,
    tasks: Sequence[MergeTask],
    merge: Merger,
    opened: Opener = open_table,
) -> list[TableCompaction]:
    """Merge files, and put the new ones in their place, table by table."""
    made = list(zip(tasks, merge(tasks) if tasks else (), strict=True))
    done: list[TableCompaction] = []
    for table in dict.fromkeys(task.table for task in tasks):
        merged = [(task.inputs, file) for task, file in made if task.table == table]
        replace_merged(fs, clock, lake / table, merged, opened)
        removed = sum(len(inputs) for inputs, _ in merged)
        done.append(TableCompaction(table=table, files_removed=removed, files_added=len(merged)))
    return done


def compact_lake(
    path: str,
    *,
    database: str = "",
    target_bytes: int = FILE_BYTES,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[TableCompaction]:
    """Merge the small files of every table; `progress` gets the tables done and the total.

    It works beside a running tier job.

    Raises: RetryError, CorruptionError if another program has overwritten a table of rows.
    """
    fs, clock = PosixFileSystem(), SystemClock()
    lake = lake_of(fs, path, database)
    with locked_files(fs, lake):
        refuse_open_rewrite(fs, lake)
        refuse_overwritten(fs, lake)
        names = list_tables(fs, lake)
        done: list[TableCompaction] = []
        for name in names:
            progress(len(done), len(names))
            ended = ended_batch(fs, lake)
            chosen = choose_merges(
                stored_files(lake / name),
                ended=ended,
                is_over=lambda _: True,
                target_bytes=target_bytes,
            )
            removed = added = 0
            for inputs in chosen:
                task = MergeTask(lake=str(lake), table=name, inputs=inputs)
                for part in _merged(fs, clock, lake, [task], merge_here(fs)):
                    removed += part.files_removed
                    added += part.files_added
            done.append(TableCompaction(table=name, files_removed=removed, files_added=added))
        return done


def vacuum_lake(
    path: str, *, database: str = "", hours: int = 168, dry_run: bool = False
) -> dict[str, list[str]]:
    """Remove files that no version of the last hours has; return them, by table.

    It works beside a running tier job, whose unfinished files stay.

    Raises: RetryError, CorruptionError if another program has overwritten a table of rows; its old
    files are needed to restore it.
    """
    fs, clock = PosixFileSystem(), SystemClock()
    lake = lake_of(fs, path, database)
    with locked_files(fs, lake):
        refuse_open_rewrite(fs, lake)
        refuse_overwritten(fs, lake)
        return {
            name: remove_unused(fs, clock, lake, name, hours=hours, dry_run=dry_run)
            for name in list_tables(fs, lake)
        }


def remove_unused(
    fs: FileSystem,
    clock: Clock,
    lake: PurePath,
    table: str,
    *,
    hours: int,
    dry_run: bool = False,
    opened: Opener = open_table,
) -> list[str]:
    """Remove files of a table that no version of the last hours has; return them.

    The caller holds the lock of the files. Files of a batch that has not ended stay.
    """
    ended = ended_batch(fs, lake)
    unused = [
        name
        for name in unused_files(lake / table, hours=hours, opened=opened)
        if (batch_of(name) or 0) <= ended
    ]
    if dry_run:
        return unused
    for name in unused:
        with suppress(NotFoundError):
            fs.remove(lake / table / name)
    remove_drafts(fs, lake / table, before_ms=clock.now_us() // 1000 - max(hours, 1) * 3_600_000)
    return unused


def describe_lake(path: str, *, database: str = "") -> list[TableInfo]:
    """Return the tables of a lake with their columns and sizes.

    Raises: NotFoundError; UsageError if the tables belong to an earlier database.
    """
    fs = PosixFileSystem()
    directory = absolute_path(path)
    with Store(directory, read_only=True, fs=fs) as store:
        found = find_database(store, database)
        lake = lake_directory(directory, found.name)
        # This refuses tables of an earlier database with this name.
        read_ledger(fs, lake, found.identity)
    infos: list[TableInfo] = []
    for name in present_tables(fs, lake):
        files = list_files(lake / name)
        infos.append(
            TableInfo(
                table=name,
                rows=sum(file.rows for file in files),
                files=len(files),
                size_bytes=sum(file.size_bytes for file in files),
                columns=tuple(columns_of(lake / name)),
            )
        )
    return infos
