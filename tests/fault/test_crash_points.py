"""The power goes at every single operation of everything that writes, and of coming back as well.

Whatever is left, the store opens; it holds all that was acknowledged, nothing that was never sent,
nothing twice; and no serial that a reader has seen is ever given to another row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import pytest

from siltstone.errors import PoisonedError
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.fs.paths import StorePaths
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.log.opening import slab_directory
from siltstone.store.log.read.pieces import Row
from siltstone.store.segment.segment import open_segment
from siltstone.store.segment.sift import is_segment, read_summary
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import (
    NAME,
    NOW_US,
    PATH,
    SEGMENT_BYTES,
    World,
    as_given,
    read_rows,
    settings_of,
)
from tests.support.reading import EVERYTHING, check_everything

PLACE = StorePaths(PATH).database(NAME)
BIG = b"b" * 20_000
NEXT = Row("next", b"next")
SEEDS = range(3)
QUIET = {"sync_interval": 3600.0}


@dataclass
class Attempt:
    """A store whose power will go, and what its caller knows.

    What is doomed is being dropped: it may be gone, but only as a whole.
    """

    world: World
    store: Store
    database: Database
    sent: list[Row] = field(default_factory=list)
    synced: int = 0
    written: int = 0
    doomed: list[Row] = field(default_factory=list)

    def append(self, *rows: Row, durability: str = "synced") -> None:
        self.sent += rows
        ticket = self.database.append(rows, durability=durability)  # type: ignore[arg-type]
        ticket.wait()
        if durability != "none":
            self.written = len(self.sent)
        if durability == "synced":
            self.synced = len(self.sent)

    def check(self, found: list[Row], *, killed: bool) -> None:
        """Check that these rows may be what is left."""
        dropped = len(self.doomed) if found[:1] != self.doomed[:1] else 0
        assert found == self.sent[dropped : dropped + len(found)]
        assert dropped + len(found) >= (self.written if killed else self.synced)


Act = Callable[[Attempt], object]


def begin(prepare: Act, **changes: Any) -> Attempt:
    world = World(fs=MemoryFileSystem())
    store = world.store()
    attempt = Attempt(world, store, store.create(NAME, settings_of(**QUIET | changes)))
    prepare(attempt)
    return attempt


def disk_of(attempt: Attempt) -> MemoryFileSystem:
    assert isinstance(attempt.world.fs, MemoryFileSystem)
    return attempt.world.fs


def crashes(prepare: Act, act: Act, **changes: Any) -> Iterator[Attempt]:
    """Yield the attempt after the power went at each operation of act in turn."""
    for operations in count():
        attempt = begin(prepare, **changes)
        disk_of(attempt).operations_left = operations
        try:
            act(attempt)
        except (PowerCut, PoisonedError):
            yield attempt
            attempt.store.close()
        else:
            attempt.store.close()
            assert operations > 0
            return


def remains(disk: MemoryFileSystem) -> Iterator[tuple[MemoryFileSystem, bool]]:
    """Yield what may be found, and whether only the process died."""
    yield disk.kill_clone(), True
    yield disk.crash_clone(), False
    for seed in SEEDS:
        yield disk.crash_clone(Random(seed), in_order=seed % 2 == 0), False


def all_rows(database: Database) -> list[Row]:
    rows = [row for name in EVERYTHING for row in read_rows(database, name)]
    return sorted(rows, key=lambda row: row.timestamp_us)


def seen_by_a_reader(disk: MemoryFileSystem) -> dict[int, Row]:
    """Return the rows that another process could read when the power went, by serial."""
    with World(fs=disk.kill_clone()).reader() as database:
        return {row.serial: as_given([row])[0] for row in all_rows(database)}


def check_left(
    disk: MemoryFileSystem, attempt: Attempt, seen: dict[int, Row], *, killed: bool
) -> None:
    """Check that a disk holds a sound store that goes on as if nothing had happened."""
    with World(fs=disk).reader() as database:
        # Before anybody has recovered a reader finds whole rows, in order, maybe not the last ones.
        early = all_rows(database)
    with World(fs=disk).database() as database:
        rows = all_rows(database)
        assert rows[: len(early)] == early
        attempt.check(as_given(rows), killed=killed)
        assert left_over(disk) == [], "a file of a compaction stayed"
        assert misled(disk, database) == [], "an index belongs to the segment of before"
        (serial,) = database.append([NEXT]).wait().serials()
        assert serial not in seen
    for row, given in zip(rows, as_given(rows), strict=True):
        assert seen.get(row.serial, given) == given, "a serial was used again"
    # What was recovered and written on is found again, whatever becomes of the rest.
    with World(fs=disk.crash_clone()).database() as database:
        found = check_everything(database)
        assert [report.torn_bytes for report in database.reports] == [0]
        assert (found[:-1], as_given(found[-1:])) == (rows, [NEXT])


def left_over(disk: MemoryFileSystem) -> list[str]:
    """Return the names of files that a compaction left."""
    place = PLACE / "compacting"
    return [entry.name for entry in disk.list(place)] if disk.exists(place) else []


def misled(disk: MemoryFileSystem, database: Database) -> list[str]:
    """Return the segments beside the index of other frames: readers would do without it."""
    found = []
    for info in database.slabs():
        directory = slab_directory(PLACE, info.slab)
        for entry in filter(is_segment, disk.list(directory)):
            path = directory / entry.name
            summary = read_summary(disk, path)
            revision = open_segment(disk, path).header.revision
            if summary is not None and summary.revision != revision:
                found.append(f"{path}: {summary.revision} beside {revision}")
    return found


def nothing(attempt: Attempt) -> None:
    """Leave the database empty."""


def some_rows(attempt: Attempt) -> None:
    attempt.append(Row("a/1", b"1"), Row("a/2", b"2"), Row("$SYS/a", b"3"))


def fill(attempt: Attempt) -> None:
    """Leave too little room in the segment for another big row."""
    for number in range(3):
        attempt.append(Row(f"fill/{number}", b"%d" % len(attempt.sent) + BIG))


def append_several(attempt: Attempt) -> None:
    attempt.append(Row("a/1", b"4"))
    attempt.append(Row("b/1", b"5"), Row("b/2", b"6"), Row("a/1", b"7"))
    attempt.append(Row("c", b""), durability="written")
    attempt.append(Row("c", b"x" * 600), durability="none")
    attempt.append(Row("a/3", b"y" * 2000), durability="written")
    attempt.append(Row("a/4", b"8"))


def append_unsynced(attempt: Attempt) -> None:
    for number in range(3):
        attempt.append(Row(f"u/{number}", b"u" * 700), durability="written")


def unsynced_rows(attempt: Attempt) -> None:
    some_rows(attempt)
    append_unsynced(attempt)


def fill_unsynced(attempt: Attempt) -> None:
    fill(attempt)
    append_unsynced(attempt)


def roll(attempt: Attempt) -> None:
    attempt.append(Row("roll/1", BIG))
    attempt.append(Row("roll/2", b"small"), durability="written")


def roll_at_once(attempt: Attempt) -> None:
    attempt.append(Row("roll/1", BIG * 4))


def seal(attempt: Attempt) -> None:
    attempt.database.seal()
    attempt.written = attempt.synced = len(attempt.sent)
    attempt.append(Row("a/9", b"9"))


def three_slabs(attempt: Attempt) -> None:
    """Leave two sealed slabs, the first of which is to be dropped and a minute older."""
    fill(attempt)
    roll(attempt)
    attempt.database.seal()
    doomed = list(attempt.sent)
    attempt.world.clock.jump(60.0)
    fill(attempt)
    attempt.database.seal()
    append_unsynced(attempt)
    attempt.doomed = doomed


def drop(attempt: Attempt) -> None:
    attempt.database.drop_slab(SlabId(0, 1))


def retain(attempt: Attempt) -> None:
    attempt.database.enforce_retention()


def reclaim(attempt: Attempt) -> None:
    attempt.database.reclaim({0: attempt.database.reclaimable().sealed[0][0]})


def turn_over(attempt: Attempt) -> None:
    # The first flush fills the slab's allowance; the turn comes behind its acknowledgement.
    attempt.append(Row("a/1", b"1"))
    attempt.database.sync()
    attempt.append(Row("a/1", b"2"), durability="written")
    attempt.database.sync()


def close(attempt: Attempt) -> None:
    attempt.store.close()
    # A thread that meets the end of the world ends silently; its rows were never promised more.
    if disk_of(attempt).operations_left == 0:
        raise PowerCut


def configure(attempt: Attempt) -> None:
    attempt.database.configure(max_items=7)
    attempt.append(Row("a/1", b"1"))


def many_frames(attempt: Attempt) -> None:
    """Leave a sealed slab, and a full segment of small frames in the current one."""
    for number in range(3):
        attempt.append(Row(f"a/{number % 2}", b"%d" % number), Row("b", b"x"), Row("$SYS/a", b""))
    attempt.database.seal()
    attempt.written = attempt.synced = len(attempt.sent)
    append_several(attempt)
    fill(attempt)
    roll(attempt)


def compact(attempt: Attempt) -> None:
    compaction = attempt.database.compaction
    jobs = compaction.jobs()
    assert [job.slab.generation for job in jobs] == [2, 1]
    for job in jobs[:1]:
        compaction.run(job)


SCENARIOS: dict[str, tuple[Act, Act, dict[str, Any]]] = {
    "append": (some_rows, append_several, {}),
    "append to an empty slab": (nothing, append_unsynced, {}),
    "append compressed": (some_rows, append_several, {"compression": "zstd"}),
    "append into new space": (fill, roll, {"segment_bytes": 4 * SEGMENT_BYTES}),
    "roll": (fill, roll, {}),
    "roll behind rows that are not synced": (fill_unsynced, roll, {}),
    "roll out of an empty segment": (nothing, roll_at_once, {}),
    "seal": (some_rows, seal, {}),
    "seal an empty slab": (nothing, seal, {}),
    "seal what is not synced": (unsynced_rows, seal, {}),
    "turn over": (nothing, turn_over, {"rotate_bytes": SEGMENT_BYTES}),
    "drop a slab": (three_slabs, drop, {}),
    "retention": (three_slabs, retain, {"retain_seconds": 50.0, "rotate_seconds": 1e6}),
    "reclaim": (three_slabs, reclaim, {"reclaim": "delivered", "rotate_seconds": 1e6}),
    "close": (unsynced_rows, close, {}),
    "configure": (some_rows, configure, {}),
    "compact": (many_frames, compact, {}),
}


@pytest.mark.parametrize("scenario", list(SCENARIOS))
def test_the_store_is_sound_after_a_crash_at_any_operation(scenario: str) -> None:
    prepare, act, changes = SCENARIOS[scenario]
    for attempt in crashes(prepare, act, **changes):
        seen = seen_by_a_reader(disk_of(attempt))
        for disk, killed in remains(disk_of(attempt)):
            check_left(disk, attempt, seen, killed=killed)


@pytest.mark.parametrize(
    "scenario",
    [
        "append into new space",
        "roll behind rows that are not synced",
        "seal what is not synced",
        "turn over",
        "drop a slab",
        "compact",
    ],
)
def test_the_store_is_sound_after_a_crash_at_any_operation_of_recovery(scenario: str) -> None:
    prepare, act, changes = SCENARIOS[scenario]
    for number, attempt in enumerate(crashes(prepare, act, **changes)):
        disk = disk_of(attempt)
        seen = seen_by_a_reader(disk)
        # Any two crashes may follow each other; all four pairs come about many times.
        killed = number % 2 == 0
        left = disk.kill_clone() if killed else disk.crash_clone(Random(number))
        for operation, again in enumerate(crashes_of_opening(left)):
            if operation % 2 == 0:
                check_left(again.kill_clone(), attempt, seen, killed=killed)
            else:
                check_left(again.crash_clone(Random(operation)), attempt, seen, killed=False)


def test_no_segment_is_left_beside_an_index_that_reached_the_disk_before_it() -> None:
    renames = 0
    for attempt in crashes(many_frames, compact):
        disk = disk_of(attempt)
        # Operations that were not synced reach the disk in any order.
        if disk.operations[-1].startswith("rename"):
            renames += 1
            for seed in range(12):
                left = disk.crash_clone(Random(seed), in_order=False)
                with World(fs=left).database() as database:
                    assert misled(left, database) == []
    assert renames >= 2


def test_a_replacement_that_a_start_finishes_survives_the_next_power_cut() -> None:
    finished = 0
    for attempt in crashes(many_frames, compact):
        disk = disk_of(attempt)
        if not disk.operations[-1].startswith("rename"):
            continue
        # The process was killed: nothing of what it did needs to be on the disk.
        left = disk.kill_clone()
        with World(fs=left.kill_clone()).database() as database:
            compacted = [info.compacted for info in database.slabs()]
            finished += sum(compacted)
        for again in crashes_of_opening(left):
            if not any(operation.startswith("rename") for operation in again.operations):
                # The manifest is that of before.
                continue
            for seed in range(4):
                cut = again.crash_clone(Random(seed), in_order=False)
                with World(fs=cut).database() as database:
                    assert misled(cut, database) == []
                    assert [info.compacted for info in database.slabs()] == compacted
    assert finished >= 2


def crashes_of_opening(left: MemoryFileSystem) -> Iterator[MemoryFileSystem]:
    """Yield the disk after the power went at each operation of opening what is on it."""
    for operations in count():
        disk = left.kill_clone()
        disk.operations_left = operations
        try:
            store = World(fs=disk).store()
            database = store.database(NAME)
        except PowerCut:
            yield disk
        else:
            disk.operations_left = None
            assert database.name == NAME
            store.close()
            return


def test_a_database_is_created_whole_or_not_at_all() -> None:
    for operations in count():
        disk = MemoryFileSystem()
        disk.operations_left = operations
        try:
            with World(fs=disk).store() as store:
                store.create(NAME, settings_of(shards=2))
                disk.operations_left = None
        except PowerCut:
            for left, _ in remains(disk):
                with World(fs=left).store() as store:
                    assert store.names() in ([], [NAME])
                    database = store.ensure(NAME, settings_of(shards=2))
                    assert check_everything(database) == []
                    rows = [Row("a", b"1", "p"), Row("a", b"2", "")]
                    database.append(rows).wait()
                    assert len(check_everything(database)) == 2
        else:
            assert operations > 40
            return


def test_a_database_is_dropped_whole_or_not_at_all() -> None:
    for operations in count():
        attempt = begin(three_slabs)
        attempt.database.sync()
        disk = disk_of(attempt)
        disk.operations_left = operations
        try:
            attempt.store.drop(NAME)
        except PowerCut:
            for left, _ in remains(disk):
                with World(fs=left).store() as store:
                    if store.names():
                        rows = check_everything(store.database(NAME))
                        assert as_given(rows) == attempt.sent
                        store.drop(NAME)
                    assert check_everything(store.create(NAME, settings_of())) == []
        else:
            assert operations > 10
            return


def test_no_time_is_given_twice_though_the_clock_went_back() -> None:
    for attempt in crashes(some_rows, append_several):
        for disk, _ in remains(disk_of(attempt)):
            world = World(fs=disk)
            with world.database() as database:
                last_us = max(row.timestamp_us for row in check_everything(database))
            world.clock.jump(-3600.0)
            with world.database() as database:
                ticket = database.append([Row("a", b"1")]).wait()
                assert ticket.timestamps() == [last_us + 1]
        assert attempt.world.clock.now_us() == NOW_US
