"""Rows that the store has, in order of their serials: a RowBatch with what only stored rows have.
Compiled.

A batch has the rows of one flush or of one read. Its lists are created when rows are needed; before
that only the distinct topics of a committed batch exist. All feeds that receive rows of a batch
share it, and must not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from siltstone.rows.batch import RowBatch


class StoredBatch(RowBatch):
    """Rows of one generation of a shard; it accounts for the serials from start to stop.

    `names` has the distinct topics. The lists are complete after `load`, also `flags` and
    `publishers`. If the batch is not `mixed`, rows are in the order of their arrival; else the rows
    of one stream of a frame are consecutive. `size_bytes` is the share of the rows in their frames.
    """

    def __init__(
        self, shard: int, generation: int, start_serial: int, stop_serial: int, count: int
    ) -> None:
        super().__init__()
        self.shard = shard
        self.generation = generation
        self.start_serial = start_serial
        self.stop_serial = stop_serial
        self._count = count
        self.serials: list[int] = []
        # No row has an earlier timestamp.
        self.first_timestamp_us = 0
        # If timestamps are ahead of the clock, all rows arrived before this time; else 0.
        self.closed_us = 0
        self.names: list[bytes] = []
        self.timestamps: list[int] = []
        # For each row 0, or the end of the times of its topic that it deletes, from its timestamp
        # on. Empty if no row deletes anything: only key-value databases have these rows.
        self.untils: list[int] = []
        # A cache for readers: a converted form for each distinct value of properties. Two threads
        # may fill it at the same time, with the same values.
        self.receivable: dict[bytes, bytes] = {}
        self.mixed = False
        self._numbers: list[int] = []
        self._stream_ids: list[int] = []
        self.loader: Callable[[StoredBatch], None] | None = None
        self.stream_loader: Callable[[], list[tuple[int, int]]] | None = None
        # The pieces that the rows were read from, and the rows as Arrow, if they were converted.
        self.origin: object = None
        self.arrow: object = None

    @property
    def count(self) -> int:
        """The number of rows; known before the lists exist."""
        return self._count

    def number_rows(self) -> list[int]:
        """Return the serial of each row; those of a committed frame are consecutive."""
        if not self.serials and self._count:
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


def rows_by_name(batch: StoredBatch, wanted: Iterable[int]) -> list[list[int] | None]:
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


def rows_by_time(batch: StoredBatch, rows: list[int] | None) -> list[int]:
    """Return rows of a loaded batch, None for all of them, in order of their arrival."""
    if rows is None:
        rows = list(range(batch.count))
    return sorted(rows, key=batch.timestamps.__getitem__) if batch.mixed else rows
