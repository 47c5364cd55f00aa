"""One work item, run by any build: this file uses only public names and the standard library.

    python bench/compared_work.py NAME DIRECTORY

It prints one line of JSON: the number of rows, messages or transactions, the seconds, and the CPU
seconds of this process.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import siltstone

TOPICS: Final = [b"plant/%02d/device-%08d/state" % (n % 20, n) for n in range(2_000)]
VALUE: Final = b"v" * 100
SMALL_CALLS: Final = 3_000
LARGE_CALLS: Final = 100
TRANSACTIONS: Final = 2_000


def columns(start: int, count: int) -> siltstone.Columns:
    """Return rows that visit the topics with a stride."""
    topics = [TOPICS[(start + i * 31) % len(TOPICS)] for i in range(count)]
    return siltstone.Columns(topics, [VALUE] * count, b"producer", 1)


def append(database: siltstone.Database, calls: int, rows: int) -> int:
    """Append with several calls in flight, as a broker does."""
    batches = [columns(k * rows, rows) for k in range(64)]
    tickets = []
    for number in range(calls):
        tickets.append(database.append(batches[number % 64]))
        if len(tickets) == 16:
            tickets.pop(0).wait(60)
    for ticket in tickets:
        ticket.wait(60)
    return calls * rows


def append_small(store: siltstone.Store) -> tuple[int, float, float]:
    """Append calls of 8 rows."""
    database = store.create("bench")
    return timed(lambda: append(database, SMALL_CALLS, 8))


def append_large(store: siltstone.Store) -> tuple[int, float, float]:
    """Append calls of 5,000 rows."""
    database = store.create("bench")
    return timed(lambda: append(database, LARGE_CALLS, 5_000))


def read_small(store: siltstone.Store) -> tuple[int, float, float]:
    """Read all rows of many small frames."""
    database = store.create("bench")
    append(database, SMALL_CALLS, 8)
    return timed(lambda: sum(batch.num_rows for batch in database.read("#")))


def read_large(store: siltstone.Store) -> tuple[int, float, float]:
    """Read all rows of few large frames."""
    database = store.create("bench")
    append(database, LARGE_CALLS, 5_000)
    return timed(lambda: sum(batch.num_rows for batch in database.read("#")))


def feed(store: siltstone.Store) -> tuple[int, float, float]:
    """Read stored rows from a feed."""
    database = store.create("bench")
    append(database, LARGE_CALLS, 1_000)

    def take() -> int:
        taken = 0
        with database.feed("plant/#") as reader:
            for found in reader:
                taken += len(found.rows())
                reader.ack(found.position)
                if taken == LARGE_CALLS * 1_000:
                    break
        return taken

    return timed(take)


def transactions(store: siltstone.Store) -> tuple[int, float, float]:
    """Commit transactions that read one key and write another."""
    database = store.keyvalue("bench")

    def commit() -> int:
        tickets = []
        for number in range(TRANSACTIONS):
            transaction = database.transaction()
            transaction.get(f"k/{number % 50}")
            transaction.write(f"k/{50 + number % 997}", VALUE, 0)
            tickets.append(transaction.submit())
            if len(tickets) == 16:
                tickets.pop(0).wait(60)
        for ticket in tickets:
            ticket.wait(60)
        return TRANSACTIONS

    return timed(commit)


def timed(work: Callable[[], int]) -> tuple[int, float, float]:
    """Return the amount of work, the seconds, and the CPU seconds."""
    began, cpu = time.perf_counter(), time.process_time()
    done = work()
    return done, time.perf_counter() - began, time.process_time() - cpu


WORKS: Final[dict[str, Callable[[siltstone.Store], tuple[int, float, float]]]] = {
    "append, calls of 8 rows": append_small,
    "append, calls of 5,000 rows": append_large,
    "read, small frames": read_small,
    "read, large frames": read_large,
    "feed of stored rows": feed,
    "transactions": transactions,
}


def main() -> None:
    """Run one work item."""
    name, directory = sys.argv[1], Path(sys.argv[2])
    if name == "--names":
        answer: Any = list(WORKS)
    else:
        with siltstone.open(directory) as store:
            answer = WORKS[name](store)
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
