"""The index of a segment: one entry for each frame, and a list of frames for each stream.

The index of an unsealed segment grows in memory as frames are added. The index of a sealed segment
is a separate mapped file, so the time to open a store does not depend on the number of frames. Both
have the same interface. One thread adds entries and any thread reads them: an entry is valid once
`frame_count` includes it.

The index file `<base serial>.idx`, little endian:

    0   4  magic `KIDX`
    4   4  CRC-32C of everything after it
    8   4  version: 1, or 2 if the segment was compacted
    12  4  number of frames, F
    16  4  number of streams, S
    20  4  number of postings, P
    24  8  first serial of the segment
    32  8  serial after its last row
    40  8  position after its last frame
    48  8  length of the learned structure, L
    56  8  length of the producers, M
    64  4  CRC-32C of bytes 8 to 63: the totals can be trusted without reading the rest
    68  4  revision of the segment: how often it was rewritten by compaction
    72     u64[F] positions, u64[F] first serials, i64[F] first timestamps, i64[F] last timestamps,
           (u64 stream, u64 rows, u32 first posting, u32 postings)[S], u32[F] row counts,
           u32[P] frames by stream, L bytes of structure, M bytes of producers, then parts up to the
           end: (u32 id, u32 length) and that many bytes each

A part with an unknown id is ignored. Part 1 is the digest of the rows of a compacted segment, and
part 2 the word index, see `topic/word_index.py`.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c

from siltstone.errors import CorruptionError
from siltstone.store.segment.frame import ROWS, FrameHeader
from siltstone.store.segment.table import (
    SMALL_PIECE,
    TABLE_BYTES,
    TABLE_FRAMES,
    TABLE_ROWS,
    Flags,
    FrameTable,
    are_small,
    column_of,
    numbers_of,
)
from siltstone.topic.word_index import Needed, WordIndex

MAGIC: Final = b"KIDX"
VERSION: Final = 1
COMPACTED_VERSION: Final = 2
DIGEST: Final = 1
_PART: Final = struct.Struct("<II")
_HEADER: Final = struct.Struct("<4sIIIIIQQQQQ")
_HEADER_CRC: Final = struct.Struct("<II")
SUMMARY_BYTES: Final = _HEADER.size + _HEADER_CRC.size
_STREAM: Final = struct.Struct("<QQII")
WORDS: Final = 2

Directory = Sequence[tuple[int, int, int, int, int]]
# The rows of a table: few at first, because many readers want only the first rows.
FIRST_ROWS: Final = 1 << 12
# The words that the topics of a stream must have: those of at least one of several filters. All
# rows of other streams are wanted.
NeededWords = Mapping[int, tuple[Needed, ...]]
NO_WORDS: Final[NeededWords] = MappingProxyType({})
# With more different filters the word index is not used.
_FILTERS_MAX: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSummary:
    """The totals of a sealed segment, from the header of its index file."""

    first_serial: int
    next_serial: int
    end_position: int
    frame_count: int
    revision: int = 0


class Frames(NamedTuple):
    """Numbers of frames in rising order, and the serial up to which the list is complete."""

    numbers: Sequence[int]
    next_serial: int


class SegmentIndex:
    """The frames of one segment in order, and which of them hold a stream."""

    def __init__(self, *, first_serial: int, end_position: int) -> None:
        self.frame_count = 0
        self.first_serial = first_serial
        self.next_serial = first_serial
        self.end_position = end_position
        self.positions: Sequence[int] = array("Q")
        self.serials: Sequence[int] = array("Q")
        self.first_times: Sequence[int] = array("q")
        self.last_times: Sequence[int] = array("q")
        self.row_counts: Sequence[int] = array("I")
        self.stream_rows: dict[int, int] = {}
        self._postings: dict[int, Sequence[int]] = {}
        # The number of rows, which the serials do not give because they may have gaps. And the
        # number of entries in all directories: how often a frame holds a stream.
        self.row_count = 0
        self.piece_count = 0
        self.verified = bytearray()
        self.words = WordIndex()

    def add(self, position: int, header: FrameHeader, directory: Directory) -> None:
        """Add the frame at `position`, behind all others."""
        number = self.frame_count
        positions, serials, row_counts = self.positions, self.serials, self.row_counts
        first_times, last_times = self.first_times, self.last_times
        # Written out: this runs for every frame, and a loop over pairs takes twice as long.
        assert isinstance(positions, array), "a sealed index does not grow"
        assert isinstance(serials, array)
        assert isinstance(first_times, array)
        assert isinstance(last_times, array)
        assert isinstance(row_counts, array)
        positions.append(position)
        serials.append(header.first_serial)
        first_times.append(header.first_timestamp_us)
        last_times.append(header.last_timestamp_us)
        row_counts.append(header.row_count)
        self.verified.append(0)
        if header.kind == ROWS:
            self.row_count += header.row_count
            self.piece_count += len(directory)
            for stream_id, _, rows, _, _ in directory:
                postings = self._postings.get(stream_id)
                if postings is None:
                    postings = self._postings[stream_id] = array("I")
                assert isinstance(postings, array)
                postings.append(number)
                self.stream_rows[stream_id] = self.stream_rows.get(stream_id, 0) + rows
        self.end_position = position + header.length
        self.next_serial = header.first_serial + header.row_count
        self.frame_count = number + 1

    def add_many(self, table: FrameTable, *, verified: bool) -> None:
        """Add the frames of a table, behind all others."""
        directory = table.directory()
        number = self.frame_count
        for column, values in (
            (self.positions, table.positions),
            (self.serials, table.first_serials),
            (self.first_times, table.first_times),
            (self.last_times, table.last_times),
            (self.row_counts, table.row_counts.astype(np.uint32)),
        ):
            assert isinstance(column, array), "a sealed index does not grow"
            column.frombytes(values.tobytes())
        self.verified.extend(bytes([verified]) * len(table))
        order = np.argsort(directory.stream_ids, kind="stable")
        streams, starts = np.unique(directory.stream_ids[order], return_index=True)
        frames = (directory.frames[order] + number).astype(np.uint32)
        rows = np.add.reduceat(directory.row_counts[order], starts) if len(starts) else starts
        stops = [*starts[1:].tolist(), len(frames)]
        for stream_id, start, stop, count in zip(
            streams.tolist(), starts.tolist(), stops, rows.tolist(), strict=True
        ):
            postings = self._postings.get(stream_id)
            if postings is None:
                postings = self._postings[stream_id] = array("I")
            assert isinstance(postings, array)
            postings.frombytes(frames[start:stop].tobytes())
            self.stream_rows[stream_id] = self.stream_rows.get(stream_id, 0) + count
        self.row_count += int(table.row_counts.sum())
        self.piece_count += len(frames)
        self.end_position = int(table.ends[-1])
        self.next_serial = int(table.first_serials[-1] + table.row_counts[-1])
        self.frame_count = number + len(table)

    def frames_of(self, stream_id: int) -> Sequence[int]:
        """Return the numbers of the frames that hold rows of the stream, in rising order."""
        return self._postings.get(stream_id, ())

    def set_frames(self, stream_id: int, frames: Sequence[int], rows: int) -> None:
        """Set all frames and rows of a stream; for an index that is read from its file."""
        self.stream_rows[stream_id] = rows
        self._postings[stream_id] = frames
        self.row_count += rows
        self.piece_count += len(frames)

    def frame_at_serial(self, serial: int) -> int:
        """Return the first frame that may hold the serial or a later one."""
        return max(0, bisect_right(self.serials, serial, 0, self.frame_count) - 1)

    def frame_at_time(self, timestamp_us: int) -> int:
        """Return the first frame that holds a row at or after the time."""
        return bisect_left(self.last_times, timestamp_us, 0, self.frame_count)

    def frames_between(
        self, serials: range, since_us: int, until_us: int | None
    ) -> tuple[int, int]:
        """Return the first frame that may hold one of these serials and times, and the end."""
        first = max(self.frame_at_serial(serials.start), self.frame_at_time(since_us))
        stop = bisect_left(self.serials, serials.stop, first, self.frame_count)
        if until_us is not None:
            stop = bisect_left(self.first_times, until_us, first, stop)
        return first, stop

    def frames_for(
        self,
        streams: Collection[int],
        serials: range,
        *,
        since_us: int = 0,
        until_us: int | None = None,
        most: int | None = None,
        needed: NeededWords = NO_WORDS,
    ) -> Frames:
        """Return the frames that may hold rows of these streams, with these serials and times, and
        the needed words.

        The list ends early if a stream is in more than `most` frames.
        """
        held = [stream_id for stream_id in streams if stream_id in self.stream_rows]
        if not held:
            return Frames((), serials.stop)
        first, stop = self.frames_between(serials, since_us, until_us)
        if len({needed[stream_id] for stream_id in held if stream_id in needed}) > _FILTERS_MAX:
            needed = NO_WORDS
        whole = [stream_id for stream_id in held if stream_id not in needed]
        if 2 * len(whole) > len(self.stream_rows):
            return Frames(range(first, stop), serials.stop)
        listed = stop
        if most is not None:
            for stream_id in held:
                frames = self.frames_of(stream_id)
                high = bisect_left(frames, first) + most
                if high < len(frames):
                    listed = min(listed, frames[high])
        wanted = np.zeros(max(0, listed - first), np.bool_)
        bound = self._may_hold(held, needed, first, listed)
        for stream_id in held:
            frames = self.frames_of(stream_id)
            low = bisect_left(frames, first)
            high = bisect_left(frames, listed, low)
            numbers = column_of(frames[low:high], np.uint32) - np.uint32(first)
            if stream_id in needed:
                numbers = numbers[bound[needed[stream_id]][numbers]]
            wanted[numbers] = True
        found = (np.flatnonzero(wanted) + first).tolist()
        return Frames(found, serials.stop if listed == stop else self.serials[listed])

    def _may_hold(
        self, held: Sequence[int], needed: NeededWords, first: int, stop: int
    ) -> dict[tuple[Needed, ...], Flags]:
        """Return for each set of needed words which frames from first to stop may hold them."""
        wanted = {needed[stream_id] for stream_id in held if stream_id in needed}
        if first >= stop:
            return dict.fromkeys(wanted, np.zeros(0, np.bool_))
        each = {
            words: self.words.holding(words, first, stop)
            for words in {words for several in wanted for words in several}
        }
        return {several: np.logical_or.reduce([each[one] for one in several]) for several in wanted}

    def with_words(self, frames: Sequence[int], words: Needed) -> Sequence[int]:
        """Return those of some frames, in rising order, that may hold these words."""
        if not words or not frames:
            return frames
        held = self.words.holding(words, frames[0], frames[-1] + 1)
        numbers = column_of(frames, np.uint32)
        found: list[int] = numbers[held[numbers - np.uint32(frames[0])]].tolist()
        return found

    def rows_per_piece(self, streams: Collection[int]) -> int:
        """Return how many rows these streams have on average in a frame that holds any.

        If they are most streams of the segment, it is the average of all streams.
        """
        held = [stream_id for stream_id in streams if stream_id in self.stream_rows]
        if 2 * len(held) > len(self.stream_rows):
            return self.row_count // max(1, self.piece_count)
        rows = pieces = 0
        for stream_id in held:
            rows += self.stream_rows[stream_id]
            pieces += len(self.frames_of(stream_id))
        return rows // max(1, pieces)

    def groups(
        self, numbers: Sequence[int], rows_per_piece: int, rows_first: int = FIRST_ROWS
    ) -> Iterator[tuple[Sequence[int], bool]]:
        """Yield the numbers of frames in groups, and whether to read the group as a table: many
        small frames, or one with few rows of each wanted stream.

        `rows_per_piece` says how many rows are wanted of a frame, of each stream. The first group
        has about `rows_first` rows, and later groups have more.
        """
        rows_max = window = rows_first
        start = 0
        while start < len(numbers):
            part = numbers[start : start + window]
            yield from self._groups(part, rows_per_piece, rows_max)
            start += len(part)
            rows_max = window = min(2 * window, TABLE_ROWS)

    def _groups(
        self, numbers: Sequence[int], rows_per_piece: int, rows_max: int
    ) -> Iterator[tuple[Sequence[int], bool]]:
        start, stop = numbers[0], numbers[-1] + 1
        chosen = numbers_of(numbers) - start
        rows = column_of(self.row_counts[start:stop], np.uint32)[chosen].astype(np.int64)
        positions = column_of(self.positions[start:stop], np.int64)
        # The index may grow at this moment; the last frame then only seems to be larger.
        end = self.positions[stop] if stop < self.frame_count else self.end_position
        sizes = (np.append(positions[1:], end) - positions)[chosen]
        small = are_small(rows, sizes, rows_per_piece)
        rows, sizes = rows.cumsum(), sizes.cumsum()
        first, count = 0, len(chosen)
        for other in (*np.flatnonzero(~small).tolist(), count):
            while first < other:
                last = np.searchsorted(rows, rows[first] + rows_max)
                most = np.searchsorted(sizes, sizes[first] + TABLE_BYTES)
                end = max(first + 1, min(int(last), int(most), first + TABLE_FRAMES, other))
                # A table has a fixed cost, so a single frame with few streams is read by itself.
                yield numbers[first:end], end - first > 1 or rows_per_piece <= SMALL_PIECE
                first, rows_max = end, min(2 * rows_max, TABLE_ROWS)
            if other < count:
                yield numbers[other : other + 1], False
                first = other + 1

    def summary(self) -> SegmentSummary:
        """Return the totals."""
        return SegmentSummary(
            first_serial=self.first_serial,
            next_serial=self.next_serial,
            end_position=self.end_position,
            frame_count=self.frame_count,
        )


def encode_index(
    index: SegmentIndex,
    *,
    structure: bytes,
    producers: bytes,
    revision: int = 0,
    parts: Mapping[int, bytes] = MappingProxyType({}),
) -> bytes:
    """Build the index file of a segment that accepts no more frames.

    `revision` is that of the segment. Only the index of a compacted segment has parts.
    """
    postings = array("I")
    streams = bytearray()
    for stream_id in sorted(index.stream_rows):
        frames = index.frames_of(stream_id)
        streams += _STREAM.pack(stream_id, index.stream_rows[stream_id], len(postings), len(frames))
        postings.extend(frames)
    assert revision or not parts
    content = [
        bytes(memoryview(array("Q", index.positions))),
        bytes(memoryview(array("Q", index.serials))),
        bytes(memoryview(array("q", index.first_times))),
        bytes(memoryview(array("q", index.last_times))),
        bytes(streams),
        bytes(memoryview(array("I", index.row_counts))),
        bytes(memoryview(postings)),
        structure,
        producers,
        *(_PART.pack(part, len(data)) + data for part, data in parts.items()),
    ]
    if words := index.words.to_bytes():
        content.append(_PART.pack(WORDS, len(words)) + words)
    header = _HEADER.pack(
        MAGIC,
        0,
        COMPACTED_VERSION if revision else VERSION,
        index.frame_count,
        len(index.stream_rows),
        len(postings),
        index.first_serial,
        index.next_serial,
        index.end_position,
        len(structure),
        len(producers),
    )
    head = _HEADER_CRC.pack(_header_crc(header, revision), revision)
    data = b"".join([header, head, *content])
    return data[:4] + crc32c(data[8:]).to_bytes(4, "little") + data[8:]


def decode_summary(header: bytes, path: PurePath) -> SegmentSummary:
    """Read the totals from the first SUMMARY_BYTES of an index file. Raises: CorruptionError."""
    if len(header) < SUMMARY_BYTES:
        raise CorruptionError("the index is too short", path=path)
    fields = _HEADER.unpack_from(header)
    if fields[0] != MAGIC or fields[2] not in (VERSION, COMPACTED_VERSION):
        raise CorruptionError("the file is not an index, or has an unknown version", path=path)
    crc, revision = _HEADER_CRC.unpack_from(header, _HEADER.size)
    matches = crc == _header_crc(header[: _HEADER.size], revision)
    if not matches or (revision > 0) != (fields[2] == COMPACTED_VERSION):
        raise CorruptionError("the header of the index does not match its checksum", path=path)
    return SegmentSummary(
        first_serial=fields[6],
        next_serial=fields[7],
        end_position=fields[8],
        frame_count=fields[3],
        revision=revision,
    )


def _header_crc(header: bytes, revision: int) -> int:
    crc: int = crc32c(header[8:])
    return crc32c(revision.to_bytes(4, "little"), crc) if revision else crc


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedIndex:
    """A decoded index file: the index, and structure and producers at the end of the segment."""

    index: SegmentIndex
    structure: memoryview
    producers: memoryview
    revision: int
    parts: Mapping[int, memoryview]


def decode_index(view: memoryview, path: PurePath) -> SealedIndex:
    """Check and open a mapped index file; its columns stay mapped. Raises: CorruptionError."""
    summary = decode_summary(bytes(view[:SUMMARY_BYTES]), path)
    fields = _HEADER.unpack_from(view)
    if crc32c(view[8:]) != fields[1]:
        raise CorruptionError("the index does not match its checksum", path=path)
    frames, streams, postings = fields[3], fields[4], fields[5]
    structure_bytes, producers_bytes = fields[9], fields[10]
    expected = (
        SUMMARY_BYTES
        + frames * 36
        + streams * _STREAM.size
        + postings * 4
        + structure_bytes
        + producers_bytes
    )
    if len(view) < expected:
        raise CorruptionError(f"the index must have {expected} bytes, found {len(view)}", path=path)
    cut = _Cutter(view, SUMMARY_BYTES)
    index = SegmentIndex(first_serial=summary.first_serial, end_position=summary.end_position)
    index.positions = cut.take(frames * 8).cast("Q")
    index.serials = cut.take(frames * 8).cast("Q")
    index.first_times = cut.take(frames * 8).cast("q")
    index.last_times = cut.take(frames * 8).cast("q")
    table = cut.take(streams * _STREAM.size)
    index.row_counts = cut.take(frames * 4).cast("I")
    numbers = cut.take(postings * 4).cast("I")
    for stream_id, rows, first, count in _STREAM.iter_unpack(table):
        index.set_frames(stream_id, numbers[first : first + count], rows)
    index.verified = bytearray(frames)
    index.next_serial = summary.next_serial
    index.frame_count = frames
    found = SealedIndex(
        index=index,
        structure=cut.take(structure_bytes),
        producers=cut.take(producers_bytes),
        revision=summary.revision,
        parts=_decode_parts(view[expected:], path),
    )
    try:
        index.words = WordIndex.from_bytes(found.parts.get(WORDS, view[:0]))
    except ValueError as exc:
        raise CorruptionError(str(exc), path=path) from exc
    if index.words.count > frames:
        raise CorruptionError("the index has words of frames that do not exist", path=path)
    return found


def _decode_parts(view: memoryview, path: PurePath) -> dict[int, memoryview]:
    parts: dict[int, memoryview] = {}
    while len(view):
        length = _PART.unpack_from(view)[1] if len(view) >= _PART.size else 0
        if not length or len(view) < _PART.size + length:
            raise CorruptionError("the last part of the index is cut short", path=path)
        parts[_PART.unpack_from(view)[0]] = view[_PART.size : _PART.size + length]
        view = view[_PART.size + length :]
    return parts


class _Cutter:
    """Returns consecutive pieces of a view."""

    def __init__(self, view: memoryview, position: int) -> None:
        self._view = view
        self._position = position

    def take(self, length: int) -> memoryview:
        piece = self._view[self._position : self._position + length]
        self._position += length
        return piece
