"""The rows of tables, read again from their files in the form of the store.

Every file of the lake has all columns of the store, so that rows can be decoded again by other
rules. A portion is a number of row groups of some files, about as large as a portion of the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from siltstone.errors import RetryError
from siltstone.fs.api import FileSystem
from siltstone.scan.options import ReadOptions

_TABLE: Final = "table"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroups:
    """Row groups of a file."""

    path: str
    groups: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LakePortion:
    """Row groups of files; of dead letters, only the rows that were meant for some tables."""

    parts: tuple[RowGroups, ...]
    meant_for: frozenset[str] | None = None

    def batches(
        self, fs: FileSystem, options: ReadOptions, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows as batches of this schema, which has columns of the store."""
        del fs
        wanted = list(schema.names)
        for part in self.parts:
            with pq.ParquetFile(part.path) as file:
                for batch in file.iter_batches(
                    batch_size=options.rows_per_batch,
                    row_groups=list(part.groups),
                    columns=wanted if self.meant_for is None else [*wanted, _TABLE],
                ):
                    rows = batch
                    if self.meant_for is not None:
                        rows = batch.filter(_is_one_of(batch.column(_TABLE), self.meant_for))
                    yield rows.select(wanted).cast(schema)


def _is_one_of(column: pa.Array, names: Collection[str]) -> pa.Array:
    return pc.fill_null(pc.is_in(column, value_set=pa.array(sorted(names), pa.string())), False)  # noqa: FBT003 - by position only


def plan_rows(
    paths: Sequence[PurePath], *, bytes_max: int, meant_for: frozenset[str] | None = None
) -> list[LakePortion]:
    """Return the row groups of files as portions of about a size, uncompressed.

    Raises: RetryError if a file is gone, because another process has merged it.
    """
    portions: list[LakePortion] = []
    held: list[RowGroups] = []
    size = 0

    def end() -> None:
        nonlocal size
        if held:
            portions.append(LakePortion(parts=tuple(held), meant_for=meant_for))
        held.clear()
        size = 0

    for path in paths:
        try:
            metadata = pq.read_metadata(path)
        except FileNotFoundError as exc:
            raise RetryError(f"a file of the lake was removed by another process: {path}") from exc
        for group in range(metadata.num_row_groups):
            group_size = metadata.row_group(group).total_byte_size
            if held and size + group_size > bytes_max:
                end()
            size += group_size
            if held and held[-1].path == str(path):
                held[-1] = RowGroups(path=str(path), groups=(*held[-1].groups, group))
            else:
                held.append(RowGroups(path=str(path), groups=(group,)))
    end()
    return portions


def dead_tables(path: PurePath) -> set[str]:
    """Return the tables that the dead letters of a file were meant for."""
    with pq.ParquetFile(path) as file:
        return set(file.read(columns=[_TABLE]).column(0).unique().to_pylist())


def other_dead_letters(path: PurePath, meant_for: frozenset[str]) -> pa.Table:
    """Return the dead letters of a file that were meant for other tables."""
    with pq.ParquetFile(path) as file:
        rows = file.read()
    column = rows.column(_TABLE).combine_chunks()
    return rows.filter(pc.invert(_is_one_of(column, meant_for)))
