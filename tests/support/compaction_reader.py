"""A process that reads while another one compacts: `python -m tests.support.compaction_reader DIR`.

The value of each row is its number. A batch, an iterator and a feed begin when the process starts,
go on with each line of stdin, and end with stdin. Each of them must meet the numbers in order, each
once. The process prints how many rows each has met so far, and how many a new read finds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice

import siltstone
from siltstone import Database, Row, Status

NAME = "compacted"
TOPIC = "t/1"
STEP = 40


def batch_numbers(database: Database) -> Iterator[int]:
    """Read all rows that are there now, without an end in between."""
    for batch in database.read(columns=["value"]):
        yield from map(int, batch.column(0).to_pylist())


def iterator_numbers(database: Database) -> Iterator[int]:
    """Read the rows of all generations with saved positions, a few at a time."""
    for stream in database.streams(TOPIC):
        iterator, status = database.iterator(stream, TOPIC), Status.MORE
        while status is Status.MORE:
            read = database.next(iterator, 7)
            iterator, status = read.iterator, read.status
            yield from (int(row.value) for row in read.batch.rows())


def feed_numbers(database: Database) -> Iterator[int]:
    """Read with a feed that has little credit."""
    with database.feed(TOPIC, credit=10) as feed:
        while (read := feed.next(1.0)) is not None:
            rows: list[Row] = read.rows()
            yield from (int(row.value) for row in rows)
            feed.ack(read.position)


def main() -> None:
    """Read on with each line of stdin."""
    with siltstone.open(sys.argv[1], read_only=True) as store:
        database = store.database(NAME)
        readers = [read(database) for read in (batch_numbers, iterator_numbers, feed_numbers)]
        met = [0] * len(readers)

        def go_on(rows: int | None) -> None:
            for place, reader in enumerate(readers):
                for number in islice(reader, rows):
                    if number != met[place]:
                        raise AssertionError(f"row {number} follows row {met[place] - 1}")
                    met[place] += 1
            found = list(batch_numbers(database))
            assert found == list(range(len(found)))
            sys.stdout.write(" ".join(map(str, (*met, len(found)))) + "\n")
            sys.stdout.flush()

        go_on(STEP)
        for _ in sys.stdin:
            go_on(STEP)
        go_on(None)


if __name__ == "__main__":
    main()
