"""Read a store as Spark would, without Spark: plan, pickle, read, and compare with `read`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition

from siltstone.fs.api import FileSystem
from siltstone.pipeline.source.reader import SiltstoneReader
from siltstone.pipeline.source.schema import arrow_schema, spark_schema
from siltstone.pipeline.source.stream_reader import SiltstoneStreamReader
from siltstone.scan.columns.properties import decode
from siltstone.scan.columns.schema import COLUMNS
from siltstone.scan.options import ReadOptions
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.builders import PATH, World
from tests.support.rows import rows_of

SparkRow = Mapping[str, Any]
T = TypeVar("T")


def options_of(**changes: Any) -> ReadOptions:
    """Return options for the database of `World`."""
    return replace(ReadOptions(path=str(PATH)), **changes)


def reader_of(world: World, **changes: Any) -> SiltstoneReader:
    """Return a batch reader on the disk of a world."""
    options = options_of(**changes)
    return SiltstoneReader(options, spark_schema(options.columns), world.fs)


def stream_of(world: World, **changes: Any) -> SiltstoneStreamReader:
    """Return a streaming reader on the disk and clock of a world."""
    options = options_of(**changes)
    return SiltstoneStreamReader(options, spark_schema(options.columns), world.fs, world.clock)


def sent(partition: InputPartition) -> InputPartition:
    """Return a partition as an executor receives it."""
    arrived = through_pickle(partition)
    assert arrived == partition
    return arrived


def through_pickle(value: T) -> T:
    """Return a value after a round trip through Spark's pickle."""
    arrived: T = cloudpickle.loads(cloudpickle.dumps(value))  # type: ignore[no-untyped-call]
    return arrived


def rows_in(
    reader: SiltstoneReader | SiltstoneStreamReader, partitions: Iterable[InputPartition]
) -> list[SparkRow]:
    """Read partitions, each pickled as for an executor, and check every batch."""
    rows: list[SparkRow] = []
    for partition in partitions:
        for batch in reader.read(sent(partition)):
            assert batch.num_rows > 0
            batch.validate(full=True)
            assert batch.schema == arrow_schema(spark_schema(batch.schema.names))
            rows += plain(batch)
    return rows


def batch_rows(world: World, **changes: Any) -> list[SparkRow]:
    """Return the rows of a batch query."""
    reader = reader_of(world, **changes)
    return rows_in(reader, reader.partitions())


def plain(batch: pa.RecordBatch) -> list[SparkRow]:
    """Return rows as Python values; times in µs and properties as a dictionary."""
    names = batch.schema.names
    columns = {name: batch.column(name) for name in names}
    if "timestamp" in columns:
        columns["timestamp"] = columns["timestamp"].cast(pa.int64())
    lists = {name: column.to_pylist() for name, column in columns.items()}
    if "properties" in lists:
        lists["properties"] = [dict(items) for items in lists["properties"]]
    return [dict(zip(names, values, strict=True)) for values in zip(*lists.values(), strict=True)]


def as_spark(row: Row) -> SparkRow:
    """Return a row of the store as the source must return it."""
    values = {
        "topic": row.topic,
        "levels": row.topic.split("/"),
        "timestamp": row.timestamp_us,
        "publisher": row.publisher,
        "qos": row.qos,
        "retain": row.retain,
        "properties": dict(decode(row.properties)),
        "payload": row.value,
        "shard": row.shard,
        "generation": row.generation,
        "stream": row.stream - (1 << 64) if row.stream >> 63 else row.stream,
        "serial": row.serial,
    }
    return {name: values[name] for name in COLUMNS}


def stored_rows(
    database: Database, filters: Iterable[str], *, since_us: int = 0, until_us: int | None = None
) -> list[SparkRow]:
    """Return the result of the store's own `read` for filters, each row once, by place."""
    found = {
        (row.shard, row.serial): row
        for topic_filter in filters
        for batch in database.read(topic_filter, since_us=since_us, until_us=until_us)
        for row in rows_of(batch)
    }
    return [as_spark(found[place]) for place in sorted(found)]


def by_place(rows: Iterable[SparkRow]) -> list[SparkRow]:
    """Return rows in the order of shards and serials."""
    return sorted(rows, key=lambda row: (row["shard"], row["serial"]))


def disk_reader(fs: FileSystem, options: ReadOptions) -> SiltstoneReader:
    """Return a batch reader on any file system."""
    return SiltstoneReader(options, spark_schema(options.columns), fs)
