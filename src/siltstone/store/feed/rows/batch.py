"""Batches of rows for feeds: parallel lists, in order of serials. Compiled.

A batch has the rows of one flush or of one read. Its lists are created when rows are needed; before
that only the distinct topics of a committed batch exist. All feeds that receive rows of a batch
share it, and must not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from siltstone.store.log.write.cook import Cooked


class FeedBatch:
    """Rows of one generation of a shard; it accounts for the serials from start to stop.

    `names` has the distinct topics, `topics` the topic of each row. `properties` is empty if no row
    has any. The lists are complete after `load`. If the batch is not `mixed`, rows are in the order
    of their arrival; else the rows of one stream of a frame are consecutive.
    """

    def __init__(
        self, shard: int, generation: int, start_serial: int, stop_serial: int, count: int
    ) -> None:
        self.shard = shard
        self.generation = generation
        self.start_serial = start_serial
        self.stop_serial = stop_serial
        self.count = count
        self.serials: list[int] = []
        self.size_bytes = 0
        # No row has an earlier timestamp.
        self.first_timestamp_us = 0
        # If timestamps are ahead of the clock, all rows arrived before this time; else 0.
        self.closed_us = 0
        self.names: list[bytes] = []
        self.topics: list[bytes] = []
        self.values: list[bytes] = []
        self.flags: list[int] = []
        self.timestamps: list[int] = []
        self.publishers: list[bytes] = []
        self.properties: list[bytes] = []
        # For each row 0, or the end of the times of its topic that it deletes, from its timestamp
        # on. Empty if no row deletes anything: only key-value databases have these rows.
        self.untils: list[int] = []
        # A cache for readers: a converted form for each distinct value of properties. Two threads
        # may fill it at the same time, with the same values.
        self.receivable: dict[bytes, bytes] = {}
        self.mixed = False
        self._numbers: list[int] = []
        self._stream_ids: list[int] = []
        self.loader: Callable[[FeedBatch], None] | None = None
        self.stream_loader: Callable[[], list[tuple[int, int]]] | None = None
        # The pieces that the rows were read from, and the rows as Arrow, if they were converted.
        self.origin: object = None
        self.arrow: object = None

    def number_rows(self) -> list[int]:
        """Return the serial of each row; those of a committed frame are consecutive."""
        if not self.serials and self.count:
            self.serials = list(range(self.start_serial, self.stop_serial))
        return self.serials

    def came_us(self, index: int) -> int:
        """Return the arrival time of a row of a loaded batch: its timestamp, or an earlier time if
        the clock was ahead.
        """
        timestamp_us = self.timestamps[index]
        return min(timestamp_us, self.closed_us) if self.closed_us else timestamp_us

    def topic_numbers(self) -> list[int]:
        """Return the number of the topic in `names` for each row of a loaded batch."""
        if not self._numbers:
            known: dict[bytes, int] = {}
            for number in range(len(self.names)):
                known[self.names[number]] = number
            self._numbers = [known[topic] for topic in self.topics]
        return self._numbers

    def streams(self) -> list[tuple[int, int]]:
        """Return the streams of the rows, in order: (stream id, number of rows)."""
        loader = self.stream_loader
        return [] if loader is None else loader()

    def stream_of_rows(self) -> list[int]:
        """Return the stream of each row."""
        if not self._stream_ids:
            ids: list[int] = []
            for stream_id, count in self.streams():
                ids += [stream_id] * count
            self._stream_ids = ids
        return self._stream_ids

    def load(self) -> None:
        """Create the lists, once. Two threads may do so at the same time, with the same result."""
        loader = self.loader
        if loader is not None:
            self.number_rows()
            loader(self)
            self.loader = None


class _Committed:
    """The rows of a frame as the cook produced them, by stream."""

    def __init__(self, cooked: Cooked) -> None:
        self.parts = cooked.streams
        self.publishers = cooked.publishers
        self.flags = cooked.flags

    def load(self, batch: FeedBatch) -> None:
        parts = self.parts
        count = batch.count
        batch.timestamps = _joined_numbers([part.timestamps() for part in parts])
        batch.values = _joined([part.values for part in parts])
        batch.properties = _joined([part.properties for part in parts])
        if self.flags >= 0:
            batch.flags = [self.flags] * count
        else:
            batch.flags = _joined_numbers([part.flags for part in parts])
        if len(self.publishers) > 1:
            names = self.publishers
            numbers = _joined_numbers([part.publishers for part in parts])
            batch.publishers = [names[number] for number in numbers]
        else:
            batch.publishers = (self.publishers or [b""]) * count
        batch.topics = _joined([part.row_topics() for part in parts])

    def streams(self) -> list[tuple[int, int]]:
        return [(part.stream_id, len(part.values)) for part in self.parts]


def committed_batch(shard: int, generation: int, first_serial: int, cooked: Cooked) -> FeedBatch:
    """Return the rows of a frame that was just committed; the lists of the cook are not copied."""
    stop = first_serial + cooked.row_count
    batch = FeedBatch(shard, generation, first_serial, stop, cooked.row_count)
    committed = _Committed(cooked)
    batch.names = _joined([part.topics for part in committed.parts])
    batch.mixed = len(committed.parts) > 1
    batch.stream_loader = committed.streams
    batch.size_bytes = cooked.size_bytes
    batch.first_timestamp_us = cooked.timestamp_us
    batch.loader = committed.load
    return batch


def _joined(lists: list[list[bytes]]) -> list[bytes]:
    if len(lists) == 1:
        return lists[0]
    joined: list[bytes] = []
    for items in lists:
        joined += items
    return joined


def _joined_numbers(lists: list[list[int]]) -> list[int]:
    if len(lists) == 1:
        return lists[0]
    joined: list[int] = []
    for items in lists:
        joined += items
    return joined


def rows_by_name(batch: FeedBatch, wanted: Iterable[int]) -> list[list[int] | None]:
    """Return for each topic, by number, the rows of a loaded batch that have it; None for topics
    that are not wanted.
    """
    rows: list[list[int] | None] = [None] * len(batch.names)
    for number in wanted:
        rows[number] = []
    numbers = batch.topic_numbers()
    for i in range(len(numbers)):
        mine = rows[numbers[i]]
        if mine is not None:
            mine.append(i)
    return rows


def rows_of_names(by_name: list[list[int] | None], wanted: list[int]) -> list[int]:
    """Return the rows that have any of the wanted topics, which are numbers, in order."""
    rows: list[int] = []
    for number in wanted:
        mine = by_name[number]
        if mine is not None:
            if len(wanted) == 1:
                return mine
            rows += mine
    rows.sort()
    return rows


def rows_by_time(batch: FeedBatch, rows: list[int] | None) -> list[int]:
    """Return rows of a loaded batch, None for all of them, in order of their arrival."""
    if rows is None:
        rows = list(range(batch.count))
    return sorted(rows, key=batch.timestamps.__getitem__) if batch.mixed else rows
