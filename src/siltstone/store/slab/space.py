"""Whether a database may take more of the disk: its quota, and what must stay free."""

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
        # What others need of the disk, whatever the settings say.
        self.left_free_bytes = 0
        self._admitted_bytes = -1
        self._free_bytes = 0

    def refusal(
        self, database: str, settings: DatabaseSettings, *, used_bytes: int, size_bytes: int
    ) -> SiltstoneError | None:
        """Return why a database that has taken so much may not have so much more."""
        quota = settings.quota_bytes
        if quota is not None and used_bytes + size_bytes > quota:
            return QuotaExceededError(database, used_bytes=used_bytes, quota_bytes=quota)
        needed = max(settings.reserve_bytes, self.left_free_bytes) + size_bytes
        # Asking the system costs as much as a small flush; it is asked again when we have grown.
        if used_bytes != self._admitted_bytes or self._free_bytes < needed:
            self._free_bytes = self._fs.free_bytes(self._directory)
            if self._free_bytes < needed:
                return StorageFullError(self._directory, needed_bytes=needed)
            self._admitted_bytes = used_bytes
        return None
