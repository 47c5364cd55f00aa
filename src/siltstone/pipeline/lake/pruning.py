"""Pruning: the files of the lake that a query reads, whole or with a condition.

The bounds of a file limit what it can contain. A file whose rows are all wanted is read without a
condition, at the speed of plain Parquet. Most files are of this kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from siltstone.pipeline.lake.delta import LakeFile

# The character after $, and the one after /.
_AFTER_DOLLAR: Final = "%"
_AFTER_SLASH: Final = "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScope:
    """The topics, times and batches of a query; batches up to `batch` have ended.

    `is_still` means that no batch ended while the files were listed. Compacted files then have only
    rows of these batches.
    """

    filters: tuple[str, ...]
    since_us: int
    until_us: int | None
    batch: int
    is_still: bool = True

    def has_ended(self, file: LakeFile) -> bool:
        """Return whether all rows of a file belong to batches that have ended."""
        return self.is_still if file.batch is None else file.batch <= self.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """Files that are read whole, and files of which some rows are wanted."""

    whole: list[LakeFile]
    partly: list[LakeFile]


def prune(files: Iterable[LakeFile], scope: QueryScope) -> Pruned:
    """Sort the files of a lake into whole, partly and not wanted."""
    pruned = Pruned(whole=[], partly=[])
    for file in files:
        if not _may_hold(file, scope):
            continue
        whole = (
            scope.has_ended(file)
            and _in_time(file, scope)
            and any(holds_only(topic_filter, file.topics) for topic_filter in scope.filters)
        )
        (pruned.whole if whole else pruned.partly).append(file)
    return pruned


def _may_hold(file: LakeFile, scope: QueryScope) -> bool:
    if file.times_us is not None:
        first, last = file.times_us
        if last < scope.since_us or (scope.until_us is not None and first >= scope.until_us):
            return False
    if file.batch is not None and file.batch > scope.batch:
        return False
    return any(may_match(topic_filter, file.topics) for topic_filter in scope.filters)


def _in_time(file: LakeFile, scope: QueryScope) -> bool:
    if file.times_us is None:
        return scope.since_us == 0 and scope.until_us is None
    first, last = file.times_us
    return first >= scope.since_us and (scope.until_us is None or last < scope.until_us)


def may_match(topic_filter: str, topics: tuple[str, str] | None) -> bool:
    """Return whether topics between two bounds may match a filter."""
    if topics is None:
        return True
    low, high = topics
    levels = topic_filter.split("/")
    if levels[0] in ("+", "#"):
        # A leading wildcard does not match topics that begin with $.
        return not (low >= "$" and high < _AFTER_DOLLAR)
    literal = literal_prefix(topic_filter)
    if literal == topic_filter:
        return low <= literal <= high
    parent = literal.removesuffix("/")
    return low <= parent <= high or (low < parent + _AFTER_SLASH and high >= literal)


def holds_only(topic_filter: str, topics: tuple[str, str] | None) -> bool:
    """Return whether the bounds prove that all topics between them match a filter."""
    if topics is None:
        return False
    low, high = topics
    if topic_filter == "#":
        return low >= _AFTER_DOLLAR or high < "$"
    if topic_filter.endswith("/#") and "+" not in topic_filter:
        prefix = topic_filter.removesuffix("#")
        return low >= prefix and high < prefix[:-1] + _AFTER_SLASH
    return low == high == topic_filter


def literal_prefix(topic_filter: str) -> str:
    """Return the prefix of all topics of a filter; the parent topic may lack the last slash."""
    prefix: list[str] = []
    for level in topic_filter.split("/"):
        if level in ("+", "#"):
            return "".join(f"{word}/" for word in prefix)
        prefix.append(level)
    return topic_filter


def topic_pattern(topic_filter: str) -> str:
    """Return a filter as a Java regular expression for a whole topic."""
    levels = topic_filter.split("/")
    parts = ["[^/]*" if level == "+" else java_quoted(level) for level in levels if level != "#"]
    pattern = "/".join(parts)
    if levels[-1] == "#":
        pattern = f"{pattern}(/.*)?" if parts else ".*"
    refuse = r"(?!\$)" if levels[0] in ("+", "#") else ""
    return f"(?s)^{refuse}{pattern}\\z"


def java_quoted(word: str) -> str:
    """Return a word as a literal in a Java regular expression."""
    return re.sub(r"([^A-Za-z0-9_ ])", r"\\\1", word) if word.isascii() else _quoted(word)


def _quoted(word: str) -> str:
    # A backslash before a non-ASCII letter may have a meaning, so the whole word is quoted.
    return "\\Q" + word.replace("\\E", "\\E\\\\E\\Q") + "\\E"
