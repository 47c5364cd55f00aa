"""The disk of the machine: the only module that calls os and fcntl.

Invariants: no call waits on a FIFO or device, no call follows a symbolic link in the last part of a
name, and no child process inherits a descriptor. A map needs no descriptor. Only the owner can
access files and directories, with one exception: in a directory with the set-group-ID bit, which
new directories inherit, the group may read them. The umask still applies.

A file system with spare descriptors closes one of them when the process has reached its limit
(`ulimit -n`), so that a sequence of operations that has started can be completed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import PurePath
from threading import Lock
from types import TracebackType
from typing import Final, Self

from siltstone.errors import (
    ClosedError,
    DiskError,
    NotFoundError,
    StorageFullError,
    UsageError,
)
from siltstone.fs.api import DirectoryEntry, EntryKind, Name
from siltstone.fs.mapping import map_shared
from siltstone.fs.translate import failed_sync, locked, not_a_link, not_regular, translate

# O_NONBLOCK has no effect on a regular file. It prevents open(2) of a FIFO from waiting for a
# writer.
_SAFE: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700
_GROUP_READS: Final = 0o040
_GROUP_ENTERS: Final = 0o050
_OTHERS: Final = 0o007
_NONE_LEFT: Final = (errno.EMFILE, errno.ENFILE)
# A flag of one write: it returns when the data is durable. Only Linux has it, and only these file
# systems are known to obey it; FUSE did not always.
_DSYNC: Final[int] = getattr(os, "RWF_DSYNC", 0)
_OBEYING: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs"})
_UNSUPPORTED: Final = (errno.EOPNOTSUPP, errno.ENOSYS)
_MOUNTS: Final = "/proc/self/mountinfo"
_MOUNTS_MAX: Final = 1 << 20


class _SystemErrors:
    """A context that translates OSError; `contextmanager` would take three times as long."""

    __slots__ = ("_needed_bytes", "_operation", "_path")

    def __init__(self, operation: str, path: PurePath, *, needed_bytes: int = 0) -> None:
        self._operation = operation
        self._path = path
        self._needed_bytes = needed_bytes

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, OSError):
            raise translate(
                error, self._operation, self._path, needed_bytes=self._needed_bytes
            ) from error


def _is_shared(directory: PurePath) -> bool:
    """Return whether the group of a directory may read what is created in it."""
    return bool(os.stat(directory).st_mode & stat.S_ISGID)


class _Spare:
    """Spare descriptors for when the process has reached its limit.

    One more is kept for the sync of a directory, which must not fail: it follows a rename that
    cannot be undone.
    """

    def __init__(self, count: int) -> None:
        self._total = count + 1 if count else 0
        self._held: list[int] = []
        self._lock = Lock()
        self._syncing = Lock()
        self._refill()

    def open(self, path: PurePath, flags: int, mode: int = 0) -> int:
        """Open a file; if the limit is reached, close a spare descriptor first."""
        try:
            descriptor = os.open(path, flags, mode)
        except OSError as exc:
            if exc.errno not in _NONE_LEFT or not self._give_up():
                raise
            return os.open(path, flags, mode)
        if len(self._held) < self._total:
            self._refill()
        return descriptor

    def sync_directory(self, path: PurePath) -> None:
        """Sync a directory; if the limit is reached, close any spare descriptor first."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            descriptor = self.open(path, flags)
        except OSError as exc:
            if exc.errno not in _NONE_LEFT:
                raise
            # Another thread that syncs must wait: there is only one descriptor for it.
            with self._syncing:
                self._give_up(keep=0)
                _sync_and_close(os.open(path, flags))
                self._refill()
        else:
            _sync_and_close(descriptor)

    def scan(self, path: PurePath) -> os._ScandirIterator[str]:
        """List a directory; if the limit is reached, close a spare descriptor first."""
        try:
            return os.scandir(path)
        except OSError as exc:
            if exc.errno not in _NONE_LEFT or not self._give_up():
                raise
            return os.scandir(path)

    def _give_up(self, *, keep: int = 1) -> bool:
        with self._lock:
            if len(self._held) <= keep:
                return False
            os.close(self._held.pop())
            return True

    def _refill(self) -> None:
        with self._lock, suppress(OSError):
            while len(self._held) < self._total:
                self._held.append(os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC))

    def __del__(self) -> None:
        for descriptor in self._held:
            os.close(descriptor)


