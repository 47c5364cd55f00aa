"""Chosen rows of many small frames, and their columns.

The columns are those of SCHEMA, with the same values as `Piece.column`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import pairwise, repeat
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from siltstone.rows.batch import QOS_BITS, RETAIN
from siltstone.rows.stored import StoredBatch
from siltstone.store.log.read.pieces import SCHEMA, Row, constant, integers, make_rows
from siltstone.store.segment.frame import (
    FLAGS,
    PROPERTIES,
    PROPERTY_OFFSETS,
    PUBLISHER_INDEX,
    PUBLISHER_OFFSETS,
    PUBLISHERS,
    TOPIC_OFFSETS,
    TOPICS,
    VALUE_OFFSETS,
    VALUES,
)
from siltstone.store.segment.table import Directory, Flags, FrameTable, Ints, array_of, spread
from siltstone.store.slab.manifest import SlabId

# The streams of fewer rows of one frame are searched one by one.
_FEW: Final = 1 << 12
_TIMESTAMP: Final = SCHEMA.field("timestamp").type


class TopicTest(Protocol):
    """Tells which topics of a stream are wanted: all of them, or, if it is bound, some."""

    is_bound: bool

    def matching(self, words: pa.Array) -> pa.Array:
        """Return the indices of the wanted topics."""


class FrameRows:
    """Rows of the frames of a table, in order.

    `frames` and `items` say for each row which frame it is in, and which row of the frame it is.
    """

    def __init__(self, slab: SlabId, table: FrameTable, frames: Ints, items: Ints) -> None:
        self.slab = slab
        self.table = table
        self.frames = frames
        self.items = items
        self.num_rows = len(frames)
        self._times: Ints | None = None

    def pick(self, rows: Ints | Flags | slice) -> FrameRows:
        """Return some of the rows."""
        return FrameRows(self.slab, self.table, self.frames[rows], self.items[rows])

    def slice(self, start: int, stop: int) -> FrameRows:
        """Return the rows from start to stop."""
        return self.pick(slice(start, stop))

    def sorted_by_serial(self) -> FrameRows:
        """Return the rows in order of their serials."""
        if self.table.implies_serials:
            return self
        return self.pick(self.table.serial_order(self.items))

    def sorted_by_time(self) -> FrameRows:
        """Return the rows in order of time; rows of the same time keep their order."""
        times = self.times()
        if (times[1:] >= times[:-1]).all():
            return self
        # In one compacted frame no two rows have the same time, and this sort is the faster one.
        ordered = self.table.implies_serials
        return self.pick(np.argsort(times, kind="stable" if ordered else "quicksort"))

    def within(self, serials: range) -> FrameRows:
        """Return the rows with these serials."""
        table = self.table
        first, last = table.first_serials[0], table.first_serials[-1] + table.row_counts[-1]
        if serials.start <= first and last <= serials.stop:
            return self
        found = self.serials()
        return self.pick((found >= serials.start) & (found < serials.stop))

    def in_span(self, since_us: int, until_us: int | None) -> FrameRows:
        """Return the rows of a span of time."""
        if until_us is None and since_us <= self.table.first_times[0]:
            return self
        times = self.times()
        held = times >= since_us
        if until_us is not None:
            held &= times < until_us
        return self.pick(held)

    @property
    def size_bytes(self) -> int:
        """The share of the rows in the bytes of their frames."""
        return int(self.row_sizes().sum())

    def column(self, name: str) -> pa.Array:
        """Return one column of SCHEMA. Raises: OverflowError if it is too large for one array."""
        return _READERS[name](self)

    def rows(self) -> list[Row]:
        """Return the rows as Python values."""
        flags = self.flags()
        return make_rows(
            zip(
                self._topic_strings(),
                _binaries(self.column("value")),
                _strings(self.publishers()),
                (flags & QOS_BITS).tolist(),
                (flags & RETAIN != 0).tolist(),
                _binaries(self.column("properties")) if self.has_properties() else repeat(b""),
                self.times().tolist(),
                repeat(self.slab.shard),
                repeat(self.slab.generation),
                self.stream_ids().to_pylist(),
                self.serials().tolist(),
                strict=False,
            )
        )

    def load(self, batch: StoredBatch, names: dict[bytes, bytes], *, properties: bool) -> None:
        """Add the rows to the lists of a batch; topics that are new are added to `names`."""
        words, places = self._distinct_topics()
        topics = _texts_once(words, names)
        batch.topics += [topics[place] for place in places]
        batch.values += _binaries(self.column("value"))
        if self.has_properties():
            batch.properties += _binaries(self.column("properties"))
        elif properties:
            batch.properties += [b""] * self.num_rows
        batch.timestamps += self.times().tolist()
        batch.flags += self.flags().tolist()
        batch.publishers += _texts_once(self.publishers(), {})

    def _topic_strings(self) -> Iterable[str]:
        words, places = self._distinct_topics()
        return map(words.to_pylist().__getitem__, places)

    def _distinct_topics(self) -> tuple[pa.Array, list[int]]:
        """Return the topics, each once for each frame, and for each row the place of its topic."""
        keys = (self.frames << 32) + self.topic_numbers()
        chosen, places = np.unique(keys, return_inverse=True)
        words = self.table.texts(
            TOPIC_OFFSETS, TOPICS, chosen >> 32, chosen & 0xFFFF_FFFF, pa.string()
        )
        return words, places.tolist()

    def stream_runs(self) -> list[tuple[int, int]]:
        """Return the streams of the rows, in order: (stream id, number of rows)."""
        ids = self._stream_ids()
        starts = np.flatnonzero(np.concatenate([[True], ids[1:] != ids[:-1]]))
        counts = np.diff(np.append(starts, len(ids)))
        return list(zip(ids[starts].tolist(), counts.tolist(), strict=True))

    def is_mixed(self) -> bool:
        """Return whether any of the frames has rows of several streams."""
        return bool((self.table.stream_counts > 1).any())

    def row_sizes(self) -> Ints:
        """Return the size of each row: its share of the bytes of its frame, and its topic.

        A frame holds a topic once, but a column repeats it for each row.
        """
        table = self.table
        sizes: Ints = (table.ends - table.positions) // np.maximum(table.row_counts, 1)
        starts, stops = table.bounds(TOPIC_OFFSETS, self.frames, self.topic_numbers())
        found: Ints = sizes[self.frames] + stops - starts
        return found

    def pieces(self, size_max: int) -> Iterator[FrameRows]:
        """Yield the rows in parts of about this size."""
        table = self.table
        most = int((table.ends - table.positions).sum())
        if most + self.num_rows * table.topic_bytes_max() <= size_max:
            yield self
            return
        sizes = self.row_sizes().cumsum()
        start = 0
        while start < self.num_rows:
            before = int(sizes[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(sizes, before + size_max, "right")))
            yield self if stop - start == self.num_rows else self.slice(start, stop)
            start = stop

    def has_properties(self) -> bool:
        """Return whether any row may have MQTT properties."""
        return bool((self.table.offsets[PROPERTIES] >= 0).any())

    def serials(self) -> Ints:
        """Return the serial of each row."""
        return self.table.serials(self.frames, self.items)

    def times(self) -> Ints:
        """Return the timestamp of each row, in µs."""
        if self._times is None:
            self._times = self.table.times(self.frames, self.items)
        return self._times

    def topic_numbers(self) -> Ints:
        """Return the number of each row's topic in its frame."""
        return self.table.topic_numbers(self.frames, self.items)

    def stream_ids(self) -> pa.Array:
        """Return the stream of each row."""
        return array_of(self._stream_ids(), pa.uint64())

    def _stream_ids(self) -> NDArray[np.uint64]:
        directory = self.table.directory()
        if len(self.table) == 1 and self.num_rows > _FEW:
            each: NDArray[np.uint64] = np.repeat(directory.stream_ids, directory.row_counts)
            return each[self.items]
        firsts = self.table.row_counts.cumsum() - self.table.row_counts
        starts = firsts[directory.frames] + directory.first_rows
        rows = firsts[self.frames] + self.items
        entries = np.searchsorted(starts, rows, side="right") - 1
        found: NDArray[np.uint64] = directory.stream_ids[entries]
        return found

    def flags(self) -> NDArray[np.uint8]:
        """Return the flags of each row."""
        table = self.table
        # A section of one byte holds for all rows of its frame.
        several = table.lengths[FLAGS] > 1
        found: NDArray[np.uint8] = table.first_flags()[self.frames]
        if several.any():
            rows = several[self.frames]
            places = table.offsets[FLAGS][self.frames[rows]] + self.items[rows]
            found[rows] = table.numbers.u8[places]
        return found

    def equal_flags(self) -> int | None:
        """Return the flags of all rows of the table if they are equal, else None."""
        found = self.table.first_flags()
        if not len(found) or (self.table.lengths[FLAGS] > 1).any() or (found != found[0]).any():
            return None
        return int(found[0])

    def qos(self) -> pa.Array:
        """Return the QoS of each row."""
        flags = self.equal_flags()
        if flags is not None:
            return constant(flags & QOS_BITS, pa.uint8(), self.num_rows)
        return array_of(self.flags() & QOS_BITS, pa.uint8())

    def retained(self) -> pa.Array:
        """Return the retain flag of each row."""
        flags = self.equal_flags()
        if flags is not None:
            return constant(bool(flags & RETAIN), pa.bool_(), self.num_rows)
        return _booleans(self.flags() & RETAIN != 0)

    def topics(self) -> pa.Array:
        """Return the topic of each row."""
        return self.table.texts(
            TOPIC_OFFSETS, TOPICS, self.frames, self.topic_numbers(), pa.string()
        )

    def publishers(self) -> pa.Array:
        """Return the publisher of each row."""
        table, frames = self.table, self.frames
        if len(table) == 1 and table.offsets[PUBLISHER_INDEX][0] < 0:
            start, size = int(table.offsets[PUBLISHERS][0]), int(table.lengths[PUBLISHERS][0])
            name = bytes(table.view[start : start + size]) if start >= 0 else b""
            return constant(name.decode(), pa.string(), self.num_rows)
        starts = table.offsets[PUBLISHERS][frames]
        stops = starts + table.lengths[PUBLISHERS][frames]
        if (table.offsets[PUBLISHER_INDEX] >= 0).all():
            items = table.integers(PUBLISHER_INDEX, frames, self.items, signed=True)
            return table.texts(PUBLISHER_OFFSETS, PUBLISHERS, frames, items, pa.string())
        several = (table.offsets[PUBLISHER_INDEX] >= 0)[frames]
        if several.any():
            some = frames[several]
            items = table.integers(PUBLISHER_INDEX, some, self.items[several], signed=True)
            data = starts[several]
            firsts, lasts = table.bounds(PUBLISHER_OFFSETS, some, items)
            starts[several] = data + firsts
            stops[several] = data + lasts
        return table.ranges(starts, stops, pa.string())

    def texts(self, offsets_id: int, data_id: int) -> pa.Array:
        """Return payloads or properties."""
        return self.table.texts(offsets_id, data_id, self.frames, self.items, pa.binary())


