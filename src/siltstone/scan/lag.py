"""The lag of a query behind the store: in rows, and in seconds.

    {"rows": 1200, "seconds": 3.5}

Rows are all rows between the position and the end of the store, of any topic. Seconds are the age
of the oldest row that matches the filters and is not read. They are None if it is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from siltstone.units import SECOND_US


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLag:
    """The rows that a query has not read, and the age of the oldest one."""

    rows: int
    seconds: float | None = 0.0

    @classmethod
    def between(cls, reached: Mapping[int, int], ends: Mapping[int, int]) -> QueryLag:
        """Return the lag of a position; a shard without one is at its end."""
        rows = sum(max(0, end - reached.get(shard, end)) for shard, end in ends.items())
        return cls(rows=rows, seconds=None if rows else 0.0)

    def since(self, oldest_us: int | None, now_us: int) -> QueryLag:
        """Return the lag with the age of its oldest row; the age is None if no such row was
        found.
        """
        seconds = None if oldest_us is None else max(0.0, (now_us - oldest_us) / SECOND_US)
        return replace(self, seconds=seconds)

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"rows": self.rows, "seconds": self.seconds}
