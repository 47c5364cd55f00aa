"""Read rows: one stream from a serial on, or many streams in order of time.

Frames are chosen by the index, rows of a stream by the frame's directory, rows of a filter by
comparing the varying part of the topic, all rows of a frame at once.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from siltstone.segment.segment import Segment
from siltstone.segment.view import FrameView
from siltstone.store.rows import Piece
from siltstone.store.slab import Slab
from siltstone.topic.structure import Match


class Status(Enum):
    """Why a read ended where it did."""

    MORE = "more"  # as many rows as were asked for; there may be more
    LIMIT = "limit"  # everything before the time that was given
    CAUGHT_UP = "caught up"  # everything there is so far
    END = "end"  # everything there will ever be in this stream


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A half-open range of time, in µs."""

    since_us: int = 0
    until_us: int | None = None


class Selector:
    """Picks the rows of a stream whose varying levels are what a filter asks for."""

    def __init__(self, match: Match) -> None:
        self.stream = match.stream
        constraints = match.constraints
        self._exact: pa.Scalar | None = None
        self._pattern = ""
        if constraints and all(word is not None for word in constraints):
            text = b"/".join(word for word in constraints if word is not None).decode()
            self._exact = pa.scalar(text, pa.string())
        elif any(word is not None for word in constraints):
            parts = ["[^/]*" if word is None else _quoted(word) for word in constraints]
            self._pattern = f"^{'/'.join(parts)}$"

    def mask(self, frame: FrameView, start: int, stop: int) -> pa.Array | None:
        """Return which rows match; None when all do."""
        if self._exact is not None:
            return pc.equal(frame.varying(start, stop), self._exact)
        if self._pattern:
            return pc.match_substring_regex(frame.varying(start, stop), self._pattern)
        return None


def _quoted(word: bytes) -> str:
    # RE2 reads the same escapes as re.escape writes, but for NUL, which no topic holds.
    return re.escape(word.decode())


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRead:
    """What was read of a stream, and where to go on."""

    pieces: list[Piece]
    num_rows: int
    next_serial: int
    status: Status


def read_stream(
    slab: Slab, match: Match, serial: int, span: Span, rows_max: int, *, ended: bool
) -> StreamRead:
    """Read up to rows_max matching rows from a serial on; ended says that the slab takes no more
    rows.
    """
    selector = Selector(match)
    pieces: list[Piece] = []
    taken = 0
    handles = slab.handles()
    number = slab.chain.handle_at_serial(serial)
    for handle in handles[number:]:
        if handle.sealed and handle.next_serial <= serial:
            continue
        for piece in _stream_pieces(
            slab, handle.segment(), match.stream.id, serial, span, selector
        ):
            reached = _reached(piece, span)
            cut, count = _cut(piece, rows_max - taken)
            serial = cut.frame.header.first_serial + cut.stop
            if count:
                pieces.append(cut)
                taken += count
            if taken >= rows_max:
                return _result(pieces, taken, serial, Status.MORE)
            if reached:
                return _result(pieces, taken, serial, Status.LIMIT)
        serial = max(serial, handle.next_serial)
    if ended:
        return _result(pieces, taken, serial, Status.END)
    return _result(pieces, taken, serial, Status.CAUGHT_UP)


def _result(pieces: list[Piece], taken: int, serial: int, status: Status) -> StreamRead:
    return StreamRead(pieces=pieces, num_rows=taken, next_serial=serial, status=status)


def _stream_pieces(
    slab: Slab, segment: Segment, stream_id: int, serial: int, span: Span, selector: Selector
) -> Iterator[Piece]:
    """Yield the rows of one stream in one segment from a serial and a time on, a piece a frame."""
    index = segment.index
    frames = index.frames_of(stream_id)
    # The list may grow while it is read; what counts is what it held when the read began.
    first = max(index.frame_at_serial(serial), index.frame_at_time(span.since_us))
    for place in range(bisect_left(frames, first), len(frames)):
        frame = segment.frame(frames[place])
        start, stop = frame.rows_of(stream_id)
        start = max(start, serial - frame.header.first_serial)
        piece = _in_span(slab, selector, frame, start, stop, span)
        if piece is not None:
            yield piece


def _in_span(
    slab: Slab, selector: Selector, frame: FrameView, start: int, stop: int, span: Span
) -> Piece | None:
    """Cut a range of rows of one stream to a span of time and pick what the filter asks for."""
    if frame.header.first_timestamp_us < span.since_us:
        start = bisect_left(frame.times(), span.since_us, start, max(start, stop))
    if span.until_us is not None and frame.header.last_timestamp_us >= span.until_us:
        stop = bisect_left(frame.times(), span.until_us, start, max(start, stop))
    elif start >= stop:
        return None
    mask = selector.mask(frame, start, stop) if start < stop else None
    return Piece(
        slab=slab.id, stream=selector.stream, frame=frame, start=start, stop=stop, mask=mask
    )


