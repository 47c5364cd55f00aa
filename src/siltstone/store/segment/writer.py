"""The writer of a segment. Compiled.

Frames are written with pwrite, the header last. Rooms, which sockets fill through the map, are
taken between them. Disk space is allocated before it is handed out, so a store to the map never
meets a full disk.

A room is a frame of its own kind; only its header is checked. It is taken at the end of the segment
before its contents arrive, and later frames are written behind it. A slow client therefore delays
no other writer. The contents do not count until a rows frame refers to the room. A room without a
reference is lost space, never a row.
"""

from __future__ import annotations

from pathlib import PurePath
from threading import Lock
from typing import Final

from siltstone.errors import DiskError, SiltstoneError, StorageFullError
from siltstone.fs.api import File, FileSystem
from siltstone.store.segment.frame import (
    HEADER_BYTES,
    FrameHeader,
    encode_frame,
    encode_room,
    header_bytes,
)
from siltstone.store.segment.index import Directory
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
# Maintenance allocates the next step when less than this is left.
_AHEAD_MAX: Final = 1024 * 1024
# The next segment is prepared when less than this is left, or less than a quarter.
_LEFT_MAX: Final = 16 * 1024 * 1024
PREPARED_BYTES_MIN: Final = 256 * 1024
# After this many frames, the word index may need some. It takes a thousand at a time.
_WORDS_EVERY: Final = 64
# A larger frame is written in two steps, body and header, and then synced: joining them is a copy.
_JOINED_MAX: Final = 64 * 1024


class Room:
    """A range of `capacity` bytes whose contents begin at `position`; `size` of them are used."""

    __slots__ = ("capacity", "filled", "position", "size", "view")

    def __init__(self, position: int, capacity: int, view: memoryview) -> None:
        self.position = position
        self.capacity = capacity
        self.size = capacity
        # The number of bytes at the start that may not be zero.
        self.filled = 0
        self.view = view

    @property
    def start(self) -> int:
        """The position where its frame begins."""
        return self.position - HEADER_BYTES

    @property
    def end(self) -> int:
        """The position where its frame ends."""
        return self.position + self.capacity

    def contents(self) -> memoryview:
        """Return the bytes that are filled, or will be."""
        return self.view[: self.size]


class SpareRooms:
    """Rooms that were given up while other frames followed them; the next request can use them."""

    def __init__(self) -> None:
        self._rooms: list[Room] = []

    def add(self, room: Room) -> None:
        self._rooms.append(room)

    def take(self, size: int) -> Room | None:
        """Return a room that fits the size and is at most about twice as large; None if none is."""
        for number, room in enumerate(self._rooms):
            if size <= room.capacity <= 2 * size + HEADER_BYTES:
                del self._rooms[number]
                room.size = size
                return room
        return None

    def take_ending_at(self, end: int) -> Room | None:
        """Return the room that ends at this position; None if there is none."""
        for number, room in enumerate(self._rooms):
            if room.end == end:
                return self._rooms.pop(number)
        return None


