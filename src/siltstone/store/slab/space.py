"""Decide whether a database may use more disk space: its quota, and the reserve."""

from __future__ import annotations

from pathlib import PurePath

from siltstone.errors import QuotaExceededError, SiltstoneError, StorageFullError
from siltstone.fs.api import FileSystem
from siltstone.store.slab.settings import DatabaseSettings


class Space:
    """Decides for all shards of one database."""

    def __init__(self, fs: FileSystem, directory: PurePath) -> None:
        self._fs = fs
        self._directory = directory
        # The space that must stay free for other purposes, independent of the settings.
        self.left_free_bytes = 0
        self._admitted_bytes = -1
        self._free_bytes = 0

    def refusal(
        self, database: str, settings: DatabaseSettings, *, used_bytes: int, size_bytes: int
    ) -> SiltstoneError | None:
        """Return the error if a database with `used_bytes` may not use `size_bytes` more, else
        None.
        """
        quota = settings.quota_bytes
        if quota is not None and used_bytes + size_bytes > quota:
            return QuotaExceededError(
                database, used_bytes=used_bytes, quota_bytes=quota, needed_bytes=size_bytes
            )
        needed = max(settings.reserve_bytes, self.left_free_bytes) + size_bytes
        # The system call costs as much as a small flush, so it is repeated only after growth.
        if used_bytes != self._admitted_bytes or self._free_bytes < needed:
            self._free_bytes = self._fs.free_bytes(self._directory)
            if self._free_bytes < needed:
                return StorageFullError(self._directory, needed_bytes=needed)
            self._admitted_bytes = used_bytes
        return None