def _reached(piece: Piece, span: Span) -> bool:
    """Say whether the frame of a piece has rows at or behind the end of the span."""
    return span.until_us is not None and piece.frame.header.last_timestamp_us >= span.until_us


def piece_rows(piece: Piece) -> int:
    """Return how many rows a piece holds."""
    if piece.mask is None:
        return piece.stop - piece.start
    count: int = pc.sum(piece.mask).as_py() or 0
    return count


def _cut(piece: Piece, rows_max: int) -> tuple[Piece, int]:
    """Cut a piece behind its first rows_max matching rows; return it with the number it has."""
    count = piece_rows(piece)
    if count <= rows_max:
        return piece, count
    if piece.mask is None:
        return replace(piece, stop=piece.start + rows_max), rows_max
    kept = pc.indices_nonzero(piece.mask)[rows_max - 1].as_py() + 1
    return replace(piece, stop=piece.start + kept, mask=piece.mask.slice(0, kept)), rows_max


def read_slab(
    slab: Slab, matches: Sequence[Match], span: Span, *, serials: range | None = None
) -> Iterator[list[Piece]]:
    """Yield the matching rows of a slab, the pieces of one frame at a time; frames follow each
    other in time.
    """
    selectors = {match.stream.id: Selector(match) for match in matches}
    for handle in slab.handles():
        if serials is not None and (
            handle.base_serial >= serials.stop
            or (handle.sealed and handle.next_serial <= serials.start)
        ):
            continue
        segment = handle.segment()
        for number in _frames(segment, selectors, span):
            frame = segment.frame(number)
            header = frame.header
            if span.until_us is not None and header.first_timestamp_us >= span.until_us:
                return
            if serials is not None and header.first_serial >= serials.stop:
                return
            pieces = list(_frame_pieces(slab, selectors, frame, span, serials))
            if pieces:
                yield pieces


def _frames(segment: Segment, selectors: dict[int, Selector], span: Span) -> Sequence[int]:
    """Return the frames that may hold rows of these streams, rising."""
    index = segment.index
    first, count = index.frame_at_time(span.since_us), index.frame_count
    held = [stream_id for stream_id in selectors if stream_id in index.stream_rows]
    if not held:
        return ()
    if 2 * len(held) > len(index.stream_rows):
        return range(first, count)
    numbers: set[int] = set()
    for stream_id in held:
        numbers.update(index.frames_of(stream_id))
    return sorted(number for number in numbers if first <= number < count)


def _frame_pieces(
    slab: Slab,
    selectors: dict[int, Selector],
    frame: FrameView,
    span: Span,
    serials: range | None,
) -> Iterator[Piece]:
    for stream_id, first, count in frame.directory():
        selector = selectors.get(stream_id)
        if selector is None:
            continue
        start, stop = first, first + count
        if serials is not None:
            start = max(start, serials.start - frame.header.first_serial)
            stop = min(stop, serials.stop - frame.header.first_serial)
        if start < stop:
            piece = _in_span(slab, selector, frame, start, stop, span)
            if piece is not None and piece.start < piece.stop:
                yield piece


def count_rows(slab: Slab, matches: Sequence[Match], span: Span) -> int:
    """Count the matching rows of a slab; segments that lie in the span whole are counted by their
    index.
    """
    free = [match for match in matches if not any(match.constraints)]
    bound = [match for match in matches if any(match.constraints)]
    total = 0
    for handle in slab.handles():
        index = handle.segment().index
        frames = index.frame_count
        if not frames:
            continue
        whole = index.first_times[0] >= span.since_us and (
            span.until_us is None or index.last_times[frames - 1] < span.until_us
        )
        if whole:
            total += sum(index.stream_rows.get(match.stream.id, 0) for match in free)
        else:
            total += _count_frames(slab, handle.segment(), free, span)
        total += _count_frames(slab, handle.segment(), bound, span)
    return total


def _count_frames(slab: Slab, segment: Segment, matches: Sequence[Match], span: Span) -> int:
    selectors = {match.stream.id: Selector(match) for match in matches}
    total = 0
    for number in _frames(segment, selectors, span):
        frame = segment.frame(number)
        if span.until_us is not None and frame.header.first_timestamp_us >= span.until_us:
            break
        for piece in _frame_pieces(slab, selectors, frame, span, None):
            total += piece_rows(piece)
    return total
