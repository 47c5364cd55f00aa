"""The segments of one slab, in order of their serials.

The last segment may be unsealed; all segments before it have an index file. `sift.py` distinguishes
segments from foreign files, which are counted and not touched. A handle needs little memory until
its segment is read.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import PurePath
from typing import Final

from siltstone.errors import CorruptionError, OverloadedError, StorageFullError
from siltstone.fs.api import DirectoryEntry, EntryKind, FileSystem
from siltstone.fs.publish import move_aside, replace_file, sync_or_defer
from siltstone.store.segment.ahead import (
    PREPARED,
    BackgroundWork,
    PreparedSegment,
    begin_prepared,
    discard,
    prepare_segment,
)
from siltstone.store.segment.body import encode_state
from siltstone.store.segment.frame import HEADER_BYTES, PRODUCERS, STATE, FrameHeader
from siltstone.store.segment.index import SegmentSummary, decode_index, encode_index
from siltstone.store.segment.segment import (
    SEGMENT_HEADER_BYTES,
    Segment,
    SegmentHeader,
    open_segment,
    segment_path,
)
from siltstone.store.segment.sift import (
    UNKNOWN,
    SlabBounds,
    index_path,
    is_segment,
    list_segments,
    read_summary,
)
from siltstone.store.segment.writer import SegmentWriter, create_segment

# The most frames that are added to the word index when a segment is sealed.
_WORDS_MAX: Final = 1 << 16


class SegmentHandle:
    """A segment of a chain, opened when it is first needed."""

    def __init__(self, fs: FileSystem, path: PurePath, segment: Segment | None = None) -> None:
        self._fs = fs
        self._segment = segment
        self.path = path
        self.base_serial = int(path.stem)
        self.summary: SegmentSummary | None = None
        self._edges: list[bytes] = []
        self._producers: memoryview | None = None

    @property
    def sealed(self) -> bool:
        """Whether the segment accepts no more frames."""
        return self.summary is not None

    @property
    def next_serial(self) -> int:
        """The serial after the last visible row."""
        return (
            self.segment().index.next_serial if self.summary is None else self.summary.next_serial
        )

    def segment(self) -> Segment:
        """Return the mapped segment with its index. Raises: CorruptionError."""
        if self._segment is None:
            segment = open_segment(self._fs, self.path)
            if segment.header.base_serial != self.base_serial:
                raise CorruptionError(
                    "the segment has the name of another one: "
                    f"it begins with serial {segment.header.base_serial}",
                    path=self.path,
                )
            if self.summary is None:
                self._edges = segment.follow()
            elif not self._load_index(segment):
                # The index may belong to the frames before or after a compaction.
                end = 0 if segment.is_compacted else self.summary.end_position
                self._edges = segment.follow(stands_to=max(end, segment.synced_position))
            self._segment = segment
        return self._segment

    def reopen(self) -> None:
        """Use the files that replaced the segment and its index. From any thread.

        Readers of the old segment go on with it. Raises: CorruptionError.
        """
        successor = SegmentHandle(self._fs, self.path)
        successor.mark_sealed()
        segment = successor.segment()
        self._edges, self._producers = successor._edges, successor._producers
        self.summary = successor.summary
        self._segment = segment

    def is_replaced(self, file_bytes: int) -> bool:
        """Return whether another file replaced this one: a segment without rows was too small, or
        a segment was compacted.
        """
        segment = self._segment
        return segment is not None and segment.header.file_bytes != file_bytes

    def edges(self) -> list[bytes]:
        """Return the learned structure at the end of the segment, as edges to apply in order."""
        self.segment()
        return self._edges

    def producers(self) -> bytes:
        """Return the producers at the end of a sealed segment, as blocks to apply in order."""
        segment = self.segment()
        if self._producers is not None:
            return bytes(self._producers)
        segment.check_whole()
        frames = (segment.frame(number) for number in range(segment.index.frame_count))
        return b"".join(bytes(frame.section(PRODUCERS) or b"") for frame in frames)

    def follow(self, *, ended: bool = False) -> list[bytes]:
        """Index the frames that became visible since the last call; return the new edges.

        If the segment has ended, every visible frame must be valid.
        """
        segment = self.segment()
        edges = segment.follow(stands_to=segment.visible_position if ended else 0)
        self._edges.extend(edges)
        return edges

    @property
    def is_damaged(self) -> bool:
        """Whether the index of the segment stops at a damaged frame."""
        return self._segment is not None and self._segment.damage is not None

    def check_whole(self) -> None:
        """Raise CorruptionError if the index of the segment stops at a damaged frame."""
        if self._segment is not None:
            self._segment.check_whole()

    def check_reaches(self, base_serial: int) -> None:
        """Raise CorruptionError unless the rows reach the next segment, which begins at this
        serial.

        A damaged segment is not checked: its last serial is unknown, and reading it raises the
        error.
        """
        end = self.next_serial
        if not self.sealed:
            segment = self.segment()
            if segment.damage is not None:
                return
            end = max(end, segment.credible_reserved())
        if problem := order_problem(self.base_serial, end, base_serial):
            raise CorruptionError(problem, path=self.path)

    def mark_sealed(self) -> bool:
        """Read the summary of the index file; return False if there is no valid index file."""
        if self.summary is None:
            summary = read_summary(self._fs, self.path)
            if summary is None:
                return False
            if self._segment is not None:
                # A sealed segment has all its frames. Index them before other threads see it as
                # sealed.
                self.follow()
            self.summary = summary
        return True

    def _load_index(self, segment: Segment) -> bool:
        """Map the index file; return False if it is damaged or belongs to other frames of the
        segment. The caller then scans the segment.
        """
        path = index_path(self.path)
        try:
            with self._fs.open(path, writable=False) as file:
                sealed = decode_index(file.map(writable=False), path)
        except CorruptionError:
            return False
        if sealed.revision != segment.header.revision:
            return False
        segment.index = sealed.index
        self._edges = [bytes(sealed.structure)]
        self._producers = sealed.producers
        return True


class Chain:
    """The handles of a slab. A reader takes `handles` once and works on that tuple."""

    def __init__(self, fs: FileSystem, directory: PurePath, bounds: SlabBounds = UNKNOWN) -> None:
        self._fs = fs
        self.directory = directory
        self.bounds = bounds
        self.handles: tuple[SegmentHandle, ...] = ()
        # Foreign files, by name and size: each is opened only once.
        self._foreign: set[tuple[str, int]] = set()

    def handle_at_serial(self, serial: int) -> int:
        """Return the number of the first handle that may hold the serial or a later one."""
        return max(0, bisect_right(self.handles, serial, key=_base_serial) - 1)

    def refresh(self, *, ended: bool = False) -> list[bytes]:
        """Read what another process wrote since the last call; return the edges that it learned.

        `ended` means that no process writes to the slab any more.

        Raises: NotFoundError when the slab was dropped; CorruptionError.
        """
        entries = self._fs.list(self.directory)
        sizes = {entry.name: entry.size_bytes for entry in entries}
        known = {
            handle.path.name: handle
            for handle in self.handles
            if not handle.is_replaced(sizes.get(handle.path.name, 0))
        }
        refuse_lost(self._fs, self.directory, entries)
        handles = [
            known.get(name) or SegmentHandle(self._fs, self.directory / name)
            for name in self._names(entries, known)
        ]
        edges: list[bytes] = []
        for handle in handles:
            if handle.path.name not in known:
                handle.mark_sealed()
            elif not handle.sealed:
                seen = len(handle.edges())
                if not handle.mark_sealed():
                    handle.follow()
                edges.extend(handle.edges()[seen:])
        if handles and handles[-1].path.name not in known:
            edges.extend(handles[-1].edges())
        for before, after in pairwise(handles):
            before.check_reaches(after.base_serial)
        self.handles = tuple(handles)
        return edges + self._last_edges(ended=ended)

    def _names(self, entries: Sequence[DirectoryEntry], known: Container[str]) -> list[str]:
        """Return the names of the slab's segments; open files only if one of them is new."""
        named = [
            entry
            for entry in entries
            if is_segment(entry) and (entry.name, entry.size_bytes) not in self._foreign
        ]
        if all(entry.name in known for entry in named):
            return [entry.name for entry in named]
        segments, foreign = list_segments(self._fs, self.directory, named, self.bounds)
        sizes = {entry.name: entry.size_bytes for entry in named}
        self._foreign |= {(name, sizes[name]) for name in foreign}
        return [entry.name for entry in segments]

    def _last_edges(self, *, ended: bool) -> list[bytes]:
        # The last segment of an ended slab is unsealed only if its index is damaged or missing.
        # Then only its frames can show that none is lost.
        if ended and self.handles and not self.handles[-1].sealed:
            return self.handles[-1].follow(ended=True)
        return []


