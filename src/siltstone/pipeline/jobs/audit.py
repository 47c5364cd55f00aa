"""Every row between store and lake accounted for, slab by slab.

Of rows that should be in the lake (those before the ledger's position) the store says how many
there are and what they hold, as long as it has the slab; of a dropped slab the ledger says how many
there were. The lake is counted as it is: rows, different rows, and a digest of all their columns.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from siltstone.bulk.options import ReadOptions
from siltstone.bulk.portion import Readable
from siltstone.bulk.schema import table_schema
from siltstone.bulk.survey import find_database, plan_batch
from siltstone.directory import Store
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.pipeline.lake.delta import list_row_files
from siltstone.pipeline.lake.names import ROW_COLUMNS
from siltstone.pipeline.schema import spark_schema
from siltstone.pipeline.table import Seam, find_seam, tiered_files

_SIDE: Final = "side"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabAudit:
    """What store and lake have of a slab; `stored` is None where the store has dropped it."""

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
        """Whether every row is there once, as it was."""
        return not (self.missing or self.duplicates or self.differs)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """The slabs of a database, and the rows of each table."""

    database: str
    slabs: Sequence[SlabAudit]
    tables: Mapping[str, int]

    @property
    def is_sound(self) -> bool:
        """Whether nothing is missing, double or different."""
        return all(slab.is_sound for slab in self.slabs)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "database": self.database,
            "sound": self.is_sound,
            "missing": sum(slab.missing for slab in self.slabs),
            "duplicates": sum(slab.duplicates for slab in self.slabs),
            "waiting": sum(slab.waiting for slab in self.slabs),
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
    """Rows of a slab: all, different ones, the serials they span, a digest of what they hold."""

    rows: int = 0
    distinct: int = 0
    span: int = 0
    digest: int = 0


def audit(spark: SparkSession, path: str, *, database: str = "") -> AuditReport:
    """Compare a store with its lake, as both are now. Raises: SiltstoneError."""
    fs = PosixFileSystem()
    options = ReadOptions(path=path, database=database, filters=(), rows_per_batch=65_536)
    seam = find_seam(fs, options)
    tables = {
        name: sum(file.rows for file in files)
        for name, files in list_row_files(fs, seam.lake, seam.ledger.application).items()
    }
    stored = store_rows(spark, options)
    lake = tiered_files(spark, fs, seam)
    sides = tally(
        stored.withColumn(
            _SIDE, F.when(_before(seam.position), F.lit("stored")).otherwise(F.lit("waiting"))
        ).unionByName(lake.withColumn(_SIDE, F.lit("lake")))
    )
    return compare(seam, tables=tables, **sides)


def compare(
    seam: Seam,
    *,
    stored: Mapping[str, Tally],
    waiting: Mapping[str, Tally],
    lake: Mapping[str, Tally],
    tables: Mapping[str, int],
) -> AuditReport:
    """Put what was counted together."""
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
                gaps=there.span - there.distinct,
                differs=slab in stored and stored[slab].digest != there.digest,
            )
        )
    return AuditReport(database=seam.database, slabs=slabs, tables=tables)


def tally(rows: DataFrame) -> dict[str, dict[str, Tally]]:
    """Count rows by the side that they are of, and by slab."""
    # Spark hashes no maps; as text they are the same when they are the same.
    hashed = [F.to_json(name) if name == "properties" else F.col(name) for name in ROW_COLUMNS]
    found = (
        rows.groupBy(_SIDE, "shard", "generation")
        .agg(
            F.count(F.lit(1)).alias("rows"),
            F.count_distinct("serial").alias("distinct"),
            (F.max("serial") - F.min("serial") + 1).alias("span"),
            F.bit_xor(F.xxhash64(*hashed)).alias("digest"),
        )
        .collect()
    )
    sides: dict[str, dict[str, Tally]] = {"stored": {}, "waiting": {}, "lake": {}}
    for row in found:
        sides[row[_SIDE]][f"{row['shard']}/{row['generation']}"] = Tally(
            rows=row["rows"], distinct=row["distinct"], span=row["span"], digest=row["digest"]
        )
    return sides


def store_rows(spark: SparkSession, options: ReadOptions) -> DataFrame:
    """Return all rows of a store, those of $ topics too, which no filter asks for."""
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
                portion: Readable = pickle.loads(data)  # noqa: S301 - our own, of this very job
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
