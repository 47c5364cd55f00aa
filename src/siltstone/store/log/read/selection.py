"""Select rows in bulk: frames from the index, and the rows of many streams and filters in a frame.

Selecting and reading are separate. A FrameRun names frames by their position in a segment. Its
reader, which may be another process, opens only that one file, and neither manifest nor index. The
wanted streams are passed to the reader as values. A row that several filters match is selected
once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from siltstone.errors import CorruptionError
from siltstone.fs.api import FileSystem
from siltstone.scalars import scalar
from siltstone.store.log.opening import slab_directory
from siltstone.store.log.read.compacted import compacted_frames
from siltstone.store.log.read.frame_rows import FrameRows, TopicTest, all_rows, wanted_rows
from siltstone.store.log.read.pieces import Piece, integers
from siltstone.store.log.read.scan import (
    Selector,
    Span,
    check_behind,
    frames_of_slab,
    rows_with_topics,
)
from siltstone.store.log.slab import Slab
from siltstone.store.segment.frame import ROOM, ROWS, FrameHeader
from siltstone.store.segment.index import NeededWords
from siltstone.store.segment.segment import Segment, open_segment, segment_path
from siltstone.store.segment.table import FrameTable, column_of, numbers_of
from siltstone.store.segment.view import FrameView
from siltstone.store.segment.walker import EARLIER, MISSING, FrameWalk
from siltstone.store.slab.manifest import SlabId
from siltstone.topic.grammar import TopicFilter
from siltstone.topic.structure import Match, Stream
from siltstone.topic.word_index import needed_at

# With more filters for one stream, the word index is not used.
_NEEDED_MAX: Final = 64
# Two wanted frames with a smaller gap between them are read at once: this costs less than two
# reads.
_GAP_BYTES: Final = 1 << 14
# The stream of a piece with rows of many streams; the directory of the frame distinguishes them.
MANY: Final = Stream(0, [], special=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundStream:
    """A stream of which some topics are wanted: those that match at least one constraint.

    A constraint has a word, or None for any word, for each varying level.
    """

    stream_id: int
    levels: tuple[bytes, ...]
    constraints: tuple[tuple[bytes | None, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The streams of a slab that filters select: all rows of some, some topics of others."""

    whole: frozenset[int]
    bound: tuple[BoundStream, ...]

    def streams(self) -> list[int]:
        """Return the ids of all wanted streams."""
        return [*self.whole, *(stream.stream_id for stream in self.bound)]

    def needed(self) -> NeededWords:
        """Return the words that the topics of each stream must have."""
        return {
            stream.stream_id: tuple(needed_at(stream.levels, words) for words in stream.constraints)
            for stream in self.bound
            if len(stream.constraints) <= _NEEDED_MAX
        }


