from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import PurePath
from typing import get_args

import pytest

from siltstone.errors import (
    DiskError,
    ExistsError,
    LockedError,
    NotFoundError,
    SiltstoneError,
    StorageFullError,
)
from siltstone.fs.faulty import (
    Change,
    Fault,
    FaultyFile,
    FaultyFileSystem,
    Look,
    NameChange,
    Operation,
    Pause,
)
from siltstone.fs.memory import MemoryFileSystem, PowerCut

A, B, D = PurePath("/a.seg"), PurePath("/b.idx"), PurePath("/d")


def faulty(*faults: Fault) -> FaultyFileSystem:
    """Return a file system with an empty file A and an empty directory /d."""
    memory = MemoryFileSystem()
    memory.create(A).close()
    memory.make_directory(D)
    return FaultyFileSystem(memory, *faults)


def with_file(use: Callable[[FaultyFile], object]) -> Callable[[FaultyFileSystem], None]:
    def step(fs: FaultyFileSystem) -> None:
        with fs.open(A, writable=True) as file:
            use(file)

    return step


LOOKS: dict[Operation, Callable[[FaultyFileSystem], object]] = {
    "open": lambda fs: fs.open(A, writable=False),
    "size": with_file(lambda file: file.size()),
    "read_at": with_file(lambda file: file.read_at(0, 1)),
    "data_end": with_file(lambda file: file.data_end(0)),
    "map": with_file(lambda file: file.map(writable=False)),
    "park": with_file(lambda file: file.park(A)),
    "close": with_file(lambda file: file.close()),
    "exists": lambda fs: fs.exists(A),
    "readlink": lambda fs: fs.readlink(A),
    "list": lambda fs: fs.list(D),
    "scan": lambda fs: list(fs.scan(D)),
    "lock": lambda fs: fs.lock(A),
    "free_bytes": lambda fs: fs.free_bytes(D),
    "disk_bytes": lambda fs: fs.disk_bytes(D),
}
CHANGES: dict[Operation, Callable[[FaultyFileSystem], object]] = {
    "create": lambda fs: fs.create(B),
    "write_at": with_file(lambda file: file.write_at(0, b"x")),
    "write": with_file(lambda file: file.write(b"x")),
    "truncate": with_file(lambda file: file.truncate(1)),
    "allocate": with_file(lambda file: file.allocate(0, 0)),
    "sync": with_file(lambda file: file.sync()),
    "make_directory": lambda fs: fs.make_directory(B),
    "rename": lambda fs: fs.rename(A, B),
    "link": lambda fs: fs.link(A, B),
    "symlink": lambda fs: fs.symlink(A, B),
    "remove": lambda fs: fs.remove(A),
    "remove_directory": lambda fs: fs.remove_directory(D),
    "sync_directory": lambda fs: fs.sync_directory(D),
}
STEPS = LOOKS | CHANGES


def test_every_operation_is_tested() -> None:
    assert [set(get_args(operations)) for operations in (Look, Change, NameChange)] == [
        set(LOOKS),
        set(CHANGES) & set(get_args(Change)),
        set(CHANGES) & set(get_args(NameChange)),
    ]


@pytest.mark.parametrize("operation", STEPS)
def test_any_operation_fails_as_scripted_and_changes_nothing(operation: Operation) -> None:
    fs = faulty(Fault(operation=operation, errno=errno.EIO))
    before = fs.inner.list(PurePath("/"))
    with pytest.raises(DiskError, match=f"^{operation} failed: EIO: "):
        STEPS[operation](fs)
    assert fs.inner.list(PurePath("/")) == before


@pytest.mark.parametrize("operation", CHANGES)
def test_the_power_goes_before_any_change(operation: Operation) -> None:
    fs = faulty()
    fs.operations_left = 0
    with pytest.raises(PowerCut):
        STEPS[operation](fs)
    with pytest.raises(PowerCut):
        fs.read(A)
    assert fs.inner.read(A) == b""


def test_after_a_power_cut_an_open_file_can_only_be_closed() -> None:
    calls: list[Callable[[FaultyFile], object]] = [
        lambda file: file.size(),
        lambda file: file.read_at(0, 1),
        lambda file: file.write_at(0, b"x"),
        lambda file: file.write(b"x"),
        lambda file: file.truncate(1),
        lambda file: file.allocate(0, 0),
        lambda file: file.data_end(0),
        lambda file: file.map(writable=False),
        lambda file: file.sync(),
        lambda file: file.park(A),
    ]
    fs = faulty()
    file = fs.open(A, writable=True)
    fs.operations_left = 0
    with pytest.raises(PowerCut):
        fs.remove(A)
    for call in calls:
        with pytest.raises(PowerCut):
            call(file)
    file.close()
    assert fs.inner.read(A) == b""


def test_the_power_goes_after_the_chosen_number_of_changes() -> None:
    fs = faulty()
    fs.operations_left = 1
    fs.create(B).close()
    assert fs.exists(B) is True
    with pytest.raises(PowerCut):
        fs.remove(B)
    assert fs.inner.exists(B) is True


