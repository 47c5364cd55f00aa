"""Key-value engines in memory, by directory, that outlive their closing as those on a disk do."""

from __future__ import annotations

from pathlib import PurePath

from siltstone.store.kv.memory import MemoryEngine


class Engines:
    """What stands for a disk with RocksDB on it."""

    def __init__(self) -> None:
        self.opened: dict[PurePath, MemoryEngine] = {}

    def open_writing(self, path: PurePath) -> MemoryEngine:
        """Open a directory as its only writer does."""
        before = self.opened.get(path)
        self.opened[path] = MemoryEngine() if before is None else before.reopened()
        return self.opened[path]

    def open_reading(self, path: PurePath) -> MemoryEngine:
        """Open what the writer has stored so far."""
        return self.opened[path].reopened()
