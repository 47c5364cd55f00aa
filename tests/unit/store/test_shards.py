"""Shards that are opened when they are first used."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from siltstone.database import Database
from siltstone.errors import ClosedError, CorruptionError
from siltstone.store.block_log import BlockLogs
from siltstone.store.opening import RecoveryReport
from siltstone.topiclog.log import DATABASE
from tests.support.builders import PATH, read_rows
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