def all_rows(slab: SlabId, table: FrameTable) -> FrameRows:
    """Return all rows of a table."""
    return FrameRows(slab, table, *spread(table.row_counts)).sorted_by_serial()


def wanted_rows(slab: SlabId, table: FrameTable, streams: Mapping[int, TopicTest]) -> FrameRows:
    """Return the rows of these streams that have the wanted topics, in order of their serials."""
    numbers = table.sorted_topics()
    if numbers is not None:
        return _sorted_rows(slab, table, numbers, streams).sorted_by_serial()
    return _wanted_rows(slab, table, streams)


def _sorted_rows(
    slab: SlabId, table: FrameTable, topics: NDArray[Any], streams: Mapping[int, TopicTest]
) -> FrameRows:
    """Return the wanted rows of a frame that is sorted by stream and topic, in its order.

    `topics` are the rising numbers of the topics of its rows.
    """
    directory = table.directory()
    tests = [streams.get(name) for name in directory.stream_ids.tolist()]
    starts, counts = directory.first_rows, directory.row_counts
    if any(test is None or test.is_bound for test in tests):
        parts: list[tuple[Ints, Ints]] = []
        for entry, test in enumerate(tests):
            if test is None:
                continue
            if not test.is_bound:
                parts.append((starts[entry : entry + 1], counts[entry : entry + 1]))
                continue
            first, last = _topics_of(directory, entry)
            items = np.arange(first, last)
            words = table.texts(TOPIC_OFFSETS, TOPICS, _zeros(items), items, pa.string())
            wanted = (np.sort(_numbers(test.matching(words))) + first).astype(topics.dtype)
            begins = np.searchsorted(topics, wanted, "left")
            parts.append((begins, np.searchsorted(topics, wanted, "right") - begins))
        starts = np.concatenate([part[0] for part in parts]) if parts else starts[:0]
        counts = np.concatenate([part[1] for part in parts]) if parts else counts[:0]
    groups, numbers = spread(counts)
    items = starts[groups] + numbers
    return FrameRows(slab, table, _zeros(items), items)


