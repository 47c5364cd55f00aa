"""The last number of each producer, and the producers that a FENCE closed.

All sites hold the same table, because only messages that counted change it. A closed producer is
never forgotten: a call of it that arrives late must not be stored.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from siltstone.store.writer.replication.codec import UnreadableRecordError
from siltstone.store.writer.replication.messages import Call, Change, MessageKind

_ENTRY: Final = struct.Struct("<16sQB")


class Producers:
    """The table of one shard: what has counted."""

    def __init__(self) -> None:
        self._last: dict[bytes, int] = {}
        self._closed: set[bytes] = set()

    def last(self, producer: bytes) -> int:
        """Return the last number that counted, or 0."""
        return self._last.get(producer, 0)

    def is_closed(self, producer: bytes) -> bool:
        return producer in self._closed

    def count(self, change: Change) -> None:
        """Apply a change that counted."""
        self._take(change.calls)
        if change.kind is MessageKind.FENCE:
            self._closed.add(change.payload)

    def _take(self, calls: Iterable[Call]) -> None:
        for call in calls:
            self._last[call.producer] = call.number

    def encode(self) -> bytes:
        """Return the whole table, equal at all sites with the same history."""
        return b"".join(
            _ENTRY.pack(producer, self.last(producer), producer in self._closed)
            for producer in sorted(self._last.keys() | self._closed)
        )

    @classmethod
    def decode(cls, data: bytes) -> Producers:
        """Return the table that these bytes encode. Raises: UnreadableRecordError."""
        if len(data) % _ENTRY.size:
            raise UnreadableRecordError(f"the table of producers is cut: size_bytes={len(data)}")
        table = cls()
        for producer, last, closed in _ENTRY.iter_unpack(data):
            if last:
                table._last[producer] = last
            if closed:
                table._closed.add(producer)
        return table
