from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import PurePath

import pytest

from siltstone.errors import DiskError, ExistsError, OverloadedError, StorageFullError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.spool.drafts import (
    Kept,
    give_name,
    keep_draft,
    remove_drafts,
    take_name_back,
    write_draft,
)
from siltstone.spool.errors import CleanupFailedError

A, B, KEPT = PurePath("/a.tmp"), PurePath("/b"), PurePath("/kept")


def names(fs: MemoryFileSystem) -> list[str]:
    return [found.name for found in fs.list(PurePath("/"))]


def test_a_draft_that_cannot_be_written_is_removed() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs, Fault(operation="write_at", errno=errno.ENOSPC, keep_bytes=1))
    with pytest.raises(StorageFullError):
        write_draft(faulty, A, b"data")
    assert names(fs) == []


def test_a_source_that_fails_leaves_nothing_and_its_own_error() -> None:
    fs = MemoryFileSystem()

    def failing() -> Iterator[bytes]:
        yield b"some"
        raise KeyError("theirs")

    with pytest.raises(KeyError, match="theirs"):
        write_draft(fs, A, failing())
    assert names(fs) == []


def test_a_draft_that_can_neither_be_written_nor_removed_is_told_with_both_causes() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(
        fs,
        Fault(operation="write_at", errno=errno.ENOSPC),
        Fault(operation="remove", errno=errno.EIO),
    )
    with pytest.raises(CleanupFailedError) as caught:
        write_draft(faulty, A, b"data")
    assert caught.value.path == A
    assert isinstance(caught.value.error, DiskError)
    assert isinstance(caught.value.__cause__, StorageFullError)
    assert names(fs) == ["a.tmp"]


def test_more_than_there_is_room_for_is_refused_and_removed() -> None:
    fs = MemoryFileSystem()
    with pytest.raises(OverloadedError, match="room_bytes=20"):
        write_draft(fs, A, b"12345", room_bytes=20)
    assert names(fs) == []
    assert write_draft(fs, A, b"1234", room_bytes=20).size_bytes == 20


def test_all_drafts_are_removed_though_one_cannot_be() -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs)
    drafts = [write_draft(faulty, PurePath(f"/{n}.tmp"), b"x") for n in range(3)]
    faulty.add(Fault(operation="remove", errno=errno.EIO, path_suffix="1.tmp"))
    with pytest.raises(CleanupFailedError, match=r"path=/1\.tmp"):
        remove_drafts(faulty, drafts, KeyError())
    assert names(fs) == ["1.tmp"]


def test_kept_data_are_without_their_proof_where_no_sweep_finds_them() -> None:
    fs = MemoryFileSystem()
    fs.make_directory(KEPT)
    kept = keep_draft(fs, write_draft(fs, A, b"data"), KEPT)
    again = keep_draft(fs, write_draft(fs, A, b"more"), KEPT)
    assert kept == Kept(KEPT / "a", 0, 4, stays=True)
    assert again == Kept(KEPT / "a.1", 0, 4, stays=True)
    assert (fs.read(kept.path), fs.read(again.path), names(fs)) == (b"data", b"more", ["kept"])


@pytest.mark.parametrize(
    ("operation", "repeat", "where", "stays"),
    [
        ("rename", False, PurePath("/a"), True),
        ("rename", True, A, False),
        ("truncate", False, KEPT / "a", True),
        ("open", False, KEPT / "a", True),
        ("sync_directory", False, KEPT / "a", True),
    ],
)
def test_data_that_cannot_be_moved_are_told_where_they_are_and_whether_they_stay(
    operation: str, repeat: bool, where: PurePath, stays: bool
) -> None:
    fs = MemoryFileSystem()
    fs.make_directory(KEPT)
    draft = write_draft(fs, A, b"data")
    fault = Fault(operation=operation, errno=errno.EIO, repeat=repeat)  # type: ignore[arg-type]
    kept = keep_draft(FaultyFileSystem(fs, fault), draft, KEPT)
    assert kept == Kept(where, 0, 4, stays=stays)
    assert fs.read(where).startswith(b"data")


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_where_there_are_no_links_a_name_is_given_by_rename_and_taken_back(number: int) -> None:
    fs = MemoryFileSystem()
    faulty = FaultyFileSystem(fs, Fault(operation="link", errno=number, repeat=True))
    write_draft(faulty, A, b"data").sync()
    give_name(faulty, A, B)
    assert names(fs) == ["b"]
    with pytest.raises(ExistsError):
        give_name(faulty, A, B)
    take_name_back(faulty, A, B)
    assert names(fs) == ["a.tmp"]


def test_a_name_that_is_taken_is_never_replaced() -> None:
    fs = MemoryFileSystem()
    write_draft(fs, A, b"data").sync()
    give_name(fs, A, B)
    with pytest.raises(ExistsError):
        give_name(fs, A, B)
    take_name_back(fs, A, B)
    assert names(fs) == ["a.tmp"]


def test_another_error_of_a_link_is_passed_on() -> None:
    fs = MemoryFileSystem()
    write_draft(fs, A, b"data").sync()
    with pytest.raises(DiskError, match="link failed"):
        give_name(FaultyFileSystem(fs, Fault(operation="link", errno=errno.EIO)), A, B)