def _topics_of(directory: Directory, entry: int) -> tuple[int, int]:
    first = int(directory.first_topics[entry])
    return first, first + int(directory.topic_counts[entry])


def _zeros(items: Ints) -> Ints:
    return np.zeros(len(items), np.int64)


def _wanted_rows(slab: SlabId, table: FrameTable, streams: Mapping[int, TopicTest]) -> FrameRows:
    directory = table.directory()
    tests: list[TopicTest | None]
    if len(streams) == 1:
        # The table may have thousands of other streams.
        ((stream_id, only),) = streams.items()
        kinds = (directory.stream_ids == np.uint64(stream_id)).astype(np.int64)
        tests = [None, only]
    else:
        ids, kinds = np.unique(directory.stream_ids, return_inverse=True)
        tests = [streams.get(name) for name in ids.tolist()]
    if None in tests:
        entries = np.flatnonzero(np.array([test is not None for test in tests])[kinds])
    else:
        entries = np.arange(len(kinds))
    groups, numbers = spread(directory.row_counts[entries])
    chosen = entries[groups]
    rows = FrameRows(slab, table, directory.frames[chosen], directory.first_rows[chosen] + numbers)
    if not any(test is not None and test.is_bound for test in tests):
        return rows
    wanted = _wanted_topics(table, directory, kinds, tests)
    topics = directory.topic_counts.cumsum() - directory.topic_counts
    place = (topics - directory.first_topics)[chosen] + rows.topic_numbers()
    return rows.pick(wanted[place])


