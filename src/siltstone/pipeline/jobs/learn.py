"""Learning of topic structure from history, as the start of the next generation.

A store learns while topics arrive: it keeps the first words of each level separate before it
detects that the level varies. With all topics known, this is immediate: level by level, a node
varies if it has more words than the threshold of its level. Spark counts the words of distinct
topics.

An automatic threshold is below the first large jump in these counts. It is lower than the threshold
of the database only if the words that it merges have the same topics below them: `north/temp` and
`south/temp` may become `+/temp`; `plant/1/oven` and `site/1/door` have nothing in common.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from siltstone.errors import UsageError
from siltstone.flight.client import NodeClient
from siltstone.fs.paths import StorePaths
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.pipeline.remote import find_node, node_database
from siltstone.pipeline.table import table
from siltstone.scan.node import Node
from siltstone.scan.survey import find_database
from siltstone.store.directory import Store
from siltstone.store.slab.marks import Seed, write_seed
from siltstone.store.slab.settings import THRESHOLD_MAX, DatabaseSettings
from siltstone.topic.structure import NEVER

# Up to this number of words are kept separate, whatever the next count is.
WORDS_MIN: Final = 8
# A jump by this factor between the word counts of two nodes separates names from values.
GAP: Final = 4.0
LEVELS_MAX: Final = 32
# A level with one word does not vary, whatever the threshold is.
_FEWEST: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """A structure, and its numbers of topics and rows in the history."""

    pattern: str
    topics: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnReport:
    """The result; streams_before is the current number of streams, streams_after the new one."""

    database: str
    thresholds: tuple[int, ...]
    structures: Sequence[Learned]
    topics: int
    streams_before: int
    streams_after: int

    @property
    def saved(self) -> int:
        """The number of streams that are saved."""
        return self.streams_before - self.streams_after


def learn(
    spark: SparkSession,
    path: str = "",
    *,
    database: str = "",
    history: DataFrame | None = None,
    thresholds: Sequence[int] | None = None,
    dry_run: bool = False,
    **node: str,
) -> LearnReport:
    """Learn from the rows of a store and its lake, or from a DataFrame with a topic column.

    The varying structures become the seed of the next generation, unless this is a dry run. Without
    `thresholds`, they are chosen automatically. With the `url` of a node, only a dry run is
    possible. Raises: UsageError.
    """
    if thresholds:
        check_thresholds(thresholds)
    reached = find_node(path, node)
    if reached is not None and not dry_run:
        raise UsageError(
            "learn writes to the data directory: run it on the machine of the directory, or as a "
            "dry run"
        )
    name, defaults, streams_before = (
        _known(path, database) if reached is None else _by_node(reached, database)
    )
    rows = history
    if rows is None:
        rows = table(spark, path, database=name, columns=["topic"], **node)
    if "topic" not in rows.columns:
        raise UsageError(f"the history must have a column topic (found: {', '.join(rows.columns)})")
    found, used = structures(rows, tuple(thresholds) if thresholds else None, defaults)
    if not dry_run:
        varying = tuple(item.pattern for item in found if "+" in item.pattern.split("/"))
        directory = StorePaths(absolute_path(path)).database(name)
        write_seed(PosixFileSystem(), directory, Seed(varying, used))
    return LearnReport(
        database=name,
        thresholds=used,
        structures=found,
        topics=sum(item.topics for item in found),
        streams_before=streams_before,
        streams_after=len(found),
    )


def check_thresholds(thresholds: Sequence[int]) -> None:
    """Check that a database can have these thresholds, and that they learn something.

    Raises: UsageError.
    """
    DatabaseSettings(thresholds=tuple(thresholds))
    if all(value == NEVER for value in thresholds):
        raise UsageError(
            f"with {NEVER} for every level no structure is learned; set at least one threshold "
            f"from 0 to {THRESHOLD_MAX}"
        )


def structures(
    rows: DataFrame, thresholds: tuple[int, ...] | None, defaults: tuple[int, ...]
) -> tuple[list[Learned], tuple[int, ...]]:
    """Return the structures of topics, and the thresholds that were used."""
    topics = (
        rows.groupBy("topic")
        .agg(F.count(F.lit(1)).alias("rows"))
        .select(F.split("topic", "/", -1).alias("words"), "rows", F.lit("").alias("path"))
        .cache()
    )
    try:
        deepest = topics.agg(F.max(F.size("words"))).head()
        depth = min((deepest[0] if deepest else 0) or 0, LEVELS_MAX)
        used: list[int] = []
        current = topics
        for level in range(depth):
            current, threshold = _generalised(current, level, thresholds, defaults)
            used.append(threshold)
        # The path begins with an added slash, which is removed. Deeper levels are unchanged.
        rest = F.expr(f"array_join(slice(words, {depth + 1}, 1000000), '/')")
        path = F.when(F.size("words") > depth, F.concat("path", F.lit("/"), rest)).otherwise(
            F.col("path")
        )
        found = (
            current.groupBy(F.substring(path, 2, 1 << 30).alias("pattern"))
            .agg(F.count(F.lit(1)).alias("topics"), F.sum("rows").alias("rows"))
            .orderBy("pattern")
            .collect()
        )
    finally:
        topics.unpersist()
    learned = [
        Learned(pattern=row["pattern"], topics=row["topics"], rows=row["rows"]) for row in found
    ]
    return learned, tuple(used) or defaults


def _generalised(
    topics: DataFrame, level: int, thresholds: tuple[int, ...] | None, defaults: tuple[int, ...]
) -> tuple[DataFrame, int]:
    """Replace the words of one level by + where they vary; return the threshold as well."""
    word = F.col("words")[level]
    # First words that begin with $ are never generalized: no wildcard matches them.
    special = word.startswith("$") if level == 0 else F.expr("false")
    nodes = topics.where((F.size("words") > level) & ~special)
    counted = nodes.groupBy("path").agg(F.count_distinct(word).alias("count"))
    wanted = F.when(F.col("count") > F.lit(_FEWEST), F.col("path"))
    found = counted.groupBy("count").agg(F.collect_list(wanted).alias("paths")).collect()
    if thresholds is None:
        fallback = defaults[min(level, len(defaults) - 1)]
        threshold = choose_threshold([row["count"] for row in found], fallback)
        doubtful = [
            path
            for row in found
            if is_doubtful(row["count"], chosen=threshold, otherwise=fallback)
            for path in row["paths"]
        ]
        if doubtful and not _are_alike(nodes.where(F.col("path").isin(doubtful)), level):
            threshold = fallback
    else:
        threshold = thresholds[min(level, len(thresholds) - 1)]
    limit = max(threshold, _FEWEST) if threshold >= 0 else 1 << 62
    wide = [path for row in found if row["count"] > limit for path in row["paths"]]
    varies = F.col("path").isin(wide) & ~special
    chosen = F.when(varies, F.lit("+")).otherwise(word)
    path = F.when(F.size("words") > level, F.concat("path", F.lit("/"), chosen)).otherwise(
        F.col("path")
    )
    return topics.select("words", "rows", path.alias("path")), threshold


def choose_threshold(counts: Sequence[int], otherwise: int) -> int:
    """Return the threshold of a level, given the word counts of its nodes.

    It is below the first large jump in the counts. Without a jump it is `otherwise`, but never so
    low that a level with few words would vary.
    """
    known = sorted({count for count in counts if count > 0})
    few = max((count for count in known if count <= WORDS_MIN), default=1)
    if not known or known[-1] <= WORDS_MIN:
        return max(otherwise, few) if otherwise >= 0 else otherwise
    below = few
    for count in known:
        if count > WORDS_MIN and count >= below * GAP:
            return max(below, 1)
        below = max(below, count)
    return otherwise


def is_doubtful(count: int, *, chosen: int, otherwise: int) -> bool:
    """Return whether the chosen threshold merges this many words and the other one does not."""
    return count > chosen >= 0 and (otherwise < 0 or count <= otherwise)


def _are_alike(nodes: DataFrame, level: int) -> bool:
    """Return whether all words of a level have the same topics below, under each node.

    Words without topics below them are not alike.
    """
    word = F.col("words")[level].alias("word")
    below = F.expr(f"array_join(slice(words, {level + 2}, 1000000), '/')")
    ends = F.size("words") == level + 1
    # Compare counts and digests: one word may have millions of topics below it.
    rest = nodes.select("path", word, F.when(~ends, below).alias("below")).distinct()
    kinds = (
        rest.groupBy("path", "word")
        .agg(
            F.count("below").alias("topics"),
            F.bit_xor(F.xxhash64("below")).alias("digest"),
            F.count(F.lit(1)).alias("all"),
        )
        .groupBy("path")
        .agg(
            F.count_distinct("topics", "digest", "all").alias("kinds"),
            F.min("topics").alias("fewest"),
        )
    )
    return kinds.where((F.col("kinds") > 1) | (F.col("fewest") == 0)).isEmpty()


def _known(path: str, database: str) -> tuple[str, tuple[int, ...], int]:
    """Return the name of a database, its thresholds, and its number of streams."""
    with Store(absolute_path(path), read_only=True, fs=PosixFileSystem()) as store:
        known = find_database(store, database)
        streams = {info.pattern for info in known.structure()}
        return known.name, known.settings.thresholds, len(streams)


def _by_node(node: Node, database: str) -> tuple[str, tuple[int, ...], int]:
    """Return the same for a node, with default thresholds: a node does not report its own."""
    name = node_database(node, database)
    with NodeClient(node) as client:
        streams = len(client.flights(name.encode()))
    return name, DatabaseSettings().thresholds, streams
