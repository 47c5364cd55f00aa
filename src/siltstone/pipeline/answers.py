"""What can be said of a query without Spark: what it would read, how many rows it has; and in one
sentence what Spark says of one that failed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from siltstone.errors import SiltstoneError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.posix import PosixFileSystem
from siltstone.scan.offsets import AT_EARLIEST, AT_LATEST
from siltstone.scan.options import ReadOptions, parse_options
from siltstone.scan.survey import PlanReport, opened, plan_batch
from siltstone.store.log.read.scan import Span

# An error of ours that a task raised stands at the end of the trace of its worker.
_OURS: Final = re.compile(r"^siltstone\.errors\.\w+: (.+)$", re.MULTILINE)
# How an error that only Java knows begins: the call it came from, and the class it is of.
_CALL: Final = "An error occurred while calling "
_CLASS: Final = re.compile(r"^: (?:[\w$]+\.)+[\w$]+:? *")


def explain(path: str, **options: str) -> PlanReport:
    """Return what a batch query with these options reads, and of how much. Raises: UsageError."""
    return explain_read(PosixFileSystem(), parse_options(options | {"path": path}))


def count(path: str, **options: str) -> int:
    """Return how many rows a batch query with these options has. Raises: UsageError.

    One filter is counted by the index wherever whole frames match it; no row is read.
    """
    return count_read(PosixFileSystem(), parse_options(options | {"path": path}))


def explain_read(fs: FileSystem, options: ReadOptions) -> PlanReport:
    """Plan a batch query and return what it would read."""
    with opened(fs, options) as database:
        return plan_batch(database, options).report


def count_read(fs: FileSystem, options: ReadOptions) -> int:
    """Count the rows of a batch query."""
    bounded = (options.batch_start(), options.ending) != (AT_EARLIEST, AT_LATEST)
    with opened(fs, options) as database:
        if len(options.filters) == 1 and not bounded:
            return database.count(
                options.filters[0], since_us=options.since_us, until_us=options.until_us
            )
        plan = plan_batch(database, options)
    span = Span(since_us=options.since_us, until_us=options.until_us)
    return sum(
        piece.num_rows
        for partition in plan.partitions
        for piece in partition.pieces(fs, span, fails_on_loss=options.fails_on_loss)
    )


@contextmanager
def plain_errors(kind: type[SiltstoneError] = UsageError) -> Iterator[None]:
    """Turn what Spark raises into an error of ours, with what Spark says of it in one line."""
    try:
        yield
    except (PySparkException, Py4JError) as exc:
        raise kind(spark_sentence(exc)) from exc


def spark_sentence(error: BaseException) -> str:
    """Return the first line of what Spark says of an error, without plan and trace; never none."""
    text = str(error)
    if ours := _OURS.search(text):
        return ours[1]
    lines = (_CLASS.sub("", line).strip() for line in text.splitlines())
    said = next((line for line in lines if line and not line.startswith(_CALL)), "")
    return said.rstrip("; ") or f"Spark could not do it: {type(error).__name__}"
