"""The orders of operations that are used more than once.

Each is safe at every step: a power cut leaves the old state or the new one, whole, and doing it
again finishes it. Sweeping and removing belong to the process that holds the lock.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from itertools import count
from pathlib import PurePath
from typing import Final

from siltstone.errors import DiskError, ExistsError, SiltstoneError
from siltstone.fs.api import EntryKind, FileSystem

TEMPORARY_SUFFIX: Final = ".tmp"
REASON_SUFFIX: Final = ".reason.txt"
FOREIGN_SUFFIX: Final = ".foreign"


def replace_file(fs: FileSystem, path: PurePath, data: bytes) -> None:
    """Give path these contents: durable when this returns, and never seen in part.

    Raises: StorageFullError, and then path is as it was.
    """
    temporary = path.with_name(path.name + TEMPORARY_SUFFIX)
    if fs.exists(temporary):
        fs.remove(temporary)
    try:
        with fs.create(temporary) as file:
            file.write(data)
            file.sync()
    except SiltstoneError:
        # A full disk gets its space back at once; what cannot be removed now is swept later.
        with suppress(SiltstoneError):
            fs.remove(temporary)
        raise
    fs.rename(temporary, path)
    fs.sync_directory(path.parent)


def create_directories(fs: FileSystem, path: PurePath) -> None:
    """Create path and the directories above it that are missing, and make their names durable."""
    missing = []
    while not fs.exists(path):
        missing.append(path)
        path = path.parent
    # A killed process may have created this one and not synced its name; those above it were
    # synced before it was created. Where we may not look, others created it.
    try:
        fs.sync_directory(path.parent)
    except DiskError as exc:
        if exc.errno not in (errno.EACCES, errno.EPERM):
            raise
    for directory in reversed(missing):
        # Two processes may start at once, and the lock is in the directory that both create.
        with suppress(ExistsError):
            fs.make_directory(directory)
        fs.sync_directory(directory.parent)


def move_aside(fs: FileSystem, path: PurePath) -> None:
    """Give whatever stands under a name that we need another name beside it; nothing is lost. Who
    then takes the name syncs the directory.
    """
    if fs.exists(path):
        fs.rename(path, free_name(fs, path.parent, path.name + FOREIGN_SUFFIX))


def remove_file(fs: FileSystem, path: PurePath) -> None:
    """Remove a file for good. Raises: NotFoundError."""
    fs.remove(path)
    fs.sync_directory(path.parent)


def remove_tree(fs: FileSystem, path: PurePath) -> None:
    """Remove a directory and all below it for good; needs no space. Raises: NotFoundError.

    A crash leaves some of the files, each whole; removing the tree again removes the rest.
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
    """Remove what a crashed `replace_file` left, and return the names.

    What a killed process renamed here is durable afterwards, so that new data may build on it.
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
    """Move a file into quarantine, its reason beside it, and return its new path.

    The file has one name or both at every moment: it is never lost. In quarantine it never
    stands without its reason, so the reason is written first.
    """
    create_directories(fs, quarantine_dir)
    target = free_name(fs, quarantine_dir, path.name)
    replace_file(fs, target.with_name(target.name + REASON_SUFFIX), f"{reason}\n".encode())
    # Link and remove, not rename: nothing promises that both directories keep a rename together.
    fs.link(path, target)
    fs.sync_directory(quarantine_dir)
    remove_file(fs, path)
    return target


def free_name(fs: FileSystem, directory: PurePath, name: str) -> PurePath:
    """Return name, or name.1, name.2, … : the first that has neither a file nor a reason."""
    paths = (directory / (f"{name}.{number}" if number else name) for number in count())
    return next(
        path
        for path in paths
        if not fs.exists(path) and not fs.exists(path.with_name(path.name + REASON_SUFFIX))
    )
