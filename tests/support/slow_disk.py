"""A disk that is as slow as a test wants."""

from __future__ import annotations

from pathlib import PurePath
from threading import Event

from siltstone.fs.memory import MemoryFile, MemoryFileSystem

WAIT_SECONDS = 10.0


class SlowFileSystem(MemoryFileSystem):
    """A disk on which opening files below a directory blocks until it is released."""

    slow: PurePath | None = None

    def __init__(self) -> None:
        super().__init__()
        self.reached = Event()
        self.go_on = Event()

    def open(self, path: PurePath, *, writable: bool) -> MemoryFile:
        if self.slow is not None and self.slow in path.parents:
            self.reached.set()
            assert self.go_on.wait(WAIT_SECONDS)
        return super().open(path, writable=writable)
