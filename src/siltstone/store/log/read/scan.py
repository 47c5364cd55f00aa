"""Read rows: one stream from a serial on, or many streams in order of time.

The index selects the frames, and the directory of a frame the rows of a stream. For a filter the
topics of the frame are compared, each once.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import CorruptionError
from siltstone.scalars import scalar
from siltstone.store.log.read.compacted import OpenFrames, compacted_frames
from siltstone.store.log.read.frame_rows import FrameRows, all_rows, wanted_rows
from siltstone.store.log.read.pieces import Piece
from siltstone.store.log.slab import Slab
from siltstone.store.segment.index import (
    FIRST_ROWS,
    NeededWords,
    SegmentIndex,
    SegmentSummary,
)
from siltstone.store.segment.segment import Segment
from siltstone.store.segment.table import FrameTable, column_of, numbers_of
from siltstone.store.segment.view import FrameView
from siltstone.topic.structure import Match
from siltstone.topic.word_index import Needed, needed_at

# `pa.array` would load pandas, if it is installed, with every import of this module.
_NONE: Final = pa.nulls(0, pa.uint64())


class Status(Enum):
    """The reason why a read ended.

    MORE       rows_max rows were read, or all rows before damage: read again
    LIMIT      all rows before until_us were read; rows_max does not matter
    CAUGHT_UP  all rows so far were read
    END        all rows were read, and this stream gets no more
    """

    MORE = "more"
    LIMIT = "limit"
    CAUGHT_UP = "caught up"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A half-open range of time, in µs."""

    since_us: int = 0
    until_us: int | None = None


@dataclass(slots=True, kw_only=True)
class ReadReport:
    """The work of a read, compared with the contents of the slabs within its time.

    `rows_scanned` are the rows in the frames that were read; `rows_returned` those that matched.
    """

    segments: int = 0
    segments_read: int = 0
    frames: int = 0
    frames_read: int = 0
    rows: int = 0
    rows_scanned: int = 0
    rows_returned: int = 0

    def __str__(self) -> str:
        return (
            f"read {self.segments_read:,} of {self.segments:,} segments and "
            f"{self.frames_read:,} of {self.frames:,} frames: scanned {self.rows_scanned:,} of "
            f"{self.rows:,} rows, returned {self.rows_returned:,}"
        )

    def add(self, index: SegmentIndex, numbers: Sequence[int]) -> None:
        """Count the frames that are read of a segment."""
        rows = column_of(index.row_counts[: index.frame_count], np.uint32)
        self.segments += 1
        self.segments_read += len(numbers) > 0
        self.frames += len(rows)
        self.frames_read += len(numbers)
        self.rows += int(rows.sum(dtype=np.int64))
        self.rows_scanned += int(rows[numbers_of(numbers)].sum(dtype=np.int64))

    def skip(self, summary: SegmentSummary) -> None:
        """Count a segment that is not opened."""
        self.segments += 1
        self.frames += summary.frame_count
        self.rows += summary.next_serial - summary.first_serial


# The number of frames of a stream that are listed at first, and at most at once.
_LISTED_FIRST: Final = 1 << 11
_LISTED_MAX: Final = 1 << 14
ALL_SERIALS: Final = range(1 << 64)


