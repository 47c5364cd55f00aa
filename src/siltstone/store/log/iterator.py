"""Saved positions that outlive a process: a stream of a slab, and a position in it.

Both are values that can be converted to bytes and back.

stream    `SS` 2, shard u32, generation u32, stream u64, then three times length u32 + text:
          database, identity, pattern
iterator  `SI` 2, shard u32, generation u32, stream u64, next serial u64, since i64, then three
          times length u32 + text: database, identity, filter
keys      `SK` 2, shard u32, generation u32, stream u64, since i64, then four times length u32 +
          bytes: database, identity, filter, the key of the last row that was read

`SK` is an iterator of a key-value database, whose rows are sorted by topic and then by time. The
identity distinguishes a database from a later one of the same name. Version 1 has no identity,
and otherwise the same fields. Positions without an identity are read and written in version 1.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

from siltstone.errors import SlabDroppedError, UsageError
from siltstone.store.log.arguments import require_kind, require_span
from siltstone.store.log.read.pieces import Batch
from siltstone.store.log.read.scan import Status
from siltstone.store.slab.manifest import SlabId
from siltstone.topic.grammar import TopicFilter

_STREAM: Final = struct.Struct("<2sBIIQ")
_ITERATOR: Final = struct.Struct("<2sBIIQQq")
_KEYS: Final = struct.Struct("<2sBIIQq")
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
    """A saved position: the rows of a stream that match a filter, from a place and a time on.

    The place is a serial in a log. In a key-value database it is after the key of the last row that
    was read, which is empty at the start; in a log `after` is None. `identity` is the identity of
    the database, empty if it is unknown.
    """

    database: str
    slab: SlabId
    stream_id: int
    since_us: int
    filter: TopicFilter
    next_serial: int = 0
    after: bytes | None = None
    identity: str = ""

    def to_bytes(self) -> bytes:
        """Return bytes that outlive this process."""
        if self.after is not None:
            return self._keys_to_bytes(self.after)
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
        require_kind("data", data, bytes, "bytes")
        if data[:2] == b"SK":
            return cls._keys_from_bytes(data)
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

    def _keys_to_bytes(self, after: bytes) -> bytes:
        head = _KEYS.pack(
            b"SK",
            _version_of(self.identity),
            self.slab.shard,
            self.slab.generation,
            self.stream_id,
            self.since_us,
        )
        texts = _pack_texts(self.database, self.identity, self.filter.text)
        return head + texts + _LENGTH.pack(len(after)) + after

    @classmethod
    def _keys_from_bytes(cls, data: bytes) -> StreamIterator:
        fields = _unpack_head(_KEYS, b"SK", data, "iterator of keys")
        # The key is the last of the texts, and its bytes are not text.
        end = _end_of_texts(data, _KEYS.size, 3 if fields[1] == _IDENTIFIED else 2)
        key = _end_of_texts(data, end, 1)
        if key != len(data):
            raise UsageError("invalid saved iterator of keys: extra bytes at the end")
        texts = _unpack_texts(data[_KEYS.size : end], fields[1], "iterator of keys")
        database, identity, text = texts
        return cls(
            database=database,
            slab=SlabId(fields[2], fields[3]),
            stream_id=fields[4],
            since_us=fields[5],
            filter=TopicFilter.parse(text),
            after=data[end + _LENGTH.size :],
            identity=identity,
        )

    def at(self, serial: int) -> StreamIterator:
        """Return the position that continues with this serial."""
        return replace(self, next_serial=serial)


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """Rows of a stream, the position after them, and the reason why the read ended."""

    iterator: StreamIterator
    batch: Batch
    status: Status


def require_place(place: StreamRef | StreamIterator, *, database: str, identity: str) -> None:
    """Check that a saved position belongs to this database.

    A position without an identity is accepted if the name of its database matches.

    Raises: UsageError for a database of another name; SlabDroppedError for an earlier database of
    this name.
    """
    noun = "stream" if isinstance(place, StreamRef) else "iterator"
    if isinstance(place, StreamIterator) and place.after is not None:
        raise UsageError(f"the iterator belongs to a key-value database: {place.database!r}")
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


def _end_of_texts(data: bytes, start: int, count: int) -> int:
    """Return the end of texts that begin at a place. Raises: UsageError."""
    for _ in range(count):
        if len(data) < start + _LENGTH.size:
            raise UsageError("invalid saved iterator of keys: cut short")
        start += _LENGTH.size + _LENGTH.unpack_from(data, start)[0]
        if len(data) < start:
            raise UsageError("invalid saved iterator of keys: cut short")
    return start


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
