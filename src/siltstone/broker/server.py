"""The running broker: loop, listeners, signals, the start and the end.

The order of the end: no new connections, nothing more is read, what was published is stored and
acknowledged, clients are told and given a moment to read it, their wills are stored, the store is
closed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from typing import Final

import uvloop

from siltstone.broker.access import load_access
from siltstone.broker.admission import Admission
from siltstone.broker.broker import Act, Broker
from siltstone.broker.channel import Channel
from siltstone.broker.listeners import Listener, open_listener
from siltstone.broker.retained import RetainedMessages
from siltstone.broker.retained_log import LOG_NAME, LOG_SETTINGS
from siltstone.broker.settings import BrokerSettings, ListenerSettings
from siltstone.broker.sys_topics import SysTopics
from siltstone.broker.tls import server_context
from siltstone.clock import SystemClock
from siltstone.directory import Store, open_store
from siltstone.errors import SiltstoneError
from siltstone.fs.posix import PosixFileSystem, raise_file_limit
from siltstone.logs import log

_LOG: Final = logging.getLogger("siltstone.server")
_LOGIN_THREADS: Final = 4
_UPKEEP_SECONDS: Final = 1.0
_SWEEP_BUDGET: Final = 1000
_STORE_TIMEOUT: Final = 60.0
_POLL_SECONDS: Final = 0.005
_COLLECT_AT: Final = (100_000, 50, 100)


def run_server(settings: BrokerSettings) -> int:
    """Run the broker until SIGTERM or SIGINT; return the status to exit with.

    Raises: SiltstoneError when it cannot start.
    """
    with open_store(settings.data) as store:
        uvloop.run(Server(settings, store).run())
    return 0


def check_files(settings: BrokerSettings) -> None:
    """Read what the settings name, as a start would: users, rights, hook, certificates.

    Raises: UsageError, DiskError.
    """
    load_access(PosixFileSystem(), settings.access)
    for listener in settings.listeners:
        if listener.secure:
            server_context(listener)


class LoopShell:
    """The broker's way to the loop and to threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tick: Act) -> None:
        self._loop = loop
        self._tick = tick
        self._executor = ThreadPoolExecutor(_LOGIN_THREADS, "siltstone-login")
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> float:
        return self._loop.time()

    def soon(self, act: Act) -> None:
        self._loop.call_soon(act)

    def soon_from_thread(self, act: Act) -> None:
        # A shard that resolves its last tickets may outlive the loop.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act)

    def in_thread(self, work: Act, then: Act) -> None:
        future = self._loop.run_in_executor(self._executor, work)
        future.add_done_callback(lambda _: then())

    def wake_at(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(at, self._tick)

    def close(self) -> None:
        """Wait for no thread and no time any more."""
        if self._timer is not None:
            self._timer.cancel()
        self._executor.shutdown(wait=False, cancel_futures=True)


class Server:
    """A broker on its listeners."""

    def __init__(self, settings: BrokerSettings, store: Store) -> None:
        self._settings = settings
        self._store = store
        self._fs = PosixFileSystem()
        self._clock = SystemClock()
        self._admission = Admission(settings.limits)
        self._channels: set[Channel] = set()
        self._listeners: list[Listener] = []
        self._stopping = asyncio.Event()
        self._reloading: set[asyncio.Task[None]] = set()

    async def run(self, started: Callable[[list[Listener]], None] | None = None) -> None:
        """Serve until a signal says stop."""
        loop = asyncio.get_running_loop()
        raise_file_limit()
        shell = LoopShell(loop, lambda: broker.tick())  # noqa: PLW0108 - it is made below
        broker = self._make_broker(shell)
        _spare_collector()
        sys_topics = SysTopics(broker)
        for number, act in (
            (signal.SIGTERM, self._stopping.set),
            (signal.SIGINT, self._stopping.set),
            (signal.SIGHUP, lambda: self._reload_soon(broker)),
        ):
            loop.add_signal_handler(number, act)
        try:
            await self._listen(loop, broker)
            if started is not None:
                started(self._listeners)
            async with asyncio.TaskGroup() as group:
                upkeep = group.create_task(self._upkeep(broker))
                publishing = group.create_task(sys_topics.run())
                await self._stopping.wait()
                await self._stop(broker)
                upkeep.cancel()
                publishing.cancel()
        finally:
            for listener in self._listeners:
                await listener.close()
            shell.close()
            log(_LOG, logging.INFO, "stopped")

    def stop(self) -> None:
        """End in good order, as SIGTERM does."""
        self._stopping.set()

    def _make_broker(self, shell: LoopShell) -> Broker:
        settings = self._settings
        storage = settings.storage
        database = self._store.ensure(storage.database, storage.database_settings())
        for report in database.reports:
            if report.torn_bytes or report.rebuilt or report.foreign:
                log(
                    _LOG,
                    logging.WARNING,
                    "mended after a crash",
                    database=database.name,
                    slab=report.slab,
                    torn_bytes=report.torn_bytes,
                    indexes_rebuilt=len(report.rebuilt),
                    foreign_files=len(report.foreign),
                )
        log_database = self._store.ensure(LOG_NAME, LOG_SETTINGS)
        retained = RetainedMessages(log_database, self._clock, settings.limits)
        retained.load()
        return Broker(
            settings,
            database=database,
            retained=retained,
            access=load_access(self._fs, settings.access, self._clock),
            clock=self._clock,
            shell=shell,
        )

    async def _listen(self, loop: asyncio.AbstractEventLoop, broker: Broker) -> None:
        for settings in self._settings.listeners:
            listener = await open_listener(
                loop,
                settings,
                partial(self._accept, loop, broker, settings),
                fs=self._fs,
                limits=self._settings.limits,
                drain_timeout=self._settings.drain_timeout,
            )
            self._listeners.append(listener)
            for address in listener.addresses:
                log(_LOG, logging.INFO, "listening", address=address)

    def _accept(
        self, loop: asyncio.AbstractEventLoop, broker: Broker, settings: ListenerSettings
    ) -> Channel:
        channel = Channel(loop, broker, settings, self._admission, self._channels.discard)
        self._channels.add(channel)
        return channel

    async def _upkeep(self, broker: Broker) -> None:
        """Look after the retained messages."""
        loop = asyncio.get_running_loop()
        retained = broker.retained
        while True:
            await asyncio.sleep(_UPKEEP_SECONDS)
            retained.sweep(self._clock.now_us(), _SWEEP_BUDGET)
            if not retained.needs_compaction():
                continue
            try:
                with closing(retained.compact()) as steps:
                    for step in steps:
                        await loop.run_in_executor(None, step)
                log(_LOG, logging.INFO, "retained messages compacted", messages=len(retained))
            except SiltstoneError as exc:
                log(_LOG, logging.WARNING, "retained messages not compacted", error=str(exc))

    def _reload_soon(self, broker: Broker) -> None:
        task = asyncio.get_running_loop().create_task(self._reload(broker))
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def _reload(self, broker: Broker) -> None:
        """Read users, rights and certificates again; what cannot be read stays as it was."""
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            read = partial(load_access, self._fs, self._settings.access, self._clock)
            broker.use_access(await loop.run_in_executor(None, read))
        except SiltstoneError as exc:
            failures += 1
            log(_LOG, logging.ERROR, "users and rights not reloaded", error=str(exc))
        for listener in self._listeners:
            try:
                await listener.reload()
            except SiltstoneError as exc:
                failures += 1
                log(_LOG, logging.ERROR, "certificates not reloaded", error=str(exc))
        if not failures:
            log(_LOG, logging.INFO, "reloaded")

    async def _stop(self, broker: Broker) -> None:
        """Let what was published reach the disk, then tell the clients."""
        log(_LOG, logging.INFO, "stopping", clients=len(broker.clients))
        for listener in self._listeners:
            await listener.close()
        for channel in self._channels:
            channel.stop_reading()
        await _until(lambda: broker.bridge.pending_bytes == 0, _STORE_TIMEOUT)
        for channel in list(self._channels):
            channel.end_service()
        await _until(lambda: not self._channels, self._settings.drain_timeout)
        for channel in list(self._channels):
            channel.abort()
        # The wills of those who were connected.
        await _until(lambda: broker.bridge.pending_bytes == 0, _STORE_TIMEOUT)


def _spare_collector() -> None:
    """Let the garbage collector leave alone what is there now, and look for cycles less often.

    Hardly anything here is part of a cycle, and messages that wait are many.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AT)


async def _until(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until something holds, or for so long."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    # What is waited for is told by threads and peers, to nobody in particular.
    while not holds() and loop.time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_SECONDS)
