"""A user of a Flight server with rights that a test defines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Limited:
    """May read topics with one prefix, and write topics with another."""

    reads: bytes = b""
    writes: bytes = b""
    unlimited = False
    may_manage = False

    def may_read(self, filters: Sequence[str]) -> str | None:
        """Allow every filter except those that begin with "no"."""
        return next((each for each in filters if each.startswith("no")), None)

    def unreadable(self, topics: Iterable[bytes]) -> set[bytes]:
        return {topic for topic in topics if not topic.startswith(self.reads)}

    def unwritable(self, topics: Iterable[bytes]) -> set[bytes]:
        return {topic for topic in topics if not topic.startswith(self.writes)}
