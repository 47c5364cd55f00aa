"""Where a reader of the store stands: the next serial of each shard. A value, to and from bytes.

position  `SF` 1, count u32, then shard u32 and next serial u64 for each, by shard

One number a shard says it all, however many streams and generations are read: each row of a shard
has a serial, and generations follow each other in serials.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from siltstone.errors import UsageError
from siltstone.store.arguments import require_kind

_HEAD: Final = struct.Struct("<2sBI")
_ENTRY: Final = struct.Struct("<IQ")
_MAGIC: Final = b"SF"
_VERSION: Final = 1
# No row ever has this serial: a reader that stands there wants nothing of the shard.
NEVER: Final = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class FeedPosition:
    """The next serial by shard; a shard that is not named is read from its first row on."""

    serials: Mapping[int, int]

    def __post_init__(self) -> None:
        for shard, serial in self.serials.items():
            if not 0 <= shard < 1 << 32 or not 0 <= serial <= NEVER:
                raise UsageError(f"no such place: shard={shard} serial={serial}")

    def serial(self, shard: int) -> int:
        """Return the next serial of a shard, 0 where none is known."""
        return self.serials.get(shard, 0)

    def at(self, shard: int, serial: int) -> FeedPosition:
        """Return the position that continues with this serial in a shard."""
        return FeedPosition({**self.serials, shard: serial})

    def reaches(self, other: FeedPosition) -> bool:
        """Say whether this position has everything behind it that the other has."""
        return all(self.serial(shard) >= serial for shard, serial in other.serials.items())

    def to_bytes(self) -> bytes:
        """Return a form that outlives this process."""
        entries = [_ENTRY.pack(shard, serial) for shard, serial in sorted(self.serials.items())]
        return b"".join([_HEAD.pack(_MAGIC, _VERSION, len(entries)), *entries])

    @classmethod
    def from_bytes(cls, data: bytes) -> FeedPosition:
        """Read what to_bytes gave. Raises: UsageError."""
        require_kind("data", data, bytes, "bytes")
        if len(data) < _HEAD.size or data[:2] != _MAGIC:
            raise UsageError("these bytes are no saved position")
        _, version, count = _HEAD.unpack_from(data)
        if version != _VERSION:
            raise UsageError(f"saved position of an unknown version: version={version}")
        if len(data) != _HEAD.size + count * _ENTRY.size:
            raise UsageError("saved position is not as long as it should be")
        serials = dict(_ENTRY.iter_unpack(data[_HEAD.size :]))
        if len(serials) != count:
            raise UsageError("saved position names a shard twice")
        return cls(serials)


START: Final = FeedPosition({})