@pytest.mark.parametrize(
    ("operation", "number", "kind"),
    [
        ("open", errno.ENOENT, NotFoundError),
        ("create", errno.EEXIST, ExistsError),
        ("sync", errno.ENOSPC, StorageFullError),
        ("lock", errno.EWOULDBLOCK, LockedError),
    ],
)
def test_the_error_is_the_one_the_disk_would_raise(
    operation: Operation, number: int, kind: type[SiltstoneError]
) -> None:
    fs = faulty(Fault(operation=operation, errno=number))
    with pytest.raises(SiltstoneError) as caught:
        STEPS[operation](fs)
    assert type(caught.value) is kind


def test_a_short_write_keeps_its_first_bytes() -> None:
    fs = faulty(Fault(operation="write", errno=errno.ENOSPC, keep_bytes=2))
    with fs.open(A, writable=True) as file, pytest.raises(StorageFullError) as caught:
        file.write(b"abcde")
    assert (fs.inner.read(A), caught.value.needed_bytes) == (b"ab", 5)


def test_a_short_write_at_an_offset_keeps_its_first_bytes() -> None:
    fs = faulty(Fault(operation="write_at", errno=errno.ENOSPC, keep_bytes=2))
    with fs.open(A, writable=True) as file, pytest.raises(StorageFullError) as caught:
        file.write_at(1, memoryview(b"abcde"))
    assert (fs.inner.read(A), caught.value.needed_bytes) == (b"\0ab", 5)


def test_a_durable_write_fails_as_a_write_or_as_the_sync_behind_it() -> None:
    fs = faulty(
        Fault(operation="write_at", errno=errno.ENOSPC, keep_bytes=2),
        Fault(operation="sync", errno=errno.EIO),
    )
    with fs.open(A, writable=True) as file:
        with pytest.raises(StorageFullError):
            file.write_durably(0, b"abc")
        assert fs.inner.read(A) == b"ab"
        with pytest.raises(DiskError, match=r"^sync failed: EIO: "):
            file.write_durably(0, b"cde")
        file.write_durably(3, b"f")
    assert fs.inner.read(A) == b"cdef"


def test_a_fault_tells_how_much_could_not_be_allocated() -> None:
    fs = faulty(Fault(operation="allocate", errno=errno.ENOSPC))
    with fs.open(A, writable=True) as file:
        file.truncate(10)
        with pytest.raises(StorageFullError) as caught:
            file.allocate(0, 7)
    assert (caught.value.path, caught.value.needed_bytes) == (A, 7)


def outcomes(fs: FaultyFileSystem, *paths: PurePath) -> list[bool]:
    """Tell of each path whether looking it up went well."""
    results = []
    for path in paths:
        try:
            fs.exists(path)
            results.append(True)
        except DiskError:
            results.append(False)
    return results


def test_only_the_nth_matching_operation_fails() -> None:
    fs = faulty(Fault(operation="exists", errno=errno.EIO, nth=2, path_suffix=".seg"))
    assert outcomes(fs, A, B, B, A, A) == [True, True, True, False, True]


def test_a_repeated_fault_fails_from_the_nth_on_until_it_is_cleared() -> None:
    fs = faulty(Fault(operation="exists", errno=errno.EIO, nth=2, repeat=True))
    assert outcomes(fs, A, A, B, A) == [True, False, False, False]
    fs.clear()
    assert outcomes(fs, A) == [True]


def test_a_fault_counts_from_when_it_was_added() -> None:
    fs = faulty()
    assert outcomes(fs, A) == [True]
    fs.add(Fault(operation="exists", errno=errno.EIO))
    assert outcomes(fs, A, A) == [False, True]


def test_the_fault_that_was_added_first_wins() -> None:
    fs = faulty(
        Fault(operation="remove", errno=errno.EIO), Fault(operation="remove", errno=errno.EROFS)
    )
    with pytest.raises(DiskError, match="EIO"):
        fs.remove(A)
    fs.remove(A)


@pytest.mark.parametrize("suffix", [".seg", ".idx"])
def test_a_rename_matches_by_either_name(suffix: str) -> None:
    fs = faulty(Fault(operation="rename", errno=errno.EIO, path_suffix=suffix))
    with pytest.raises(DiskError, match=f"path={A}"):
        fs.rename(A, B)
    fs.rename(A, B)


def test_a_pause_holds_matching_operations_and_then_they_continue() -> None:
    fs = faulty(Fault(operation="sync", errno=errno.EIO, nth=2))
    held: list[bytes] = []

    def until() -> None:
        held.append(fs.inner.read(A))

    with fs.open(A, writable=True) as file:
        fs.pause(Pause(operation="write_at", until=until, path_suffix=".seg"))
        fs.pause(Pause(operation="sync", until=until, path_suffix=".idx"))
        file.write_at(0, b"a")
        file.sync()
        file.write_at(0, b"b")
        assert held == [b"", b"a"]
        fs.clear()
        file.write_at(0, b"c")
    assert (held, fs.inner.read(A)) == ([b"", b"a"], b"c")
