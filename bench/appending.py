"""Append: rows per second by durability, compared with RocksDB and SQLite, which sync too."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path
from threading import Lock

from rich.table import Table
from rocksdict import Options, Rdict, WriteBatch, WriteOptions

import siltstone
from bench.workload import VALUE, columns, run_producers, scratch, settings, topics
from siltstone.store.database import Durability

SECONDS = 5.0
BATCH = 1000


def siltstone_rate(path: Path, durability: Durability) -> float:
    """Return rows per second that four producers append, with two calls of each in flight."""
    words = topics(5000)
    with siltstone.open(path) as store:
        database = store.create("bench", settings())
        batches = [columns(words, number, BATCH) for number in range(4)]

        def produce(number: int, stop: float) -> int:
            mine, sent, waiting = batches[number], 0, []
            while time.monotonic() < stop:
                ticket = database.append(mine[sent % len(mine)], durability=durability)
                waiting.append(ticket)
                sent += 1
                if len(waiting) >= 2:
                    waiting.pop(0).wait()
            for ticket in waiting:
                ticket.wait()
            return sent * BATCH

        return run_producers(produce, SECONDS)


def rocksdb_rate(path: Path) -> float:
    """Return rows per second with one key for each row and a synced log for each batch."""
    store = Rdict(str(path), Options(raw_mode=True))
    synced = WriteOptions()
    synced.sync = True
    batches = [columns(topics(5000), number, BATCH) for number in range(4)]

    def produce(number: int, stop: float) -> int:
        mine, sent = batches[number], 0
        while time.monotonic() < stop:
            batch = WriteBatch(raw_mode=True)
            time_us = time.time_ns() // 1000
            for i, topic in enumerate(mine[sent % len(mine)].topics):
                key = topic + (time_us + i).to_bytes(8, "big") + bytes([number])
                batch.put(key, VALUE)
            store.write(batch, synced)
            sent += 1
        return sent * BATCH

    rate = run_producers(produce, SECONDS)
    store.close()
    return rate


def sqlite_rate(path: Path) -> float:
    """Return rows per second with WAL and synchronous=FULL, one transaction for each batch."""
    path.mkdir()
    file = path / "rows.db"
    with sqlite3.connect(file) as setup:
        setup.execute("pragma journal_mode=wal")
        setup.execute("create table rows (topic blob, time integer, value blob)")
    batches = [columns(topics(5000), number, BATCH) for number in range(4)]
    turn = Lock()

    def produce(number: int, stop: float) -> int:
        mine, sent = batches[number], 0
        connection = sqlite3.connect(file, timeout=30)
        connection.execute("pragma synchronous=full")
        while time.monotonic() < stop:
            time_us = time.time_ns() // 1000
            rows = [(t, time_us + i, VALUE) for i, t in enumerate(mine[sent % len(mine)].topics)]
            with turn, connection:
                connection.executemany("insert into rows values (?, ?, ?)", rows)
            sent += 1
        connection.close()
        return sent * BATCH

    return run_producers(produce, SECONDS)


def run() -> Table:
    """Measure all and return the table."""
    with scratch() as path:
        rates = {
            "Siltstone, synced": siltstone_rate(path / "synced", "synced"),
            "Siltstone, written": siltstone_rate(path / "written", "written"),
            "RocksDB, a key a row, synced log": rocksdb_rate(path / "rocksdb"),
            "SQLite, WAL, synchronous=FULL": sqlite_rate(path / "sqlite"),
        }
    synced = rates["Siltstone, synced"]
    table = Table(title=f"append, 4 producers, batches of {BATCH}, 30 B topic, 100 B value")
    for name in ("", "rows/s", "synced is"):
        table.add_column(name, justify="left" if not name else "right")
    for name, rate in rates.items():
        table.add_row(name, f"{rate:,.0f}", f"{synced / rate:.1f}x")
    return table
