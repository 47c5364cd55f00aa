"""Transactions per second without conflicts, and the cost of conflicts.

`python -m bench.transactions` prints both tables.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import Thread

from rich.console import Console
from rich.table import Table
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

import siltstone
from bench.workload import VALUE, scratch, topics
from siltstone.store.keyvalue import KeyValueDatabase
from siltstone.store.tx.commit.ticket import CommitTicket
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.tx.transaction import Transaction

SECONDS = 3.0
THREADS = 8
WRITES = 3
IN_FLIGHT = 128
COUNTERS = (10_000, 1_000, 100, 30, 10, 3, 1)
# Every thread writes topics of its own.
TOPICS = [word.decode() for word in topics(4_800)]
SHARE = len(TOPICS) // THREADS


def run_threads(work: Callable[[int, float], int]) -> float:
    """Run work in all threads for some seconds; return transactions per second."""
    done = [0] * THREADS
    stop = time.monotonic() + SECONDS

    def run(number: int) -> None:
        done[number] = work(number, stop)

    threads = [Thread(target=run, args=(number,)) for number in range(THREADS)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.monotonic() - begin)


def write_three(database: KeyValueDatabase, number: int, turn: int) -> Transaction:
    """Start a transaction that writes three rows which no other thread writes."""
    tx = database.transaction()
    first = number * SHARE + turn * WRITES % SHARE
    for topic in TOPICS[first : first + WRITES]:
        tx.write(topic, VALUE)
    return tx


def grouped_rate(path: Path, settings: KeyValueSettings, in_flight: int) -> float:
    """Return the rate of threads that each have this number of commits in flight."""
    with siltstone.open(path) as store:
        database = store.keyvalue("bench", settings)

        def work(number: int, stop: float) -> int:
            waiting: deque[CommitTicket] = deque()
            turn = 0
            while turn % 64 or time.monotonic() < stop:
                waiting.append(write_three(database, number, turn).submit())
                turn += 1
                if len(waiting) >= in_flight:
                    waiting.popleft().wait()
            for ticket in waiting:
                ticket.wait()
            return turn

        return run_threads(work)


def rocksdb_rate(path: Path) -> float:
    """Return the rate of RocksDB itself, with a synced batch for each transaction."""
    store = Rdict(str(path), Options(raw_mode=True))
    synced = WriteOptions()
    synced.sync = True
    keys = [topic.encode() for topic in TOPICS]

    def work(number: int, stop: float) -> int:
        turn = 0
        while time.monotonic() < stop:
            batch = WriteBatch(raw_mode=True)
            first = number * SHARE + turn * WRITES % SHARE
            time_us = time.time_ns() // 1000
            for key in keys[first : first + WRITES]:
                batch.put(key + time_us.to_bytes(8, "big"), VALUE)
            store.write(batch, synced)
            turn += 1
        return turn

    rate = run_threads(work)
    store.close()
    return rate


def throughput() -> Table:
    """Measure transactions that do not conflict."""
    with scratch() as path:
        rates = {
            f"in groups, {IN_FLIGHT} under way a thread": grouped_rate(
                path / "flight", KeyValueSettings(), IN_FLIGHT
            ),
            "in groups, each thread waits for each": grouped_rate(
                path / "waiting", KeyValueSettings(), 1
            ),
            "a sync a transaction": grouped_rate(
                path / "single", KeyValueSettings(max_items=1), IN_FLIGHT
            ),
            "RocksDB alone, a synced batch a transaction": rocksdb_rate(path / "rocksdb"),
        }
    single = rates["a sync a transaction"]
    table = Table(title=f"transactions of {WRITES} writes, {THREADS} threads, synced, no conflicts")
    for name in ("", "tx/s", "to a sync a transaction"):
        table.add_column(name, justify="left" if not name else "right")
    for name, rate in rates.items():
        table.add_row(name, f"{rate:,.0f}", f"{rate / single:.1f}x")
    return table


def conflict_rate(path: Path, counters: int) -> tuple[float, float]:
    """Return increments of this number of counters per second, and attempts for each."""
    attempts = [0] * THREADS
    with siltstone.open(path) as store:
        database = store.keyvalue("bench", KeyValueSettings(timed=False))
        names = [f"counter/{number}" for number in range(counters)]

        def work(number: int, stop: float) -> int:
            done = 0
            state = number

            def increment(tx: Transaction) -> None:
                name = names[state % counters]
                tx.write(name, b"%d" % (int(tx.get(name) or b"0") + 1))

            while time.monotonic() < stop:
                # A cheap generator: the same for every number of counters.
                state = (state * 1_103_515_245 + 12_345) % (1 << 31)
                attempts[number] += database.transact(increment, retries=1_000).attempts
                done += 1
            return done

        rate = run_threads(work)
        found = sum(int(row.value) for row in database.read("counter/+"))
    return rate, sum(attempts) / found


def conflicts() -> Table:
    """Measure transactions that read and write one counter of many, or of few."""
    table = Table(title=f"increments of a counter, {THREADS} threads, each waits, synced")
    for name in ("counters", "tx/s", "attempts a commit", "to no conflicts"):
        table.add_column(name, justify="right")
    with scratch() as path:
        free = 0.0
        for counters in COUNTERS:
            rate, attempts = conflict_rate(path / str(counters), counters)
            free = free or rate
            table.add_row(f"{counters:,}", f"{rate:,.0f}", f"{attempts:.2f}", f"{rate / free:.2f}x")
    return table


def main() -> None:
    """Print both tables."""
    console = Console()
    console.print(throughput())
    console.print(conflicts())


if __name__ == "__main__":
    main()
