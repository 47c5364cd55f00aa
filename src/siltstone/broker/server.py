"""The running broker: event loop, listeners, signals, start and stop.

The broker stops in this order: it closes the listeners, stops reading, stores and acknowledges
everything that was published, sends DISCONNECT and gives clients time to read it, stores their
wills, and closes the store.

The modules of bridges, Flight and topic logs are imported only if the settings use them. Imports
take most of the time of a start, during which clients cannot connect.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast

import uvloop

from siltstone.async_guard import contain_async
from siltstone.broker.access.access import load_access
from siltstone.broker.broker import Broker
from siltstone.broker.control.clock_watch import ClockWatch
from siltstone.broker.control.disk_watch import DiskWatch, retained_free_bytes
from siltstone.broker.control.recovered import tell_recovered
from siltstone.broker.control.socket import ControlServer
from siltstone.broker.control.storage_drift import tell_drift
from siltstone.broker.control.sys_topics import SysTopics
from siltstone.broker.listen.admission import STRANGERS_MAX, Admission, clients_within
from siltstone.broker.listen.cluster_management import cluster_deeds
from siltstone.broker.listen.descriptors import Shares, share_descriptors, tell_shares
from siltstone.broker.listen.shell import LoopShell
from siltstone.broker.listen.sockets import Listener, open_listener
from siltstone.broker.listen.tls import server_context
from siltstone.broker.listen.transport import ClientTransport
from siltstone.broker.retained.log import LOG_NAME, LOG_SETTINGS
from siltstone.broker.retained.messages import RetainedMessages
from siltstone.broker.sessions.startup import keep_sessions, open_control
from siltstone.broker.settings.broker import BrokerSettings, ListenerSettings
from siltstone.broker.snapshots.run import (
    OF_BROKER,
    OF_STORE,
    Snapshots,
    begin_backup,
    begin_capture,
    bounded_contents,
    check_persistence,
    load_state,
    open_keeper,
)
from siltstone.broker.snapshots.standstill import until_settled
from siltstone.clock import Clock, SystemClock
from siltstone.errors import ClosedError, CorruptionError, SiltstoneError, UsageError
from siltstone.fs.posix import PosixFileSystem, absolute_path
from siltstone.fs.process import end_process, open_file_count, raise_file_limit
from siltstone.guard import contain, contain_with
from siltstone.logs import log
from siltstone.store.directory import Store, guarded_clock, open_store
from siltstone.store.log.compact.process import ChildRewriter

if TYPE_CHECKING:
    from siltstone.bridge.bridge import Bridge
    from siltstone.broker.listen.flight_listener import FlightListener
    from siltstone.cluster.site import ClusterSite
    from siltstone.topiclog.server import TopicLogServer

_LOG: Final = logging.getLogger("siltstone.server")
# Something that runs beside the broker until it is cancelled.
Job = Callable[[], Coroutine[object, object, None]]
# The exit status of every command that failed.
STORE_FAILED: Final = 3
# Signals that request an action. Their default action would end the process.
_ASKING: Final = (signal.SIGHUP, signal.SIGUSR1)
_UPKEEP_SECONDS: Final = 1.0
_SWEEP_BUDGET: Final = 1000
_STORE_TIMEOUT: Final = 60.0
_POLL_SECONDS: Final = 0.005
# After a failure of the store nothing more can be stored, so the broker waits less.
_FAILED_TIMEOUT: Final = 5.0
# Garbage collection thresholds: a collection of the youngest generation examines 15,000 objects,
# one of the second generation 30,000. Filters of 128 levels take up to a microsecond for each.
# The messages of a turn are about ten objects each: those of 1,000 clients begin no collection.
_COLLECT_AT: Final = (15_000, 0, 5_000)


class EarlySignals:
    """Records signals that arrive before the loop handles them; they do not end the process."""

    def __init__(self) -> None:
        self._came: set[int] = set()
        for number in _ASKING:
            signal.signal(number, self._note)

    def _note(self, number: int, _frame: object) -> None:
        self._came.add(number)

    def take(self, number: int) -> bool:
        """Return whether a signal has arrived; call it after the loop has its own handler."""
        return number in self._came


def run_server(
    settings: BrokerSettings,
    early: EarlySignals,
    *,
    allow_empty: bool = False,
    started: Callable[[list[Listener]], None] | None = None,
    beside: Sequence[Job] = (),
) -> int:
    """Run the broker until SIGTERM or SIGINT, or until the store fails; return the exit status.

    A failed write or sync is not retried, because its outcome is unknown until the store is opened
    again. The process therefore exits with the status of a failure, so that its supervisor starts
    it again.

    If a snapshot should exist but none is valid, the broker starts only with `allow_empty`. It
    calls `started` when it listens. The jobs `beside` it run until it stops.

    Raises: SiltstoneError if it cannot start, or cannot write its last snapshot.
    """
    failure = None
    left_calls = False
    try:
        clock = guarded_clock(
            jump_seconds=settings.clock_jump_max, confirm_seconds=settings.clock_confirm
        )
        with ExitStack() as closing:
            cluster = _site_of(settings, clock)
            if cluster is not None:
                # The site ends after the store, because work that waits in the store may need it.
                closing.callback(cluster.stop)
            store = closing.enter_context(open_store(settings.data, clock=clock, cluster=cluster))
            if cluster is not None:
                cluster.serve(
                    store.ensure, store.keyvalue, store.drop_copy, founding=store.founding()
                )
                cluster.start()
                # Resign before the store is closed: otherwise the shards have no leader for a
                # while.
                closing.callback(cluster.resign)
            server = Server(
                settings,
                store,
                allow_empty=allow_empty,
                early=early,
                clock=clock,
                cluster=cluster,
            )
            try:
                uvloop.run(server.run(started, beside))
            finally:
                # The handlers ended with the loop, but the store must still be closed.
                for number in _ASKING:
                    signal.signal(number, signal.SIG_IGN)
                failure = server.tell_failure()
                left_calls = server.left_calls
    except SiltstoneError as exc:
        if failure is None:
            raise
        log(_LOG, logging.ERROR, "store_close_failed", error=str(exc))
    status = 0 if failure is None else STORE_FAILED
    if left_calls:
        # Everything is stored. Python would wait for threads of Flight clients that do not read.
        logging.shutdown()
        end_process(status)
    return status


def _site_of(settings: BrokerSettings, clock: Clock) -> ClusterSite | None:
    """Return the site of the cluster that the settings name, not started yet; None if there is
    none.
    """
    if not settings.cluster.enabled:
        return None
    try:
        from siltstone.cluster.opening import make_site  # noqa: PLC0415 - see above
    except ModuleNotFoundError as exc:
        if exc.name not in {"nats", "cryptography"}:
            raise
        raise UsageError(f"a cluster needs {exc.name}: install siltstone[cluster]") from exc
    return make_site(**settings.cluster.model_dump(), data=settings.data, clock=clock)


def check_files(settings: BrokerSettings) -> None:
    """Read the files that the settings name, as at a start: users, rights, hook, certificates.

    Raises: UsageError, DiskError.
    """
    load_access(PosixFileSystem(), settings.access)
    for listener in settings.listeners:
        if listener.secure:
            server_context(listener)
    if settings.bridge:
        from siltstone.broker.publish.bridges import link_settings  # noqa: PLC0415 - see above

        for bridge in settings.bridge:
            link_settings(bridge, PosixFileSystem())
    if settings.flight.enabled:
        from siltstone.broker.listen.flight_listener import (  # noqa: PLC0415 - see above
            read_certificates,
        )

        read_certificates(PosixFileSystem(), settings.flight)


class Server:
    """A broker with its listeners."""

    def __init__(
        self,
        settings: BrokerSettings,
        store: Store,
        *,
        allow_empty: bool = False,
        early: EarlySignals | None = None,
        clock: Clock | None = None,
        cluster: ClusterSite | None = None,
    ) -> None:
        self._settings = settings
        self._cluster = cluster
        self._early = early
        self._allow_empty = allow_empty
        self._store = store
        self._fs = PosixFileSystem()
        self._clock = clock or SystemClock()
        self._admission = Admission(settings.limits)
        self._channels: set[ClientTransport] = set()
        self._listeners: list[Listener] = []
        self._flight: FlightListener | None = None
        self._disk: DiskWatch | None = None
        # Whether Flight calls were still running when the server stopped.
        self.left_calls = False
        self._control: ControlServer | None = None
        self._topic_logs: TopicLogServer | None = None
        self._stopping = asyncio.Event()
        self._failure: tuple[str, Exception] | None = None
        self._reloading: set[asyncio.Task[None]] = set()

    async def run(
        self,
        started: Callable[[list[Listener]], None] | None = None,
        beside: Sequence[Job] = (),
    ) -> None:
        """Serve until a signal, a failure of the store or `stop` ends it."""
        loop = asyncio.get_running_loop()
        limit = raise_file_limit()
        shell = LoopShell(loop, lambda: broker.tick())  # noqa: PLW0108 - it is made below
        broker = self._make_broker(shell)
        snapshots = self._make_snapshots(loop, broker)
        _spare_collector()
        links = self._open_links(broker)
        shares = self._share_descriptors(limit, broker)
        sys_topics = SysTopics(broker)
        watch = ClockWatch(self._store, broker, self._clock)
        for number, act in (
            (signal.SIGTERM, self._stopping.set),
            (signal.SIGINT, self._stopping.set),
            (signal.SIGHUP, lambda: self._reload_soon(broker)),
            (signal.SIGUSR1, snapshots.ask),
        ):
            loop.add_signal_handler(number, act)
            if self._early is not None and self._early.take(number):
                act()
        try:
            self._control = await open_control(
                self._fs, self._store, broker, snapshots, watch, cluster_deeds(self._cluster)
            )
            # The clock alarm must be set at once, not after the first second.
            await watch.look()
            await self._listen(loop, broker)
            if self._settings.flight.enabled:
                from siltstone.broker.listen.flight_listener import (  # noqa: PLC0415 - see above
                    open_flight,
                )

                self._flight = open_flight(
                    self._fs,
                    self._settings.flight,
                    self._store,
                    broker,
                    None if self._control is None else self._control.operations,
                )
            if self._settings.topiclog.enabled:
                self._topic_logs = await self._serve_topic_logs(broker, shares)
            if started is not None:
                started(self._listeners)
            async with asyncio.TaskGroup() as group:
                upkeep = group.create_task(self._upkeep(broker, watch))
                publishing = group.create_task(sys_topics.run())
                saving = group.create_task(snapshots.run())
                linking = [group.create_task(link.run()) for link in links]
                await self._run_beside(group, beside)
                await self._stop(broker)
                upkeep.cancel()
                publishing.cancel()
                saving.cancel()
                for task in linking:
                    task.cancel()
            if self._settings.persistence == "snapshot":
                await snapshots.save()
        finally:
            self._stopping.set()
            watch.close()
            snapshots.close()
            await self._close_listeners(broker)
            await self._close_flight()
            await self._close_control()
            await self._close_topic_logs()
            for link in links:
                link.close()
            shell.close()
            log(_LOG, logging.INFO, "stopped")

    async def _run_beside(self, group: asyncio.TaskGroup, jobs: Sequence[Job]) -> None:
        """Run jobs until the broker is to stop; they end while it does."""
        running = [group.create_task(job()) for job in jobs]
        await self._stopping.wait()
        for task in running:
            task.cancel()

    async def _close_listeners(self, broker: Broker) -> None:
        """Close the listeners, and end the compaction in the background."""
        for listener in self._listeners:
            await listener.close()
        if broker.compactor is not None:
            await asyncio.to_thread(broker.compactor.close)

    def tell_failure(self) -> tuple[str, Exception] | None:
        """Return the failure of the store, if there is one; log it once."""
        if self._failure is None:
            # A database that is being closed raises. The next call asks all of them again.
            with suppress(ClosedError):
                self._failure = self._store.failure()
            if self._failure is not None:
                database, cause = self._failure
                log(
                    _LOG,
                    logging.CRITICAL,
                    "store_failed",
                    database=database,
                    error=str(cause),
                    remedy="start the broker again: it acknowledges nothing until then",
                )
        return self._failure

    def stop(self) -> None:
        """Stop the broker in order, as SIGTERM does."""
        self._stopping.set()

    def _open_links(self, broker: Broker) -> list[Bridge]:
        if not self._settings.bridge:
            return []
        from siltstone.broker.publish.bridges import open_links  # noqa: PLC0415 - see above

        return open_links(broker, self._fs, absolute_path(self._settings.data))

    async def _serve_topic_logs(self, broker: Broker, shares: Shares) -> TopicLogServer | None:
        """Serve topic logs; if they are damaged, the broker runs without them."""
        from siltstone.broker.publish.topic_logs import (  # noqa: PLC0415 - see above
            serve_topic_logs,
        )

        try:
            return await serve_topic_logs(
                self._settings.topiclog,
                self._store,
                broker,
                connections_max=shares.topic_logs,
                keep_free_bytes=self._keep_free(),
            )
        except CorruptionError as exc:
            log(
                _LOG,
                logging.ERROR,
                "topic_logs_damaged",
                error=str(exc),
                remedy="stop the broker and run: siltstone verify topics --repair",
            )
            return None

    def _keep_free(self) -> int:
        return self._settings.storage.keep_free(self._fs.disk_bytes(self._store.path))

    def _share_descriptors(self, limit: int, broker: Broker) -> Shares:
        """Reserve descriptors for the store; log a warning if this limits connections."""
        settings = self._settings
        clients = settings.limits.connections_max
        topic_logs = settings.topiclog.connections_max if settings.topiclog.enabled else 0
        # Connections of clients that are refused with CONNACK need descriptors too.
        wanted = clients + STRANGERS_MAX
        found = share_descriptors(
            limit, open_file_count(), clients_wanted=wanted, topic_logs_wanted=topic_logs
        )
        if found.clients < wanted:
            self._admission.bound(found.clients)
            broker.clients_max = min(clients, clients_within(found.clients))
        shares = replace(found, clients=broker.clients_max)
        tell_shares(shares, limit, clients_wanted=clients, topic_logs_wanted=topic_logs)
        return shares

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
        database = self._store.ensure(storage.database, settings.messages_settings)
        tell_recovered(database)
        tell_drift(storage, database, settings.data)
        log_database = self._store.ensure(LOG_NAME, LOG_SETTINGS)
        tell_recovered(log_database)
        retained = RetainedMessages(log_database, self._clock, settings.limits)
        keep_free = self._keep_free()
        database.leave_free(keep_free)
        log_database.leave_free(retained_free_bytes(keep_free))
        retained.load()
        broker = Broker(
            settings,
            database=database,
            retained=retained,
            access=load_access(self._fs, settings.access, self._clock),
            clock=self._clock,
            shell=shell,
        )
        free_bytes = partial(self._fs.free_bytes, self._store.path)
        self._disk = DiskWatch(broker.alarms, free_bytes, keep_free_bytes=keep_free)
        self._disk.look()
        if settings.sessions.durable:
            keep_sessions(self._store, broker, database, self._clock)
        broker.compactor = database.compact_in_background(ChildRewriter())
        return broker

    def _make_snapshots(self, loop: asyncio.AbstractEventLoop, broker: Broker) -> Snapshots:
        """Create the writer of snapshots; load the last one if all state is in memory."""
        settings = self._settings
        path = self._store.path
        snapshots = Snapshots(
            partial(open_keeper, self._fs, self._clock, path, settings.snapshot.keep),
            interval=settings.snapshot_interval,
            loop=loop,
        )
        if settings.persistence == "snapshot":
            keeper = snapshots.keeper
            memory_max = settings.snapshot.memory_max
            contents = bounded_contents(self._fs, keeper.directory, memory_max)
            load_state(broker, keeper, contents, allow_empty=self._allow_empty)
            snapshots.use(OF_BROKER, partial(begin_capture, broker, loop))
        else:
            snapshots.use(OF_STORE, partial(begin_backup, broker, self._fs, path))
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
        channel = ClientTransport(loop, broker, settings, self._admission, self._channels.discard)
        self._channels.add(channel)
        # The channel has all methods of asyncio.Protocol, but is not a subclass.
        return cast("asyncio.Protocol", channel)

    async def _upkeep(self, broker: Broker, watch: ClockWatch) -> None:
        """Check the store, the disk, the clock and the retained messages every second.

        An error in one check does not prevent the others, and the broker continues.
        """
        retained = broker.retained
        while True:
            await asyncio.sleep(_UPKEEP_SECONDS)
            contain(self._look_at_store)
            if self._disk is not None:
                contain(self._disk.look)
            await contain_async(watch.look)
            contain_with(retained.sweep, _SWEEP_BUDGET)
            await contain_async(partial(_compact, retained))

    def _look_at_store(self) -> None:
        if self.tell_failure() is not None:
            self.stop()

    def _reload_soon(self, broker: Broker) -> None:
        if self._stopping.is_set():
            # The loop may not have its threads any more.
            return
        task = asyncio.get_running_loop().create_task(self._reload(broker))
        self._reloading.add(task)
        task.add_done_callback(self._reloading.discard)

    async def _reload(self, broker: Broker) -> None:
        """Read users, rights and certificates again; keep the old ones if a file is invalid."""
        loop = asyncio.get_running_loop()
        failures = 0
        try:
            read = partial(load_access, self._fs, self._settings.access, self._clock)
            broker.use_access(await loop.run_in_executor(None, read))
            if self._flight is not None:
                self._flight.revoke_tokens()
        except SiltstoneError as exc:
            failures += 1
            log(_LOG, logging.ERROR, "access_reload_failed", error=str(exc))
        for listener in self._listeners:
            try:
                await listener.reload()
            except SiltstoneError as exc:
                failures += 1
                log(_LOG, logging.ERROR, "certificates_reload_failed", error=str(exc))
        if self._flight is not None:
            try:
                await loop.run_in_executor(None, self._flight.reload)
            except SiltstoneError as exc:
                failures += 1
                log(_LOG, logging.ERROR, "certificates_reload_failed", error=str(exc))
        if not failures:
            log(_LOG, logging.INFO, "reloaded")

    async def _close_flight(self) -> None:
        """Stop Flight, in a thread, because its running calls may need the loop."""
        listener, self._flight = self._flight, None
        if listener is not None:
            loop = asyncio.get_running_loop()
            ended = await loop.run_in_executor(None, listener.close, self._settings.drain_timeout)
            self.left_calls = not ended

    async def _close_control(self) -> None:
        """Accept no more commands; a command that comes now waits for the lock."""
        control, self._control = self._control, None
        if control is not None:
            await control.close(self._settings.drain_timeout)

    async def _close_topic_logs(self) -> None:
        server, self._topic_logs = self._topic_logs, None
        if server is not None:
            await server.close(self._settings.drain_timeout)

    async def _stop(self, broker: Broker) -> None:
        """Wait until everything published is on disk, then disconnect the clients."""
        log(_LOG, logging.INFO, "stopping", clients=len(broker.clients))
        for listener in self._listeners:
            await listener.close()
        await self._close_flight()
        await self._close_control()
        await self._close_topic_logs()
        for channel in self._channels:
            channel.stop_reading()
        timeout = _STORE_TIMEOUT if self.tell_failure() is None else _FAILED_TIMEOUT
        await _until(lambda: broker.bridge.pending_bytes == 0, timeout)
        for channel in list(self._channels):
            channel.end_service()
        await _until(lambda: not self._channels, self._settings.drain_timeout)
        for channel in list(self._channels):
            channel.abort()
        # Wait for the wills and the sessions of the clients that were connected.
        timeout = _STORE_TIMEOUT if self.tell_failure() is None else _FAILED_TIMEOUT
        await until_settled(broker, timeout)
        broker.tell_rest()


async def _compact(retained: RetainedMessages) -> None:
    """Compact the log of retained messages, if it is worthwhile."""
    if not retained.needs_compaction():
        return
    loop = asyncio.get_running_loop()
    try:
        with closing(retained.compact()) as steps:
            for step in steps:
                await loop.run_in_executor(None, step)
        log(_LOG, logging.INFO, "retained_log_compacted", messages=len(retained))
    except SiltstoneError as exc:
        log(_LOG, logging.WARNING, "retained_log_compaction_failed", error=str(exc))


def _spare_collector() -> None:
    """Exclude the current objects from garbage collection, and collect less often.

    No short-lived object of the broker is part of a reference cycle
    (tests/integration/test_churn.py). There are many long-lived objects: a full collection would
    block the loop. Each collection examines few objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECT_AT)


async def _until(holds: Callable[[], bool], seconds: float) -> None:
    """Wait until `holds` returns True, at most `seconds`."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    # Poll: the condition depends on threads and clients, and has no common callback.
    while not holds() and loop.time() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(_POLL_SECONDS)
