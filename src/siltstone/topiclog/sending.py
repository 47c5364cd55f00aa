"""Splits the messages of a client into requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from siltstone.errors import UsageError
from siltstone.topiclog.tables import ends_of

# A larger piece would not be more efficient, and its answer would take longer.
_PIECE_BYTES: Final = 1024 * 1024
# The number of messages that are processed together.
_CHUNK: Final = 1 << 14
_CHUNK_FIRST: Final = 16


def pieces_of(values: Iterable[bytes], *, rows_max: int, bytes_max: int) -> Iterator[list[bytes]]:
    """Split messages into sends, without empty messages; yield one empty send if there are none.

    Raises: UsageError for a message that is too large.
    """
    source = iter(values)
    size_max = min(_PIECE_BYTES, bytes_max)
    # An iterator may produce large messages one by one, so take only a few of them at first.
    count = _CHUNK if isinstance(values, Sequence) else _CHUNK_FIRST
    empty = True
    while chunk := list(islice(source, count)):
        if not all(chunk):
            chunk = [value for value in chunk if value]
        ends = ends_of(chunk)
        start = sent = 0
        while start < len(chunk):
            fitting = bisect_right(ends, sent + size_max, start)
            stop = max(start + 1, min(fitting, start + rows_max))
            if ends[stop - 1] - sent > bytes_max:
                size = len(chunk[start])
                raise UsageError(f"the message is too large: size_bytes={size} max={bytes_max}")
            yield chunk[start:stop]
            empty = False
            start, sent = stop, ends[stop - 1]
        if sent < _PIECE_BYTES:
            count = min(2 * count, _CHUNK)
    if empty:
        yield []