class SegmentWriter:
    """The only writer of a segment.

    It belongs to the committer of the shard. Any thread may take and give up rooms.
    """

    def __init__(
        self, file: File, segment: Segment, *, allocated: int, is_durable: bool = False
    ) -> None:
        self._file = file
        self.segment = segment
        self._allocated = allocated
        index = segment.index
        # Space is handed out under the lock, which is never held while rows are written or synced.
        self._lock = Lock()
        self._end = index.end_position
        self._claim: tuple[int, int] | None = None
        self._next_serial = index.next_serial
        self._last_us = index.last_times[-1] if index.frame_count else segment.header.created_us
        self._spare = SpareRooms()
        self._closed = False
        # Off for replicated shards: the bytes of a frame must not depend on when this site synced.
        self.notes_sync = True
        # The end of the last frame that was written; rooms may follow it.
        self._written = index.end_position
        # Whether the file may have contents before `_end` that are not durable.
        self._is_dirty = not is_durable
        # Whether the marks in the header of the segment are behind the disk.
        self.has_old_marks = False
        self._unpublished: list[tuple[int, FrameHeader, Directory]] = []
        size = segment.header.file_bytes
        # Small segments are not prepared: it would double the work of a small slab.
        self._nearly_full = size
        if size >= PREPARED_BYTES_MIN:
            self._nearly_full = size - min(_LEFT_MAX, size // 4)
        # How many frames were published since the word index was last looked at.
        self._unindexed = _WORDS_EVERY

    @property
    def end_position(self) -> int:
        """The position of the next frame."""
        return self._end

    @property
    def allocated_bytes(self) -> int:
        """The disk space of the file in bytes."""
        return self._allocated

    def has_room(self, body_bytes: int) -> bool:
        """Return whether a frame with a body of this size still fits."""
        return self._end + HEADER_BYTES + body_bytes <= self.segment.header.file_bytes

    def has_space(self, size_bytes: int) -> bool:
        """Return whether the disk space for this many bytes of frames is allocated already."""
        return self._end + size_bytes <= self._allocated

    def take_space(self, body_bytes: int) -> None:
        """Allocate the disk space for a frame with a body of this size, if the frame fits.

        Raises: StorageFullError.
        """
        with self._lock:
            if self.has_room(body_bytes):
                self._allocate(self._end + HEADER_BYTES + body_bytes)

    def is_short(self) -> bool:
        """Return whether most of the allocated space is used. From any thread; the answer may
        change at any moment.
        """
        return self._allocated - self._end < min(_AHEAD_MAX, self._allocated // 4)

    def is_nearly_full(self) -> bool:
        """Return whether the next segment should be prepared. From any thread, like `is_short`."""
        return self._end > self._nearly_full

    def allocate_ahead(self) -> None:
        """Allocate the next step of disk space if most of the allocated space is used, so that the
        next frames do not wait for it. Raises: StorageFullError.
        """
        with self._lock:
            if not self._closed and self.is_short():
                self._allocate(self._allocated + 1)

    def index_words(self) -> None:
        """Add the last frames to the word index. It takes milliseconds, so it is not done while a
        caller waits for a frame, and only from time to time.
        """
        if self._unindexed >= _WORDS_EVERY:
            self._unindexed = 0
            self.segment.index_words_behind_writer()

    def claim(self, frame_bytes: int, *, next_serial: int, last_timestamp_us: int) -> bool:
        """Claim the space for a frame of this size; return False if it does not fit.

        `write` uses this space, even if other threads take rooms meanwhile. `next_serial` is the
        serial after the frame, `last_timestamp_us` the time of its last row.
        """
        with self._lock:
            if self._end + frame_bytes > self.segment.header.file_bytes:
                return False
            self._claim = (self._end, frame_bytes)
            self._end += frame_bytes
            self._next_serial = next_serial
            self._last_us = last_timestamp_us
            return True

    def take_room(self, size: int, *, spare_bytes: int) -> Room | None:
        """Take a room of `size` bytes; return None unless it fits with `spare_bytes` left behind
        it.

        From any thread. Raises: StorageFullError.
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
            self._is_dirty = True
            self._file.write_at(start, head)
            self._end = end
        position = start + HEADER_BYTES
        room = Room(position, capacity, self.segment.view[position:end])
        room.size = size
        return room

    def __contains__(self, room: Room) -> bool:
        """Return whether a room is in this segment."""
        return room.view.obj is self.segment.view.obj

    def give_up_room(self, room: Room) -> None:
        """Return a room that no frame will refer to. From any thread."""
        with self._lock:
            if self._closed:
                return
            self._spare.add(room)
            # A room at the end becomes zeros again, and the next frame overwrites it.
            while (last := self._spare.take_ending_at(self._end)) is not None:
                self._is_dirty = True
                self._file.write_at(last.start, bytes(HEADER_BYTES + last.filled))
                self._end = last.start

    def write(
        self, header: FrameHeader, body: bytes, directory: Directory, *, durably: bool = False
    ) -> bool:
        """Write a frame behind the last one; readers see it after `publish`.

        The directory lists the streams of the body, so that a compressed body need not be
        decompressed. If the frame must be durable, is small, and everything before it is durable,
        one system call writes and syncs it, and the result is True.

        Raises: StorageFullError, with nothing changed; DiskError.
        """
        if self._claim is None:
            fits = self.claim(
                header_bytes(header.compression) + len(body),
                next_serial=header.first_serial + header.row_count,
                last_timestamp_us=header.last_timestamp_us,
            )
            assert fits, "the segment is full"
        assert self._claim is not None
        (position, length), self._claim = self._claim, None
        header.synced_position = self.segment.synced_position if self.notes_sync else 0
        head = encode_frame(header, body, self.segment.header.seed)
        assert header.length == length
        written = 0
        try:
            with self._lock:
                self._allocate(position + length)
            written = length
            alone = durably and not self._is_dirty and length <= _JOINED_MAX
            if alone:
                self._file.write_durably(position, head + body)
            else:
                self._is_dirty = True
                # The header is written last: a body without a header is not a frame.
                self._file.write_at(position + len(head), body)
                self._file.write_at(position, head)
        except SiltstoneError as exc:
            self._take_back(position, header, written, exc)
            raise
        self._written = position + length
        if alone:
            self.segment.cells[SYNCED] = self._written
            self.has_old_marks = True
        self._unpublished.append((position, header, directory))
        return alone

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
        """Release the space of a frame that could not be written.

        Raises: DiskError; the error of the frame if its bytes cannot be removed.
        """
        with self._lock:
            if self._end != position + header.length:
                # Rooms behind it have serials that will not exist. Only recovery can correct that.
                raise DiskError(
                    self.segment.path, "write", f"later rows were written already: {error}", errno=0
                ) from error
            self._end = position
            self._next_serial = header.first_serial
            self._is_dirty = True
            if not written:
                return
            # Bytes of a payload left behind the end could be mistaken for a frame later.
            try:
                self._file.write_at(position, bytes(written))
            except StorageFullError:
                # After a failed write or sync the frame may be there. It must not be refused now.
                raise error from None

    def sync(self) -> None:
        """Make everything written so far durable, then record the synced position in the file."""
        with self._lock:
            # Set this first: a room that is taken during the sync is not durable.
            self._is_dirty = False
        self._file.sync()
        self.segment.cells[SYNCED] = self._written
        self.has_old_marks = False

    def publish(self) -> None:
        """Make everything written so far visible to readers."""
        index = self.segment.index
        for position, header, directory in self._unpublished:
            index.add(position, header, directory)
            index.verified[index.frame_count - 1] = 1
        self._unindexed += len(self._unpublished)
        self._unpublished.clear()
        self.segment.cells[VISIBLE] = self._written

    def reserve(self, serial: int) -> None:
        """Record, durably, that readers may see serials below this one before they are synced."""
        self.segment.cells[RESERVED] = serial
        self.sync()

    def release(self) -> None:
        """Sync, and only then record, durably, that readers have seen no unsynced rows."""
        self.sync()
        if self.segment.reserved_serial:
            self.segment.cells[RESERVED] = 0
            self.sync()

    def park(self) -> None:
        """Close the descriptor until the next frame or room; the map stays. Only for its owner."""
        with self._lock:
            if not self._closed:
                self._file.park(self.segment.path)

    def close(self) -> None:
        """Close the file; the map stays valid for readers and for threads that fill a room."""
        with self._lock:
            self._closed = True
            self._file.close()

    def _allocate(self, end: int) -> None:
        """Allocate space ahead, in steps that grow with the segment: small slabs stay small."""
        if end <= self._allocated or self._allocated == self.segment.header.file_bytes:
            return
        step = min(_ALLOCATE_MAX, max(_ALLOCATE_MIN, self._allocated // 2))
        target = min(self.segment.header.file_bytes, max(end, self._allocated + step))
        self._file.allocate(self._allocated, target - self._allocated)
        self._allocated = target


def create_segment(
    fs: FileSystem, directory: PurePath, header: SegmentHeader, state: FrameHeader, body: bytes
) -> SegmentWriter:
    """Create a segment whose first frame holds the state; rename it when everything is durable.

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
        # Everything that can fail comes before the rename: a segment with its final name is in use.
        segment = Segment(path, file.map(writable=True))
        fs.rename(temporary, path)
        fs.sync_directory(directory)
    except BaseException:
        file.close()
        if fs.exists(temporary):
            fs.remove(temporary)
        raise
    segment.add(SEGMENT_HEADER_BYTES, state)
    return SegmentWriter(file, segment, allocated=allocated, is_durable=True)
