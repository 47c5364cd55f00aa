"""Compact a database on the thread of the caller."""

from __future__ import annotations

from siltstone.store.database import Database
from siltstone.store.shard.compaction import Compacted


def compact_all(database: Database) -> list[Compacted]:
    """Compact every sealed segment of small frames."""
    compaction = database.compaction
    done = [compaction.run(job) for job in compaction.jobs()]
    assert compaction.jobs() == []
    return [each for each in done if each is not None]
