"""The interface to the disk: the operations of a file system and of an open file.

Invariants that every implementation keeps:
- An error means that nothing visible changed. There are two exceptions: a write may have stored the
  first part of its data, and after a failed `sync` or `sync_directory` the state on the disk is
  unknown.
- Written data is durable after `File.sync`. A name (created, renamed, linked, removed) is durable
  after `sync_directory` of the directory that holds it, or of both directories if it moved.
- No OSError reaches the caller. It becomes StorageFullError, OverloadedError (no descriptor is
  left), NotFoundError, ExistsError, LockedError, UsageError (not a regular file) or DiskError.

All methods may be called from any thread. Threads that use the same range of a file, or the same
name, must synchronize between themselves. The caller decides the order of operations; `publish.py`
has the orders that are used more than once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from types import TracebackType
from typing import NamedTuple, Protocol, Self


class EntryKind(Enum):
    """The kind of a directory entry; symbolic links are not followed."""

    FILE = "file"
    DIRECTORY = "directory"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryEntry:
    """One name in a directory; both sizes are 0 unless it is a regular file.

    allocated_bytes is the space on the disk, which is less than size_bytes for a sparse file.
    """

    name: str
    kind: EntryKind
    size_bytes: int
    allocated_bytes: int


class Name(NamedTuple):
    """One name in a directory, without the size of its file."""

    name: str
    kind: EntryKind


class File(Protocol):
    """An open regular file; every call but `close` raises ClosedError once it is closed."""

    @property
    def path(self) -> PurePath:
        """The name with which the file was opened; the file may have been renamed since."""
        ...

    def size(self) -> int: ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Read up to length bytes; fewer only at the end of the file."""
        ...

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """Write all of data at offset; the file grows if necessary. Raises: StorageFullError."""
        ...

    def write_durably(self, offset: int, data: bytes) -> None:
        """Write all of data at offset and make it durable, as `write_at` and `sync` do.

        The rest of the file need not become durable. After a DiskError never sync the file again.

        Raises: StorageFullError, before the sync; DiskError.
        """
        ...

    def write(self, data: bytes | memoryview) -> None:
        """Write all of data at the end of the file. Raises: StorageFullError."""
        ...

    def truncate(self, size: int) -> None:
        """Set the size; growing leaves a hole without disk space.

        Never call it on a mapped file.
        """
        ...

    def allocate(self, offset: int, length: int) -> None:
        """Allocate the disk space of a range now, so that no store through a map finds a full disk.

        The contents and the size do not change.

        Raises: StorageFullError; UsageError for a range that extends past the end of the file.
        """
        ...

    def data_end(self, offset: int) -> int:
        """Return the end of the last data at or after offset, or offset if there is none.

        The rest of the file is a hole. Data may be zeros too.
        """
        ...

    def map(self, *, writable: bool) -> memoryview:
        """Map the whole file, shared: every other map and `read_at` see the bytes that are stored
        through it.

        The map outlives close() and removal of the file, until its last view is released.

        Raises: UsageError for an empty file.
        """
        ...

    def sync(self) -> None:
        """Make contents and size durable, including what was stored through maps.

        After an error, never call it again.
        """
        ...

    def park(self, path: PurePath) -> None:
        """Close the descriptor until the file is used again; path is the current name. Maps stay
        valid.

        Call it only while no other thread uses the file.
        """
        ...

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Lock(Protocol):
    """A lock on a file, released when the process that holds it ends."""

    def release(self) -> None:
        """Release the lock; a second call does nothing."""
        ...


class FileSystem(Protocol):
    """Names and directories."""

    def create(self, path: PurePath) -> File:
        """Create an empty file and open it for writing. Raises: ExistsError, NotFoundError."""
        ...

    def open(self, path: PurePath, *, writable: bool) -> File:
        """Open a regular file; never wait on a FIFO or device.

        Raises: NotFoundError; UsageError for a symbolic link or anything else that is not a regular
        file.
        """
        ...

    def read(self, path: PurePath) -> bytes:
        """Return the contents of a regular file. Raises: the errors of `open`."""
        ...

    def exists(self, path: PurePath) -> bool:
        """Return whether the name exists, for a file or anything else."""
        ...

    def list(self, path: PurePath) -> list[DirectoryEntry]:
        """Return the entries of a directory, sorted by name. Raises: NotFoundError."""
        ...

    def scan_entries(self, path: PurePath) -> Iterator[DirectoryEntry]:
        """Yield the entries of a directory one by one, in any order: like `scan`, with sizes."""
        ...

    def scan(self, path: PurePath) -> Iterator[Name]:
        """Yield the names in a directory one by one, in any order, without a stat of each file.

        A name that is added or removed meanwhile may be yielded or not. Raises: NotFoundError, when
        the first name is requested.
        """
        ...

    def make_directory(self, path: PurePath) -> None:
        """Create one directory; its parent must exist. Raises: ExistsError, NotFoundError."""
        ...

    def rename(self, source: PurePath, target: PurePath) -> None:
        """Rename source to target; a file with that name is replaced. Raises: NotFoundError."""
        ...

    def link(self, source: PurePath, target: PurePath) -> None:
        """Add a second name for source. Raises: NotFoundError, ExistsError when the name exists."""
        ...

    def symlink(self, target: PurePath, path: PurePath) -> None:
        """Create path as a symbolic link to target, which is not checked and need not exist.

        Raises: ExistsError when the name exists, NotFoundError.
        """
        ...

    def readlink(self, path: PurePath) -> PurePath:
        """Return the target of a symbolic link, unchanged.

        Raises: NotFoundError; UsageError if path is not a symbolic link.
        """
        ...

    def remove(self, path: PurePath) -> None:
        """Remove a file or symbolic link. Raises: NotFoundError."""
        ...

    def remove_directory(self, path: PurePath) -> None:
        """Remove an empty directory. Raises: NotFoundError."""
        ...

    def sync_directory(self, path: PurePath) -> None:
        """Make the names in this directory durable. Raises: NotFoundError."""
        ...

    def lock(self, path: PurePath, *, shared: bool = False, wait: bool = False) -> Lock:
        """Take the lock of this file, alone or shared; create the file if it does not exist.

        Many may share a lock; while it is shared, none has it alone. With `wait`, the call returns
        when the lock is free.

        Raises: LockedError at once, without `wait`, when the lock is held otherwise, by this
        process or another one.
        """
        ...

    def free_bytes(self, path: PurePath) -> int:
        """Return the space on the disk of this directory that an ordinary user may still use."""
        ...

    def disk_bytes(self, path: PurePath) -> int:
        """Return the total size of the disk of this directory."""
        ...
