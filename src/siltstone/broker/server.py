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
from typing import Final, cast

import uvloop

from siltstone.broker.access import load_access
from siltstone.broker.admission import Admission
from siltstone.broker.broker import Act, Broker
from siltstone.broker.channel import Channel
from siltstone.broker.door import Door, open_door, read_certificates
from siltstone.broker.keeping import keep_sessions, open_control
from siltstone.broker.links import link_settings, open_links
from siltstone.broker.listeners import Listener, open_listener
from siltstone.broker.retained import RetainedMessages
from siltstone.broker.retained_log import LOG_NAME, LOG_SETTINGS
from siltstone.broker.settings import BrokerSettings, ListenerSettings
from siltstone.broker.snapshots import (
    OF_BROKER,
    OF_STORE,
    Snapshots,
    begin_backup,
    begin_capture,
    check_persistence,
    load_state,
    open_keeper,
)
from siltstone.broker.sys_topics import SysTopics
from siltstone.broker.tls import server_context
from siltstone.broker.topic_logs import serve_topic_logs
from siltstone.clock import SystemClock
from siltstone.directory import Store, open_store
from siltstone.errors import SiltstoneError
from siltstone.fs.posix import (
    PosixFileSystem,
    absolute_path,
    end_process,
    raise_file_limit,
)
from siltstone.logs import log
from siltstone.topiclog.server import TopicLogServer

_LOG: Final = logging.getLogger("siltstone.server")
_LOGIN_THREADS: Final = 4
_READER_THREADS: Final = 4
_UPKEEP_SECONDS: Final = 1.0
_SWEEP_BUDGET: Final = 1000
_STORE_TIMEOUT: Final = 60.0
_POLL_SECONDS: Final = 0.005
_COLLECT_AT: Final = (100_000, 50, 100)


def run_server(settings: BrokerSettings, *, allow_empty: bool = False) -> int:
    """Run the broker until SIGTERM or SIGINT; return the status to exit with.

    Without a valid snapshot, where there should be one, it starts only if that is allowed.

    Raises: SiltstoneError when it cannot start, or cannot write its last snapshot.
    """
    with open_store(settings.data) as store:
        server = Server(settings, store, allow_empty=allow_empty)
        uvloop.run(server.run())
    if server.left_calls:
        # All is stored, and Python would wait for those who do not read what they asked for.
        logging.shutdown()
        end_process(0)
    return 0


def check_files(settings: BrokerSettings) -> None:
    """Read what the settings name, as a start would: users, rights, hook, certificates.

    Raises: UsageError, DiskError.
    """
    load_access(PosixFileSystem(), settings.access)
    for listener in settings.listeners:
        if listener.secure:
            server_context(listener)
    for bridge in settings.bridge:
        link_settings(bridge, PosixFileSystem())
    if settings.flight.enabled:
        read_certificates(settings.flight)


