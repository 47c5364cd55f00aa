"""The life of a segment as the file that is being written.

Frames are written with pwrite, header last. Rooms, which sockets fill through the map, are taken
among them. What of the disk is given out was allocated before, so that no store to the map meets a
full disk.
"""

from __future__ import annotations

from pathlib import PurePath
from threading import Lock
from typing import Final

from siltstone.errors import DiskError, SiltstoneError
from siltstone.fs.api import File, FileSystem
from siltstone.store.segment.frame import HEADER_BYTES, FrameHeader, encode_frame, encode_room
from siltstone.store.segment.index import Directory
from siltstone.store.segment.room import Room, SpareRooms
from siltstone.store.segment.segment import (
    RESERVED,
    SEGMENT_HEADER_BYTES,
    SYNCED,
    VISIBLE,
    Segment,
    SegmentHeader,
    segment_path,
)

_ALLOCATE_MIN: Final = 64 * 1024
_ALLOCATE_MAX: Final = 16 * 1024 * 1024


class SegmentWriter:
    """The one writer of a segment. It belongs to the shard's committer; only rooms may be taken and
    given up by any thread.
    """

    def __init__(self, file: File, segment: Segment, *, allocated: int) -> None:
        self._file = file
        self.segment = segment
        self._allocated = allocated
        index = segment.index
        # Places are given out under the lock, which is never held while rows are written or synced.
        self._lock = Lock()
        self._end = index.end_position
        self._claim: tuple[int, int] | None = None
        self._next_serial = index.next_serial
        self._last_us = index.last_times[-1] if index.frame_count else segment.header.created_us
        self._spare = SpareRooms()
        self._closed = False
        # Behind the last frame that was written; rooms may stand further on.
        self._written = index.end_position
        self._unpublished: list[tuple[int, FrameHeader, Directory]] = []

    @property
    def end_position(self) -> int:
        """Where the next frame goes."""
        return self._end

    @property
    def allocated_bytes(self) -> int:
        """How much of the disk the file takes."""
        return self._allocated

    def has_room(self, body_bytes: int) -> bool:
        """Say whether a frame with such a body still fits."""
        return self._end + HEADER_BYTES + body_bytes <= self.segment.header.file_bytes

    def take_space(self, body_bytes: int) -> None:
        """Take the disk space that a frame with such a body needs, where it fits. Raises:
        StorageFullError.
        """
        with self._lock:
            if self.has_room(body_bytes):
                self._allocate(self._end + HEADER_BYTES + body_bytes)

    def claim(self, body_bytes: int, *, next_serial: int, last_timestamp_us: int) -> bool:
        """Take the place for a frame with such a body, which `write` then uses, whoever takes a
        room meanwhile; False where it does not fit. The serial and time are those behind it.
        """
        with self._lock:
            if not self.has_room(body_bytes):
                return False
            self._claim = (self._end, HEADER_BYTES + body_bytes)
            self._end += HEADER_BYTES + body_bytes
            self._next_serial = next_serial
            self._last_us = last_timestamp_us
            return True

    def take_room(self, size: int, *, spare_bytes: int) -> Room | None:
        """Take a place of so many bytes, for anybody to fill; None where it does not fit with so
        much left behind it. From any thread. Raises: StorageFullError.
        """
        with self._lock:
            if self._closed:
                return None
            room = self._spare.take(size)
            if room is not None:
                return room
            capacity = (size + 7) & ~7
            if not self.has_room(capacity + spare_bytes):
                return None
            start, end = self._end, self._end + HEADER_BYTES + capacity
            self._allocate(end)
            seed = self.segment.header.seed
            head = encode_room(end - start, self._next_serial, self._last_us, seed)
            self._file.write_at(start, head)
            self._end = end
        position = start + HEADER_BYTES
        room = Room(position, capacity, self.segment.view[position:end])
        room.size = size
        return room

    def __contains__(self, room: Room) -> bool:
        """Say whether a room is in this segment."""
        return room.view.obj is self.segment.view.obj

    def give_up_room(self, room: Room) -> None:
        """Take back a room that nothing will refer to. From any thread."""
        with self._lock:
            if self._closed:
                return
            self._spare.add(room)
            # At the end it becomes what it was: zeros, which the next frame is written over.
            while (last := self._spare.take_ending_at(self._end)) is not None:
                self._file.write_at(last.start, bytes(HEADER_BYTES + last.filled))
                self._end = last.start

    def write(self, header: FrameHeader, body: bytes, directory: Directory) -> None:
        """Write a frame behind the last one; nobody sees it before `publish`.

        The directory says what the body says of its streams, so that a compressed one need not be
        expanded.

        Raises: StorageFullError, with nothing changed.
        """
        if self._claim is None:
            fits = self.claim(
                len(body),
                next_serial=header.first_serial + header.row_count,
                last_timestamp_us=header.last_timestamp_us,
            )
            assert fits, "the segment is full"
        assert self._claim is not None
        (position, length), self._claim = self._claim, None
        header.synced_position = self.segment.synced_position
        head = encode_frame(header, body, self.segment.header.seed)
        assert header.length == length
        written = 0
        try:
            with self._lock:
                self._allocate(position + length)
            written = length
            # The header goes last: without it the body is nothing.
            self._file.write_at(position + HEADER_BYTES, body)
            self._file.write_at(position, head)
        except SiltstoneError as exc:
            self._take_back(position, header, written, exc)
            raise
        self._written = position + length
        self._unpublished.append((position, header, directory))

    def give_up_claim(self, next_serial: int) -> None:
        """Take back the place that was claimed for a frame, if the frame was not written; the next
        one begins at this serial. Raises: DiskError.
        """
        if self._claim is None:
            return
        (position, length), self._claim = self._claim, None
        with self._lock:
            if self._end != position + length:
                raise DiskError(
                    self.segment.path, "write", "later rows were written already", errno=0
                )
            self._end = position
            self._next_serial = next_serial

    def _take_back(
        self, position: int, header: FrameHeader, written: int, error: SiltstoneError
    ) -> None:
        """Give up the place of a frame that could not be written. Raises: DiskError."""
        with self._lock:
            if self._end != position + header.length:
                # Rooms behind it tell of serials that will not be: only recovery puts that right.
                raise DiskError(
                    self.segment.path, "write", f"later rows were written already: {error}", errno=0
                ) from error
            self._end = position
            self._next_serial = header.first_serial
            if written:
                # A payload left behind the end might be taken for a frame one day.
                self._file.write_at(position, bytes(written))

    def sync(self) -> None:
        """Make everything written so far durable, then say so in the file."""
        self._file.sync()
        self.segment.cells[SYNCED] = self._written

    def publish(self) -> None:
        """Let readers see everything written so far."""
        index = self.segment.index
        for position, header, directory in self._unpublished:
            index.add(position, header, directory)
            index.verified[index.frame_count - 1] = 1
        self._unpublished.clear()
        self.segment.cells[VISIBLE] = self._written

    def reserve(self, serial: int) -> None:
        """Say, durably, that readers may see serials up to this one before they are synced."""
        self.segment.cells[RESERVED] = serial
        self.sync()

    def release(self) -> None:
        """Sync, and only then say, durably, that readers have seen nothing that is not synced."""
        self.sync()
        if self.segment.reserved_serial:
            self.segment.cells[RESERVED] = 0
            self.sync()

    def park(self) -> None:
        """Hold no descriptor until the next frame or room; the map stays. Only for its owner."""
        with self._lock:
            if not self._closed:
                self._file.park(self.segment.path)

    def close(self) -> None:
        """Let go of the file; the map stays with its readers, and with who fills a room of it."""
        with self._lock:
            self._closed = True
            self._file.close()

    def _allocate(self, end: int) -> None:
        """Take disk space ahead, in steps that grow with the segment, so that small slabs stay
        small.
        """
        if end <= self._allocated:
            return
        step = min(_ALLOCATE_MAX, max(_ALLOCATE_MIN, self._allocated // 2))
        target = min(self.segment.header.file_bytes, max(end, self._allocated + step))
        self._file.allocate(self._allocated, target - self._allocated)
        self._allocated = target


def create_segment(
    fs: FileSystem, directory: PurePath, header: SegmentHeader, state: FrameHeader, body: bytes
) -> SegmentWriter:
    """Create a segment whose first frame holds the state; the name appears when all is durable.

    Raises: StorageFullError, with nothing left behind.
    """
    path = segment_path(directory, header.base_serial)
    temporary = path.with_name(f"{path.name}.tmp")
    if fs.exists(temporary):
        fs.remove(temporary)
    head = encode_frame(state, body, header.seed)
    end = SEGMENT_HEADER_BYTES + state.length
    assert end <= header.file_bytes
    file = fs.create(temporary)
    try:
        file.truncate(header.file_bytes)
        allocated = min(header.file_bytes, max(end, _ALLOCATE_MIN))
        file.allocate(0, allocated)
        file.write_at(0, header.encode(end=end) + head + body)
        file.sync()
        # All that can be refused comes before the name: a segment under its name is begun.
        segment = Segment(path, file.map(writable=True))
        fs.rename(temporary, path)
        fs.sync_directory(directory)
    except BaseException:
        file.close()
        if fs.exists(temporary):
            fs.remove(temporary)
        raise
    segment.add(SEGMENT_HEADER_BYTES, state)
    return SegmentWriter(file, segment, allocated=allocated)
