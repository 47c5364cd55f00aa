"""A file system in memory that simulates power cuts.

It keeps the promises of `api.py` and no more: unsynced data is lost in `crash_clone()`, and
survives in part in `crash_clone(rng)`. It is stricter than most disks: a file that moved to another
directory is lost if only the directory that it left was synced. No path may pass through a symbolic
link.

Space is counted in pages. `operations_left` cuts the power before a chosen operation. `operations`
lists the successful operations, for tests of their order. One lock makes operations atomic.
"""

from __future__ import annotations

import copy
import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import PurePath
from random import Random
from types import TracebackType
from typing import Self

from siltstone.errors import ClosedError, DiskError, NotFoundError, UsageError
from siltstone.fs.api import DirectoryEntry, EntryKind, Name
from siltstone.fs.nodes import (
    DirectoryNode,
    FileNode,
    LinkNode,
    Node,
    files_below,
    surviving_tree,
)
from siltstone.fs.translate import failure, locked, not_a_link, not_regular


class PowerCut(Exception):
    """The power was cut: every later operation raises this error."""


class MemoryFile:
    """An open file of a MemoryFileSystem."""

    def __init__(
        self, fs: MemoryFileSystem, node: FileNode, path: PurePath, *, writable: bool
    ) -> None:
        self._fs = fs
        self._node = node
        self._path = path
        self._writable = writable
        self._closed = False

    @property
    def path(self) -> PurePath:
        return self._path

    def _check(self, *, to_write: bool = False) -> None:
        if self._closed:
            raise ClosedError(f"the file is closed: path={self._path}")
        if to_write and not self._writable:
            raise UsageError(f"the file was opened for reading only: path={self._path}")

    def size(self) -> int:
        with self._fs.reading():
            self._check()
            return len(self._node.contents)

    def read_at(self, offset: int, length: int) -> bytes:
        with self._fs.reading():
            self._check()
            return bytes(self._node.contents[offset : offset + length])

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        with self._fs.changing("write_at", self._path):
            self._write(offset, data)

    def write_durably(self, offset: int, data: bytes) -> None:
        # Two operations: a power cut between them may keep the data or not.
        self.write_at(offset, data)
        with self._fs.changing("sync", self._path):
            self._check()
            self._node.sync_range(offset, len(data))

    def write(self, data: bytes | memoryview) -> None:
        with self._fs.changing("write", self._path):
            self._write(len(self._node.contents), data)

    def _write(self, offset: int, data: bytes | memoryview) -> None:
        self._check(to_write=True)
        written = bytes(data)
        if not written:
            return
        self._fs.take_space(self._node, self._path, offset, len(written))
        end = offset + len(written)
        if end > len(self._node.contents):
            self._node.resize(end)
        self._node.contents[offset:end] = written

    def truncate(self, size: int) -> None:
        with self._fs.changing("truncate", self._path):
            self._check(to_write=True)
            self._node.resize(size)

    def allocate(self, offset: int, length: int) -> None:
        with self._fs.changing("allocate", self._path):
            self._check(to_write=True)
            if offset + length > len(self._node.contents):
                raise UsageError(
                    f"cannot allocate after the end of the file: path={self._path} "
                    f"end={offset + length}"
                )
            self._fs.take_space(self._node, self._path, offset, length)

    def data_end(self, offset: int) -> int:
        with self._fs.reading():
            self._check()
            end = (max(self._node.pages, default=-1) + 1) * self._node.page_bytes
            return max(offset, min(end, len(self._node.contents)))

    def map(self, *, writable: bool) -> memoryview:
        with self._fs.reading():
            self._check(to_write=writable)
            if not self._node.contents:
                raise UsageError(f"an empty file cannot be mapped: path={self._path}")
            view = memoryview(self._node.contents)
            return view if writable else view.toreadonly()

    def sync(self) -> None:
        with self._fs.changing("sync", self._path):
            self._check()
            self._node.sync()

    def park(self, path: PurePath) -> None:
        with self._fs.reading():
            self._check()
            assert self._fs.exists(path), f"a parked file has lost its name: {path=}"

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class MemoryLock:
    """A lock of a MemoryFileSystem."""

    def __init__(self, released: Callable[[], None]) -> None:
        self._released: Callable[[], None] | None = released

    def release(self) -> None:
        released, self._released = self._released, None
        if released is not None:
            released()


