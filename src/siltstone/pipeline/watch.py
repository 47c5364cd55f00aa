"""The progress of a streaming query: its lag, its rate, and why it ended.

    watched = watch(query, lambda progress: print(progress.rows_behind))

Spark calls the listener after each micro-batch. A query that the listener does not belong to, or
that has another source, changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from pyspark.sql.streaming.query import StreamingQuery

from siltstone.errors import UsageError
from siltstone.pipeline.answers import sentence_in

_SOURCE: Final = "source"
_LAG: Final = "lag"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamProgress:
    """A micro-batch of a query, and how far the query is behind after it.

    `rows_behind` counts all rows of the store after the position of the query, of any topic.
    `seconds_behind` is the age of the oldest row that the query wants and has not read; None if it
    is not known. `source` names the store and the filters.
    """

    batch: int
    rows: int
    rows_per_second: float
    rows_behind: int
    seconds_behind: float | None
    source: str


class Watch(StreamingQueryListener):
    """Listens to one query until `close`; Spark calls it from a thread of its own."""

    def __init__(
        self, spark: SparkSession, query: str, told: Callable[[StreamProgress], None]
    ) -> None:
        self._spark = spark
        self._query = query
        self._told = told
        self._latest: StreamProgress | None = None
        self._error = ""

    @property
    def latest(self) -> StreamProgress | None:
        """The progress of the last micro-batch; None before the first."""
        return self._latest

    @property
    def error(self) -> str:
        """The reason why the query ended, in one sentence; empty if it runs or was stopped."""
        return self._error

    def close(self) -> None:
        """Stop listening; the query goes on."""
        self._spark.streams.removeListener(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Do nothing: the query started before the watch."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Do nothing: nothing was read."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Keep the progress of a micro-batch, and tell it."""
        if str(event.progress.id) == self._query:
            progress = progress_of(event.progress)
            if progress is not None:
                self._latest = progress
                self._told(progress)

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Keep the reason of the end."""
        if str(event.id) == self._query and event.exception:
            self._error = sentence_in(event.exception)


def watch(query: StreamingQuery, told: Callable[[StreamProgress], None] | None = None) -> Watch:
    """Watch a streaming query that reads a store; `told` gets the progress of each micro-batch.

    Raises: UsageError if this thread has no Spark session.
    """
    spark = SparkSession.getActiveSession()
    if spark is None:
        raise UsageError("watch needs the Spark session of the query: call it where Spark runs")
    listener = Watch(spark, str(query.id), told or (lambda _: None))
    spark.streams.addListener(listener)
    return listener


def progress_of(progress: StreamingQueryProgress) -> StreamProgress | None:
    """Return the progress of the sources that are stores; None if there are none."""
    reports: list[dict[str, Any]] = [
        report
        for source in progress.sources
        for report in [_report(source.latestOffset)]
        if report is not None
    ]
    if not reports:
        return None
    ages = [report[_LAG]["seconds"] for report in reports]
    known = [age for age in ages if age is not None]
    return StreamProgress(
        batch=progress.batchId,
        rows=progress.numInputRows,
        rows_per_second=progress.processedRowsPerSecond,
        rows_behind=sum(report[_LAG]["rows"] for report in reports),
        seconds_behind=max(known) if known else None,
        source="; ".join(_described(report[_SOURCE]) for report in reports),
    )


def _report(text: str | None) -> dict[str, Any] | None:
    """Return what a source reported about itself; None if it is not a store."""
    try:
        report = json.loads(text or "null")
    except ValueError:
        return None
    return report if isinstance(report, dict) and {_SOURCE, _LAG} <= report.keys() else None


def _described(source: dict[str, Any]) -> str:
    database = f" database={source['database']}" if "database" in source else ""
    return f"siltstone {source['store']}{database} filter={','.join(source['filter'])}"
