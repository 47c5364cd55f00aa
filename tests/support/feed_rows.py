"""Rows of a feed that differ only in serial and flags."""

from __future__ import annotations

from typing import Final

from siltstone.rows.stored import StoredBatch

WALL_US: Final = 1_000_000_000


def rows(
    *flags: int,
    first: int = 0,
    topic: str = "t",
    publisher: bytes = b"other",
    properties: bytes = b"",
    at_us: int = WALL_US,
) -> StoredBatch:
    """Return rows with serials from `first` on; their values are their serials."""
    serials = list(range(first, first + len(flags)))
    batch = StoredBatch(0, 1, first, first + len(flags), len(flags))
    batch.serials = serials
    batch.topics = [topic.encode()] * len(flags)
    batch.values = [b"%d" % serial for serial in serials]
    batch.flags = list(flags)
    batch.timestamps = [at_us] * len(flags)
    batch.publishers = [publisher] * len(flags)
    batch.properties = [properties] * len(flags) if properties else []
    return batch
