"""Snapshots of a running broker: at an interval, on request, and a last one when it stops.

One snapshot is written at a time, at the pace of `broker/snapshots/pace.py`. A failure is logged,
and the next snapshot is written when it is due. Only a failure of the last snapshot is raised.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from time import perf_counter, sleep
from typing import Any, Final, NamedTuple

from siltstone.async_guard import contain_async
from siltstone.broker.broker import Broker
from siltstone.broker.snapshots.capture import Capture
from siltstone.broker.snapshots.load import SnapshotLoad
from siltstone.broker.snapshots.pace import LoopPace, ThreadPace
from siltstone.broker.snapshots.standstill import Standstill
from siltstone.clock import Clock
from siltstone.errors import SiltstoneError, UsageError
from siltstone.fs.api import File, FileSystem
from siltstone.fs.paths import StorePaths
from siltstone.fs.process import memory_left_bytes
from siltstone.logs import log
from siltstone.manage.verb import Nothing
from siltstone.snapshot.backup import BackupSource
from siltstone.snapshot.directory import Saved, SnapshotDirectory, link_target
from siltstone.snapshot.format.contents import BoundedContents, NoContents
from siltstone.snapshot.format.records import Record
from siltstone.snapshot.loader import SnapshotReader
from siltstone.snapshot.schedule import Schedule
from siltstone.store.directory import Store
from siltstone.store.kv.rocks import open_read_only

OF_BROKER: Final = "broker"
OF_STORE: Final = "store"

_LOG: Final = logging.getLogger("siltstone.snapshot")
_PAYLOADS: Final = "payloads.tmp"
_RESERVE_BYTES: Final = 8 * 1024 * 1024
# Attempts to cut the store while nothing is stored.
_CUTS_MAX: Final = 5
# Sessions that are captured before the remaining time of the turn is checked.
_PIECE: Final = 1

# Begins a snapshot, on the loop.
Begin = Callable[[], "BegunSnapshot"]


class BegunSnapshot(NamedTuple):
    """A snapshot that was begun.

    `records` are to be written; None among them means that a step found no record. `end` is called
    on the loop when the snapshot is written or has failed. A `pace` of None means without rests.
    `prepare` runs on the loop before the first record is read.
    """

    records: Iterator[Record | None]
    end: Callable[[], None]
    pace: LoopPace | ThreadPace | None
    prepare: Callable[[], Awaitable[None]] | None = None


class Snapshots:
    """Writes the snapshots of one broker."""

    def __init__(
        self,
        open_keeper: Callable[[], SnapshotDirectory],
        *,
        interval: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._open_keeper = open_keeper
        self._keeper: SnapshotDirectory | None = None
        self._source = ""
        self._begin: Begin | None = None
        self._loop = loop
        self._schedule = Schedule(interval, loop.time())
        self._asked = asyncio.Event()
        self._writing = asyncio.Lock()
        self._pace: LoopPace | ThreadPace | None = None
        self._executor = ThreadPoolExecutor(1, "siltstone-snapshot")
        # The saves that no thread writes yet.
        self._beginning: set[asyncio.Task[Any] | None] = set()

    @property
    def keeper(self) -> SnapshotDirectory:
        """The directory of snapshots, opened at the first use."""
        if self._keeper is None:
            self._keeper = self._open_keeper()
        return self._keeper

    def use(self, source: str, begin: Begin) -> None:
        """Set the source of the snapshots."""
        self._source = source
        self._begin = begin

    def ask(self) -> None:
        """Request a snapshot that begins after this call."""
        self._schedule.ask()
        self._asked.set()

    async def save_now(self, _: Nothing) -> str:
        """Write a snapshot on request; return the name of its file.

        Raises: SiltstoneError; then the previous snapshot stays valid.
        """
        try:
            saved = await asyncio.shield(self.save(is_last=False))
        except SiltstoneError as exc:
            log(_LOG, logging.ERROR, "snapshot_failed", error=str(exc))
            raise
        return saved.path.name

    async def run(self) -> None:
        """Write snapshots when they are due, until cancelled."""
        while True:
            seconds = self._schedule.wait(self._loop.time())
            if seconds is None or seconds > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._asked.wait(), seconds)
                self._asked.clear()
                continue
            await contain_async(self._save_due)

    async def _save_due(self) -> None:
        try:
            # Shielded, because a thread that writes cannot be cancelled.
            await asyncio.shield(self.save(is_last=False))
        except SiltstoneError as exc:
            log(_LOG, logging.ERROR, "snapshot_failed", error=str(exc))

    async def save(self, *, is_last: bool = True) -> Saved:
        """Write a snapshot, after the one that is being written.

        The last snapshot, and the one that it waits for, are written without rests.

        Raises: SiltstoneError; then the previous snapshot stays valid.
        """
        if is_last and self._pace is not None:
            self._pace.hurry()
        task = asyncio.current_task()
        self._beginning.add(task)
        try:
            async with self._writing:
                began = self._loop.time()
                self._schedule.begin(began)
                try:
                    saved = await self._save(is_last=is_last)
                finally:
                    self._schedule.end()
        finally:
            self._beginning.discard(task)
        if saved.prune_error is not None:
            log(_LOG, logging.WARNING, "snapshot_prune_failed", error=str(saved.prune_error))
        log(
            _LOG,
            logging.INFO,
            "snapshot_written",
            file=saved.path.name,
            size_bytes=saved.size_bytes,
            contents=saved.totals.contents,
            seconds=round(self._loop.time() - began, 3),
        )
        return saved

    async def _save(self, *, is_last: bool) -> Saved:
        assert self._begin is not None, "it is known what the snapshots are of"
        begun = self._begin()
        self._pace = begun.pace
        if is_last and begun.pace is not None:
            begun.pace.hurry()
        try:
            if begun.prepare is not None:
                await begun.prepare()
            write = partial(self._write, begun)
            self._beginning.discard(asyncio.current_task())
            return await self._loop.run_in_executor(self._executor, write)
        finally:
            self._pace = None
            begun.end()

    def close(self) -> None:
        """Close the directory. A snapshot of memory that is being written fails, and one that has
        not begun to be written is cancelled.
        """
        for task in self._beginning:
            if task is not None:
                task.cancel()
        if self._pace is not None:
            self._pace.stop()
        self._executor.shutdown(wait=True)
        if self._keeper is not None:
            self._keeper.close()

    def _write(self, begun: BegunSnapshot) -> Saved:
        return self.keeper.save(begun.records, source=self._source, pace=begun.pace)


def begin_capture(broker: Broker, loop: asyncio.AbstractEventLoop) -> BegunSnapshot:
    """Begin a snapshot of the state that a broker has in memory."""
    capture = Capture(broker)
    counts = broker.statistics
    pace = LoopPace(loop, perf_counter, sleep, lambda: counts.bytes_received)
    return BegunSnapshot(_captured_records(capture), capture.close, pace)


def _captured_records(capture: Capture) -> Iterator[Record | None]:
    """Yield the records of a capture, on the loop."""
    yield from capture.retained_records()
    while (pieces := capture.step(_PIECE)) is not None:
        for captured in pieces:
            yield from capture.records(captured)
        yield None


def begin_backup(broker: Broker, fs: FileSystem, data: PurePath) -> BegunSnapshot:
    """Begin a snapshot of a store, which is read as another process would read it.

    Rows that are delivered meanwhile are kept until the snapshot is written, because it contains
    the sessions that need them.
    """
    source = BackupSource(fs, data, partial(open_read_only, fs))
    counts = broker.statistics
    pace = ThreadPace(perf_counter, sleep, lambda: counts.bytes_received)
    return BegunSnapshot(source.records(), broker.pins.take(), pace, partial(_cut, broker, source))


async def _cut(broker: Broker, source: BackupSource) -> None:
    """Cut a store during a pause in which the broker stores nothing.

    If no pause is quiet, the last cut is used, with a warning.
    """
    loop = asyncio.get_running_loop()
    await broker.pins.settled()
    for _ in range(_CUTS_MAX):
        standstill = Standstill(broker)
        try:
            is_still = await standstill.reach()
            await loop.run_in_executor(None, source.cut)
        finally:
            was_still = standstill.end()
        if is_still and was_still:
            return
    log(_LOG, logging.WARNING, "snapshot_cut_not_quiet")


def open_keeper(fs: FileSystem, clock: Clock, data: PurePath, keep: int) -> SnapshotDirectory:
    """Open the directory of snapshots in a data directory. Raises: LockedError."""
    paths = StorePaths(data)
    return SnapshotDirectory(fs, clock, paths.snapshots, paths.quarantine, keep=keep)


def check_persistence(fs: FileSystem, store: Store, persistence: str) -> None:
    """Check that the directory does not have data of the other kind of persistence.

    Raises: UsageError, because the broker would start without its messages and sessions.
    """
    if persistence == "snapshot":
        if names := store.names():
            raise UsageError(
                f'{store.path} has a store, which a broker with persistence = "snapshot" does not '
                f"read; choose another data directory: databases={', '.join(names)}"
            )
        return
    directory = StorePaths(store.path).snapshots
    name = link_target(fs, directory) if fs.exists(directory) else ""
    if not name:
        return
    if not fs.exists(directory / name):
        log(_LOG, logging.WARNING, "snapshot_link_broken", missing=name)
        return
    with fs.open(directory / name, writable=False) as file:
        if SnapshotReader(file, NoContents()).about.source == OF_BROKER:
            raise UsageError(
                f'{directory} has the state of a broker with persistence = "snapshot", which a '
                f'broker with persistence = "store" does not read; choose another data directory, '
                f"or move {directory} away"
            )


def bounded_contents(
    fs: FileSystem, directory: PurePath, memory_max: int | None
) -> BoundedContents:
    """Return the place for payloads: in memory up to `memory_max`, then in a temporary file.

    The default of `memory_max` is a third of the memory that is left: the index of the data on disk
    takes memory too. The file ends with this process.
    """

    def create() -> File:
        path = directory / _PAYLOADS
        if fs.exists(path):
            fs.remove(path)
        file = fs.create(path)
        fs.remove(path)
        return file

    return BoundedContents(memory_left_bytes() // 3 if memory_max is None else memory_max, create)


def load_state(
    broker: Broker, keeper: SnapshotDirectory, contents: BoundedContents, *, allow_empty: bool
) -> None:
    """Restore a broker from its last snapshot.

    Raises: the errors of `SnapshotDirectory.load`; UsageError if the memory is too small.
    """
    revival = SnapshotLoad(broker, contents)
    # Released if there is not enough memory, so that the error can be reported.
    reserve = bytearray(_RESERVE_BYTES)
    # All objects that are created here stay: a garbage collection would take longer than the load.
    gc.disable()
    try:
        loaded = keeper.load(revival, contents, allow_empty=allow_empty)
        revival.finish()
        # Later collections skip these objects too.
        gc.freeze()
    except MemoryError as exc:
        reserve.clear()
        raise UsageError(
            f"the snapshot does not fit into memory; lower snapshot.memory_max, which keeps more "
            f"messages on disk, or allow more memory: directory={keeper.directory} "
            f"sessions={revival.sessions} messages={revival.messages} "
            f"retained={len(broker.retained)}"
        ) from exc
    finally:
        gc.enable()
    if contents.size_bytes:
        log(
            _LOG,
            logging.WARNING,
            "snapshot_payloads_on_disk",
            size_bytes=contents.size_bytes,
            messages=revival.spilled_messages,
            setting="snapshot.memory_max",
        )
    for bad in loaded.bad:
        log(_LOG, logging.ERROR, "snapshot_damaged", moved_to=str(bad.path), error=str(bad.error))
    if loaded.missing:
        log(
            _LOG,
            logging.WARNING,
            "snapshot_missing",
            missing=loaded.missing,
        )
    if loaded.path is None:
        log(_LOG, logging.INFO, "snapshot_not_found")
        return
    log(
        _LOG,
        logging.WARNING if loaded.bad else logging.INFO,
        "snapshot_loaded",
        file=loaded.path.name,
        retained=len(broker.retained),
        sessions=revival.sessions,
        messages=revival.messages,
    )