class FramePlace(NamedTuple):
    """The position of a frame, and its entry in the index; or of `frames` frames in a row.

    `complete` means that every stream of its segment is wanted as a whole, so that the directory of
    the frame need not be read.
    """

    slab: SlabId
    base_serial: int
    position: int
    end: int
    first_serial: int
    stop_serial: int
    complete: bool
    frames: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabExtent:
    """The serials and times that a slab covers; until is None for the current slab.

    A dropped slab leaves a gap between the serials of the slabs before and after it.
    """

    slab: SlabId
    serials: range
    since_us: int
    until_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The streams of a slab that filters select, the frames that may hold their rows, and totals.

    The frames are listed lazily, from the index alone. `joined` lists them too, but many neighbours
    at once, up to a number of bytes and of rows. `find` returns the wanted serials of a frame
    within a range. `whole_share` is the fraction of the slab's rows in streams that are wanted as a
    whole.
    """

    wanted: Wanted
    frames: Iterator[FramePlace]
    joined: Callable[[int, int], Iterator[FramePlace]]
    find: Callable[[FramePlace, range], Sequence[int]]
    frame_count: int
    stream_count: int
    size_bytes: int
    whole_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameRun:
    """Consecutive frames of a segment, and the serials that are wanted from them."""

    slab: SlabId
    base_serial: int
    position: int
    end: int
    first_serial: int
    start_serial: int
    stop_serial: int
    complete: bool


def run_of(place: FramePlace, serials: range) -> FrameRun:
    """Return a run of one frame with these wanted serials."""
    return FrameRun(
        slab=place.slab,
        base_serial=place.base_serial,
        position=place.position,
        end=place.end,
        first_serial=place.first_serial,
        start_serial=serials.start,
        stop_serial=serials.stop,
        complete=place.complete,
    )


def extent_of(slab: Slab) -> SlabExtent:
    """Return the extent of a slab at this moment. Raises: CorruptionError if it is damaged."""
    record = slab.record
    slab.check_whole()
    stop = slab.next_serial() if record.until_serial is None else record.until_serial
    return SlabExtent(
        slab=slab.id,
        serials=range(record.first_serial, max(record.first_serial, stop)),
        since_us=record.since_us,
        until_us=record.until_us,
    )


def choose_frames(slab: Slab, filters: Sequence[TopicFilter], span: Span, serials: range) -> Choice:
    """Select the frames of a slab that may hold rows of any of the filters."""
    wanted = want(slab, filters)
    frame_count = size_bytes = 0
    for handle in slab.handles():
        summary = handle.summary or handle.segment().index.summary()
        frame_count += summary.frame_count
        size_bytes += summary.end_position
    rows = slab.stream_rows()
    whole = sum(rows.get(stream_id, 0) for stream_id in wanted.whole)
    return Choice(
        wanted=wanted,
        frames=list_frames(slab, wanted, span, serials),
        joined=partial(_join_frames, slab, wanted, span, serials),
        find=_Finder(slab, PieceReader(wanted, span), span).find,
        frame_count=frame_count,
        stream_count=len(rows),
        size_bytes=size_bytes,
        whole_share=whole / max(1, sum(rows.values())),
    )


def want(slab: Slab, filters: Sequence[TopicFilter]) -> Wanted:
    """Return the rows of a slab that filters select.

    An empty list selects all rows, including topics that begin with $, which no filter matches.
    """
    if not filters:
        return Wanted(whole=frozenset(slab.stream_rows()), bound=())
    return wanted_of(match for topic_filter in filters for match in slab.match(topic_filter))


def wanted_of(found: Iterable[Match]) -> Wanted:
    """Return the wanted streams for these matches."""
    whole: set[int] = set()
    bound: dict[int, list[Match]] = {}
    for match in found:
        if match.is_bound:
            bound.setdefault(match.stream.id, []).append(match)
        else:
            whole.add(match.stream.id)
    return Wanted(
        whole=frozenset(whole),
        bound=tuple(
            BoundStream(
                stream_id=stream_id,
                levels=tuple(matches[0].stream.levels),
                constraints=tuple(tuple(match.constraints) for match in matches),
            )
            for stream_id, matches in sorted(bound.items())
            if stream_id not in whole
        ),
    )


def list_frames(slab: Slab, wanted: Wanted, span: Span, serials: range) -> Iterator[FramePlace]:
    """Yield the frames of a slab that may hold wanted rows, in order; no frame is opened."""
    for segment, numbers in _frame_numbers(slab, wanted, span, serials):
        index = segment.index
        complete = index.stream_rows.keys() <= wanted.whole
        for number in numbers:
            start = index.serials[number]
            stop = start + index.row_counts[number]
            if max(start, serials.start) < min(stop, serials.stop):
                position = index.positions[number]
                end = position + _length(segment, number, position)
                base = segment.header.base_serial
                yield FramePlace(slab.id, base, position, end, start, stop, complete)


def _frame_numbers(
    slab: Slab, wanted: Wanted, span: Span, serials: range
) -> Iterator[tuple[Segment, Sequence[int]]]:
    """Yield for each segment of a slab the frames that may hold wanted rows."""
    for segment, numbers in frames_of_slab(slab, wanted.streams(), wanted.needed(), span, serials):
        yield segment, numbers
        if segment.index.next_serial < serials.stop:
            check_behind(segment, span)


def _join_frames(
    slab: Slab, wanted: Wanted, span: Span, serials: range, bytes_max: int, rows_max: int
) -> Iterator[FramePlace]:
    """Yield the frames of `list_frames`, many neighbours at once: the work for each frame counts if
    there are millions. A few frames between two of them are read too.
    """
    for segment, numbers in _frame_numbers(slab, wanted, span, serials):
        if not numbers:
            continue
        index, first, last = segment.index, numbers[0], numbers[-1]
        positions = column_of(index.positions[first : last + 1], np.int64)
        end_of_last = index.positions[last] + _length(segment, last, index.positions[last])
        lengths = np.diff(positions, append=end_of_last)
        starts = column_of(index.serials[first : last + 1], np.int64)
        stops = starts + column_of(index.row_counts[first : last + 1], np.uint32)
        # A run cannot go on where serials were left out.
        breaks = np.concatenate([[0], (starts[1:] != stops[:-1]).cumsum()])
        chosen = numbers_of(numbers) - first
        chosen = chosen[
            np.maximum(starts[chosen], serials.start) < np.minimum(stops[chosen], serials.stop)
        ]
        begins, ends = positions[chosen], (positions + lengths)[chosen]
        first_serials, last_serials = starts[chosen], stops[chosen]
        apart = breaks[chosen[1:]] != breaks[chosen[:-1]]
        apart |= begins[1:] - ends[:-1] > _GAP_BYTES
        complete = index.stream_rows.keys() <= wanted.whole
        base, low = segment.header.base_serial, 0
        for high in (*(np.flatnonzero(apart) + 1).tolist(), len(chosen)):
            while low < high:
                by_bytes = np.searchsorted(ends[:high], begins[low] + bytes_max, "right")
                by_rows = np.searchsorted(
                    last_serials[:high], first_serials[low] + rows_max, "right"
                )
                end = max(low + 1, int(min(by_bytes, by_rows)))
                yield FramePlace(
                    slab.id,
                    base,
                    int(begins[low]),
                    int(ends[end - 1]),
                    int(first_serials[low]),
                    int(last_serials[end - 1]),
                    complete,
                    end - low,
                )
                low = end


def _length(segment: Segment, number: int, position: int) -> int:
    index = segment.index
    if number + 1 < index.frame_count:
        return index.positions[number + 1] - position
    # The index may grow at this moment, so the end of the last frame is read from its header.
    header = segment.header_at(position, segment.header.file_bytes)
    return 0 if header is None else header.length


class _Picker:
    """Picks the rows of one stream whose topics match at least one of its constraints."""

    def __init__(self, bound: BoundStream) -> None:
        stream = Stream(bound.stream_id, list(bound.levels), special=False)
        exact = [words for words in bound.constraints if None not in words]
        self._topics: pa.Array | None = None
        if len(exact) > 1:
            # Thousands of exact topics are looked up at once, not one after the other.
            self._topics = pa.array([_topic(bound.levels, words) for words in exact], pa.string())
            open_ended = [words for words in bound.constraints if None in words]
        else:
            open_ended = list(bound.constraints)
        self._selectors = [Selector(Match(stream, list(words))) for words in open_ended]
        self.is_bound = True

    def pick(self, frame: FrameView, rows: range, topics: range) -> pa.Array | None:
        """Return the indices of the matching rows, counted from the first; None if all match."""
        if self._topics is None and len(self._selectors) == 1:
            return self._selectors[0].pick(frame, rows, topics)
        words = frame.topic_words(topics.start, topics.stop)
        return rows_with_topics(frame, rows, topics, self.matching(words))

    def matching(self, words: pa.Array) -> pa.Array:
        """Return the indices of the matching topics, counted from the first."""
        found = [selector.matching(words) for selector in self._selectors]
        if self._topics is not None:
            found.append(pc.indices_nonzero(pc.is_in(words, self._topics)))
        return found[0] if len(found) == 1 else pc.unique(pa.concat_arrays(found))


def _topic(levels: Sequence[bytes], words: Sequence[bytes | None]) -> str:
    varying = iter(words)
    return b"/".join(
        (next(varying) or b"") if level == b"+" else level for level in levels
    ).decode()


class _AllTopics:
    """The test of a stream of which all topics are wanted."""

    is_bound = False

    def matching(self, words: pa.Array) -> pa.Array:
        """Return the indices of all topics."""
        return pa.arange(0, len(words)).view(pa.uint64())


class PieceReader:
    """Picks rows of frames, for one set of wanted streams and one span of time."""

    def __init__(self, wanted: Wanted, span: Span) -> None:
        self._span = span
        self._pickers: Mapping[int, _Picker | None] = {
            **dict.fromkeys(wanted.whole),
            **{bound.stream_id: _Picker(bound) for bound in wanted.bound},
        }
        every = _AllTopics()
        self._tests: Mapping[int, TopicTest] = {
            stream_id: picker or every for stream_id, picker in self._pickers.items()
        }

    @property
    def streams(self) -> Collection[int]:
        """The wanted streams."""
        return self._pickers.keys()

    def parts(
        self, run: FrameRun, frames: Iterable[FrameView | FrameTable]
    ) -> Iterator[Piece | FrameRows]:
        """Yield the wanted rows of the frames of a run, in order."""
        for found in frames:
            if isinstance(found, FrameTable):
                rows = self.rows(run, found)
                if rows.num_rows:
                    yield rows
            else:
                piece = self.piece(run, found)
                if piece is not None:
                    yield piece

    def rows(self, run: FrameRun, table: FrameTable) -> FrameRows:
        """Return the wanted rows in many frames of a run."""
        if run.complete:
            rows = all_rows(run.slab, table)
        else:
            rows = wanted_rows(run.slab, table, self._tests)
        rows = rows.within(range(run.start_serial, run.stop_serial))
        return rows.in_span(self._span.since_us, self._span.until_us)

    def piece(self, run: FrameRun, frame: FrameView) -> Piece | None:
        """Return the wanted rows in one frame of a run, or None if there are none."""
        header, span = frame.header, self._span
        if header.kind != ROWS:
            return None
        rows = frame.rows_in(range(run.start_serial, run.stop_serial))
        start, stop = rows.start, rows.stop
        within = _is_within(header, span)
        if run.complete and within:
            return _joined(run.slab, frame, [(start, stop, None)])
        parts: list[tuple[int, int, pa.Array | None]] = []
        for stream_id, first, count, first_topic, topics in frame.directory():
            if stream_id not in self._pickers:
                continue
            begin, end = max(first, start), min(first + count, stop)
            if begin < end and not within:
                begin, end = _in_span(frame, span, begin, end)
            if begin >= end:
                continue
            picker = self._pickers[stream_id]
            picked = None
            if picker is not None:
                picked = picker.pick(
                    frame, range(begin, end), range(first_topic, first_topic + topics)
                )
            parts.append((begin, end, picked))
        return _joined(run.slab, frame, parts)


class _Finder:
    """Finds the wanted serials in a slab's frames."""

    def __init__(self, slab: Slab, pieces: PieceReader, span: Span) -> None:
        self._slab = slab
        self._pieces = pieces
        self._span = span

    def find(self, place: FramePlace, within: range) -> Sequence[int]:
        """Return the wanted serials of a frame, in order. Raises: CorruptionError."""
        handles = self._slab.handles()
        handle = handles[self._slab.chain.handle_at_serial(place.first_serial)]
        segment = handle.segment()
        if place.complete and not segment.is_compacted:
            # The header also says whether the rows were lost. A frame of lost rows has serials, but
            # no rows, and the index does not distinguish it.
            header = segment.header_at(place.position, segment.header.file_bytes)
            if header is not None and header.kind == ROWS and _is_within(header, self._span):
                return within
        run = run_of(place, within)
        if segment.is_compacted:
            found: list[int] = []
            numbers = segment.index.frames_for(self._pieces.streams, within).numbers
            for part in self._pieces.parts(run, compacted_frames(segment, numbers)):
                assert isinstance(part, FrameRows)
                found += part.serials().tolist()
            return found
        frame = segment.frame(segment.index.frame_at_serial(place.first_serial))
        piece = self._pieces.piece(run, frame)
        if piece is None:
            return range(0)
        first = frame.serial_of(piece.start)
        if piece.picked is None:
            return range(first, first + piece.num_rows)
        # The streams follow one another in the frame, each in its own order.
        return sorted(first + number for number in integers(piece.picked))


