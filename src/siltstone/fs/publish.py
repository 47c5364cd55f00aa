"""Sequences of file operations that are used more than once.

Each sequence is safe at every step: a power cut leaves the whole old state or the whole new one,
and repeating the sequence completes it. Only the process that holds the lock may sweep and remove.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from itertools import count
from pathlib import PurePath
from typing import Final

from siltstone.errors import DiskError, ExistsError, SiltstoneError
from siltstone.fs.api import EntryKind, FileSystem
from siltstone.fs.translate import failure

TEMPORARY_SUFFIX: Final = ".tmp"
REASON_SUFFIX: Final = ".reason.txt"
FOREIGN_SUFFIX: Final = ".foreign"


def replace_file(fs: FileSystem, path: PurePath, data: bytes) -> None:
    """Replace the contents of path: durable when this returns, and never visible in part.

    Raises: StorageFullError; path is then unchanged.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    if fs.exists(temporary):
        fs.remove(temporary)
    try:
        with fs.create(temporary) as file:
            file.write(data)
            file.sync()
    except SiltstoneError:
        # Free the space at once if the disk is full. If the removal fails, a later sweep removes
        # the file.
        with suppress(SiltstoneError):
            fs.remove(temporary)
        raise
    fs.rename(temporary, path)
    fs.sync_directory(path.parent)


def sync_or_defer(fs: FileSystem, directory: PurePath) -> None:
    """Sync a directory that the caller can sync later as well: nothing depends on it yet.

    Raises: OverloadedError without a free descriptor, because then no sync was tried; DiskError.
    """
    try:
        fs.sync_directory(directory)
    except DiskError as exc:
        if exc.errno in (errno.EMFILE, errno.ENFILE):
            raise failure(exc.errno, "open", directory) from exc
        raise


def create_directories(fs: FileSystem, path: PurePath) -> None:
    """Create path and its missing parent directories, and make their names durable."""
    missing = []
    while not fs.exists(path):
        missing.append(path)
        path = path.parent
    # A killed process may have created this directory without syncing its name. The directories
    # above it were synced before it was created. Without permission to open the parent, this
    # process cannot have created it.
    try:
        fs.sync_directory(path.parent)
    except DiskError as exc:
        if exc.errno not in (errno.EACCES, errno.EPERM):
            raise
    for directory in reversed(missing):
        # Two processes may start at the same time. The lock is in the directory that both create.
        with suppress(ExistsError):
            fs.make_directory(directory)
        fs.sync_directory(directory.parent)


def move_aside(fs: FileSystem, path: PurePath) -> None:
    """Rename anything that exists at a path that this store needs, to a free name beside it.

    Nothing is lost. The caller that then creates the path syncs the directory.
    """
    if fs.exists(path):
        fs.rename(path, free_name(fs, path.parent, path.name + FOREIGN_SUFFIX))


def remove_file(fs: FileSystem, path: PurePath) -> None:
    """Remove a file and sync its directory. Raises: NotFoundError."""
    fs.remove(path)
    fs.sync_directory(path.parent)


def remove_tree(fs: FileSystem, path: PurePath) -> None:
    """Remove a directory and everything below it, durably; this needs no space.

    A crash leaves some of the files, each whole. Removing the tree again removes the rest.

    Raises: NotFoundError.
    """
    _remove_below(fs, path)
    fs.sync_directory(path.parent)


def _remove_below(fs: FileSystem, path: PurePath) -> None:
    for entry in fs.list(path):
        if entry.kind is EntryKind.DIRECTORY:
            _remove_below(fs, path / entry.name)
        else:
            fs.remove(path / entry.name)
    fs.remove_directory(path)


def sweep_temporaries(fs: FileSystem, directory: PurePath) -> list[str]:
    """Remove the temporary files that a crashed `replace_file` left, and return their names.

    This also syncs the directory: files that a killed process renamed here are durable afterwards,
    and new data may depend on them.
    """
    names = [
        entry.name
        for entry in fs.list(directory)
        if entry.kind is EntryKind.FILE and entry.name.endswith(TEMPORARY_SUFFIX)
    ]
    for name in names:
        fs.remove(directory / name)
    fs.sync_directory(directory)
    return names


def quarantine_file(
    fs: FileSystem, path: PurePath, quarantine_dir: PurePath, reason: str
) -> PurePath:
    """Move a file into quarantine, with its reason beside it, and return its new path.

    At every moment the file has its old name, its new name or both: it is never lost. The reason is
    written first, so a file in quarantine always has one.
    """
    create_directories(fs, quarantine_dir)
    target = free_name(fs, quarantine_dir, path.name)
    replace_file(fs, target.with_name(target.name + REASON_SUFFIX), f"{reason}\n".encode())
    # Link and remove instead of rename: after a power cut, the two directories may not agree about
    # a rename.
    fs.link(path, target)
    fs.sync_directory(quarantine_dir)
    remove_file(fs, path)
    return target


def free_name(fs: FileSystem, directory: PurePath, name: str) -> PurePath:
    """Return the first of name, name.1, name.2, … that has neither a file nor a reason file."""
    paths = (directory / (f"{name}.{number}" if number else name) for number in count())
    return next(
        path
        for path in paths
        if not fs.exists(path) and not fs.exists(path.with_name(path.name + REASON_SUFFIX))
    )
