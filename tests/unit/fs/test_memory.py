from __future__ import annotations

from pathlib import PurePath
from random import Random

import pytest

from siltstone.errors import ExistsError, LockedError, NotFoundError, StorageFullError
from siltstone.fs.memory import MemoryFileSystem, PowerCut

A, B, D = PurePath("/a"), PurePath("/b"), PurePath("/d")


def write(fs: MemoryFileSystem, path: PurePath, contents: bytes, *, sync: bool = True) -> None:
    with fs.create(path) as file:
        file.write(contents)
        if sync:
            file.sync()


def test_a_file_needs_its_contents_and_its_name_synced() -> None:
    fs = MemoryFileSystem()
    write(fs, A, b"abc")
    assert fs.crash_clone().exists(A) is False
    fs.sync_directory(PurePath("/"))
    assert fs.crash_clone().read(A) == b"abc"


def test_a_name_without_synced_contents_is_an_empty_file() -> None:
    fs = MemoryFileSystem()
    write(fs, A, b"abc", sync=False)
    fs.sync_directory(PurePath("/"))
    assert fs.crash_clone().read(A) == b""


def test_stores_through_a_map_are_durable_after_sync() -> None:
    fs = MemoryFileSystem()
    write(fs, A, b"abc")
    fs.sync_directory(PurePath("/"))
    with fs.open(A, writable=True) as file:
        view = file.map(writable=True)
        view[0] = ord("X")
        assert fs.crash_clone().read(A) == b"abc"
        file.sync()
    assert fs.crash_clone().read(A) == b"Xbc"


def test_a_removed_file_is_back_until_its_directory_is_synced() -> None:
    fs = MemoryFileSystem()
    write(fs, A, b"abc")
    fs.sync_directory(PurePath("/"))
    fs.remove(A)
    assert fs.crash_clone().read(A) == b"abc"
    fs.sync_directory(PurePath("/"))
    assert fs.crash_clone().exists(A) is False


def test_a_file_in_a_directory_that_was_not_synced_is_gone_with_it() -> None:
    fs = MemoryFileSystem()
    fs.make_directory(D)
    write(fs, D / "a", b"abc")
    fs.sync_directory(D)
    assert fs.crash_clone().list(PurePath("/")) == []
    fs.sync_directory(PurePath("/"))
    assert fs.crash_clone().read(D / "a") == b"abc"


def test_a_rename_in_one_directory_survives_whole_or_not_at_all() -> None:
    fs = MemoryFileSystem()
    fs.create(A).close()
    fs.sync_directory(PurePath("/"))
    fs.rename(A, B)
    found = {
        (clone.exists(A), clone.exists(B))
        for clone in (fs.crash_clone(Random(seed), in_order=seed % 2 == 0) for seed in range(50))
    }
    assert found == {(True, False), (False, True)}


def test_a_file_that_moved_needs_both_directories_synced() -> None:
    fs = MemoryFileSystem()
    fs.make_directory(D)
    write(fs, A, b"abc")
    fs.sync_directory(PurePath("/"))
    fs.rename(A, D / "a")
    fs.sync_directory(D)
    both = fs.crash_clone()
    assert (both.read(A), both.read(D / "a")) == (b"abc", b"abc")
    fs.sync_directory(PurePath("/"))
    moved = fs.crash_clone()
    assert (moved.exists(A), moved.read(D / "a")) == (False, b"abc")


def test_a_file_that_moved_is_lost_when_only_the_directory_it_left_is_synced() -> None:
    fs = MemoryFileSystem()
    fs.make_directory(D)
    write(fs, A, b"abc")
    fs.sync_directory(PurePath("/"))
    fs.rename(A, D / "a")
    fs.sync_directory(PurePath("/"))
    clone = fs.crash_clone()
    assert (clone.exists(A), clone.exists(D / "a")) == (False, False)


