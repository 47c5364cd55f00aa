"""Snapshots of a running broker: by the clock, when asked for, and a last one at the end.

The loop captures; a thread encodes, compresses and writes, and rests every moment, so that it never
keeps the loop waiting for the interpreter. One is written at a time. One that fails is told
in the log, and the next is tried when its time comes; only the last one is not allowed to.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import PurePath
from time import perf_counter, sleep
from typing import Final

from siltstone.broker.broker import Broker
from siltstone.broker.capture import Capture, Captured
from siltstone.broker.revival import Revival
from siltstone.clock import Clock
from siltstone.directory import Store
from siltstone.errors import SiltstoneError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.kv.rocks import open_read_only
from siltstone.logs import log
from siltstone.snapshot.backup import SNAPSHOTS, StoreSource
from siltstone.snapshot.contents import ContentsInMemory, NoContents
from siltstone.snapshot.keeper import Keeper, Saved, link_target
from siltstone.snapshot.loader import SnapshotReader
from siltstone.snapshot.records import Record
from siltstone.snapshot.schedule import Schedule

OF_BROKER: Final = "broker"
OF_STORE: Final = "store"

_LOG: Final = logging.getLogger("siltstone.snapshot")
# What the loop looks at in one piece: less than a tenth of a millisecond.
_PIECE: Final = 16
# So long the thread works, and so long it then leaves the interpreter to the loop.
_WORK_SECONDS: Final = 0.0001
_REST_SECONDS: Final = 0.0004
_PIECE_TIMEOUT: Final = 60.0

# Begins a snapshot, on the loop; what it returns is read in a thread, then the other is called.
Begin = Callable[[], tuple[Iterator[Record], Callable[[], None]]]


class Pace:
    """Lets a thread rest whenever it has worked for a moment: it holds what the loop needs too."""

    def __init__(self, now: Callable[[], float], rest: Callable[[float], None]) -> None:
        self._now = now
        self._rest = rest
        self._since = now()

    def keep(self) -> None:
        """Rest if it is time to."""
        if self._now() - self._since >= _WORK_SECONDS:
            self._rest(_REST_SECONDS)
            self._since = self._now()


class Snapshots:
    """Writes the snapshots of one broker."""

    def __init__(
        self,
        open_keeper: Callable[[], Keeper],
        *,
        interval: float,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._open_keeper = open_keeper
        self._keeper: Keeper | None = None
        self._source = ""
        self._begin: Begin | None = None
        self._loop = loop
        self._schedule = Schedule(interval, loop.time())
        self._asked = asyncio.Event()
        self._writing = asyncio.Lock()
        self._executor = ThreadPoolExecutor(1, "siltstone-snapshot")

    @property
    def keeper(self) -> Keeper:
        """The directory of snapshots, made when it is first needed."""
        if self._keeper is None:
            self._keeper = self._open_keeper()
        return self._keeper

    def use(self, source: str, begin: Begin) -> None:
        """Say what the snapshots are of."""
        self._source = source
        self._begin = begin

    def ask(self) -> None:
        """Let one be written, beginning after now."""
        self._schedule.ask()
        self._asked.set()

    async def run(self) -> None:
        """Write snapshots when they are due, until cancelled."""
        while True:
            seconds = self._schedule.wait(self._loop.time())
            if seconds is None or seconds > 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._asked.wait(), seconds)
                self._asked.clear()
                continue
            try:
                # Shielded, for a thread that writes cannot be stopped half way.
                await asyncio.shield(self.save(rest=Pace(perf_counter, sleep).keep))
            except SiltstoneError as exc:
                log(_LOG, logging.ERROR, "snapshot not written", error=str(exc))

    async def save(self, *, rest: Callable[[], None] | None = None) -> Saved:
        """Write one, when no other is being written.

        Raises: SiltstoneError, and then the one before stands.
        """
        async with self._writing:
            began = self._loop.time()
            self._schedule.begin(began)
            try:
                saved = await self._save(rest)
            finally:
                self._schedule.end()
        if saved.prune_error is not None:
            log(_LOG, logging.WARNING, "old snapshots not removed", error=str(saved.prune_error))
        log(
            _LOG,
            logging.INFO,
            "snapshot written",
            file=saved.path.name,
            size_bytes=saved.size_bytes,
            contents=saved.totals.contents,
            seconds=round(self._loop.time() - began, 3),
        )
        return saved

    async def _save(self, rest: Callable[[], None] | None) -> Saved:
        assert self._begin is not None, "it is known what the snapshots are of"
        records, end = self._begin()
        try:
            write = partial(self._write, records, rest)
            return await self._loop.run_in_executor(self._executor, write)
        finally:
            end()

    def close(self) -> None:
        """Let go of the directory."""
        self._executor.shutdown(wait=True)
        if self._keeper is not None:
            self._keeper.close()

    def _write(self, records: Iterator[Record], rest: Callable[[], None] | None) -> Saved:
        return self.keeper.save(records, source=self._source, pause=rest)


def begin_capture(
    broker: Broker, loop: asyncio.AbstractEventLoop
) -> tuple[Iterator[Record], Callable[[], None]]:
    """Begin a snapshot of what a broker has in memory."""
    capture = Capture(broker)
    return _captured_records(capture, loop), capture.close


def _captured_records(capture: Capture, loop: asyncio.AbstractEventLoop) -> Iterator[Record]:
    """Yield the records of a capture, in a thread that asks the loop for piece after piece."""
    yield from capture.retained_records()
    while (pieces := _piece(capture, loop)) is not None:
        for captured in pieces:
            yield from capture.records(captured)


def _piece(capture: Capture, loop: asyncio.AbstractEventLoop) -> list[Captured] | None:
    taken: Future[list[Captured] | None] = Future()
    loop.call_soon_threadsafe(lambda: taken.set_result(capture.step(_PIECE)))
    return taken.result(_PIECE_TIMEOUT)


def begin_backup(fs: FileSystem, data: PurePath) -> tuple[Iterator[Record], Callable[[], None]]:
    """Begin a snapshot of a store, which is read as other processes would."""
    source = StoreSource(fs, data, partial(open_read_only, fs))
    return source.records(), _nothing


def _nothing() -> None:
    """End what needs no end."""


def open_keeper(fs: FileSystem, clock: Clock, data: PurePath, keep: int) -> Keeper:
    """Open the directory of snapshots in a data directory. Raises: LockedError."""
    return Keeper(fs, clock, data / SNAPSHOTS, data / "quarantine", keep=keep)


def check_persistence(fs: FileSystem, store: Store, persistence: str) -> None:
    """Refuse a directory whose messages and sessions are kept in the other way.

    Raises: UsageError, for a broker that would start without them.
    """
    if persistence == "snapshot":
        if names := store.names():
            raise UsageError(
                f'{store.path} has a store, which persistence = "snapshot" does not read; name '
                f"another directory: databases={', '.join(names)}"
            )
        return
    directory = store.path / SNAPSHOTS
    name = link_target(fs, directory) if fs.exists(directory) else ""
    if not name or not fs.exists(directory / name):
        return
    with fs.open(directory / name, writable=False) as file:
        if SnapshotReader(file, NoContents()).about.source == OF_BROKER:
            raise UsageError(
                f'{directory} has the state of a broker with persistence = "snapshot", which the '
                f"store does not read; name another directory, or move {directory} away"
            )


def load_state(broker: Broker, keeper: Keeper, *, allow_empty: bool) -> None:
    """Let a broker have what its last snapshot holds. Raises: what `Keeper.load` raises."""
    revival = Revival(broker)
    # All that is made here stays: looking through it for garbage would take longer than making it.
    gc.disable()
    try:
        loaded = keeper.load(revival, ContentsInMemory(), allow_empty=allow_empty)
        revival.finish()
        # Nor need it ever be looked through by those who collect later.
        gc.freeze()
    finally:
        gc.enable()
    for bad in loaded.bad:
        log(_LOG, logging.ERROR, "snapshot damaged", moved_to=str(bad.path), error=str(bad.error))
    if loaded.path is None:
        log(_LOG, logging.INFO, "starting without a snapshot")
        return
    log(
        _LOG,
        logging.WARNING if loaded.bad else logging.INFO,
        "snapshot loaded",
        file=loaded.path.name,
        retained=len(broker.retained),
        sessions=revival.sessions,
        messages=revival.messages,
    )