class RunReader:
    """Reads runs of one slab, for one set of wanted streams and one span of time."""

    def __init__(self, fs: FileSystem, directory: PurePath, wanted: Wanted, span: Span) -> None:
        self._fs = fs
        self._directory = directory
        self._pieces = PieceReader(wanted, span)
        self._open: tuple[PurePath, Segment] | None = None

    def read(self, run: FrameRun) -> Iterator[Piece | FrameRows]:
        """Yield the wanted rows of a run in order, those of many small frames together.

        Raises: NotFoundError when the segment is gone, CorruptionError.
        """
        segment = self._segment(run)
        frames = _compacted_frames(segment, run) if segment.is_compacted else _frames(segment, run)
        yield from self._pieces.parts(run, frames)

    def _segment(self, run: FrameRun) -> Segment:
        path = segment_path(slab_directory(self._directory, run.slab), run.base_serial)
        if self._open is None or self._open[0] != path:
            self._open = (path, open_segment(self._fs, path))
        return self._open[1]


def _is_within(header: FrameHeader, span: Span) -> bool:
    """Return whether all rows of a frame are in a span."""
    return header.first_timestamp_us >= span.since_us and (
        span.until_us is None or header.last_timestamp_us < span.until_us
    )


def _in_span(frame: FrameView, span: Span, start: int, stop: int) -> tuple[int, int]:
    """Cut rows of one stream, which are in order of time, to a span."""
    times = frame.times()
    start = bisect_left(times, span.since_us, start, stop)
    if span.until_us is not None:
        stop = bisect_left(times, span.until_us, start, stop)
    return start, stop


