"""Maintenance of the tables of a lake: compact, vacuum, describe. It does not need Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from siltstone.errors import LockedError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.fs.publish import create_directories
from siltstone.pipeline.lake.delta import (
    FILE_BYTES,
    Compaction,
    columns_of,
    compact,
    list_files,
    list_tables,
    refuse_overwritten,
    vacuum,
)
from siltstone.pipeline.lake.ledger import LEDGER, lake_directory, read_ledger
from siltstone.pipeline.lake.names import FILE_COLUMNS, PARTITION_COLUMNS
from siltstone.scan.survey import find_database
from siltstone.store.directory import Store

LOCK: Final = "LOCK"


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
    """Hold the lock of a lake, so that no other process changes its tables. Raises: LockedError."""
    create_directories(fs, lake)
    try:
        lock = fs.lock(lake / LOCK)
    except LockedError as exc:
        raise LockedError(
            f"another process runs tier, compact or vacuum on {lake}: wait for it"
        ) from exc
    try:
        yield
    finally:
        lock.release()


def lake_of(fs: FileSystem, path: str, database: str) -> PurePath:
    """Return the directory of the tables of a database. Raises: UsageError."""
    directory = absolute_path(path)
    with Store(directory, read_only=True, fs=fs) as store:
        return lake_directory(directory, find_database(store, database).name)


def refuse_open_batch(fs: FileSystem, lake: PurePath) -> None:
    """Raise UsageError while a batch is incomplete in the lake.

    Readers recognize the files of the batch by their names, which compaction would change.
    """
    path = lake / LEDGER
    if fs.exists(path) and json.loads(fs.read(path))["open"] is not None:
        raise UsageError("the last batch is not finished: run 'siltstone pipeline tier' first")


def compact_lake(
    path: str,
    *,
    database: str = "",
    target_bytes: int = FILE_BYTES,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[Compaction]:
    """Compact the small files of every table; `progress` gets the tables done and the total.

    Raises: LockedError, RetryError, CorruptionError if another program has overwritten a table of
    rows.
    """
    fs = PosixFileSystem()
    lake = lake_of(fs, path, database)
    with locked_lake(fs, lake):
        refuse_open_batch(fs, lake)
        refuse_overwritten(fs, lake)
        names = list_tables(fs, lake)
        done: list[Compaction] = []
        for name in names:
            progress(len(done), len(names))
            done.append(compact(fs, lake / name, target_bytes))
        return done


def vacuum_lake(
    path: str, *, database: str = "", hours: int = 168, dry_run: bool = False
) -> dict[str, list[str]]:
    """Remove files that no version of the last hours has; return them, by table.

    Raises: LockedError, RetryError, CorruptionError if another program has overwritten a table of
    rows; its old files are needed to restore it.
    """
    fs = PosixFileSystem()
    lake = lake_of(fs, path, database)
    with locked_lake(fs, lake):
        refuse_overwritten(fs, lake)
        return {
            name: vacuum(lake / name, hours=hours, dry_run=dry_run)
            for name in list_tables(fs, lake)
        }


def describe_lake(path: str, *, database: str = "") -> list[TableInfo]:
    """Return the tables of a lake with their columns and sizes.

    Raises: NotFoundError; UsageError if the tables belong to an earlier database.
    """
    fs = PosixFileSystem()
    directory = absolute_path(path)
    with Store(directory, read_only=True, fs=fs) as store:
        found = find_database(store, database)
        lake = lake_directory(directory, found.name)
        # It refuses tables of an earlier database of this name.
        read_ledger(fs, lake, found.identity)
    infos: list[TableInfo] = []
    for name in list_tables(fs, lake):
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
