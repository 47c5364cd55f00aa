"""Snapshots and crashes, at every operation of a save, a load and a restore; and damage."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import PurePath
from random import Random

import pytest

from siltstone.clock import ManualClock
from siltstone.errors import NotFoundError, SiltstoneError, StorageFullError
from siltstone.fs.faulty import Fault, FaultyFileSystem, Operation
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.snapshot.directory import link_target, name_of
from siltstone.snapshot.format.records import Record
from siltstone.snapshot.restore import restore_directory
from siltstone.store.directory import Store
from siltstone.store.kv.memory import MemoryEngine
from tests.support.snapshots import (
    DIRECTORY,
    QUARANTINE,
    keeper_on,
    loaded,
    names_in,
    queued,
    retained,
    session,
)

OLD: list[Record] = [retained("a", b"old"), session("c1"), queued("a", b"old" * 30_000)]
NEW: list[Record] = [retained("a", b"new"), session("c2"), queued("a", b"new" * 30_000)]
SEEDS = range(6)


def disk_with(*states: list[Record], keep: int = 1) -> MemoryFileSystem:
    fs = MemoryFileSystem()
    keeper = keeper_on(fs, keep=keep)
    for state in states:
        keeper.save(state, source="broker")
    keeper.close()
    return fs


def operations_of(act: Callable[[MemoryFileSystem], object], fs: MemoryFileSystem) -> int:
    before = len(fs.operations)
    act(fs)
    return len(fs.operations) - before


def save_new(fs: MemoryFileSystem) -> None:
    keeper = keeper_on(fs, keep=1)
    keeper.save(NEW, source="broker")
    keeper.close()


SAVE_OPERATIONS = operations_of(save_new, disk_with(OLD))


@pytest.mark.parametrize("operations", range(SAVE_OPERATIONS))
@pytest.mark.parametrize("kind", ["power cut", "kill"])
def test_a_crash_at_any_operation_of_a_save_leaves_the_old_state_or_the_new_whole(
    operations: int, kind: str
) -> None:
    fs = disk_with(OLD)
    fs.operations_left = operations
    with pytest.raises(PowerCut):
        save_new(fs)
    if kind == "kill":
        left = [fs.kill_clone()]
    else:
        left = [fs.crash_clone(), *(fs.crash_clone(Random(seed)) for seed in SEEDS)]
    for after in left:
        assert link_target(after, DIRECTORY) in names_in(after), "the link leads to a file"
        records, result = loaded(after)
        assert records in (OLD, NEW)
        assert result.bad == []
        save_new(after)
        assert loaded(after)[0] == NEW
        assert [name for name in names_in(after) if name.endswith(".tmp")] == []


@pytest.mark.parametrize("operations", range(SAVE_OPERATIONS + 6))
def test_a_crash_at_any_operation_of_the_first_save_leaves_nothing_or_all(operations: int) -> None:
    fs = MemoryFileSystem()
    fs.operations_left = operations
    try:
        save_new(fs)
    except PowerCut:
        for after in (fs.crash_clone(), fs.kill_clone(), fs.crash_clone(Random(operations))):
            assert loaded(after)[0] in ([], NEW)
    else:
        assert loaded(fs.crash_clone())[0] == NEW


def damaged_disk() -> MemoryFileSystem:
    fs = disk_with(OLD, NEW, keep=2)
    with fs.open(DIRECTORY / name_of(2), writable=True) as file:
        file.write_at(file.size() // 2, b"damage")
        file.sync()
    return fs


@pytest.mark.parametrize("operations", range(operations_of(loaded, damaged_disk())))
def test_a_crash_while_a_bad_snapshot_is_put_aside_loses_neither_it_nor_the_good_one(
    operations: int,
) -> None:
    fs = damaged_disk()
    bad = fs.read(DIRECTORY / name_of(2))
    fs.operations_left = operations
    with pytest.raises(PowerCut):
        loaded(fs)
    for after in (fs.crash_clone(), fs.kill_clone(), fs.crash_clone(Random(operations))):
        assert loaded(after)[0] == OLD
        kept = [
            after.read(directory / name)
            for directory in (DIRECTORY, QUARANTINE)
            if after.exists(directory)
            for name in names_in(after, directory)
            if name.startswith(name_of(2)) and not name.endswith(".txt")
        ]
        assert bad in kept


def truncate(data: bytes) -> bytes:
    return data[: len(data) * 2 // 3]


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 16]) + data[middle + 1 :]


def empty(data: bytes) -> bytes:
    return b""


def fill_with_zeros(data: bytes) -> bytes:
    return bytes(len(data))


def end_in_zeros(data: bytes) -> bytes:
    return data + bytes(4096)


@pytest.mark.parametrize("damage", [truncate, flip, empty, fill_with_zeros, end_in_zeros])
def test_a_damaged_snapshot_is_passed_over_and_kept(damage: Callable[[bytes], bytes]) -> None:
    fs = disk_with(OLD, NEW, keep=2)
    newest = DIRECTORY / name_of(2)
    data = damage(fs.read(newest))
    fs.remove(newest)
    with fs.create(newest) as file:
        file.write(data)
    records, result = loaded(fs)
    assert records == OLD
    assert [fs.read(bad.path) for bad in result.bad] == [data]


@pytest.mark.parametrize("pages", range(1, 9))
def test_a_disk_that_is_full_at_any_page_keeps_the_old_snapshot(pages: int) -> None:
    fs = disk_with([session("c1")])
    incompressible = retained("a", Random(1).randbytes(45_000))
    fs.capacity_bytes = 4096 * (pages + 1)
    keeper = keeper_on(fs, keep=1)
    with pytest.raises(StorageFullError):
        keeper.save([incompressible], source="broker")
    keeper.close()
    assert names_in(fs) == ["LOCK", "state", name_of(1)]
    assert loaded(fs)[0] == [session("c1")]
    fs.capacity_bytes = 1 << 20
    save_new(fs)
    assert loaded(fs)[0] == NEW


STEPS: list[Operation] = [
    "create",
    "write_at",
    "sync",
    "rename",
    "sync_directory",
    "symlink",
    "remove",
    "list",
]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("operation", STEPS)
def test_an_error_at_any_step_of_a_save_leaves_a_state_and_is_over_with_the_next(
    operation: Operation, nth: int, number: int
) -> None:
    memory = disk_with(OLD)
    fs = FaultyFileSystem(memory)
    keeper = keeper_on(fs, keep=1)
    fs.add(Fault(operation=operation, errno=number, nth=nth, keep_bytes=7))
    try:
        keeper.save(NEW, source="broker")
        expected = [NEW]
    except SiltstoneError:
        expected = [OLD, NEW]
    fs.clear()
    for after in (memory.kill_clone(), memory.crash_clone(Random(nth))):
        assert loaded(after)[0] in expected
    keeper.save(NEW, source="broker")
    keeper.close()
    assert loaded(memory)[0] == NEW
    assert names_in(memory)[:2] == ["LOCK", "state"]
    assert len(names_in(memory)) == 3


def backup_of_state() -> tuple[MemoryFileSystem, PurePath]:
    fs = disk_with(NEW)
    return fs, DIRECTORY / name_of(1)


def restore(fs: MemoryFileSystem) -> None:
    with fs.open(DIRECTORY / name_of(1), writable=False) as source:
        restore_directory(fs, ManualClock(), source, PurePath("/data"), lambda _: MemoryEngine())


@pytest.mark.parametrize("operations", range(operations_of(restore, backup_of_state()[0])))
def test_a_restore_that_is_cut_short_makes_no_data_directory(operations: int) -> None:
    fs, _ = backup_of_state()
    fs.operations_left = operations
    with pytest.raises(PowerCut):
        restore(fs)
    after = fs.crash_clone()
    try:
        Store(PurePath("/data"), read_only=True, fs=after).close()
    except NotFoundError:
        return
    raise AssertionError("VERSION is durable with the last operation alone")