class Selector:
    """Picks the rows of a stream whose topics match a filter.

    The fixed levels of the stream match already. Topics are compared only if the filter has a word
    at a level that varies, each topic once for each frame. All topics of a stream have the same
    number of levels, so the text before the first free level and after the last is compared as a
    prefix and a suffix. A regular expression is needed only for words between two free levels.
    """

    def __init__(self, match: Match) -> None:
        self.stream = match.stream
        self._tests: list[Callable[[pa.Array], pa.Array]] = []
        self._topic: bytes | None = None
        self.is_bound = match.is_bound
        self.needed: Needed = ()
        if not self.is_bound:
            return
        self.needed = needed_at(match.stream.levels, match.constraints)
        words = iter(match.constraints)
        levels = [next(words) if level == b"+" else level for level in match.stream.levels]
        free = [number for number, word in enumerate(levels) if word is None]
        if not free:
            topic = scalar(_joined(levels), pa.string())
            self._topic = _joined(levels).encode()
            self._tests.append(lambda topics: pc.equal(topics, topic))
            return
        before, behind = levels[: free[0]], levels[free[-1] + 1 :]
        if before:
            start = _joined(before) + "/"
            self._tests.append(lambda topics: pc.starts_with(topics, start))
        if behind:
            end = "/" + _joined(behind)
            self._tests.append(lambda topics: pc.ends_with(topics, end))
        asked = [number for number in range(free[0], free[-1]) if levels[number] is not None]
        if asked:
            # RE2 accepts the output of re.escape. It cannot take more levels than a filter may
            # have, and there may be many more levels behind the last required one.
            needed = levels[: asked[-1] + 1]
            parts = ["[^/]*" if word is None else re.escape(word.decode()) for word in needed]
            pattern = f"^{'/'.join(parts)}/"
            self._tests.append(lambda topics: pc.match_substring_regex(topics, pattern))

    def pick(self, frame: FrameView, rows: range, topics: range) -> pa.Array | None:
        """Return the indices of the matching rows, counted from the first; None if all match.

        `topics` are the numbers of the topics that the stream has in this frame.
        """
        if not self._tests:
            return None
        if self._topic is not None:
            return _rows_with_topic(frame, rows, topics, self._topic)
        words = frame.topic_words(topics.start, topics.stop)
        return rows_with_topics(frame, rows, topics, self.matching(words))

    def matching(self, words: pa.Array) -> pa.Array:
        """Return the indices of the matching topics, counted from the first.

        Only for a filter with a word at a level that varies.
        """
        found = pc.indices_nonzero(self._tests[0](words))
        for test in self._tests[1:]:
            if len(found):
                found = found.filter(test(words.take(found)))
        return found


class Selectors(Mapping[int, Selector]):
    """The selectors of many streams, by stream id; each is made when it is needed."""

    def __init__(self, matches: Sequence[Match]) -> None:
        self._matches = {match.stream.id: match for match in matches}
        self._made: dict[int, Selector] = {}
        self.bound = any(match.is_bound for match in matches)

    def __getitem__(self, stream_id: int) -> Selector:
        """Return the selector of a wanted stream."""
        made = self._made.get(stream_id)
        if made is None:
            made = self._made[stream_id] = Selector(self._matches[stream_id])
        return made

    def __contains__(self, stream_id: object) -> bool:
        """Return whether a stream is wanted."""
        return stream_id in self._matches

    def __iter__(self) -> Iterator[int]:
        """Yield the ids of the streams."""
        return iter(self._matches)

    def __len__(self) -> int:
        """Return the number of streams."""
        return len(self._matches)

    def cover(self, index: SegmentIndex) -> bool:
        """Return whether all rows of a segment are wanted."""
        return not self.bound and index.stream_rows.keys() <= self._matches.keys()


def rows_with_topics(
    frame: FrameView, rows: range, topics: range, found: pa.Array
) -> pa.Array | None:
    """Return the indices of the rows that have one of the topics in `found`; None if all have.

    Rows are counted from the first of `rows`. `topics` are numbers in the frame; `found` is counted
    from the first of them.
    """
    if len(found) == 0:
        return _NONE
    if len(found) == len(topics):
        return None
    numbers = frame.topic_numbers(rows.start, rows.stop)
    found = pc.add(found, scalar(topics.start, pa.uint64())).cast(numbers.type)
    if len(found) == 1:
        return pc.indices_nonzero(pc.equal(numbers, found[0]))
    return pc.indices_nonzero(pc.is_in(numbers, found))


def _rows_with_topic(frame: FrameView, rows: range, topics: range, topic: bytes) -> pa.Array | None:
    """Return the indices of the rows that have this topic; None if all have."""
    found = frame.find_topic(topic, topics)
    if not found:
        return _NONE
    if len(found) == len(topics):
        return None
    numbers = frame.topic_numbers(rows.start, rows.stop)
    if len(found) == 1:
        return pc.indices_nonzero(pc.equal(numbers, scalar(found[0], numbers.type)))
    return pc.indices_nonzero(pc.is_in(numbers, pa.array(found, numbers.type)))


