"""The sources of each table of a lake: rules and topics, and the rule that would improve a table.

A table with few rows should be joined with a table whose filter differs at one level only. A table
with very many fields has several kinds of payloads, which a rule for some of its topics separates.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

import pyarrow.parquet as pq

from siltstone.fs.api import FileSystem
from siltstone.pipeline.lake.delta import list_files, present_tables
from siltstone.pipeline.lake.names import DEAD_LETTER, OTHER, plain_name
from siltstone.pipeline.lake.rules import TableRule, load_rules

FEW_ROWS: Final = 100
MANY_FIELDS: Final = 200
# The rows of a table whose topics are looked at.
_ROWS_MAX: Final = 2_000_000
_EXAMPLES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFeed:
    """The sources of a table; `advice` has a sentence for each problem that a rule would solve.

    `topics` is the number of different topics in the newest rows; `is_whole` says that these are
    all rows.
    """

    table: str
    rows: int
    fields: int
    filters: tuple[str, ...]
    topics: int
    examples: tuple[str, ...]
    is_whole: bool
    advice: tuple[str, ...] = ()


def explain(fs: FileSystem, lake: PurePath) -> list[TableFeed]:
    """Return the sources of each table with rows of topics. Raises: UsageError, RetryError."""
    rules = load_rules(fs, lake).effective().rules
    by_table: dict[str, list[TableRule]] = {}
    for rule in rules:
        by_table.setdefault(rule.table, []).append(rule)
    tables = present_tables(fs, lake)
    rows = {table: sum(file.rows for file in list_files(lake / table)) for table in tables}
    feeds: list[TableFeed] = []
    for table in tables:
        own = by_table.get(table, [])
        counts, is_whole = _topics(lake / table)
        if counts is None:
            continue
        feeds.append(
            TableFeed(
                table=table,
                rows=rows[table],
                fields=sum(len(rule.fields) for rule in own),
                filters=tuple(rule.filter for rule in own),
                topics=len(counts),
                examples=tuple(topic for topic, _ in counts.most_common(_EXAMPLES)),
                is_whole=is_whole,
                advice=tuple(_advice(table, own, rows, by_table, counts)),
            )
        )
    return feeds


def _topics(table: PurePath) -> tuple[Counter[str] | None, bool]:
    """Return the topics of the newest rows; None for a table of other data."""
    counts: Counter[str] = Counter()
    left = _ROWS_MAX
    files = sorted(list_files(table), key=lambda file: file.times_us or (0, 0), reverse=True)
    for file in files:
        if left <= 0:
            return counts, False
        with pq.ParquetFile(file.path) as opened:
            if "topic" not in opened.schema_arrow.names:
                return None, True
            column = opened.read(columns=["topic"]).column(0)
        for item in column.value_counts().to_pylist():
            counts[item["values"]] += item["counts"]
        left -= file.rows
    return counts, True


def _advice(
    table: str,
    own: Sequence[TableRule],
    rows: Mapping[str, int],
    by_table: Mapping[str, Sequence[TableRule]],
    topics: Counter[str],
) -> Iterable[str]:
    if table in (DEAD_LETTER, OTHER):
        return
    if not own:
        yield f"no rule feeds it: 'siltstone pipeline retier --table {table}' moves its rows"
    elif rows[table] < FEW_ROWS and all(rule.learned for rule in own):
        larger = [
            (rows.get(name, 0), name, joined)
            for name, others in by_table.items()
            if name != table and rows.get(name, 0) >= rows[table]
            for other in others
            if (joined := _joined(own[0].filter, other.filter))
        ]
        if larger:
            _, name, joined = max(larger)
            yield f"few rows: to join it with {name}, add {_rule(joined, name)}"
    if sum(len(rule.fields) for rule in own) >= MANY_FIELDS and topics:
        text, word = _divided(own[0], topics)
        if text:
            name = f"{table}_{plain_name(word, 'part').lower()}"
            yield f"many fields: to separate some of its topics, add {_rule(text, name)}"


def _joined(one: str, other: str) -> str:
    """Return the filter for two filters that differ at one level; empty if they do not."""
    pairs = list(zip(one.split("/"), other.split("/"), strict=False))
    differing = [place for place, (mine, theirs) in enumerate(pairs) if mine != theirs]
    if one.count("/") != other.count("/") or len(differing) != 1:
        return ""
    return "/".join("+" if place in differing else mine for place, (mine, _) in enumerate(pairs))


def _divided(rule: TableRule, topics: Counter[str]) -> tuple[str, str]:
    """Return a filter for the topics with the most common word at the level with fewest words.

    Return the word too; both are empty if no level has several words.
    """
    places = rule.level_places()
    words = {place: Counter[str]() for place in places}
    for topic, count in topics.items():
        levels = topic.split("/")
        for place in places:
            words[place][levels[place]] += count
    several = [place for place in places if len(words[place]) > 1]
    if not several:
        return "", ""
    place = min(several, key=lambda level: len(words[level]))
    levels = rule.filter.split("/")
    levels[place] = words[place].most_common(1)[0][0]
    return "/".join(levels), levels[place]


def _rule(text: str, table: str) -> str:
    return f"[[rule]] filter = '{text}' table = '{table}' to rules.toml"
