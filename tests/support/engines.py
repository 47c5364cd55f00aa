"""Key-value engines in memory, by directory; they keep their data when they are closed."""

from __future__ import annotations

from pathlib import PurePath

from siltstone.store.kv.memory import MemoryEngine


class Engines:
    """Stands for a disk with RocksDB."""

    def __init__(self) -> None:
        self.opened: dict[PurePath, MemoryEngine] = {}

    def open_writing(self, path: PurePath) -> MemoryEngine:
        """Open a directory as its only writer."""
        before = self.opened.get(path)
        self.opened[path] = MemoryEngine() if before is None else before.reopened()
        return self.opened[path]

    def open_reading(self, path: PurePath) -> MemoryEngine:
        """Open the data that the writer has stored so far."""
        return self.opened[path].reopened()
