"""Plans and counts of queries without Spark, and Spark errors in one sentence."""

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
from siltstone.scan.options import ReadOptions, parse_options
from siltstone.scan.survey import PlanReport, opened, plan_batch
from siltstone.store.feed.position import END, START
from siltstone.store.log.read.scan import Span

# A Siltstone error of a worker is at the end of a line, behind the sentence of Spark.
_OURS: Final = re.compile(r"\bsiltstone\.errors\.\w+: (.+)$", re.MULTILINE)
# The start of a Java error: the call that raised it, and its class.
_CALL: Final = "An error occurred while calling "
_CLASS: Final = re.compile(r"^: (?:[\w$]+\.)+[\w$]+:? *")
# The code of the SQL standard: the name in brackets says the same in words.
_CODE: Final = re.compile(r" SQLSTATE: \w+$")


def explain(path: str, **options: str) -> PlanReport:
    """Return how much a batch query with these options reads. Raises: UsageError."""
    return explain_read(PosixFileSystem(), parse_options(options | {"path": path}))


def count(path: str, **options: str) -> int:
    """Return the number of rows of a batch query with these options. Raises: UsageError.

    For one filter, whole frames that match are counted by the index; no row is read.
    """
    return count_read(PosixFileSystem(), parse_options(options | {"path": path}))


def explain_read(fs: FileSystem, options: ReadOptions) -> PlanReport:
    """Plan a batch query and return how much it would read."""
    with opened(fs, options) as database:
        return plan_batch(database, options).report


def count_read(fs: FileSystem, options: ReadOptions) -> int:
    """Count the rows of a batch query."""
    is_timed = options.starting_times is not None
    bounded = is_timed or (options.batch_start(), options.ending) != (START, END)
    with opened(fs, options) as database:
        if len(options.filters) == 1 and not bounded:
            return database.count(
                options.filters[0], since_us=options.since_us, until_us=options.until_us
            )
        plan = plan_batch(database, options)
    span = Span(since_us=options.since_us, until_us=options.until_us)
    return sum(
        part.num_rows
        for partition in plan.partitions
        for part in partition.parts(fs, span, fails_on_loss=options.fails_on_loss)
    )


@contextmanager
def plain_errors(kind: type[SiltstoneError] = UsageError) -> Iterator[None]:
    """Translate Spark errors into a Siltstone error with a one-line message."""
    try:
        yield
    except (PySparkException, Py4JError) as exc:
        raise kind(spark_sentence(exc)) from exc


def spark_sentence(error: BaseException) -> str:
    """Return the first line of a Spark error, without plan and trace; never empty."""
    return sentence_in(str(error)) or f"Spark could not do it: {type(error).__name__}"


def sentence_in(text: str) -> str:
    """Return the sentence in the text of a Spark error; empty if there is none."""
    if ours := _OURS.search(text):
        return ours[1]
    lines = (_CLASS.sub("", line).strip() for line in text.splitlines())
    said = next((line for line in lines if line and not line.startswith(_CALL)), "")
    return _CODE.sub("", said).rstrip("; ")
