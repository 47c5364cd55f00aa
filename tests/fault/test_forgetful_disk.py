"""A sync fails once, and the system forgets that the pages are not on the disk.

Linux marks the pages of a failed write-back as clean: everybody reads them, no later sync writes
them, and a power cut takes them. So what recovery finds behind the last good sync it must write
again before it may call it durable.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Final

import pytest

from siltstone.errors import PoisonedError
from siltstone.fs.faulty import Fault, FaultyFile, FaultyFileSystem, scripted_error
from siltstone.fs.memory import MemoryFileSystem
from siltstone.fs.translate import failed_sync
from siltstone.store.database import Database
from siltstone.store.log.read.pieces import Row
from tests.support.builders import World, as_given
from tests.support.reading import check_everything

PAGE_BYTES: Final = 512

# What is on the disk, and what was in memory when it was forgotten.
Forgotten = dict[int, tuple[bytes, bytes]]


class ForgetfulFileSystem(FaultyFileSystem):
    """Pages that a failed sync left are not written by later ones, unless they change again."""

    def __init__(self, inner: MemoryFileSystem) -> None:
        super().__init__(inner)
        self.memory = inner
        self.forgotten: dict[PurePath, Forgotten] = {}

    def open(self, path: PurePath, *, writable: bool) -> ForgetfulFile:
        return ForgetfulFile(self, super().open(path, writable=writable))

    def create(self, path: PurePath) -> ForgetfulFile:
        return ForgetfulFile(self, super().create(path))


class ForgetfulFile(FaultyFile):
    """A file of a ForgetfulFileSystem."""

    def __init__(self, fs: ForgetfulFileSystem, inner: FaultyFile) -> None:
        super().__init__(fs, inner)
        self._forgetful = fs
        self._file = inner

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        self._file.write_at(offset, data)
        forgotten = self._forgetful.forgotten.get(self.path, {})
        for page in range(offset // PAGE_BYTES, -(-(offset + len(data)) // PAGE_BYTES)):
            forgotten.pop(page, None)

    def write_durably(self, offset: int, data: bytes) -> None:
        self.write_at(offset, data)
        fault = self._forgetful.fault("sync", self.path)
        if fault is not None:
            self._forget()
            raise failed_sync(fault.errno, "EIO", self.path)
        self._file.write_durably(offset, data)

    def sync(self) -> None:
        fault = self._forgetful.fault("sync", self.path)
        if fault is not None:
            self._forget()
            raise scripted_error(fault, self.path)
        forgotten = self._forgetful.forgotten.get(self.path, {})
        for page, (_, seen) in list(forgotten.items()):
            if self._page(page) != seen:
                del forgotten[page]
        # The disk gets all but the forgotten pages; whoever reads goes on to see them.
        for page, (on_disk, _) in forgotten.items():
            self._file.write_at(page * PAGE_BYTES, on_disk)
        self._file.sync()
        for page, (_, seen) in forgotten.items():
            self._file.write_at(page * PAGE_BYTES, seen)

    def _forget(self) -> None:
        durable = self._forgetful.memory.crash_clone().read(self.path)
        forgotten = self._forgetful.forgotten.setdefault(self.path, {})
        for page in range(len(durable) // PAGE_BYTES):
            on_disk = durable[page * PAGE_BYTES : (page + 1) * PAGE_BYTES]
            if self._page(page) != on_disk:
                forgotten[page] = (on_disk, self._page(page))

    def _page(self, page: int) -> bytes:
        return self._file.read_at(page * PAGE_BYTES, PAGE_BYTES)


@contextmanager
def poisoned() -> Iterator[tuple[MemoryFileSystem, ForgetfulFileSystem]]:
    """Leave one row that was stored, and one whose sync failed; the process lives."""
    memory = MemoryFileSystem(page_bytes=PAGE_BYTES)
    fs = ForgetfulFileSystem(memory)
    with World(fs=fs).database() as database:
        database.append([Row("a", b"1" * 700)], producer=("p", 1)).wait()
        fs.add(Fault(operation="sync", errno=errno.EIO, path_suffix=".seg"))
        with pytest.raises(PoisonedError):
            database.append([Row("a", b"2" * 700)], producer=("p", 2)).wait()
    yield memory, fs


def stored(database: Database) -> list[Row]:
    return as_given(check_everything(database))


ONE, TWO, THREE = (Row("a", b"%d" % number * 700) for number in (1, 2, 3))


def test_the_disk_of_these_tests_forgets() -> None:
    with poisoned() as (memory, fs):
        path = next(path for path in fs.forgotten if path.suffix == ".seg")
        with fs.open(path, writable=True) as file:
            file.sync()
        assert memory.crash_clone().read(path) != memory.read(path)


def test_what_is_found_after_a_failed_sync_is_durable_when_it_is_served() -> None:
    with poisoned() as (memory, fs), World(fs=fs).database() as database:
        found = stored(database)
        assert found in ([ONE], [ONE, TWO])
        # The producer had no answer and asks again: it may only be told what is true.
        database.append([TWO], producer=("p", 2)).wait()
        assert stored(database) == [ONE, TWO]
        with World(fs=memory.crash_clone()).database() as after:
            assert stored(after) == [ONE, TWO]


def test_rows_behind_a_failed_sync_are_not_lost_with_it() -> None:
    with poisoned() as (memory, fs), World(fs=fs).database() as database:
        before = stored(database)
        database.append([THREE]).wait()
        with World(fs=memory.crash_clone()).database() as after:
            assert stored(after) == [*before, THREE]
