"""Saved positions that outlive a process: a stream of a slab, and a position in it.

Both are values that can be converted to bytes and back.

stream    `SS` 2, shard u32, generation u32, stream u64, then three times length u32 + text:
          database, identity, pattern
iterator  `SI` 2, shard u32, generation u32, stream u64, next serial u64, since i64, then three
          times length u32 + text: database, identity, filter

The identity distinguishes a database from a later one of the same name. Version 1 has no identity,
and otherwise the same fields. Positions without an identity are read and written in version 1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

from siltstone.errors import SlabDroppedError, UsageError
from siltstone.store.log.arguments import require_kind, require_span
from siltstone.store.slab.manifest import SlabId
from siltstone.topic.grammar import TopicFilter

_STREAM: Final = struct.Struct("<2sBIIQ")
_ITERATOR: Final = struct.Struct("<2sBIIQQq")
_LENGTH: Final = struct.Struct("<I")
_NAMED: Final = 1
_IDENTIFIED: Final = 2
_TIMES: Final = range(-(1 << 63), 1 << 63)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRef:
    """A stream of a slab: rows whose topics have one structure, in order.

    `identity` is the identity of the database, empty if it is unknown.
    """

    database: str
    slab: SlabId
    stream_id: int
    pattern: str
    identity: str = ""

    def to_bytes(self) -> bytes:
        """Return bytes that outlive this process."""
        version = _version_of(self.identity)
        head = _STREAM.pack(b"SS", version, self.slab.shard, self.slab.generation, self.stream_id)
        return head + _pack_texts(self.database, self.identity, self.pattern)

    @classmethod
    def from_bytes(cls, data: bytes) -> StreamRef:
        """Read the bytes that `to_bytes` returned. Raises: UsageError."""
        fields = _unpack_head(_STREAM, b"SS", data, "stream")
        database, identity, pattern = _unpack_texts(data[_STREAM.size :], fields[1], "stream")
        return cls(
            database=database,
            slab=SlabId(fields[2], fields[3]),
            stream_id=fields[4],
            pattern=pattern,
            identity=identity,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamIterator:
    """A saved position: the rows of a stream that match a filter, from a serial and a time on.

    `identity` is the identity of the database, empty if it is unknown.
    """

    database: str
    slab: SlabId
    stream_id: int
    next_serial: int
    since_us: int
    filter: TopicFilter
    identity: str = ""

    def to_bytes(self) -> bytes:
        """Return bytes that outlive this process."""
        head = _ITERATOR.pack(
            b"SI",
            _version_of(self.identity),
            self.slab.shard,
            self.slab.generation,
            self.stream_id,
            self.next_serial,
            self.since_us,
        )
        return head + _pack_texts(self.database, self.identity, self.filter.text)

    @classmethod
    def from_bytes(cls, data: bytes) -> StreamIterator:
        """Read the bytes that `to_bytes` returned. Raises: UsageError."""
        fields = _unpack_head(_ITERATOR, b"SI", data, "iterator")
        database, identity, text = _unpack_texts(data[_ITERATOR.size :], fields[1], "iterator")
        return cls(
            database=database,
            slab=SlabId(fields[2], fields[3]),
            stream_id=fields[4],
            next_serial=fields[5],
            since_us=fields[6],
            filter=TopicFilter.parse(text),
            identity=identity,
        )

    def at(self, serial: int) -> StreamIterator:
        """Return the position that continues with this serial."""
        return replace(self, next_serial=serial)


def require_place(place: StreamRef | StreamIterator, *, database: str, identity: str) -> None:
    """Check that a saved position belongs to this database.

    A position without an identity is accepted if the name of its database matches.

    Raises: UsageError for a database of another name; SlabDroppedError for an earlier database of
    this name.
    """
    noun = "stream" if isinstance(place, StreamRef) else "iterator"
    if place.database != database:
        raise UsageError(f"the {noun} belongs to another database: {place.database!r}")
    if place.identity not in ("", identity):
        raise SlabDroppedError(
            f"the {noun} belongs to an earlier database {database!r}, which was dropped"
        )


def require_times(since_us: object, until_us: object = None) -> None:
    """Raise UsageError unless both are times in µs that can be saved; the end may be None."""
    require_span(since_us, until_us)
    for name, time_us in (("since_us", since_us), ("until_us", until_us)):
        if time_us is not None and time_us not in _TIMES:
            raise UsageError(f"{name} must fit into 64 bits: {name}={time_us}")


def _version_of(identity: str) -> int:
    return _IDENTIFIED if identity else _NAMED


def _pack_texts(database: str, identity: str, text: str) -> bytes:
    texts = (database, identity, text) if identity else (database, text)
    encoded = [each.encode() for each in texts]
    return b"".join(_LENGTH.pack(len(data)) + data for data in encoded)


def _unpack_head(layout: struct.Struct, magic: bytes, data: bytes, noun: str) -> tuple[int, ...]:
    require_kind("data", data, bytes, "bytes")
    if len(data) < layout.size or data[:2] != magic:
        raise UsageError(f"invalid saved {noun}: the bytes do not come from to_bytes")
    fields: tuple[int, ...] = layout.unpack_from(data)
    if fields[1] not in (_NAMED, _IDENTIFIED):
        raise UsageError(f"unknown version {fields[1]} of a saved {noun}")
    return fields


def _unpack_texts(data: bytes, version: int, noun: str) -> tuple[str, str, str]:
    """Return the database, the identity and the last text."""
    texts: list[str] = []
    try:
        for _ in range(3 if version == _IDENTIFIED else 2):
            (length,) = _LENGTH.unpack_from(data)
            if len(data) < _LENGTH.size + length:
                raise UsageError(f"invalid saved {noun}: cut short")
            texts.append(data[_LENGTH.size : _LENGTH.size + length].decode())
            data = data[_LENGTH.size + length :]
    except (struct.error, UnicodeDecodeError) as exc:
        raise UsageError(f"invalid saved {noun}: the bytes do not come from to_bytes") from exc
    if data:
        raise UsageError(f"invalid saved {noun}: extra bytes at the end")
    if version == _NAMED:
        return texts[0], "", texts[1]
    if not texts[1]:
        raise UsageError(f"invalid saved {noun}: empty identity")
    return texts[0], texts[1], texts[2]
