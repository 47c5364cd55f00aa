"""The totals of a whole snapshot: from its end record, and as they were found."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Final

from siltstone.snapshot.format.records import About

_END: Final = struct.Struct("<IQ32sH")
_COUNT: Final = struct.Struct("<BQ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """The content of the end record: records by kind, contents and their bytes, and the digest."""

    contents: int
    content_bytes: int
    digest: bytes
    counts: dict[int, int] = field(hash=False)

    def encode(self) -> bytes:
        """Return the body of the end record."""
        head = _END.pack(self.contents, self.content_bytes, self.digest, len(self.counts))
        return head + b"".join(_COUNT.pack(kind, self.counts[kind]) for kind in sorted(self.counts))

    @classmethod
    def decode(cls, body: bytes) -> Totals:
        """Decode the body of an end record. Raises: struct.error."""
        contents, content_bytes, digest, kinds = _END.unpack_from(body)
        counts = [_COUNT.unpack_from(body, _END.size + _COUNT.size * n) for n in range(kinds)]
        return cls(
            contents=contents, content_bytes=content_bytes, digest=digest, counts=dict(counts)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A snapshot that was found to be complete; counts are by the names of the records."""

    about: About
    contents: int
    content_bytes: int
    size_bytes: int
    plain_bytes: int
    digest: bytes
    counts: dict[str, int] = field(hash=False)