def _frames(segment: Segment, run: FrameRun) -> Iterator[FrameView | FrameTable]:
    """Yield the frames of a run, small ones many at a time; each is checked."""
    limit = min(run.end, segment.header.file_bytes)
    position, serial = run.position, run.first_serial
    while True:
        table = segment.small_frames(position, serial, limit)
        if table is not None:
            yield table
            position = int(table.ends[-1])
            serial = int(table.first_serials[-1] + table.row_counts[-1])
            continue
        walk = FrameWalk(
            segment.view, segment.header.seed, position=position, serial=serial, limit=limit
        )
        # A table ended here, or few frames are left.
        step = next(iter(walk), None)
        if step is None or (step.header.kind != ROOM and step.header.first_serial != serial):
            break
        position = step.position + step.header.length
        if step.header.kind != ROOM:
            yield segment.open_frame(step.position, step.header)
            serial += step.header.row_count
    if position < run.end:
        changed = "the segment changed after the read was planned"
        reason = changed if walk.problem in ("", MISSING, EARLIER) else walk.problem
        raise CorruptionError(reason, path=segment.path, offset=position)


def _compacted_frames(segment: Segment, run: FrameRun) -> Iterator[FrameView | FrameTable]:
    """Yield the frames of a compacted segment that hold the serials of a run; each is checked.

    The positions of a run do not count here: the run may be planned before the segment was
    compacted. The frames are few and large, so they are found by their headers.
    """
    segment.index_headers()
    index = segment.index
    if index.next_serial < run.stop_serial:
        raise CorruptionError(
            "the segment changed after the read was planned",
            path=segment.path,
            offset=index.end_position,
        )
    first = index.frame_at_serial(run.start_serial)
    stop = bisect_left(index.serials, run.stop_serial, first, index.frame_count)
    yield from compacted_frames(segment, range(first, stop))


