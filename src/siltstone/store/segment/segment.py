"""One mapped file of frames: its header, and how it is read.

    0     4  magic `KASK`
    4     4  version: 1, 2 if the segment was compacted, or 3 if it may have packed frames
    8     8  size of the file
    16    8  base serial: that of the first row
    24    4  shard
    28    4  generation
    32    8  created, timestamp_us
    40    4  seed of the frames' CRCs
    44    4  layout, 1 = log
    48    2  length of the database's name, then the name in UTF-8
    308   4  revision: 0, or how often the file was rewritten by compaction
    312   8  salt of the database, 0 if it is unknown
    320   2  length of the topic's name, 0 except in topic logs; then the name in UTF-8
    2044  4  CRC-32C of bytes 0 to 2043
    2048  8  visible position: readers may read up to here
    2112  8  synced position: everything before it survived a sync
    2176  8  reserved serial: readers may have seen serials below it whose rows were not synced
    4096     frames, the first a state frame

The three positions have a cache line each. Each is written through the map with one 8-byte store,
so another process reads either the old or the new value. A position is updated after the operation
that it describes, never before. A synced position on the disk is therefore always true, although it
may not be the newest.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from threading import Lock
from typing import Final

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from siltstone.errors import CorruptionError
from siltstone.fs.api import FileSystem
from siltstone.store.segment.frame import (
    EDGES,
    PRODUCERS,
    ROOM,
    TOPIC_OFFSETS,
    TOPICS,
    FrameFormatError,
    FrameHeader,
    crc_matches,
    decode_directory,
    decode_header,
    find_frames,
)
from siltstone.store.segment.index import NO_WORDS, Frames, NeededWords, SegmentIndex
from siltstone.store.segment.table import (
    TABLE_FRAMES,
    FrameTable,
    Ints,
    are_tabular,
    column_of,
    numbers_of,
    spread,
)
from siltstone.store.segment.view import FrameView, open_frame
from siltstone.store.segment.walker import CHECKSUM, MISSING, FrameWalk
from siltstone.topic.word_index import RUN_FRAMES

MAGIC: Final = b"KASK"
VERSION: Final = 1
COMPACTED_VERSION: Final = 2
PACKED_VERSION: Final = 3
# Frames are indexed many at a time; a few at the end, and unusual ones, one by one.
_INDEXED: Final = 1 << 13
_WALKED: Final = 16
# The most frames that are added to the word index at once, and the most rows of one of them. In
# larger frames a filter costs little for each row.
WORDS_AHEAD: Final = 1 << 10
WORDS_ROWS: Final = 1 << 8
# Adding a frame to the word index costs as much as looking for a word in it this many times.
_WORDS_COST: Final = 2
# A single frame with fewer rows is opened by itself, which costs less.
_SINGLE_ROWS: Final = 64
LAYOUT_LOG: Final = 1
SEGMENT_HEADER_BYTES: Final = 4096
SEGMENT_BYTES_MIN: Final = 64 * 1024
NAME_BYTES_MAX: Final = 255
_FIXED: Final = struct.Struct("<4sIQQIIqIIH")
_CRC_OFFSET: Final = 2044
_ORIGIN: Final = struct.Struct("<QH")
_REVISION_OFFSET: Final = 308
_ORIGIN_OFFSET: Final = 312
TOPIC_BYTES_MAX: Final = _CRC_OFFSET - _ORIGIN_OFFSET - _ORIGIN.size
VISIBLE: Final = 2048 // 8
SYNCED: Final = 2112 // 8
RESERVED: Final = 2176 // 8
# A reserved serial is ahead by at most the rows of one frame and one step of reserving.
RESERVE_REACH: Final = 1 << 25


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """The fixed fields of a segment's header."""

    database: str
    shard: int
    generation: int
    base_serial: int
    file_bytes: int
    created_us: int
    seed: int
    # Needed to rebuild a lost manifest. Segments of earlier versions have neither.
    salt: int = 0
    topic: str = ""
    # How often compaction rewrote the file: the rows are the same, the frames are others.
    revision: int = 0
    # Whether there may be packed frames, which earlier versions cannot read.
    packs: bool = False

    @property
    def version(self) -> int:
        """The version of the format of the file."""
        if self.revision:
            return COMPACTED_VERSION
        return PACKED_VERSION if self.packs else VERSION

    def encode(self, *, end: int) -> bytes:
        """Return the first 4 KiB of a file whose frames are synced and visible up to `end`."""
        name = self.database.encode()
        assert len(name) <= NAME_BYTES_MAX
        data = bytearray(SEGMENT_HEADER_BYTES)
        _FIXED.pack_into(
            data,
            0,
            MAGIC,
            self.version,
            self.file_bytes,
            self.base_serial,
            self.shard,
            self.generation,
            self.created_us,
            self.seed,
            LAYOUT_LOG,
            len(name),
        )
        data[_FIXED.size : _FIXED.size + len(name)] = name
        topic = self.topic.encode()
        if len(topic) > TOPIC_BYTES_MAX:
            # The rows contain the topic too.
            topic = b""
        _ORIGIN.pack_into(data, _ORIGIN_OFFSET, self.salt, len(topic))
        start = _ORIGIN_OFFSET + _ORIGIN.size
        data[start : start + len(topic)] = topic
        struct.pack_into("<I", data, _REVISION_OFFSET, self.revision)
        struct.pack_into("<I", data, _CRC_OFFSET, crc32c(bytes(data[:_CRC_OFFSET])))
        struct.pack_into("<Q", data, VISIBLE * 8, end)
        struct.pack_into("<Q", data, SYNCED * 8, end)
        return bytes(data)

    @classmethod
    def decode(cls, view: memoryview, path: PurePath) -> SegmentHeader:
        """Read the header of a mapped file. Raises: CorruptionError."""
        if len(view) < SEGMENT_HEADER_BYTES or bytes(view[:4]) != MAGIC:
            raise CorruptionError("not a segment: the file does not begin with KASK", path=path)
        (crc,) = struct.unpack_from("<I", view, _CRC_OFFSET)
        if crc32c(view[:_CRC_OFFSET]) != crc:
            raise CorruptionError(
                "the header of the segment does not match its checksum", path=path
            )
        fields = _FIXED.unpack_from(view)
        (revision,) = struct.unpack_from("<I", view, _REVISION_OFFSET)
        known = (COMPACTED_VERSION,) if revision else (VERSION, PACKED_VERSION)
        if fields[1] not in known or fields[8] != LAYOUT_LOG:
            reason = f"unknown version {fields[1]} of a segment (supported: 1 to {PACKED_VERSION})"
            raise CorruptionError(reason, path=path)
        if fields[2] != len(view):
            reason = f"segment has {len(view)} bytes instead of {fields[2]}"
            raise CorruptionError(reason, path=path)
        name = bytes(view[_FIXED.size : _FIXED.size + fields[9]])
        salt, topic_bytes = _ORIGIN.unpack_from(view, _ORIGIN_OFFSET)
        topic_at = _ORIGIN_OFFSET + _ORIGIN.size
        return cls(
            database=name.decode(),
            shard=fields[4],
            generation=fields[5],
            base_serial=fields[3],
            file_bytes=fields[2],
            created_us=fields[6],
            seed=fields[7],
            salt=salt,
            topic=bytes(view[topic_at : topic_at + topic_bytes]).decode(),
            revision=revision,
            packs=fields[1] == PACKED_VERSION,
        )


