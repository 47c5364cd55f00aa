"""A wall clock that jumps: nothing is dropped or expires by it before it is believed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from siltstone.clock import GuardedClock, ManualClock, Sighting
from siltstone.errors import PoisonedError, UsageError
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.fs.publish import create_directories
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.feed.reader import FeedReader
from siltstone.store.last_seen import read_last_seen, write_last_seen
from siltstone.store.log.check.findings import Finding
from siltstone.store.log.check.verify import verify_database
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.settings import DatabaseSettings
from tests.support.builders import NAME, PATH, World, read_rows, settings_of
from tests.support.durable_core import DurableCore
from tests.support.durable_desk import DurableDesk, consume, leave, will
from tests.support.pipeline import batch_rows

DAY = 86_400.0
DAY_US = 86_400_000_000
YEAR = 365 * DAY
SETTINGS = DatabaseSettings(retain_seconds=DAY, segment_bytes=1024 * 1024)


def test_a_clock_that_is_three_days_ahead_for_a_moment_drops_no_rows_and_stamps_none() -> None:
    inner = ManualClock()
    clock = GuardedClock(inner, jump_seconds=60, confirm_seconds=3600)
    start_us = inner.now_us()
    with Store(PATH, fs=MemoryFileSystem(), clock=clock) as store:
        database = store.create("messages", SETTINGS)
        database.append([Row("t", b"old")]).wait()
        database.seal()
        inner.jump(3 * DAY)
        inner.advance(20)
        assert database.enforce_retention() == []
        database.append([Row("t", b"meanwhile")]).wait()
        inner.jump(-3 * DAY)
        rows = read_rows(database, "#")
        assert [row.value for row in rows] == [b"old", b"meanwhile"]
        assert all(row.timestamp_us <= start_us + 21_000_000 for row in rows)
        # Time that passes drops them.
        inner.advance(DAY + 60)
        assert [slab.generation for slab in database.enforce_retention()] == [1]


class Machine:
    """A disk and a wall clock that outlive the runs of a store, each in a boot of the machine."""

    def __init__(self) -> None:
        self.fs = MemoryFileSystem()
        self.wall = ManualClock()

    @contextmanager
    def run(self, boot: str) -> Iterator[tuple[Store, Database, GuardedClock]]:
        clock = GuardedClock(self.wall, jump_seconds=60, confirm_seconds=3600, boot=boot)
        with Store(PATH, fs=self.fs, clock=clock) as store:
            yield store, store.ensure(NAME, SETTINGS), clock


def left_by_a_run() -> Machine:
    """Return a machine whose store has a row in a sealed slab."""
    machine = Machine()
    with machine.run("one") as (_, database, _):
        database.append([Row("t", b"old")]).wait()
        database.seal()
    return machine


def values(database: Database) -> list[bytes]:
    return [row.value for row in read_rows(database, "#")]


def test_a_start_with_a_clock_ahead_drops_nothing_and_one_that_is_set_right_never_does() -> None:
    machine = left_by_a_run()
    machine.wall.jump(3 * DAY)
    with machine.run("two") as (_, database, _):
        assert database.enforce_retention() == []
        machine.wall.advance(20)
        machine.wall.jump(-3 * DAY)
        machine.wall.advance(7200)
        assert database.enforce_retention() == []
        assert values(database) == [b"old"]
    with machine.run("three") as (_, database, clock):
        assert (values(database), clock.state().is_held) == ([b"old"], False)


def test_after_a_long_time_off_rows_are_stamped_right_and_dropped_when_that_is_certain() -> None:
    machine = left_by_a_run()
    machine.wall.jump(3 * DAY)
    with machine.run("two") as (_, database, _):
        assert database.enforce_retention() == []
        database.append([Row("t", b"new")]).wait()
        assert read_rows(database, "#")[1].timestamp_us == machine.wall.now_us()
        machine.wall.advance(3599)
        assert database.enforce_retention() == []
        machine.wall.advance(1)
        assert [slab.generation for slab in database.enforce_retention()] == [1]
        assert values(database) == [b"new"]


@pytest.mark.parametrize("boot", ["one", "two"])
def test_a_start_with_a_clock_set_back_keeps_nothing_for_longer(boot: str) -> None:
    machine = left_by_a_run()
    machine.wall.jump(-30 * DAY)
    with machine.run(boot) as (_, database, _):
        machine.wall.advance(DAY + 60)
        assert [slab.generation for slab in database.enforce_retention()] == [1]


def test_after_a_jump_within_a_boot_a_restart_believes_the_clock_no_sooner() -> None:
    machine = left_by_a_run()
    machine.wall.jump(3 * DAY)
    with machine.run("one") as (_, database, _):
        before_us = machine.wall.now_us() - 3 * DAY_US
        database.append([Row("t", b"new")]).wait()
        assert abs(read_rows(database, "#")[1].timestamp_us - before_us) < 1_000_000
        assert database.enforce_retention() == []


def test_a_store_without_a_last_time_seen_is_compared_with_its_newest_row() -> None:
    machine = left_by_a_run()
    machine.fs.remove(PATH / "CLOCK")
    machine.wall.jump(3 * DAY)
    with machine.run("two") as (_, database, clock):
        assert (database.enforce_retention(), clock.state().is_held) == ([], True)


def test_a_power_cut_while_the_time_is_noted_leaves_one_that_was_seen() -> None:
    first, second = Sighting(time_us=1), Sighting(time_us=2)
    for operations in count():
        fs = MemoryFileSystem()
        create_directories(fs, PATH)
        write_last_seen(fs, PATH, first)
        fs.operations_left = operations
        try:
            write_last_seen(fs, PATH, second)
        except PowerCut:
            assert read_last_seen(fs.crash_clone(), PATH) in (first, second)
        else:
            assert operations > 0
            assert read_last_seen(fs.crash_clone(), PATH) == second
            return


# Sessions.


@contextmanager
def desk_of(boot: str) -> Iterator[DurableDesk]:
    desk = DurableDesk(DurableCore(boot=boot))
    try:
        yield desk
    finally:
        desk.core.close()


def restart(desk: DurableDesk, *, wall: float, boot: str) -> None:
    """Cut the power; the machine comes back with its wall clock moved."""
    desk.core.store.note_time()
    desk.core.disk.clock.jump(wall)
    desk.crash(boot=boot)


def test_sessions_and_wills_wait_until_the_time_off_is_certain() -> None:
    with desk_of("one") as desk:
        leave(desk.come("kept", session_expiry_interval=30))
        desk.come("willed", session_expiry_interval=100, will=will(delay=30)).drop()
        desk.core.run()
        restart(desk, wall=3 * DAY, boot="two")
        desk.wait(29)
        assert (desk.core.archive.count(), desk.core.stored()) == (2, [])
        # Time that this run has seen counts.
        desk.wait(3)
        assert (desk.core.archive.count(), desk.core.stored()) == (1, [b"gone"])


def test_sessions_that_leave_after_a_long_time_off_have_their_time_and_no_more() -> None:
    with desk_of("one") as desk:
        leave(desk.come("old", session_expiry_interval=1000))
        restart(desk, wall=3 * DAY, boot="two")
        leave(desk.come("new", session_expiry_interval=10))
        desk.wait(9)
        assert [each.client_id for each in desk.core.archive.list()] == ["new", "old"]
        desk.wait(3)
        assert [each.client_id for each in desk.core.archive.list()] == ["old"]
        desk.core.disk.clock.advance(3600)
        desk.wait(2)
        assert desk.core.archive.count() == 0


def test_a_clock_set_back_across_a_restart_lengthens_no_session() -> None:
    with desk_of("one") as desk:
        leave(desk.come("s", session_expiry_interval=30))
        restart(desk, wall=-3 * DAY, boot="two")
        desk.wait(28)
        assert desk.core.archive.count() == 1
        desk.wait(4)
        assert desk.core.archive.count() == 0


# Rows that are stamped ahead.


@contextmanager
def stamped_ahead(
    shards: int = 1, retain_seconds: float | None = DAY
) -> Iterator[tuple[World, Database]]:
    """Open a database with rows of now, of a year ahead, and a clock that is right again."""
    world = World()
    with world.database(shards=shards, retain_seconds=retain_seconds) as database:
        database.append([Row("t", b"before")]).wait()
        world.clock.advance(YEAR)
        database.append([Row("t", b"ahead")]).wait()
        database.seal()
        database.append([Row("t", b"ahead too")]).wait()
        world.clock.jump(-YEAR)
        world.clock.advance(10)
        yield world, database


def test_times_that_restart_follow_the_clock_and_serials_go_on() -> None:
    with stamped_ahead() as (world, database):
        database.append([Row("t", b"follows")]).wait()
        now_us = world.clock.now_us()
        assert database.restart_times() == 1
        database.append([Row("t", b"right")]).wait()
        assert database.restart_times() == 1, "a µs ahead is ahead"
        world.clock.advance(1)
        assert database.restart_times() == 0
        rows = read_rows(database, "#")
        assert [row.value for row in rows] == [
            b"before",
            b"right",
            b"ahead",
            b"ahead too",
            b"follows",
        ]
        assert [row.serial for row in rows] == [0, 4, 1, 2, 3]
        assert rows[1].timestamp_us == now_us
        since_us, until_us = now_us - DAY_US, now_us + DAY_US
        assert database.count(since_us=since_us, until_us=until_us) == 2
        found = batch_rows(world, since_us=since_us, until_us=until_us)
        assert [row["payload"] for row in found] == [b"before", b"right"]


def test_a_feed_since_a_time_brings_what_is_stamped_since_and_nothing_else() -> None:
    with stamped_ahead(retain_seconds=None) as (world, database):
        database.restart_times()
        database.append([Row("t", b"right")]).wait()
        now_us = world.clock.now_us()
        with (
            database.feed("t", since_us=now_us + 100 * DAY_US) as far,
            database.feed("t", since_us=now_us) as near,
        ):
            database.append([Row("t", b"later")]).wait()
            world.clock.advance(YEAR)
            database.append([Row("t", b"last")]).wait()
            assert brought(far) == [b"ahead", b"ahead too", b"last"]
            assert brought(near) == [b"ahead", b"ahead too", b"right", b"later", b"last"]


def brought(feed: FeedReader) -> list[bytes]:
    """Return what a feed brings up to the last row."""
    found: list[bytes] = []
    while found[-1:] != [b"last"]:
        read = feed.next()
        assert read is not None
        found += [row.value for row in read.rows()]
    return found


def test_what_is_stamped_ahead_and_sealed_is_not_the_newest_time_once_times_restarted() -> None:
    with stamped_ahead() as (world, database):
        assert database.newest_us() > world.clock.now_us()
        database.restart_times()
        assert database.newest_us() <= world.clock.now_us()


def test_retention_counts_what_is_stamped_ahead_from_when_times_restarted() -> None:
    with stamped_ahead() as (world, database):
        database.restart_times()
        database.append([Row("t", b"right")]).wait()
        world.clock.advance(DAY - 1)
        database.enforce_retention()
        assert len(values(database)) == 4
        world.clock.advance(1)
        database.enforce_retention()
        assert values(database) == [b"right"]


def findings(world: World, *, repair: bool = False) -> list[Finding]:
    place = PATH / "data" / NAME
    report = verify_database(world.fs, place, repair=repair, quarantine=PATH / "quarantine")
    return list(report.findings)


def test_a_store_whose_times_restarted_is_sound_and_its_lost_manifest_is_made_anew() -> None:
    with stamped_ahead(retain_seconds=None) as (world, database):
        database.restart_times()
        database.append([Row("t", b"right")]).wait()
        before = database.slabs()
        rows = read_rows(database, "#")
    assert findings(world) == []
    world.fs.remove(PATH / "data" / NAME / "manifest")
    assert len(findings(world, repair=True)) == 1
    with world.database() as database:
        assert (database.slabs(), read_rows(database, "#")) == (before, rows)
        database.configure(retain_seconds=DAY)
        world.clock.advance(DAY)
        assert [slab.generation for slab in database.enforce_retention()] == [1, 2]


def test_a_power_cut_at_any_step_of_a_restart_of_times_loses_nothing() -> None:
    for operations in count():
        with stamped_ahead(retain_seconds=None) as (world, database):
            assert isinstance(world.fs, MemoryFileSystem)
            world.fs.operations_left = operations
            try:
                database.restart_times()
            except (PowerCut, PoisonedError):
                after = World(fs=world.fs.crash_clone(), clock=world.clock)
                world.fs.operations_left = None
            else:
                world.fs.operations_left = None
                assert operations > 0
                return
        with after.database() as again:
            assert values(again) == [b"before", b"ahead", b"ahead too"]
            again.restart_times()
            again.append([Row("t", b"right")]).wait()
            assert values(again) == [b"before", b"right", b"ahead", b"ahead too"]
        assert findings(after) == []


def test_the_log_of_retained_messages_keeps_its_order() -> None:
    world = World()
    with world.store() as store, pytest.raises(UsageError, match="belongs to the broker"):
        store.create("_retained", settings_of()).restart_times()


def test_a_message_that_is_stamped_ahead_expires_as_if_it_came_when_times_restarted() -> None:
    with desk_of("") as desk:
        subscriber = desk.come("s", session_expiry_interval=1000)
        subscriber.subscribe("t", qos=1)
        leave(subscriber)
        desk.core.disk.clock.jump(YEAR)
        desk.publish("t", "short", message_expiry_interval=20)
        desk.publish("t", "long", message_expiry_interval=300)
        desk.core.disk.clock.jump(-YEAR)
        assert desk.core.real.restart_times() == 1
        desk.core.disk.clock.advance(60)
        desk.crash()
        assert [each.payload for each in consume(desk.come("s"))] == ["long"]
