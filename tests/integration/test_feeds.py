"""Feeds with real threads, on a real disk: writers, shards, readers and owners run as they like.

Each feed counts what it gets of each producer: the numbers must be those that were written, each
once, in order, whatever the threads make of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random

import siltstone
from siltstone import Database, DatabaseSettings, Row
from siltstone.store.feed.position import START, Position

PRODUCERS = 4
BATCHES = 40
SETTINGS = DatabaseSettings(
    shards=2,
    segment_bytes=256 * 1024,
    rotate_bytes=100_000,
    thresholds=(100, 2),
    idle_flush_interval=0.0,
)
LAST = b"last"
WAIT = 30.0


def write(database: Database, producer: int) -> int:
    """Append rows with rising numbers, some of them at once; return how many there were."""
    random = Random(producer)
    number = 0
    for _ in range(BATCHES):
        rows = []
        for _ in range(random.randrange(1, 40)):
            value = b"%d" % number + b" " + bytes(random.randrange(200))
            rows.append(Row(f"p/{producer}/{number % 5}", value, f"{producer}"))
            number += 1
        database.append(rows, durability="written").wait()
    database.append([Row(f"p/{producer}/0", LAST, f"{producer}")]).wait()
    return number


class Counted:
    """What a feed got of each producer's topics."""

    def __init__(self) -> None:
        # By producer and topic: rows of a topic keep their order, those of a flush stand by stream.
        self.numbers: dict[str, list[int]] = {}
        self.lasts = 0

    def take(self, rows: list[Row]) -> None:
        for row in rows:
            if row.value == LAST:
                self.lasts += 1
            else:
                self.numbers.setdefault(row.topic, []).append(int(row.value.split(b" ")[0]))

    def check(self, counts: dict[int, int]) -> None:
        expected = {
            f"p/{producer}/{word}": [n for n in range(count) if n % 5 == word]
            for producer, count in counts.items()
            for word in range(5)
        }
        assert self.numbers == {topic: numbers for topic, numbers in expected.items() if numbers}


def follow(database: Database, topic_filter: str, lasts: int, credit: int, seed: int) -> Counted:
    """Read until so many producers have ended; now and then leave, and come back where it was."""
    random = Random(seed)
    counted = Counted()
    position: Position = START
    while counted.lasts < lasts:
        with database.feed(topic_filter, position=position, credit=credit) as feed:
            while counted.lasts < lasts and random.random() > 0.02:
                read = feed.next(WAIT)
                assert read is not None, "nothing came"
                assert len(read) <= credit
                assert read.lost == 0
                counted.take(read.rows())
                feed.ack(read.position)
            position = Position.from_bytes(feed.position.to_bytes())
    return counted


@contextmanager
def database_at(path: Path) -> Iterator[Database]:
    with siltstone.open(path) as store:
        yield store.ensure("messages", SETTINGS)


def run_together(
    writer: Database, follows: list[Callable[[], Counted]]
) -> tuple[dict[int, int], list[Counted]]:
    """Write from all producers while all feeds read; return how much, and what they got."""
    with ThreadPoolExecutor(PRODUCERS + len(follows)) as pool:
        reading = [pool.submit(each) for each in follows]
        writing = {number: pool.submit(write, writer, number) for number in range(PRODUCERS)}
        counts = {number: each.result() for number, each in writing.items()}
        return counts, [each.result() for each in reading]


def test_every_feed_gets_every_row_once_in_order_while_threads_write(tmp_path: Path) -> None:
    # Other tests of this process may have left some that are not ours to count.
    others = threading.active_count()
    with database_at(tmp_path) as database:
        windows = (2, 7, 100, 10_000, 10_000)
        counts, counted = run_together(
            database,
            [
                partial(follow, database, "p/#", PRODUCERS, credit, seed)
                for seed, credit in enumerate(windows)
            ],
        )
        for each in counted:
            each.check(counts)
        assert len(database.slabs()) > 2
        assert threading.active_count() <= others + SETTINGS.shards


def test_feeds_with_different_filters_get_their_own_rows(tmp_path: Path) -> None:
    with database_at(tmp_path) as database:
        counts, counted = run_together(
            database,
            [
                partial(follow, database, f"p/{number}/+", 1, 50, number)
                for number in range(PRODUCERS)
            ],
        )
        for number, each in enumerate(counted):
            each.check({number: counts[number]})


def test_feeds_of_a_reading_process_get_every_row(tmp_path: Path) -> None:
    with (
        database_at(tmp_path) as database,
        siltstone.open(tmp_path, read_only=True) as store,
    ):
        reader = store.database("messages")
        counts, counted = run_together(
            database,
            [partial(follow, reader, "p/#", PRODUCERS, 5_000, seed) for seed in range(2)],
        )
        for each in counted:
            each.check(counts)
