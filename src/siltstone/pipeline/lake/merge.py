"""Merging of small files of a table: the choice of files, and the merge.

Files of one partition are merged when there are many of about the same size, so that a row is
written again a few times only: once for each tenfold size. A partition whose day or hour is over is
merged to the end. The rows of a merged file are sorted by topic and time, and read by ranges of
topics, so that a merge needs little memory. A merged file has no number of a batch in its name.

Only files of batches that have ended are merged: readers tell rows of an open batch from others by
the names of their files.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from siltstone.errors import RetryError
from siltstone.fs.api import FileSystem
from siltstone.pipeline.lake.files import MadeFile, write_tables

FILE_BYTES: Final = 128 * 1024 * 1024
# The number of files of about one size that are merged into one, and the factor between sizes.
FAN_IN: Final = 10
_SMALLEST_BYTES: Final = 256 * 1024
_RANGE_ROWS: Final = 500_000
_ORDER: Final = ("topic", "timestamp", "shard", "serial")
Partition = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFile:
    """A current file of a table; `batch` is None for a merged file."""

    path: str
    batch: int | None
    size_bytes: int
    rows: int
    partition: Partition


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeTask:
    """The files of one partition that become one file."""

    lake: str
    table: str
    inputs: tuple[TableFile, ...]

    @property
    def size_bytes(self) -> int:
        """The size of the inputs."""
        return sum(file.size_bytes for file in self.inputs)


def choose_merges(
    files: Iterable[TableFile],
    *,
    ended: int,
    is_over: Callable[[Partition], bool],
    target_bytes: int = FILE_BYTES,
) -> list[tuple[TableFile, ...]]:
    """Return the files to merge, small ones first; `ended` is the last batch that has ended."""
    groups: dict[tuple[tuple[str, str], ...], list[TableFile]] = {}
    for file in files:
        if file.size_bytes < target_bytes and (file.batch is None or file.batch <= ended):
            groups.setdefault(tuple(sorted(file.partition.items())), []).append(file)
    chosen: list[tuple[TableFile, ...]] = []
    for group in groups.values():
        if is_over(group[0].partition):
            chosen += _filled(group, target_bytes)
            continue
        levels: dict[int, list[TableFile]] = {}
        for file in group:
            levels.setdefault(_level(file.size_bytes), []).append(file)
        for same in levels.values():
            if len(same) >= FAN_IN:
                chosen += _filled(same, target_bytes)
    return sorted(chosen, key=lambda inputs: sum(file.size_bytes for file in inputs))


def _level(size_bytes: int) -> int:
    level = 0
    while size_bytes > _SMALLEST_BYTES * FAN_IN**level:
        level += 1
    return level


def _filled(files: Sequence[TableFile], target_bytes: int) -> Iterator[tuple[TableFile, ...]]:
    """Yield groups of two or more files, each up to the size of a file, in the order of paths."""
    held: list[TableFile] = []
    for file in sorted(files, key=lambda file: file.path):
        if held and sum(one.size_bytes for one in held) + file.size_bytes > target_bytes:
            if len(held) > 1:
                yield tuple(held)
            held = []
        held.append(file)
    if len(held) > 1:
        yield tuple(held)


def merge_files(task: MergeTask, fs: FileSystem) -> MadeFile:
    """Write the merged file, durably; no table has it yet.

    Raises: RetryError if an input is gone, because the files were merged by another process.
    """
    table = PurePath(task.lake) / task.table
    first = task.inputs[0]
    path = PurePath(first.path).parent / f"merged-{secrets.token_hex(8)}.parquet"
    try:
        sources = [pq.ParquetFile(table / file.path) for file in task.inputs]
    except FileNotFoundError as exc:
        raise RetryError(f"a file of table {task.table} was merged by another process") from exc
    schema = pa.unify_schemas([source.schema_arrow for source in sources])
    size, stats = write_tables(fs, table / path, schema, _merged(sources, schema))
    return MadeFile(
        rule="",
        table=task.table,
        path=path.as_posix(),
        size_bytes=size,
        rows=sum(source.metadata.num_rows for source in sources),
        partition=dict(first.partition),
        stats=stats,
    )


def _merged(sources: Sequence[pq.ParquetFile], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of all files in order, some topics at a time."""
    order = [(name, "ascending") for name in _ORDER if name in schema.names]
    if "topic" not in schema.names:
        yield from (_conformed(source.read(), schema) for source in sources)
        return
    for topics in _ranges(_counts(sources)):
        parts = [_conformed(_rows_of(source, topics), schema) for source in sources]
        yield pa.concat_tables(parts).sort_by(order)


def _counts(sources: Iterable[pq.ParquetFile]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for source in sources:
        topics = source.read(columns=["topic"]).column(0)
        for item in topics.value_counts().to_pylist():
            counts[item["values"]] += item["counts"]
    return counts


def _ranges(counts: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield ranges of topics, from the first to the last, with a bounded number of rows."""
    held: list[str] = []
    rows = 0
    for topic in sorted(counts, key=str.encode):
        if held and rows + counts[topic] > _RANGE_ROWS:
            yield held[0], held[-1]
            held, rows = [], 0
        held.append(topic)
        rows += counts[topic]
    if held:
        yield held[0], held[-1]


def _rows_of(source: pq.ParquetFile, topics: tuple[str, str]) -> pa.Table:
    """Return the rows of a range of topics, from the row groups that may have some."""
    number = source.schema_arrow.names.index("topic")
    low, high = topics
    groups = []
    for group in range(source.num_row_groups):
        bounds = source.metadata.row_group(group).column(number).statistics
        if bounds is None or not bounds.has_min_max or (bounds.min <= high and bounds.max >= low):
            groups.append(group)
    rows = source.read_row_groups(groups)
    column = rows.column("topic")
    return rows.filter(pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high)))


def _conformed(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return rows with all columns of a schema; those that a file does not have are NULL."""
    columns = [
        rows.column(field.name)
        if field.name in rows.schema.names
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
