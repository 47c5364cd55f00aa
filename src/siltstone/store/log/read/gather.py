"""Collect few rows of each of many frames as columns: sliced in Python and joined once.

One Arrow call costs as much as dozens of values here, and each column of each frame needs several
calls. The columns are those of SCHEMA, with the same values as `Piece.column`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

import pyarrow as pa

from siltstone.store.log.read.pieces import SCHEMA, Piece, integers, qos_of, retain_of

# From this number of rows in a frame on, Arrow is faster.
ROWS_FEW: Final = 64


def are_few(pieces: Sequence[Piece]) -> bool:
    """Return whether the pieces have few rows each, so that gathering them is faster."""
    return len(pieces) > 1 and sum(map(_count, pieces)) <= ROWS_FEW * len(pieces)


class GatheredRows:
    """The rows of pieces, in order.

    The methods for columns raise OverflowError if a column is too large for one array.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._parts = [(piece, _rows(piece)) for piece in pieces]
        self.num_rows = sum(len(rows) for _, rows in self._parts)

    def has_properties(self) -> bool:
        """Return whether any row may have MQTT properties."""
        return any(piece.frame.has_properties() for piece, _ in self._parts)

    def column(self, name: str) -> pa.Array:
        """Return one column of SCHEMA."""
        return _READERS[name](self)

    def topics(self) -> pa.Array:
        """Return the topic of each row."""
        found: list[memoryview] = []
        for piece, rows in self._parts:
            found += piece.frame.topics_at(rows)
        return _texts(found, pa.string())

    def publishers(self) -> pa.Array:
        """Return the publisher of each row."""
        found: list[bytes | memoryview] = []
        for piece, rows in self._parts:
            publisher = piece.frame.publisher()
            if publisher is None:
                found += piece.frame.publishers_at(rows)
            else:
                found += [publisher.encode()] * len(rows)
        return _texts(found, pa.string())

    def values(self) -> pa.Array:
        """Return the payloads."""
        found: list[memoryview] = []
        for piece, rows in self._parts:
            found += piece.frame.values_at(rows)
        return _texts(found, pa.binary())

    def properties(self) -> pa.Array:
        """Return the MQTT properties as they were received."""
        found: list[memoryview] = []
        for piece, rows in self._parts:
            found += piece.frame.properties_at(rows)
        return _texts(found, pa.binary())

    def timestamps(self) -> pa.Array:
        """Return the time at which the store accepted each row."""
        found = array("q")
        for piece, rows in self._parts:
            found.extend(piece.frame.times_at(rows))
        return _numbers(found, SCHEMA.field("timestamp").type)

    def flags(self) -> pa.Array:
        """Return the flags of each row."""
        found = bytearray()
        for piece, rows in self._parts:
            found += piece.frame.flags_at(rows)
        return pa.Array.from_buffers(pa.uint8(), len(found), [None, pa.py_buffer(bytes(found))])

    def streams(self) -> pa.Array:
        """Return the stream of each row."""
        found = array("Q")
        for piece, rows in self._parts:
            directory = piece.frame.directory()
            firsts = [first for _, first, _, _, _ in directory]
            found.extend(directory[bisect_right(firsts, row) - 1][0] for row in rows)
        return _numbers(found, pa.uint64())

    def serials(self) -> pa.Array:
        """Return the serial of each row."""
        found = array("Q")
        for piece, rows in self._parts:
            found.extend(piece.frame.serials_at(rows))
        return _numbers(found, pa.uint64())

    def slabs(self, number: Callable[[Piece], int]) -> pa.Array:
        """Return for each row the number that `number` gives for its piece."""
        found = array("I")
        for piece, rows in self._parts:
            found.extend([number(piece)] * len(rows))
        return _numbers(found, pa.uint32())


def _count(piece: Piece) -> int:
    return piece.num_rows


def _rows(piece: Piece) -> Sequence[int]:
    """Return the numbers of the rows in their frame."""
    if piece.picked is None:
        return range(piece.start, piece.stop)
    return [piece.start + number for number in integers(piece.picked)]


def _texts(parts: Sequence[bytes | memoryview], kind: pa.DataType) -> pa.Array:
    offsets = array("i", accumulate(map(len, parts), initial=0))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(kind, len(parts), buffers)


def _numbers(numbers: array[int], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


_READERS: Final[dict[str, Callable[[GatheredRows], pa.Array]]] = {
    "topic": GatheredRows.topics,
    "timestamp": GatheredRows.timestamps,
    "publisher": GatheredRows.publishers,
    "qos": lambda rows: qos_of(rows.flags()),
    "retain": lambda rows: retain_of(rows.flags()),
    "properties": GatheredRows.properties,
    "value": GatheredRows.values,
    "shard": lambda rows: rows.slabs(lambda piece: piece.slab.shard),
    "generation": lambda rows: rows.slabs(lambda piece: piece.slab.generation),
    "stream": GatheredRows.streams,
    "serial": GatheredRows.serials,
}
