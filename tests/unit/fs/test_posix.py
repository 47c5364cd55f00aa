from __future__ import annotations

import errno
import os
import pickle
import resource
import shutil
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePath
from types import SimpleNamespace

import pytest

from siltstone.errors import (
    ClosedError,
    DiskError,
    LockedError,
    NotFoundError,
    OverloadedError,
    StorageFullError,
    UsageError,
)
from siltstone.fs import posix
from siltstone.fs.api import DirectoryEntry, EntryKind
from siltstone.fs.posix import PosixFileSystem

FS = PosixFileSystem()
MOUNTS = Path("/proc/self/mountinfo")


def failing(number: int) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("writable", [False, True])
@pytest.mark.parametrize("kind", ["fifo", "symlink", "dangling", "device", "socket"])
def test_what_is_not_a_regular_file_is_refused_at_once(
    tmp_path: Path, kind: str, writable: bool
) -> None:
    path = tmp_path / "odd"
    match kind:
        case "fifo":
            os.mkfifo(path)
        case "symlink":
            (tmp_path / "target").write_bytes(b"")
            path.symlink_to(tmp_path / "target")
        case "dangling":
            path.symlink_to(tmp_path / "nowhere")
        case "device":
            path = Path("/dev/null")
        case _:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(str(path))
    with pytest.raises(UsageError, match=f"^not a regular file: path={path}$"):
        FS.open(path, writable=writable)


def test_a_fifo_in_place_of_the_lock_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "LOCK")
    with pytest.raises(UsageError, match="not a regular file"):
        FS.lock(tmp_path / "LOCK")


def modes_below(directory: Path) -> list[int]:
    """Make a directory with a file and a lock in it under no umask; return their modes."""
    mask = os.umask(0)
    try:
        FS.make_directory(directory / "d")
        FS.create(directory / "d" / "a").close()
        FS.lock(directory / "d" / "LOCK").release()
    finally:
        os.umask(mask)
    names = [directory / "d", directory / "d" / "a", directory / "d" / "LOCK"]
    return [stat.S_IMODE(name.stat().st_mode) for name in names]


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o777])
def test_files_and_directories_are_their_owners_alone(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    assert modes_below(tmp_path) == [0o700, 0o600, 0o600]


def test_below_a_directory_with_the_set_group_id_bit_the_group_reads(tmp_path: Path) -> None:
    tmp_path.chmod(0o2750)
    assert modes_below(tmp_path) == [0o2750, 0o640, 0o640]


def test_an_existing_file_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "LOCK"
    path.touch()
    path.chmod(0o644)
    FS.lock(path).release()
    FS.open(path, writable=True).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


@pytest.mark.parametrize(
    ("mode", "open_to_others"), [(0o700, False), (0o2770, False), (0o755, True), (0o701, True)]
)
def test_a_directory_that_others_may_use_is_told(
    tmp_path: Path, mode: int, open_to_others: bool
) -> None:
    tmp_path.chmod(mode)
    assert FS.is_open_to_others(tmp_path) is open_to_others


def test_descriptors_are_not_inherited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[int] = []
    real_open = os.open

    def open_and_tell(path: PurePath, flags: int, mode: int = 0o777) -> int:
        opened.append(flags)
        return real_open(path, flags, mode)

    monkeypatch.setattr(os, "open", open_and_tell)
    FS.create(tmp_path / "a").close()
    FS.open(tmp_path / "a", writable=True).close()
    FS.lock(tmp_path / "LOCK").release()
    FS.sync_directory(tmp_path)
    assert [flags & os.O_CLOEXEC for flags in opened] == [os.O_CLOEXEC] * 4


def test_short_writes_and_reads_are_carried_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write, real_read = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_write(fd, data[:3], at))
    monkeypatch.setattr(os, "pread", lambda fd, length, at: real_read(fd, min(length, 2), at))
    with FS.create(tmp_path / "a") as file:
        file.write_at(1, b"0123456789")
        assert file.read_at(0, 99) == b"\x000123456789"


