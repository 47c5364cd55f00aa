"""Shards that are opened when they are first used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from siltstone.errors import ClosedError, CorruptionError
from siltstone.store.database import Database
from siltstone.store.log.opening import RecoveryReport
from siltstone.store.shard.block_log import BlockLog, BlockLogs
from siltstone.topiclog.log import DATABASE
from tests.support.builders import PATH, read_rows
from tests.support.slow_disk import WAIT_SECONDS, SlowFileSystem
from tests.support.topiclog import LogWorld, all_values, append

# Some more than are opened from the start.
TOPICS = 70


@contextmanager
def many(world: LogWorld) -> Iterator[tuple[Database, BlockLogs]]:
    with world.logs() as (_, database):
        yield database, database.block_logs()


def filled(world: LogWorld) -> None:
    with many(world) as (_, logs):
        for number in range(TOPICS):
            log = logs.add(f"t/{number}")
            if number % 10 == 9:
                append(log, b"%d" % number)


def opened(database: Database) -> list[int]:
    return [report.slab.shard for report in database.reports]


def test_only_the_first_are_opened_and_each_other_one_when_it_is_used() -> None:
    world = LogWorld()
    filled(world)
    with many(world) as (database, logs):
        assert opened(database) == list(range(64))
        assert len(logs.topics()) == TOPICS
        last = logs.find("t/69")
        assert last is not None
        assert (all_values(last), last.bounds()) == ([b"69"], range(1))
        assert append(last, b"more") == 1
        assert opened(database) == [*range(64), 69]
    with many(world) as (_, logs):
        last = logs.find("t/69")
        assert last is not None
        assert all_values(last) == [b"69", b"more"]


def test_a_read_of_the_database_has_the_rows_of_all() -> None:
    world = LogWorld()
    filled(world)
    with many(world) as (database, _):
        values = {row.value for row in read_rows(database)}
    assert values == {b"%d" % number for number in range(9, TOPICS, 10)}


def test_where_ages_and_sizes_matter_all_are_opened() -> None:
    world = LogWorld()
    filled(world)
    with many(world) as (database, _):
        database.configure(retain_bytes=1 << 30)
        assert opened(database) == list(range(TOPICS))
    with many(world) as (database, _):
        assert opened(database) == list(range(TOPICS))


def test_damage_in_one_is_told_to_those_that_use_it_and_the_others_work() -> None:
    world = LogWorld()
    filled(world)
    segment = PATH / "data" / DATABASE / "69" / "1" / f"{0:020d}.seg"
    with world.fs.open(segment, writable=True) as file:
        file.write_at(4200, b"\xff" * 16)
    with many(world) as (_, logs):
        bad, good = logs.find("t/69"), logs.find("t/68")
        assert bad is not None
        assert good is not None
        with pytest.raises(CorruptionError):
            append(bad, b"never")
        assert append(good, b"stored") == 0


def test_what_is_found_later_is_told_later() -> None:
    world = LogWorld()
    filled(world)
    told: list[RecoveryReport] = []
    with many(world) as (database, logs):
        database.when_recovered(told.append)
        assert len(told) == 64
        log = logs.find("t/66")
        assert log is not None
        assert log.bounds() == range(0)
        assert [report.slab.shard for report in told[64:]] == [66]


def test_none_is_opened_once_the_database_is_closed() -> None:
    world = LogWorld()
    filled(world)
    with many(world) as (database, logs):
        log = logs.find("t/69")
        assert log is not None
        database.close()
        with pytest.raises(ClosedError):
            log.bounds()
        assert opened(database) == list(range(64))


@contextmanager
def one_being_opened(world: LogWorld) -> Iterator[tuple[Database, BlockLogs, Future[range]]]:
    """Open a database in which a thread waits for the disk to open the shard of `t/69`."""
    fs = world.fs
    assert isinstance(fs, SlowFileSystem)
    filled(world)
    with ThreadPoolExecutor(4) as threads, many(world) as (database, logs):
        fs.slow = PATH / "data" / DATABASE / "69"
        try:
            opening = threads.submit(found(logs, "t/69").bounds)
            assert fs.reached.wait(WAIT_SECONDS)
            yield database, logs, opening
        finally:
            fs.go_on.set()


def found(logs: BlockLogs, topic: str) -> BlockLog:
    log = logs.find(topic)
    assert log is not None
    return log


def in_thread(work: Callable[[], object]) -> Future[object]:
    threads = ThreadPoolExecutor(1)
    try:
        return threads.submit(work)
    finally:
        threads.shutdown(wait=False)


def test_others_are_opened_while_one_waits_for_the_disk() -> None:
    fs = SlowFileSystem()
    with one_being_opened(LogWorld(fs=fs)) as (_, logs, opening):
        other = in_thread(found(logs, "t/68").bounds)
        assert other.result(WAIT_SECONDS) == range(0)
        assert not opening.done()
        fs.go_on.set()
        assert opening.result(WAIT_SECONDS) == range(1)


def test_two_that_ask_for_one_get_the_same() -> None:
    fs = SlowFileSystem()
    with one_being_opened(LogWorld(fs=fs)) as (database, logs, opening):
        again = in_thread(found(logs, "t/69").bounds)
        fs.go_on.set()
        assert opening.result(WAIT_SECONDS) == again.result(WAIT_SECONDS) == range(1)
        assert opened(database) == [*range(64), 69]


def test_one_that_is_being_opened_follows_settings_that_change_meanwhile() -> None:
    fs = SlowFileSystem()
    with one_being_opened(LogWorld(fs=fs)) as (database, _, opening):
        changed = in_thread(lambda: database.configure(max_items=7))
        while database.settings.max_items != 7:
            assert not changed.done()
        fs.go_on.set()
        changed.result(WAIT_SECONDS)
        opening.result(WAIT_SECONDS)
        # No call tells which settings a shard follows.
        settings = [
            database._writable().leader(number).queue().committer.settings.max_items  # noqa: SLF001
            for number in (0, 69, 68)
        ]
        assert settings == [7, 7, 7]


def test_closing_waits_for_one_that_is_being_opened() -> None:
    fs = SlowFileSystem()
    with one_being_opened(LogWorld(fs=fs)) as (database, logs, opening):
        closing = in_thread(database.close)
        refused = False
        while not refused:
            # From its beginning on none is opened any more.
            try:
                found(logs, "t/67").bounds()
            except ClosedError:
                refused = True
        states = [database.closed]
        fs.go_on.set()
        closing.result(WAIT_SECONDS)
        states.append(database.closed)
        assert states == [False, True]
        # Its answer depends on which of the two threads goes on first.
        assert isinstance(opening.exception(WAIT_SECONDS), ClosedError | None)
