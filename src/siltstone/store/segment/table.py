"""The headers and sections of many small frames of a segment, as arrays with one entry a frame.

A broker writes frames of one or two rows. To open each of them as Python objects costs far more
than to copy its rows. Here the headers of thousands of frames are read with a few calls of numpy,
and each row is a pair of numbers: its frame, and its place in the frame. `frame_rows.py` makes
columns of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import numpy as np

# np.unique imports this module on its first call, which takes 50 ms: not while a client waits.
import numpy.ma
import pyarrow as pa
from numpy.typing import NDArray

from siltstone.store.segment.frame import (
    DIRECTORY,
    EDGES,
    FLAGS,
    HEADER_BYTES,
    MAGIC,
    PLAIN_ROWS,
    SECTION,
    SECTION_MAX,
    SMALL_BYTES,
    SMALL_ROW_BYTES,
    SMALL_ROWS,
    STREAMS,
    TOPICS,
    count_trusted,
    count_whole,
)

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

# A head is read as words of 8 bytes: a header, and the table of sections.
_HEADER_WORDS: Final = HEADER_BYTES // 8
_HEAD_WORDS: Final = _HEADER_WORDS + SECTION_MAX
_LOW: Final = 0xFFFF_FFFF
_MAGIC: Final = int.from_bytes(MAGIC, "little")
# Arrow's offsets have 31 bits, and are relative to the first frame. Arrow also reserves memory by
# the distance from the first value to the last one.
_OFFSET_MAX: Final = (1 << 31) - 1
_REACH_BYTES: Final = 1 << 26

SMALL_PIECE: Final = 256
TABLE_ROWS: Final = 1 << 16
# The heads of this many frames stay in the cache of the processor while they are read.
TABLE_FRAMES: Final = 1 << 13
TABLE_BYTES: Final = 1 << 25


class MappedNumbers:
    """The bytes of a map as arrays of integers of each width; nothing is copied."""

    def __init__(self, view: memoryview) -> None:
        size = len(view) & ~7
        self.u8 = np.frombuffer(view, np.uint8, size)
        self.i16 = np.frombuffer(view, np.dtype("<i2"), size // 2)
        self.i32 = np.frombuffer(view, np.dtype("<i4"), size // 4)
        self.i64 = np.frombuffer(view, np.dtype("<i8"), size // 8)


class FrameTable:
    """Plain frames of one segment that hold rows, in order.

    `offsets`, `lengths` and `widths` are indexed by section id and frame. An offset is a position
    in the segment, or -1 for an absent section.
    """

    # Whether the serial of a row is the first serial of its frame plus its number.
    implies_serials = True

    def __init__(self, view: memoryview, buffer: pa.Buffer, positions: Ints, limit: int) -> None:
        """Read the heads of the frames at these positions, up to the first that does not belong
        into a table: a damaged, compressed or unknown one, or one that ends behind the limit. The
        caller opens that one by itself.
        """
        self.numbers = MappedNumbers(view)
        self.view = view
        self.buffer = buffer
        self._directory: Directory | None = None
        self._read_heads(positions, limit)

    def __len__(self) -> int:
        """Return the number of frames."""
        return len(self.positions)

    def _read_heads(self, positions: Ints, limit: int) -> None:
        """Copy the heads of all frames at once: reading each field from the map costs far more."""
        words = (positions >> 3)[:, None] + np.arange(_HEAD_WORDS)
        heads = self.numbers.i64.take(words, mode="clip").T
        kinds = heads[1] >> 32 & 0xFFFF
        lengths = heads[1] & _LOW
        fits = (
            (heads[0] & _LOW == _MAGIC)
            & (kinds == PLAIN_ROWS)
            & (lengths >= HEADER_BYTES)
            & (lengths & 7 == 0)
            & (positions + lengths <= limit)
            & (positions - positions[0] < _REACH_BYTES)
            & (positions + lengths - positions[0] <= _OFFSET_MAX)
        )
        self.positions = positions
        self.ends = positions + lengths
        self.crcs = heads[0] >> 32 & _LOW
        self.first_serials = heads[2]
        self.row_counts = heads[3] & _LOW
        self.first_times = heads[4]
        self.last_times = heads[5]
        self.head_crcs = heads[7] >> 32 & _LOW
        self._read_sections(heads[1] >> 48 & 0xFFFF, heads[_HEADER_WORDS:], fits)

    def _read_sections(self, held: Ints, entries: Ints, fits: Flags) -> None:
        count = len(self.positions)
        shape = (SECTION_MAX + 1, count)
        self.offsets = np.full(shape, -1, np.int64)
        self.lengths = np.zeros(shape, np.int64)
        self.widths = np.zeros(shape, np.uint8)
        place = self.positions + HEADER_BYTES + SECTION.size * held
        fits &= held <= SECTION_MAX
        leads = np.ones(count, np.bool_)
        self.head_ends = place.copy()
        for number in range(min(int(held.max(initial=0)), SECTION_MAX)):
            entry = np.where(held > number, entries[number], 0)
            ids = entry & 0xFFFF
            lengths = entry >> 32 & _LOW
            first = ids[0]
            uniform = (ids == first).all()
            for section_id in [int(first)] if uniform else np.unique(ids).tolist():
                if section_id == 0 or section_id > SECTION_MAX:
                    fits &= (ids != section_id) | (held <= number)
                    continue
                same = ids == section_id
                fits &= ~same | (self.offsets[section_id] < 0)
                np.copyto(self.offsets[section_id], place, where=same)
                np.copyto(self.lengths[section_id], lengths, where=same)
                widths = (entry >> 16 & 0xFFFF).astype(np.uint8)
                np.copyto(self.widths[section_id], widths, where=same)
            place += (lengths + 7) & ~7
            leads &= (ids <= EDGES) & (held > number)
            np.copyto(self.head_ends, place, where=leads)
        fits &= place <= self.ends
        fits &= self.lengths[STREAMS] % DIRECTORY.size == 0
        self.keep_first(fits)

    def keep_first(self, fits: Flags) -> None:
        """Cut the table before the first frame that does not fit."""
        if not fits.all():
            self.cut(int(fits.argmin()))

    def cut(self, count: int) -> None:
        """Keep the first `count` frames."""
        self._directory = None
        self.positions = self.positions[:count]
        self.ends = self.ends[:count]
        self.crcs = self.crcs[:count]
        self.first_serials = self.first_serials[:count]
        self.row_counts = self.row_counts[:count]
        self.first_times = self.first_times[:count]
        self.last_times = self.last_times[:count]
        self.head_crcs = self.head_crcs[:count]
        self.head_ends = self.head_ends[:count]
        self.offsets = self.offsets[:, :count]
        self.lengths = self.lengths[:, :count]
        self.widths = self.widths[:, :count]

    def keep_checked(self, seed: int, checked: Sequence[int] = ()) -> None:
        """Check the checksums of all frames; cut the table before the first that does not match.

        A frame with a number that is not 0 in `checked` is not checked again.
        """
        whole = count_whole(
            self.view,
            self.positions.tolist(),
            self.ends.tolist(),
            self.crcs.tolist(),
            list(checked),
            seed,
        )
        if whole < len(self):
            self.cut(whole)

    def keep_trusted(self, seed: int) -> None:
        """Check the heads of all frames; cut the table before the first that does not match.

        A frame without a checksum of its head is checked as a whole.
        """
        trusted = count_trusted(
            self.view,
            self.positions.tolist(),
            self.head_ends.tolist(),
            self.head_crcs.tolist(),
            self.ends.tolist(),
            self.crcs.tolist(),
            seed,
        )
        if trusted < len(self):
            self.cut(trusted)

    def keep_limits(self) -> None:
        """Cut the table where it has more rows or bytes than are read at once."""
        sizes = self.ends - self.positions
        self.keep_first((self.row_counts.cumsum() <= TABLE_ROWS) & (sizes.cumsum() <= TABLE_BYTES))

    def keep_following(self, serial: int) -> None:
        """Cut the table where serials are missing or used twice, from `serial` on."""
        ends = self.first_serials + self.row_counts
        self.keep_first(self.first_serials == np.concatenate([[serial], ends])[: len(self)])

    def keep_rising(self, serial: int) -> None:
        """Cut the table before a frame with serials of the frames before it, or below `serial`."""
        ends = self.first_serials + self.row_counts
        self.keep_first(self.first_serials >= np.concatenate([[serial], ends])[: len(self)])

    def sections(self, section_id: int) -> list[bytes]:
        """Return this section of the frames that have it."""
        return self.part_sections(section_id, 0, len(self))

    def part_sections(self, section_id: int, first: int, last: int) -> list[bytes]:
        """Return this section of those frames from `first` to `last` that have it."""
        starts = self.offsets[section_id][first:last]
        held = starts >= 0
        stops = starts + self.lengths[section_id][first:last]
        return [
            bytes(self.view[start:stop])
            for start, stop in zip(starts[held].tolist(), stops[held].tolist(), strict=True)
        ]

    def directory(self) -> Directory:
        """Return the directories of all frames."""
        if self._directory is None:
            self._directory = Directory(self)
        return self._directory

    def without_stream(self, stream_id: int) -> int | None:
        """Return the position of the first frame without rows of a stream, or None."""
        directory = self.directory()
        held = np.zeros(len(self), np.bool_)
        held[directory.frames[directory.stream_ids == np.uint64(stream_id)]] = True
        return None if held.all() else int(self.positions[held.argmin()])

    def serials(self, frames: Ints, items: Ints) -> Ints:
        """Return the serial of each row, which is a pair of a frame and a number."""
        found: Ints = self.first_serials[frames] + items
        return found

    def serial_order(self, items: Ints) -> Ints:
        """Return in which order the serials of rows rise; they are in order of their frames."""
        return np.arange(len(items))

    def sorted_topics(self) -> NDArray[Any] | None:
        """Return the number of each row's topic if this is one frame that is sorted by them."""
        return None

    def topic_bytes_max(self) -> int:
        """Return a size that no topic exceeds."""
        return int(self.lengths[TOPICS].max(initial=0))

    def first_flags(self) -> NDArray[np.uint8]:
        """Return the flags of the first row of each frame."""
        places = self.offsets[FLAGS]
        found: NDArray[np.uint8] = self.numbers.u8[np.maximum(places, 0)]
        found[places < 0] = 0
        return found

    def stream_end(self, frame: int, stream_id: int) -> int:
        """Return the serial after the last row of a stream in a frame."""
        directory = self.directory()
        entries = np.flatnonzero(
            (directory.frames == frame) & (directory.stream_ids == np.uint64(stream_id))
        )
        if not len(entries):
            return int(self.first_serials[frame])
        last = entries[-1]
        end = int(directory.first_rows[last] + directory.row_counts[last])
        return int(self.first_serials[frame]) + end

    def integers(self, section_id: int, frames: Ints, items: Ints, *, signed: bool) -> Ints:
        """Return for each pair of a frame and a number an integer of a section.

        `signed` tells whether an integer of one byte has a sign; wider ones have.
        """
        starts = self.offsets[section_id][frames]
        widths = self.widths[section_id]
        found = np.empty(len(frames), np.int64)
        for width in np.unique(widths):
            same = slice(None) if (widths == width).all() else (widths == width)[frames]
            places = starts[same] + items[same] * int(width)
            found[same] = self._read(places, int(width), signed=signed)
        return found

    def _read(self, places: Ints, width: int, *, signed: bool) -> Any:
        numbers = self.numbers
        if width == 8:
            return numbers.i64[places >> 3]
        if width == 4:
            return numbers.i32[places >> 2]
        if width == 2:
            return numbers.i16[places >> 1]
        return numbers.u8[places].view(np.int8) if signed else numbers.u8[places]

    def texts(
        self, offsets_id: int, data_id: int, frames: Ints, items: Ints, kind: pa.DataType
    ) -> pa.Array:
        """Return for each pair of a frame and a number a text of a section; absent ones are empty.

        Raises: OverflowError if they are too large for one array.
        """
        bounds = self.offsets[offsets_id][frames] >> 2
        held = bounds >= 0
        data = self.offsets[data_id][frames]
        numbers = self.numbers.i32
        if held.all():
            starts = data + numbers[bounds + items]
            stops = data + numbers[bounds + items + 1]
        else:
            starts, stops = np.zeros((2, len(frames)), np.int64)
            places = bounds[held] + items[held]
            starts[held] = data[held] + numbers[places]
            stops[held] = data[held] + numbers[places + 1]
        return self.ranges(starts, stops, kind)

    def ranges(self, starts: Ints, stops: Ints, kind: pa.DataType) -> pa.Array:
        """Return ranges of the segment as an array of texts.

        Arrow copies the texts: they are every second entry of an array over the map, whose other
        entries are what lies between them.
        """
        count = len(starts)
        if int((stops - starts).sum()) > _OFFSET_MAX:
            raise OverflowError("the texts are too large for one array")
        first = int(starts[starts > 0].min(initial=len(self.numbers.u8)))
        bounds = np.empty(2 * count + 1, np.int32)
        bounds[0 : 2 * count : 2] = np.maximum(starts - first, 0)
        bounds[1 : 2 * count : 2] = np.maximum(stops - first, 0)
        # Arrow checks only that the last offset is not before the first one.
        bounds[2 * count] = bounds[: 2 * count].max(initial=0)
        sparse = pa.Array.from_buffers(
            kind, 2 * count, [None, pa.py_buffer(bounds), self.buffer.slice(first)]
        )
        return sparse.take(array_of(np.arange(0, 2 * count, 2, dtype=np.int32), pa.int32()))


