"""Drafts: data that is written, synced and then linked to the name of an entry.

The order for each entry is: write a temporary file, sync it through the descriptor that wrote it,
link it to its name, sync the directory of names, remove the temporary name. Until the last step the
data also has its temporary name, so it can be kept if a step fails.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import PurePath
from typing import Final, Protocol

from crc32c import crc32c

from siltstone.errors import DiskError, ExistsError, OverloadedError, SiltstoneError
from siltstone.fs.api import File, FileSystem
from siltstone.fs.publish import free_name
from siltstone.spool.contents import PROOF_BYTES, Source, chunks_of, proof
from siltstone.spool.errors import CleanupFailedError

# The errors of link(2) on a file system without hard links.
NO_LINKS: Final = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class Temporary(Protocol):
    """A temporary file with data that is not stored yet; several entries may share it."""

    @property
    def file(self) -> File: ...

    @property
    def path(self) -> PurePath: ...


@dataclass(frozen=True, slots=True)
class Kept:
    """The place of data that could not be stored, and whether the file is permanent."""

    path: PurePath
    offset: int
    length: int
    _: KW_ONLY
    stays: bool


class Draft:
    """A temporary file with the data of one entry; open until it is synced."""

    __slots__ = ("file", "length", "path")

    def __init__(self, file: File) -> None:
        self.file = file
        self.path = file.path
        self.length = 0

    @property
    def size_bytes(self) -> int:
        """The size of the file, with its proof."""
        return self.length + PROOF_BYTES

    def sync(self) -> None:
        """Make the data durable and close the file; an error of the close is raised too."""
        self.file.sync()
        self.file.close()


def write_draft(
    fs: FileSystem, path: PurePath, source: Source, *, room_bytes: int | None = None
) -> Draft:
    """Write data and their proof to a new file; remove the file on an error.

    Raises: StorageFullError; OverloadedError beyond room_bytes; CleanupFailedError; any error of
    reading the source.
    """
    draft = Draft(fs.create(path))
    checksum = 0
    try:
        for chunk in chunks_of(source):
            if room_bytes is not None and draft.size_bytes + len(chunk) > room_bytes:
                raise OverloadedError(f"the spool is full: room_bytes={room_bytes}")
            draft.file.write_at(draft.length, chunk)
            checksum = crc32c(chunk, checksum)
            draft.length += len(chunk)
        draft.file.write_at(draft.length, proof(draft.length, checksum))
    except BaseException as exc:
        remove_drafts(fs, [draft], exc)
        raise
    return draft


def remove_drafts(fs: FileSystem, drafts: Sequence[Temporary], error: BaseException) -> None:
    """Remove the files that were written before an error. Raises: CleanupFailedError."""
    failed: CleanupFailedError | None = None
    for draft in drafts:
        try:
            draft.file.close()
            fs.remove(draft.path)
        except SiltstoneError as exc:
            failed = failed or CleanupFailedError(draft.path, exc)
    if failed is not None:
        raise failed from error


def keep_draft(fs: FileSystem, draft: Draft, directory: PurePath) -> Kept:
    """Move the data, without their proof, to a place that is not swept."""
    with suppress(SiltstoneError):
        draft.file.close()
    with suppress(SiltstoneError), fs.open(draft.path, writable=True) as file:
        file.truncate(draft.length)
    path, stays = move_aside(fs, draft.path, directory, draft.path.stem)
    return Kept(path, 0, draft.length, stays=stays)


def move_aside(
    fs: FileSystem, path: PurePath, directory: PurePath, name: str
) -> tuple[PurePath, bool]:
    """Move a file to a place that is not swept; return its path, and whether it is permanent.

    If the file cannot be moved into the directory, it gets another name in its own directory.
    """
    for place in (directory, path.parent):
        with suppress(SiltstoneError):
            target = free_name(fs, place, name)
            fs.rename(path, target)
            with suppress(SiltstoneError):
                fs.sync_directory(place)
            return target, True
    return path, False


def give_name(fs: FileSystem, path: PurePath, target: PurePath) -> None:
    """Link a file to a second name, or rename it if there are no hard links.

    Raises: ExistsError: an existing file is never replaced.
    """
    try:
        fs.link(path, target)
    except DiskError as exc:
        if exc.errno not in NO_LINKS:
            raise
        # The lock of the spool prevents a race between the two calls.
        if fs.exists(target):
            raise ExistsError(f"the file exists already: path={target}") from exc
        fs.rename(path, target)


def take_name_back(fs: FileSystem, path: PurePath, target: PurePath) -> None:
    """Undo `give_name`: leave the file with its first name only."""
    if fs.exists(path):
        fs.remove(target)
    else:
        fs.rename(target, path)
