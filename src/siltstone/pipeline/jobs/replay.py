"""Replay: copies the rows of a filter and a time range to topics again, through the sink.

With a speed, rows are written in windows of time. The time between two windows is the original time
divided by the speed. A replay with a name can be interrupted and repeated: a window that was
written is not written twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from siltstone.clock import Clock, SystemClock
from siltstone.errors import UsageError
from siltstone.pipeline.table import Moment, table, time_of
from siltstone.units import SECOND_US

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# A write of Spark takes about this long, so shorter windows would fall behind.
WINDOW_SECONDS: Final = 1.0
# Longer than the time range of any store, at any speed.
_WIDTH_MAX_US: Final = 1 << 62
_COLUMNS: Final = ("topic", "timestamp", "publisher", "qos", "retain", "properties", "payload")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """The rows to replay, and the target. Speed 1 is the original pace, None as fast as possible.

    `node` has url and its credentials, as options of the source, instead of a path.
    """

    target: Mapping[str, str]
    path: str = ""
    node: Mapping[str, str] = field(default_factory=dict)
    database: str = ""
    filter: str = "#"
    since: Moment | None = None
    until: Moment | None = None
    speed: float | None = None
    prefix: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        """Check the values. Raises: UsageError."""
        if self.speed is not None and not (isfinite(self.speed) and self.speed > 0):
            raise UsageError(f"speed must be greater than 0, got {self.speed}")
        if set(self.prefix) & set("+#\0"):
            raise UsageError(
                f"prefix must not have the wildcards + and #, or U+0000: prefix={self.prefix!r}"
            )
        for name, moment in (("since", self.since), ("until", self.until)):
            if moment is not None:
                time_of(moment, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayStep:
    """A window that was written: its rows, the number of windows left, and its delay."""

    rows: int
    waiting: int
    late_seconds: float


def replay(
    spark: SparkSession,
    settings: ReplaySettings,
    wait: Callable[[float], None],
    progress: Callable[[ReplayStep], None] = lambda _: None,
    clock: Clock | None = None,
) -> list[ReplayStep]:
    """Replay rows; `wait` is called with the seconds to wait. Raises: UsageError."""
    used = clock or SystemClock()
    # The end is fixed now: rows that are replayed into the same store are not replayed again.
    since_us = 0 if settings.since is None else time_of(settings.since, "since")
    until_us = used.now_us() if settings.until is None else time_of(settings.until, "until")
    steps: list[ReplayStep] = []
    began = used.monotonic()
    for number, (rows, count, due, left) in enumerate(
        _windows(spark, settings, since_us, until_us)
    ):
        ahead = began + due - used.monotonic()
        if settings.speed is not None and ahead > 0:
            wait(ahead)
        write = rows.write.format("siltstone").mode("append").options(**settings.target)
        if settings.name:
            write = write.option("writeId", f"replay-{settings.name}-{number}")
        write.save()
        late = 0.0 if settings.speed is None else max(0.0, -ahead)
        steps.append(ReplayStep(rows=count, waiting=left, late_seconds=late))
        progress(steps[-1])
    return steps


def _windows(
    spark: SparkSession, settings: ReplaySettings, since_us: int, until_us: int
) -> Iterator[tuple[DataFrame, int, float, int]]:
    """Yield the rows of each window, their number, their due time, and the windows left."""
    chosen = _rows(spark, settings, since_us, until_us)
    if settings.speed is None:
        count = chosen.count()
        if count:
            yield chosen, count, 0.0, 0
        return
    width_us = max(1, int(min(WINDOW_SECONDS * settings.speed * SECOND_US, _WIDTH_MAX_US)))
    window = F.floor(F.unix_micros("timestamp") / width_us)
    found = chosen.groupBy(window.alias("window")).count().orderBy("window").collect()
    for place, row in enumerate(found):
        start_us = row["window"] * width_us
        rows = _rows(spark, settings, max(since_us, start_us), min(until_us, start_us + width_us))
        due = (start_us - found[0]["window"] * width_us) / settings.speed / SECOND_US
        yield rows, row["count"], due, len(found) - place - 1


def _rows(spark: SparkSession, settings: ReplaySettings, since_us: int, until_us: int) -> DataFrame:
    rows = table(
        spark,
        settings.path,
        database=settings.database,
        filter=settings.filter,
        since=_EPOCH + timedelta(microseconds=since_us),
        until=_EPOCH + timedelta(microseconds=until_us),
        columns=_COLUMNS,
        **settings.node,
    )
    topic = F.concat(F.lit(settings.prefix), F.col("topic")) if settings.prefix else F.col("topic")
    return rows.withColumn("topic", topic).orderBy("timestamp")
