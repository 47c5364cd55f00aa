"""The rows of a segment as columns, in order of their serials, and a digest of them.

The digest depends on the rows and their serials only, not on frames, compression or segments, so it
shows that compaction kept every row. Each column has a CRC-32C that goes on from row to row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
from crc32c import crc32c
from numpy.typing import NDArray

from siltstone.store.log.read.frame_rows import FrameRows, all_rows
from siltstone.store.log.read.pieces import Piece
from siltstone.store.log.read.scan import read_frames
from siltstone.store.log.read.selection import MANY, stream_ids
from siltstone.store.segment.segment import Segment
from siltstone.store.segment.table import FrameTable, Ints
from siltstone.store.segment.view import FrameView
from siltstone.store.slab.manifest import SlabId
from siltstone.topic.word_index import WordIndex

# The rows of a segment are those of one slab; its id is not in the columns.
_ANY: Final = SlabId(0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedColumns:
    """Rows in order of their serials. `properties` is None if no row has any."""

    streams: NDArray[np.uint64]
    serials: Ints
    times: Ints
    topics: pa.Array
    values: pa.Array
    publishers: pa.Array
    flags: NDArray[np.uint8]
    properties: pa.Array | None

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.serials)


def table_rows(table: FrameTable) -> FrameRows:
    """Return all rows of a table, in order of their serials."""
    return all_rows(_ANY, table)


def columns_of(rows: FrameRows) -> SortedColumns:
    """Return the columns of rows."""
    return SortedColumns(
        streams=numbers_of(rows.stream_ids(), np.uint64),
        serials=rows.serials(),
        times=rows.times(),
        topics=rows.topics(),
        values=rows.column("value"),
        publishers=rows.publishers(),
        flags=rows.flags(),
        properties=rows.column("properties") if rows.has_properties() else None,
    )


def columns_of_frame(frame: FrameView) -> SortedColumns:
    """Return the columns of a frame that is not compacted."""
    count = frame.header.row_count
    piece = Piece(slab=_ANY, stream=MANY, frame=frame, start=0, stop=count)
    flags = frame.flags(0, count)
    return SortedColumns(
        streams=numbers_of(stream_ids(piece), np.int64).view(np.uint64),
        serials=np.arange(count) + frame.header.first_serial,
        times=numbers_of(frame.timestamps(0, count), np.int64),
        topics=piece.column("topic"),
        values=piece.column("value"),
        publishers=piece.column("publisher"),
        flags=(
            np.full(count, flags, np.uint8)
            if isinstance(flags, int)
            else numbers_of(flags, np.uint8)
        ),
        properties=piece.column("properties") if frame.has_properties() else None,
    )


def joined(parts: list[SortedColumns]) -> SortedColumns:
    """Return the rows of all parts."""
    if len(parts) == 1:
        return parts[0]
    properties = None
    if any(part.properties is not None for part in parts):
        properties = pa.concat_arrays(
            [
                pa.repeat(pa.scalar(b"", pa.binary()), len(part))
                if part.properties is None
                else part.properties
                for part in parts
            ]
        )
    return SortedColumns(
        streams=np.concatenate([part.streams for part in parts]),
        serials=np.concatenate([part.serials for part in parts]),
        times=np.concatenate([part.times for part in parts]),
        topics=pa.concat_arrays([part.topics for part in parts]),
        values=pa.concat_arrays([part.values for part in parts]),
        publishers=pa.concat_arrays([part.publishers for part in parts]),
        flags=np.concatenate([part.flags for part in parts]),
        properties=properties,
    )


def numbers_of(array: pa.Array, kind: Any) -> NDArray[Any]:
    """Return an array of numbers as numpy's, without a copy and without pandas."""
    width = np.dtype(kind).itemsize
    found: NDArray[Any] = np.frombuffer(
        array.buffers()[1] or b"", kind, len(array), width * array.offset
    )
    return found


def bounds_of(texts: pa.Array) -> NDArray[np.int32]:
    """Return the offsets of the texts in their data, with the end of the last one."""
    found: NDArray[np.int32] = np.frombuffer(
        texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset
    )
    return found


def data_of(texts: pa.Array) -> memoryview:
    """Return the bytes of all texts, one after the other."""
    bounds, data = bounds_of(texts), texts.buffers()[2]
    if data is None:
        return memoryview(b"")
    return memoryview(data).cast("B")[int(bounds[0]) : int(bounds[-1])]


class RowDigest:
    """The digest of rows that are added in order of their serials."""

    def __init__(self) -> None:
        self.rows = 0
        self._crcs = [0] * 11

    def add(self, columns: SortedColumns) -> None:
        """Add rows."""
        self.rows += len(columns)
        texts = [columns.topics, columns.values, columns.publishers]
        parts: list[memoryview] = [
            np.ascontiguousarray(column).data.cast("B")
            for column in (columns.serials, columns.times, columns.flags)
        ]
        for text in texts:
            parts += [_lengths(bounds_of(text)), data_of(text)]
        if columns.properties is None:
            parts += [memoryview(bytes(4 * len(columns))), memoryview(b"")]
        else:
            parts += [_lengths(bounds_of(columns.properties)), data_of(columns.properties)]
        self._crcs = [crc32c(part, crc) for part, crc in zip(parts, self._crcs, strict=True)]

    def value(self) -> bytes:
        """Return the digest: 16 bytes."""
        text = "/".join(map(str, (self.rows, *self._crcs)))
        return blake2b(text.encode(), digest_size=16).digest()


class CompactedContents(NamedTuple):
    """The digest of the rows in a compacted segment, and its word index."""

    digest: bytes
    words: WordIndex


def contents_of(
    segment: Segment, pace: Callable[[int], None] = lambda _rows: None
) -> CompactedContents:
    """Return the digest and the words of a compacted segment; `pace` is called for each frame.

    Raises: CorruptionError.
    """
    digest, words = RowDigest(), WordIndex()
    for found in read_frames(segment, range(segment.index.frame_count), 0):
        if isinstance(found, FrameTable):
            columns = columns_of(table_rows(found))
            digest.add(columns)
            words.add_frame(columns.topics.unique().cast(pa.binary()).to_pylist())
            pace(0)
        else:
            words.add_unknown(1)
    return CompactedContents(digest.value(), words)


def _lengths(bounds: NDArray[np.int32]) -> memoryview:
    return np.diff(bounds).data.cast("B")
