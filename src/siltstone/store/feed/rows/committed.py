"""The rows of a frame that was just committed, as a batch for feeds. Compiled."""

from __future__ import annotations

from siltstone.rows.stored import StoredBatch
from siltstone.store.log.write.frame_builder import BuiltFrame


class _Committed:
    """The rows of a frame as the builder made them, by stream."""

    def __init__(self, built: BuiltFrame) -> None:
        self.parts = built.streams
        self.publishers = built.publishers
        self.flags = built.flags

    def load(self, batch: StoredBatch) -> None:
        parts = self.parts
        count = batch.count
        batch.timestamps = _joined_numbers([part.timestamps() for part in parts])
        batch.values = _joined([part.values for part in parts])
        batch.properties = _joined([part.properties for part in parts])
        if self.flags >= 0:
            batch.flags = [self.flags] * count
        else:
            batch.flags = _joined_numbers([part.flags for part in parts])
        if len(self.publishers) > 1:
            names = self.publishers
            numbers = _joined_numbers([part.publishers for part in parts])
            batch.publishers = [names[number] for number in numbers]
        else:
            batch.publishers = (self.publishers or [b""]) * count
        batch.topics = _joined([part.row_topics() for part in parts])

    def streams(self) -> list[tuple[int, int]]:
        return [(part.stream_id, len(part.values)) for part in self.parts]


def committed_batch(
    shard: int, generation: int, first_serial: int, built: BuiltFrame
) -> StoredBatch:
    """Return the rows of a frame that was just committed; its lists are not copied."""
    stop = first_serial + built.row_count
    batch = StoredBatch(shard, generation, first_serial, stop, built.row_count)
    committed = _Committed(built)
    batch.names = _joined([part.topics for part in committed.parts])
    batch.mixed = len(committed.parts) > 1
    batch.stream_loader = committed.streams
    batch.size_bytes = built.size_bytes
    batch.first_timestamp_us = built.timestamp_us
    batch.loader = committed.load
    return batch


def _joined(lists: list[list[bytes]]) -> list[bytes]:
    if len(lists) == 1:
        return lists[0]
    joined: list[bytes] = []
    for items in lists:
        joined += items
    return joined


def _joined_numbers(lists: list[list[int]]) -> list[int]:
    if len(lists) == 1:
        return lists[0]
    joined: list[int] = []
    for items in lists:
        joined += items
    return joined