def _joined(levels: Sequence[bytes | None]) -> str:
    return b"/".join(word for word in levels if word is not None).decode()


def needed_for(matches: Iterable[Match]) -> NeededWords:
    """Return the words that the topics of each stream must have."""
    return {
        match.stream.id: (needed_at(match.stream.levels, match.constraints),)
        for match in matches
        if match.is_bound
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRead:
    """The rows that were read from a stream, and the serial to continue with."""

    parts: list[Piece | FrameRows]
    num_rows: int
    next_serial: int
    status: Status


def read_stream(
    slab: Slab,
    match: Match,
    serial: int,
    span: Span,
    rows_max: int,
    *,
    ended: bool,
    opened: OpenFrames | None = None,
) -> StreamRead:
    """Read up to rows_max matching rows from a serial on.

    `ended` means that the slab accepts no more rows. Compacted frames are kept in `opened`.
    """
    selector = Selector(match)
    parts: list[Piece | FrameRows] = []
    taken = 0
    handles = slab.handles()
    number = slab.chain.handle_at_serial(serial)
    for handle in handles[number:]:
        # Rows that become visible after this, while the frames are listed, are left to the next
        # read.
        end_serial = handle.next_serial
        if handle.sealed and end_serial <= serial:
            continue
        segment = handle.segment()
        try:
            left = rows_max - taken
            for part in _stream_parts(slab, segment, serial, span, selector, left, opened):
                if part is None:
                    return _result(parts, taken, serial, Status.LIMIT)
                cut, stop = _cut(part, rows_max - taken, selector.stream.id)
                serial = max(serial, stop)
                if cut.num_rows:
                    parts.append(cut)
                    taken += cut.num_rows
                if taken >= rows_max:
                    return _result(parts, taken, serial, Status.MORE)
                if isinstance(part, Piece) and _reached(part, span):
                    return _result(parts, taken, serial, Status.LIMIT)
            check_behind(segment, span)
        except CorruptionError:
            # Return the rows before the damage. The next read begins with the damage.
            if not taken:
                raise
            return _result(parts, taken, serial, Status.MORE)
        serial = max(serial, end_serial)
    if ended:
        return _result(parts, taken, serial, Status.END)
    return _result(parts, taken, serial, Status.CAUGHT_UP)


def _result(parts: list[Piece | FrameRows], taken: int, serial: int, status: Status) -> StreamRead:
    return StreamRead(parts=parts, num_rows=taken, next_serial=serial, status=status)


def _stream_parts(
    slab: Slab,
    segment: Segment,
    serial: int,
    span: Span,
    selector: Selector,
    rows_max: int,
    opened: OpenFrames | None,
) -> Iterator[Piece | FrameRows | None]:
    """Yield the rows of one stream in one segment from a serial and a time on.

    Yield None if the next frame begins after the span.
    """
    index, stream_id = segment.index, selector.stream.id
    frames = index.frames_of(stream_id)
    # The list may grow meanwhile. Only the entries at the start of the read count.
    first = max(index.frame_at_serial(serial), index.frame_at_time(span.since_us))
    stop = count = len(frames)
    if span.until_us is not None:
        # Frames that are fully before the end of the span.
        stop = bisect_left(frames, index.frame_at_time(span.until_us), 0, count)
    start = bisect_left(frames, first)
    each = index.rows_per_piece([stream_id])
    # About this many rows of all streams contain the rows that are needed.
    share = (index.next_serial - index.first_serial) // max(1, each * index.frame_count)
    rows_first = min(rows_max * max(1, share), FIRST_ROWS)
    if selector.needed:
        segment.index_words_for(stop - start)
    begin, listed = start, _LISTED_FIRST
    while begin < stop:
        end = min(begin + listed, stop)
        numbers = index.with_words(frames[begin:end], selector.needed)
        begin, listed = end, min(2 * listed, _LISTED_MAX)
        for found in read_frames(segment, numbers, each, rows_first, opened=opened):
            if isinstance(found, FrameTable):
                # All rows of these frames are before the end of the span.
                since = Span(since_us=span.since_us)
                yield _stream_rows(slab, segment, found, serial, since, selector)
            else:
                yield _stream_piece(slab, segment, found, serial, span, selector)
    for number in frames[max(start, stop) : count]:
        if _is_behind(index, number, span):
            yield None
            return
        for found in read_frames(segment, [number], each, rows_first, single=True, opened=opened):
            if isinstance(found, FrameTable):
                yield _stream_rows(slab, segment, found, serial, span, selector)
                yield None
                return
            yield _stream_piece(slab, segment, found, serial, span, selector)


def _stream_rows(
    slab: Slab, segment: Segment, table: FrameTable, serial: int, span: Span, selector: Selector
) -> FrameRows:
    _check_stream(segment, table.without_stream(selector.stream.id))
    rows = wanted_rows(slab.id, table, {selector.stream.id: selector})
    return rows.within(range(serial, ALL_SERIALS.stop)).in_span(span.since_us, span.until_us)


def _check_stream(segment: Segment, without: int | None) -> None:
    """Raise CorruptionError if there is a frame without rows of its stream, at this position."""
    if without is not None:
        raise CorruptionError(
            "the index names a stream that is not in the frame", path=segment.path, offset=without
        )


def _stream_piece(
    slab: Slab, segment: Segment, frame: FrameView, serial: int, span: Span, selector: Selector
) -> Piece:
    entry = frame.entry_of(selector.stream.id)
    number = segment.index.frame_at_serial(frame.header.first_serial)
    _check_stream(segment, segment.index.positions[number] if entry is None else None)
    assert entry is not None
    serials = range(serial, frame.serial_of(frame.header.row_count))
    return _cut_to(slab, selector, frame, entry, span, serials)


def _cut_to(
    slab: Slab,
    selector: Selector,
    frame: FrameView,
    entry: tuple[int, int, int, int, int],
    span: Span,
    serials: range,
) -> Piece:
    """Cut the rows of a stream in a frame to a span and to serials, and apply the filter."""
    _, first, count, first_topic, topics = entry
    header, rows = frame.header, frame.rows_in(serials)
    start = max(first, rows.start)
    stop = max(start, min(first + count, rows.stop))
    if header.first_timestamp_us < span.since_us:
        start = bisect_left(frame.times(), span.since_us, start, stop)
    if span.until_us is not None and header.last_timestamp_us >= span.until_us:
        stop = bisect_left(frame.times(), span.until_us, start, stop)
    picked = None
    if start < stop:
        picked = selector.pick(frame, range(start, stop), range(first_topic, first_topic + topics))
    return Piece(
        slab=slab.id, stream=selector.stream, frame=frame, start=start, stop=stop, picked=picked
    )


def check_behind(segment: Segment, span: Span) -> None:
    """Raise CorruptionError if the frames of a segment end at a damaged one, unless all frames
    before the end of the span are known.
    """
    index, until_us = segment.index, span.until_us
    frames = index.frame_count
    if until_us is None or not frames or index.last_times[frames - 1] < until_us:
        segment.check_whole()


def reaches_end(index: SegmentIndex, span: Span) -> bool:
    """Return whether a segment has frames after the span, so that later segments need not be
    opened.
    """
    count = index.frame_count
    return count > 0 and _is_behind(index, count - 1, span)


def _is_behind(index: SegmentIndex, number: int, span: Span) -> bool:
    """Return whether a frame begins after the span, so that it need not be opened."""
    return span.until_us is not None and index.first_times[number] >= span.until_us


def _reached(piece: Piece, span: Span) -> bool:
    """Return whether the frame of a piece has rows at or after the end of the span."""
    return span.until_us is not None and piece.frame.header.last_timestamp_us >= span.until_us


def _cut(part: Piece | FrameRows, rows_max: int, stream_id: int) -> tuple[Piece | FrameRows, int]:
    """Cut a part after its first rows_max matching rows; return it and the serial to go on with."""
    if isinstance(part, FrameRows):
        return _cut_rows(part, rows_max, stream_id)
    cut = part
    if part.num_rows > rows_max:
        if part.picked is None:
            cut = replace(part, stop=part.start + rows_max)
        else:
            picked = part.picked.slice(0, rows_max)
            cut = replace(part, stop=part.start + picked[-1].as_py() + 1, picked=picked)
    return cut, cut.frame.serial_of(cut.stop)


def _cut_rows(rows: FrameRows, rows_max: int, stream_id: int) -> tuple[FrameRows, int]:
    table = rows.table
    last = len(table) - 1
    if rows.num_rows >= rows_max:
        last = int(rows.frames[rows_max - 1])
        cut = rows.slice(0, rows_max)
        if rows.num_rows > rows_max and rows.frames[rows_max] == last:
            return cut, int(cut.serials()[-1]) + 1
        rows = cut
    # The serial after the rows of the stream in the last frame.
    return rows, table.stream_end(last, stream_id)


def frames_of_slab(
    slab: Slab,
    streams: Collection[int],
    needed: NeededWords,
    span: Span,
    serials: range,
    report: ReadReport | None = None,
) -> Iterator[tuple[Segment, Sequence[int]]]:
    """Yield each segment that is needed, with its frames that may hold matching rows."""
    report = ReadReport() if report is None else report
    handles = iter(slab.handles())
    for handle in handles:
        if handle.base_serial >= serials.stop or (
            handle.sealed and handle.next_serial <= serials.start
        ):
            report.skip(handle.summary or handle.segment().index.summary())
            continue
        segment = handle.segment()
        frames = segment.frames_for(
            streams, serials, since_us=span.since_us, until_us=span.until_us, needed=needed
        )
        report.add(segment.index, frames.numbers)
        yield segment, frames.numbers
        if reaches_end(segment.index, span):
            for later in handles:
                report.skip(later.summary or later.segment().index.summary())


def count_chosen(slab: Slab, matches: Sequence[Match], span: Span, report: ReadReport) -> None:
    """Count the frames and rows that a read of a slab would examine; no frame is opened."""
    streams = [match.stream.id for match in matches]
    for _ in frames_of_slab(slab, streams, needed_for(matches), span, ALL_SERIALS, report):
        pass


def read_slab(
    slab: Slab,
    matches: Sequence[Match],
    span: Span,
    *,
    serials: range | None = None,
    report: ReadReport | None = None,
    opened: OpenFrames | None = None,
) -> Iterator[list[Piece] | list[FrameRows]]:
    """Yield the matching rows of a slab in the order of the frames: the pieces of one frame, or the
    rows of many small frames.

    Frames are in order of time. Compacted frames of which some rows are wanted are kept in
    `opened`.
    """
    selectors = Selectors(matches)
    chosen = frames_of_slab(
        slab, selectors, needed_for(matches), span, serials or ALL_SERIALS, report
    )
    for segment, numbers in chosen:
        index = segment.index
        whole = selectors.cover(index)
        kept = opened if selectors.bound or 2 * len(selectors) < len(index.stream_rows) else None
        each = index.rows_per_piece(selectors)
        for found in read_frames(segment, numbers, each, opened=kept):
            if isinstance(found, FrameView):
                pieces = list(_frame_pieces(slab, selectors, found, span, serials))
                if pieces:
                    yield pieces
            else:
                rows = _table_rows(slab, selectors, found, span, serials, whole=whole)
                if rows.num_rows:
                    yield [rows]
        if serials is None or segment.index.next_serial <= serials.stop:
            check_behind(segment, span)


def read_frames(
    segment: Segment,
    numbers: Sequence[int],
    rows_per_piece: int,
    rows_first: int = FIRST_ROWS,
    *,
    single: bool = False,
    opened: OpenFrames | None = None,
) -> Iterator[FrameView | FrameTable]:
    """Open frames of a segment, in order: small ones many at a time, compacted ones as tables of
    one frame. With `single`, small frames are opened one by one too.

    `rows_per_piece` says how many rows are wanted of a frame, of each stream. A caller that needs
    fewer rows than usual at first says so with `rows_first`. Compacted frames are kept in `opened`.

    Raises: CorruptionError.
    """
    if segment.is_compacted:
        yield from compacted_frames(segment, numbers, opened)
        return
    for group, small in segment.index.groups(numbers, rows_per_piece, rows_first):
        if small and not single:
            yield from segment.open_frames(group)
        else:
            for number in group:
                yield segment.frame(number)


def _table_rows(
    slab: Slab,
    selectors: Selectors,
    table: FrameTable,
    span: Span,
    serials: range | None,
    *,
    whole: bool = False,
) -> FrameRows:
    rows = all_rows(slab.id, table) if whole else wanted_rows(slab.id, table, selectors)
    if serials is not None:
        rows = rows.within(serials)
    return rows.in_span(span.since_us, span.until_us)


def _frame_pieces(
    slab: Slab,
    selectors: Selectors,
    frame: FrameView,
    span: Span,
    serials: range | None,
) -> Iterator[Piece]:
    bounds = ALL_SERIALS if serials is None else serials
    for entry in frame.directory():
        if entry[0] in selectors:
            selector = selectors[entry[0]]
            piece = _cut_to(slab, selector, frame, entry, span, bounds)
            if piece.num_rows:
                yield piece


def count_rows(slab: Slab, matches: Sequence[Match], span: Span) -> int:
    """Count the matching rows of a slab.

    For segments that are fully in the span, the counts of the index are used where possible.
    """
    bound = [match for match in matches if match.is_bound]
    free = [match for match in matches if not match.is_bound]
    total = 0
    for handle in slab.handles():
        check_behind(handle.segment(), span)
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
            total += _count_span(slab, handle.segment(), free, span)
        total += _count_frames(slab, handle.segment(), bound, span)
    return total


def _count_span(slab: Slab, segment: Segment, matches: Sequence[Match], span: Span) -> int:
    """Count the rows of streams in a span.

    The index counts the rows of frames that are fully in the span, if all streams of the segment
    are counted and no row is lost.
    """
    index = segment.index
    frames = index.frame_count
    ids = {match.stream.id for match in matches}
    held = sum(index.stream_rows.values())
    if not index.stream_rows.keys() <= ids or sum(index.row_counts[:frames]) != held:
        return _count_frames(slab, segment, matches, span)
    until_us = index.last_times[frames - 1] + 1 if span.until_us is None else span.until_us
    first = bisect_left(index.first_times, span.since_us, 0, frames)
    last = max(first, bisect_left(index.last_times, until_us, 0, frames))
    end = bisect_left(index.first_times, until_us, 0, frames)
    selectors = Selectors(matches)
    cut = (*range(index.frame_at_time(span.since_us), min(first, end)), *range(last, end))
    counted = sum(index.row_counts[first:last])
    return counted + _count_in(slab, segment, cut, selectors, span)


def _count_frames(slab: Slab, segment: Segment, matches: Sequence[Match], span: Span) -> int:
    selectors = Selectors(matches)
    needed = needed_for(matches)
    frames = segment.frames_for(
        selectors, ALL_SERIALS, since_us=span.since_us, until_us=span.until_us, needed=needed
    )
    return _count_in(slab, segment, frames.numbers, selectors, span)


def _count_in(
    slab: Slab,
    segment: Segment,
    numbers: Sequence[int],
    selectors: Selectors,
    span: Span,
) -> int:
    total = 0
    if numbers:
        each = segment.index.rows_per_piece(selectors)
        for found in read_frames(segment, numbers, each):
            if isinstance(found, FrameTable):
                total += _table_rows(slab, selectors, found, span, None).num_rows
            else:
                pieces = _frame_pieces(slab, selectors, found, span, None)
                total += sum(piece.num_rows for piece in pieces)
    return total
