"""The batch reader: plans where the query is planned, reads where its tasks run.

It holds options and a schema, nothing that is open, so that it goes to the executors as it is.
There is no pushFilters on purpose: Spark 4.3 keeps pushed filters on the source that all uses of a
DataFrame share, and then returns the rows of another query.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from siltstone.fs.api import FileSystem
from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.batches import batches
from siltstone.pipeline.options import ReadOptions
from siltstone.pipeline.partitions import RunsPartition
from siltstone.pipeline.schema import arrow_schema
from siltstone.pipeline.survey import Plan, opened, plan_batch
from siltstone.store.scan import Span

_LOG: Final = logging.getLogger(__name__)


class SiltstoneReader(DataSourceReader):
    """Reads a store as it is when the query is planned."""

    def __init__(
        self, options: ReadOptions, schema: StructType, fs: FileSystem | None = None
    ) -> None:
        self._options = options
        self._schema = arrow_schema(schema)
        self._fs = fs or PosixFileSystem()

    def partitions(self) -> list[InputPartition]:
        """Return what the tasks read, up to one end for each shard."""
        plan = self.plan()
        _LOG.info("planned a read of %s: %s", self._options.path, plan.report)
        # Without any, Spark would ask for a partition that nobody planned.
        return list(plan.partitions) or [RunsPartition("", (), ())]

    def plan(self) -> Plan:
        """Return the plan with its report. Raises: SiltstoneError."""
        with opened(self._fs, self._options) as database:
            return plan_batch(database, self._options)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a partition. Raises: SlabDroppedError, CorruptionError."""
        return read_partition(self._fs, self._options, self._schema, partition)


def read_partition(
    fs: FileSystem, options: ReadOptions, schema: pa.Schema, partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a partition that one of our readers planned."""
    assert isinstance(partition, RunsPartition), "a partition comes from our own plan"
    span = Span(since_us=options.since_us, until_us=options.until_us)
    pieces = partition.pieces(fs, span, fails_on_loss=options.fails_on_loss)
    return batches(pieces, schema, options.rows_per_batch)
