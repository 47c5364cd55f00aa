"""SQL on a store: its rows and the tables of its lake as temporary views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql.types import NumericType

from siltstone.fs.posix import PosixFileSystem
from siltstone.pipeline.answers import plain_errors
from siltstone.pipeline.lake.delta import present_tables
from siltstone.pipeline.lake.ledger import read_identity
from siltstone.pipeline.remote import find_node, node_database
from siltstone.pipeline.table import Moment, find_seam, lake_table, table
from siltstone.scan.options import ReadOptions, parse_options


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The rows of a statement, whether there were more, and which columns are numbers."""

    columns: Sequence[str]
    numbers: Sequence[bool]
    rows: Sequence[Sequence[Any]]
    more: bool


def make_views(
    spark: SparkSession,
    path: str = "",
    *,
    database: str = "",
    since: Moment | None = None,
    failOnDataLoss: bool | str = True,  # noqa: N803 - as the option of the source
    **node: str,
) -> list[str]:
    """Create a view of all rows with the name of the database, and one for each lake table.

    With `failOnDataLoss=False`, tables of an earlier database get no view. If a table has the name
    of the database, the view has the rows, and the table gets no view. With the `url` of a node
    there are no tables: a lake can be read only on the machine of the data directory.

    Raises: UsageError.
    """
    reached = find_node(path, node)
    if reached is not None:
        name = node_database(reached, database)
        rows = table(spark, database=name, since=since, failOnDataLoss=failOnDataLoss, **node)
        rows.createOrReplaceTempView(_quoted(name))
        return [name]
    fs = PosixFileSystem()
    strict = parse_options({"path": path, "failOnDataLoss": str(failOnDataLoss)}).fails_on_loss
    seam = find_seam(fs, ReadOptions(path=path, database=database, fails_on_loss=strict))
    taken = seam.database.lower()
    is_own = read_identity(fs, seam.lake) in (None, seam.ledger.identity)
    names = [name for name in present_tables(fs, seam.lake) if is_own and name.lower() != taken]
    for name in names:
        lake_table(spark, path, name, database=database).createOrReplaceTempView(name)
    rows = table(spark, path, database=database, since=since, failOnDataLoss=failOnDataLoss)
    rows.createOrReplaceTempView(_quoted(seam.database))
    return [seam.database, *names]


def run(spark: SparkSession, statement: str, *, rows_max: int) -> Answer:
    """Run a statement. Raises: UsageError with the message of Spark."""
    with plain_errors():
        frame = spark.sql(statement)
        rows = frame.limit(rows_max + 1).collect()
    return Answer(
        columns=frame.columns,
        numbers=[isinstance(field.dataType, NumericType) for field in frame.schema.fields],
        rows=[tuple(row) for row in rows[:rows_max]],
        more=len(rows) > rows_max,
    )


def _quoted(name: str) -> str:
    return f"`{name}`" if not name.isidentifier() else name
