"""Positions that outlive a process: a stream of a slab, and a place in it. Values, to and from
bytes.

stream    `SS` 1, shard u32, generation u32, stream u64, length u32 + database, length u32 + pattern
iterator  `SI` 1, shard u32, generation u32, stream u64, next serial u64, since i64,
          length u32 + database, length u32 + filter
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

from siltstone.errors import UsageError
from siltstone.store.arguments import require_kind
from siltstone.store.manifest import SlabId
from siltstone.topic.grammar import TopicFilter

_STREAM: Final = struct.Struct("<2sBIIQ")
_ITERATOR: Final = struct.Struct("<2sBIIQQq")
_LENGTH: Final = struct.Struct("<I")
_VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRef:
    """A stream of a slab: rows whose topics have one structure, in order."""

    database: str
    slab: SlabId
    stream_id: int
    pattern: str

    def to_bytes(self) -> bytes:
        """Return a form that outlives this process."""
        head = _STREAM.pack(b"SS", _VERSION, self.slab.shard, self.slab.generation, self.stream_id)
        return head + _pack(self.database) + _pack(self.pattern)

    @classmethod
    def from_bytes(cls, data: bytes) -> StreamRef:
        """Read what to_bytes gave. Raises: UsageError."""
        fields = _unpack_head(_STREAM, b"SS", data, "stream")
        database, pattern = _unpack_texts(data[_STREAM.size :], "stream")
        return cls(
            database=database,
            slab=SlabId(fields[2], fields[3]),
            stream_id=fields[4],
            pattern=pattern,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamIterator:
    """A saved position: the rows of a stream that match a filter, from a serial and a time on."""

    database: str
    slab: SlabId
    stream_id: int
    next_serial: int
    since_us: int
    filter: TopicFilter

    def to_bytes(self) -> bytes:
        """Return a form that outlives this process."""
        head = _ITERATOR.pack(
            b"SI",
            _VERSION,
            self.slab.shard,
            self.slab.generation,
            self.stream_id,
            self.next_serial,
            self.since_us,
        )
        return head + _pack(self.database) + _pack(self.filter.text)

    @classmethod
    def from_bytes(cls, data: bytes) -> StreamIterator:
        """Read what to_bytes gave. Raises: UsageError."""
        fields = _unpack_head(_ITERATOR, b"SI", data, "iterator")
        database, text = _unpack_texts(data[_ITERATOR.size :], "iterator")
        return cls(
            database=database,
            slab=SlabId(fields[2], fields[3]),
            stream_id=fields[4],
            next_serial=fields[5],
            since_us=fields[6],
            filter=TopicFilter.parse(text),
        )

    def at(self, serial: int) -> StreamIterator:
        """Return the position that continues with this serial."""
        return replace(self, next_serial=serial)


def _pack(text: str) -> bytes:
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def _unpack_head(layout: struct.Struct, magic: bytes, data: bytes, noun: str) -> tuple[int, ...]:
    require_kind("data", data, bytes, "bytes")
    if len(data) < layout.size or data[:2] != magic:
        raise UsageError(f"these bytes are no saved {noun}")
    fields: tuple[int, ...] = layout.unpack_from(data)
    if fields[1] != _VERSION:
        raise UsageError(f"saved {noun} of an unknown version: version={fields[1]}")
    return fields


def _unpack_texts(data: bytes, noun: str) -> tuple[str, str]:
    texts: list[str] = []
    try:
        for _ in range(2):
            (length,) = _LENGTH.unpack_from(data)
            if len(data) < _LENGTH.size + length:
                raise UsageError(f"saved {noun} is cut short")
            texts.append(data[_LENGTH.size : _LENGTH.size + length].decode())
            data = data[_LENGTH.size + length :]
    except (struct.error, UnicodeDecodeError) as exc:
        raise UsageError(f"these bytes are no saved {noun}") from exc
    if data:
        raise UsageError(f"saved {noun} has bytes to spare")
    return texts[0], texts[1]
