"""Rollups: count, min, max, mean and quantiles of JSON fields, by time window and key.

Keys are the varying levels of the topics. A stream writes each window once, when the watermark has
passed it. A batch computes all windows of all rows, and replaces the table.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.streaming.query import StreamingQuery

from siltstone.clock import SystemClock
from siltstone.errors import NotFoundError, UsageError
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.pipeline.jobs.import_files import template_parts
from siltstone.pipeline.jobs.upkeep import lake_of
from siltstone.pipeline.lake.delta import (
    add_files,
    content,
    ensure_table,
    list_tables,
    replace_files,
)
from siltstone.pipeline.lake.files import MadeFile, partition_schema, write_file
from siltstone.pipeline.lake.names import (
    CONTENTS,
    DEAD_LETTER,
    OTHER,
    WINDOW_COLUMNS,
    free_name,
    plain_name,
)
from siltstone.pipeline.lake.rules import RULES, TableRule, load_rules
from siltstone.pipeline.table import table

_WINDOW: Final = re.compile(r"(\d+)\s*(second|minute|hour|day|week)s?")
_TYPES: Final[Mapping[str, str]] = {"double": "DOUBLE", "bigint": "BIGINT"}


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupSettings:
    """The settings of a rollup: a table of the lake gives the structure, its fields and its keys.

    Without fields, all numbers are rolled up. `topics` is a template such as rollup/{plant};
    `target` are the options of the sink.
    """

    path: str
    table: str
    database: str = ""
    window: str = "1 minute"
    fields: Sequence[str] = ()
    quantiles: Sequence[float] = (0.5, 0.95)
    watermark: str = "1 minute"
    to: str = ""
    topics: str = ""
    target: Mapping[str, str] = field(default_factory=dict)

    @property
    def target_table(self) -> str:
        """The table of the windows. Raises: UsageError for an invalid window."""
        match = _WINDOW.fullmatch(self.window.strip())
        if match is None or int(match[1]) == 0:
            raise UsageError(
                f"window must be a duration such as '5 minutes' or '1 hour', got {self.window!r}"
            )
        return self.to or f"{self.table}_{match[1]}{match[2][0]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RollupReport:
    """The table of the windows, and their number."""

    table: str
    windows: int


def rollup(spark: SparkSession, settings: RollupSettings) -> RollupReport:
    """Roll up all rows of lake and store, and replace the table. Raises: UsageError."""
    job = _Rollup(settings)
    rows = table(
        spark,
        settings.path,
        database=settings.database,
        filter=job.rule.filter,
        columns=("levels", "timestamp", "payload"),
    )
    document = F.from_json(F.col("payload").cast("string"), job.document_ddl())
    windows = job.aggregate(rows.withColumn("payload", document))
    count = job.keep(windows.toArrow(), batch=None)
    job.publish(windows, f"{secrets.token_hex(8)}")
    return RollupReport(table=job.target, windows=count)


def stream_rollup(
    spark: SparkSession, settings: RollupSettings, *, checkpoint: str, trigger: Mapping[str, Any]
) -> StreamingQuery:
    """Start a stream that adds each window to the table after the watermark has passed it."""
    job = _Rollup(settings)
    rows = (
        spark.readStream.format("siltstone")
        .option("filter", job.rule.filter)
        .option("columns", "levels,timestamp,payload")
        .option("decode", "json")
        .option("payloadSchema", job.document_ddl())
    )
    if settings.database:
        rows = rows.option("database", settings.database)
    windows = job.aggregate(rows.load(settings.path).withWatermark("timestamp", settings.watermark))

    def write(batch: DataFrame, number: int) -> None:
        kept = batch.persist()
        try:
            job.keep(kept.toArrow(), batch=number, stream=checkpoint)
            job.publish(kept, f"{job.target}-{number}")
        finally:
            kept.unpersist()

    return (
        windows.writeStream.foreachBatch(write)
        .outputMode("append")
        .option("checkpointLocation", checkpoint)
        .trigger(**trigger)
        .start()
    )


class _Rollup:
    """The common part of batch and stream."""

    def __init__(self, settings: RollupSettings) -> None:
        self._settings = settings
        self._fs = PosixFileSystem()
        self.lake = lake_of(self._fs, settings.path, settings.database)
        self._rules = load_rules(self._fs, self.lake)
        self.rule = self._find_rule()
        self.fields = self._numbers()
        self.target = settings.target_table
        if plain_name(self.target, "") != self.target:
            raise UsageError(
                f"the name of a table must have letters, digits and _ only, got {self.target!r}"
            )
        self._refuse_target()
        if bad := [item for item in settings.quantiles if not 0 < item < 1]:
            raise UsageError(f"a quantile must be between 0 and 1, got {bad[0]}")
        if settings.topics:
            template_parts(settings.topics, [*self.rule.levels, "window_start"])

    def _find_rule(self) -> TableRule:
        for rule in self._rules.rules:
            if rule.table == self._settings.table:
                if rule.decode != "json":
                    raise UsageError(f"payloads of {rule.table} are {rule.decode}, not json")
                return rule
        raise NotFoundError(
            f"no rule in {self.lake / RULES} has the table {self._settings.table!r}: "
            "run `siltstone pipeline tier` once, or write a rule"
        )

    def _refuse_target(self) -> None:
        """Check that the target is not a table of other data, which would be lost. Raises:
        UsageError.
        """
        wanted = self.target.lower()
        rows = {DEAD_LETTER, OTHER, *(rule.table.lower() for rule in self._rules.rules)}
        if wanted in rows:
            raise UsageError(
                f"table {self.target} is for {CONTENTS['rows']}; choose another table for the "
                "rollup"
            )
        if wanted == self.lake.name.lower():
            raise UsageError(
                f"{self.target} is the name of the database, which sql uses for its rows; "
                "choose another table for the rollup"
            )
        for name in list_tables(self._fs, self.lake):
            if name.lower() != wanted:
                continue
            holds = content(self.lake / name)
            if name != self.target or holds != "windows":
                raise UsageError(
                    f"table {name} exists and contains {CONTENTS[holds]}; "
                    f"choose another table than {self.target} for the rollup"
                )

    def _numbers(self) -> dict[str, tuple[str, ...]]:
        """Return the paths of the fields to roll up, by column."""
        known = {item.column: item for item in self.rule.fields if item.kind in _TYPES}
        if unknown := [name for name in self._settings.fields if name not in known]:
            there = ", ".join(known) or "none"
            raise UsageError(f"unknown number {unknown[0]!r} (found: {there})")
        return {name: known[name].path for name in self._settings.fields or known}

    def document_ddl(self) -> str:
        """Return the type of the JSON fields that are rolled up."""
        tree: dict[str, Any] = {}
        for path in self.fields.values():
            node = tree
            for word in path[:-1]:
                node = node.setdefault(word, {})
            node[path[-1]] = "DOUBLE"
        return _ddl(tree) if tree else "STRUCT<`_`: STRING>"

    def aggregate(self, rows: DataFrame) -> DataFrame:
        """Return a row for each window and key."""
        places = self.rule.level_places()
        keys = [
            F.element_at("levels", place + 1).alias(name)
            for place, name in zip(places, self.rule.levels, strict=True)
        ]
        grouped = rows.groupBy(F.window("timestamp", self._settings.window).alias("w"), *keys)
        found = grouped.agg(F.count(F.lit(1)).alias("rows"), *self._measures())
        measured = [name for name in found.columns if name != "w"]
        return found.select(
            F.col("w.start").alias("window_start"), F.col("w.end").alias("window_end"), *measured
        )

    def _measures(self) -> list[Column]:
        taken = [*WINDOW_COLUMNS, *self.rule.levels]
        measures: list[Column] = []
        for name, path in self.fields.items():
            value = F.col(".".join(_quoted(word) for word in ("payload", *path)))
            made = {
                "count": F.count(value),
                "min": F.min(value),
                "max": F.max(value),
                "mean": F.avg(value),
                **{
                    f"p{item * 100:g}".replace(".", "_"): F.percentile_approx(value, item)
                    for item in self._settings.quantiles
                },
            }
            for suffix, measure in made.items():
                column = free_name(f"{name}_{suffix}", taken)
                taken.append(column)
                measures.append(measure.alias(column))
        return measures

    def keep(self, windows: pa.Table, *, batch: int | None, stream: str = "") -> int:
        """Add windows to the table, once for each batch of a stream; or replace all windows."""
        windows = pa.Table.from_arrays(
            windows.columns, schema=pa.schema([pa.field(f.name, f.type) for f in windows.schema])
        )
        partition = partition_schema("day")
        place = self.lake / self.target
        ensure_table(self._fs, place, windows.schema, partition)
        files: list[MadeFile] = []
        days = windows.column("window_start").cast(pa.date32())
        for day in sorted(days.unique().to_pylist()):
            part = windows.filter(pc.equal(days, pa.scalar(day, pa.date32())))
            path = PurePath(f"date={day.isoformat()}") / f"rollup-{secrets.token_hex(8)}.parquet"
            size, stats = write_file(self._fs, place / path, part)
            files.append(
                MadeFile(
                    rule=self.rule.filter,
                    table=self.target,
                    path=path.as_posix(),
                    size_bytes=size,
                    rows=part.num_rows,
                    partition={"date": day.isoformat()},
                    stats=stats,
                )
            )
        if batch is None:
            replace_files(self._fs, SystemClock(), place, files)
        elif files:
            add_files(
                self._fs,
                SystemClock(),
                place,
                files,
                application=f"rollup-{absolute_path(stream)}",
                batch=batch + 1,
                offsets={"batch": batch},
            )
        return int(windows.num_rows)

    def publish(self, windows: DataFrame, name: str) -> None:
        """Publish windows to topics as JSON if topics are set; once for each name."""
        if not self._settings.topics:
            return
        parts = template_parts(self._settings.topics, windows.columns)
        topic = F.concat(
            *(F.col(text).cast("string") if is_column else F.lit(text) for is_column, text in parts)
        )
        payload = F.to_json(F.struct(*(F.col(name) for name in windows.columns)))
        sink = windows.select(topic.alias("topic"), payload.alias("payload")).write
        target = dict(self._settings.target) or {"path": self._settings.path}
        sink.format("siltstone").mode("append").options(**target).option(
            "writeId", f"rollup-{name}"
        ).save()


def _ddl(tree: Mapping[str, Any]) -> str:
    inside = ", ".join(
        f"{_quoted(name)}: {_ddl(kind) if isinstance(kind, dict) else kind}"
        for name, kind in tree.items()
    )
    return f"STRUCT<{inside}>"


def _quoted(word: str) -> str:
    return f"`{word.replace('`', '``')}`"
