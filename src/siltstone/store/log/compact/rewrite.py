"""Rewrite a sealed segment as a compacted one: large frames with the same rows and serials.

Only files in a working directory are written here. The old segment stays until the new one and its
index are complete, synced, and were read again and compared.

A frame of the new segment has the rows of whole old frames, because frames follow one another in
time. State frames are copied: they say which serials are not used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Final

import numpy as np

from siltstone.errors import CorruptionError
from siltstone.fs.api import File, FileSystem
from siltstone.store.log.compact.encode import NARROW_ROWS, UnfitError, encode_compacted
from siltstone.store.log.read.columns import (
    RowDigest,
    SortedColumns,
    columns_of,
    columns_of_frame,
    contents_of,
    joined,
    table_rows,
)
from siltstone.store.log.read.scan import read_frames
from siltstone.store.segment.body import encode_state
from siltstone.store.segment.chain import state_header
from siltstone.store.segment.frame import (
    EDGES,
    PLAIN,
    PRODUCERS,
    ROWS,
    STATE,
    FrameHeader,
    encode_frame,
)
from siltstone.store.segment.index import DIGEST, SealedIndex, decode_index, encode_index
from siltstone.store.segment.segment import (
    SEGMENT_BYTES_MIN,
    SEGMENT_HEADER_BYTES,
    Segment,
    open_segment,
)
from siltstone.store.segment.sift import index_path
from siltstone.store.segment.table import FrameTable
from siltstone.store.segment.view import FrameView
from siltstone.topic.edges import COUNT

# The rows of a frame.
FRAME_ROWS: Final = NARROW_ROWS
_FRAME_BYTES: Final = 1 << 26
_SYNC_BYTES: Final = 1 << 23
_PAGE: Final = 4096

Pace = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """The contents of a rewritten segment."""

    rows: int
    frames: int
    size_bytes: int
    digest: bytes


class _Group:
    """Rows of whole frames, with their edges and producers, for one new frame."""

    def __init__(self) -> None:
        self.parts: list[SortedColumns] = []
        self.rows = 0
        self.size_bytes = 0
        self.edges: list[bytes] = []
        self.producers: list[bytes] = []

    def fits(self, rows: int, size_bytes: int) -> bool:
        return not self.rows or (
            self.rows + rows <= FRAME_ROWS and self.size_bytes + size_bytes <= _FRAME_BYTES
        )

    def add(self, columns: SortedColumns, size_bytes: int) -> None:
        self.parts.append(columns)
        self.rows += len(columns)
        self.size_bytes += size_bytes


def rewrite_segment(
    fs: FileSystem, source: PurePath, target: PurePath, pace: Pace = lambda _rows: None
) -> Rewritten:
    """Write a compacted segment, and its index beside it, with the rows of a sealed segment.

    `pace` is called with the number of rows of each new frame; it may wait, and it may raise an
    error to end the work.

    Raises: UnfitError if the segment cannot be compacted; CorruptionError; StorageFullError.
    """
    segment = open_segment(fs, source)
    with fs.open(index_path(source), writable=False) as file:
        sealed = decode_index(file.map(writable=False), index_path(source))
    if sealed.revision != segment.header.revision:
        raise UnfitError("the index belongs to other frames")
    segment.index = sealed.index
    digest = RowDigest()
    with fs.create(target) as file:
        writer = _Writer(file, segment, digest, pace)
        writer.write_frames()
        writer.finish(sealed)
    made = open_segment(fs, target)
    made.follow()
    made.check_whole()
    contents = contents_of(made, pace)
    if contents.digest != digest.value():
        raise CorruptionError("the compacted rows are not those of the segment", path=target)
    made.index.words = contents.words
    data = encode_index(
        made.index,
        structure=bytes(sealed.structure),
        producers=bytes(sealed.producers),
        revision=made.header.revision,
        parts={DIGEST: digest.value()},
    )
    with fs.create(index_path(target)) as file:
        file.write(data)
        file.sync()
    fs.sync_directory(target.parent)
    return Rewritten(
        rows=digest.rows,
        frames=made.index.frame_count,
        size_bytes=made.index.end_position + len(data),
        digest=digest.value(),
    )


class _Writer:
    """Writes the frames of a compacted segment."""

    def __init__(self, file: File, source: Segment, digest: RowDigest, pace: Pace) -> None:
        self._file = file
        self._source = source
        self._digest = digest
        self._pace = pace
        self._position = SEGMENT_HEADER_BYTES
        self._synced = 0
        self._group = _Group()

    def write_frames(self) -> None:
        for found in _frames(self._source):
            if isinstance(found, FrameTable):
                self._add_table(found)
            elif found.header.kind == ROWS:
                self._add_frame(found)
            elif found.header.kind == STATE:
                self._flush()
                self._copy_state(found)
            else:
                raise UnfitError("rows of the segment are lost")
        self._flush()

    def finish(self, sealed: SealedIndex) -> None:
        """Write the header of the segment, and sync."""
        last = self._source.index.frame_count - 1
        after = self._source.index.serials[last] + self._source.index.row_counts[last]
        if sealed.index.next_serial > after:
            # So far only the index says that serials at the end are not used.
            body, sections = encode_state(bytes(sealed.structure), bytes(sealed.producers))
            state = state_header(
                body,
                sections,
                serial=sealed.index.next_serial,
                timestamp_us=self._source.index.last_times[last],
            )
            self._write(state, body)
        size = max(SEGMENT_BYTES_MIN, -(-self._position // _PAGE) * _PAGE)
        old = self._source.header
        header = replace(old, file_bytes=size, revision=old.revision + 1)
        self._file.truncate(size)
        self._file.write_at(0, header.encode(end=self._position))
        self._file.sync()

    def _add_table(self, table: FrameTable) -> None:
        """Add the frames of a table, to as many groups as needed."""
        rows, first = table_rows(table), 0
        ends = np.cumsum(table.row_counts)
        sizes = np.cumsum(table.ends - table.positions)
        while first < len(table):
            before = int(ends[first - 1]) if first else 0
            weight = int(sizes[first - 1]) if first else 0
            group = self._group
            last = min(
                int(np.searchsorted(ends, before + FRAME_ROWS - group.rows, "right")),
                int(np.searchsorted(sizes, weight + _FRAME_BYTES - group.size_bytes, "right")),
            )
            if last <= first:
                if group.rows:
                    self._flush()
                    continue
                last = first + 1
            part = rows.slice(before, int(ends[last - 1]))
            self._collect(table.part_sections(EDGES, first, last), group.edges)
            self._collect(table.part_sections(PRODUCERS, first, last), group.producers)
            group.add(columns_of(part), int(sizes[last - 1]) - weight)
            first = last

    def _add_frame(self, frame: FrameView) -> None:
        rows, size_bytes = frame.header.row_count, frame.header.body_bytes
        if not self._group.fits(rows, size_bytes):
            self._flush()
        self._collect([bytes(frame.section(EDGES) or b"")], self._group.edges)
        self._collect([bytes(frame.section(PRODUCERS) or b"")], self._group.producers)
        self._group.add(columns_of_frame(frame), size_bytes)

    def _collect(self, found: list[bytes], held: list[bytes]) -> None:
        held += [part for part in found if part]

    def _copy_state(self, frame: FrameView) -> None:
        old = frame.header
        header = FrameHeader(
            kind=STATE,
            compression=PLAIN,
            section_count=old.section_count,
            first_serial=old.first_serial,
            row_count=0,
            stream_count=0,
            first_timestamp_us=old.first_timestamp_us,
            last_timestamp_us=old.last_timestamp_us,
            body_bytes=len(frame.view),
        )
        self._write(header, bytes(frame.view))

    def _flush(self) -> None:
        """Write the rows of the group as one frame."""
        group, self._group = self._group, _Group()
        if not group.rows:
            return
        columns = joined(group.parts)
        self._digest.add(columns)
        header, body = encode_compacted(
            columns, edges=_joined_edges(group.edges), producers=b"".join(group.producers)
        )
        self._write(header, body)
        self._pace(group.rows)

    def _write(self, header: FrameHeader, body: bytes) -> None:
        head = encode_frame(header, body, self._source.header.seed)
        self._file.write_at(self._position, head + body)
        self._position += len(head) + len(body)
        if self._position - self._synced >= _SYNC_BYTES:
            # A large write at once would delay the syncs of the shards.
            self._file.sync()
            self._synced = self._position


def _joined_edges(blocks: list[bytes]) -> bytes:
    """Join encoded edges, each with their number, to one block."""
    if len(blocks) < 2:
        return b"".join(blocks)
    count = sum(int(COUNT.unpack_from(block)[0]) for block in blocks)
    return b"".join([COUNT.pack(count), *(block[COUNT.size :] for block in blocks)])


def _frames(segment: Segment) -> Iterator[FrameTable | FrameView]:
    """Yield all frames of a segment in order, with checked checksums."""
    return read_frames(segment, range(segment.index.frame_count), 0)
