"""The writers of batch and streaming queries: tasks stage their rows, the driver commits them.

A task that runs twice, or ends after another attempt has succeeded, leaves rows that are never
committed. The name of a batch of a stream is the id of the query and the number of the batch, which
Spark keeps in the checkpoint. A batch that is repeated after a crash is therefore recognized.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from siltstone.errors import UsageError
from siltstone.flight.target import DirectoryTarget, NodeTarget, StagingTarget
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.pipeline.spark.worker import one_line_errors
from siltstone.scan.ingest.columns import check_columns, rows_of
from siltstone.scan.ingest.options import WriteOptions
from siltstone.scan.ingest.staging import WriteBatch

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The staged rows of a task; the name is None if it had no rows."""

    write: str
    name: str | None


def target_of(options: WriteOptions) -> StagingTarget:
    """Return the target of the rows; it opens nothing before its first call."""
    if options.node is not None:
        return NodeTarget(options.node, options.database)
    return DirectoryTarget(PosixFileSystem(), absolute_path(options.path), options.database)


def check_schema(schema: StructType, options: WriteOptions, *, overwrite: bool) -> None:
    """Check that rows can be written, before any task runs. Raises: UsageError."""
    if overwrite:
        raise UsageError("rows of a store cannot be replaced: use mode append")
    check_columns(to_arrow_schema(schema, timezone="UTC"), options.given)


class SiltstoneWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query; none is appended before all are staged."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options
        self._batch = WriteBatch(write=options.write_id or f"spark-{uuid4()}", number=0)

    @one_line_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task."""
        return stage(self._options, self._batch, iterator)

    @one_line_errors()
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append the rows that the tasks have staged."""
        # A write without a name of its own cannot be repeated.
        forget = not self._options.write_id
        target_of(self._options).commit(self._batch, names_of(messages), forget=forget)

    @one_line_errors()
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Remove the rows that the tasks have staged."""
        target_of(self._options).discard(self._batch, names_of(messages))


class SiltstoneStreamWriter(DataSourceStreamArrowWriter):
    """Writes the batches of a streaming query."""

    def __init__(self, options: WriteOptions) -> None:
        if options.write_id:
            raise UsageError(
                "writeId is for batch queries only: a stream uses the id of its checkpoint"
            )
        self._options = options

    @one_line_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a task."""
        context = TaskContext.get()
        assert context is not None, "rows are written by tasks"
        query, number = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        if query is None or number is None:
            raise UsageError("the sink needs the query and batch of Spark: use it with writeStream")
        batch = WriteBatch(write=f"spark-{query}", number=int(number))
        return stage(self._options, batch, iterator)

    @one_line_errors()
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Append the staged rows of a batch, unless they were appended before."""
        for write in writes_of(messages):
            batch = WriteBatch(write=write, number=batchId)
            target_of(self._options).commit(batch, names_of(messages), forget=False)

    @one_line_errors()
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Remove the staged rows of a batch."""
        for write in writes_of(messages):
            batch = WriteBatch(write=write, number=batchId)
            target_of(self._options).discard(batch, names_of(messages))


def stage(options: WriteOptions, batch: WriteBatch, iterator: Iterator[pa.RecordBatch]) -> Staged:
    """Check the rows of a task and stage them. Raises: UsageError, InvalidTopicError."""
    rows = (part for each in iterator for part in rows_of(each, options.given))
    return Staged(write=batch.write, name=target_of(options).stage(batch, rows))


def names_of(messages: Sequence[WriterCommitMessage | None]) -> list[str]:
    """Return the names of the staged files, in the order of the tasks."""
    return [
        message.name
        for message in messages
        if isinstance(message, Staged) and message.name is not None
    ]


def writes_of(messages: Sequence[WriterCommitMessage | None]) -> set[str]:
    """Return the write of these messages: that of one query, or none if no task has run."""
    return {message.write for message in messages if isinstance(message, Staged)}
