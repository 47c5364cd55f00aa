"""The last number of each producer, and the producers that a FENCE or a RETIRE closed.

All sites hold the same table, because only messages that counted change it. A closed producer is
never forgotten: a call of it that arrives late must not be stored.

The name of a producer is 8 bytes for its site, and a number that grows with each producer of the
site. So a RETIRE closes all producers of a site up to a number with one entry: those of processes
that have ended.

    0   16 producer, or the first 8 bytes and the number (u64) of a RETIRE
    16  8  last number
    24  1  1: the producer is closed; 2: a RETIRE
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from siltstone.store.writer.replication.codec import UnreadableRecordError
from siltstone.store.writer.replication.messages import MessageKind, ProducerCall, RecordChange

PREFIX_BYTES: Final = 8
_ENTRY: Final = struct.Struct("<16sQB")
_NUMBER: Final = struct.Struct("<Q")
_RETIRED: Final = 2


class Producers:
    """The table of one shard: the calls that have counted."""

    def __init__(self) -> None:
        self._last: dict[bytes, int] = {}
        self._closed: set[bytes] = set()
        self._retired: dict[bytes, int] = {}

    def last(self, producer: bytes) -> int:
        """Return the last number that counted, or 0."""
        return self._last.get(producer, 0)

    def is_closed(self, producer: bytes) -> bool:
        return producer in self._closed or self._is_retired(producer)

    def _is_retired(self, producer: bytes) -> bool:
        site, number = split_producer(producer)
        return number <= self._retired.get(site, -1)

    def retirable(self, site: bytes, number: int) -> bool:
        """Return whether a RETIRE would remove an entry."""
        return any(
            each[:PREFIX_BYTES] == site and split_producer(each)[1] <= number
            for each in self._last.keys() | self._closed
        )

    def newest(self, site: bytes) -> int:
        """Return the highest number of a producer of a site, -1 if there is none."""
        numbers = (split_producer(each)[1] for each in self._last if each[:PREFIX_BYTES] == site)
        return max(numbers, default=-1)

    def count(self, change: RecordChange) -> None:
        """Apply a change that counted."""
        self._take(change.calls)
        if change.kind is MessageKind.FENCE:
            self._closed.add(change.payload)
        elif change.kind is MessageKind.RETIRE:
            site, number = split_producer(change.payload)
            self._retired[site] = max(number, self._retired.get(site, -1))
            self._last = {
                each: last for each, last in self._last.items() if not self._is_retired(each)
            }
            self._closed = {each for each in self._closed if not self._is_retired(each)}

    def _take(self, calls: Iterable[ProducerCall]) -> None:
        for call in calls:
            self._last[call.producer] = call.number

    def encode(self) -> bytes:
        """Return the whole table, equal at all sites with the same history."""
        entries = [
            _ENTRY.pack(producer, self.last(producer), producer in self._closed)
            for producer in sorted(self._last.keys() | self._closed)
        ]
        entries += [
            _ENTRY.pack(make_producer(site, number), 0, _RETIRED)
            for site, number in sorted(self._retired.items())
        ]
        return b"".join(entries)

    @classmethod
    def decode(cls, data: bytes) -> Producers:
        """Return the table that these bytes encode. Raises: UnreadableRecordError."""
        if len(data) % _ENTRY.size:
            raise UnreadableRecordError(f"the table of producers is cut: size_bytes={len(data)}")
        table = cls()
        for producer, last, flag in _ENTRY.iter_unpack(data):
            if flag == _RETIRED:
                site, number = split_producer(producer)
                table._retired[site] = number
                continue
            if last:
                table._last[producer] = last
            if flag:
                table._closed.add(producer)
        return table


def make_producer(site: bytes, number: int) -> bytes:
    """Return the name of a producer of a site."""
    return site + _NUMBER.pack(number)


def split_producer(producer: bytes) -> tuple[bytes, int]:
    """Return the site of a producer, and its number."""
    (number,) = _NUMBER.unpack_from(producer, PREFIX_BYTES)
    return producer[:PREFIX_BYTES], number