class Directory:
    """The streams of all frames of a table, one entry for each stream of a frame, in order."""

    def __init__(self, table: FrameTable) -> None:
        counts = table.lengths[STREAMS] // DIRECTORY.size
        self.frames, numbers = spread(counts)
        places = table.offsets[STREAMS][self.frames] + DIRECTORY.size * numbers
        words = table.numbers.i32
        self.stream_ids = table.numbers.i64[places >> 3].view(np.uint64)
        at = places >> 2
        self.first_rows = words[at + 2].astype(np.int64)
        self.row_counts = words[at + 3].astype(np.int64)
        self.first_topics = words[at + 4].astype(np.int64)
        self.topic_counts = words[at + 5].astype(np.int64)


def spread(counts: Ints) -> tuple[Ints, Ints]:
    """Return for each of counts[0] + counts[1] + … items the number of its group, and its number in
    the group.
    """
    groups = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    return groups, np.arange(len(groups)) - np.repeat(ends - counts, counts)


def array_of(numbers: NDArray[Any], kind: pa.DataType) -> pa.Array:
    """Return a numpy array as an Arrow array with the same bytes."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])


def are_small(rows: Ints, sizes: Ints, rows_per_piece: int) -> Flags:
    """Return which frames are small for a reader; `rows_per_piece` is its rows per stream."""
    small: Flags = rows <= (SMALL_ROWS if rows_per_piece > SMALL_PIECE else TABLE_ROWS)
    return small & (sizes <= np.maximum(SMALL_BYTES, SMALL_ROW_BYTES * rows))


def are_plain(view: memoryview, positions: Ints) -> Flags:
    """Return which of the frames at these positions are plain rows frames, as they say."""
    words = np.frombuffer(view, np.dtype("<i8"), len(view) // 8)
    plain: Flags = words[(positions >> 3) + 1] >> 32 & 0xFFFF == PLAIN_ROWS
    return plain


def numbers_of(numbers: Sequence[int]) -> Ints:
    """Return the numbers of frames as numpy's; a range costs nothing for each number."""
    if isinstance(numbers, range):
        return np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
    return np.asarray(numbers, np.int64)


def column_of(numbers: Sequence[int], kind: Any) -> NDArray[Any]:
    """Return a column of an index, or a part of one, as numpy's."""
    found: NDArray[Any] = np.frombuffer(cast("Any", numbers), kind)
    return found
