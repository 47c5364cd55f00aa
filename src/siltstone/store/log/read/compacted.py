"""A compacted frame, opened for reading as a table of one frame.

Its rows are sorted by stream, topic and serial, and a section has their serials. The body is stored
in compressed blocks. The first block, with everything but values and properties, is decompressed
when the frame is opened; a block of values when one of its values is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any, Final
from weakref import ref

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from siltstone.errors import CorruptionError
from siltstone.store.segment.frame import (
    BLOCKS,
    HEADER,
    HEADER_BYTES,
    MAGIC,
    PLAIN,
    ROWS,
    SERIALS,
    TOPIC_INDEX,
    TOPIC_OFFSETS,
    FrameFormatError,
    FrameHeader,
)
from siltstone.store.segment.segment import Segment
from siltstone.store.segment.table import FrameTable, Ints, array_of
from siltstone.store.segment.view import Blocks, FrameView, empty_strings

# Wider integers always have a sign, except serials.
_SHORT: Final = 1
# The most memory of open frames, and the most frames.
_OPEN_BYTES: Final = 1 << 26
_OPEN_MAX: Final = 1 << 8


class CompactedTable(FrameTable):
    """A table of one compacted frame."""

    def __init__(self, segment: Segment, position: int, header: FrameHeader) -> None:
        """Decompress the first block. The caller has checked the frame. Raises: CorruptionError."""
        # Keep no reference to the segment, which holds its open frames: only the garbage collector
        # would free such a cycle.
        self._path = segment.path
        self._place = position
        view = segment.view[position + HEADER_BYTES : position + header.length]
        try:
            self._blocks = Blocks(view, header.body_bytes)
            # Memory that is not written yet costs nothing.
            room = np.empty(HEADER_BYTES + header.body_bytes, np.uint8)
            whole = room.data
            self._body = whole[HEADER_BYTES:]
            self._missing = np.ones(len(self._blocks), np.bool_)
            whole[:HEADER_BYTES] = _plain_header(header)
            # The memory of the blocks that were decompressed so far.
            self.held_bytes = 0
            self._fill([0])
            super().__init__(whole, pa.py_buffer(whole), np.zeros(1, np.int64), len(whole))
        except FrameFormatError as exc:
            raise CorruptionError(str(exc), path=segment.path, offset=position) from exc
        if not len(self):
            raise CorruptionError(
                "the sections of the frame are invalid", path=segment.path, offset=position
            )
        self.implies_serials = bool(self.offsets[SERIALS][0] < 0)

    def serials(self, frames: Ints, items: Ints) -> Ints:
        """Return the serial of each row."""
        if self.implies_serials:
            return super().serials(frames, items)
        found: Ints = self._section(SERIALS, signed=False)[items].astype(np.int64)
        found += int(self.first_serials[0])
        return found

    def serial_order(self, items: Ints) -> Ints:
        """Return in which order the serials of these rows rise."""
        numbers = self._section(SERIALS, signed=False)
        if len(items) < len(numbers) or not (items[1:] > items[:-1]).all():
            # Numbers of 16 bits are sorted many times faster.
            return np.argsort(numbers[items], kind="stable")
        # All rows are wanted, and each number is in the section once.
        order = np.zeros(len(numbers), np.int64)
        order[numbers] = np.arange(len(numbers))
        return order

    def integers(self, section_id: int, frames: Ints, items: Ints, *, signed: bool) -> Ints:
        """Return for each row an integer of a section."""
        del frames
        found: Ints = self._section(section_id, signed=signed)[items].astype(np.int64)
        return found

    def sorted_topics(self) -> NDArray[Any]:
        """Return the number of each row's topic; the numbers rise."""
        return self._section(TOPIC_INDEX, signed=True)

    def topic_bytes_max(self) -> int:
        """Return the size of the longest topic."""
        return int(np.diff(self._section(TOPIC_OFFSETS, signed=True)).max(initial=0))

    def _section(self, section_id: int, *, signed: bool) -> NDArray[Any]:
        """Return a section as an array of numbers."""
        start, size = int(self.offsets[section_id][0]), int(self.lengths[section_id][0])
        width = int(self.widths[section_id][0])
        kind = f"<{'i' if signed or width > _SHORT else 'u'}{width}"
        if section_id == SERIALS:
            kind = f"<u{width}"
        found: NDArray[Any] = np.frombuffer(self.view[start : start + size], kind)
        return found

    def texts(
        self, offsets_id: int, data_id: int, frames: Ints, items: Ints, kind: pa.DataType
    ) -> pa.Array:
        """Return for each row a text of a section; the blocks of these texts are decompressed."""
        del frames
        if self.offsets[offsets_id][0] < 0:
            return empty_strings(kind, len(items))
        bounds = self._section(offsets_id, signed=True)
        first = int(self.offsets[data_id][0]) - HEADER_BYTES
        if self._missing.any() and first >= self._blocks.first:
            if len(items) == len(bounds) - 1:
                self._need(np.array([first]), np.array([first + int(bounds[-1])]))
            else:
                self._need(first + bounds[items], first + bounds[items + 1])
        buffers = [
            None,
            *(
                self.buffer.slice(int(self.offsets[part][0]), int(self.lengths[part][0]))
                for part in (offsets_id, data_id)
            ),
        ]
        whole = pa.Array.from_buffers(kind, len(bounds) - 1, buffers)
        return whole.take(array_of(items, pa.int64()))

    def stream_end(self, frame: int, stream_id: int) -> int:
        """Return the serial after the last row of the frame: no row of the stream follows in it."""
        del stream_id
        return int(self.first_serials[frame] + self.row_counts[frame])

    def _need(self, starts: Ints, stops: Ints) -> None:
        """Decompress the blocks of these ranges of the body. Raises: CorruptionError."""
        blocks = self._blocks
        held = (stops > starts) & (stops > blocks.first)
        if not held.any():
            return
        first = (np.maximum(starts[held] - blocks.first, 0) // blocks.size) + 1
        last = ((stops[held] - 1 - blocks.first) // blocks.size) + 1
        steps = np.zeros(len(blocks) + 1, np.int64)
        np.add.at(steps, first, 1)
        np.add.at(steps, last + 1, -1)
        wanted = (steps.cumsum()[:-1] > 0) & self._missing
        try:
            self._fill(np.flatnonzero(wanted).tolist())
        except FrameFormatError as exc:
            raise CorruptionError(str(exc), path=self._path, offset=self._place) from exc

    def _fill(self, numbers: Sequence[int]) -> None:
        # Two threads may fill a block at the same time, with the same bytes.
        for number in numbers:
            self._blocks.fill(number, self._body)
            start, stop = self._blocks.range_of(number)
            self.held_bytes += stop - start
        self._missing[numbers] = False


def _plain_header(header: FrameHeader) -> bytes:
    """Return the header that the frame would have if it was not compressed."""
    return HEADER.pack(
        MAGIC,
        0,
        HEADER_BYTES + header.body_bytes,
        ROWS,
        PLAIN,
        header.section_count,
        header.first_serial,
        header.row_count,
        header.stream_count,
        header.first_timestamp_us,
        header.last_timestamp_us,
        0,
        header.body_bytes,
        0,
    )


class OpenFrames:
    """Compacted frames that readers of a few of their rows have opened, the oldest first.

    The next reader, perhaps of another stream, need not decompress them again. The segments own the
    frames, so a frame ends with its segment. From any thread.
    """

    def __init__(self, bytes_max: int = _OPEN_BYTES) -> None:
        self._bytes_max = bytes_max
        self._lock = Lock()
        self._held: deque[tuple[ref[Segment], int]] = deque()

    def keep(self, segment: Segment, number: int, table: CompactedTable) -> None:
        """Keep a frame open; close the oldest ones if they need too much memory."""
        with self._lock:
            if number not in segment.opened:
                segment.opened[number] = table
                self._held.append((ref(segment), number))
            self._trim()

    def grown(self) -> None:
        """Close the oldest frames if the values that were read since need too much memory."""
        with self._lock:
            self._trim()

    def _trim(self) -> None:
        while len(self._held) > _OPEN_MAX or self._bytes() > self._bytes_max:
            oldest, place = self._held.popleft()
            owner = oldest()
            if owner is not None:
                owner.opened.pop(place, None)

    def _bytes(self) -> int:
        """Return the memory of all frames; it grows when their values are read."""
        total = 0
        for held, number in self._held:
            owner = held()
            table = None if owner is None else owner.opened.get(number)
            if isinstance(table, CompactedTable):
                total += table.held_bytes
        return total


def open_compacted(segment: Segment, number: int) -> CompactedTable | FrameView:
    """Open a frame of a compacted segment; one without rows as a view. Raises: CorruptionError."""
    opened = segment.opened.get(number)
    if isinstance(opened, CompactedTable):
        return opened
    kept = segment.kept
    if kept is not None and kept[0] == number and isinstance(kept[1], CompactedTable):
        return kept[1]
    header = segment.checked_header(number)
    position = segment.index.positions[number]
    if header.kind != ROWS or header.compression != BLOCKS:
        return segment.open_frame(position, header)
    return CompactedTable(segment, position, header)


def compacted_frames(
    segment: Segment, numbers: Sequence[int], opened: OpenFrames | None = None
) -> Iterator[CompactedTable | FrameView]:
    """Open frames of a compacted segment, in order; keep them in `opened` for the next reader.

    Raises: CorruptionError.
    """
    for number in numbers:
        found = open_compacted(segment, number)
        if isinstance(found, CompactedTable):
            if opened is not None:
                opened.keep(segment, number, found)
                held_bytes = found.held_bytes
                yield found
                if found.held_bytes > held_bytes:
                    opened.grown()
                continue
            # A reader that stops here probably goes on with this frame.
            segment.kept = number, found
        yield found
    segment.kept = None
