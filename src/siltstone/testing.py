"""Stores in memory for the tests of programs that use Siltstone: fast, with faults, and with power
cuts.

    disk = MemoryDisk()
    with disk.open() as store:
        store.create("sensors", SMALL).append([Row("plant/1", b"21")])
    after = disk.after_power_cut()

A disk outlives the stores that are opened on it, as a real one does. Its clock moves only when the
test moves it. The files of databases of messages lose unsynced data in a power cut. Key-value
databases lose nothing that was committed, and need no RocksDB.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from random import Random
from types import MappingProxyType
from typing import Final

from siltstone.clock import ManualClock
from siltstone.fs.faulty import Fault, FaultyFileSystem, Pause
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.store.directory import Store
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.slab.settings import DatabaseSettings

__all__ = [
    "SMALL",
    "Fault",
    "FaultyFileSystem",
    "ManualClock",
    "MemoryDisk",
    "MemoryFileSystem",
    "Pause",
    "PowerCut",
]

# Settings for databases in memory: the default allocates 1 GiB for each segment.
SMALL: Final = DatabaseSettings(segment_bytes=64 * 1024)
_DATA: Final = PurePath("/data")


class MemoryDisk:
    """A disk in memory with one data directory.

    `faults` lets operations on files fail, holds them, or cuts the power after a number of them.
    `files.capacity_bytes` is the size of the disk; with 0 the disk is full. `clock` is the clock of
    all stores on the disk. Opening a store whose predecessor is still open raises LockedError, as
    with a real directory.
    """

    def __init__(
        self,
        files: MemoryFileSystem | None = None,
        clock: ManualClock | None = None,
        engines: Mapping[PurePath, MemoryEngine] = MappingProxyType({}),
    ) -> None:
        """Create an empty disk, or one with the given files."""
        self.files = files or MemoryFileSystem()
        self.clock = clock or ManualClock()
        self.faults = FaultyFileSystem(self.files)
        self._engines = dict(engines)

    def open(self, *, read_only: bool = False) -> Store:
        """Open the store of the disk; for writing, it is created if it does not exist.

        Raises: LockedError, NotFoundError for reading what does not exist.
        """
        opener = self._read_engine if read_only else self._open_engine
        return Store(
            _DATA, read_only=read_only, fs=self.faults, clock=self.clock, open_engine=opener
        )

    def fail(self, *faults: Fault) -> None:
        """Let operations on files fail from now on. `faults.clear` ends it."""
        for fault in faults:
            self.faults.add(fault)

    def after_power_cut(self, rng: Random | None = None) -> MemoryDisk:
        """Return the disk that a machine finds after a power cut now, without faults.

        Only synced data is left. With `rng` a random part of the rest is left too, as on real
        disks. The store on this disk stays as it is.
        """
        return MemoryDisk(self.files.crash_clone(rng), self.clock, self._copied())

    def after_kill(self) -> MemoryDisk:
        """Return the disk that the next process finds when this one is killed now, without faults.

        All written data is there.
        """
        return MemoryDisk(self.files.kill_clone(), self.clock, self._copied())

    def _copied(self) -> dict[PurePath, MemoryEngine]:
        return {path: engine.reopened() for path, engine in self._engines.items()}

    def _open_engine(self, path: PurePath) -> MemoryEngine:
        before = self._engines.get(path)
        engine = MemoryEngine() if before is None else before.reopened()
        self._engines[path] = engine
        return engine

    def _read_engine(self, path: PurePath) -> MemoryEngine:
        return self._engines[path].reopened()
