"""The data of the benchmarks: rows of a 30-byte topic and a 100-byte value, four producers."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Final

from siltstone import Columns, Database, DatabaseSettings
from siltstone.store.database import Durability

TOPIC_BYTES: Final = 30
VALUE: Final = b"v" * 100
PRODUCERS: Final = 4


def topic(number: int) -> bytes:
    """Return one of the topics, 30 bytes, on 20 sites."""
    return b"plant/%02d/device-%08d/state" % (number % 20, number)


def topics(count: int) -> list[bytes]:
    """Return this number of topics."""
    return [topic(number) for number in range(count)]


def columns(words: list[bytes], producer: int, batch: int) -> list[Columns]:
    """Return batches of a producer that visit the topics with a stride."""
    count = len(words)
    rounds = max(1, min(64, count // batch))
    return [
        Columns(
            [words[(producer * 7919 + (k * batch + i) * 31) % count] for i in range(batch)],
            [VALUE] * batch,
            b"producer-%d" % producer,
            1,
        )
        for k in range(rounds)
    ]


def run_producers(produce: Callable[[int, float], int], seconds: float) -> float:
    """Run the producers in parallel for some seconds; return rows per second."""
    done = [0] * PRODUCERS
    stop = time.monotonic() + seconds

    def work(number: int) -> None:
        done[number] = produce(number, stop)

    threads = [Thread(target=work, args=(number,)) for number in range(PRODUCERS)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done) / (time.monotonic() - begin)


def fill(
    database: Database, words: list[bytes], rows: int, batch: int, durability: Durability
) -> None:
    """Append this number of rows, with a few calls in flight."""
    batches = columns(words, 0, batch)
    waiting = []
    for k in range(rows // batch):
        waiting.append(database.append(batches[k % len(batches)], durability=durability))
        if len(waiting) >= 4:
            waiting.pop(0).wait()
    for ticket in waiting:
        ticket.wait()


def settings(**changes: object) -> DatabaseSettings:
    """Return settings that put all benchmark topics into one stream, so that a stream is long."""
    return DatabaseSettings.from_json({"thresholds": [-1, 0, 0, -1], **changes})


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a directory on the disk of this project, and remove it at the end."""
    root = Path("build")
    root.mkdir(exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="bench-", dir=root))
    try:
        yield path
    finally:
        shutil.rmtree(path)