def order_problem(base: int, reached: int, next_base: int) -> str:
    """Return the problem between two neighbouring segments, "" if there is none.

    The first segment begins at `base` and reaches to `reached`; the next one begins at `next_base`.
    They must adjoin. Behind a segment without rows one serial is skipped, because the file name of
    this serial is taken.
    """
    if next_base > reached + (reached == base):
        return f"a segment is missing: expected serial {reached}, found {next_base}"
    if next_base < reached:
        return f"its serials reach to {reached}, but {next_base} begins the next"
    return ""


def _base_serial(handle: SegmentHandle) -> int:
    return handle.base_serial


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    """A segment that accepts no more frames and has no index yet, and what the index gets."""

    handle: SegmentHandle
    segment: Segment
    structure: bytes
    producers: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SlabIdentity:
    """The fields that the headers of all segments of a slab share."""

    database: str
    shard: int
    generation: int
    seed: int
    salt: int = 0
    topic: str = ""

    def owns(self, header: SegmentHeader) -> bool:
        """Return whether a segment with this header belongs to the slab."""
        found = (header.database, header.shard, header.generation, header.seed)
        return found == (self.database, self.shard, self.generation, self.seed)


class ChainWriter:
    """Writes the end of a chain. It belongs to the committer of the shard.

    When a segment is nearly full, a thread of its own prepares the next one. If it is ready in
    time, a new segment takes one sync of a file. The thread also writes the index of the segment
    before it, later. Both threads never work on the same thing: the owner waits for the other.
    """

    def __init__(
        self,
        fs: FileSystem,
        chain: Chain,
        identity: SlabIdentity,
        *,
        sealed_bytes: int,
        packs: bool = True,
    ) -> None:
        """Begin without an active segment; `packs` says whether new ones may have packed frames."""
        self._fs = fs
        self.chain = chain
        self._identity = identity
        self._sealed_bytes = sealed_bytes
        self.active: SegmentWriter | None = None
        # See SegmentWriter.
        self._notes_sync = True
        self._packs = packs
        # Whether a name or an index is not durable, or the last work may have an error.
        self.is_unfinished = False
        # Belong to the work while it is under way.
        self._background = BackgroundWork()
        self._prepared: PreparedSegment | None = None
        # Whether there was no space to prepare the segment after the active one.
        self._gave_up = False
        self._ended: list[_Ended] = []
        # Whether a power cut may take back the name of the active segment.
        self._is_renamed = False
        # Whether the thread wrote an index whose space is not counted yet.
        self._is_unmeasured = False

    @property
    def seed(self) -> int:
        """The seed of the checksums of all frames."""
        return self._identity.seed

    @property
    def packs(self) -> bool:
        """Whether the next frame may be packed."""
        return self._packs and self.active is not None and self.active.segment.header.packs

    def size_bytes(self) -> int:
        """Return the disk space of the chain in bytes."""
        active = 0 if self.active is None else self.active.allocated_bytes
        return self._sealed_bytes + active

    def measure(self) -> None:
        """Measure the disk space of the sealed segments again: files of them were replaced."""
        active = self.chain.handles[-1].path.name if self.active is not None else ""
        self._sealed_bytes = directory_bytes(self._fs, self.chain.directory, but=active)

    def forget_syncs(self) -> None:
        """From now on, do not write into frames how far this site had synced, because all sites
        write the same bytes. They may have different versions, so no frame is packed.
        """
        self._notes_sync = False
        self._packs = False
        if self.active is not None:
            self.active.notes_sync = False

    def used_bytes(self) -> int:
        """Return the disk space of the chain in bytes, without space that is allocated ahead."""
        active = 0 if self.active is None else self.active.end_position
        return self._sealed_bytes + active

    def adopt(self, writer: SegmentWriter) -> None:
        """Continue to write a recovered segment, the last one of the chain."""
        self.active = writer
        last = self.chain.handles[-1]
        handle = SegmentHandle(self._fs, last.path, writer.segment)
        self.chain.handles = (*self.chain.handles[:-1], handle)

    def start(
        self,
        *,
        serial: int,
        timestamp_us: int,
        structure: bytes,
        producers: bytes,
        created_us: int,
        segment_bytes: int,
        room_bytes: int = 0,
        claim: tuple[int, int] | None = None,
    ) -> None:
        """Begin a segment at this serial, with the current state in its first frame.

        If the state and `room_bytes` need more than `segment_bytes`, the file is larger. `claim` is
        the next serial and the last time of a frame of `room_bytes`: its space is claimed at once.
        """
        body, sections = encode_state(structure, producers)
        state = state_header(body, sections, serial=serial, timestamp_us=timestamp_us)
        kept = self.chain.handles
        if kept and kept[-1].base_serial == serial:
            # The last segment has no rows and is too small. The new one takes its name.
            kept = kept[:-1]
        else:
            move_aside(self._fs, segment_path(self.chain.directory, serial))
        move_aside(self._fs, index_path(segment_path(self.chain.directory, serial)))
        needed = SEGMENT_HEADER_BYTES + HEADER_BYTES + len(body) + room_bytes
        header = SegmentHeader(
            database=self._identity.database,
            shard=self._identity.shard,
            generation=self._identity.generation,
            base_serial=serial,
            file_bytes=max(segment_bytes, (needed + 4095) & ~4095),
            created_us=created_us,
            seed=self._identity.seed,
            salt=self._identity.salt,
            topic=self._identity.topic,
            packs=self._packs,
        )
        writer = self._created(header, state, body, is_new=kept is self.chain.handles)
        if claim is not None:
            next_serial, last_us = claim
            # Claim the space before another thread can take a room in the segment.
            fits = writer.claim(room_bytes, next_serial=next_serial, last_timestamp_us=last_us)
            assert fits, "the segment was made for this frame"
        if self.active is not None:
            self.active.close()
        writer.notes_sync = self._notes_sync
        self.active = writer
        self._gave_up = False
        handle = SegmentHandle(self._fs, writer.segment.path, writer.segment)
        self.chain.handles = (*kept, handle)

    def _created(
        self, header: SegmentHeader, state: FrameHeader, body: bytes, *, is_new: bool
    ) -> SegmentWriter:
        """Create a segment, in the prepared file if there is one of its size."""
        self._background.wait()
        directory = self.chain.directory
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            name = segment_path(directory, header.base_serial)
            if is_new and len(prepared.view) == header.file_bytes and not self._fs.exists(name):
                writer = begin_prepared(self._fs, directory, prepared, header, state, body)
                self._is_renamed = self.is_unfinished = True
                return writer
            discard(self._fs, prepared)
        self._write_indexes()
        return create_segment(self._fs, directory, header, state, body)

    def prepare_ahead(self) -> None:
        """Let a thread prepare the next segment and write the index of the one before, if that is
        due. Raises: the error of the last time.
        """
        if self._background.is_under_way:
            return
        self._background.wait()
        if self._is_unmeasured:
            self._is_unmeasured = False
            self.measure()
        self.is_unfinished = self._is_renamed or len(self._ended) > 0
        active = self.active
        is_due = active is not None and active.is_nearly_full() and not self._gave_up
        wants = is_due and self._prepared is None
        if wants or self.is_unfinished:
            place = f"{self._identity.shard}-{self._identity.generation}"
            self.is_unfinished = True
            self._background.begin(f"siltstone-ahead-{place}", self._prepare)

    def wait_ahead(self) -> None:
        """Wait until the thread that prepares has ended. Raises: its error."""
        self._background.wait()

    def _prepare(self) -> None:
        self._write_indexes()
        active = self.active
        if self._prepared is None and active is not None and active.is_nearly_full():
            file_bytes = active.segment.header.file_bytes
            # On a full disk, or without a free descriptor, the segment is created or refused when
            # it is needed.
            self._gave_up = True
            with suppress(StorageFullError, OverloadedError):
                self._prepared = prepare_segment(self._fs, self.chain.directory, file_bytes)
                self._gave_up = False

    def end(self, *, structure: bytes, producers: bytes) -> None:
        """End the active segment: it accepts no more frames. If the next one is prepared, its index
        is written later.
        """
        self._background.wait()
        assert self.active is not None
        # The rebuilt index of a segment with a reserved serial would reach past the next segment.
        if self._prepared is None or self.active.segment.reserved_serial:
            self.seal(structure=structure, producers=producers)
            return
        ended = _Ended(
            handle=self.chain.handles[-1],
            segment=self.active.segment,
            structure=structure,
            producers=producers,
        )
        self._ended.append(ended)
        self.is_unfinished = True
        self._sealed_bytes += self.active.allocated_bytes
        self.active.close()
        self.active = None

    def seal(self, *, structure: bytes, producers: bytes) -> None:
        """Write the index of the active segment. The segment accepts no more frames after this."""
        self._background.wait()
        self._write_indexes()
        assert self.active is not None
        segment = self.active.segment
        seal_segment(self._fs, segment, structure=structure, producers=producers)
        self._sealed_bytes = directory_bytes(self._fs, self.chain.directory)
        self.chain.handles[-1].summary = segment.index.summary()
        self.active.close()
        self.active = None

    def finish(self) -> None:
        """Write the indexes that are missing, and remove the prepared file. Raises: DiskError."""
        self._background.wait()
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            discard(self._fs, prepared)
        self._write_indexes()

    def abandon(self) -> None:
        """Wait for the thread, and close the prepared file. The next start does the rest."""
        # The thread must not change the directory when another writer has it.
        with suppress(Exception):
            self._background.wait()
        prepared, self._prepared = self._prepared, None
        if prepared is not None:
            prepared.file.close()

    def _write_indexes(self) -> None:
        """Make the names of the segments durable, and write the indexes that are missing."""
        if self._is_renamed:
            sync_or_defer(self._fs, self.chain.directory)
            self._is_renamed = False
        while self._ended:
            ended = self._ended[0]
            seal_segment(
                self._fs, ended.segment, structure=ended.structure, producers=ended.producers
            )
            ended.handle.summary = ended.segment.index.summary()
            del self._ended[0]
            self._is_unmeasured = True


