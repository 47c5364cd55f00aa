"""The next segment of a slab, prepared before it is needed.

Creating a file, allocating its space and making its name durable takes several syncs. A separate
thread does this ahead, so that no row waits for it:

    1  create `next.prepared`, set its size, allocate space; sync the file and its directory
    2  when the segment is needed: write its header and its state frame, sync the file
    3  rename it to its final name; from now on it takes rows
    4  sync the directory, which the thread does later

A power cut between 3 and 4 may give the file its first name again, although it has acknowledged
rows. `settle_prepared` therefore does the rest when the slab is opened. A file without a valid
header was never renamed, so it has no rows.

Invariant: step 1 for a segment comes after step 4 for the segment before it. So two files never
have this name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from threading import Thread
from typing import Final

from siltstone.errors import CorruptionError, SiltstoneError
from siltstone.fs.api import DirectoryEntry, EntryKind, File, FileSystem
from siltstone.fs.publish import move_aside, remove_file, sync_or_defer
from siltstone.store.segment.frame import HEADER_BYTES, FrameHeader, crc_matches, encode_frame
from siltstone.store.segment.segment import (
    SEGMENT_HEADER_BYTES,
    Segment,
    SegmentHeader,
    segment_path,
)
from siltstone.store.segment.sift import holds_frames, is_segment
from siltstone.store.segment.writer import SegmentWriter

PREPARED: Final = "next.prepared"
_ALLOCATED_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedSegment:
    """An empty file for the next segment, mapped, with some allocated space."""

    path: PurePath
    file: File
    view: memoryview
    allocated: int


def prepare_segment(fs: FileSystem, directory: PurePath, file_bytes: int) -> PreparedSegment:
    """Create the file of the next segment; its name is durable when this returns.

    Raises: StorageFullError and OverloadedError, with nothing left behind; DiskError.
    """
    path = directory / PREPARED
    if fs.exists(path):
        fs.remove(path)
    file = fs.create(path)
    try:
        allocated = min(file_bytes, _ALLOCATED_BYTES)
        file.truncate(file_bytes)
        file.allocate(0, allocated)
        file.sync()
        sync_or_defer(fs, directory)
        view = file.map(writable=True)
    except BaseException:
        file.close()
        with suppress(SiltstoneError):
            fs.remove(path)
        raise
    return PreparedSegment(path=path, file=file, view=view, allocated=allocated)


def discard(fs: FileSystem, prepared: PreparedSegment) -> None:
    """Remove a prepared file that is not needed. It need not be durable."""
    prepared.file.close()
    with suppress(SiltstoneError):
        fs.remove(prepared.path)


def begin_prepared(
    fs: FileSystem,
    directory: PurePath,
    prepared: PreparedSegment,
    header: SegmentHeader,
    state: FrameHeader,
    body: bytes,
) -> SegmentWriter:
    """Begin a segment in a prepared file of its size. Its final name must be free, and need not be
    durable: see the module.

    Raises: DiskError.
    """
    path = segment_path(directory, header.base_serial)
    head = encode_frame(state, body, header.seed)
    end = SEGMENT_HEADER_BYTES + state.length
    file, allocated = prepared.file, prepared.allocated
    try:
        if end > allocated:
            file.allocate(0, end)
            allocated = end
        file.write_at(0, header.encode(end=end) + head + body)
        # Before the rename: a file with the name of a segment always has a header and a state.
        file.sync()
        segment = Segment(path, prepared.view)
        fs.rename(prepared.path, path)
    except BaseException:
        discard(fs, prepared)
        raise
    segment.add(SEGMENT_HEADER_BYTES, state)
    return SegmentWriter(file, segment, allocated=allocated, is_durable=True)


def settle_prepared(
    fs: FileSystem, directory: PurePath, seed: int, is_ours: Callable[[SegmentHeader], bool]
) -> None:
    """Finish what a crash interrupted, before a slab is opened for writing: give a segment its
    final name, or remove a file without rows. Any other file is moved aside.
    """
    path = directory / PREPARED
    entries = fs.list(directory)
    entry = next((each for each in entries if each.name == PREPARED), None)
    if entry is None:
        return
    header = begun_header(fs, path, entry)
    if header is None:
        # Frames behind a damaged header are kept for a closer look.
        is_empty = entry.kind is EntryKind.FILE and not holds_frames(fs, path, seed)
    else:
        # Its creation had failed if another segment took its place.
        is_empty = header.base_serial <= _last_base(entries)
    if is_empty:
        remove_file(fs, path)
        return
    if header is not None and is_ours(header):
        fs.rename(path, segment_path(directory, header.base_serial))
    else:
        move_aside(fs, path)
    fs.sync_directory(directory)


def takes_rows(fs: FileSystem, path: PurePath, entry: DirectoryEntry) -> bool:
    """Return whether a prepared file has a frame behind its state: it was renamed once, and a power
    cut has taken back its name.
    """
    begun = _begun(fs, path, entry)
    if begun is None:
        return False
    segment, end = begun
    return any(segment.view[end : end + HEADER_BYTES])


def begun_header(fs: FileSystem, path: PurePath, entry: DirectoryEntry) -> SegmentHeader | None:
    """Return the header of a prepared file that was begun as a segment, with a valid state frame;
    None if it has no rows.
    """
    begun = _begun(fs, path, entry)
    return None if begun is None else begun[0].header


def _begun(fs: FileSystem, path: PurePath, entry: DirectoryEntry) -> tuple[Segment, int] | None:
    """Return a segment that was begun, and where its state frame ends."""
    if entry.kind is not EntryKind.FILE or entry.size_bytes < SEGMENT_HEADER_BYTES:
        return None
    with fs.open(path, writable=False) as file:
        view = file.map(writable=False)
    try:
        segment = Segment(path, view)
        state = segment.header_at(SEGMENT_HEADER_BYTES, segment.header.file_bytes)
    except CorruptionError:
        return None
    if state is None or not crc_matches(view, SEGMENT_HEADER_BYTES, state, segment.header.seed):
        return None
    return segment, SEGMENT_HEADER_BYTES + state.length


def _last_base(entries: Sequence[DirectoryEntry]) -> int:
    bases = [int(PurePath(entry.name).stem) for entry in entries if is_segment(entry)]
    return max(bases, default=-1)


class BackgroundWork:
    """Work on a thread of its own, one piece after another. It belongs to one thread."""

    def __init__(self) -> None:
        # Not of an executor: that begins nothing after the end of the main thread, although other
        # threads of the process may still write.
        self._thread: Thread | None = None
        self._error: BaseException | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether the last piece has not ended."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self, name: str, work: Callable[[], None]) -> bool:
        """Start a piece of work; return False if the process may have no more threads.

        Raises: the error of the piece before it.
        """
        self.wait()
        thread = Thread(target=self._run, args=(work,), name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as exc:  # noqa: BLE001 - raised by `wait`
            self._error = exc

    def wait(self) -> None:
        """Wait until the last piece has ended. Raises: its error, once."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        error, self._error = self._error, None
        if error is not None:
            raise error
