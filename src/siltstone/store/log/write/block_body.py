"""The body of a frame whose rows all have one topic and arrive as columns already.

A client sends a block in one request: offsets and data, in Arrow's layout. The block becomes a
frame without a loop over its rows. Its values may be stored outside of the frame, in a room that
was filled before.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from siltstone.store.segment.body import OFFSET_TIMES_ROWS, offset_width
from siltstone.store.segment.frame import (
    DIRECTORY,
    EDGES,
    PLACE,
    SECTION,
    STREAMS,
    TIMESTAMPS,
    TOPIC_INDEX,
    TOPIC_OFFSETS,
    TOPICS,
    VALUE_OFFSETS,
    VALUES,
    VALUES_AT,
)

_OFFSETS: Final = struct.Struct("<ii")
_CODES: Final = {1: "B", 2: "h", 4: "i", 8: "q"}
# A frame without its rows: header, table of at most eight sections, directory, place, paddings.
_FIXED_BYTES: Final = 64 + 8 * SECTION.size + DIRECTORY.size + PLACE.size + 64


def encode_inline(
    *,
    stream_id: int,
    edges: bytes,
    topic: bytes,
    offsets: bytes,
    values: bytes | memoryview,
    timestamp_us: int,
) -> tuple[bytes, int]:
    """Build the body of a rows frame; return it with its number of sections.

    The offsets are i32: one for each row plus one, from 0 to the length of the values.
    """
    sections = _sections(stream_id, edges, topic, offsets, timestamp_us)
    return _join([*sections, (VALUES, 1, values)])


def encode_apart(
    *,
    stream_id: int,
    edges: bytes,
    topic: bytes,
    offsets: bytes,
    place: tuple[int, int, int],
    timestamp_us: int,
) -> tuple[bytes, int]:
    """Build the body of a rows frame whose values are in a room: position, size and CRC."""
    sections = _sections(stream_id, edges, topic, offsets, timestamp_us)
    return _join([*sections, (VALUES_AT, PLACE.size, PLACE.pack(*place, 0))])


def frame_bytes_max(*, topic_bytes: int, edges_bytes: int, rows: int) -> int:
    """Return the maximum size in bytes of a frame whose values are in a room."""
    return _FIXED_BYTES + topic_bytes + edges_bytes + rows * (8 + 1 + 4) + 4


def _sections(
    stream_id: int, edges: bytes, topic: bytes, offsets: bytes, timestamp_us: int
) -> list[tuple[int, int, bytes | memoryview]]:
    count = len(offsets) // 4 - 1
    width = 8 if count < OFFSET_TIMES_ROWS else offset_width(count - 1)
    found: list[tuple[int, int, bytes | memoryview]] = [
        (STREAMS, DIRECTORY.size, DIRECTORY.pack(stream_id, 0, count, 0, 1))
    ]
    if edges:
        found.append((EDGES, 1, edges))
    if width < 4:
        times = _rising(width)[: width * count]
    else:
        first = timestamp_us if width == 8 else 0
        times = array(_CODES[width], range(first, first + count)).tobytes()
    found += [
        (TIMESTAMPS, width, times),
        (TOPIC_OFFSETS, 4, _OFFSETS.pack(0, len(topic))),
        (TOPICS, 1, topic),
        (TOPIC_INDEX, 1, bytes(count)),
        (VALUE_OFFSETS, 4, offsets),
    ]
    return found


@lru_cache(maxsize=2)
def _rising(width: int) -> bytes:
    """Return the numbers from 0 on that `offset_width` stores in this width, 1 or 2 bytes."""
    return array(_CODES[width], range(1 << 8 if width == 1 else 1 << 15)).tobytes()


def _join(sections: Sequence[tuple[int, int, bytes | memoryview]]) -> tuple[bytes, int]:
    parts: list[bytes | memoryview] = [
        SECTION.pack(section_id, width, len(data)) for section_id, width, data in sections
    ]
    for _, _, data in sections:
        parts += (data, bytes(-len(data) % 8))
    return b"".join(parts), len(sections)
