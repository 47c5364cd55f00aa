"""Tables of the lake by the data source: option `table` names one, or the database for all rows.

Each query is planned again, so a table in a catalog always has the current rows. The files are read
by Python, because Spark's own reader of Parquet does not know which files a Delta table has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from siltstone.errors import UsageError
from siltstone.fs.api import FileSystem
from siltstone.pipeline.lake.delta import LakeFile
from siltstone.pipeline.lake.names import PARTITION_COLUMNS
from siltstone.pipeline.source.partitions import SourcePartition
from siltstone.pipeline.source.reader import read_partition
from siltstone.pipeline.source.schema import spark_schema
from siltstone.pipeline.spark.worker import one_line_errors
from siltstone.pipeline.table import (
    Seam,
    find_seam,
    is_still,
    live_portions,
    row_files,
    split_files,
    table_files,
)
from siltstone.scan.options import ReadOptions

_FILE_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFiles:
    """Files of a table; with a position, only the rows before it, by shard."""

    paths: tuple[str, ...]
    position: Mapping[int, int] | None = None

    def batches(
        self, fs: FileSystem, options: ReadOptions, schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows as batches of this schema."""
        del fs
        for path in self.paths:
            named = [part.partition("=") for part in PurePath(path).parts]
            parts = {name: value for name, _, value in named if name in PARTITION_COLUMNS}
            with pq.ParquetFile(path) as file:
                there = set(file.schema_arrow.names)
                needed = {"shard", "serial"} if self.position is not None else set()
                columns = sorted((set(schema.names) | needed) & there)
                for batch in file.iter_batches(options.rows_per_batch, columns=columns):
                    rows = batch if self.position is None else _before(batch, self.position)
                    yield _conformed(rows, schema, parts)


def _before(batch: pa.RecordBatch, position: Mapping[int, int]) -> pa.RecordBatch:
    wanted = pa.array([False] * batch.num_rows)
    for shard, serial in position.items():
        own = pc.equal(batch.column("shard"), shard)
        wanted = pc.or_(wanted, pc.and_(own, pc.less(batch.column("serial"), serial)))
    return batch.filter(wanted)


def _conformed(rows: pa.RecordBatch, schema: pa.Schema, parts: Mapping[str, str]) -> pa.RecordBatch:
    """Return rows with all columns of a schema; directories have those of the partition."""
    columns: list[pa.Array] = []
    for field in schema:
        if field.name in rows.schema.names:
            column = rows.column(field.name)
        elif field.name in parts:
            column = pa.array([parts[field.name]] * rows.num_rows, pa.string())
        else:
            column = pa.nulls(rows.num_rows, field.type)
        columns.append(_cast(column, field))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cast(column: pa.Array, field: pa.Field) -> pa.Array:
    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
        raise UsageError(
            f"column {field.name} is {column.type} now and cannot be read as {field.type}; call "
            "attach again, or create the table of the catalog again"
        ) from exc


def lake_schema(fs: FileSystem, options: ReadOptions, table: str) -> StructType:
    """Return the columns of a table, or of all rows. Raises: NotFoundError, UsageError."""
    seam = find_seam(fs, options)
    if table == seam.database:
        return spark_schema(options.columns)
    _, columns = table_files(fs, seam, table)
    return StructType.fromJson(json.loads(columns))


class LakeReader(DataSourceReader):
    """Reads a table of the lake, or all rows of lake and store, as they are when it is planned."""

    def __init__(
        self, options: ReadOptions, table: str, schema: StructType, fs: FileSystem
    ) -> None:
        self._options = options
        self._table = table
        self._schema = to_arrow_schema(schema, timezone="UTC")
        self._fs = fs

    @one_line_errors()
    def partitions(self) -> list[InputPartition]:
        """Return the partitions of the tasks."""
        seam = find_seam(self._fs, self._options)
        found: list[InputPartition] = []
        if self._table == seam.database:
            files = [file for part in row_files(self._fs, seam).values() for file in part]
            found += [
                SourcePartition(portion)
                for portion in live_portions(
                    self._fs, replace(self._options, columns=tuple(self._schema.names)), seam
                )
            ]
        else:
            files, _ = table_files(self._fs, seam, self._table)
        found += [SourcePartition(part) for part in self._grouped(files, seam)]
        return found or [SourcePartition(None)]

    def _grouped(self, files: Sequence[LakeFile], seam: Seam) -> Iterator[LakeFiles]:
        whole, partly = split_files(files, seam.ledger.batch, still=is_still(self._fs, seam))
        held: list[str] = []
        size = 0
        for file in whole:
            if held and size + file.size_bytes > _FILE_BYTES:
                yield LakeFiles(paths=tuple(held))
                held, size = [], 0
            held.append(file.path)
            size += file.size_bytes
        if held:
            yield LakeFiles(paths=tuple(held))
        for file in partly:
            yield LakeFiles(paths=(file.path,), position=dict(seam.position))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Raises: SlabDroppedError, CorruptionError."""
        return read_partition(self._fs, self._options, self._schema, partition)
