"""Encode columns as the body of a compacted frame.

The rows are sorted by stream, by topic and by serial. This puts equal topics and the payloads of
one device together, so the blocks compress well, and a reader of one topic needs few blocks.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from siltstone.store.log.read.columns import SortedColumns, bounds_of, data_of, numbers_of
from siltstone.store.segment.body import index_width, offset_width
from siltstone.store.segment.frame import (
    BLOCKS,
    DIRECTORY,
    EDGES,
    FLAGS,
    PRODUCERS,
    PROPERTIES,
    PROPERTY_OFFSETS,
    PUBLISHER_INDEX,
    PUBLISHER_OFFSETS,
    PUBLISHERS,
    ROWS,
    SECTION,
    SERIALS,
    STREAMS,
    TIMESTAMPS,
    TOPIC_INDEX,
    TOPIC_OFFSETS,
    TOPICS,
    VALUE_OFFSETS,
    VALUES,
    FrameHeader,
)
from siltstone.store.segment.table import Ints, array_of
from siltstone.store.segment.view import compress_blocks

# The serials of at most this many rows fit into two bytes.
NARROW_ROWS: Final = 1 << 16
_UNSIGNED: Final = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}
_SIGNED: Final = {1: np.int8, 2: np.int16, 4: np.int32}

Section = tuple[int, int, bytes | memoryview]


class UnfitError(ValueError):
    """The rows cannot be compacted: they break a rule that `verify` checks."""


def encode_compacted(
    columns: SortedColumns, *, edges: bytes, producers: bytes
) -> tuple[FrameHeader, bytes]:
    """Return the header and the stored body of a frame with these rows.

    Raises: UnfitError.
    """
    first_serial = int(columns.serials[0])
    count = len(columns)
    if int(columns.serials[-1]) - first_serial != count - 1:
        raise UnfitError("serials are missing")
    topics = columns.topics.dictionary_encode()
    numbers = numbers_of(topics.indices, np.int32)
    words, ranks, streams = _sorted_topics(topics.dictionary, numbers, columns.streams)
    by_row = ranks[numbers]
    order = np.argsort(by_row, kind="stable")
    take = array_of(order, pa.int64())
    serials = (columns.serials - first_serial)[order]
    first_us = int(columns.times.min())
    last_us = int(columns.times.max())
    sections: list[Section] = [
        (STREAMS, DIRECTORY.size, _directory(streams, by_row)),
        (EDGES, 1, edges),
        (PRODUCERS, 24, producers),
        (TIMESTAMPS, *_times(columns.times[order], first_us, last_us)),
    ]
    if (serials[1:] < serials[:-1]).any():
        width = 2 if count <= NARROW_ROWS else 4
        kind = np.uint16 if width == 2 else np.uint32
        sections.append((SERIALS, width, serials.astype(kind).tobytes()))
    width = index_width(len(words))
    sections += [
        *_texts(TOPIC_OFFSETS, TOPICS, words),
        (TOPIC_INDEX, width, by_row[order].astype(_SIGNED[width]).tobytes()),
        *_publishers(columns.publishers, take),
        (FLAGS, 1, _flags(columns.flags[order])),
    ]
    late: list[Section] = []
    for offsets_id, data_id, texts in (
        (VALUE_OFFSETS, VALUES, columns.values),
        (PROPERTY_OFFSETS, PROPERTIES, columns.properties),
    ):
        if texts is not None:
            parts = _texts(offsets_id, data_id, texts.take(take))
            sections += parts[:1]
            late += parts[1:]
    body, start, held = _body(sections, late)
    header = FrameHeader(
        kind=ROWS,
        compression=BLOCKS,
        section_count=held,
        first_serial=first_serial,
        row_count=count,
        stream_count=len(np.unique(streams)),
        first_timestamp_us=first_us,
        last_timestamp_us=last_us,
        body_bytes=len(body),
    )
    return header, compress_blocks(body, start)


def _sorted_topics(
    words: pa.Array, numbers: NDArray[np.int32], streams: NDArray[np.uint64]
) -> tuple[pa.Array, NDArray[Any], NDArray[np.uint64]]:
    """Return the topics sorted by stream, for each topic its new number, and their streams."""
    of_topic = np.zeros(len(words), np.uint64)
    of_topic[numbers] = streams
    if not (of_topic[numbers] == streams).all():
        raise UnfitError("a topic is in two streams")
    order = np.argsort(of_topic, kind="stable")
    ranks: NDArray[Any] = np.empty(len(words), np.uint16 if len(words) <= NARROW_ROWS else np.int64)
    ranks[order] = np.arange(len(words))
    return words.take(array_of(order, pa.int64())), ranks, of_topic[order]


def _directory(streams: NDArray[np.uint64], by_row: Ints) -> bytes:
    """Return the directory of rows whose topics have these streams, by number."""
    rows_of_topic = np.bincount(by_row, minlength=len(streams))
    ids, starts = np.unique(streams, return_index=True)
    topics = np.diff(np.append(starts, len(streams)))
    rows = np.add.reduceat(rows_of_topic, starts)
    entries = zip(
        ids.tolist(),
        (rows.cumsum() - rows).tolist(),
        rows.tolist(),
        starts.tolist(),
        topics.tolist(),
        strict=True,
    )
    return b"".join(DIRECTORY.pack(*entry) for entry in entries)


def _times(times: Ints, first_us: int, last_us: int) -> tuple[int, bytes]:
    width = offset_width(last_us - first_us)
    if width < 8:
        times = times - first_us
    return width, times.astype(_UNSIGNED[width]).tobytes()


def _texts(offsets_id: int, data_id: int, texts: pa.Array) -> list[Section]:
    data = data_of(texts)
    if not data:
        return []
    bounds = bounds_of(texts)
    return [(offsets_id, 4, (bounds - bounds[0]).tobytes()), (data_id, 1, data)]


def _publishers(publishers: pa.Array, take: pa.Array) -> list[Section]:
    """Return the publishers: one for all rows, or each once and a number for each row."""
    found = publishers.dictionary_encode()
    if len(found.dictionary) == 1:
        return [(PUBLISHERS, 1, data_of(found.dictionary))]
    width = index_width(len(found.dictionary))
    numbers = numbers_of(found.indices.take(take), np.int32).astype(_SIGNED[width])
    texts = _texts(PUBLISHER_OFFSETS, PUBLISHERS, found.dictionary)
    return [*texts, (PUBLISHER_INDEX, width, numbers.tobytes())]


def _flags(flags: NDArray[np.uint8]) -> bytes:
    if (flags == flags[0]).all():
        return bytes(flags[:1]) if flags[0] else b""
    return flags.tobytes()


def _body(sections: list[Section], late: list[Section]) -> tuple[bytes, int, int]:
    """Join sections; return the body, where the late ones begin, and the number of sections."""
    held = [section for section in (*sections, *late) if len(section[2])]
    parts: list[bytes | memoryview] = [
        SECTION.pack(section_id, width, len(data)) for section_id, width, data in held
    ]
    size = SECTION.size * len(held)
    start = 0
    for section_id, _, data in held:
        if section_id in (VALUES, PROPERTIES) and not start:
            start = size
        padding = -len(data) % 8
        parts += [data, bytes(padding)]
        size += len(data) + padding
    return b"".join(parts), start or size, len(held)
