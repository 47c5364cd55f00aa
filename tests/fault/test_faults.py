"""The disk refuses: each kind of error, at each place where it hurts.

What is refused leaves nothing behind; what was acknowledged stays; a failed sync is the end of the
shard until it is opened again.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args

import pytest

from siltstone.errors import (
    DiskError,
    InvalidTopicError,
    OverloadedError,
    PoisonedError,
    RetryError,
    SiltstoneError,
    StorageFullError,
)
from siltstone.fs.faulty import Change, Fault, FaultyFileSystem, NameChange, Operation
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.log.read.pieces import Row
from siltstone.store.slab.manifest import SlabId
from tests.support.builders import HELD, NAME, PATH, SEGMENT_BYTES, World, as_given
from tests.support.reading import check_everything

CHANGES: tuple[Operation, ...] = (*get_args(Change), *get_args(NameChange))
BIG = b"b" * 20_000


# The size of a value whose frame is large.
LARGE = 70_000


@dataclass
class Faulty:
    """A store on a disk that can be told to fail, and the rows that it has acknowledged."""

    disk: MemoryFileSystem
    faults: FaultyFileSystem
    world: World
    database: Database
    stored: list[Row]

    def append(self, *rows: Row) -> None:
        self.database.append(rows).wait()
        self.stored += rows

    def refuse(self, error: type[SiltstoneError], *rows: Row, match: str | None = None) -> None:
        with pytest.raises(error, match=match):
            self.database.append(rows).wait()

    def check(self) -> None:
        """Check that exactly the acknowledged rows are there, in order."""
        assert as_given(check_everything(self.database)) == self.stored


@contextmanager
def faulty(**changes: Any) -> Iterator[Faulty]:
    disk = MemoryFileSystem()
    faults = FaultyFileSystem(disk)
    world = World(fs=faults)
    with world.database(**changes) as database:
        yield Faulty(disk, faults, world, database, [])


def survivors(fault: Faulty) -> Iterator[list[Row]]:
    """Yield what is found by who opens the store after a kill, and after a power cut."""
    fault.faults.clear()
    for disk in (fault.disk.kill_clone(), fault.disk.crash_clone()):
        with World(fs=disk).database() as database:
            rows = as_given(check_everything(database))
            database.append([Row("z/after", b"after")])
            database.sync()
            assert as_given(check_everything(database)) == [*rows, Row("z/after", b"after")]
            yield rows


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_a_failed_sync_poisons_the_shard_and_says_so(number: int) -> None:
    with faulty() as here:
        here.append(Row("a/1", b"1"), Row("a/2", b"2"))
        here.faults.add(Fault(operation="sync", errno=number, path_suffix=".seg"))
        here.refuse(PoisonedError, Row("a/3", b"3"), match="slab=0/1")
        # The disk is well again, but nothing that was written is known to be there.
        here.faults.clear()
        here.refuse(PoisonedError, Row("a/4", b"4"), match="slab=0/1")
        with pytest.raises(PoisonedError, match="slab=0/1"):
            here.database.sync()
        with pytest.raises(PoisonedError, match="slab=0/1"):
            here.database.seal()
        here.check()
        killed, crashed = survivors(here)
        assert killed[:2] == here.stored
        assert crashed == here.stored
        assert set(killed[2:]) <= {Row("a/3", b"3")}


def test_what_is_queued_behind_a_failed_sync_is_refused_too() -> None:
    with faulty(**HELD, max_items=3) as here:
        here.faults.add(Fault(operation="sync", errno=errno.EIO, path_suffix=".seg", repeat=True))
        tickets = [here.database.append([Row("a", b"%d" % i)]) for i in range(3)]
        for ticket in tickets:
            with pytest.raises(PoisonedError, match="slab=0/1"):
                ticket.wait()
        here.check()


def test_another_shard_goes_on_when_one_is_poisoned() -> None:
    with faulty(shards=2) as here:
        here.faults.add(Fault(operation="sync", errno=errno.EIO, path_suffix=".seg"))
        here.refuse(PoisonedError, Row("a", b"1", "p"), match="slab=1/1")
        here.append(Row("a", b"2", ""))
        here.check()


def test_no_shard_takes_a_later_call_of_a_producer_than_one_that_a_poisoned_shard_refused() -> None:
    both = [Row("a", b"1", ""), Row("a", b"1", "p")]
    with faulty(shards=2) as here:
        here.faults.add(Fault(operation="sync", errno=errno.EIO, path_suffix=".seg"))
        here.refuse(PoisonedError, Row("a", b"0", ""), match="slab=0/1")
        with pytest.raises(PoisonedError, match="slab=0/1"):
            here.database.append(both, producer=("q", 1))
        with pytest.raises(RetryError, match="sequence=2 refused=1"):
            here.database.append([Row("a", b"2", "p")], producer=("q", 2)).wait()
        here.faults.clear()
        with World(fs=here.disk.kill_clone()).database() as database:
            assert not database.append(both, producer=("q", 1)).wait().duplicate
            database.append([Row("a", b"2", "p")], producer=("q", 2)).wait()
            stored = [row for row in as_given(check_everything(database)) if row.value != b"0"]
    assert sorted(stored) == sorted([*both, Row("a", b"2", "p")])


def test_a_failed_sync_of_written_rows_poisons_too() -> None:
    with faulty(sync_interval=3600.0) as here:
        here.append(Row("a", b"1"))
        here.database.append([Row("a", b"2")], durability="written").wait()
        here.stored.append(Row("a", b"2"))
        here.faults.add(Fault(operation="sync", errno=errno.EIO, path_suffix=".seg"))
        with pytest.raises(PoisonedError, match="slab=0/1"):
            here.database.sync()
        here.refuse(PoisonedError, Row("a", b"3"))
        here.check()
        assert list(survivors(here)) == [here.stored, here.stored[:1]]


# A small frame is one write. A large one is two: the body, and then the header.
@pytest.mark.parametrize(("nth", "size"), [(1, 1), (1, LARGE), (2, LARGE)])
@pytest.mark.parametrize("keep_bytes", [0, 1, 20, 63])
def test_a_failed_write_poisons_the_shard_and_leaves_nothing(
    nth: int, size: int, keep_bytes: int
) -> None:
    with faulty() as here:
        here.append(Row("a", b"1"))
        here.faults.add(
            Fault(operation="write_at", errno=errno.EIO, nth=nth, keep_bytes=keep_bytes)
        )
        here.refuse(PoisonedError, Row("a", b"2" * size), match="slab=0/1")
        here.refuse(PoisonedError, Row("a", b"3"))
        here.check()
        assert list(survivors(here)) == [here.stored] * 2


@pytest.mark.parametrize(("nth", "size"), [(1, 500), (1, LARGE), (2, LARGE)])
@pytest.mark.parametrize("keep_bytes", [0, 1, 20, 63])
@pytest.mark.parametrize("and_then", ["the zeros are written", "nothing can be written"])
def test_a_short_write_on_a_full_disk_is_refused_and_the_next_append_works(
    nth: int, size: int, keep_bytes: int, and_then: str
) -> None:
    with faulty(thresholds=(1,)) as here:
        here.append(Row("a", b"1"))
        here.faults.add(
            Fault(
                operation="write_at",
                errno=errno.ENOSPC,
                nth=nth,
                keep_bytes=keep_bytes,
                repeat=and_then == "nothing can be written",
            )
        )
        here.refuse(StorageFullError, Row("lost", b"2" * size), Row("lost/too", b"3"))
        here.check()
        here.faults.clear()
        here.append(Row("b", b"2"))
        here.append(Row("a", b"3"))
        here.check()
        patterns = [info.pattern for info in here.database.structure()]
        assert list(survivors(here)) == [here.stored] * 2
        assert sorted(patterns) == ["+", "a"]


def fill_segment(here: Faulty) -> None:
    """Append until the next big row needs a new segment."""
    for number in range(3):
        here.append(Row(f"fill/{number}", BIG))


def roll(here: Faulty) -> None:
    fill_segment(here)
    here.append(Row("roll/1", BIG))


@pytest.mark.parametrize(
    ("operation", "suffix"),
    [
        ("create", ".seg.tmp"),
        ("truncate", ".seg.tmp"),
        ("allocate", ".seg.tmp"),
        ("write_at", ".seg.tmp"),
        ("sync", ".seg.tmp"),
        ("rename", ".seg"),
        ("create", ".idx.tmp"),
        ("write", ".idx.tmp"),
        ("sync", ".idx.tmp"),
        ("rename", ".idx"),
    ],
)
def test_a_roll_on_a_full_disk_is_refused_and_goes_on_when_there_is_space(
    operation: Operation, suffix: str
) -> None:
    with faulty() as here:
        fill_segment(here)
        here.faults.add(Fault(operation=operation, errno=errno.ENOSPC, path_suffix=suffix))
        here.refuse(StorageFullError, Row("roll/1", BIG))
        here.check()
        here.append(Row("roll/2", BIG))
        here.append(Row("fill/1", b"small"))
        here.check()
        assert list(survivors(here)) == [here.stored] * 2


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
@pytest.mark.parametrize("suffix", [".seg.tmp", ".idx.tmp"])
def test_a_roll_without_a_descriptor_left_is_refused_and_goes_on_when_there_is_one(
    number: int, suffix: str
) -> None:
    with faulty(thresholds=(1, 1)) as here:
        fill_segment(here)
        here.faults.add(Fault(operation="create", errno=number, path_suffix=suffix))
        here.refuse(OverloadedError, Row("roll/1/x", BIG), match="ulimit -n, LimitNOFILE")
        here.check()
        # What was learned for the refused row is forgotten with it.
        here.append(Row("roll/2/x", BIG))
        here.append(Row("fill/1", b"small"))
        here.check()
        assert list(survivors(here)) == [here.stored] * 2


def test_a_generation_is_not_turned_over_without_a_descriptor_and_goes_on() -> None:
    with faulty() as here:
        here.append(Row("a", b"1"))
        here.faults.add(Fault(operation="create", errno=errno.EMFILE, path_suffix="manifest.tmp"))
        with pytest.raises(OverloadedError):
            here.database.seal()
        here.append(Row("a", b"2"))
        here.database.seal()
        here.append(Row("a", b"3"))
        here.check()
        assert list(survivors(here)) == [here.stored] * 2


def test_small_rows_still_fit_when_there_is_no_space_for_another_segment() -> None:
    with faulty() as here:
        fill_segment(here)
        here.faults.add(Fault(operation="create", errno=errno.ENOSPC, repeat=True))
        here.refuse(StorageFullError, Row("roll/1", BIG))
        here.append(Row("fill/1", b"small"))
        here.check()
        assert list(survivors(here)) == [here.stored] * 2


def test_no_space_ahead_in_the_segment_refuses_the_append_and_teaches_nothing() -> None:
    with faulty(segment_bytes=4 * SEGMENT_BYTES, thresholds=(1, 1)) as here:
        # Maintenance allocates space ahead as well, so every attempt must fail.
        full = Fault(operation="allocate", errno=errno.ENOSPC, path_suffix=".seg", repeat=True)
        here.faults.add(full)
        fill_segment(here)
        patterns = [info.pattern for info in here.database.structure()]
        here.refuse(StorageFullError, Row("other/1", BIG), Row("other/2", BIG))
        here.faults.clear()
        here.check()
        assert [info.pattern for info in here.database.structure()] == patterns
        here.append(Row("fill/9", BIG))
        assert [info.pattern for info in here.database.structure()] == patterns
        here.append(Row("other/1", BIG))
        here.check()
        assert list(survivors(here)) == [here.stored] * 2


@pytest.mark.parametrize("then", ["append", "roll", "seal", "close"])
@pytest.mark.parametrize("size", range(60_900, 61_260, 40))
def test_a_store_that_lost_its_power_opens_on_a_full_disk_and_uses_no_serial_twice(
    size: int, then: str
) -> None:
    """For some of these sizes the segment has no room left for what recovery would write."""
    with faulty(segment_bytes=4 * SEGMENT_BYTES, sync_interval=3600.0) as here:
        here.append(Row("a", b"x" * size))
        ticket = here.database.append([Row("a", b"seen")], durability="written").wait()
        seen = ticket.serials()
        disk = here.disk.crash_clone()
    full = [
        Fault(operation=operation, errno=errno.ENOSPC, repeat=True)
        for operation in ("allocate", "create")
    ]
    faults = FaultyFileSystem(disk, *full)
    with World(fs=faults).database() as database:
        rows = check_everything(database)
        assert as_given(rows) == here.stored
        with pytest.raises(StorageFullError):
            database.append([Row("b", BIG * 5)]).wait()
        if then != "close":
            faults.clear()
        if then == "append":
            seen += database.append([Row("b", b"1")]).wait().serials()
        elif then == "roll":
            seen += database.append([Row("b", BIG * 20)]).wait().serials()
        elif then == "seal":
            database.seal()
        rows = check_everything(database)
    for left in (disk.kill_clone(), disk.crash_clone()):
        with World(fs=left).database() as database:
            assert check_everything(database) == rows
            (serial,) = database.append([Row("b", b"2")]).wait().serials()
            assert serial > max(seen)


def test_a_drop_works_on_a_full_disk_thanks_to_the_reserve() -> None:
    with faulty() as here:
        here.append(Row("a", b"1"))
        here.database.seal()
        here.stored = []
        here.append(Row("a", b"2"))
        here.disk.capacity_bytes -= here.disk.free_bytes(PATH)
        here.database.drop_slab(SlabId(0, 1))
        here.check()
        here.disk.capacity_bytes = 1 << 60
        assert list(survivors(here)) == [here.stored] * 2


@pytest.mark.parametrize("suffix", ["manifest", "messages"])
def test_a_drop_that_fails_leaves_the_slab_readable_and_can_be_done_again(suffix: str) -> None:
    with faulty() as here:
        here.append(Row("a", b"1"))
        here.database.seal()
        here.append(Row("a", b"2"))
        operation: Operation = "rename" if suffix == "manifest" else "sync_directory"
        here.faults.add(Fault(operation=operation, errno=errno.EIO, path_suffix=suffix))
        with pytest.raises(DiskError):
            here.database.drop_slab(SlabId(0, 1))
        here.check()
        here.database.drop_slab(SlabId(0, 1))
        here.stored = here.stored[1:]
        here.check()
        assert list(survivors(here)) == [here.stored] * 2


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("suffix", [".idx.tmp", ".seg.tmp", "manifest.tmp"])
def test_a_seal_on_a_full_disk_is_refused_and_goes_on_when_there_is_space(
    suffix: str, rows: int
) -> None:
    with faulty() as here:
        for number in range(rows):
            here.append(Row("a", b"%d" % number))
        here.faults.add(
            Fault(operation="create", errno=errno.ENOSPC, path_suffix=suffix, repeat=True)
        )
        with pytest.raises(StorageFullError):
            here.database.seal()
        here.check()
        here.faults.clear()
        here.append(Row("a/b", b"x"))
        assert list(survivors(here)) == [here.stored] * 2
        here.database.seal()
        here.append(Row("a/c", b"y"))
        here.check()
        assert list(survivors(here)) == [here.stored] * 2


def test_a_full_disk_at_the_time_to_turn_over_does_not_stop_the_shard() -> None:
    with faulty(rotate_bytes=SEGMENT_BYTES) as here:
        here.faults.add(
            Fault(operation="create", errno=errno.ENOSPC, path_suffix=".seg.tmp", repeat=True)
        )
        here.append(Row("a", b"1"))
        here.refuse(StorageFullError, Row("a", b"2"))
        here.faults.clear()
        here.append(Row("a", b"3"))
        here.database.sync()
        here.check()
        assert [info.state for info in here.database.slabs()] == ["sealed", "current"]
        assert list(survivors(here)) == [here.stored] * 2


def test_a_turn_over_of_unknown_outcome_poisons_the_shard() -> None:
    with faulty() as here:
        here.append(Row("a", b"1"))
        here.faults.add(
            Fault(operation="sync_directory", errno=errno.EIO, path_suffix=f"data/{NAME}")
        )
        # The manifest has its new name, and nobody knows whether a power cut would take it back.
        with pytest.raises(PoisonedError, match="slab=0/1"):
            here.database.seal()
        here.refuse(PoisonedError, Row("a", b"2"))
        here.check()
        assert list(survivors(here)) == [here.stored] * 2


def test_a_repeated_call_is_acknowledged_as_synced_only_when_it_is() -> None:
    with faulty(sync_interval=3600.0) as here:
        row = Row("a", b"1")
        here.database.append([row], durability="written", producer=("p", 1)).wait()
        assert here.database.append([row], producer=("p", 1)).wait().duplicate
        here.stored = [row]
        assert list(survivors(here)) == [here.stored] * 2


def test_a_repeated_call_in_one_flush_is_acknowledged_as_synced_only_when_it_is() -> None:
    with faulty(**HELD, max_items=2, sync_interval=3600.0) as here:
        row = Row("a", b"1")
        first = here.database.append([row], durability="written", producer=("p", 1))
        second = here.database.append([row], producer=("p", 1))
        assert [first.wait().duplicate, second.wait().duplicate] == [False, True]
        here.stored = [row]
        assert list(survivors(here)) == [here.stored] * 2


def test_a_sequence_is_not_used_up_by_a_refused_call_of_the_same_flush() -> None:
    with faulty(**HELD, max_items=2) as here:
        refused = here.database.append([Row("a/#", b"1")], producer=("p", 5))
        mended = here.database.append([Row("a/b", b"1")], producer=("p", 5))
        with pytest.raises(InvalidTopicError):
            refused.wait()
        assert not mended.wait().duplicate
        here.stored = [Row("a/b", b"1")]
        here.check()
        assert list(survivors(here)) == [here.stored] * 2


def configure(here: Faulty) -> None:
    here.database.configure(max_items=7)


ACTIONS: dict[str, Callable[[Faulty], None]] = {
    "append": lambda here: here.append(Row("a/b", b"1")),
    "grow": lambda here: here.append(Row("a/b", BIG), Row("a/b", BIG), Row("a/c", BIG)),
    "roll": roll,
    "seal": lambda here: here.database.seal(),
    "configure": configure,
}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("action", list(ACTIONS))
@pytest.mark.parametrize("operation", CHANGES)
def test_an_error_at_any_operation_loses_nothing(
    action: str, operation: Operation, number: int
) -> None:
    """Whatever fails, what was acknowledged is there and what was refused is whole or gone."""
    with faulty(segment_bytes=2 * SEGMENT_BYTES) as here:
        before = len(here.disk.operations)
        ACTIONS[action](here)
        done = Counter(line.split()[0] for line in here.disk.operations[before:])
    for nth in range(1, done[operation] + 1):
        with faulty(segment_bytes=2 * SEGMENT_BYTES) as here:
            here.append(Row("first", b"0"))
            here.faults.add(Fault(operation=operation, errno=number, nth=nth))
            try:
                ACTIONS[action](here)
            except (StorageFullError, DiskError):
                here.check()
                here.faults.clear()
                here.append(Row("next", b"2"))
                here.check()
            except PoisonedError:
                here.check()
                here.refuse(PoisonedError, Row("next", b"2"))
            for rows in survivors(here):
                assert rows[: len(here.stored)] == here.stored


def test_no_operation_of_opening_that_fails_takes_anything_with_it() -> None:
    with faulty(sync_interval=3600.0) as here:
        roll(here)
        here.database.seal()
        roll(here)
        here.database.append([Row("w", b"w")], durability="written").wait()
        here.stored.append(Row("w", b"w"))
        left = here.disk.kill_clone()
    for operation in (*CHANGES, "open", "read_at", "map", "list", "exists", "size"):
        for nth in range(1, 40):
            disk = left.kill_clone()
            faults = FaultyFileSystem(disk, Fault(operation=operation, errno=errno.EIO, nth=nth))
            try:
                with Store(PATH, fs=faults) as store:
                    store.database(NAME)
            except SiltstoneError:
                pass
            else:
                break
            for clone in (disk.kill_clone(), disk.crash_clone()):
                with World(fs=clone).database() as database:
                    found = as_given(check_everything(database))
                    assert found[: len(here.stored) - 1] == here.stored[:-1]
                    assert found[len(here.stored) - 1 :] in ([], here.stored[-1:])
