from __future__ import annotations

import errno
from pathlib import PurePath

import pytest

from siltstone.errors import SiltstoneError
from siltstone.fs.faulty import Change, Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.kv.room import RESERVE, DiskRoom

MIB = 1024 * 1024
DIRECTORY = PurePath("/kv")


class Disk:
    """A disk of 100 MiB with a database that leaves 4 MiB free and has a reserve of 16."""

    def __init__(
        self,
        *,
        reserve_bytes: int = 16 * MIB,
        page_bytes: int = MIB,
        capacity_bytes: int = 100 * MIB,
    ) -> None:
        self.fs = MemoryFileSystem(page_bytes=page_bytes, capacity_bytes=capacity_bytes)
        self.fs.make_directory(DIRECTORY)
        self.written_back = 0
        self.reserve_bytes = reserve_bytes
        self.room = self.open()

    def open(self) -> DiskRoom:
        room = DiskRoom(self.fs, DIRECTORY, floor_bytes=4 * MIB, reserve_bytes=self.reserve_bytes)
        room.write_back = self.write_back
        return room

    def write_back(self) -> None:
        self.written_back += 1

    def leave(self, free_bytes: int) -> None:
        """Let a file of others take all but so much."""
        path = PurePath("/hog")
        if self.fs.exists(path):
            self.fs.remove(path)
        taken = self.fs.free_bytes(DIRECTORY) - free_bytes
        with self.fs.create(path) as file:
            file.truncate(taken)
            file.allocate(0, taken)

    @property
    def has_reserve(self) -> bool:
        return self.fs.exists(DIRECTORY / RESERVE)

    @property
    def kept_bytes(self) -> int:
        return sum(each.allocated_bytes for each in self.fs.list(DIRECTORY))


def text_of(error: SiltstoneError | None) -> str:
    return "" if error is None else str(error)


def test_a_disk_with_space_has_room_and_the_reserve_is_taken() -> None:
    disk = Disk()
    assert disk.room.lacks(100) is None
    assert disk.has_reserve
    assert disk.fs.free_bytes(DIRECTORY) == 84 * MIB


def test_the_reserve_is_given_up_when_the_rest_is_used_up_and_taken_again_later() -> None:
    disk = Disk()
    disk.room.keep_reserve()
    disk.leave(4 * MIB)
    assert disk.room.lacks(100) is None
    assert disk.kept_bytes == 1 * MIB
    disk.leave(19 * MIB)
    assert disk.room.lacks(100) is None
    assert disk.kept_bytes == 1 * MIB
    disk.leave(80 * MIB)
    assert disk.room.lacks(100) is None
    assert disk.kept_bytes == 16 * MIB


def test_the_part_for_opening_is_given_up_by_nothing_else_and_created_again() -> None:
    disk = Disk()
    disk.room.keep_reserve()
    disk.leave(4 * MIB)
    assert disk.room.lacks(100) is None
    disk.leave(0)
    assert disk.room.lacks(100) is not None
    disk.room = disk.open()
    assert disk.kept_bytes == 1 * MIB
    assert disk.room.give_up_reserve()
    assert disk.fs.free_bytes(DIRECTORY) == 1 * MIB
    disk.leave(3 * MIB)
    disk.room.keep_opening()
    assert disk.kept_bytes == 1 * MIB
    assert disk.fs.free_bytes(DIRECTORY) == 2 * MIB


def test_the_part_for_opening_leaves_the_space_that_the_start_needs() -> None:
    disk = Disk(page_bytes=64 * 1024, capacity_bytes=10 * MIB)
    for free, kept in ((0, 0), (128, 0), (192, 64), (1024, 896), (1152, 1024), (8192, 1024)):
        disk.leave(free * 1024)
        disk.room.keep_opening()
        assert disk.kept_bytes == kept * 1024
        disk.room.give_up_reserve()