def _joined(
    slab: SlabId, frame: FrameView, parts: Sequence[tuple[int, int, pa.Array | None]]
) -> Piece | None:
    """Join ranges of rows, some with picked rows, to one piece; return None if it is empty."""
    held = [part for part in parts if part[0] < part[1] and (part[2] is None or len(part[2]))]
    if not held:
        return None
    start, stop = held[0][0], held[-1][1]
    rows = sum(end - begin for begin, end, picked in held if picked is None)
    picks = None
    if rows < stop - start:
        numbers = [_numbers(part, start) for part in held]
        picks = numbers[0] if len(numbers) == 1 else pa.concat_arrays(numbers)
    return Piece(slab=slab, stream=MANY, frame=frame, start=start, stop=stop, picked=picks)


def _numbers(part: tuple[int, int, pa.Array | None], start: int) -> pa.Array:
    begin, end, picked = part
    if picked is None:
        return pa.arange(begin - start, end - start).view(pa.uint64())
    return picked if begin == start else pc.add(picked, scalar(begin - start, pa.uint64()))


def stream_ids(piece: Piece) -> pa.Array:
    """Return the stream of each row of a piece, as signed 64-bit integers with the same bits."""
    held = [
        (stream_id.to_bytes(8, "little"), min(first + count, piece.stop) - max(first, piece.start))
        for stream_id, first, count, _, _ in piece.frame.directory()
        if first < piece.stop and first + count > piece.start
    ]
    if len(held) == 1:
        # All rows have the same stream, so none need to be picked.
        return _ids(held[0][0] * piece.num_rows)
    return piece.chosen(_ids(b"".join(word * rows for word, rows in held)))


def _ids(data: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(data) // 8, [None, pa.py_buffer(data)])
