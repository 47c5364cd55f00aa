"""What every file system does alike."""

from __future__ import annotations

import array
import errno
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePath

import pytest

from siltstone.errors import (
    ClosedError,
    DiskError,
    ExistsError,
    LockedError,
    NotFoundError,
    UsageError,
)
from siltstone.fs.api import DirectoryEntry, EntryKind, File, FileSystem, Name
from siltstone.fs.faulty import FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.posix import PosixFileSystem


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system and an empty directory on it."""

    fs: FileSystem
    root: PurePath

    def write(self, name: str, contents: bytes) -> PurePath:
        path = self.root / name
        with self.fs.create(path) as file:
            file.write(contents)
        return path


@pytest.fixture(params=["posix", "memory", "faulty"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Disk:
    if request.param == "posix":
        return Disk(PosixFileSystem(), PurePath(tmp_path))
    memory = MemoryFileSystem()
    memory.make_directory(PurePath("/disk"))
    fs: FileSystem = FaultyFileSystem(memory) if request.param == "faulty" else memory
    return Disk(fs, PurePath("/disk"))


def test_a_created_file_is_empty_and_knows_its_path(disk: Disk) -> None:
    path = disk.root / "a"
    with disk.fs.create(path) as file:
        assert (file.path, file.size()) == (path, 0)
    assert disk.fs.read(path) == b""


def test_create_refuses_a_name_that_is_taken_and_leaves_it_alone(disk: Disk) -> None:
    path = disk.write("a", b"old")
    with pytest.raises(ExistsError, match=f"path={path}"):
        disk.fs.create(path)
    assert disk.fs.read(path) == b"old"


@pytest.mark.parametrize("writable", [False, True])
def test_what_is_missing_is_not_found(disk: Disk, writable: bool) -> None:
    missing = disk.root / "missing"
    calls: list[Callable[[], object]] = [
        lambda: disk.fs.open(missing, writable=writable),
        lambda: disk.fs.create(missing / "a"),
        lambda: disk.fs.read(missing),
        lambda: disk.fs.list(missing),
        lambda: disk.fs.make_directory(missing / "a"),
        lambda: disk.fs.rename(missing, disk.root / "a"),
        lambda: disk.fs.link(missing, disk.root / "a"),
        lambda: disk.fs.remove(missing),
        lambda: disk.fs.remove_directory(missing),
        lambda: disk.fs.sync_directory(missing),
        lambda: disk.fs.lock(missing / "LOCK"),
        lambda: disk.fs.free_bytes(missing),
    ]
    for call in calls:
        with pytest.raises(NotFoundError, match=f"path={missing}"):
            call()
    assert disk.fs.list(disk.root) == []


@pytest.mark.parametrize("writable", [False, True])
def test_a_directory_is_not_opened_as_a_file(disk: Disk, writable: bool) -> None:
    with pytest.raises(UsageError, match="not a regular file"):
        disk.fs.open(disk.root, writable=writable)


def test_reading_ends_early_only_at_the_end_of_the_file(disk: Disk) -> None:
    with disk.fs.open(disk.write("a", b"0123456789"), writable=False) as file:
        assert file.read_at(2, 3) == b"234"
        assert file.read_at(8, 5) == b"89"
        assert file.read_at(10, 5) == b""
        assert file.read_at(99, 5) == b""
        assert file.read_at(0, 0) == b""


def test_a_write_past_the_end_leaves_zeros_between(disk: Disk) -> None:
    path = disk.write("a", b"ab")
    with disk.fs.open(path, writable=True) as file:
        file.write_at(4, b"cd")
        file.write_at(1, b"X")
        file.write(b"ef")
        file.write_at(99, b"")
    assert disk.fs.read(path) == b"aX\0\0cdef"


def test_a_view_of_wider_items_is_written_as_its_bytes(disk: Disk) -> None:
    numbers = array.array("Q", [1, 2])
    with disk.fs.create(disk.root / "a") as file:
        file.write(memoryview(numbers))
        assert file.read_at(0, 99) == numbers.tobytes()


def test_truncate_grows_with_a_hole_and_shrinks_for_good(disk: Disk) -> None:
    path = disk.write("a", b"abcdef")
    with disk.fs.open(path, writable=True) as file:
        file.truncate(3)
        file.truncate(1 << 20)
        assert file.read_at(0, 8) == b"abc\0\0\0\0\0"
    (entry,) = disk.fs.list(disk.root)
    assert (entry.size_bytes, entry.allocated_bytes <= 4096) == (1 << 20, True)


def test_allocate_takes_space_and_changes_neither_size_nor_contents(disk: Disk) -> None:
    path = disk.write("a", b"abc")
    with disk.fs.open(path, writable=True) as file:
        file.truncate(1 << 16)
        file.allocate(0, 1 << 16)
        file.allocate(0, 0)
        assert file.read_at(0, 1 << 17) == b"abc".ljust(1 << 16, b"\0")
    (entry,) = disk.fs.list(disk.root)
    assert entry.allocated_bytes >= 1 << 16


def test_data_ends_behind_the_last_byte_that_was_written(disk: Disk) -> None:
    with disk.fs.create(disk.root / "a") as file:
        assert file.data_end(0) == 0
        file.truncate(1 << 20)
        assert [file.data_end(0), file.data_end(5), file.data_end(1 << 20)] == [0, 5, 1 << 20]
        file.write_at(200_000, b"a")
        file.write_at(300_000, b"b")
        # Disks know blocks, not bytes.
        for offset in (0, 200_001, 300_000):
            assert 300_001 <= file.data_end(offset) <= 300_001 + 65_536
        assert file.data_end(500_000) == 500_000


def test_allocate_past_the_end_is_refused(disk: Disk) -> None:
    with disk.fs.create(disk.root / "a") as file:
        file.truncate(100)
        with pytest.raises(UsageError, match="cannot allocate after the end of the file: path"):
            file.allocate(50, 51)
        assert file.size() == 100


def test_maps_and_reads_of_a_file_are_one_memory(disk: Disk) -> None:
    path = disk.write("a", b"abcdef")
    with disk.fs.open(path, writable=True) as file:
        view, other = file.map(writable=True), file.map(writable=False)
        view[0] = ord("X")
        file.write_at(5, b"Y")
        assert (bytes(view), bytes(other), file.read_at(0, 9)) == (b"XbcdeY",) * 3
        assert (len(view), view.format, view.readonly) == (6, "B", False)


def test_a_map_for_reading_refuses_stores(disk: Disk) -> None:
    with disk.fs.open(disk.write("a", b"abc"), writable=True) as file:
        view = file.map(writable=False)
        with pytest.raises(TypeError, match="read-only"):
            view[0] = 1


def test_a_map_outlives_close_and_removal(disk: Disk) -> None:
    path = disk.write("a", b"abc")
    with disk.fs.open(path, writable=True) as file:
        view = file.map(writable=True)
    disk.fs.remove(path)
    view[1] = ord("X")
    assert bytes(view) == b"aXc"


def test_an_empty_file_is_not_mapped(disk: Disk) -> None:
    with (
        disk.fs.create(disk.root / "a") as file,
        pytest.raises(UsageError, match="an empty file cannot be mapped"),
    ):
        file.map(writable=True)


def changes(file: File) -> list[Callable[[], object]]:
    return [
        lambda: file.write_at(0, b"X"),
        lambda: file.write(b"X"),
        lambda: file.truncate(1),
        lambda: file.allocate(0, 1),
        lambda: file.map(writable=True),
    ]


def test_a_file_opened_for_reading_refuses_changes(disk: Disk) -> None:
    path = disk.write("a", b"abc")
    with disk.fs.open(path, writable=False) as file:
        for change in changes(file):
            with pytest.raises(UsageError, match="opened for reading only"):
                change()
        file.sync()
        assert file.read_at(0, 9) == b"abc"


def test_a_closed_file_says_so_and_is_closed_once(disk: Disk) -> None:
    with disk.fs.open(disk.write("a", b"abc"), writable=True) as file:
        pass
    file.close()
    looks: list[Callable[[], object]] = [
        file.size,
        file.sync,
        lambda: file.read_at(0, 1),
        lambda: file.data_end(0),
    ]
    for call in looks + changes(file):
        with pytest.raises(ClosedError, match="the file is closed"):
            call()


def test_exists_tells_whether_the_name_is_taken(disk: Disk) -> None:
    path = disk.write("a", b"")
    names = [disk.root, path, disk.root / "b", path / "below a file"]
    assert [disk.fs.exists(name) for name in names] == [True, True, False, False]


def test_list_is_sorted_and_tells_files_from_directories(disk: Disk) -> None:
    disk.fs.make_directory(disk.root / "b")
    with disk.fs.create(disk.root / "c") as file:
        file.truncate(7)
    disk.fs.create(disk.root / "a").close()
    assert disk.fs.list(disk.root) == [
        DirectoryEntry(name="a", kind=EntryKind.FILE, size_bytes=0, allocated_bytes=0),
        DirectoryEntry(name="b", kind=EntryKind.DIRECTORY, size_bytes=0, allocated_bytes=0),
        DirectoryEntry(name="c", kind=EntryKind.FILE, size_bytes=7, allocated_bytes=0),
    ]


def test_scan_yields_names_and_kinds_and_never_follows_a_link(disk: Disk) -> None:
    disk.fs.make_directory(disk.root / "b")
    disk.fs.create(disk.root / "a").close()
    disk.fs.symlink(PurePath("a"), disk.root / "c")
    assert sorted(disk.fs.scan(disk.root)) == [
        Name("a", EntryKind.FILE),
        Name("b", EntryKind.DIRECTORY),
        Name("c", EntryKind.OTHER),
    ]
    with pytest.raises(NotFoundError):
        next(disk.fs.scan(disk.root / "missing"))


def test_a_file_where_a_directory_is_meant_is_a_disk_error(disk: Disk) -> None:
    path = disk.write("a", b"")
    calls: list[Callable[[], object]] = [
        lambda: disk.fs.list(path),
        lambda: disk.fs.sync_directory(path),
        lambda: disk.fs.create(path / "b"),
        lambda: disk.fs.remove_directory(path),
    ]
    for call in calls:
        with pytest.raises(DiskError) as caught:
            call()
        assert caught.value.errno == errno.ENOTDIR


def test_make_directory_refuses_a_name_that_is_taken(disk: Disk) -> None:
    disk.fs.make_directory(disk.root / "d")
    for name in (disk.root, disk.root / "d", disk.write("a", b"")):
        with pytest.raises(ExistsError):
            disk.fs.make_directory(name)


def test_rename_replaces_the_file_that_had_the_name(disk: Disk) -> None:
    disk.fs.make_directory(disk.root / "d")
    new, old = disk.write("new", b"new"), disk.write("d/old", b"old")
    with disk.fs.open(old, writable=False) as reader:
        disk.fs.rename(new, old)
        assert reader.read_at(0, 9) == b"old"
    assert (disk.fs.read(old), disk.fs.exists(new)) == (b"new", False)


def test_rename_moves_a_directory_with_what_it_holds(disk: Disk) -> None:
    disk.fs.make_directory(disk.root / "d")
    disk.write("d/a", b"a")
    disk.fs.make_directory(disk.root / "empty")
    disk.fs.rename(disk.root / "d", disk.root / "empty")
    assert [entry.name for entry in disk.fs.list(disk.root)] == ["empty"]
    assert disk.fs.read(disk.root / "empty" / "a") == b"a"


def test_rename_refuses_to_mix_files_and_directories(disk: Disk) -> None:
    for name in ("d", "full"):
        disk.fs.make_directory(disk.root / name)
    path, directory, full = disk.write("a", b"a"), disk.root / "d", disk.root / "full"
    disk.write("full/b", b"b")
    refusals = [
        (path, directory, errno.EISDIR),
        (directory, path, errno.ENOTDIR),
        (directory, full, errno.ENOTEMPTY),
        (directory, directory / "below", errno.EINVAL),
        (full / "b", full, errno.ENOTEMPTY),
    ]
    for source, target, number in refusals:
        with pytest.raises(DiskError) as caught:
            disk.fs.rename(source, target)
        assert caught.value.errno == number
    assert [entry.name for entry in disk.fs.list(disk.root)] == ["a", "d", "full"]


def test_rename_between_two_names_of_one_file_keeps_both(disk: Disk) -> None:
    path = disk.write("a", b"a")
    disk.fs.link(path, disk.root / "b")
    disk.fs.rename(path, disk.root / "b")
    disk.fs.rename(path, path)
    assert [entry.name for entry in disk.fs.list(disk.root)] == ["a", "b"]


def test_a_link_is_a_second_name_of_the_same_file(disk: Disk) -> None:
    path, second = disk.write("a", b"abc"), disk.root / "b"
    disk.fs.link(path, second)
    with disk.fs.open(second, writable=True) as file:
        file.write_at(0, b"X")
    assert disk.fs.read(path) == b"Xbc"
    disk.fs.remove(path)
    assert disk.fs.read(second) == b"Xbc"


def test_a_link_never_replaces_and_names_what_was_in_the_way(disk: Disk) -> None:
    path, taken = disk.write("a", b"a"), disk.write("b", b"b")
    with pytest.raises(ExistsError, match=f"path={taken}"):
        disk.fs.link(path, taken)
    assert disk.fs.read(taken) == b"b"


def test_directories_are_neither_linked_nor_removed_as_files(disk: Disk) -> None:
    directory = disk.root / "d"
    disk.fs.make_directory(directory)
    calls: list[tuple[Callable[[], object], int]] = [
        (lambda: disk.fs.link(directory, disk.root / "e"), errno.EPERM),
        (lambda: disk.fs.remove(directory), errno.EISDIR),
    ]
    for call, number in calls:
        with pytest.raises(DiskError) as caught:
            call()
        assert caught.value.errno == number
    assert [entry.name for entry in disk.fs.list(disk.root)] == ["d"]


def test_only_an_empty_directory_is_removed(disk: Disk) -> None:
    directory = disk.root / "d"
    disk.fs.make_directory(directory)
    path = disk.write("d/a", b"")
    with pytest.raises(DiskError) as caught:
        disk.fs.remove_directory(directory)
    assert caught.value.errno == errno.ENOTEMPTY
    disk.fs.remove(path)
    disk.fs.remove_directory(directory)
    assert disk.fs.list(disk.root) == []


def test_a_lock_is_held_by_one_until_it_is_released(disk: Disk) -> None:
    path = disk.root / "LOCK"
    first = disk.fs.lock(path)
    with pytest.raises(LockedError, match=f"path={path}"):
        disk.fs.lock(path)
    first.release()
    second = disk.fs.lock(path)
    first.release()
    with pytest.raises(LockedError):
        disk.fs.lock(path)
    second.release()
    assert [entry.name for entry in disk.fs.list(disk.root)] == ["LOCK"]


def test_a_directory_is_not_a_lock_file(disk: Disk) -> None:
    with pytest.raises(UsageError, match="not a regular file"):
        disk.fs.lock(disk.root)


def test_sync_leaves_what_is_seen_as_it_is(disk: Disk) -> None:
    path = disk.write("a", b"abc")
    with disk.fs.open(path, writable=True) as file:
        file.sync()
    disk.fs.sync_directory(disk.root)
    assert disk.fs.read(path) == b"abc"


def test_a_symbolic_link_is_read_and_moved_and_removed_but_never_followed(disk: Disk) -> None:
    old, new = disk.root / "new", disk.root / "link"
    disk.write("a", b"contents")
    disk.fs.symlink(PurePath("nowhere"), new)
    disk.fs.symlink(PurePath("a"), old)
    assert (disk.fs.readlink(old), disk.fs.readlink(new)) == (PurePath("a"), PurePath("nowhere"))
    disk.fs.rename(old, new)
    assert (disk.fs.readlink(new), disk.fs.exists(old)) == (PurePath("a"), False)
    with pytest.raises(UsageError, match="not a regular file"):
        disk.fs.read(new)
    assert disk.fs.list(disk.root)[1] == DirectoryEntry(
        name="link", kind=EntryKind.OTHER, size_bytes=0, allocated_bytes=0
    )
    disk.fs.remove(new)
    assert (disk.fs.exists(new), disk.fs.read(disk.root / "a")) == (False, b"contents")


def test_a_symbolic_link_takes_no_name_that_is_taken(disk: Disk) -> None:
    path = disk.write("a", b"old")
    with pytest.raises(ExistsError, match=f"path={path}"):
        disk.fs.symlink(PurePath("b"), path)
    assert disk.fs.read(path) == b"old"


def test_only_symbolic_links_have_a_target(disk: Disk) -> None:
    path = disk.write("a", b"")
    with pytest.raises(UsageError, match=f"not a symbolic link: path={path}"):
        disk.fs.readlink(path)
    with pytest.raises(NotFoundError, match="path="):
        disk.fs.readlink(disk.root / "missing")


def test_a_shared_lock_has_many_holders_and_none_that_holds_it_alone(disk: Disk) -> None:
    path = disk.root / "LOCK"
    one, other = disk.fs.lock(path, shared=True), disk.fs.lock(path, shared=True)
    one.release()
    with pytest.raises(LockedError):
        disk.fs.lock(path)
    other.release()
    alone = disk.fs.lock(path)
    with pytest.raises(LockedError):
        disk.fs.lock(path, shared=True)
    alone.release()


def test_a_lock_that_is_waited_for_is_taken_when_it_is_released(disk: Disk) -> None:
    path = disk.root / "LOCK"
    first = disk.fs.lock(path)
    with ThreadPoolExecutor(1) as threads:
        second = threads.submit(disk.fs.lock, path, wait=True)
        with pytest.raises(TimeoutError):
            second.result(0.1)
        first.release()
        second.result(10).release()
