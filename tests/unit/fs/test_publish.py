from __future__ import annotations

import errno
from pathlib import PurePath

import pytest

from siltstone.errors import DiskError, NotFoundError, StorageFullError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.publish import (
    create_directories,
    quarantine_file,
    remove_file,
    remove_tree,
    replace_file,
    sweep_temporaries,
)

D, A, Q = PurePath("/d"), PurePath("/d/a"), PurePath("/quarantine")


def disk(**files: bytes) -> MemoryFileSystem:
    """Return a file system with these files in /d, all synced and nothing told yet."""
    fs = MemoryFileSystem(page_bytes=4)
    fs.make_directory(D)
    for name, contents in files.items():
        with fs.create(D / name.replace("_", ".")) as file:
            file.write(contents)
            file.sync()
    fs.sync_directory(D)
    fs.sync_directory(PurePath("/"))
    fs.operations.clear()
    return fs


def names(fs: MemoryFileSystem, path: PurePath) -> list[str]:
    return [entry.name for entry in fs.list(path)]


def test_replace_file_syncs_the_contents_before_the_name() -> None:
    fs = disk(a=b"old")
    replace_file(fs, A, b"new")
    assert fs.operations == [
        "create /d/a.tmp",
        "write /d/a.tmp",
        "sync /d/a.tmp",
        "rename /d/a.tmp /d/a",
        "sync_directory /d",
    ]
    assert (names(fs, D), fs.read(A)) == (["a"], b"new")


def test_replace_file_removes_what_a_crash_left_of_an_earlier_one() -> None:
    fs = disk(a=b"old", a_tmp=b"half of something longer")
    replace_file(fs, A, b"new")
    assert (names(fs, D), fs.read(A)) == (["a"], b"new")


def test_replace_file_on_a_full_disk_leaves_the_old_file_and_no_temporary() -> None:
    fs = disk(a=b"old")
    fs.capacity_bytes = 8
    with pytest.raises(StorageFullError):
        replace_file(fs, A, b"longer than a page")
    assert (names(fs, D), fs.read(A), fs.free_bytes(D)) == (["a"], b"old", 4)


def test_replace_file_that_could_not_sync_never_takes_the_name() -> None:
    fs = disk(a=b"old")
    faulty = FaultyFileSystem(
        fs,
        Fault(operation="sync", errno=errno.EIO),
        Fault(operation="remove", errno=errno.EIO),
    )
    with pytest.raises(DiskError, match=r"^sync failed"):
        replace_file(faulty, A, b"new")
    assert (fs.read(A), names(fs, D)) == (b"old", ["a", "a.tmp"])


def test_create_directories_syncs_each_name_before_the_next_level() -> None:
    fs = disk()
    create_directories(fs, D / "x" / "y")
    assert fs.operations == [
        "sync_directory /",
        "make_directory /d/x",
        "sync_directory /d",
        "make_directory /d/x/y",
        "sync_directory /d/x",
    ]
    assert names(fs.crash_clone(), D / "x") == ["y"]


def test_create_directories_makes_durable_what_a_killed_process_created() -> None:
    fs = disk()
    fs.make_directory(D / "x")
    create_directories(fs, D / "x")
    assert names(fs.crash_clone(), D) == ["x"]


def test_create_directories_goes_on_where_the_parent_may_not_be_opened() -> None:
    fs = disk()
    refusal = Fault(operation="sync_directory", errno=errno.EACCES)
    create_directories(FaultyFileSystem(fs, refusal), D / "x")
    assert names(fs.crash_clone(), D) == ["x"]


@pytest.mark.parametrize(("nth", "number"), [(1, errno.EIO), (2, errno.EACCES)])
def test_create_directories_passes_other_errors_on(nth: int, number: int) -> None:
    failure = Fault(operation="sync_directory", errno=number, nth=nth)
    with pytest.raises(DiskError):
        create_directories(FaultyFileSystem(disk(), failure), D / "x")


def test_create_directories_beside_another_process_is_no_error() -> None:
    fs = disk()
    raced = Fault(operation="make_directory", errno=errno.EEXIST)
    create_directories(FaultyFileSystem(fs, raced), D / "x")
    assert fs.operations == ["sync_directory /", "sync_directory /d"]


def test_a_removed_file_stays_removed() -> None:
    fs = disk(a=b"a", b=b"b")
    remove_file(fs, A)
    assert names(fs.crash_clone(), D) == ["b"]
    with pytest.raises(NotFoundError):
        remove_file(fs, A)


def test_a_removed_tree_stays_removed_and_needs_no_space() -> None:
    fs = disk(a=b"a")
    fs.make_directory(D / "x")
    fs.create(D / "x" / "b").close()
    fs.capacity_bytes = 4
    fs.operations.clear()
    remove_tree(fs, D)
    assert fs.operations == [
        "remove /d/a",
        "remove /d/x/b",
        "remove_directory /d/x",
        "remove_directory /d",
        "sync_directory /",
    ]
    assert names(fs.crash_clone(), PurePath("/")) == []


def test_sweep_removes_temporary_files_for_good_and_names_them() -> None:
    fs = disk(a=b"a", a_tmp=b"", b_tmp=b"", tmp=b"")
    fs.make_directory(D / "d.tmp")
    assert sweep_temporaries(fs, D) == ["a.tmp", "b.tmp"]
    assert names(fs.crash_clone(), D) == ["a", "d.tmp", "tmp"]


def test_sweep_makes_durable_what_a_killed_process_renamed() -> None:
    fs = disk(a=b"old", b=b"new")
    fs.rename(D / "b", A)
    fs = fs.kill_clone()
    assert sweep_temporaries(fs, D) == []
    assert (names(fs.crash_clone(), D), fs.crash_clone().read(A)) == (["a"], b"new")


def test_a_file_in_quarantine_has_its_reason_beside_it() -> None:
    fs = disk(a=b"bad", b=b"good")
    target = quarantine_file(fs, A, Q, "the checksum is wrong: offset=7")
    fs = fs.crash_clone()
    assert (target, names(fs, D)) == (Q / "a", ["b"])
    assert names(fs, Q) == ["a", "a.reason.txt"]
    assert fs.read(target) == b"bad"
    assert fs.read(Q / "a.reason.txt") == b"the checksum is wrong: offset=7\n"


def test_files_of_one_name_stand_side_by_side_in_quarantine() -> None:
    fs = disk()
    found = []
    for contents in (b"first", b"second", b"third"):
        replace_file(fs, A, contents)
        found.append(quarantine_file(fs, A, Q, contents.decode()))
    assert found == [Q / "a", Q / "a.1", Q / "a.2"]
    assert [fs.read(path) for path in found] == [b"first", b"second", b"third"]
    reasons = [fs.read(path.with_name(f"{path.name}.reason.txt")) for path in found]
    assert reasons == [b"first\n", b"second\n", b"third\n"]


def test_a_reason_without_its_file_keeps_its_name() -> None:
    fs = disk(a=b"bad")
    create_directories(fs, Q)
    replace_file(fs, Q / "a.reason.txt", b"an earlier one\n")
    assert quarantine_file(fs, A, Q, "a later one") == Q / "a.1"
    assert fs.read(Q / "a.reason.txt") == b"an earlier one\n"


def test_quarantine_on_a_full_disk_leaves_the_file_where_it_is() -> None:
    fs = disk(a=b"bad")
    fs.capacity_bytes = 4
    with pytest.raises(StorageFullError):
        quarantine_file(fs, A, Q, "the checksum is wrong")
    assert (fs.read(A), names(fs, Q)) == (b"bad", [])
