"""A file system over another one, with faults that a test scripts.

A fault occurs before its operation, so the operation has no effect. There are two exceptions: the
first `keep_bytes` of a write are written, and a file whose `close` fails is closed. The error is
the one that the file system of the machine would raise for the error number. Faults are checked in
the order in which they were added; the first one that matches is used.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from errno import errorcode
from pathlib import PurePath
from types import TracebackType
from typing import Final, Literal, Self, get_args

from siltstone.errors import SiltstoneError
from siltstone.fs.api import DirectoryEntry, File, FileSystem, Lock, Name
from siltstone.fs.memory import PowerCut
from siltstone.fs.translate import failed_sync, failure

Change = Literal["create", "write_at", "write", "truncate", "allocate", "sync"]
NameChange = Literal[
    "make_directory", "rename", "link", "symlink", "remove", "remove_directory", "sync_directory"
]
Look = Literal[
    "open",
    "size",
    "read_at",
    "data_end",
    "map",
    "park",
    "close",
    "exists",
    "readlink",
    "list",
    "scan",
    "lock",
    "free_bytes",
    "disk_bytes",
]
Operation = Change | NameChange | Look

_LOOKS: Final = frozenset(get_args(Look))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Make the nth matching operation from now on fail; with repeat, all later ones too.

    An operation matches by its name and, if path_suffix is given, by the end of its path; a rename
    or link matches by the end of either path. keep_bytes applies to writes.
    """

    operation: Operation
    errno: int
    nth: int = 1
    path_suffix: str = ""
    keep_bytes: int = 0
    repeat: bool = False

    def matches(self, operation: Operation, paths: tuple[PurePath, ...]) -> bool:
        """Return whether this fault counts the operation."""
        return operation == self.operation and any(
            str(path).endswith(self.path_suffix) for path in paths
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Hold every matching operation until `until` returns, as a slow disk does; then continue it.

    An operation matches as for a `Fault`. `until` is called on the thread of the operation.
    """

    operation: Operation
    until: Callable[[], object]
    path_suffix: str = ""

    def matches(self, operation: Operation, paths: tuple[PurePath, ...]) -> bool:
        """Return whether this pause holds the operation."""
        return operation == self.operation and any(
            str(path).endswith(self.path_suffix) for path in paths
        )


class FaultyFileSystem:
    """A file system that passes every operation to inner, unless a fault or power cut prevents it.

    `operations_left` counts the operations that change something. After the last of them, the next
    change raises PowerCut, and so does every later operation except `close`.
    """

    def __init__(self, inner: FileSystem, *faults: Fault) -> None:
        self.inner = inner
        self.operations_left: int | None = None
        self.is_power_cut = False
        self._seen: dict[Fault, int] = dict.fromkeys(faults, 0)
        self._pauses: list[Pause] = []
        self._mutex = threading.Lock()

    def add(self, fault: Fault) -> None:
        """Add a fault; its count starts now."""
        with self._mutex:
            self._seen[fault] = 0

    def pause(self, pause: Pause) -> None:
        """Hold matching operations from now on, before faults are looked for."""
        with self._mutex:
            self._pauses.append(pause)

    def clear(self) -> None:
        """Remove all faults and pauses. An operation that is held stays held."""
        with self._mutex:
            self._seen.clear()
            self._pauses.clear()

    def fault(self, operation: Operation, *paths: PurePath) -> Fault | None:
        """Count one operation and return the fault that applies to it. Raises: PowerCut."""
        with self._mutex:
            pauses = [pause for pause in self._pauses if pause.matches(operation, paths)]
        for pause in pauses:
            pause.until()
        with self._mutex:
            if operation not in _LOOKS and self.operations_left is not None:
                if self.operations_left == 0:
                    self.is_power_cut = True
                else:
                    self.operations_left -= 1
            if self.is_power_cut:
                raise PowerCut
            met: Fault | None = None
            for fault in self._seen:
                if fault.matches(operation, paths):
                    self._seen[fault] += 1
                    seen = self._seen[fault]
                    if seen == fault.nth or (fault.repeat and seen > fault.nth):
                        met = met or fault
            return met

    def check(self, operation: Operation, *paths: PurePath) -> None:
        """Count one operation and raise the error of the fault that applies to it, if any."""
        fault = self.fault(operation, *paths)
        if fault is not None:
            raise scripted_error(fault, paths[0])

    def create(self, path: PurePath) -> FaultyFile:
        self.check("create", path)
        return FaultyFile(self, self.inner.create(path))

    def open(self, path: PurePath, *, writable: bool) -> FaultyFile:
        self.check("open", path)
        return FaultyFile(self, self.inner.open(path, writable=writable))

    def read(self, path: PurePath) -> bytes:
        with self.open(path, writable=False) as file:
            return file.read_at(0, file.size())

    def exists(self, path: PurePath) -> bool:
        self.check("exists", path)
        return self.inner.exists(path)

    def make_directory(self, path: PurePath) -> None:
        self.check("make_directory", path)
        self.inner.make_directory(path)

    def rename(self, source: PurePath, target: PurePath) -> None:
        self.check("rename", source, target)
        self.inner.rename(source, target)

    def link(self, source: PurePath, target: PurePath) -> None:
        self.check("link", source, target)
        self.inner.link(source, target)

    def symlink(self, target: PurePath, path: PurePath) -> None:
        self.check("symlink", path)
        self.inner.symlink(target, path)

    def readlink(self, path: PurePath) -> PurePath:
        self.check("readlink", path)
        return self.inner.readlink(path)

    def remove(self, path: PurePath) -> None:
        self.check("remove", path)
        self.inner.remove(path)

    def remove_directory(self, path: PurePath) -> None:
        self.check("remove_directory", path)
        self.inner.remove_directory(path)

    def sync_directory(self, path: PurePath) -> None:
        self.check("sync_directory", path)
        self.inner.sync_directory(path)

    def lock(self, path: PurePath, *, shared: bool = False, wait: bool = False) -> Lock:
        self.check("lock", path)
        return self.inner.lock(path, shared=shared, wait=wait)

    def free_bytes(self, path: PurePath) -> int:
        self.check("free_bytes", path)
        return self.inner.free_bytes(path)

    def disk_bytes(self, path: PurePath) -> int:
        self.check("disk_bytes", path)
        return self.inner.disk_bytes(path)

    def list(self, path: PurePath) -> list[DirectoryEntry]:
        self.check("list", path)
        return self.inner.list(path)

    def scan_entries(self, path: PurePath) -> Iterator[DirectoryEntry]:
        self.check("list", path)
        yield from self.inner.scan_entries(path)

    def scan(self, path: PurePath) -> Iterator[Name]:
        self.check("scan", path)
        yield from self.inner.scan(path)


class FaultyFile:
    """A file of a FaultyFileSystem."""

    def __init__(self, fs: FaultyFileSystem, inner: File) -> None:
        self._fs = fs
        self._inner = inner

    @property
    def path(self) -> PurePath:
        return self._inner.path

    def size(self) -> int:
        self._fs.check("size", self.path)
        return self._inner.size()

    def read_at(self, offset: int, length: int) -> bytes:
        self._fs.check("read_at", self.path)
        return self._inner.read_at(offset, length)

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        fault = self._fs.fault("write_at", self.path)
        if fault is not None:
            self._inner.write_at(offset, data[: fault.keep_bytes])
            raise scripted_error(fault, self.path, needed_bytes=len(data))
        self._inner.write_at(offset, data)

    def write_durably(self, offset: int, data: bytes) -> None:
        # Faults may hit it as a write, or as the sync behind the write.
        self.write_at(offset, data)
        fault = self._fs.fault("sync", self.path)
        if fault is not None:
            reason = errorcode.get(fault.errno, "unknown reason")
            raise failed_sync(fault.errno, reason, self.path)
        self._inner.write_durably(offset, data)

    def write(self, data: bytes | memoryview) -> None:
        fault = self._fs.fault("write", self.path)
        if fault is not None:
            self._inner.write(data[: fault.keep_bytes])
            raise scripted_error(fault, self.path, needed_bytes=len(data))
        self._inner.write(data)

    def truncate(self, size: int) -> None:
        self._fs.check("truncate", self.path)
        self._inner.truncate(size)

    def allocate(self, offset: int, length: int) -> None:
        fault = self._fs.fault("allocate", self.path)
        if fault is not None:
            raise scripted_error(fault, self.path, needed_bytes=length)
        self._inner.allocate(offset, length)

    def data_end(self, offset: int) -> int:
        self._fs.check("data_end", self.path)
        return self._inner.data_end(offset)

    def map(self, *, writable: bool) -> memoryview:
        self._fs.check("map", self.path)
        return self._inner.map(writable=writable)

    def sync(self) -> None:
        self._fs.check("sync", self.path)
        self._inner.sync()

    def park(self, path: PurePath) -> None:
        self._fs.check("park", path)
        self._inner.park(path)

    def close(self) -> None:
        self._inner.close()
        if not self._fs.is_power_cut:
            self._fs.check("close", self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def scripted_error(fault: Fault, path: PurePath, *, needed_bytes: int = 0) -> SiltstoneError:
    """Return the error that the file system of the machine would raise for this fault."""
    return failure(fault.errno, fault.operation, path, needed_bytes=needed_bytes)