def _wanted_topics(
    table: FrameTable, directory: Directory, kinds: Ints, tests: list[TopicTest | None]
) -> Flags:
    """Return for each topic of each entry of the directory whether it is wanted."""
    entries, numbers = spread(directory.topic_counts)
    wanted = np.ones(len(entries), np.bool_)
    # The topics of one stream are tested together.
    order = np.argsort(kinds[entries], kind="stable")
    ends = np.searchsorted(kinds[entries][order], np.arange(len(tests) + 1))
    for kind, test in enumerate(tests):
        if test is None or not test.is_bound:
            continue
        places = order[ends[kind] : ends[kind + 1]]
        chosen = entries[places]
        items = directory.first_topics[chosen] + numbers[places]
        words = table.texts(TOPIC_OFFSETS, TOPICS, directory.frames[chosen], items, pa.string())
        wanted[places] = False
        wanted[places[_numbers(test.matching(words))]] = True
    return wanted


def _numbers(found: pa.Array) -> NDArray[np.uint64]:
    """Return indices as numpy's; `to_numpy` would load pandas if it is installed."""
    return np.frombuffer(found.buffers()[1] or b"", np.uint64, len(found), 8 * found.offset)


def _strings(texts: pa.Array) -> Iterable[str]:
    """Return texts as Python strings; equal ones are decoded once."""
    encoded = texts.dictionary_encode()
    words: list[str] = encoded.dictionary.to_pylist()
    return map(words.__getitem__, integers(encoded.indices))


def _texts_once(texts: pa.Array, names: dict[bytes, bytes]) -> list[bytes]:
    """Return texts as Python bytes; equal ones are one object, which is also in `names`."""
    encoded = texts.dictionary_encode()
    words = [names.setdefault(word, word) for word in _binaries(encoded.dictionary)]
    return [words[number] for number in integers(encoded.indices)]


def _binaries(texts: pa.Array) -> list[bytes]:
    """Return texts as Python bytes; faster than `to_pylist`."""
    bounds = np.frombuffer(texts.buffers()[1], np.int32, len(texts) + 1, 4 * texts.offset).tolist()
    data = bytes(memoryview(texts.buffers()[2] or b""))
    return [data[start:stop] for start, stop in pairwise(bounds)]


def _booleans(flags: Flags) -> pa.Array:
    bits = pa.py_buffer(np.packbits(flags, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(flags), [None, bits])


_READERS: Final[dict[str, Callable[[FrameRows], pa.Array]]] = {
    "topic": FrameRows.topics,
    "timestamp": lambda rows: array_of(rows.times(), _TIMESTAMP),
    "publisher": FrameRows.publishers,
    "qos": FrameRows.qos,
    "retain": FrameRows.retained,
    "properties": lambda rows: rows.texts(PROPERTY_OFFSETS, PROPERTIES),
    "value": lambda rows: rows.texts(VALUE_OFFSETS, VALUES),
    "shard": lambda rows: constant(rows.slab.shard, pa.uint32(), rows.num_rows),
    "generation": lambda rows: constant(rows.slab.generation, pa.uint32(), rows.num_rows),
    "stream": FrameRows.stream_ids,
    "serial": lambda rows: array_of(rows.serials(), pa.uint64()),
}