def test_the_same_chance_leaves_the_same_disk() -> None:
    fs = MemoryFileSystem(page_bytes=1)
    write(fs, A, bytes(range(1, 100)), sync=False)
    fs.sync_directory(PurePath("/"))
    contents = [fs.crash_clone(Random(seed)).read(A) for seed in (*range(20), *range(20))]
    assert contents[:20] == contents[20:]
    assert len(set(contents)) > 10


def test_out_of_order_a_later_name_may_survive_an_earlier_one() -> None:
    fs = MemoryFileSystem()
    for path in (A, B):
        fs.create(path).close()
    found = {
        in_order: {
            tuple(
                entry.name
                for entry in fs.crash_clone(Random(seed), in_order=in_order).list(PurePath("/"))
            )
            for seed in range(100)
        }
        for in_order in (True, False)
    }
    assert found == {
        True: {(), ("a",), ("a", "b")},
        False: {(), ("a",), ("b",), ("a", "b")},
    }


def test_clones_share_nothing_with_the_original() -> None:
    fs = MemoryFileSystem()
    write(fs, A, b"abc")
    fs.sync_directory(PurePath("/"))
    for clone in (fs.crash_clone(), fs.crash_clone(Random(1)), fs.kill_clone()):
        with clone.open(A, writable=True) as file:
            file.write_at(0, b"X")
        clone.rename(A, B)
        assert clone.read(B) == b"Xbc"
    assert fs.read(A) == b"abc"


def test_a_killed_process_leaves_all_it_wrote_but_not_on_the_disk() -> None:
    fs = MemoryFileSystem(capacity_bytes=2048)
    write(fs, A, b"abc")
    fs.sync_directory(PurePath("/"))
    with fs.open(A, writable=True) as file:
        file.write_at(0, b"X")
        view = file.map(writable=True)
        view[1] = ord("Y")
    fs.create(B).close()
    lock = fs.lock(PurePath("/LOCK"))
    killed = fs.kill_clone()
    assert (killed.read(A), killed.exists(B), killed.capacity_bytes) == (b"XYc", True, 2048)
    killed.lock(PurePath("/LOCK")).release()
    lock.release()
    crashed = killed.crash_clone()
    assert (crashed.read(A), crashed.exists(B)) == (b"abc", False)


def test_locks_are_gone_after_a_power_cut() -> None:
    fs = MemoryFileSystem()
    fs.lock(A)
    fs.sync_directory(PurePath("/"))
    clone = fs.crash_clone()
    clone.lock(A)
    for disk in (fs, clone):
        with pytest.raises(LockedError):
            disk.lock(A)


def test_space_is_taken_by_pages_and_freed_with_the_last_name() -> None:
    fs = MemoryFileSystem(page_bytes=4, capacity_bytes=20)

    def free() -> int:
        return fs.free_bytes(PurePath("/"))

    with fs.create(A) as file:
        file.truncate(100)
        assert free() == 20
        file.write_at(3, b"ab")
        assert free() == 12
        file.allocate(0, 12)
        assert free() == 8
        file.truncate(5)
        assert free() == 12
    fs.link(A, B)
    fs.remove(A)
    assert free() == 12
    fs.remove(B)
    assert free() == 20


def test_a_full_disk_refuses_whole_and_works_again_after_a_removal() -> None:
    fs = MemoryFileSystem(page_bytes=4, capacity_bytes=12)
    write(fs, A, b"12345678")
    with fs.create(B) as file:
        file.write(b"ab")
        with pytest.raises(StorageFullError) as caught:
            file.write(b"cdefg")
        assert (caught.value.path, caught.value.needed_bytes) == (B, 4)
        file.write(b"cd")
        file.truncate(8)
        with pytest.raises(StorageFullError):
            file.allocate(0, 8)
        fs.remove(A)
        file.allocate(0, 8)
    assert fs.read(B) == b"abcd\0\0\0\0"


