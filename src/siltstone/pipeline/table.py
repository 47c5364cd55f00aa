"""The store and its lake as one DataFrame: tiered rows from Parquet, the rest from the store.

The seam is the position of the ledger, which is read first. Rows before it come from the lake; rows
after it that an open batch has already committed to the lake are left out. Rows from the seam on
come from the store, up to its current end. Each row is therefore returned once, whatever is tiered
meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import PurePath
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import StructType

from siltstone.errors import NotFoundError
from siltstone.fs.api import FileSystem
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.pipeline.lake.delta import (
    LakeFile,
    last_batch,
    list_files,
    list_row_files,
    open_table,
    present_tables,
)
from siltstone.pipeline.lake.ledger import Ledger, lake_directory, read_ledger
from siltstone.pipeline.lake.names import FILE_COLUMNS, ROW_COLUMNS
from siltstone.pipeline.lake.pruning import (
    Pruned,
    QueryScope,
    literal_prefix,
    prune,
    topic_pattern,
)
from siltstone.pipeline.lake.tables.rewrite import read_rewrites
from siltstone.pipeline.remote import find_node, node_rows
from siltstone.pipeline.source.schema import arrow_schema, spark_schema
from siltstone.pipeline.spark.hints import with_hints
from siltstone.pipeline.spark.worker import one_line_errors, spare_collections
from siltstone.scan.offsets import Loss, bounds_of, find_losses
from siltstone.scan.options import ReadOptions, parse_options, parse_time
from siltstone.scan.portion import Readable
from siltstone.scan.survey import (
    find_database,
    opened,
    own_offsets,
    plan_between,
    refuse_losses,
)
from siltstone.store.directory import Store
from siltstone.store.feed.position import Position

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
Moment = str | int | datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Seam:
    """The end of the lake, and the range of live rows, by shard; and the ledger of the lake.

    `gone` has the live rows that were in no slab at this time. A query of the rows that exist does
    not miss them; it must find all others.
    """

    database: str
    lake: PurePath
    ledger: Ledger
    live: Mapping[int, range]
    gone: Sequence[Loss] = ()

    @property
    def position(self) -> Mapping[int, int]:
        """The serials before which rows come from the lake."""
        return self.ledger.position.serials


def table(
    spark: SparkSession,
    path: str = "",
    *,
    filter: str | Sequence[str] = "#",  # noqa: A002 - as the option of the source
    since: Moment | None = None,
    until: Moment | None = None,
    columns: Sequence[str] | None = None,
    database: str = "",
    failOnDataLoss: bool | str = True,  # noqa: N803 - as the option of the source
    **node: str,
) -> DataFrame:
    """Return the current rows of a store and its lake, with the columns of the source.

    `since` is inclusive, `until` exclusive. As for the source, `failOnDataLoss=False` leaves out
    rows that are dropped while the query runs, and the tables of an earlier database. For a path, a
    `where` on topic or timestamp warns if rows that are not in the lake are read and the parameter
    was not given. Instead of a path, `url` and the other options of the source can name a node; the
    lake of a node is not read.

    Raises: UsageError, also if requested rows are only in the lake of a node.
    """
    fs = PosixFileSystem()
    given = _given(path, filter, since, until, columns, database) | node
    given |= {"failOnDataLoss": str(failOnDataLoss).lower()}
    if find_node(path, node) is not None:
        return node_rows(spark, given)
    options = parse_options(given)
    seam = find_seam(fs, options)
    files = [file for found in row_files(fs, seam).values() for file in found]
    scope = QueryScope(
        filters=options.filters,
        since_us=options.since_us,
        until_us=options.until_us,
        batch=seam.ledger.batch,
        is_still=is_still(fs, seam),
    )
    condition = _condition(scope, seam.position)
    parts = tiered_rows(spark, prune(files, scope), condition, options.columns)
    is_live = any(seam.live.values())
    if is_live or not parts:
        parts.append(_live_rows(spark, fs, options, seam))
    rows = reduce(DataFrame.unionByName, parts)
    return with_hints(rows, _hints(filter, since, until)) if is_live else rows


def _hints(
    topic_filter: str | Sequence[str], since: Moment | None, until: Moment | None
) -> dict[str, str]:
    """Return the parameters that were not given, by the column of a condition."""
    hints = {"topic": "the parameter filter of table()"} if topic_filter == "#" else {}
    if since is None and until is None:
        hints["timestamp"] = "the parameter since or until of table()"
    return hints


def lake_table(spark: SparkSession, path: str, name: str, *, database: str = "") -> DataFrame:
    """Return a table of the lake with all columns, as it is now.

    Raises: NotFoundError; UsageError if the tables belong to an earlier database.
    """
    fs = PosixFileSystem()
    seam = find_seam(fs, ReadOptions(path=path, database=database))
    place = seam.lake / name
    files, columns = table_files(fs, seam, name)
    schema = StructType.fromJson(json.loads(columns))
    reader = spark.read.schema(schema).option("basePath", str(place))
    whole, partly = files, list[LakeFile]()
    # A table of other data, such as a rollup, has no tier batches.
    if last_batch(fs, place, seam.ledger.application):
        whole, partly = split_files(files, seam.ledger.batch, still=is_still(fs, seam))
    parts = [reader.parquet(*_paths(whole))] if whole else []
    if partly:
        parts.append(reader.parquet(*_paths(partly)).where(_is_tiered(seam.position)))
    if not parts:
        return spark.createDataFrame([], schema)
    return reduce(DataFrame.unionByName, parts)


def lake_tables(path: str, *, database: str = "") -> list[str]:
    """Return the names of the tables in a lake."""
    fs = PosixFileSystem()
    return present_tables(fs, find_seam(fs, ReadOptions(path=path, database=database)).lake)


def table_files(fs: FileSystem, seam: Seam, name: str) -> tuple[list[LakeFile], str]:
    """Return the files and the columns of a table. Raises: NotFoundError."""
    place = seam.lake / name
    tables = present_tables(fs, seam.lake)
    if name not in tables:
        there = ", ".join(tables) or "none"
        moved = read_rewrites(fs, seam.lake).target(name)
        found = f"its rows are in table {moved}" if moved else f"found: {there}"
        raise NotFoundError(f"unknown table {name!r} in {seam.lake} ({found})")
    while True:
        rewrites = read_rewrites(fs, seam.lake)
        version = rewrites.versions.get(name)
        files = list_files(place, version)
        columns = open_table(place, version).schema().to_json()
        if read_rewrites(fs, seam.lake).stage == rewrites.stage:
            return files, columns


def row_files(fs: FileSystem, seam: Seam) -> dict[str, list[LakeFile]]:
    """Return the files of all tables with rows, each row once, also while rows move.

    Raises: CorruptionError.
    """
    while True:
        rewrites = read_rewrites(fs, seam.lake)
        files = list_row_files(fs, seam.lake, seam.ledger.application, rewrites.versions)
        # A rewrite that began or ended meanwhile may have changed some of the tables.
        if read_rewrites(fs, seam.lake).stage == rewrites.stage:
            return files


def find_seam(fs: FileSystem, options: ReadOptions) -> Seam:
    """Find the end of the lake first, and then the end of the store. Raises: UsageError."""
    path = absolute_path(options.path)
    with Store(path, read_only=True, fs=fs) as store:
        database = find_database(store, options.database)
        lake = lake_directory(path, database.name)
        strict = options.fails_on_loss
        ledger = read_ledger(fs, lake, database.identity, fails_on_loss=strict)
        while True:
            # If the position did not change between the two reads, rows that were dropped meanwhile
            # were already in the lake.
            extents = database.extents()
            bounds = bounds_of(extents)
            before = ledger
            ledger = read_ledger(fs, lake, database.identity, fails_on_loss=strict)
            if before.position == ledger.position:
                break
        live = {
            shard: range(min(held.stop, max(held.start, ledger.position.serial(shard))), held.stop)
            for shard, held in bounds.items()
        }
        starts, stops = _ends_of(live)
        gone = find_losses(starts, stops, extents)
        return Seam(database=database.name, lake=lake, ledger=ledger, live=live, gone=gone)


def _ends_of(live: Mapping[int, range]) -> tuple[dict[int, int], dict[int, int]]:
    starts = {shard: serials.start for shard, serials in live.items()}
    return starts, {shard: serials.stop for shard, serials in live.items()}


def tiered_rows(
    spark: SparkSession, pruned: Pruned, condition: Column, columns: Sequence[str]
) -> list[DataFrame]:
    """Return the rows of files: all rows of whole files, and the wanted rows of the others."""
    stored = spark_schema(FILE_COLUMNS)
    parts: list[DataFrame] = []
    reader = spark.read.schema(stored).option("recursiveFileLookup", "true")
    if pruned.whole:
        parts.append(reader.parquet(*_paths(pruned.whole)))
    if pruned.partly:
        parts.append(reader.parquet(*_paths(pruned.partly)).where(condition))
    return [rows.select(*(_column(name) for name in columns)) for rows in parts]


def split_files(
    files: Sequence[LakeFile], batch: int, *, still: bool
) -> tuple[list[LakeFile], list[LakeFile]]:
    """Return the files with only rows of ended batches, and those that may have other rows too."""
    whole = [file for file in files if (still if file.batch is None else file.batch <= batch)]
    return whole, [file for file in files if file.batch is None and not still]


def tiered_files(spark: SparkSession, fs: FileSystem, seam: Seam) -> DataFrame:
    """Return all rows in the lake of batches that have ended, for all topics."""
    files = [file for found in row_files(fs, seam).values() for file in found]
    whole, partly = split_files(files, seam.ledger.batch, still=is_still(fs, seam))
    pruned = Pruned(whole=whole, partly=partly)
    parts = tiered_rows(spark, pruned, _is_tiered(seam.position), ROW_COLUMNS)
    none = spark.createDataFrame([], spark_schema(ROW_COLUMNS))
    return reduce(DataFrame.unionByName, parts, none)


def is_still(fs: FileSystem, seam: Seam) -> bool:
    """Return whether no batch has ended since the seam was found."""
    # The seam has refused or accepted the tables of an earlier database.
    ledger = read_ledger(fs, seam.lake, seam.ledger.identity, fails_on_loss=False)
    return ledger.batch == seam.ledger.batch


def _given(
    path: str,
    topic_filter: str | Sequence[str],
    since: Moment | None,
    until: Moment | None,
    columns: Sequence[str] | None,
    database: str,
) -> dict[str, str]:
    filters = topic_filter if isinstance(topic_filter, str) else json.dumps(list(topic_filter))
    given = ({"path": path} if path else {}) | {"filter": filters}
    given |= {"database": database} if database else {}
    given |= {"startTime": _time_text(since)} if since is not None else {}
    given |= {"endTime": _time_text(until)} if until is not None else {}
    return given | ({"columns": ",".join(columns)} if columns is not None else {})


def time_of(moment: Moment, name: str) -> int:
    """Return a time in µs, parsed as an option of the source. Raises: UsageError."""
    return parse_time(_time_text(moment), name)


def _time_text(moment: Moment) -> str:
    return moment.isoformat() if isinstance(moment, datetime) else str(moment)


def _paths(files: Sequence[LakeFile]) -> list[str]:
    return [file.path for file in files]


def _column(name: str) -> Column:
    if name != "levels":
        return F.col(name)
    # Files of an older version may lack this column.
    return F.coalesce(name, F.split("topic", "/", -1)).alias(name)


def live_portions(fs: FileSystem, options: ReadOptions, seam: Seam) -> Sequence[Readable]:
    """Return the parts of the rows after the seam, planned in this process."""
    starts, stops = _ends_of(seam.live)
    asked = replace(options, database=seam.database)
    with opened(fs, asked) as database:
        # The rows between the seam and now must not belong to another database of this name.
        own_offsets(Position(stops, seam.ledger.identity), database.origin, asked)
        extents = database.extents()
        losses = find_losses(starts, stops, extents)
        refuse_losses([loss for loss in losses if loss not in seam.gone], asked)
        return plan_between(database, asked, starts, stops, extents).partitions


def _live_rows(spark: SparkSession, fs: FileSystem, options: ReadOptions, seam: Seam) -> DataFrame:
    """Return the rows after the seam.

    A map over Arrow batches is used instead of the Python source: Spark copies every row of a
    Python source once more, and plans it in two other processes.
    """
    asked = replace(options, database=seam.database)
    portions = live_portions(fs, asked, seam)
    schema = spark_schema(options.columns)
    if not portions:
        return spark.createDataFrame([], schema)
    wanted = arrow_schema(schema)

    def read(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        spare_collections()
        for task in tasks:
            for number in task.column("id").to_pylist():
                with one_line_errors():
                    yield from portions[number].batches(PosixFileSystem(), asked, wanted)

    # One number for each partition, so that each task gets one without a shuffle.
    return spark.range(0, len(portions), 1, len(portions)).mapInArrow(read, schema)


def _moment(time_us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=time_us)


def _condition(scope: QueryScope, position: Mapping[int, int]) -> Column:
    """Return the condition for wanted rows of the lake."""
    conditions = [reduce(Column.__or__, map(matches, scope.filters))]
    if not scope.is_still:
        conditions.append(_is_tiered(position))
    if scope.since_us:
        conditions.append(F.col("timestamp") >= F.lit(_moment(scope.since_us)))
    if scope.until_us is not None:
        conditions.append(F.col("timestamp") < F.lit(_moment(scope.until_us)))
    return reduce(Column.__and__, conditions)


def matches(topic_filter: str, topic: str = "topic") -> Column:
    """Return a condition: the topic in a column matches an MQTT filter."""
    column = F.col(topic)
    literal = literal_prefix(topic_filter)
    if literal == topic_filter:
        return column == F.lit(topic_filter)
    matching = column.rlike(topic_pattern(topic_filter))
    # Parquet can check the prefix with its statistics. The parent topic lacks the last slash.
    return matching & column.startswith(literal.removesuffix("/")) if literal else matching


def _is_tiered(position: Mapping[int, int]) -> Column:
    """Return a condition: the row belongs to a batch that has ended."""
    ended = [
        (F.col("shard") == shard) & (F.col("serial") < serial)
        for shard, serial in sorted(position.items())
    ]
    return reduce(Column.__or__, ended, F.expr("false"))
