"""A process that writes until it is killed: `python -m tests.support.writer DIRECTORY PRODUCERS`.

Each producer appends small calls, synced, and prints `producer number` when all its rows up to that
number are acknowledged. The value of a row is its producer and its number, which continues after
the last stored one.
"""

from __future__ import annotations

import sys
from threading import Lock, Thread

import siltstone
from siltstone import Columns, Database, DatabaseSettings

NAME = "kill"
CALL_ROWS = 50
SETTINGS = DatabaseSettings(segment_bytes=1024 * 1024, shards=2, rotate_bytes=4 * 1024 * 1024)


def numbers_in(database: Database) -> dict[int, list[int]]:
    """Return the numbers of each producer, in stored order."""
    found: dict[int, list[int]] = {}
    for batch in database.read(columns=["value"]):
        for value in batch.column(0).to_pylist():
            producer, number = value.split()
            found.setdefault(int(producer), []).append(int(number))
    return found


def main() -> None:
    """Write for ever."""
    path, producers = sys.argv[1], int(sys.argv[2])
    told = Lock()
    with siltstone.open(path) as store:
        database = store.ensure(NAME, SETTINGS)
        stored = numbers_in(database)

        def produce(producer: int) -> None:
            number = len(stored.get(producer, []))
            name = b"producer-%d" % producer
            while True:
                values = [b"%d %d" % (producer, number + i) for i in range(CALL_ROWS)]
                topics = [b"kill/%d/%d" % (producer, i) for i in range(CALL_ROWS)]
                database.append(Columns(topics, values, name)).wait()
                number += CALL_ROWS
                with told:
                    sys.stdout.write(f"{producer} {number}\n")
                    sys.stdout.flush()

        threads = [Thread(target=produce, args=(number,)) for number in range(producers)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