def test_the_start_may_write_a_little_below_the_limit() -> None:
    disk = Disk(page_bytes=64 * 1024, capacity_bytes=10 * MIB)
    disk.leave(3 * MIB)
    assert disk.room.lacks(MIB // 8) is None
    assert disk.room.lacks(MIB // 8 + 1) is not None
    assert disk.room.lacks(MIB // 8) is None
    assert disk.room.lacks(1) is not None
    disk.room = disk.open()
    disk.leave(2 * 64 * 1024)
    assert disk.room.lacks(64 * 1024 + 1) is not None
    assert disk.room.lacks(64 * 1024) is None


def test_without_room_a_write_is_refused() -> None:
    disk = Disk(reserve_bytes=0)
    assert disk.room.lacks(100) is None
    assert not disk.has_reserve
    disk.leave(4 * MIB)
    assert text_of(disk.room.lacks(100)) == (
        "no space left on the disk: path=/kv needed_bytes=4194404"
    )
    assert disk.written_back == 0


def test_tables_are_written_early_when_there_is_hardly_room_for_them() -> None:
    disk = Disk(reserve_bytes=0)
    assert disk.room.lacks(3 * MIB) is None
    disk.leave(7 * MIB)
    assert disk.room.lacks(1 * MIB) is None
    assert disk.written_back == 1
    assert disk.room.lacks(1 * MIB) is None
    assert disk.written_back == 1


def test_a_reserve_of_an_earlier_run_is_known() -> None:
    disk = Disk()
    disk.room.keep_reserve()
    room = disk.open()
    assert room.give_up_reserve()
    assert not disk.has_reserve
    assert not room.give_up_reserve()


def test_what_cannot_be_asked_is_why() -> None:
    disk = Disk()
    disk.fs.remove_directory(DIRECTORY)
    assert text_of(disk.room.lacks(1)) == "no such file or directory: path=/kv"


class FaultyDisk(Disk):
    """A disk with a fault that another process causes: it takes space, or the disk has errors."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.faulty = FaultyFileSystem(self.fs, fault)
        self.room = DiskRoom(
            self.faulty, DIRECTORY, floor_bytes=4 * MIB, reserve_bytes=self.reserve_bytes
        )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
@pytest.mark.parametrize("operation", ["create", "truncate", "allocate"])
def test_a_reserve_that_cannot_be_allocated_is_removed_and_the_write_is_allowed(
    operation: Change, number: int
) -> None:
    disk = FaultyDisk(Fault(operation=operation, errno=number, path_suffix=RESERVE))
    assert disk.room.lacks(100) is None
    assert not disk.has_reserve
    assert not disk.room.give_up_reserve()


def test_a_reserve_that_could_not_be_allocated_is_created_when_more_space_is_free() -> None:
    disk = FaultyDisk(Fault(operation="allocate", errno=errno.EDQUOT, path_suffix=RESERVE))
    disk.leave(70 * MIB)
    assert disk.room.lacks(100) is None
    disk.leave(85 * MIB)
    # A quota may be the reason. Each write would repeat an attempt that cannot succeed.
    assert disk.room.lacks(100) is None
    assert not disk.has_reserve
    disk.leave(86 * MIB)
    assert disk.room.lacks(100) is None
    # The reserve has its space now.
    assert disk.fs.free_bytes(DIRECTORY) == 70 * MIB


def test_a_file_without_its_space_is_not_taken_for_a_reserve() -> None:
    disk = Disk()
    with disk.fs.create(DIRECTORY / RESERVE) as file:
        file.truncate(16 * MIB)
    disk.room = disk.open()
    assert disk.room.lacks(100) is None
    assert disk.fs.free_bytes(DIRECTORY) == 84 * MIB


def test_a_file_without_its_space_becomes_smaller_when_space_is_needed() -> None:
    disk = Disk()
    with disk.fs.create(DIRECTORY / RESERVE) as file:
        file.truncate(16 * MIB)
        file.allocate(0, 8 * MIB)
    disk.leave(4 * MIB)
    disk.room = disk.open()
    assert disk.room.lacks(100) is None
    assert disk.kept_bytes == 1 * MIB


def test_a_reserve_that_someone_removed_is_created_again() -> None:
    disk = Disk()
    disk.room.keep_reserve()
    disk.fs.remove(DIRECTORY / RESERVE)
    disk.leave(4 * MIB)
    # More than the start may write.
    assert text_of(disk.room.lacks(2 * MIB)) == (
        "no space left on the disk: path=/kv needed_bytes=6291456"
    )
    disk.leave(100 * MIB)
    assert disk.room.lacks(100) is None
    assert disk.has_reserve