def declared_bytes(head: bytes) -> int:
    """Return the file size in a valid header, 0 if the header is invalid."""
    if len(head) < SEGMENT_HEADER_BYTES or head[:4] != MAGIC:
        return 0
    (crc,) = struct.unpack_from("<I", head, _CRC_OFFSET)
    return int(_FIXED.unpack_from(head)[2]) if crc32c(head[:_CRC_OFFSET]) == crc else 0


class Segment:
    """A mapped segment. Any number of threads read it; one thread adds to its index, as the writer
    or in `follow`.
    """

    def __init__(self, path: PurePath, view: memoryview) -> None:
        self.path = path
        self.view = view
        self.header = SegmentHeader.decode(view, path)
        self.buffer = pa.py_buffer(view)
        self.index = SegmentIndex(
            first_serial=self.header.base_serial, end_position=SEGMENT_HEADER_BYTES
        )
        self.cells = view[:SEGMENT_HEADER_BYTES].cast("Q")
        # The error of the first invalid frame before the expected end, if there is one.
        self.damage: CorruptionError | None = None
        # A compacted frame that a reader will probably read further.
        self.kept: tuple[int, FrameTable] | None = None
        # The compacted frames that are kept open for readers of a few rows, by number.
        self.opened: dict[int, FrameTable] = {}
        # The number of frames that readers with filters looked at.
        self._asked = 0
        # Held while frames are added to the word index.
        self._words_lock = Lock()

    @property
    def visible_position(self) -> int:
        """The position where readers must stop."""
        return self.cells[VISIBLE]

    @property
    def synced_position(self) -> int:
        """The position up to which the header says that data survived a sync."""
        return self.cells[SYNCED]

    @property
    def reserved_serial(self) -> int:
        """Readers may have seen serials below this one whose rows were not synced."""
        return self.cells[RESERVED]

    def credible_reserved(self) -> int:
        """Return the reserved serial, limited to plausible values: no checksum covers it."""
        return min(self.reserved_serial, self.index.next_serial + RESERVE_REACH)

    @property
    def is_compacted(self) -> bool:
        """Whether the frames were rewritten by compaction."""
        return self.header.revision > 0

    def frame(self, number: int) -> FrameView:
        """Open a frame; its checksum is verified the first time. Raises: CorruptionError."""
        return self.open_frame(self.index.positions[number], self.checked_header(number))

    def checked_header(self, number: int) -> FrameHeader:
        """Return the header of a frame whose checksum is verified the first time.

        Raises: CorruptionError.
        """
        index = self.index
        position = index.positions[number]
        header = self.header_at(position, self.header.file_bytes)
        if header is None:
            raise CorruptionError(
                "a frame is missing that was read before", path=self.path, offset=position
            )
        if not index.verified[number]:
            if not crc_matches(self.view, position, header, self.header.seed):
                raise CorruptionError(CHECKSUM, path=self.path, offset=position)
            if (header.first_serial, header.row_count) != (
                index.serials[number],
                index.row_counts[number],
            ):
                raise CorruptionError(
                    "the frame does not match the index", path=self.path, offset=position
                )
            index.verified[number] = 1
        return header

    def open_frames(self, numbers: Sequence[int]) -> Iterator[FrameView | FrameTable]:
        """Open frames in order, plain and packed ones many at a time. Raises: CorruptionError."""
        index = self.index
        start, stop = numbers[0], numbers[-1] + 1
        chosen = numbers_of(numbers) - start
        fits = are_tabular(self.view, column_of(index.positions[start:stop], np.int64)[chosen])
        bounds = np.flatnonzero(fits[1:] != fits[:-1]) + 1
        for first, last in pairwise([0, *bounds.tolist(), len(numbers)]):
            left = numbers[first:last]
            several = len(left) > 1 or index.row_counts[left[0]] > _SINGLE_ROWS
            while left:
                table = self.table(left) if fits[first] and several else None
                if table is not None:
                    yield table
                    left = left[len(table) :]
                if left:
                    # A frame that does not fit in a table, or at which the table ended.
                    yield self.frame(left[0])
                    left = left[1:]

    def table(self, numbers: Sequence[int]) -> FrameTable | None:
        """Open many frames at once, up to the first one that does not belong into a table. Return
        None if that is the first of all: open it with `frame`.

        The checksum of a frame is verified the first time.
        """
        index = self.index
        start, stop = numbers[0], numbers[-1] + 1
        chosen = numbers_of(numbers) - start
        positions = column_of(index.positions[start:stop], np.int64)[chosen]
        table = FrameTable(self.view, self.buffer, positions, self.header.file_bytes)
        chosen = chosen[: len(table)]
        fits = table.first_serials == column_of(index.serials[start:stop], np.int64)[chosen]
        fits &= table.row_counts == column_of(index.row_counts[start:stop], np.uint32)[chosen]
        table.keep_first(fits)
        self._keep_verified(table, chosen[: len(table)] + start)
        return table if len(table) else None

    def _keep_verified(self, table: FrameTable, numbers: Ints) -> None:
        """Check the frames of a table that are not verified; these are their numbers."""
        if not len(numbers):
            return
        verified, first = self.index.verified, int(numbers[0])
        # A copy: the writer cannot add frames to a bytearray while an array shows its bytes.
        copied = np.frombuffer(bytes(verified[first : int(numbers[-1]) + 1]), np.uint8)
        checked = copied[numbers - first]
        if checked.all():
            return
        table.keep_checked(self.header.seed, checked.tolist())
        count = len(table)
        if count and int(numbers[count - 1]) - first == count - 1:
            verified[first : first + count] = b"\1" * count
        else:
            for number in numbers[:count].tolist():
                verified[number] = 1

    def small_frames(self, position: int, serial: int, limit: int) -> FrameTable | None:
        """Open the small frames at a position all at once; return None if there are too few.

        The table ends before a frame that is not small, damaged or compressed, or whose serials do
        not follow those of the frame before it. All frames are checked.
        """
        found = find_frames(self.view, position, limit, TABLE_FRAMES, small=True)
        if len(found) < _WALKED:
            return None
        table = FrameTable(self.view, self.buffer, np.array(found, np.int64), limit)
        table.keep_limits()
        table.keep_following(serial)
        if len(table) < _WALKED:
            return None
        table.keep_checked(self.header.seed)
        return table if len(table) else None

    def header_at(self, position: int, limit: int) -> FrameHeader | None:
        """Decode a frame's header; None at the clean end. Raises: CorruptionError."""
        try:
            return decode_header(self.view, position, limit)
        except FrameFormatError as exc:
            raise CorruptionError(str(exc), path=self.path, offset=position) from exc

    def frames_for(
        self,
        streams: Collection[int],
        serials: range,
        *,
        since_us: int = 0,
        until_us: int | None = None,
        most: int | None = None,
        needed: NeededWords = NO_WORDS,
    ) -> Frames:
        """Return the frames as `SegmentIndex.frames_for` does, with all words that are useful."""
        index = self.index
        if needed:
            first, stop = index.frames_between(serials, since_us, until_us)
            self.index_words_for(stop - first)
        return index.frames_for(
            streams, serials, since_us=since_us, until_us=until_us, most=most, needed=needed
        )

    def index_words_for(self, frames: int) -> None:
        """Count the frames that readers with filters look at. Once this has cost about as much as
        adding the frames that are missing in the word index, add them.
        """
        self._asked += frames
        missing = self.index.frame_count - self.index.words.count
        if WORDS_AHEAD <= missing <= self._asked // _WORDS_COST:
            self.index_words(WORDS_AHEAD)

    def index_words(self, least: int) -> None:
        """Add the frames that are missing in the word index, until fewer than `least` are missing.

        From any thread. A frame that is large, or that no table holds, is added as unknown.
        """
        index = self.index
        with self._words_lock:
            while (missing := index.frame_count - index.words.count) >= least:
                self._add_words(min(missing, RUN_FRAMES))

    def index_words_behind_writer(self) -> None:
        """Add the last frames to the word index, if the others are in it.

        Maintenance calls this after flushes, and must not wait for a reader that adds many.
        """
        index = self.index
        behind = index.frame_count - index.words.count
        if WORDS_AHEAD <= behind < 2 * WORDS_AHEAD and self._words_lock.acquire(blocking=False):
            try:
                if index.frame_count - index.words.count >= WORDS_AHEAD:
                    self._add_words(WORDS_AHEAD)
            finally:
                self._words_lock.release()

    def _add_words(self, count: int) -> None:
        words, start = self.index.words, self.index.words.count
        rows = column_of(self.index.row_counts[start : start + count], np.uint32)
        positions = column_of(self.index.positions[start : start + count], np.int64)
        small = (rows > 0) & (rows <= WORDS_ROWS)
        small[small] = are_tabular(self.view, positions[small])
        left = (np.flatnonzero(small) + start).tolist()
        pairs: list[tuple[Ints, pa.Array]] = []
        while left:
            table = self.table(left)
            if table is None:
                # A damaged frame is unknown: its reader gets the error.
                left = left[1:]
            else:
                directory = table.directory()
                groups, numbers = spread(directory.topic_counts)
                frames, items = directory.frames[groups], directory.first_topics[groups] + numbers
                topics = table.texts(TOPIC_OFFSETS, TOPICS, frames, items, pa.string())
                pairs.append((np.array(left, np.int64)[frames] - start, topics))
                left = left[len(table) :]
        if not pairs:
            words.add_unknown(count)
            return
        found = pa.chunked_array([topics for _, topics in pairs]).combine_chunks()
        encoded = found.dictionary_encode()
        numbers = np.frombuffer(encoded.indices.buffers()[1], np.int32, len(found))
        names = encoded.dictionary.cast(pa.binary()).to_pylist()
        frames = np.concatenate([frames for frames, _ in pairs])
        words.add(count, frames, numbers.astype(np.int64), names)

    def check_whole(self) -> None:
        """Raise CorruptionError if the index stops at a damaged frame.

        A caller that has read or counted all frames of the index calls this.
        """
        damage = self.damage
        if damage is not None:
            raise CorruptionError(damage.reason, path=damage.path, offset=damage.offset)

    def open_frame(self, position: int, header: FrameHeader, *, whole: bool = True) -> FrameView:
        """Open the sections of a frame; those of the values only if it is opened as a whole.

        Raises: CorruptionError.
        """
        try:
            return open_frame(self.view, self.buffer, position, header, whole=whole)
        except FrameFormatError as exc:
            raise CorruptionError(str(exc), path=self.path, offset=position) from exc

    def add(self, position: int, header: FrameHeader) -> FrameView:
        """Add a frame to the index; the caller has checked it. It has no values if it is
        compacted.
        """
        frame = self.open_frame(position, header, whole=False)
        self.index.add(position, header, decode_directory(frame.view, frame.table))
        return frame

    def follow(self, *, stands_to: int = 0) -> list[bytes]:
        """Index the frames that the writer, in any process, made visible since the last call;
        return the new edges in order.

        Behind the synced position, or behind `stands_to` if that is greater, a frame may be missing
        after a power cut without recovery. The segment then ends there for now. An invalid frame
        before that position is damage: the frames before it can be read, and `check_whole` raises
        the error.
        """
        edges: list[bytes] = []
        limit = min(max(self.visible_position, stands_to), self.header.file_bytes)
        stands_to = max(self.synced_position, stands_to)
        try:
            # Streams and edges of a frame are used from here on, so they must be valid. A frame
            # that may not be on the disk is used only after all of it was checked.
            walk = self.index_frames(edges, [], limit=limit, trusted_to=stands_to)
            problem, position = walk.problem, walk.position
        except CorruptionError as exc:
            problem, position = exc.reason, exc.offset or 0
        self.damage = None
        if problem and position < stands_to:
            self.damage = CorruptionError(problem, path=self.path, offset=position)
        return edges

    def index_headers(self) -> None:
        """Index the frames of a compacted segment by their headers alone, if that was not done.

        A frame is checked when it is opened. Its streams are not in the index. A reader of a few
        frames, which has no index file, need not read the whole file. Raises: CorruptionError.
        """
        index = self.index
        while index.end_position < self.synced_position:
            header = self.header_at(index.end_position, self.synced_position)
            if header is None or header.first_serial < index.next_serial:
                raise CorruptionError(MISSING, path=self.path, offset=index.end_position)
            index.add(index.end_position, header, ())

    def index_frames(
        self, edges: list[bytes], producers: list[bytes], *, limit: int, trusted_to: int = 0
    ) -> FrameWalk:
        """Index all valid frames behind those of the index; return the walk at its end.

        Edges and producers of the frames are added to the lists, in order. Before `trusted_to` only
        the heads of the frames are checked.

        Raises: CorruptionError for a frame with a valid checksum and an unknown form.
        """
        index = self.index
        position, serial = index.end_position, index.next_serial
        while True:
            while table := self._frames_ahead(position, serial, limit, trusted_to):
                edges += table.sections(EDGES)
                producers += table.sections(PRODUCERS)
                index.add_many(table, verified=position >= trusted_to)
                position, serial = index.end_position, index.next_serial
            walk = FrameWalk(
                self.view,
                self.header.seed,
                position=position,
                serial=serial,
                limit=limit,
                trusted_to=trusted_to,
            )
            ended = True
            for count, (place, header, checked) in enumerate(walk, 1):
                if header.kind != ROOM:
                    frame = self.add(place, header)
                    index.verified[-1] = checked
                    if (found := frame.section(EDGES)) is not None:
                        edges.append(bytes(found))
                    if (found := frame.section(PRODUCERS)) is not None:
                        producers.append(bytes(found))
                    serial = index.next_serial
                position = place + header.length
                if count >= _WALKED:
                    ended = False
                    break
            if ended:
                return walk

    def _frames_ahead(
        self, position: int, serial: int, limit: int, trusted_to: int
    ) -> FrameTable | None:
        """Return the valid plain and packed frames at a position; None if there are too few."""
        trusted = position < trusted_to
        if trusted:
            limit = min(limit, trusted_to)
        found = find_frames(self.view, position, limit, _INDEXED, small=False)
        if len(found) < _WALKED:
            return None
        table = FrameTable(self.view, self.buffer, np.array(found, np.int64), limit)
        table.keep_rising(serial)
        if trusted:
            table.keep_trusted(self.header.seed)
        else:
            table.keep_checked(self.header.seed)
        return table if len(table) else None


def open_segment(fs: FileSystem, path: PurePath) -> Segment:
    """Map a segment for reading; its index is empty. Raises: CorruptionError, NotFoundError."""
    with fs.open(path, writable=False) as file:
        if file.size() < SEGMENT_HEADER_BYTES:
            raise CorruptionError("the segment is too short", path=path)
        return Segment(path, file.map(writable=False))


def segment_path(directory: PurePath, base_serial: int) -> PurePath:
    """Return the path of the segment that begins with this serial."""
    return directory / f"{base_serial:020d}.seg"
