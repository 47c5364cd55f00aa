"""The ends of messages: the tables of the protocol (u32, big endian) and of the store (i32,
little).

A table of ends has one number for each message. A table of offsets has one more: its first number
is the start of the data. Both are byte-swapped as a whole, not number by number. The machine must
be little endian, which the store requires anyway. Messages of equal length, which are common for
devices, have a fast path that does not process each message.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, chain, pairwise
from struct import Struct
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import ProtocolError
from siltstone.scalars import scalar

# From this count on, a call of Arrow costs less than a loop over the numbers.
_MANY: Final = 64
# The number of messages of equal length that one call extracts.
_GROUP: Final = 64


def ends_of(values: Sequence[bytes]) -> Sequence[int]:
    """Return the end of each message, relative to the start of the first."""
    size = _size_of_all(values)
    if size:
        return range(size, size * len(values) + 1, size)
    return list(accumulate(map(len, values)))


def table_of_ends(values: Sequence[bytes]) -> bytes:
    """Return the end of each message, as a table of the protocol."""
    size = _size_of_all(values)
    if size:
        return _even_table(size, len(values))
    return _turned(array("I", accumulate(map(len, values))))


def offsets_of_ends(table: bytes | memoryview) -> bytes:
    """Return the offsets of the store for a table of ends.

    Raises: ProtocolError if a message would be empty or have a negative size.
    """
    ends = array("I", bytes(4) + table)
    ends.byteswap()
    if not _rises(ends):
        raise ProtocolError("a message of a SEND must have at least one byte")
    return ends.tobytes()


def joined_offsets(tables: Sequence[bytes], sizes: Sequence[int]) -> bytes:
    """Return the offsets of the store for the concatenation of pieces with these offsets."""
    if len(tables) == 1:
        return tables[0]
    joined = array("i", bytes(4))
    base = 0
    for table, size in zip(tables, sizes, strict=True):
        offsets = array("i", table)[1:]
        if base == 0:
            joined += offsets
        elif len(offsets) < _MANY:
            joined.extend([base + offset for offset in offsets])
        else:
            moved = pc.add(_arrow(offsets), scalar(base, pa.int32()))
            joined.frombytes(memoryview(moved.buffers()[1])[: 4 * len(offsets)])
        base += size
    return joined.tobytes()


def table_of_offsets(offsets: memoryview) -> bytes:
    """Return offsets of the store as a table of the protocol."""
    return _turned(array("I", offsets.tobytes()))


def offsets_of_table(table: memoryview) -> Sequence[int]:
    """Return the offsets of a reply, relative to its data. Raises: ProtocolError."""
    offsets = array("I", bytes(table))
    offsets.byteswap()
    first = offsets[0]
    if first:
        offsets = array("I", [offset - first for offset in offsets])
    if len(offsets) > 1 and not _rises(offsets):
        raise ProtocolError("the offsets of the messages in a reply must increase")
    return offsets


def values_at(offsets: Sequence[int], data: memoryview) -> list[bytes]:
    """Return the messages in the data at these offsets, which must increase."""
    count = len(offsets) - 1
    size = offsets[1] - offsets[0] if count >= _MANY else 0
    even = size > 0 and offsets[0] == 0 and offsets[count] == size * count
    if even and offsets == _even_offsets(size, count):
        return _even_values(size, data[: size * count])
    copied = bytes(data)
    return [copied[start:end] for start, end in pairwise(offsets)]


def _even_values(size: int, data: memoryview) -> list[bytes]:
    whole = len(data) - len(data) % (size * _GROUP)
    values = list(chain.from_iterable(_group_of(size).iter_unpack(data[:whole])))
    values += [bytes(data[start : start + size]) for start in range(whole, len(data), size)]
    return values


@lru_cache(maxsize=64)
def _group_of(size: int) -> Struct:
    return Struct(f"{size}s" * _GROUP)


@lru_cache(maxsize=8)
def _even_offsets(size: int, count: int) -> array[int]:
    return array("I", range(0, size * count + 1, size))


@lru_cache(maxsize=8)
def _even_table(size: int, count: int) -> bytes:
    return _turned(array("I", range(size, size * count + 1, size)))


def _size_of_all(values: Sequence[bytes]) -> int:
    """Return the common length of all messages; 0 if they are few or differ."""
    if len(values) < _MANY or len(values[0]) != len(values[-1]):
        return 0
    sizes = set(map(len, values))
    return sizes.pop() if len(sizes) == 1 else 0


def _turned(numbers: array[int]) -> bytes:
    numbers.byteswap()
    return numbers.tobytes()


def _rises(numbers: array[int]) -> bool:
    if len(numbers) < _MANY:
        return all(before < after for before, after in pairwise(numbers))
    column = pa.Array.from_buffers(pa.uint32(), len(numbers), [None, pa.py_buffer(numbers)])
    return bool(pc.all(pc.less(column.slice(0, len(numbers) - 1), column.slice(1))).as_py())


def _arrow(numbers: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])
