"""The one way to the disk: what a file system and an open file can do.

Invariants that every implementation keeps:
- an error means that nothing visible changed, but for a write, which may have stored the first
  part of its data, and for `sync` and `sync_directory`, after which nothing is known;
- what was written is durable after `File.sync`; a name (created, renamed, linked, removed) after
  `sync_directory` of the directory that holds it, of both directories when it moved;
- OSError never leaves: it becomes StorageFullError, OverloadedError (no descriptor is left),
  NotFoundError, ExistsError, LockedError, UsageError (not a regular file) or DiskError.

Any thread may call; two that use one range of a file, or one name, arrange it between them.
Who calls decides the order; `publish.py` holds the orders that are used more than once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath
from types import TracebackType
from typing import NamedTuple, Protocol, Self


class EntryKind(Enum):
    """What a directory entry is, looked at without following it."""

    FILE = "file"
    DIRECTORY = "directory"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One name in a directory; both sizes are 0 for what is not a file.

    allocated_bytes is what the file takes on the disk, which for a sparse one is little.
    """

    name: str
    kind: EntryKind
    size_bytes: int
    allocated_bytes: int


class Name(NamedTuple):
    """One name in a directory, of a file that was not looked at."""

    name: str
    kind: EntryKind


class File(Protocol):
    """An open regular file; every call but `close` raises ClosedError once it is closed."""

    @property
    def path(self) -> PurePath:
        """The name it was opened by, which may have changed since."""
        ...

    def size(self) -> int: ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Read up to length bytes; fewer only at the end of the file."""
        ...

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        """Write all of data at offset, growing the file if need be. Raises: StorageFullError."""
        ...

    def write(self, data: bytes | memoryview) -> None:
        """Write all of data at the end of the file. Raises: StorageFullError."""
        ...

    def truncate(self, size: int) -> None:
        """Set the size; growing leaves a hole that takes no space. Never change a mapped file."""
        ...

    def allocate(self, offset: int, length: int) -> None:
        """Take the disk space of a range now, so that no store to a map meets a full disk.

        The contents and the size stay.

        Raises: StorageFullError; UsageError for a range that reaches past the end of the file.
        """
        ...

    def data_end(self, offset: int) -> int:
        """Return where the last data at or behind offset ends, offset where there is none; from
        there on the file is a hole. Data may be zeros too.
        """
        ...

    def map(self, *, writable: bool) -> memoryview:
        """Map the whole file, shared; stores are seen by every other map and by read_at.

        The map outlives close() and removal of the file, until the last view of it is gone.

        Raises: UsageError for an empty file.
        """
        ...

    def sync(self) -> None:
        """Make contents and size durable, stores through maps included.

        After an error, never call it again.
        """
        ...

    def park(self, path: PurePath) -> None:
        """Give the descriptor back until the file is used again; path is its name now. Maps stay.

        Only while no other thread uses the file.
        """
        ...

    def close(self) -> None:
        """Give the file back; a second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class Lock(Protocol):
    """An exclusive lock on a file, gone with the process that holds it."""

    def release(self) -> None:
        """Let others take it; a second call does nothing."""
        ...


class FileSystem(Protocol):
    """Names and directories."""

    def create(self, path: PurePath) -> File:
        """Create an empty file and open it for writing. Raises: ExistsError, NotFoundError."""
        ...

    def open(self, path: PurePath, *, writable: bool) -> File:
        """Open a regular file, never waiting on a FIFO or device.

        Raises: NotFoundError; UsageError for a symbolic link and what else is not a regular file.
        """
        ...

    def read(self, path: PurePath) -> bytes:
        """Return the contents of a regular file. Raises: what `open` raises."""
        ...

    def exists(self, path: PurePath) -> bool:
        """Tell whether the name is taken, by whatever it is."""
        ...

    def list(self, path: PurePath) -> list[Entry]:
        """Return the entries of a directory, sorted by name. Raises: NotFoundError."""
        ...

    def scan_entries(self, path: PurePath) -> Iterator[Entry]:
        """Yield the entries of a directory one by one, in any order; as `scan`, with sizes."""
        ...

    def scan(self, path: PurePath) -> Iterator[Name]:
        """Yield the names in a directory one by one, in any order, without looking at the files.

        A name that comes or goes meanwhile may be yielded or not. Raises: NotFoundError, when the
        first is asked for.
        """
        ...

    def make_directory(self, path: PurePath) -> None:
        """Create one directory; its parent exists. Raises: ExistsError, NotFoundError."""
        ...

    def rename(self, source: PurePath, target: PurePath) -> None:
        """Give source the name target, replacing a file that had it. Raises: NotFoundError."""
        ...

    def link(self, source: PurePath, target: PurePath) -> None:
        """Give source a second name. Raises: NotFoundError, ExistsError when the name is taken."""
        ...

    def symlink(self, target: PurePath, path: PurePath) -> None:
        """Make path a symbolic link with this target, which need not exist and is not looked at.

        Raises: ExistsError when the name is taken, NotFoundError.
        """
        ...

    def readlink(self, path: PurePath) -> PurePath:
        """Return the target of a symbolic link as it was given.

        Raises: NotFoundError; UsageError for what is no symbolic link.
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

    def lock(self, path: PurePath) -> Lock:
        """Take the exclusive lock of this file, creating it.

        Raises: LockedError at once when it is held, by this process or another one.
        """
        ...

    def free_bytes(self, path: PurePath) -> int:
        """Return the space that an ordinary user may still take on the disk of this directory."""
        ...

    def disk_bytes(self, path: PurePath) -> int:
        """Return the size of the disk of this directory, used or not."""
        ...
