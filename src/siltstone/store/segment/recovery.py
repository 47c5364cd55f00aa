"""Find the end of a segment after a crash, and clear everything behind it.

Invariants: synced data is never dropped; recovery can be repeated after a crash at any step; a
damaged frame that was synced is corruption and is reported, never skipped.

Before the synced position every frame must be valid. Behind it an invalid frame is torn: this frame
and everything after it were never acknowledged as synced. There is one exception: if a later valid
frame was written when the invalid one was already synced, the invalid frame is damaged, not torn.
The torn tail is overwritten with zeros, durably, before anything new is written. Otherwise an old
frame of the tail could begin exactly where a new frame ends, and would become valid again.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import PurePath

from siltstone.errors import CorruptionError, StorageFullError
from siltstone.fs.api import File, FileSystem
from siltstone.store.segment.frame import (
    EDGES,
    HEADER_BYTES,
    MAGIC,
    PRODUCERS,
    ROOM,
    FrameFormatError,
    FrameHeader,
    crc_matches,
    decode_header,
)
from siltstone.store.segment.segment import SEGMENT_HEADER_BYTES, Segment
from siltstone.store.segment.writer import SegmentWriter

_CHUNK_BYTES = 1 << 20
_ZEROS = bytes(_CHUNK_BYTES)
_BUDGET_BYTES = 1 << 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A segment that is ready for writing, and the state that was found in it."""

    writer: SegmentWriter
    edges: list[bytes]
    producers: list[bytes]
    torn_bytes: int
    next_serial: int
    last_timestamp_us: int


def recover_segment(fs: FileSystem, path: PurePath, *, allocated: int) -> Recovered:
    """Open the last segment of a chain for writing, and cut off a torn tail.

    `allocated` is the disk space of the file in bytes. It says neither where this space is, because
    a power cut may leave holes in it, nor where the data ends.

    Raises: CorruptionError.
    """
    file = fs.open(path, writable=True)
    try:
        if file.size() < SEGMENT_HEADER_BYTES:
            raise CorruptionError("the segment is too short", path=path)
        segment = Segment(path, file.map(writable=True))
        edges, producers = _scan(segment)
        end = segment.index.end_position
        tail_end = file.data_end(end)
        _refuse_damage(segment, end, tail_end)
        torn_bytes = _clear(file, end, tail_end)
        _write_again(file, segment.synced_position, end)
        allocated = _allocate_again(file, end, min(allocated, segment.header.file_bytes))
        writer = SegmentWriter(file, segment, allocated=allocated)
        writer.sync()
        writer.publish()
    except BaseException:
        file.close()
        raise
    return Recovered(
        writer=writer,
        edges=edges,
        producers=producers,
        torn_bytes=torn_bytes,
        next_serial=max(segment.index.next_serial, segment.credible_reserved()),
        last_timestamp_us=max(segment.index.last_times, default=0),
    )


def _allocate_again(file: File, end: int, allocated: int) -> int:
    """Allocate the disk space behind the end again, because a power cut may have left holes in it.

    Return the position up to which all space is allocated. Space that is allocated already costs
    nothing.
    """
    if allocated <= end:
        return end
    try:
        file.allocate(end, allocated - end)
    except StorageFullError:
        return end
    return allocated


def _scan(segment: Segment) -> tuple[list[bytes], list[bytes]]:
    """Index every frame up to the first invalid one; return their edges and producers.

    Rooms are skipped. Rooms at the end were being filled when the process ended: no frame refers to
    them, and they are cut off.
    """
    edges: list[bytes] = []
    producers: list[bytes] = []
    index = segment.index
    position = index.end_position
    while True:
        must_stand = position < max(segment.synced_position, SEGMENT_HEADER_BYTES + 1)
        header = whole_frame(segment.view, position, segment.header.seed)
        if header is None or header.first_serial < index.next_serial:
            if must_stand:
                raise CorruptionError(
                    "a synced frame is damaged", path=segment.path, offset=position
                )
            return edges, producers
        start, position = position, position + header.length
        if header.kind == ROOM:
            continue
        frame = segment.add(start, header)
        index.verified[index.frame_count - 1] = 1
        if (found := frame.section(EDGES)) is not None:
            edges.append(bytes(found))
        if (found := frame.section(PRODUCERS)) is not None:
            producers.append(bytes(found))


def whole_frame(view: memoryview, position: int, seed: int) -> FrameHeader | None:
    """Return the header of the frame at `position` of a mapped segment, or None if there is no
    valid frame.
    """
    try:
        header = decode_header(view, position, len(view))
    except FrameFormatError:
        return None
    if header is None or not crc_matches(view, position, header, seed):
        return None
    return header


def _refuse_damage(segment: Segment, end: int, tail_end: int) -> None:
    """Raise CorruptionError if a valid frame behind the end proves that data there was synced."""
    for _, header in whole_frames(segment.view, end, tail_end, segment.header.seed):
        if header.synced_position > end:
            raise CorruptionError(
                "a synced frame is damaged before valid frames", path=segment.path, offset=end
            )


def whole_frames(
    view: memoryview, start: int, stop: int, seed: int
) -> Generator[tuple[int, FrameHeader], None, None]:
    """Yield the valid frames that begin in a range of a mapped segment, at any multiple of 8."""
    budget = _BUDGET_BYTES
    for chunk in range(start, stop, _CHUNK_BYTES):
        piece = bytes(view[chunk : min(stop, chunk + _CHUNK_BYTES)])
        found = piece.find(MAGIC)
        while found >= 0:
            position = chunk + found
            if position % 8 == 0:
                # A payload may contain many byte strings that look like headers. The budget limits
                # the work.
                budget -= _claimed_bytes(view, position)
                if budget < 0:
                    return
                if (header := whole_frame(view, position, seed)) is not None:
                    yield position, header
            found = piece.find(MAGIC, found + 1)


def _claimed_bytes(view: memoryview, position: int) -> int:
    """Return how many bytes must be read to check the possible frame at `position`."""
    try:
        header = decode_header(view, position, len(view))
    except FrameFormatError:
        return HEADER_BYTES
    return HEADER_BYTES if header is None else header.length


def _write_again(file: File, start: int, end: int) -> None:
    """Write the frames behind the last successful sync again.

    After a failed sync, the kernel may mark their pages as clean although they are not on the disk.
    The next sync would then skip these pages and succeed.
    """
    for position in range(start, end, _CHUNK_BYTES):
        file.write_at(position, file.read_at(position, min(_CHUNK_BYTES, end - position)))


def _clear(file: File, end: int, tail_end: int) -> int:
    """Overwrite everything behind the end with zeros; return the length up to the last nonzero
    byte.
    """
    torn = 0
    for start in range(end, tail_end, _CHUNK_BYTES):
        length = min(_CHUNK_BYTES, tail_end - start)
        found = file.read_at(start, length)
        # Most of a large tail is zeros. A comparison finds that much faster than rstrip does.
        if found == (_ZEROS if length == _CHUNK_BYTES else bytes(length)):
            continue
        kept = len(found.rstrip(b"\0"))
        file.write_at(start, bytes(kept))
        torn = start + kept - end
    return torn
