"""The batch reader: it plans in the planning process and reads in the tasks.

It holds options and a schema but nothing that is open, so Spark can send it to the executors. There
is no pushFilters on purpose: Spark 4.3 keeps pushed filters on the source that all uses of a
DataFrame share, and then returns the rows of another query.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from siltstone.fs.api import FileSystem
from siltstone.logs import log
from siltstone.pipeline.source.origins import origin_of
from siltstone.pipeline.source.partitions import SourcePartition
from siltstone.pipeline.source.schema import arrow_schema
from siltstone.pipeline.spark.worker import one_line_errors, spare_collections
from siltstone.scan.options import ReadOptions
from siltstone.scan.portion import Readable
from siltstone.scan.survey import Plan

_LOG: Final = logging.getLogger(__name__)


class SiltstoneReader(DataSourceReader):
    """Reads the rows that a store has when the query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType, fs: FileSystem) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._fs = fs

    @one_line_errors()
    def partitions(self) -> list[InputPartition]:
        """Return the partitions of the tasks, up to the current end of each shard."""
        plan = self.plan()
        log(_LOG, logging.INFO, "read_planned", place=self._options.place, plan=plan.report)
        # For an empty list, Spark would call `read` with a partition that was not planned.
        return [SourcePartition(portion) for portion in plan.partitions] or [SourcePartition(None)]

    def plan(self) -> Plan[Readable]:
        """Return the plan with its report. Raises: SiltstoneError."""
        with closing(origin_of(self._fs, self._options)) as origin:
            return origin.plan_batch()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Raises: SlabDroppedError, CorruptionError."""
        return read_partition(self._fs, self._options, self._schema, partition)


def read_partition(
    fs: FileSystem, options: ReadOptions, schema: pa.Schema, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition that a Siltstone reader planned."""
    assert isinstance(partition, SourcePartition), "a partition comes from our own plan"
    spare_collections()
    if partition.portion is not None:
        with one_line_errors():
            yield from partition.portion.batches(fs, options, schema)
