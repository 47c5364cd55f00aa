"""Decoder of MessagePack to Python values: exactly one object.

Extension types stay bytes, except the timestamp, which becomes seconds since 1970.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from siltstone.errors import UsageError

DEPTH_MAX: Final = 64
_NUMBERS: Final[Mapping[int, struct.Struct]] = {
    0xCA: struct.Struct(">f"),
    0xCB: struct.Struct(">d"),
    0xCC: struct.Struct(">B"),
    0xCD: struct.Struct(">H"),
    0xCE: struct.Struct(">I"),
    0xCF: struct.Struct(">Q"),
    0xD0: struct.Struct(">b"),
    0xD1: struct.Struct(">h"),
    0xD2: struct.Struct(">i"),
    0xD3: struct.Struct(">q"),
}
_CONSTANTS: Final = {0xC0: None, 0xC2: False, 0xC3: True}
# First byte -> the kind of value, and the number of bytes of its length.
_SIZED: Final = {
    **{0xC4 + width: ("bytes", 1 << width) for width in range(3)},
    **{0xC7 + width: ("extension", 1 << width) for width in range(3)},
    **{0xD9 + width: ("text", 1 << width) for width in range(3)},
    **{0xDC + width: ("array", 2 << width) for width in range(2)},
    **{0xDE + width: ("map", 2 << width) for width in range(2)},
}
_TIMESTAMP: Final = -1


def decode_msgpack(data: bytes) -> Any:
    """Return the only object in the bytes. Raises: UsageError."""
    reader = _Reader(data)
    try:
        value = reader.item(0)
    except (IndexError, UnicodeDecodeError, TypeError) as exc:
        raise UsageError(f"invalid MessagePack: {exc}") from exc
    if reader.offset != len(data):
        raise UsageError(f"invalid MessagePack: it ends at byte {reader.offset} of {len(data)}")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.offset = 0

    def item(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise UsageError(f"unsupported MessagePack: deeper than {DEPTH_MAX}")
        first = self._data[self.offset]
        self.offset += 1
        if first < 0x80:
            return first
        if first >= 0xE0:
            return first - 0x100
        if first < 0xC0:
            return self._fixed(first, depth)
        if first in _CONSTANTS:
            return _CONSTANTS[first]
        if first in _NUMBERS:
            code = _NUMBERS[first]
            (value,) = code.unpack(self._take(code.size))
            return value
        if 0xD4 <= first <= 0xD8:
            return self._sized("extension", 1 << first - 0xD4, depth)
        if first not in _SIZED:
            raise UsageError(f"invalid MessagePack: byte {first:#x} at {self.offset - 1}")
        kind, width = _SIZED[first]
        return self._sized(kind, int.from_bytes(self._take(width), "big"), depth)

    def _fixed(self, first: int, depth: int) -> Any:
        if first < 0x90:
            return self._sized("map", first & 15, depth)
        if first < 0xA0:
            return self._sized("array", first & 15, depth)
        return self._sized("text", first & 31, depth)

    def _sized(self, kind: str, length: int, depth: int) -> Any:
        match kind:
            case "bytes":
                return self._take(length)
            case "text":
                return self._take(length).decode()
            case "extension":
                code = int.from_bytes(self._take(1), "big", signed=True)
                return _extension(code, self._take(length))
            case "array":
                return [self.item(depth + 1) for _ in range(self._fitting(length))]
            case _:
                count = self._fitting(length)
                return {self.item(depth + 1): self.item(depth + 1) for _ in range(count)}

    def _take(self, count: int) -> bytes:
        data = self._data[self.offset : self.offset + count]
        if len(data) < count:
            raise UsageError(f"invalid MessagePack: cut short at byte {len(self._data)}")
        self.offset += count
        return data

    def _fitting(self, length: int) -> int:
        """Return the length if it is not more than the number of bytes left. Raises: UsageError."""
        if length > len(self._data) - self.offset:
            raise UsageError(f"invalid MessagePack: cut short at byte {len(self._data)}")
        return length


def _extension(code: int, data: bytes) -> Any:
    if code != _TIMESTAMP:
        return data
    if len(data) == 4:
        return int.from_bytes(data, "big")
    if len(data) == 8:
        packed = int.from_bytes(data, "big")
        return (packed & (1 << 34) - 1) + (packed >> 34) / 1e9
    if len(data) == 12:
        nanoseconds, seconds = struct.unpack(">Iq", data)
        return seconds + nanoseconds / 1e9
    return data
