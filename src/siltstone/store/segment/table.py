"""The headers and sections of many small frames of a segment, as arrays with one entry a frame.

A broker writes frames of one or two rows. Opening each of them as Python objects costs far more
than copying its rows. Here the headers of thousands of frames are read with a few calls of numpy,
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
    FORM_MAX,
    HEADER_BYTES,
    MAGIC,
    PACKED_HEADER_BYTES,
    PACKED_ROWS,
    PACKED_ROWS_MAX,
    PLAIN_ROWS,
    PRODUCERS,
    PROPERTIES,
    PROPERTY_OFFSETS,
    PUBLISHER_INDEX,
    PUBLISHER_OFFSETS,
    PUBLISHERS,
    SECTION,
    SECTION_MAX,
    SMALL_BYTES,
    SMALL_ROW_BYTES,
    SMALL_ROWS,
    STREAMS,
    TIMESTAMPS,
    TOPIC_INDEX,
    TOPIC_OFFSETS,
    TOPICS,
    VALUE_OFFSETS,
    VALUES,
    WIDE,
    WITH_FLAGS,
    WITH_PROPERTIES,
    WITH_STATE,
    count_trusted,
    count_whole,
)

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

# A head is read as words of 8 bytes: a header, and the table of sections.
_HEADER_WORDS: Final = HEADER_BYTES // 8
_HEAD_WORDS: Final = _HEADER_WORDS + SECTION_MAX
# The words of the header and the form of a packed frame.
_PACKED_WORDS: Final = 5
_FORM_BYTES: Final = 4
# Sections of packed frames that others do not have: the bytes of edges and producers, and where
# rows and topics of the streams end.
_STATE_SIZES: Final = SECTION_MAX + 1
_STREAM_ENDS: Final = SECTION_MAX + 2
_BYTE: Final = 0xFF
_OFFSETS_WIDTH: Final = 4
_ID_BYTES: Final = 8
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
        self.u16 = np.frombuffer(view, np.dtype("<u2"), size // 2)
        self.i16 = self.u16.view(np.dtype("<i2"))
        self.i32 = np.frombuffer(view, np.dtype("<i4"), size // 4)
        self.i64 = np.frombuffer(view, np.dtype("<i8"), size // 8)


class Heads:
    """The headers of frames of one kind, and where their sections are.

    `offsets`, `lengths` and `widths` are indexed by section id and frame. An offset is a position
    in the segment, or -1 for an absent section. A packed frame has narrow ends instead of offsets.
    `stream_ends` is the position of the ends of its streams, or -1 if it has only one stream.
    """

    def __init__(self, words: Ints) -> None:
        count = len(words[0])
        shape = (_STREAM_ENDS + 1, count)
        self.crcs = words[0] >> 32 & _LOW
        self.first_serials = words[2]
        self.row_counts = words[3] & _LOW
        self.first_times = words[4]
        self.last_times = words[5]
        self.head_crcs = words[7] >> 32 & _LOW
        self.head_ends = np.zeros(count, np.int64)
        self.offsets = np.full(shape, -1, np.int64)
        self.lengths = np.zeros(shape, np.int64)
        self.widths = np.zeros(shape, np.uint8)
        self.stream_counts = np.zeros(count, np.int64)
        self.topic_counts = np.zeros(count, np.int64)
        self.stream_ends = np.full(count, -1, np.int64)
        self.end_widths = np.full(count, _OFFSETS_WIDTH, np.int64)
        self.fits = np.ones(count, np.bool_)


# The columns of Heads with one entry a frame, and those with one a section and frame.
_BY_FRAME: Final = (
    "crcs",
    "first_serials",
    "row_counts",
    "first_times",
    "last_times",
    "head_crcs",
    "head_ends",
    "stream_counts",
    "topic_counts",
    "stream_ends",
    "end_widths",
    "fits",
)
_BY_SECTION: Final = ("offsets", "lengths", "widths")


def _plain_heads(numbers: MappedNumbers, positions: Ints, ends: Ints) -> Heads:
    """Read headers and tables of sections of plain frames."""
    # Copy the heads of all frames at once: reading each field from the map costs far more.
    words = (positions >> 3)[:, None] + np.arange(_HEAD_WORDS)
    words = numbers.i64.take(words, mode="clip").T
    heads = Heads(words)
    held, entries, fits = words[1] >> 48 & 0xFFFF, words[_HEADER_WORDS:], heads.fits
    place = positions + HEADER_BYTES + SECTION.size * held
    fits &= held <= SECTION_MAX
    leads = np.ones(len(positions), np.bool_)
    heads.head_ends = place.copy()
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
            fits &= ~same | (heads.offsets[section_id] < 0)
            np.copyto(heads.offsets[section_id], place, where=same)
            np.copyto(heads.lengths[section_id], lengths, where=same)
            widths = (entry >> 16 & 0xFFFF).astype(np.uint8)
            np.copyto(heads.widths[section_id], widths, where=same)
        place += (lengths + 7) & ~7
        leads &= (ids <= EDGES) & (held > number)
        np.copyto(heads.head_ends, place, where=leads)
    fits &= place <= ends
    fits &= heads.lengths[STREAMS] % DIRECTORY.size == 0
    heads.stream_counts = heads.lengths[STREAMS] // DIRECTORY.size
    return heads


def _packed_heads(numbers: MappedNumbers, positions: Ints, ends: Ints) -> Heads:
    """Read headers and forms of packed frames, and compute where their sections are."""
    read = (positions >> 3) + np.arange(_PACKED_WORDS)[:, None]
    words = np.zeros((_HEADER_WORDS, len(positions)), np.int64)
    words[:_PACKED_WORDS] = numbers.i64.take(read, mode="clip")
    heads = Heads(words)
    rows, streams = words[1] >> 48 & _BYTE, words[1] >> 56 & _BYTE
    form, topics, names = (words[4] >> shift & _BYTE for shift in (32, 48, 56))
    heads.row_counts, heads.stream_counts, heads.topic_counts = rows, streams, topics
    heads.first_times = words[3]
    heads.last_times = words[3] + rows - 1
    heads.head_crcs = np.zeros(len(positions), np.int64)
    heads.end_widths = width = 1 + (form & WIDE)
    place = positions + PACKED_HEADER_BYTES + _FORM_BYTES
    several, with_flags = streams > 1, form & WITH_FLAGS != 0
    place = _place_sections(
        heads,
        place,
        (
            (STREAMS, _ID_BYTES, streams, None),
            (_STATE_SIZES, 1, _ID_BYTES, form & WITH_STATE != 0),
            (TOPIC_OFFSETS, width, topics, None),
            (VALUE_OFFSETS, width, rows, None),
            (PUBLISHER_OFFSETS, width, names, None),
            (PROPERTY_OFFSETS, width, rows, form & WITH_PROPERTIES != 0),
            (_STREAM_ENDS, 2, streams, several),
            (TIMESTAMPS, 1, rows, several),
            (TOPIC_INDEX, 1, rows, (topics > 1) & (topics < rows)),
            (PUBLISHER_INDEX, 1, rows, names > 1),
            (FLAGS, 1, rows, with_flags),
        ),
    )
    # The flags of all rows follow the form.
    shared = positions + PACKED_HEADER_BYTES + 1
    heads.offsets[FLAGS] = np.where(with_flags, heads.offsets[FLAGS], shared)
    heads.lengths[FLAGS] = np.where(with_flags, rows, 1)
    heads.stream_ends = heads.offsets[_STREAM_ENDS]
    place = _place_texts(heads, place, numbers)
    heads.fits = (rows <= PACKED_ROWS_MAX) & (form <= FORM_MAX) & (place <= ends)
    heads.fits &= (streams > 0) & (streams <= topics) & (topics <= rows)
    return heads


def _place_sections(
    heads: Heads, place: Ints, sections: Sequence[tuple[int, Any, Any, Flags | None]]
) -> Ints:
    """Set where the sections of packed frames are; return where the last one ends.

    A section has an id, the width of an item, the number of items, and which frames have it.
    """
    for section_id, width, count, held in sections:
        if held is not None and not held.any():
            continue
        length = width * count if held is None else np.where(held, width * count, 0)
        heads.lengths[section_id] = length
        heads.widths[section_id] = width
        heads.offsets[section_id] = place if held is None else np.where(held, place, -1)
        place = place + length
    return place


def _place_texts(heads: Heads, place: Ints, numbers: MappedNumbers) -> Ints:
    """Set where the texts of packed frames are, then edges and producers; return where they end."""
    for offsets_id, data_id in (
        (TOPIC_OFFSETS, TOPICS),
        (VALUE_OFFSETS, VALUES),
        (PUBLISHER_OFFSETS, PUBLISHERS),
        (PROPERTY_OFFSETS, PROPERTIES),
    ):
        held = heads.lengths[offsets_id] > 0
        if not held.any():
            continue
        last = heads.offsets[offsets_id] + heads.lengths[offsets_id] - heads.end_widths
        length = np.where(held, _ends_at(numbers, last, heads.end_widths), 0)
        heads.offsets[data_id] = np.where(held, place, -1)
        heads.lengths[data_id] = length
        place = place + length
    sizes = heads.offsets[_STATE_SIZES]
    if (sizes >= 0).any():
        both = np.where(sizes >= 0, numbers.i64.take(sizes >> 3, mode="clip"), 0)
        for section_id, length in ((EDGES, both & _LOW), (PRODUCERS, both >> 32 & _LOW)):
            heads.offsets[section_id] = np.where(length > 0, place, -1)
            heads.lengths[section_id] = length
            place = place + length
    return place


def _ends_at(numbers: MappedNumbers, places: Ints, widths: Ints) -> Ints:
    """Return the ends at these positions, of one or two bytes each."""
    found = numbers.u8.take(places, mode="clip").astype(np.int64)
    if (widths > 1).any():
        wide = numbers.u16.take(places >> 1, mode="clip")
        found = np.where(widths > 1, wide, found)
    return found


class FrameTable:
    """Plain and packed frames of one segment that hold rows, in order.

    The columns are those of `Heads`.
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
        numbers = self.numbers
        first = numbers.i64.take(positions >> 3, mode="clip")
        second = numbers.i64.take((positions >> 3) + 1, mode="clip")
        kinds = second >> 32 & 0xFFFF
        lengths = second & _LOW
        ends = positions + lengths
        packed = kinds == PACKED_ROWS
        fits = (
            (first & _LOW == _MAGIC)
            & ((kinds == PLAIN_ROWS) | packed)
            & (lengths >= HEADER_BYTES)
            & (lengths & 7 == 0)
            & (ends <= limit)
            & (positions - positions[0] < _REACH_BYTES)
            & (ends - positions[0] <= _OFFSET_MAX)
        )
        if packed.all():
            heads = _packed_heads(numbers, positions, ends)
        elif not packed.any():
            heads = _plain_heads(numbers, positions, ends)
        else:
            heads = Heads(np.zeros((_HEADER_WORDS, len(positions)), np.int64))
            for some, read in ((packed, _packed_heads), (~packed, _plain_heads)):
                part = read(numbers, positions[some], ends[some])
                for name in _BY_FRAME:
                    getattr(heads, name)[some] = getattr(part, name)
                for name in _BY_SECTION:
                    getattr(heads, name)[:, some] = getattr(part, name)
        self.positions = positions
        self.ends = ends
        self.crcs = heads.crcs
        self.first_serials = heads.first_serials
        self.row_counts = heads.row_counts
        self.first_times = heads.first_times
        self.last_times = heads.last_times
        self.head_crcs = heads.head_crcs
        self.head_ends = heads.head_ends
        self.offsets = heads.offsets
        self.lengths = heads.lengths
        self.widths = heads.widths
        self.stream_counts = heads.stream_counts
        self.topic_counts = heads.topic_counts
        self.stream_ends = heads.stream_ends
        self.end_widths = heads.end_widths
        self.keep_first(fits & heads.fits)

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
        self.stream_counts = self.stream_counts[:count]
        self.topic_counts = self.topic_counts[:count]
        self.stream_ends = self.stream_ends[:count]
        self.end_widths = self.end_widths[:count]
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

    def times(self, frames: Ints, items: Ints) -> Ints:
        """Return the timestamp of each row, in µs."""
        has_times = self.offsets[TIMESTAMPS] >= 0
        if not has_times.all():
            # In packed frames of one stream they follow one another.
            whole: Ints = self.first_times[frames] + items
            held = has_times[frames]
            if held.any():
                whole[held] = self._stored_times(frames[held], items[held])
            return whole
        return self._stored_times(frames, items)

    def _stored_times(self, frames: Ints, items: Ints) -> Ints:
        found = self.integers(TIMESTAMPS, frames, items, signed=False)
        offsets = self.widths[TIMESTAMPS] != _ID_BYTES
        if offsets.any():
            found += np.where(offsets, self.first_times, 0)[frames]
        return found

    def topic_numbers(self, frames: Ints, items: Ints) -> Ints:
        """Return the number of each row's topic in its frame."""
        has_numbers = self.offsets[TOPIC_INDEX] >= 0
        if has_numbers.all():
            return self.integers(TOPIC_INDEX, frames, items, signed=True)
        # The rows of a packed frame have one topic, or each its own.
        held = has_numbers[frames]
        found = np.where(self.topic_counts[frames] > 1, items, 0)
        if held.any():
            found[held] = self.integers(TOPIC_INDEX, frames[held], items[held], signed=True)
        return found

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
        starts, stops = self.bounds(offsets_id, frames, items)
        data = self.offsets[data_id][frames]
        starts += data
        stops += data
        return self.ranges(starts, stops, kind)

    def bounds(self, offsets_id: int, frames: Ints, items: Ints) -> tuple[Ints, Ints]:
        """Return for each pair of a frame and a number where its text begins and ends, counted from
        the first text of the frame.
        """
        widths = self.end_widths
        if not len(widths) or (widths == widths[0]).all():
            width = int(widths[0]) if len(widths) else _OFFSETS_WIDTH
            return self._bounds(width, self.offsets[offsets_id][frames], items)
        starts, stops = np.zeros((2, len(frames)), np.int64)
        for width in np.unique(widths).tolist():
            same = (widths == width)[frames]
            places = self.offsets[offsets_id][frames[same]]
            starts[same], stops[same] = self._bounds(width, places, items[same])
        return starts, stops

    def _bounds(self, width: int, places: Ints, items: Ints) -> tuple[Ints, Ints]:
        """Return begins and ends of texts whose offsets, or ends, are at these positions."""
        held = places >= 0
        if not held.all():
            starts, stops = np.zeros((2, len(places)), np.int64)
            if held.any():
                starts[held], stops[held] = self._bounds(width, places[held], items[held])
            return starts, stops
        numbers = self.numbers
        if width == _OFFSETS_WIDTH:
            places = (places >> 2) + items
            return numbers.i32[places].astype(np.int64), numbers.i32[places + 1].astype(np.int64)
        ends = numbers.u8 if width == 1 else numbers.u16
        places = (places >> (width - 1)) + items
        stops = ends[places].astype(np.int64)
        later = items > 0
        if not later.any():
            return np.zeros(len(places), np.int64), stops
        return np.where(later, ends[places - 1], 0).astype(np.int64), stops

    def ranges(self, starts: Ints, stops: Ints, kind: pa.DataType) -> pa.Array:
        """Return ranges of the segment as an array of texts.

        Arrow copies the texts: they are every second entry of an array over the map, whose other
        entries are the bytes between them.
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
        self.frames, numbers = spread(table.stream_counts)
        packed = table.end_widths != _OFFSETS_WIDTH
        if not packed.any():
            self._read_plain(table, numbers)
        elif packed.all():
            self._read_packed(table, numbers)
        else:
            self._read_both(table, numbers, packed)

    def _read_plain(self, table: FrameTable, numbers: Ints) -> None:
        places = table.offsets[STREAMS][self.frames] + DIRECTORY.size * numbers
        words = table.numbers.i32
        self.stream_ids = table.numbers.i64[places >> 3].view(np.uint64)
        at = places >> 2
        self.first_rows = words[at + 2].astype(np.int64)
        self.row_counts = words[at + 3].astype(np.int64)
        self.first_topics = words[at + 4].astype(np.int64)
        self.topic_counts = words[at + 5].astype(np.int64)

    def _read_packed(self, table: FrameTable, numbers: Ints) -> None:
        frames = self.frames
        places = table.offsets[STREAMS][frames] + _ID_BYTES * numbers
        self.stream_ids = table.numbers.i64[places >> 3].view(np.uint64)
        self.first_rows = np.zeros(len(frames), np.int64)
        self.row_counts = table.row_counts[frames]
        self.first_topics = np.zeros(len(frames), np.int64)
        self.topic_counts = table.topic_counts[frames]
        ends = table.stream_ends[frames]
        several = ends >= 0
        if not several.any():
            return
        later = numbers[several] > 0
        places = ends[several] + numbers[several]
        for firsts, counts in (
            (self.first_rows, self.row_counts),
            (self.first_topics, self.topic_counts),
        ):
            starts = np.where(later, table.numbers.u8[places - 1], 0)
            firsts[several] = starts
            counts[several] = table.numbers.u8[places] - starts
            places = places + table.stream_counts[frames[several]]

    def _read_both(self, table: FrameTable, numbers: Ints, packed: Flags) -> None:
        """Read the directories of both kinds of frames, each by itself."""
        found = np.zeros((5, len(numbers)), np.int64)
        whole = self.frames
        of_packed = packed[whole]
        for some, read in ((of_packed, self._read_packed), (~of_packed, self._read_plain)):
            self.frames = whole[some]
            read(table, numbers[some])
            found[0][some] = self.stream_ids.view(np.int64)
            found[1][some] = self.first_rows
            found[2][some] = self.row_counts
            found[3][some] = self.first_topics
            found[4][some] = self.topic_counts
        self.frames = whole
        self.stream_ids = found[0].view(np.uint64)
        self.first_rows, self.row_counts, self.first_topics, self.topic_counts = found[1:]


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


def are_tabular(view: memoryview, positions: Ints) -> Flags:
    """Return which frames are plain or packed rows frames, as their headers say."""
    words = np.frombuffer(view, np.dtype("<i8"), len(view) // 8)
    kinds = words[(positions >> 3) + 1] >> 32 & 0xFFFF
    fits: Flags = (kinds == PLAIN_ROWS) | (kinds == PACKED_ROWS)
    return fits


def numbers_of(numbers: Sequence[int]) -> Ints:
    """Return the numbers of frames as numpy's; a range costs nothing for each number."""
    if isinstance(numbers, range):
        return np.arange(numbers.start, numbers.stop, numbers.step, dtype=np.int64)
    return np.asarray(numbers, np.int64)


def column_of(numbers: Sequence[int], kind: Any) -> NDArray[Any]:
    """Return a column of an index, or a part of one, as numpy's."""
    found: NDArray[Any] = np.frombuffer(cast("Any", numbers), kind)
    return found
