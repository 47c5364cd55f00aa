"""The position of a reader in the store: the next serial of each shard, to and from bytes.

position  `SF` 2, count u32, then shard u32 and next serial u64 for each, by shard, then length u32
          + text: the identity of the database, empty if the position was created by hand

The identity distinguishes a database from a later one of the same name. Version 1 ends before it.

One number for each shard is enough for any number of streams and generations: each row of a shard
has a serial, and serials continue from one generation to the next.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from siltstone.errors import UsageError
from siltstone.store.log.arguments import require_kind
from siltstone.store.slab.identity import UNIDENTIFIED

_HEAD: Final = struct.Struct("<2sBI")
_ENTRY: Final = struct.Struct("<IQ")
_MAGIC: Final = b"SF"
_LENGTH: Final = struct.Struct("<I")
_UNIDENTIFIED: Final = 1
_VERSION: Final = 2
# No row ever has this serial: a reader at this position wants no row of the shard.
NEVER: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """The next serial by shard; a shard that is not listed is read from its first row on.

    `identity` is the identity of the database. It is None in a position that was created by hand,
    and empty in one that an earlier version saved.
    """

    serials: Mapping[int, int]
    identity: str | None = None

    def __post_init__(self) -> None:
        for shard, serial in self.serials.items():
            if not 0 <= shard < 1 << 32 or not 0 <= serial <= NEVER:
                raise UsageError(
                    f"a position needs a shard and a serial, both 0 or more: shard={shard} "
                    f"serial={serial}"
                )

    def serial(self, shard: int) -> int:
        """Return the next serial of a shard, 0 if it is not listed."""
        return self.serials.get(shard, 0)

    def at(self, shard: int, serial: int) -> FeedPosition:
        """Return the position that continues with this serial in a shard."""
        return FeedPosition({**self.serials, shard: serial}, self.identity)

    def reaches(self, other: FeedPosition) -> bool:
        """Return whether this position is at or after the other one in every shard."""
        return all(self.serial(shard) >= serial for shard, serial in other.serials.items())

    def to_bytes(self) -> bytes:
        """Return bytes that outlive this process."""
        version = _UNIDENTIFIED if self.identity == UNIDENTIFIED else _VERSION
        entries = [_ENTRY.pack(shard, serial) for shard, serial in sorted(self.serials.items())]
        parts = [_HEAD.pack(_MAGIC, version, len(entries)), *entries]
        if version == _VERSION:
            text = (self.identity or "").encode()
            parts += [_LENGTH.pack(len(text)), text]
        return b"".join(parts)

    @classmethod
    def from_bytes(cls, data: bytes) -> FeedPosition:
        """Read the bytes that `to_bytes` returned. Raises: UsageError."""
        require_kind("data", data, bytes, "bytes")
        if len(data) < _HEAD.size or data[:2] != _MAGIC:
            raise UsageError("invalid saved position: the bytes do not come from to_bytes")
        _, version, count = _HEAD.unpack_from(data)
        if version not in (_UNIDENTIFIED, _VERSION):
            raise UsageError(
                f"unknown version {version} of a saved position (supported: {_UNIDENTIFIED}, "
                f"{_VERSION})"
            )
        end = _HEAD.size + count * _ENTRY.size
        if version == _UNIDENTIFIED:
            identity: str | None = UNIDENTIFIED
            if len(data) != end:
                raise UsageError("invalid saved position: wrong length")
        else:
            identity = _identity_in(data[end:]) or None
        serials = dict(_ENTRY.iter_unpack(data[_HEAD.size : end]))
        if len(serials) != count:
            raise UsageError("invalid saved position: a shard is repeated")
        return cls(serials, identity)


def _identity_in(data: bytes) -> str:
    if len(data) < _LENGTH.size or len(data) != _LENGTH.size + _LENGTH.unpack_from(data)[0]:
        raise UsageError("invalid saved position: wrong length")
    try:
        return data[_LENGTH.size :].decode()
    except UnicodeDecodeError as exc:
        raise UsageError("invalid saved position: the bytes do not come from to_bytes") from exc


START: Final = FeedPosition({})
