"""Decoder of CBOR (RFC 8949) to Python values: exactly one item.

Tags are ignored, except those of big numbers. A byte string stays bytes.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from siltstone.errors import UsageError

DEPTH_MAX: Final = 64
_BREAK: Final = object()
_SIMPLE: Final = {20: False, 21: True, 22: None, 23: None}
_FLOATS: Final = {25: struct.Struct(">e"), 26: struct.Struct(">f"), 27: struct.Struct(">d")}
_INDEFINITE: Final = -1


def decode_cbor(data: bytes) -> Any:
    """Return the only item in the bytes. Raises: UsageError."""
    reader = _Reader(data)
    try:
        value = reader.item(0)
    except (IndexError, struct.error, UnicodeDecodeError, TypeError) as exc:
        raise UsageError(f"invalid CBOR: {exc}") from exc
    if value is _BREAK or reader.offset != len(data):
        raise UsageError(f"invalid CBOR: it ends at byte {reader.offset} of {len(data)}")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.offset = 0

    def item(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise UsageError(f"unsupported CBOR: deeper than {DEPTH_MAX}")
        first = self._data[self.offset]
        self.offset += 1
        major, info = first >> 5, first & 31
        if major == 7:
            return self._simple(info)
        length = self._length(info)
        match major:
            case 0:
                return self._definite(length)
            case 1:
                return -1 - self._definite(length)
            case 2 | 3:
                data = self._bytes(length, major)
                return data if major == 2 else data.decode()
            case 4:
                return self._array(length, depth)
            case 5:
                return self._map(length, depth)
            case _:
                return self._tagged(self._definite(length), self._inside(depth))

    def _length(self, info: int) -> int:
        if info < 24:
            return info
        if info == 31:
            return _INDEFINITE
        if info > 27:
            raise UsageError(f"invalid CBOR: length of kind {info} at byte {self.offset}")
        return int.from_bytes(self._take(1 << info - 24), "big")

    def _definite(self, length: int) -> int:
        if length == _INDEFINITE:
            raise UsageError(f"invalid CBOR: a number without a length at byte {self.offset}")
        return length

    def _take(self, count: int) -> bytes:
        data = self._data[self.offset : self.offset + count]
        if len(data) < count:
            raise UsageError(f"invalid CBOR: cut short at byte {len(self._data)}")
        self.offset += count
        return data

    def _bytes(self, length: int, major: int) -> bytes:
        if length != _INDEFINITE:
            return self._take(length)
        parts: list[bytes] = []
        while (first := self._take(1)[0]) != 0xFF:
            if first >> 5 != major or first & 31 == 31:
                raise UsageError(f"invalid CBOR: a part of another kind at byte {self.offset}")
            parts.append(self._take(self._length(first & 31)))
        return b"".join(parts)

    def _array(self, length: int, depth: int) -> list[Any]:
        if length != _INDEFINITE:
            return [self._inside(depth) for _ in range(self._fitting(length))]
        items: list[Any] = []
        while (value := self.item(depth + 1)) is not _BREAK:
            items.append(value)
        return items

    def _map(self, length: int, depth: int) -> dict[Any, Any]:
        if length != _INDEFINITE:
            return {self._inside(depth): self._inside(depth) for _ in range(self._fitting(length))}
        found: dict[Any, Any] = {}
        while (key := self.item(depth + 1)) is not _BREAK:
            found[key] = self._inside(depth)
        return found

    def _inside(self, depth: int) -> Any:
        value = self.item(depth + 1)
        if value is _BREAK:
            raise UsageError(f"invalid CBOR: an end without a beginning at byte {self.offset}")
        return value

    def _fitting(self, length: int) -> int:
        """Return the length if it is not more than the number of bytes left. Raises: UsageError."""
        if length > len(self._data) - self.offset:
            raise UsageError(f"invalid CBOR: cut short at byte {len(self._data)}")
        return length

    def _simple(self, info: int) -> Any:
        if info in _FLOATS:
            code = _FLOATS[info]
            (value,) = code.unpack(self._take(code.size))
            return value
        if info == 31:
            return _BREAK
        if info not in _SIMPLE:
            raise UsageError(f"unsupported CBOR: simple value {info} at byte {self.offset}")
        return _SIMPLE[info]

    def _tagged(self, tag: int, value: Any) -> Any:
        if tag in (2, 3) and isinstance(value, bytes):
            number = int.from_bytes(value, "big")
            return number if tag == 2 else -1 - number
        return value