class MemoryFileSystem:
    """Directories and files in memory, below a root that always exists."""

    def __init__(self, *, page_bytes: int = 512, capacity_bytes: int = 1 << 60) -> None:
        self.page_bytes = page_bytes
        self.capacity_bytes = capacity_bytes
        self.operations_left: int | None = None
        self.operations: list[str] = []
        self._root = DirectoryNode()
        # The locked files; True for each holder that shares its lock.
        self._locked: dict[FileNode, list[bool]] = {}
        self._power_is_cut = False
        self._mutex = threading.RLock()
        self._unlocked = threading.Condition(self._mutex)

    # What survives

    def crash_clone(self, rng: Random | None = None, *, in_order: bool = True) -> MemoryFileSystem:
        """Return the file system as it would be after a power cut now.

        Without rng only synced data survives. With rng a random part of the rest survives too: of
        the operations of each directory the first ones, or any of them when in_order is False.
        """
        with self._mutex:
            return self._with_root(surviving_tree(self._root, rng, in_order=in_order))

    def kill_clone(self) -> MemoryFileSystem:
        """Return the file system that the next process finds when this one is killed.

        All written data is there; a power cut may still remove what was not synced.
        """
        with self._mutex:
            return self._with_root(copy.deepcopy(self._root))

    def _with_root(self, root: DirectoryNode) -> MemoryFileSystem:
        clone = MemoryFileSystem(page_bytes=self.page_bytes, capacity_bytes=self.capacity_bytes)
        clone._root = root
        return clone

    # Operations and space

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock for an operation that changes nothing. Raises: PowerCut."""
        with self._mutex:
            if self._power_is_cut:
                raise PowerCut
            yield

    @contextmanager
    def changing(self, operation: str, *paths: PurePath) -> Iterator[None]:
        """Hold the lock for an operation that is counted and recorded. Raises: PowerCut."""
        with self.reading():
            if self.operations_left is not None:
                if self.operations_left == 0:
                    self._power_is_cut = True
                    raise PowerCut
                self.operations_left -= 1
            yield
            self.operations.append(" ".join((operation, *map(str, paths))))

    def take_space(self, node: FileNode, path: PurePath, offset: int, length: int) -> None:
        """Allocate a range of a file, all of it or nothing. Raises: StorageFullError."""
        missing = node.missing_pages(offset, length)
        needed_bytes = len(missing) * self.page_bytes
        if needed_bytes > self._free_bytes():
            raise failure(errno.ENOSPC, "allocate", path, needed_bytes=needed_bytes)
        node.take(missing)

    def _free_bytes(self) -> int:
        used_pages = sum(len(node.pages) for node in files_below(self._root))
        return self.capacity_bytes - used_pages * self.page_bytes

    def free_bytes(self, path: PurePath) -> int:
        with self.reading():
            self._directory(path, "free_bytes")
            return self._free_bytes()

    def disk_bytes(self, path: PurePath) -> int:
        with self.reading():
            self._directory(path, "disk_bytes")
            return self.capacity_bytes

    # Names

    def _directory(self, path: PurePath, operation: str) -> DirectoryNode:
        node: Node = self._root
        for name in path.parts[1:] if path.anchor else path.parts:
            if not isinstance(node, DirectoryNode):
                raise failure(errno.ENOTDIR, operation, path)
            if name not in node.entries or isinstance(node.entries[name], LinkNode):
                raise failure(errno.ENOENT, operation, path)
            node = node.entries[name]
        if not isinstance(node, DirectoryNode):
            raise failure(errno.ENOTDIR, operation, path)
        return node

    def _find(self, path: PurePath, operation: str) -> tuple[DirectoryNode, Node]:
        """Return the directory that holds path, and the node at path."""
        parent = self._directory(path.parent, operation)
        if not path.name:
            return parent, parent
        if path.name not in parent.entries:
            raise failure(errno.ENOENT, operation, path)
        return parent, parent.entries[path.name]

    def _add(self, path: PurePath, node: Node, operation: str) -> None:
        parent = self._directory(path.parent, operation)
        if path.name in parent.entries or not path.name:
            raise failure(errno.EEXIST, operation, path)
        parent.change({path.name: node})

    def create(self, path: PurePath) -> MemoryFile:
        with self.changing("create", path):
            node = FileNode(self.page_bytes)
            self._add(path, node, "create")
            return MemoryFile(self, node, path, writable=True)

    def open(self, path: PurePath, *, writable: bool) -> MemoryFile:
        with self.reading():
            _, node = self._find(path, "open")
            if not isinstance(node, FileNode):
                raise not_regular(path)
            return MemoryFile(self, node, path, writable=writable)

    def read(self, path: PurePath) -> bytes:
        with self.open(path, writable=False) as file:
            return file.read_at(0, file.size())

    def exists(self, path: PurePath) -> bool:
        with self.reading():
            try:
                self._find(path, "exists")
            except (NotFoundError, DiskError):
                return False
            return True

    def make_directory(self, path: PurePath) -> None:
        with self.changing("make_directory", path):
            self._add(path, DirectoryNode(), "make_directory")

    def rename(self, source: PurePath, target: PurePath) -> None:
        with self.changing("rename", source, target):
            source_parent = self._directory(source.parent, "rename")
            target_parent = self._directory(target.parent, "rename")
            _, node = self._find(source, "rename")
            replaced = target_parent.entries.get(target.name)
            if replaced is node:
                return  # rename(2) does nothing if both are names of one file.
            if isinstance(node, DirectoryNode) and source in target.parents:
                raise failure(errno.EINVAL, "rename", source)
            if target in source.parents:
                raise failure(errno.ENOTEMPTY, "rename", source)
            if replaced is not None:
                _check_replaceable(source, node, replaced)
            if source_parent is target_parent:
                source_parent.change({source.name: None, target.name: node})
            else:
                target_parent.change({target.name: node})
                source_parent.change({source.name: None})

    def link(self, source: PurePath, target: PurePath) -> None:
        with self.changing("link", source, target):
            _, node = self._find(source, "link")
            taken = target.name in self._directory(target.parent, "link").entries
            if isinstance(node, DirectoryNode) and not taken:
                raise failure(errno.EPERM, "link", source)
            self._add(target, node, "link")

    def symlink(self, target: PurePath, path: PurePath) -> None:
        with self.changing("symlink", path):
            self._add(path, LinkNode(target), "symlink")

    def readlink(self, path: PurePath) -> PurePath:
        with self.reading():
            _, node = self._find(path, "readlink")
            if not isinstance(node, LinkNode):
                raise not_a_link(path)
            return node.target

    def remove(self, path: PurePath) -> None:
        with self.changing("remove", path):
            parent, node = self._find(path, "remove")
            if isinstance(node, DirectoryNode):
                raise failure(errno.EISDIR, "remove", path)
            parent.change({path.name: None})

    def remove_directory(self, path: PurePath) -> None:
        with self.changing("remove_directory", path):
            parent, node = self._find(path, "remove_directory")
            if not isinstance(node, DirectoryNode):
                raise failure(errno.ENOTDIR, "remove_directory", path)
            if node.entries:
                raise failure(errno.ENOTEMPTY, "remove_directory", path)
            parent.change({path.name: None})

    def sync_directory(self, path: PurePath) -> None:
        with self.changing("sync_directory", path):
            self._directory(path, "sync_directory").sync()

    def lock(self, path: PurePath, *, shared: bool = False, wait: bool = False) -> MemoryLock:
        with self.reading():
            if not self.exists(path):
                self.create(path).close()
            _, node = self._find(path, "lock")
            if not isinstance(node, FileNode):
                raise not_regular(path)
            holders = self._locked.setdefault(node, [])
            while holders and not (shared and all(holders)):
                if not wait:
                    raise locked(path)
                self._unlocked.wait()
            holders.append(shared)
            return MemoryLock(partial(self._unlock, node))

    def _unlock(self, node: FileNode) -> None:
        with self._unlocked:
            # All holders of a lock are of one kind.
            self._locked[node].pop()
            self._unlocked.notify_all()

    def list(self, path: PurePath) -> list[DirectoryEntry]:
        with self.reading():
            entries = self._directory(path, "list").entries
            return [_entry(name, entries[name]) for name in sorted(entries)]

    def scan_entries(self, path: PurePath) -> Iterator[DirectoryEntry]:
        yield from self.list(path)

    def scan(self, path: PurePath) -> Iterator[Name]:
        for entry in self.list(path):
            yield Name(entry.name, entry.kind)


def _entry(name: str, node: Node) -> DirectoryEntry:
    if isinstance(node, DirectoryNode):
        return DirectoryEntry(name=name, kind=EntryKind.DIRECTORY, size_bytes=0, allocated_bytes=0)
    if isinstance(node, LinkNode):
        return DirectoryEntry(name=name, kind=EntryKind.OTHER, size_bytes=0, allocated_bytes=0)
    return DirectoryEntry(
        name=name,
        kind=EntryKind.FILE,
        size_bytes=len(node.contents),
        allocated_bytes=len(node.pages) * node.page_bytes,
    )


def _check_replaceable(source: PurePath, node: Node, replaced: Node) -> None:
    """Raise the error of rename(2) if node cannot replace the node at the target."""
    if not isinstance(replaced, DirectoryNode):
        if isinstance(node, DirectoryNode):
            raise failure(errno.ENOTDIR, "rename", source)
    elif not isinstance(node, DirectoryNode):
        raise failure(errno.EISDIR, "rename", source)
    elif replaced.entries:
        raise failure(errno.ENOTEMPTY, "rename", source)