@pytest.mark.parametrize("types", [frozenset[str](), None])
def test_a_durable_write_needs_a_sync_only_where_the_file_system_is_not_known_to_obey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, types: frozenset[str] | None
) -> None:
    calls: list[str] = []
    # This test must know the answer for the disk of the machine.
    known = frozenset(line.split(" - ")[1].split()[0] for line in MOUNTS.read_text().splitlines())
    monkeypatch.setattr(posix, "_OBEYING", known if types is None else types)
    real_write = os.pwritev
    monkeypatch.setattr(os, "fdatasync", lambda fd: calls.append("sync"))

    def write(descriptor: int, parts: tuple[bytes], offset: int, flags: int) -> int:
        calls.append("durable write")
        return real_write(descriptor, parts, offset, flags)

    monkeypatch.setattr(os, "pwritev", write)
    with FS.create(tmp_path / "a") as file:
        file.write_durably(1, b"abc")
        file.write_durably(4, b"d")
        assert file.read_at(0, 9) == b"\0abcd"
    assert calls == (["durable write"] * 2 if types is None else ["sync"] * 2)


def test_a_short_durable_write_is_carried_on_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr(posix, "_syncs_ranges", lambda device: True)
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at, flags: os.pwrite(fd, parts[0][:2], at))
    monkeypatch.setattr(os, "fdatasync", lambda fd: calls.append("sync"))
    with FS.create(tmp_path / "a") as file:
        file.write_durably(1, b"abc")
        assert file.read_at(0, 9) == b"\0abc"
    assert calls == ["sync"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_durable_write_that_fails_leaves_the_state_of_the_disk_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(posix, "_syncs_ranges", lambda device: True)
    monkeypatch.setattr(os, "pwritev", failing(number))
    with FS.create(tmp_path / "a") as file, pytest.raises(DiskError) as caught:
        file.write_durably(0, b"abc")
    assert (caught.value.operation, caught.value.errno) == ("sync", number)


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_system_that_refuses_the_flag_of_a_durable_write_gets_a_write_and_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    calls: list[str] = []

    def refuse(descriptor: int, parts: tuple[bytes], offset: int, flags: int) -> int:
        calls.append("durable write")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(posix, "_syncs_ranges", lambda device: True)
    monkeypatch.setattr(os, "pwritev", refuse)
    monkeypatch.setattr(os, "fdatasync", lambda fd: calls.append("sync"))
    with FS.create(tmp_path / "a") as file:
        file.write_durably(1, b"abc")
        file.write_durably(4, b"d")
        assert file.read_at(0, 9) == b"\0abcd"
    # It is not asked again.
    assert calls == ["durable write", "sync", "sync"]


def test_a_write_that_stores_nothing_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: 0)
    with FS.create(tmp_path / "a") as file, pytest.raises(DiskError, match="nothing was written"):
        file.write(b"abc")


def test_allocate_asks_for_the_free_space_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(f_bavail=2, f_frsize=4096)
    monkeypatch.setattr(os, "fstatvfs", lambda fd: free)
    with FS.create(tmp_path / "a") as file:
        file.truncate(3 * 4096)
        with pytest.raises(StorageFullError) as caught:
            file.allocate(0, 2 * 4096 + 1)
        assert (caught.value.path, caught.value.needed_bytes) == (tmp_path / "a", 2 * 4096 + 1)
        assert FS.list(tmp_path)[0].allocated_bytes == 0
        file.allocate(4096, 2 * 4096)
    assert FS.list(tmp_path)[0].allocated_bytes == 2 * 4096


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_is_a_storage_full_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(number))
    monkeypatch.setattr(os, "pwrite", failing(number))
    with FS.create(tmp_path / "a") as file:
        file.truncate(4096)
        with pytest.raises(StorageFullError) as allocating:
            file.allocate(0, 4096)
        with pytest.raises(StorageFullError) as writing:
            file.write_at(0, b"abc")
        assert (allocating.value.needed_bytes, writing.value.needed_bytes) == (4096, 3)
        assert isinstance(writing.value.__cause__, OSError)


