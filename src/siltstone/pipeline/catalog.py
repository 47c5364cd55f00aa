"""A store in the catalog of Spark: all rows and each table of the lake, by name."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import Final

from pyspark.sql import SparkSession

from siltstone.errors import UsageError
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.pipeline.answers import plain_errors
from siltstone.pipeline.lake.delta import content, present_tables
from siltstone.pipeline.lake.names import content_of, plain_name
from siltstone.pipeline.source.source import SiltstoneSource
from siltstone.pipeline.table import find_seam
from siltstone.scan.options import ReadOptions

_PREFIX: Final = "siltstone_"


def attach(
    spark: SparkSession, path: str, *, catalog: str = "siltstone", database: str = ""
) -> list[str]:
    """Make a store available by name; return the names.

    `catalog` is a database of the session's catalog: it gets a table of all rows with the name of
    the store's database, and one for each table of the lake. Each query reads the current rows. The
    next call adds new tables and columns of the lake, and removes tables that no longer exist. Call
    it in each session: a persistent catalog keeps the names, but the sources end with the session.

    Raises: UsageError, also if another catalog entry uses the name.
    """
    if plain_name(catalog, "") != catalog:
        raise UsageError(f"a catalog name has letters, digits and _ only, got {catalog!r}")
    fs = PosixFileSystem()
    directory = str(absolute_path(path))
    seam = find_seam(fs, ReadOptions(path=directory, database=database))
    tables = [
        name
        for name in present_tables(fs, seam.lake)
        if name != seam.database and content(seam.lake / name) != "other"
    ]
    names = [seam.database, *tables]
    with plain_errors():
        spark.sql(f"CREATE DATABASE IF NOT EXISTS `{catalog}`")
        _drop_old(spark, catalog)
        for name in names:
            given = {"path": directory, "database": seam.database, "table": name}
            source = _bound(f"{_PREFIX}{catalog}_{name}".lower(), given)
            spark.dataSource.register(source)
            spark.sql(f"CREATE TABLE `{catalog}`.`{name}` USING `{source.name()}`")
    return [f"{catalog}.{name}" for name in names]


def _bound(name: str, given: Mapping[str, str]) -> type[SiltstoneSource]:
    """Return a source with a name and options of its own.

    Spark 4.3 loses the options of a table when it is read, so each table has a source. The class
    is local, so that it is sent to other processes with its options.
    """
    bound = dict(given)

    class AttachedSource(SiltstoneSource):
        """A table of a store."""

        def __init__(self, options: MutableMapping[str, str]) -> None:
            super().__init__({**options, **bound})

        @classmethod
        def name(cls) -> str:
            """Return the name of the source."""
            return name

    return AttachedSource


def _drop_old(spark: SparkSession, catalog: str) -> None:
    """Drop the tables of an earlier call. Raises: UsageError for those of others."""
    for row in spark.sql(f"SHOW TABLES IN `{catalog}`").collect():
        # Temporary views are listed too, and belong to no database.
        if row["isTemporary"]:
            continue
        name = f"`{catalog}`.`{row['tableName']}`"
        told = {
            item["col_name"]: item["data_type"]
            for item in spark.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
        }
        # Spark shows no provider for a table of a Python source.
        if "Provider" in told or told.get("Type") != "MANAGED" or content_of(told) == "other":
            raise UsageError(
                f"database {catalog} of the catalog has a table {row['tableName']} of another "
                "program; choose another name for catalog"
            )
        spark.sql(f"DROP TABLE {name}")
