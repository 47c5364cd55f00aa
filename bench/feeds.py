"""Feeds: the cost of a delivered row with one feed and with a thousand, live and in catch-up.

The tables also have the number of frames that are read, and the catch-up rate of one feed. `python
-m bench.feeds` prints the tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

import siltstone
from bench.workload import columns, fill, scratch, settings, topics
from siltstone import Database
from siltstone.rows.stored import StoredBatch
from siltstone.store.feed.dispatch import Dispatch
from siltstone.store.feed.hub import FeedHub
from siltstone.store.feed.pool import ReadJob
from siltstone.store.feed.position import START, Position
from siltstone.store.feed.reader import FeedRead
from siltstone.store.feed.settings import FeedSettings
from siltstone.topic.grammar import TopicFilter

DEVICES = 1000
FEEDS = 1000
BATCH = 1000
LIVE_BATCHES = 200
ROWS = 2_000_000
UNLIMITED = 1 << 62

Filters = Callable[[int], str]


def everything(_number: int) -> str:
    """Return the filter of a feed that wants all rows."""
    return "plant/#"


def one_device(number: int) -> str:
    """Return the filter of a feed that wants one topic, different from all other feeds."""
    return topics(DEVICES)[number % DEVICES].decode()


def one_site(number: int) -> str:
    """Return the filter of a feed that wants a twentieth of the rows, as fifty others do."""
    return f"plant/{number % 20:02d}/#"


KINDS: tuple[tuple[str, Filters], ...] = (
    ("all rows", everything),
    ("one of 20 sites", one_site),
    ("one of 1,000 devices", one_device),
)


class Users:
    """Takes the values of all delivered rows, as a session would to send them."""

    def __init__(self) -> None:
        self.rows = 0
        self.jobs: list[ReadJob] = []

    def take(self, dispatch: Dispatch) -> None:
        """Access every row of every share."""
        values = dispatch.batch.values
        for _, rows in dispatch.shares:
            taken = list(values) if rows is None else [values[row] for row in rows]
            self.rows += len(taken)

    def read_all(self, hub: FeedHub) -> None:
        """Run the reads that the hub requests, until it requests no more."""
        while self.jobs:
            job = self.jobs.pop()
            job.run()
            hub.finish(job)


def add_feeds(hub: FeedHub, count: int, filters: Filters, position: Position) -> None:
    """Add this number of feeds at one position."""
    for number in range(count):
        hub.add([TopicFilter.parse(filters(number))], position, UNLIMITED, number)


def live_cost(database: Database, count: int, filters: Filters) -> tuple[float, int]:
    """Return ns of the owner's time for each delivered row, and the number of frames read."""
    announced: list[StoredBatch] = []
    unlisten = database.on_commit(announced.append)
    users = Users()
    source = database.feed_source()
    before = source.frames_read
    hub = FeedHub(source, users.take, users.jobs.append, FeedSettings())
    add_feeds(hub, count, filters, database.end_position())
    for batch in columns(topics(DEVICES), 0, BATCH) * LIVE_BATCHES:
        database.append(batch, durability="written").wait()
    unlisten()
    begin = time.process_time()
    for each in announced:
        hub.announce(each)
    seconds = time.process_time() - begin
    return seconds / users.rows * 1e9, source.frames_read - before


def live(database: Database) -> Table:
    """Measure the cost of a delivered row, with one feed and with a thousand."""
    table = Table(title=f"live: {LIVE_BATCHES} batches of {BATCH} rows, ns a delivered row")
    for name in ("each feed wants", "1 feed", f"{FEEDS:,} feeds", "to one", "frames read"):
        table.add_column(name, justify="left" if name.startswith("each") else "right")
    for name, filters in KINDS:
        one, read = live_cost(database, 1, filters)
        many, read_for_many = live_cost(database, FEEDS, filters)
        ratio = f"{many / one:.2f}x"
        table.add_row(name, f"{one:.0f}", f"{many:.0f}", ratio, str(read + read_for_many))
    return table


def catch_up_cost(database: Database, count: int, filters: Filters) -> tuple[int, int, float]:
    """Return the rows that feeds receive from the first row on, the frames read, the seconds."""
    users = Users()
    source = database.feed_source()
    before = source.frames_read
    hub = FeedHub(source, users.take, users.jobs.append, FeedSettings())
    begin = time.process_time()
    add_feeds(hub, count, filters, START)
    users.read_all(hub)
    return users.rows, source.frames_read - before, time.process_time() - begin


def catching_up(database: Database) -> Table:
    """Count the frames that are read for a thousand feeds at one position, and for one feed."""
    table = Table(title="catch-up from the same place")
    for name in ("", "rows delivered", "ns a row", "frames read", "to one feed"):
        table.add_column(name, justify="left" if not name else "right")
    _, one, _ = catch_up_cost(database, 1, everything)
    for name, count, filters in (
        ("1 feed, all rows", 1, everything),
        (f"{FEEDS:,} feeds, all rows each", FEEDS, everything),
        (f"{FEEDS:,} feeds, one of 20 sites each", FEEDS, one_site),
    ):
        rows, read, seconds = catch_up_cost(database, count, filters)
        cost = f"{seconds / rows * 1e9:.0f}"
        table.add_row(name, f"{rows:,}", cost, f"{read:,}", f"{read / one:.2f}x")
    return table


def rate(database: Database, use: Callable[[FeedRead], object]) -> float:
    """Return rows per second of one feed from the first row to the last."""
    begin = time.perf_counter()
    rows = 0
    with database.feed() as feed:
        for read in feed:
            use(read)
            rows += len(read)
            if feed.position.reaches(database.end_position()):
                break
    return rows / (time.perf_counter() - begin)


def one_feed(path: Path) -> Table:
    """Measure the catch-up rate of one feed, in the writing process and in another one."""
    table = Table(title=f"catch-up of one feed, {ROWS:,} rows, page cache, rows/s")
    for name in ("", "first time", "again"):
        table.add_column(name, justify="left" if not name else "right")
    with siltstone.open(path, read_only=True) as store:
        database = store.database("bench")
        for name, use in (("as Arrow, all columns", FeedRead.arrow), ("as rows", FeedRead.rows)):
            first, *again = [rate(database, use) for _ in range(3)]
            table.add_row(name, f"{first:,.0f}", f"{max(again):,.0f}")
    return table


def run() -> list[Table]:
    """Measure all and return the tables."""
    with scratch() as path:
        with siltstone.open(path / "live") as store:
            tables = [live(store.create("bench", settings()))]
        with siltstone.open(path / "data") as store:
            database = store.create("bench", settings())
            fill(database, topics(DEVICES), ROWS // 10, BATCH, "written")
            tables.append(catching_up(database))
            fill(database, topics(DEVICES), ROWS - ROWS // 10, BATCH, "written")
        tables.append(one_feed(path / "data"))
    return tables


def main() -> None:
    """Print all tables."""
    for table in run():
        Console().print(table)


if __name__ == "__main__":
    main()