def test_sync_calls_fdatasync_and_passes_its_error_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fdatasync", failing(errno.EIO))
    with FS.create(tmp_path / "a") as file, pytest.raises(DiskError) as caught:
        file.sync()
    assert (caught.value.path, caught.value.operation) == (tmp_path / "a", "sync")
    assert caught.value.errno == errno.EIO


def test_sync_directory_calls_fsync_and_closes_what_it_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(DiskError, match=r"^sync_directory failed: .* errno=5$"):
        FS.sync_directory(tmp_path)
    assert os.listdir("/proc/self/fd") == before


def test_an_error_of_close_is_an_error_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = FS.create(tmp_path / "a")
    real_close = os.close

    def close_and_fail(descriptor: int) -> None:
        real_close(descriptor)
        raise OSError(errno.EIO, "input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", close_and_fail)
        with pytest.raises(DiskError, match=r"^close failed: input/output error"):
            file.close()
    file.close()


def test_refused_opens_and_locks_leave_no_descriptor(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    lock = FS.lock(tmp_path / "LOCK")
    before = os.listdir("/proc/self/fd")
    for refused in (
        lambda: FS.open(tmp_path / "fifo", writable=False),
        lambda: FS.lock(tmp_path / "LOCK"),
        lambda: FS.lock(tmp_path / "fifo"),
    ):
        with pytest.raises(UsageError):
            refused()
    assert os.listdir("/proc/self/fd") == before
    lock.release()


def test_a_refused_lock_names_the_process_that_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "LOCK"
    path.write_text("a text longer than any process number")
    lock = FS.lock(path)
    with pytest.raises(LockedError, match=f"path={path} pid={os.getpid()}$"):
        FS.lock(path)
    lock.release()


def test_a_lock_is_taken_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", failing(errno.ENOSPC))
    lock = FS.lock(tmp_path / "LOCK")
    with pytest.raises(LockedError, match=r"LOCK$"):
        FS.lock(tmp_path / "LOCK")
    lock.release()


def test_a_lock_that_the_disk_cannot_give_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr("fcntl.flock", failing(errno.ENOLCK))
    with pytest.raises(DiskError, match=r"^lock failed: "):
        FS.lock(tmp_path / "LOCK")
    assert os.listdir("/proc/self/fd") == before


def test_list_does_not_follow_links_and_shows_odd_entries(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    assert FS.list(tmp_path) == [
        DirectoryEntry(name="fifo", kind=EntryKind.OTHER, size_bytes=0, allocated_bytes=0),
        DirectoryEntry(name="link", kind=EntryKind.OTHER, size_bytes=0, allocated_bytes=0),
    ]


def test_a_name_that_goes_while_the_directory_is_listed_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stays").write_bytes(b"")
    (tmp_path / "goes").write_bytes(b"")
    real_scan = os.scandir

    class Scan:
        def __init__(self, path: Path) -> None:
            with real_scan(path) as found:
                self.found = list(found)
            (tmp_path / "goes").unlink(missing_ok=True)

        def __enter__(self) -> list[os.DirEntry[str]]:
            return self.found

        def __exit__(self, *error: object) -> None:
            pass

    monkeypatch.setattr(os, "scandir", Scan)
    assert [entry.name for entry in FS.list(tmp_path)] == ["stays"]


def test_exists_looks_at_the_link_and_not_through_it(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    assert FS.exists(tmp_path / "dangling") is True


def test_exists_passes_other_errors_on(tmp_path: Path) -> None:
    with pytest.raises(DiskError) as caught:
        FS.exists(tmp_path / ("x" * 300))
    assert caught.value.errno == errno.ENAMETOOLONG


def test_free_bytes_is_what_an_ordinary_user_may_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_bavail=3, f_frsize=512))
    assert FS.free_bytes(tmp_path) == 1536


def test_the_size_of_a_disk_counts_what_is_used(tmp_path: Path) -> None:
    assert FS.disk_bytes(tmp_path) == shutil.disk_usage(tmp_path).total


def test_stores_through_a_map_reach_the_file(tmp_path: Path) -> None:
    with FS.create(tmp_path / "a") as file:
        file.truncate(8192)
        file.allocate(0, 8192)
        view = file.map(writable=True)
        view[4090:4100] = b"0123456789"
        file.sync()
    assert (tmp_path / "a").read_bytes()[4088:4102] == b"\0\x000123456789\0\0"


def test_errors_are_raised_from_what_the_system_said(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        FS.remove(tmp_path / "missing")
    assert isinstance(caught.value.__cause__, FileNotFoundError)


def test_a_socket_is_told_from_what_is_none(tmp_path: Path) -> None:
    fs = PosixFileSystem()
    (tmp_path / "file").write_bytes(b"")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        names = ("socket", "file", "missing")
        assert [fs.is_socket(tmp_path / name) for name in names] == [True, False, False]


def test_the_mode_of_a_file_is_set(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"")
    PosixFileSystem().set_mode(path, 0o640)
    assert path.stat().st_mode & 0o777 == 0o640


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class TestParking:
    def test_a_parked_file_holds_no_descriptor_and_is_used_as_before(self, tmp_path: Path) -> None:
        before = descriptors()
        file = FS.create(tmp_path / "a")
        file.write(b"one")
        FS.rename(tmp_path / "a", tmp_path / "b")
        file.park(tmp_path / "b")
        file.park(tmp_path / "b")
        assert descriptors() == before
        file.write(b"two")
        file.sync()
        assert (file.read_at(0, 6), descriptors()) == (b"onetwo", before + 1)
        file.close()
        assert descriptors() == before

    def test_a_parked_file_that_is_closed_stays_closed(self, tmp_path: Path) -> None:
        file = FS.create(tmp_path / "a")
        file.park(tmp_path / "a")
        file.close()
        with pytest.raises(ClosedError):
            file.size()

    def test_another_file_under_its_name_is_not_taken_for_it(self, tmp_path: Path) -> None:
        file = FS.create(tmp_path / "a")
        file.park(tmp_path / "a")
        before = descriptors()
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "a").write_bytes(b"")
        with pytest.raises(DiskError, match="another file has the same name now"):
            file.size()
        assert descriptors() == before


class TestSpareDescriptors:
    def test_one_is_given_up_for_each_that_is_needed_and_taken_back_later(
        self, tmp_path: Path
    ) -> None:
        (tmp_path / "a").write_bytes(b"x")
        fs = PosixFileSystem(spare=2)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        taken: list[int] = []
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            one = fs.open(tmp_path / "a", writable=False)
            two = fs.open(tmp_path / "a", writable=False)
            with pytest.raises(OverloadedError, match="ulimit -n, LimitNOFILE"):
                fs.open(tmp_path / "a", writable=False)
        finally:
            for descriptor in taken:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        one.close()
        two.close()
        before = descriptors()
        assert fs.read(tmp_path / "a") == b"x"
        assert descriptors() == before + 2

    def test_one_is_kept_for_the_sync_of_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / "a").write_bytes(b"x")
        fs = PosixFileSystem(spare=1)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        taken: list[int] = []
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.open("/dev/null", os.O_RDONLY))
            one = fs.open(tmp_path / "a", writable=False)
            with pytest.raises(OverloadedError):
                fs.open(tmp_path / "a", writable=False)
            # A name that was changed must become durable, or the store would have to stop.
            for _ in range(3):
                fs.sync_directory(tmp_path)
        finally:
            for descriptor in taken:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        one.close()


def test_a_file_system_goes_to_another_process(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    arrived = pickle.loads(pickle.dumps(PosixFileSystem(spare=2)))  # noqa: S301 - our own
    before = descriptors()
    assert isinstance(arrived, PosixFileSystem)
    assert (arrived.read(tmp_path / "a"), descriptors()) == (b"x", before)
