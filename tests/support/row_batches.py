"""Batches of rows for tests."""

from __future__ import annotations

from siltstone.rows.batch import RowBatch


def row_batch(topics: list[bytes], values: list[bytes], publisher: bytes) -> RowBatch:
    """Return rows of one publisher without flags and properties; they are not checked."""
    batch = RowBatch()
    batch.topics = topics
    batch.values = values
    batch.publisher = publisher
    batch.shared_flags = 0
    batch.measure()
    return batch
