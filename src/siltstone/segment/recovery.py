"""Find the end of a segment after a crash, and make it clean.

Invariants: what was synced is never dropped; a crash during recovery changes nothing that matters;
a bad frame that was synced is corruption and is reported, never skipped.

Before the synced position every frame must stand; its contents are checked when it is read. Behind
it a frame that does not check out is torn: it and all that follows were never acknowledged as
synced. One thing tells a torn frame from a damaged one there: a later whole frame that was written
when the bad one was already synced. What is cut off is overwritten with zeros, durably, before
anything new is written, or else a frame of the lost tail could line up behind a new one and come
back to life.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from siltstone.errors import CorruptionError
from siltstone.fs.api import File, FileSystem
from siltstone.segment.frame import (
    EDGES,
    MAGIC,
    PRODUCERS,
    FrameFormatError,
    FrameHeader,
    crc_matches,
    decode_header,
)
from siltstone.segment.segment import SEGMENT_HEADER_BYTES, Segment, SegmentWriter

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovered:
    """A segment that is ready for writing, and what was found in it."""

    writer: SegmentWriter
    edges: list[bytes]
    producers: list[bytes]
    torn_bytes: int
    next_serial: int
    last_timestamp_us: int


def recover_segment(fs: FileSystem, path: PurePath, *, allocated: int) -> Recovered:
    """Open the last segment of a chain for writing, cutting off a torn tail.

    allocated is how far the file has disk space; behind it there are only holes. Raises:
    CorruptionError.
    """
    file = fs.open(path, writable=True)
    try:
        segment = Segment(path, file.map(writable=True))
        edges, producers = _scan(segment)
        end = segment.index.end_position
        allocated = max(end, min(allocated, segment.header.file_bytes))
        _refuse_damage(segment, end, allocated)
        torn_bytes = _clear(file, end, allocated)
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
        next_serial=max(segment.index.next_serial, segment.reserved_serial),
        last_timestamp_us=max(segment.index.last_times, default=0),
    )


def _scan(segment: Segment) -> tuple[list[bytes], list[bytes]]:
    """Enter every frame up to the first that is not whole; return their edges and producers."""
    edges: list[bytes] = []
    producers: list[bytes] = []
    index = segment.index
    while True:
        position = index.end_position
        must_stand = position < max(segment.synced_position, SEGMENT_HEADER_BYTES + 1)
        header = _whole_frame(segment, position, check=not must_stand)
        if header is None or header.first_serial < index.next_serial:
            if must_stand:
                raise CorruptionError(
                    "a synced frame is damaged", path=segment.path, offset=position
                )
            return edges, producers
        frame = segment.add(position, header)
        if not must_stand:
            index.verified[index.frame_count - 1] = 1
        if (found := frame.section(EDGES)) is not None:
            edges.append(bytes(found))
        if (found := frame.section(PRODUCERS)) is not None:
            producers.append(bytes(found))


def _whole_frame(segment: Segment, position: int, *, check: bool) -> FrameHeader | None:
    try:
        header = decode_header(segment.view, position, segment.header.file_bytes)
    except FrameFormatError:
        return None
    if header is None or not check:
        return header
    if not crc_matches(segment.view, position, header, segment.header.seed):
        return None
    return header


def _refuse_damage(segment: Segment, end: int, allocated: int) -> None:
    """Raise CorruptionError when a whole frame behind the end proves that the end was synced."""
    tail = bytes(segment.view[end:allocated])
    found = tail.find(MAGIC)
    while found >= 0:
        if found % 8 == 0:
            header = _whole_frame(segment, end + found, check=True)
            if header is not None and header.synced_position > end:
                raise CorruptionError(
                    "a synced frame is damaged, later ones are whole",
                    path=segment.path,
                    offset=end,
                )
        found = tail.find(MAGIC, found + 1)


def _clear(file: File, end: int, allocated: int) -> int:
    """Zero what stands behind the end; return how many bytes that were up to the last one set."""
    torn = 0
    for start in range(end, allocated, _CHUNK_BYTES):
        length = min(_CHUNK_BYTES, allocated - start)
        kept = file.read_at(start, length).rstrip(b"\0")
        if kept:
            file.write_at(start, bytes(len(kept)))
            torn = start + len(kept) - end
    return torn
