"""Find the end of a segment after a crash, and clear everything behind it.

Invariants: synced data is never dropped; recovery can be repeated after a crash at any step; a
damaged frame that was synced is corruption and is reported, never skipped.

The rule of `walker.py` tells a torn tail from damage. The torn tail is overwritten with zeros,
durably, before anything new is written. Otherwise an old frame of the tail could begin exactly
where a new frame ends, and would become valid again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath

from siltstone.errors import CorruptionError, StorageFullError
from siltstone.fs.api import File, FileSystem
from siltstone.store.segment.segment import SEGMENT_HEADER_BYTES, Segment
from siltstone.store.segment.walker import BreakKind, torn_or_damaged
from siltstone.store.segment.writer import SegmentWriter

_CHUNK_BYTES = 1 << 20
_ZEROS = bytes(_CHUNK_BYTES)


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

    `allocated` is the disk space of the file in bytes. It does not show where the data ends, nor
    where the space is: a power cut may leave holes.

    Raises: CorruptionError.
    """
    file = fs.open(path, writable=True)
    try:
        if file.size() < SEGMENT_HEADER_BYTES:
            raise CorruptionError("the segment is too short", path=path)
        segment = Segment(path, file.map(writable=True))
        edges, producers = _scan(file, segment)
        end = segment.index.end_position
        tail_end = file.data_end(end)
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


def _scan(file: File, segment: Segment) -> tuple[list[bytes], list[bytes]]:
    """Index every frame up to the torn tail; return their edges and producers.

    Rooms are skipped. Rooms at the end were being filled when the process ended: no frame refers to
    them, and they are cut off.
    """
    edges: list[bytes] = []
    producers: list[bytes] = []
    view, seed = segment.view, segment.header.seed
    walk = segment.index_frames(edges, producers, limit=len(view))
    # The state frame, which is the first, was synced when the segment was created.
    stands_to = max(segment.synced_position, SEGMENT_HEADER_BYTES + 1)
    broken = torn_or_damaged(
        view,
        seed,
        position=walk.position,
        serial=walk.serial,
        stands_to=stands_to,
        bound=file.data_end(walk.position),
    )
    if broken.kind is BreakKind.DAMAGED:
        proof = "" if walk.position < stands_to else " before valid frames"
        raise CorruptionError(
            f"a synced frame is damaged{proof}", path=segment.path, offset=walk.position
        )
    return edges, producers


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
