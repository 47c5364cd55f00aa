"""How a client cuts what it sends into requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final

from siltstone.errors import UsageError
from siltstone.topiclog.tables import ends_of

# A piece of this size is worth its trip; larger ones would only wait longer for their answer.
_PIECE_BYTES: Final = 1024 * 1024
# Messages that are looked at together.
_CHUNK: Final = 1 << 14
_CHUNK_FIRST: Final = 16


def pieces_of(values: Iterable[bytes], *, rows_max: int, bytes_max: int) -> Iterator[list[bytes]]:
    """Cut messages, empty ones left out, into sends; one without messages where there are none.

    Raises: UsageError for one too large.
    """
    source = iter(values)
    size_max = min(_PIECE_BYTES, bytes_max)
    # What is made one by one may be large: of that little is taken at first.
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
