"""Disk space for a key-value database, kept free so that RocksDB never meets a full disk.

RocksDB writes each change to its log, and later writes its memory to tables. A full disk at that
moment would break the database, so writes are refused earlier: `floor_bytes` must stay free, plus
the bytes that must still be written to tables. If space gets low, the tables are written early,
which frees the log. A database that is needed to empty a full disk also has a reserve: a file that
is made smaller when all other space is used. Its last sixteenth is kept for opening the database:
the file is removed if the database does not open without that space, and created again afterwards.
The few bytes that a process writes at its start need less than `floor_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import PurePath
from threading import Lock
from typing import Final

from siltstone.errors import NotFoundError, SiltstoneError, StorageFullError
from siltstone.fs.api import FileSystem

RESERVE: Final = "RESERVE"
_MIB: Final = 1024 * 1024
# Less than this is not worth a table of its own.
_WRITE_BACK_BYTES: Final = _MIB
# This part of the reserve is kept for opening the database. RocksDB needs about 256 KiB.
_OPENING_SHARE: Final = 16
# With a reserve, this much may be written at the start when less than `floor_bytes` is free, and
# this much must stay free then.
_START_BYTES: Final = 256 * 1024
_START_FLOOR_BYTES: Final = 64 * 1024
# The reserve is created again when the disk has this many times its size free.
_AMPLE: Final = 4


class DiskRoom:
    """Decides whether data may be written. From any thread."""

    def __init__(
        self, fs: FileSystem, directory: PurePath, *, floor_bytes: int, reserve_bytes: int = 0
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._floor_bytes = floor_bytes
        self._reserve_bytes = reserve_bytes
        # After a crash the file may exist without its space.
        allocated = [entry.allocated_bytes for entry in fs.list(directory) if entry.name == RESERVE]
        self._exists = bool(allocated)
        self._is_kept = self._exists and allocated[0] >= reserve_bytes
        self._opening_bytes = reserve_bytes // _OPENING_SHARE
        # Whether the reserve has more than the part for opening.
        self._has_more = self._exists and allocated[0] > self._opening_bytes
        self._start_bytes = _START_BYTES if reserve_bytes else 0
        # The free space that the disk must have before the reserve is created.
        self._ample_bytes = _AMPLE * reserve_bytes
        self._unwritten_bytes = 0
        self._lock = Lock()
        # Writes the memory to tables; set when the database is open.
        self.write_back: Callable[[], None] | None = None

    def lacks(self, needed_bytes: int) -> SiltstoneError | None:
        """Return the error if this number of bytes cannot be written, else None."""
        try:
            with self._lock:
                if self._has(needed_bytes):
                    self._unwritten_bytes += needed_bytes
                    return None
        except SiltstoneError as exc:
            return exc
        return StorageFullError(self._directory, needed_bytes=needed_bytes + self._floor_bytes)

    def keep_reserve(self) -> None:
        """Create the reserve, if the disk has enough space.

        Errors are ignored: the caller has space for its own data. After an error, the next attempt
        waits until more space is free, because a quota would refuse every attempt.
        """
        if self._is_kept or not self._reserve_bytes:
            return
        if self._fs.free_bytes(self._directory) < self._ample_bytes:
            return
        try:
            self._allocate(self._reserve_bytes)
            self._is_kept = self._has_more = True
        except SiltstoneError:
            with suppress(SiltstoneError):
                self.give_up_reserve()
            free_bytes = self._fs.free_bytes(self._directory)
            self._ample_bytes = max(self._ample_bytes, free_bytes + self._reserve_bytes)

    def keep_opening(self) -> None:
        """Create the part for opening again, as large as the disk allows. Errors are ignored."""
        with self._lock, suppress(SiltstoneError):
            if self._exists:
                return
            # The start needs the rest.
            spare_bytes = self._fs.free_bytes(self._directory) - 2 * _START_FLOOR_BYTES
            size_bytes = min(self._opening_bytes, spare_bytes)
            if size_bytes > 0:
                try:
                    self._allocate(size_bytes)
                except SiltstoneError:
                    self.give_up_reserve()

    def give_up_reserve(self) -> bool:
        """Remove the reserve; return False if there is none."""
        if not self._exists:
            return False
        existed = True
        try:
            self._fs.remove(self._directory / RESERVE)
        except NotFoundError:
            # A user who needed space may have removed it.
            existed = False
        self._exists = self._is_kept = self._has_more = False
        return existed

    def _allocate(self, size_bytes: int) -> None:
        path = self._directory / RESERVE
        with self._fs.open(path, writable=True) if self._exists else self._fs.create(path) as file:
            self._exists = True
            file.truncate(size_bytes)
            file.allocate(0, size_bytes)

    def _shrink_reserve(self) -> bool:
        """Free the reserve without the part for opening; return False if there is no more."""
        if not self._has_more:
            return False
        self._is_kept = self._has_more = False
        try:
            with self._fs.open(self._directory / RESERVE, writable=True) as file:
                file.truncate(self._opening_bytes)
        except SiltstoneError:
            return self.give_up_reserve()
        return True

    def _has(self, needed_bytes: int) -> bool:
        if self._is_free(needed_bytes + self._unwritten_bytes):
            self.keep_reserve()
            return True
        if self._unwritten_bytes >= _WRITE_BACK_BYTES and self.write_back is not None:
            self.write_back()
            self._unwritten_bytes = 0
        if self._is_free(needed_bytes + self._unwritten_bytes):
            return True
        if self._shrink_reserve() and self._is_free(needed_bytes + self._unwritten_bytes):
            return True
        return self._is_for_start(needed_bytes)

    def _is_for_start(self, needed_bytes: int) -> bool:
        """Take bytes from those of the start. Otherwise a broker could not be started to free
        space.
        """
        wanted = needed_bytes + self._unwritten_bytes + _START_FLOOR_BYTES
        if needed_bytes > self._start_bytes or self._fs.free_bytes(self._directory) < wanted:
            return False
        self._start_bytes -= needed_bytes
        return True

    def _is_free(self, needed_bytes: int) -> bool:
        return self._fs.free_bytes(self._directory) >= needed_bytes + self._floor_bytes