def state_header(body: bytes, sections: int, *, serial: int, timestamp_us: int) -> FrameHeader:
    """Return the header of a state frame: it has no rows, but it has a serial and a time."""
    return FrameHeader(
        kind=STATE,
        compression=0,
        section_count=sections,
        first_serial=serial,
        row_count=0,
        stream_count=0,
        first_timestamp_us=timestamp_us,
        last_timestamp_us=timestamp_us,
        body_bytes=len(body),
    )


def seal_segment(fs: FileSystem, segment: Segment, *, structure: bytes, producers: bytes) -> None:
    """Write the index file of a segment durably; move aside anything there that is not a file."""
    path = index_path(segment.path)
    kinds = {entry.name: entry.kind for entry in fs.list(path.parent)}
    if kinds.get(path.name, EntryKind.FILE) is not EntryKind.FILE:
        move_aside(fs, path)
    if segment.index.frame_count - segment.index.words.count <= _WORDS_MAX:
        # More are missing only if the segment was recovered, and rows must not wait for that long.
        segment.index_words(1)
    revision = segment.header.revision
    data = encode_index(segment.index, structure=structure, producers=producers, revision=revision)
    replace_file(fs, path, data)


def directory_bytes(fs: FileSystem, directory: PurePath, *, but: str = "") -> int:
    """Return the disk space of the files of a slab in bytes, without the file named `but` and a
    prepared segment, which is counted when it begins.
    """
    omitted = (but, PREPARED)
    return sum(entry.allocated_bytes for entry in fs.list(directory) if entry.name not in omitted)


def lost_segments(
    fs: FileSystem, directory: PurePath, entries: Sequence[DirectoryEntry]
) -> dict[int, SegmentSummary]:
    """Return the summaries of missing segments whose index exists, by base serial."""
    names = {entry.name for entry in entries if is_segment(entry)}
    lost: dict[int, SegmentSummary] = {}
    for entry in entries:
        if not entry.name.endswith(".idx"):
            continue
        segment = f"{entry.name[:-4]}.seg"
        if segment not in names and is_segment(replace(entry, name=segment)):
            handle = SegmentHandle(fs, directory / segment)
            # An invalid index proves nothing: it may be a foreign file.
            if handle.mark_sealed() and handle.summary is not None:
                lost[handle.base_serial] = handle.summary
    return lost


def refuse_lost(fs: FileSystem, directory: PurePath, entries: Sequence[DirectoryEntry]) -> None:
    """Raise CorruptionError if an index exists without its segment."""
    for base_serial in lost_segments(fs, directory, entries):
        raise CorruptionError(
            "the segment is missing, but its index exists",
            path=segment_path(directory, base_serial),
        )
