"""One database whose shards have different roles in two stores, as in two processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import pytest

from siltstone.errors import LockedError, SlabDroppedError, UsageError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.feed.reader import FeedReader
from siltstone.store.log.check.verify import verify_database
from siltstone.store.log.read.pieces import Row
from siltstone.store.log.read.scan import Status
from siltstone.store.shard.shard import Role, Roles
from siltstone.store.slab.manifest import SlabId, read_manifest
from tests.support.builders import NAME, PATH, World, read_rows, settings_of

HOME = PATH / "data" / NAME
WAIT_SECONDS = 10.0
# A topic of shard 0 and one of shard 1.
ZERO, ONE = (
    next(f"t/{n}" for n in range(100) if crc32(f"t/{n}".encode()) % 2 == shard) for shard in (0, 1)
)


def created(world: World, **changes: Any) -> None:
    with world.store() as store:
        store.create(NAME, settings_of(shards=2, shard_by="topic", **changes))


def leading(world: World, *shards: int) -> Store:
    return Store(PATH, fs=world.fs, clock=world.clock, leads={NAME: shards})


@contextmanager
def both(world: World, **changes: Any) -> Iterator[tuple[Database, Database]]:
    """Open the database twice: one leads shard 0 and reads shard 1, the other does the reverse."""
    created(world, **changes)
    with leading(world, 0) as first, leading(world, 1) as second:
        yield first.database(NAME), second.database(NAME)


def append(database: Database, topic: str, *values: bytes) -> None:
    database.append([Row(topic, value) for value in values]).wait()


def values(database: Database) -> list[bytes]:
    return sorted(row.value for row in read_rows(database))


def take(feed: FeedReader, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        read = feed.next(WAIT_SECONDS)
        assert read is not None
        found += [row.value for row in read.rows()]
        feed.ack(read.position)
    return found


def test_the_role_of_a_shard_is_the_one_of_its_number_or_that_of_the_rest() -> None:
    roles = Roles(Role.READER, {1: Role.LEADER})
    assert [roles.of(number) for number in range(3)] == [Role.READER, Role.LEADER, Role.READER]
    assert (roles.leads_any, roles.leads_all) == (True, False)


def test_each_reads_what_the_other_writes() -> None:
    with both(World()) as (first, second):
        append(first, ZERO, b"a", b"b")
        append(second, ONE, b"c")
        assert values(first) == values(second) == [b"a", b"b", b"c"]
        append(second, ONE, b"d")
        append(first, ZERO, b"e")
        assert values(first) == values(second) == [b"a", b"b", b"c", b"d", b"e"]
        assert first.count(ONE) == second.count(ONE) == 2


def test_a_call_with_a_row_of_a_shard_that_is_only_read_is_refused_as_a_whole() -> None:
    with both(World()) as (first, _):
        with pytest.raises(UsageError, match="this process only reads shard 1: ask its leader"):
            first.append([Row(ZERO, b"never"), Row(ONE, b"never")])
        first.sync()
        assert values(first) == []


def test_a_feed_has_the_rows_of_both_in_order_and_each_once() -> None:
    with both(World()) as (first, second):
        append(first, ZERO, b"0a")
        append(second, ONE, b"1a")
        with first.feed() as feed:
            found = take(feed, 2)
            for turn in range(20):
                append(first, ZERO, b"0-%02d" % turn)
                append(second, ONE, b"1-%02d" % turn)
            found += take(feed, 40)
            position = feed.position
            assert feed.next(0.2) is None
        for shard in (b"0", b"1"):
            wanted = [shard + b"a", *(shard + b"-%02d" % turn for turn in range(20))]
            assert [value for value in found if value.startswith(shard)] == wanted
        append(second, ONE, b"later")
        with first.feed(position=position) as feed:
            assert take(feed, 1) == [b"later"]


def test_iterators_follow_both_into_the_next_generation() -> None:
    with both(World()) as (first, second):
        append(second, ONE, b"a")
        append(first, ZERO, b"b")
        starts = [first.iterator(stream, ONE) for stream in first.streams(ONE)]
        (before,) = [first.next(start) for start in starts]
        assert ([row.value for row in before.batch.rows()], before.status) == (
            [b"a"],
            Status.CAUGHT_UP,
        )
        append(second, ONE, b"c")
        second.seal()
        append(second, ONE, b"d")
        after = first.next(before.iterator)
        assert [row.value for row in after.batch.rows()] == [b"c"]
        assert first.next(after.iterator).status is Status.END
        assert values(first) == [b"a", b"b", b"c", b"d"]


def test_generations_and_drops_of_both_are_in_one_manifest() -> None:
    world = World()
    with both(world) as (first, second):
        for database, topic in ((first, ZERO), (second, ONE), (first, ZERO), (second, ONE)):
            append(database, topic, b"x")
            database.seal()
        named = [record.id for record in read_manifest(world.fs, HOME).slabs]
        assert named == [SlabId(shard, number) for shard in (0, 1) for number in (1, 2, 3)]
        first.drop_slab(SlabId(0, 1))
        second.drop_slab(SlabId(1, 2))
        with pytest.raises(UsageError, match="only reads shard 1"):
            first.drop_slab(SlabId(1, 1))
        left = [SlabId(0, 2), SlabId(0, 3), SlabId(1, 1), SlabId(1, 3)]
        for database in (first, second):
            database.refresh()
            assert sorted(info.slab for info in database.slabs()) == left
        with pytest.raises(SlabDroppedError):
            first.choose(SlabId(1, 2), [], range(9))
    assert [record.id for record in read_manifest(world.fs, HOME).slabs] == left
    with world.database() as database:
        assert database.count() == 2


def test_retention_counts_all_shards_and_each_leader_drops_its_own() -> None:
    world = World()
    with both(world, retain_bytes=1, rotate_bytes=1 << 40) as (first, second):
        append(first, ZERO, b"x")
        append(second, ONE, b"y")
        first.seal()
        second.seal()
        assert first.enforce_retention() == [SlabId(0, 1)]
        assert second.enforce_retention() == [SlabId(1, 1)]
        first.refresh()
        assert sorted(info.slab for info in first.slabs()) == [SlabId(0, 2), SlabId(1, 2)]


def test_a_shard_has_one_leader_and_the_directory_none_that_leads_all_beside_it() -> None:
    world = World()
    created(world)
    with leading(world, 0) as first, leading(world, 0, 1) as second:
        first.database(NAME)
        with pytest.raises(LockedError, match="another process leads shard 0"):
            second.database(NAME)
        with pytest.raises(LockedError):
            world.store()
        # The refused one holds no lock of a shard.
        with leading(world, 1) as third:
            append(third.database(NAME), ONE, b"x")
    with world.store(), pytest.raises(LockedError):
        leading(world, 0)


def test_a_shard_has_a_new_leader_after_the_old_one() -> None:
    world = World()
    created(world)
    with leading(world, 0) as first:
        database = first.database(NAME)
        append(database, ZERO, b"a")
        with leading(world, 1) as second:
            append(second.database(NAME), ONE, b"b")
            second.database(NAME).seal()
        with leading(world, 1) as third:
            append(third.database(NAME), ONE, b"c")
            third.database(NAME).seal()
        database.seal()
        assert values(database) == [b"a", b"b", b"c"]
    generations = {
        shard: [record.generation for record in read_manifest(world.fs, HOME).slabs_of(shard)]
        for shard in (0, 1)
    }
    assert generations == {0: [1, 2], 1: [1, 2, 3]}


def test_what_concerns_the_whole_database_needs_all_its_shards() -> None:
    world = World()
    created(world)
    with leading(world, 0) as store:
        database = store.database(NAME)
        for act in (
            lambda: database.configure(max_items=7),
            database.block_logs,
            lambda: store.create("other"),
            lambda: store.drop(NAME),
            lambda: store.keyvalue("commits"),
        ):
            with pytest.raises(UsageError):
                act()
    with leading(world, 7) as store, pytest.raises(UsageError, match="unknown shard 7: shards=2"):
        store.database(NAME)


def test_what_two_leaders_wrote_survives_a_power_cut_and_is_sound() -> None:
    fs = MemoryFileSystem()
    with both(World(fs)) as (first, second):
        append(first, ZERO, b"a")
        append(second, ONE, b"b")
        first.seal()
        second.seal()
        append(first, ZERO, b"c")
        append(second, ONE, b"d")
        after = World(fs.crash_clone())
    with after.database() as database:
        assert values(database) == [b"a", b"b", b"c", b"d"]
    assert verify_database(after.fs, HOME, quarantine=PATH / "quarantine").findings == ()