def test_replacing_a_file_frees_its_space() -> None:
    fs = MemoryFileSystem(page_bytes=4, capacity_bytes=16)
    write(fs, A, b"12345678")
    write(fs, B, b"1234")
    fs.rename(B, A)
    assert fs.free_bytes(PurePath("/")) == 12
    assert fs.disk_bytes(PurePath("/")) == fs.capacity_bytes


def test_a_store_into_a_hole_is_found_out_by_sync() -> None:
    fs = MemoryFileSystem(page_bytes=4)
    with fs.create(A) as file:
        file.truncate(12)
        file.allocate(0, 4)
        view = file.map(writable=True)
        view[3] = 1
        file.sync()
        view[4] = 1
        with pytest.raises(AssertionError, match="needs allocated space: offset=4"):
            file.sync()


def test_a_mapped_file_cannot_grow_by_a_write() -> None:
    fs = MemoryFileSystem()
    with fs.create(A) as file:
        file.write(b"abc")
        view = file.map(writable=False)
        with pytest.raises(AssertionError, match="a mapped file changed its size"):
            file.write(b"d")
        view.release()
        file.write(b"d")
    assert fs.read(A) == b"abcd"


def test_the_power_goes_before_the_chosen_operation_and_stays_away() -> None:
    fs = MemoryFileSystem()
    fs.operations_left = 2
    file = fs.create(A)
    assert fs.exists(A) is True
    file.write(b"abc")
    assert (fs.read(A), fs.operations_left) == (b"abc", 0)
    with pytest.raises(PowerCut):
        file.sync()
    for later in (file.size, file.sync, lambda: fs.read(A), lambda: fs.list(D), lambda: fs.lock(B)):
        with pytest.raises(PowerCut):
            later()
    file.close()
    assert fs.kill_clone().read(A) == b"abc"


def test_every_operation_that_changes_something_is_counted_and_told() -> None:
    fs = MemoryFileSystem()
    fs.operations_left = 100
    fs.make_directory(D)
    with fs.create(A) as file:
        file.write(b"abc")
        file.write_at(0, b"X")
        file.truncate(10)
        file.allocate(0, 10)
        file.sync()
        file.read_at(0, 10)
        file.map(writable=True)
    fs.link(A, B)
    fs.rename(B, D / "b")
    fs.remove(D / "b")
    fs.sync_directory(D)
    fs.remove_directory(D)
    fs.lock(PurePath("/LOCK")).release()
    fs.lock(PurePath("/LOCK")).release()
    assert fs.operations == [
        "make_directory /d",
        "create /a",
        "write /a",
        "write_at /a",
        "truncate /a",
        "allocate /a",
        "sync /a",
        "link /a /b",
        "rename /b /d/b",
        "remove /d/b",
        "sync_directory /d",
        "remove_directory /d",
        "create /LOCK",
    ]
    assert fs.operations_left == 100 - 13


def test_an_operation_that_failed_is_counted_but_not_told() -> None:
    fs = MemoryFileSystem()
    fs.create(A).close()
    fs.operations_left = 5
    with pytest.raises(ExistsError):
        fs.create(A)
    with pytest.raises(NotFoundError):
        fs.remove(B)
    assert (fs.operations, fs.operations_left) == (["create /a"], 3)


def test_relative_paths_begin_at_the_root() -> None:
    fs = MemoryFileSystem()
    fs.create(PurePath("a")).close()
    assert [entry.name for entry in fs.list(PurePath("/"))] == ["a"]
    assert fs.list(PurePath(".")) == fs.list(PurePath("/"))


def test_a_power_cut_leaves_a_moved_link_where_it_was_or_where_it_went() -> None:
    fs = MemoryFileSystem()
    fs.symlink(PurePath("old"), A)
    fs.sync_directory(A.parent)
    fs.symlink(PurePath("new"), B)
    fs.rename(B, A)
    found = {fs.crash_clone(Random(seed)).readlink(A) for seed in range(20)}
    assert found == {PurePath("old"), PurePath("new")}
    assert fs.crash_clone().readlink(A) == PurePath("old")
    assert fs.kill_clone().readlink(A) == PurePath("new")
