"""The audit: it compares every row of the store with the lake, slab by slab.

The rows before the position of the ledger must be in the lake. If the store still has a slab, it
gives the number and the contents of these rows. For a dropped slab, the ledger gives the number.
The rows in the lake are counted, with a digest of all columns. If the number and the digest of a
slab are those of the store, its rows are the same rows, each once. The distinct serials are counted
only for other slabs, because this takes a shuffle of all their rows.

Serials may be unused: after a crash, and where a repair left a hole. A gap inside a slab is not a
loss, because the slab was read completely. A gap in a slab that the store still has is not a loss
either. A gap between the rows of two slabs is a loss, unless one batch has read from the end of the
first slab into the next: if a slab is dropped before all of it is in the lake, its last rows are
lost.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePath
from typing import Any, Final

import pyarrow as pa
from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from siltstone.errors import CorruptionError, SiltstoneError
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.pipeline.answers import plain_errors
from siltstone.pipeline.lake.delta import OFFSETS
from siltstone.pipeline.lake.names import ROW_COLUMNS
from siltstone.pipeline.source.schema import spark_schema
from siltstone.pipeline.table import Seam, find_seam, row_files, tiered_files
from siltstone.scan.columns.schema import table_schema
from siltstone.scan.offsets import Loss, find_losses
from siltstone.scan.options import ReadOptions
from siltstone.scan.portion import Readable
from siltstone.scan.survey import find_database, opened, plan_batch
from siltstone.store.directory import Store
from siltstone.store.log.read.selection import SlabExtent

_SIDE: Final = "side"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabAudit:
    """The rows of a slab in store and lake; `stored` is None if the store has dropped the slab."""

    slab: str
    expected: int
    stored: int | None
    waiting: int
    tiered: int
    missing: int
    duplicates: int
    gaps: int
    differs: bool

    @property
    def is_sound(self) -> bool:
        """Whether every row exists once and unchanged."""
        return not (self.missing or self.duplicates or self.differs)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The slabs of a database, the rows of each table, and the serials that are lost."""

    database: str
    slabs: Sequence[SlabAudit]
    tables: Mapping[str, int]
    losses: Sequence[Loss] = ()

    @property
    def is_sound(self) -> bool:
        """Whether no row is missing, duplicate, different or lost."""
        return not self.findings()

    def findings(self) -> list[str]:
        """Return a sentence for each problem."""
        amiss = not all(slab.is_sound for slab in self.slabs)
        told = ["rows are missing, double or different"] if amiss else []
        return told + [
            f"rows are lost: {loss} are in neither store nor lake" for loss in self.losses
        ]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "database": self.database,
            "sound": self.is_sound,
            "missing": sum(slab.missing for slab in self.slabs),
            "duplicates": sum(slab.duplicates for slab in self.slabs),
            "waiting": sum(slab.waiting for slab in self.slabs),
            "lost": sum(len(loss.serials) for loss in self.losses),
            "losses": [
                {
                    "shard": loss.shard,
                    "first_serial": loss.serials.start,
                    "last_serial": loss.serials.stop - 1,
                }
                for loss in self.losses
            ],
            "tables": dict(self.tables),
            "slabs": [
                {
                    "slab": slab.slab,
                    "expected": slab.expected,
                    "stored": slab.stored,
                    "waiting": slab.waiting,
                    "tiered": slab.tiered,
                    "missing": slab.missing,
                    "duplicates": slab.duplicates,
                    "gaps": slab.gaps,
                    "differs": slab.differs,
                }
                for slab in self.slabs
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """The rows of a slab: all, distinct ones, their serials, a digest of their contents."""

    rows: int = 0
    distinct: int = 0
    serials: range = range(0)
    digest: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Serials between the rows of two slabs in the lake, or after the last one.

    `losses` are the serials of the gap that no slab of the store has. `generations` are those of
    the two slabs, and all between them.
    """

    serials: range
    generations: range
    losses: Sequence[Loss]

    def was_read_over(self, batch: range) -> bool:
        """Return whether a batch has read the end of one slab and the start of the next."""
        neighbours = len(self.generations) == 2
        return neighbours and batch.start < self.serials.start and self.serials.stop < batch.stop


def audit(spark: SparkSession, path: str, *, database: str = "") -> AuditReport:
    """Compare the current states of a store and its lake. Raises: SiltstoneError."""
    fs = PosixFileSystem()
    options = ReadOptions(path=path, database=database, filters=(), rows_per_batch=65_536)
    seam = find_seam(fs, options)
    files = row_files(fs, seam)
    tables = {name: sum(file.rows for file in own) for name, own in files.items() if own}
    with opened(fs, options) as store:
        extents = store.extents()
    with plain_errors(SiltstoneError):
        stored = store_rows(spark, options)
        lake = tiered_files(spark, fs, seam)
        sides = tally(
            stored.withColumn(
                _SIDE, F.when(_before(seam.position), F.lit("stored")).otherwise(F.lit("waiting"))
            ).unionByName(lake.withColumn(_SIDE, F.lit("lake"))),
            seam.lake,
        )
        sides["lake"] |= recount(lake, unlike(sides["lake"], sides["stored"]))
    report = compare(seam, tables=tables, **sides)
    gaps = find_gaps(seam, sides["lake"], report, extents)
    # This reads all commits of all tables, so it is done only if there is a gap. A table whose rows
    # have moved still has the commits of its batches.
    batches = read_batches(seam.lake, list(files)) if gaps else {}
    return replace(report, losses=lost_in(gaps, batches))


def compare(
    seam: Seam,
    *,
    stored: Mapping[str, Tally],
    waiting: Mapping[str, Tally],
    lake: Mapping[str, Tally],
    tables: Mapping[str, int],
) -> AuditReport:
    """Combine the counts to a report."""
    none = Tally()
    slabs: list[SlabAudit] = []
    for slab in sorted({*stored, *waiting, *lake, *seam.ledger.slabs}, key=_place):
        there = lake.get(slab, none)
        told = seam.ledger.slabs.get(slab, 0)
        in_store = slab in stored or slab in waiting
        expected = max(told, stored.get(slab, none).rows)
        slabs.append(
            SlabAudit(
                slab=slab,
                expected=expected,
                stored=stored.get(slab, none).rows if in_store else None,
                waiting=waiting.get(slab, none).rows,
                tiered=there.rows,
                missing=max(0, expected - there.distinct),
                duplicates=there.rows - there.distinct,
                gaps=len(there.serials) - there.distinct,
                differs=slab in stored and stored[slab].digest != there.digest,
            )
        )
    return AuditReport(database=seam.database, slabs=slabs, tables=tables)


def find_gaps(
    seam: Seam, lake: Mapping[str, Tally], report: AuditReport, extents: Sequence[SlabExtent]
) -> list[Gap]:
    """Return the gaps between the slabs of the lake, up to the position of the ledger.

    Serials that are in the store, or counted as missing, are not a gap.
    """
    places = {_place(slab): counts.serials for slab, counts in lake.items()}
    missing = {_place(slab.slab): slab.missing for slab in report.slabs}
    gaps: list[Gap] = []
    for shard, position in sorted(seam.position.items()):
        # The lake starts with its first row. Rows that were dropped before it are not a loss.
        ends = [(place[0], places[place]) for place in sorted(places) if place[1] == shard]
        newest = max((place[0] for place in missing if place[1] == shard), default=0)
        ends.append((newest, range(position, position)))
        for (before, low), (after, high) in pairwise(ends):
            generations = range(before, after + 1)
            losses = find_losses({shard: low.stop}, {shard: high.start}, extents)
            told = sum(missing.get((generation, shard), 0) for generation in generations)
            if sum(len(loss.serials) for loss in losses) > told:
                serials = range(low.stop, high.start)
                gaps.append(Gap(serials=serials, generations=generations, losses=losses))
    return gaps


def lost_in(gaps: Sequence[Gap], batches: Mapping[int, Sequence[range]]) -> list[Loss]:
    """Return the losses in the gaps, given the known batches of each shard."""
    return [
        loss
        for gap in gaps
        for loss in gap.losses
        if not any(gap.was_read_over(batch) for batch in batches.get(loss.shard, ()))
    ]


def read_batches(lake: PurePath, tables: Sequence[str]) -> dict[int, list[range]]:
    """Return the serials of each batch of each shard, from the commits that still exist."""
    batches: dict[int, list[range]] = {}
    for table in tables:
        for commit in DeltaTable(str(lake / table)).history():
            if OFFSETS in commit:
                told = json.loads(commit[OFFSETS])
                for shard, start in told["start"].items():
                    span = range(start, told["stop"].get(shard, start))
                    batches.setdefault(int(shard), []).append(span)
    return batches


def tally(rows: DataFrame, lake: PurePath) -> dict[str, dict[str, Tally]]:
    """Count rows by side and by slab, as if all of them were distinct.

    Raises: CorruptionError for rows of the lake without shard, generation or serial.
    """
    # Spark cannot hash maps. Equal maps are equal as text.
    hashed = [F.to_json(name) if name == "properties" else F.col(name) for name in ROW_COLUMNS]
    found = (
        rows.groupBy(_SIDE, "shard", "generation")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.min("serial").alias("first"),
            F.max("serial").alias("last"),
            F.bit_xor(F.xxhash64(*hashed)).alias("digest"),
        )
        .collect()
    )
    sides: dict[str, dict[str, Tally]] = {"stored": {}, "waiting": {}, "lake": {}}
    for row in found:
        if None in (row["shard"], row["generation"], row["first"]):
            raise CorruptionError(
                f"{row['rows']} rows of the lake do not name their slab: another program wrote "
                "to its tables; restore earlier versions of the tables",
                path=lake,
            )
        sides[row[_SIDE]][f"{row['shard']}/{row['generation']}"] = Tally(
            rows=row["rows"],
            distinct=row["rows"],
            serials=range(row["first"], row["last"] + 1),
            digest=row["digest"],
        )
    return sides


def unlike(lake: Mapping[str, Tally], stored: Mapping[str, Tally]) -> dict[str, Tally]:
    """Return the counts of those slabs of the lake that the store does not prove to be sound."""
    return {
        slab: counts
        for slab, counts in lake.items()
        if slab not in stored
        or (counts.rows, counts.digest) != (stored[slab].rows, stored[slab].digest)
    }


def recount(lake: DataFrame, slabs: Mapping[str, Tally]) -> dict[str, Tally]:
    """Count the distinct serials of some slabs of the lake; return their corrected counts."""
    if not slabs:
        return {}
    slab = F.concat_ws("/", "shard", "generation")
    found = (
        lake.select(slab.alias("slab"), "serial")
        .where(F.col("slab").isin(sorted(slabs)))
        .groupBy("slab")
        .agg(F.count_distinct("serial").alias("distinct"))
        .collect()
    )
    return {row["slab"]: replace(slabs[row["slab"]], distinct=row["distinct"]) for row in found}


def store_rows(spark: SparkSession, options: ReadOptions) -> DataFrame:
    """Return all rows of a store, including those of $ topics, which no filter selects."""
    fs = PosixFileSystem()
    with Store(absolute_path(options.path), read_only=True, fs=fs) as store:
        found = find_database(store, options.database)
        options = replace(options, database=found.name)
        portions = plan_batch(found, options).partitions
    schema = spark_schema(ROW_COLUMNS)
    if not portions:
        return spark.createDataFrame([], schema)
    sent = [(number, pickle.dumps(portion)) for number, portion in enumerate(portions)]
    spread = spark.createDataFrame(sent, "number INT, portion BINARY").repartition(
        len(sent), F.col("number")
    )

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for data in batch.column("portion").to_pylist():
                portion: Readable = pickle.loads(data)  # noqa: S301 - pickled by this job
                yield from portion.batches(PosixFileSystem(), options, table_schema(ROW_COLUMNS))

    return spread.mapInArrow(read, schema)


def _before(position: Mapping[int, int]) -> Column:
    condition = F.expr("false")
    for shard, serial in sorted(position.items()):
        condition = condition | ((F.col("shard") == shard) & (F.col("serial") < serial))
    return condition


def _place(slab: str) -> tuple[int, int]:
    shard, _, generation = slab.partition("/")
    return int(generation), int(shard)
