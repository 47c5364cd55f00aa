"""Two processes: one writes until it is killed, the other follows it through every kill.

    python -m tests.support.following write DIRECTORY FIRST…   a first batch for each producer
    python -m tests.support.following follow DIRECTORY         until its input is closed

The contents of a batch depend only on the numbers of its producer and of the batch, so a reader
knows every row. The writer prints `producer batch` for each batch that was acknowledged as synced.
The follower prints `producer rows` for each producer at the end, and fails if a row is not the
expected next one.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Iterator
from itertools import count, islice
from random import Random
from threading import Thread

import siltstone
from siltstone import Database, DatabaseSettings, Row, SlabId, Status, StreamIterator

NAME = "messages"
SETTINGS = DatabaseSettings(
    shards=2, segment_bytes=256 * 1024, thresholds=(100, 100), reserve_bytes=0
)
# Producer 0 seals the generation each time that it has sent this number of batches.
SEAL_EVERY = 10


def batch(producer: int, number: int) -> list[Row]:
    """Return the rows of one batch of a producer."""
    rng = Random(producer << 32 | number)
    return [
        Row(
            f"producers/{producer}",
            b"%d %d %d " % (producer, number, i) + rng.randbytes(rng.choice((0, 50, 2000))),
            publisher=f"producer {producer}",
            qos=1,
        )
        for i in range(rng.randint(1, 9))
    ]


def all_rows(producer: int) -> Iterator[Row]:
    """Yield all rows of a producer, without end."""
    return (row for number in count() for row in batch(producer, number))


def write(directory: str, firsts: list[int]) -> None:
    """Send from all producers at the same time, for ever."""
    with siltstone.open(directory) as store:
        database = store.ensure(NAME, SETTINGS)
        threads = [
            Thread(target=produce, args=(database, producer, first))
            for producer, first in enumerate(firsts)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def produce(database: Database, producer: int, first: int) -> None:
    for number in count(first):
        # A batch that was not acknowledged before a kill is sent again, and stored once.
        ticket = database.append(batch(producer, number), producer=(f"p{producer}", number))
        ticket.wait()
        # A single short write to a pipe is atomic.
        os.write(1, b"%d %d\n" % (producer, number))
        if producer == 0 and number % SEAL_EVERY == SEAL_EVERY - 1:
            database.seal()


class Follower:
    """Follows each producer through streams and generations, and checks every row."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._expected: dict[int, Iterator[Row]] = {}
        self.seen: dict[int, int] = {}
        self._positions: dict[tuple[SlabId, int], StreamIterator] = {}
        self._ended: set[tuple[SlabId, int]] = set()

    def poll(self) -> int:
        """Read all streams, older generations first; return the number of rows."""
        self._database.refresh()
        for stream in self._database.streams():
            key = (stream.slab, stream.stream_id)
            if key not in self._positions:
                self._positions[key] = self._database.iterator(stream)
        return sum(self._read(key) for key in sorted(self._positions) if key not in self._ended)

    def _read(self, key: tuple[SlabId, int]) -> int:
        if any(old.shard == key[0].shard and old < key[0] for old, _ in self._open()):
            return 0
        read = self._database.next(self._positions[key], 100)
        self._positions[key] = read.iterator
        if read.status is Status.END:
            self._ended.add(key)
        for row in read.batch.rows():
            self._check(row)
        return len(read.batch)

    def _open(self) -> set[tuple[SlabId, int]]:
        return set(self._positions) - self._ended

    def _check(self, row: Row) -> None:
        producer = int(row.topic.removeprefix("producers/"))
        expected = next(self._expected.setdefault(producer, all_rows(producer)))
        if row[:6] != expected[:6]:
            raise AssertionError(f"a row is not the one that must come next: {row!r}")
        self.seen[producer] = self.seen.get(producer, 0) + 1


def follow(directory: str) -> None:
    """Read until the input is closed, then to the end, and print the number of rows."""
    with siltstone.open(directory, read_only=True) as store:
        follower = Follower(store.database(NAME))
        while not select.select([0], [], [], 0.005)[0]:
            follower.poll()
        while follower.poll():
            pass
    for producer, rows in sorted(follower.seen.items()):
        os.write(1, b"%d %d\n" % (producer, rows))


def batches_in(rows: list[Row], producer: int) -> int:
    """Return the number of batches of a producer in these rows.

    The rows must be its first batches, whole, once and in order.
    """
    found = [Row(*row[:6]) for row in rows if row.topic == f"producers/{producer}"]
    assert found == list(islice(all_rows(producer), len(found)))
    left = len(found)
    number = 0
    while left > 0:
        left -= len(batch(producer, number))
        number += 1
    assert left == 0, "a part of a batch is there"
    return number


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(sys.argv[2], [int(text) for text in sys.argv[3:]])
    else:
        follow(sys.argv[2])
