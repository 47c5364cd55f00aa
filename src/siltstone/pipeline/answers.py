"""What can be said of a query without Spark: what it would read, and how many rows it has."""

from __future__ import annotations

from siltstone.bulk.offsets import AT_EARLIEST, AT_LATEST
from siltstone.bulk.options import ReadOptions, parse_options
from siltstone.bulk.survey import PlanReport, opened, plan_batch
from siltstone.fs.api import FileSystem
from siltstone.fs.posix import PosixFileSystem
from siltstone.store.scan import Span


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