def _sync_and_close(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _syncs_ranges(device: int) -> bool:
    """Return whether the file system of a device makes single writes durable."""
    if not _DSYNC:
        return False
    try:
        descriptor = os.open(_MOUNTS, os.O_RDONLY | os.O_CLOEXEC)
        try:
            mounts = os.read(descriptor, _MOUNTS_MAX)
        finally:
            os.close(descriptor)
    except OSError:
        return False
    place = f"{os.major(device)}:{os.minor(device)}".encode()
    for line in mounts.splitlines():
        # The device is the third field. Behind a lone hyphen comes the type.
        fields = line.split()
        if place in fields[2:3] and b"-" in fields[:-1]:
            return fields[fields.index(b"-") + 1].decode("ascii", "replace") in _OBEYING
    return False


def _open_regular(spare: _Spare, path: PurePath, flags: int) -> int:
    """Open path and return the descriptor. Raises: UsageError if it is not a regular file."""
    mode = _FILE_MODE
    if flags & os.O_CREAT and _is_shared(path.parent):
        mode |= _GROUP_READS
    descriptor = spare.open(path, flags | _SAFE, mode)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise not_regular(path)


class PosixFile:
    """An open file of the machine."""

    def __init__(self, spare: _Spare, path: PurePath, descriptor: int, *, writable: bool) -> None:
        self._spare = spare
        self._path = path
        self._open_descriptor: int | None = descriptor
        self._writable = writable
        # The path at which a parked file is opened again, and the device and inode that it must
        # have.
        self._parked: tuple[PurePath, int, int] | None = None
        self._reopening = Lock()
        # Whether the file system syncs a range of the file; None if that was not needed yet.
        self._syncs_ranges: bool | None = None

    @property
    def path(self) -> PurePath:
        return self._path

    def _descriptor(self, *, to_write: bool = False) -> int:
        descriptor = self._open_descriptor
        if descriptor is None:
            descriptor = self._reopen()
        if to_write and not self._writable:
            raise UsageError(f"the file was opened for reading only: path={self._path}")
        return descriptor

    def park(self, path: PurePath) -> None:
        with _SystemErrors("park", path):
            descriptor = self._open_descriptor
            if descriptor is not None:
                status = os.fstat(descriptor)
                self._parked = (path, status.st_dev, status.st_ino)
                self._open_descriptor = None
                os.close(descriptor)

    def _reopen(self) -> int:
        """Open a parked file again.

        Raises: ClosedError; DiskError if the name is another file now.
        """
        with self._reopening:
            if self._open_descriptor is not None:
                return self._open_descriptor
            if self._parked is None:
                raise ClosedError(f"the file is closed: path={self._path}")
            path, *place = self._parked
            with _SystemErrors("open", path):
                flags = os.O_RDWR if self._writable else os.O_RDONLY
                descriptor = _open_regular(self._spare, path, flags)
                status = os.fstat(descriptor)
            if [status.st_dev, status.st_ino] != place:
                os.close(descriptor)
                raise DiskError(path, "open", "another file has the same name now", errno=0)
            self._open_descriptor = descriptor
            return descriptor

    def size(self) -> int:
        with _SystemErrors("size", self._path):
            return os.fstat(self._descriptor()).st_size

    def read_at(self, offset: int, length: int) -> bytes:
        descriptor = self._descriptor()
        chunks: list[bytes] = []
        with _SystemErrors("read", self._path):
            while length > 0 and (chunk := os.pread(descriptor, length, offset)):
                chunks.append(chunk)
                offset += len(chunk)
                length -= len(chunk)
        return b"".join(chunks)

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        descriptor = self._descriptor(to_write=True)
        size = memoryview(data).nbytes
        # Without `_translated`, which would create a context for each write.
        try:
            done = os.pwrite(descriptor, data, offset) if size else 0
            if done == size:
                return
            left = memoryview(data).cast("B")[done:]
            offset += done
            while left:
                written = os.pwrite(descriptor, left, offset)
                if written == 0:
                    raise DiskError(self._path, "write", "nothing was written", errno=0)
                offset += written
                left = left[written:]
        except OSError as exc:
            raise translate(exc, "write", self._path, needed_bytes=size) from exc

    def write_durably(self, offset: int, data: bytes) -> None:
        descriptor = self._descriptor(to_write=True)
        if self._syncs_ranges is None:
            self._syncs_ranges = _syncs_ranges(os.fstat(descriptor).st_dev)
        if not self._syncs_ranges:
            self.write_at(offset, data)
            self.sync()
            return
        # One system call instead of two, and pages that are dirty through maps are not written.
        try:
            done = os.pwritev(descriptor, (data,), offset, _DSYNC)
        except OSError as exc:
            if exc.errno in _UNSUPPORTED:
                # A sandbox may show the type of a file system, but not accept the flag. It refuses
                # the call before anything is written.
                self._syncs_ranges = False
                self.write_durably(offset, data)
                return
            reason = exc.strerror or "unknown reason"
            raise failed_sync(exc.errno or 0, reason, self._path) from exc
        if done != len(data):
            self.write_at(offset + done, data[done:])
            self.sync()

    def write(self, data: bytes | memoryview) -> None:
        self.write_at(self.size(), data)

    def truncate(self, size: int) -> None:
        with _SystemErrors("truncate", self._path):
            os.ftruncate(self._descriptor(to_write=True), size)

    def allocate(self, offset: int, length: int) -> None:
        """Allocate the disk space of a range now; see `File.allocate`.

        Refuse a range for which the free space cannot be enough. The estimate assumes that the
        allocated space of the file is at its front, which is true unless a power cut left holes.
        """
        descriptor = self._descriptor(to_write=True)
        if offset + length > self.size():
            raise UsageError(
                f"cannot allocate after the end of the file: path={self._path} "
                f"end={offset + length}"
            )
        if length == 0:
            return
        with _SystemErrors("allocate", self._path, needed_bytes=length):
            # On ext4, a posix_fallocate that fails keeps the space that it allocated, and the disk
            # would be full.
            taken = os.fstat(descriptor).st_blocks * 512
            missing = min(length, max(0, offset + length - taken))
            status = os.fstatvfs(descriptor)
            if status.f_bavail * status.f_frsize < missing:
                raise StorageFullError(self._path, needed_bytes=missing)
            os.posix_fallocate(descriptor, offset, length)

    def data_end(self, offset: int) -> int:
        """Return the end of the last data at or after offset; see `File.data_end`."""
        descriptor = self._descriptor()
        with _SystemErrors("data_end", self._path):
            while True:
                try:
                    start = os.lseek(descriptor, offset, os.SEEK_DATA)
                except OSError as exc:
                    if exc.errno == errno.ENXIO:
                        return offset
                    raise
                offset = os.lseek(descriptor, start, os.SEEK_HOLE)

    def map(self, *, writable: bool) -> memoryview:
        descriptor = self._descriptor(to_write=writable)
        size = self.size()
        if size == 0:
            raise UsageError(f"an empty file cannot be mapped: path={self._path}")
        with _SystemErrors("map", self._path):
            return map_shared(descriptor, size, writable=writable)

    def sync(self) -> None:
        """Make contents and size durable, including what was stored through maps."""
        # fdatasync also writes the dirty pages of maps. Unlike mmap.flush, it releases the GIL.
        descriptor = self._descriptor()
        try:
            os.fdatasync(descriptor)
        except OSError as exc:
            raise translate(exc, "sync", self._path) from exc

    def close(self) -> None:
        # The descriptor is closed even if close(2) fails. A second close could close another file.
        descriptor, self._open_descriptor = self._open_descriptor, None
        self._parked = None
        if descriptor is not None:
            with _SystemErrors("close", self._path):
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class PosixLock:
    """A flock, held by its open descriptor."""

    def __init__(self, path: PurePath, descriptor: int) -> None:
        self._path = path
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            with _SystemErrors("release", self._path):
                # After a close alone, a forked child that shares the descriptor would still hold
                # the lock.
                fcntl.flock(descriptor, fcntl.LOCK_UN)
                os.close(descriptor)


class PosixFileSystem:
    """The file system of the machine, optionally with spare descriptors."""

    def __init__(self, *, spare: int = 0) -> None:
        self._spare = _Spare(spare)

    def __reduce__(self) -> tuple[type[PosixFileSystem], tuple[()]]:
        """Pickle without spare descriptors: the worker processes of Spark only read."""
        return PosixFileSystem, ()

    def create(self, path: PurePath) -> PosixFile:
        with _SystemErrors("create", path):
            descriptor = _open_regular(self._spare, path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        return PosixFile(self._spare, path, descriptor, writable=True)

    def open(self, path: PurePath, *, writable: bool) -> PosixFile:
        with _SystemErrors("open", path):
            descriptor = _open_regular(self._spare, path, os.O_RDWR if writable else os.O_RDONLY)
        return PosixFile(self._spare, path, descriptor, writable=writable)

    def read(self, path: PurePath) -> bytes:
        with self.open(path, writable=False) as file:
            return file.read_at(0, file.size())

    def exists(self, path: PurePath) -> bool:
        with _SystemErrors("exists", path):
            try:
                os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def make_directory(self, path: PurePath) -> None:
        with _SystemErrors("make_directory", path):
            shared = _GROUP_ENTERS if _is_shared(path.parent) else 0
            os.mkdir(path, _DIRECTORY_MODE | shared)

    def rename(self, source: PurePath, target: PurePath) -> None:
        with _SystemErrors("rename", source):
            os.rename(source, target)

    def link(self, source: PurePath, target: PurePath) -> None:
        with _SystemErrors("link", source):
            try:
                os.link(source, target, follow_symlinks=False)
            except FileExistsError as exc:
                raise translate(exc, "link", target) from exc

    def symlink(self, target: PurePath, path: PurePath) -> None:
        with _SystemErrors("symlink", path):
            os.symlink(target, path)

    def readlink(self, path: PurePath) -> PurePath:
        with _SystemErrors("readlink", path):
            try:
                return PurePath(os.readlink(path))
            except OSError as exc:
                if exc.errno == errno.EINVAL:
                    raise not_a_link(path) from exc
                raise

    def remove(self, path: PurePath) -> None:
        with _SystemErrors("remove", path):
            os.unlink(path)

    def remove_directory(self, path: PurePath) -> None:
        with _SystemErrors("remove_directory", path):
            os.rmdir(path)

    def sync_directory(self, path: PurePath) -> None:
        with _SystemErrors("sync_directory", path):
            self._spare.sync_directory(path)

    def lock(self, path: PurePath, *, shared: bool = False, wait: bool = False) -> PosixLock:
        mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        with _SystemErrors("lock", path):
            descriptor = _open_regular(self._spare, path, os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(descriptor, mode if wait else mode | fcntl.LOCK_NB)
            except BlockingIOError as exc:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                os.close(descriptor)
                raise locked(path, holder=holder) from exc
            except OSError:
                os.close(descriptor)
                raise
        # The process id is only for the error message of a refused process. On a full disk the lock
        # must still succeed, so that data can be deleted.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode("ascii"), 0)
        return PosixLock(path, descriptor)

    def is_socket(self, path: PurePath) -> bool:
        """Return whether a path is a socket; False if it does not exist."""
        try:
            with _SystemErrors("is_socket", path):
                return stat.S_ISSOCK(os.lstat(path).st_mode)
        except NotFoundError:
            return False

    def set_mode(self, path: PurePath, mode: int) -> None:
        """Set the permission bits of a file."""
        with _SystemErrors("set_mode", path):
            os.chmod(path, mode)

    def is_open_to_others(self, path: PurePath) -> bool:
        """Return whether a directory is accessible to users other than its owner and group."""
        with _SystemErrors("is_open_to_others", path):
            return bool(os.stat(path).st_mode & _OTHERS)

    def free_bytes(self, path: PurePath) -> int:
        with _SystemErrors("free_bytes", path):
            status = os.statvfs(path)
        return status.f_bavail * status.f_frsize

    def disk_bytes(self, path: PurePath) -> int:
        with _SystemErrors("disk_bytes", path):
            status = os.statvfs(path)
        return status.f_blocks * status.f_frsize

    def list(self, path: PurePath) -> list[DirectoryEntry]:
        return sorted(self.scan_entries(path), key=lambda entry: entry.name)

    def scan_entries(self, path: PurePath) -> Iterator[DirectoryEntry]:
        with _SystemErrors("list", path), self._spare.scan(path) as found:
            for name in found:
                # Another process may remove a file between the two calls: a reader does not hold
                # the lock.
                try:
                    entry = _entry(name)
                except FileNotFoundError:
                    continue
                yield entry

    def scan(self, path: PurePath) -> Iterator[Name]:
        with _SystemErrors("scan", path), self._spare.scan(path) as found:
            for name in found:
                yield Name(name.name, _kind(name))


def _entry(found: os.DirEntry[str]) -> DirectoryEntry:
    status = found.stat(follow_symlinks=False)
    if stat.S_ISREG(status.st_mode):
        return DirectoryEntry(
            name=found.name,
            kind=EntryKind.FILE,
            size_bytes=status.st_size,
            allocated_bytes=status.st_blocks * 512,
        )
    is_directory = stat.S_ISDIR(status.st_mode)
    kind = EntryKind.DIRECTORY if is_directory else EntryKind.OTHER
    return DirectoryEntry(name=found.name, kind=kind, size_bytes=0, allocated_bytes=0)


def _kind(found: os.DirEntry[str]) -> EntryKind:
    """Return the kind of a name. Usual file systems store it in the directory, so no stat is
    needed.
    """
    if found.is_file(follow_symlinks=False):
        return EntryKind.FILE
    return EntryKind.DIRECTORY if found.is_dir(follow_symlinks=False) else EntryKind.OTHER


def absolute_path(path: str | PurePath) -> PurePath:
    """Return the absolute form of a path, without access to the disk."""
    return PurePath(os.path.abspath(path))


def config_directory() -> PurePath:
    """Return the directory for the settings that this user has for Siltstone."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return PurePath(base, "siltstone")