class LoopShell:
    """The broker's way to the loop and to threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tick: Act) -> None:
        self._loop = loop
        self._tick = tick
        # Asked for with every packet.
        self.now: Callable[[], float] = loop.time
        self._executor = ThreadPoolExecutor(_LOGIN_THREADS, "siltstone-login")
        # Their work is short, and must not wait for passwords.
        self._readers = ThreadPoolExecutor(_READER_THREADS, "siltstone-reader")
        self._timer: asyncio.TimerHandle | None = None

    def soon(self, act: Act) -> None:
        self._loop.call_soon(act)

    def soon_from_thread(self, act: Act) -> None:
        # A shard that resolves its last tickets may outlive the loop.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act)

    def in_thread(self, work: Act, then: Act) -> None:
        future = self._loop.run_in_executor(self._executor, work)
        future.add_done_callback(lambda _: then())

    def read_in_thread(self, work: Act, then: Act) -> None:
        future = self._loop.run_in_executor(self._readers, work)
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
        self._readers.shutdown(wait=False, cancel_futures=True)


class Server:
    """A broker on its listeners."""

    def __init__(
        self, settings: BrokerSettings, store: Store, *, allow_empty: bool = False
    ) -> None:
        self._settings = settings
        self._allow_empty = allow_empty
        self._store = store
        self._fs = PosixFileSystem()
        self._clock = SystemClock()
        self._admission = Admission(settings.limits)
        self._channels: set[Channel] = set()
        self._listeners: list[Listener] = []
        self._door: Door | None = None
        # Whether calls of Flight still ran when it ended.
        self.left_calls = False
        self._control: asyncio.Server | None = None
        self._topic_logs: TopicLogServer | None = None
        self._stopping = asyncio.Event()
        self._reloading: set[asyncio.Task[None]] = set()

    async def run(self, started: Callable[[list[Listener]], None] | None = None) -> None:
        """Serve until a signal says stop."""
        loop = asyncio.get_running_loop()
        raise_file_limit()
        shell = LoopShell(loop, lambda: broker.tick())  # noqa: PLW0108 - it is made below
        broker = self._make_broker(shell)
        snapshots = self._make_snapshots(loop, broker)
        _spare_collector()
        links = open_links(broker, self._fs, absolute_path(self._settings.data))
        sys_topics = SysTopics(broker)
        for number, act in (
            (signal.SIGTERM, self._stopping.set),
            (signal.SIGINT, self._stopping.set),
            (signal.SIGHUP, lambda: self._reload_soon(broker)),
            (signal.SIGUSR1, snapshots.ask),
        ):
            loop.add_signal_handler(number, act)
        try:
            self._control = await open_control(self._fs, self._store, broker)
            await self._listen(loop, broker)
            if self._settings.flight.enabled:
                self._door = open_door(self._settings.flight, self._store, broker)
            if self._settings.topiclog.enabled:
                self._topic_logs = await serve_topic_logs(
                    self._settings.topiclog, self._store, broker
                )
            if started is not None:
                started(self._listeners)
            async with asyncio.TaskGroup() as group:
                upkeep = group.create_task(self._upkeep(broker))
                publishing = group.create_task(sys_topics.run())
                saving = group.create_task(snapshots.run())
                linking = [group.create_task(link.run()) for link in links]
                await self._stopping.wait()
                await self._stop(broker)
                upkeep.cancel()
                publishing.cancel()
                saving.cancel()
                for task in linking:
                    task.cancel()
            if self._settings.persistence == "snapshot":
                await snapshots.save()
        finally:
            snapshots.close()
            for listener in self._listeners:
                await listener.close()
            await self._close_door()
            if self._control is not None:
                self._control.close()
            await self._close_topic_logs()
            for link in links:
                link.close()
            shell.close()
            log(_LOG, logging.INFO, "stopped")

    def stop(self) -> None:
        """End in good order, as SIGTERM does."""
        self._stopping.set()

    def _make_broker(self, shell: LoopShell) -> Broker:
        settings = self._settings
        check_persistence(self._fs, self._store, settings.persistence)
        if settings.persistence == "snapshot":
            return Broker(
                settings,
                database=None,
                retained=RetainedMessages(None, self._clock, settings.limits),
                access=load_access(self._fs, settings.access, self._clock),
                clock=self._clock,
                shell=shell,
            )
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
        broker = Broker(
            settings,
            database=database,
            retained=retained,
            access=load_access(self._fs, settings.access, self._clock),
            clock=self._clock,
            shell=shell,
        )
        if settings.sessions.durable:
            keep_sessions(self._store, broker, database, self._clock)
        return broker

    def _make_snapshots(self, loop: asyncio.AbstractEventLoop, broker: Broker) -> Snapshots:
        """Load the last snapshot of a broker that keeps all in memory, and be ready for more."""
        settings = self._settings
        path = self._store.path
        snapshots = Snapshots(
            partial(open_keeper, self._fs, self._clock, path, settings.snapshot.keep),
            interval=settings.snapshot_interval,
            loop=loop,
        )
        if settings.persistence == "snapshot":
            load_state(broker, snapshots.keeper, allow_empty=self._allow_empty)
            snapshots.use(OF_BROKER, partial(begin_capture, broker, loop))
        else:
            snapshots.use(OF_STORE, partial(begin_backup, self._fs, path))
        return snapshots

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
    ) -> asyncio.Protocol:
        channel = Channel(loop, broker, settings, self._admission, self._channels.discard)
        self._channels.add(channel)
        # It is one in all but its class.
        return cast("asyncio.Protocol", channel)

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
        if self._door is not None:
            try:
                await loop.run_in_executor(None, self._door.reload)
            except SiltstoneError as exc:
                failures += 1
                log(_LOG, logging.ERROR, "certificates not reloaded", error=str(exc))
        if not failures:
            log(_LOG, logging.INFO, "reloaded")

    async def _close_door(self) -> None:
        """End Flight; its calls may still need the loop."""
        door, self._door = self._door, None
        if door is not None:
            loop = asyncio.get_running_loop()
            ended = await loop.run_in_executor(None, door.close, self._settings.drain_timeout)
            self.left_calls = not ended

    async def _close_topic_logs(self) -> None:
        server, self._topic_logs = self._topic_logs, None
        if server is not None:
            await server.close(self._settings.drain_timeout)

    async def _stop(self, broker: Broker) -> None:
        """Let what was published reach the disk, then tell the clients."""
        log(_LOG, logging.INFO, "stopping", clients=len(broker.clients))
        for listener in self._listeners:
            await listener.close()
        await self._close_door()
        await self._close_topic_logs()
        for channel in self._channels:
            channel.stop_reading()
        await _until(lambda: broker.bridge.pending_bytes == 0, _STORE_TIMEOUT)
        for channel in list(self._channels):
            channel.end_service()
        await _until(lambda: not self._channels, self._settings.drain_timeout)
        for channel in list(self._channels):
            channel.abort()
        # The wills of those who were connected, and their sessions.
        await _until(lambda: broker.is_settled, _STORE_TIMEOUT)


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
