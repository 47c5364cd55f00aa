"""One site of a cluster: it runs NATS, reads the shared logs, and decides when to claim.

A thread has a loop of its own, so that the loop of the broker does not wait for the network. The
shards of the store call the site from their threads; it hands the messages of the shared logs to
them.

Each site tells the others several times a second how far it is (a *beat*). A leader that is heard
is not challenged. All other sites claim after a silence, one after another.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from threading import Event, Thread
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from siltstone.clock import Clock
from siltstone.cluster.nats_process import PAYLOAD_MAX, USER, NatsProcess
from siltstone.cluster.registry import Registered, Registry, patiently
from siltstone.cluster.settings import ClusterSettings
from siltstone.cluster.shared_log import ApiError, Connection, LogTail, stream_of
from siltstone.errors import OutcomeUnknownError, SiltstoneError
from siltstone.fs.api import FileSystem
from siltstone.guard import contain
from siltstone.logs import log
from siltstone.store.shard.replicated.calls import decode_call, encode_answer
from siltstone.store.shard.replicated.log import ReplicatedLog
from siltstone.store.shard.replicated.port import Founding
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.replication.follower import Progress, Status
from siltstone.store.writer.replication.health import ClaimTimer, OutboxTimer
from siltstone.store.writer.ticket import Ticket

_LOG: Final = logging.getLogger("siltstone.cluster")
_BEAT_SECONDS: Final = 0.25
_MARK_SECONDS: Final = 1.0
_WATCH_SECONDS: Final = 0.5
# A call without an answer is sent again, which is harmless.
_CALL_SECONDS: Final = 3.0
_SAY_SECONDS: Final = 10.0
_STOP_SECONDS: Final = 15.0
# A site that was not heard for this long is shown as away.
_AWAY_SECONDS: Final = 3.0
_BEATS: Final = "silt.beat"
_PING_SECONDS: Final = 3
_RECONNECT_SECONDS: Final = 0.1
_TIDY_SECONDS: Final = 2.0
_TIDY_LIMIT: Final = 10.0
# A log is trimmed when it has this many messages that all sites have synced.
_TRIM_MESSAGES: Final = 200


@dataclass(slots=True)
class _Shard:
    """A replicated shard of this site, with its tail and its timers."""

    log: ReplicatedLog
    claims: ClaimTimer
    outbox: OutboxTimer = field(default_factory=OutboxTimer)
    tail: LogTail | None = None
    task: asyncio.Task[None] | None = None


@dataclass(slots=True)
class _Peer:
    """What was last heard of another site."""

    heard_at: float
    shards: dict[str, dict[str, Any]]


def _now_us() -> int:
    return time.monotonic_ns() // 1000


# Opens a database, or creates it with these settings.
OpenDatabase = Callable[[str, DatabaseSettings], object]


class ClusterSite:
    """This process as a site of a cluster; the store uses it to commit replicated rows."""

    def __init__(self, settings: ClusterSettings, fs: FileSystem, clock: Clock) -> None:
        self.site = settings.site
        self.boot = secrets.randbits(63)
        self._settings = settings
        self._clock = clock
        self._process = NatsProcess(fs, settings)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="siltstone-cluster", daemon=True)
        self._started = Event()
        self._failure: SiltstoneError | None = None
        self._connection = Connection()
        self._ready = asyncio.Event()
        self._registry: Registry | None = None
        self._shards: dict[str, _Shard] = {}
        self._peers: dict[str, _Peer] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._said_at = -_SAY_SECONDS
        self._problem = "it is starting"
        self._open_database: OpenDatabase | None = None
        self._opened: set[str] = set()

    # From any thread.

    def start(self) -> None:
        """Start NATS and connect to it. Raises: SiltstoneError."""
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def serve(self, open_database: OpenDatabase) -> None:
        """Open every replicated database of the cluster from now on with this function."""
        self._open_database = open_database

    def stop(self) -> None:
        """End everything that `start` began, after the store was closed."""
        if not self._thread.is_alive():
            self._loop.close()
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_STOP_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def found(self, database: str, settings: DatabaseSettings) -> Founding:
        """Create a replicated database, or learn how another site did; wait for a majority."""
        known: Registered = self._call(self._found(database, settings))
        return known.founding

    def producer(self) -> bytes:
        """Return a random name."""
        return secrets.token_bytes(16)

    def attach(self, shard: ReplicatedLog) -> None:
        self._soon(self._attach, shard)

    def detach(self, shard: ReplicatedLog) -> None:
        self._soon(self._detach, shard)

    def publish(self, shard: ReplicatedLog, data: bytes) -> None:
        self._soon(self._publish, shard, data)

    def fetch(self, shard: ReplicatedLog, sequence: int, reason: str) -> None:
        self._soon(self._fetch, shard, sequence, reason)

    def send(
        self,
        shard: ReplicatedLog,
        site: str,
        call: bytes,
        then: Callable[[bytes | None], None],
    ) -> None:
        if len(call) > PAYLOAD_MAX - 1024:
            then(None)
            return
        self._soon(lambda: self._spawn(self._send(_key(shard), site, call, then)))

    def status(self) -> dict[str, Any]:
        """Return the state of the cluster as this site sees it."""
        return self._call(self._status())  # type: ignore[no-any-return]

    @property
    def _client(self) -> Client:
        return self._connection.client

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (NatsError, ApiError) as exc:
            raise OutcomeUnknownError(f"the cluster does not answer: {exc}") from exc

    def _soon(self, act: Callable[..., object], *values: object) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(act, *values)

    # On the loop.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._spawn(self._begin())
        self._loop.run_forever()
        self._loop.close()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        _ = self._start(work)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _LOG.error("cluster_task_failed", exc_info=error, extra={"facts": {}})

    async def _begin(self) -> None:
        try:
            ports = await self._process.start()
            await self._connect(ports.client)
        except SiltstoneError as exc:
            self._failure = exc
            self._started.set()
            return
        except (NatsError, OSError) as exc:
            self._failure = SiltstoneError(f"cannot connect to NATS: {exc}")
            self._started.set()
            return
        self._registry = Registry(self._connection, self._clock, replicas=self._settings.replicas)
        self._started.set()
        for work in (
            self._open_registry(),
            self._beat(),
            self._watch(),
            self._mark(),
            self._tidy(),
        ):
            self._spawn(work)

    async def _connect(self, url: str) -> None:
        client = Client()
        await client.connect(
            url,
            user=USER,
            password=self._settings.password("client"),
            name=f"siltstone {self.site}",
            max_reconnect_attempts=-1,
            reconnect_time_wait=_RECONNECT_SECONDS,  # type: ignore[arg-type] # it sleeps so long
            connect_timeout=2,
            ping_interval=_PING_SECONDS,
            max_outstanding_pings=2,
            allow_reconnect=True,
            error_cb=_ignore,
        )
        await client.subscribe(_BEATS, cb=self._hear)
        await client.subscribe(f"silt.call.{self.site}", cb=self._take_call)
        # Only now: all tasks use it from here on.
        self._connection.client = client

    async def _open_registry(self) -> None:
        assert self._registry is not None
        await patiently(self._registry.open, say=self._say)
        self._problem = ""
        self._ready.set()
        log(_LOG, logging.INFO, "cluster_joined", cluster=self._settings.name, site=self.site)

    def _say(self, error: Exception) -> None:
        self._problem = str(error) or type(error).__name__
        now = self._loop.time()
        if now - self._said_at >= _SAY_SECONDS:
            self._said_at = now
            log(
                _LOG,
                logging.WARNING,
                "cluster_waiting",
                cluster=self._settings.name,
                error=self._problem,
            )

    async def _found(self, database: str, settings: DatabaseSettings) -> Registered:
        await self._ready.wait()
        assert self._registry is not None
        known: Registered = await patiently(
            partial(self._registry.found, database, settings), say=self._say
        )
        self._problem = ""
        return known

    def _attach(self, log_: ReplicatedLog) -> None:
        sites = len(self._settings.seeds)
        rank = (hash_of(self.site) + log_.shard) % max(1, sites)
        shard = _Shard(log_, ClaimTimer(rank, _now_us()))
        self._shards[_key(log_)] = shard
        shard.task = self._start(self._tail(shard))

    def _detach(self, log_: ReplicatedLog) -> None:
        shard = self._shards.pop(_key(log_), None)
        if shard is not None and shard.task is not None:
            shard.task.cancel()

    async def _tail(self, shard: _Shard) -> None:
        await self._ready.wait()
        registry = self._registry
        assert registry is not None
        known = await patiently(partial(registry.database, shard.log.database), say=self._say)
        if known is None or known.identity != shard.log.identity.database:
            log(
                _LOG,
                logging.CRITICAL,
                "database_not_of_cluster",
                database=shard.log.database,
                remedy="the registry of this cluster has another database of this name, or none",
            )
            return
        shard.tail = LogTail(self._connection, shard.log, known.nonces[shard.log.shard])
        await shard.tail.run()

    def _publish(self, log_: ReplicatedLog, data: bytes) -> None:
        shard = self._shards.get(_key(log_))
        if shard is not None and shard.tail is not None:
            self._spawn(shard.tail.publish(data))

    def _fetch(self, log_: ReplicatedLog, sequence: int, reason: str) -> None:
        shard = self._shards.get(_key(log_))
        log(_LOG, logging.WARNING, "log_gap", shard=_key(log_), sequence=sequence, reason=reason)
        if shard is not None and shard.tail is not None:
            shard.tail.read_from(sequence)

    async def _send(
        self, key: str, site: str, call: bytes, then: Callable[[bytes | None], None]
    ) -> None:
        answer = None
        with suppress(NatsError, asyncio.TimeoutError, OSError):
            data = key.encode() + b"\0" + call
            message = await self._client.request(f"silt.call.{site}", data, timeout=_CALL_SECONDS)
            answer = message.data
        then(answer)

    async def _take_call(self, message: Msg) -> None:
        """Give a call of another site to its shard; answer when it has an outcome."""
        key, _, data = message.data.partition(b"\0")
        shard = self._shards.get(key.decode())
        if shard is None or not message.reply:
            return
        try:
            call = decode_call(data)
            ticket = Ticket(call.row_count, 1)
            shard.log.accept(call, ticket)
        except SiltstoneError as exc:
            await self._client.publish(message.reply, encode_answer(exc))
            return
        ticket.on_done(partial(self._soon, self._answer, message.reply))

    def _answer(self, reply: str, ticket: Ticket) -> None:
        outcome = ticket.error or ticket.outcome
        if outcome is not None:
            self._spawn(self._reply(reply, encode_answer(outcome)))

    async def _reply(self, reply: str, data: bytes) -> None:
        with suppress(NatsError, OSError):
            await self._client.publish(reply, data)

    async def _beat(self) -> None:
        """Tell the other sites how far this one is, and claim the shards without a leader."""
        while True:
            now_us = _now_us()
            shards = {key: self._look_at(shard, now_us) for key, shard in self._shards.items()}
            values = {"site": self.site, "boot": self.boot, "shards": shards}
            with suppress(NatsError, OSError, asyncio.TimeoutError):
                if self._client.is_connected:
                    beat = self._client.publish(_BEATS, json.dumps(values).encode())
                    await asyncio.wait_for(beat, 1.0)
            await asyncio.sleep(_BEAT_SECONDS)

    def _look_at(self, shard: _Shard, now_us: int) -> dict[str, Any]:
        """Return the state of a shard; claim it if no leader is heard."""
        view = shard.log.view
        shard.outbox.watch(view.waiting, now_us)
        leads = view.leads and not shard.outbox.is_stalled(now_us)
        if leads:
            shard.claims.heard(now_us)
        elif view.status is Status.CURRENT and not view.leads and shard.claims.is_due(now_us):
            shard.claims.claimed(now_us)
            shard.log.claim()
        if shard.log.waits:
            shard.log.nudge()
        return {
            "sequence": view.progress.sequence,
            "index": view.progress.index,
            "chain": view.progress.chain.hex(),
            "term": view.term,
            "leader": view.leader,
            "leads": leads,
            "synced": view.synced,
            "status": view.status.value,
            "reason": view.reason,
        }

    async def _hear(self, message: Msg) -> None:
        """Take the beat of another site."""
        try:
            values = json.loads(message.data)
            site, shards = str(values["site"]), dict(values["shards"])
        except (ValueError, KeyError, TypeError):
            return
        if site == self.site:
            return
        now_us = _now_us()
        self._peers[site] = _Peer(self._loop.time(), shards)
        for key, theirs in shards.items():
            shard = self._shards.get(key)
            if shard is None:
                continue
            view = shard.log.view
            if theirs["leads"] and theirs["term"] >= view.term:
                shard.claims.heard(now_us)
            if theirs["sequence"] == view.progress.sequence:
                shard.log.heard(
                    Progress(
                        sequence=theirs["sequence"],
                        index=theirs["index"],
                        chain=bytes.fromhex(theirs["chain"]),
                    )
                )

    async def _mark(self) -> None:
        """Let the shards sync and write their marks."""
        while True:
            await asyncio.sleep(_MARK_SECONDS)
            for shard in list(self._shards.values()):
                shard.log.tick()

    async def _tidy(self) -> None:
        """Trim the logs that this site leads, and open the databases that other sites created."""
        await self._ready.wait()
        while True:
            await asyncio.sleep(_TIDY_SECONDS)
            try:
                for key, shard in list(self._shards.items()):
                    await asyncio.wait_for(self._trim(key, shard), _TIDY_LIMIT)
                await self._open_databases()
                self._problem = ""
            except (TimeoutError, NatsError, ApiError, OSError) as exc:
                self._say(exc)

    async def _trim(self, key: str, shard: _Shard) -> None:
        """Trim the log below what every site has synced, if all of them are there."""
        view, tail, registry = shard.log.view, shard.tail, self._registry
        now = self._loop.time()
        synced = {
            name: int(peer.shards[key]["synced"])
            for name, peer in self._peers.items()
            if key in peer.shards and now - peer.heard_at < _AWAY_SECONDS
        } | {self.site: view.synced}
        if not view.leads or tail is None or registry is None:
            return
        if len(synced) != len(self._settings.seeds):
            return
        if min(synced.values()) - tail.first < _TRIM_MESSAGES:
            return
        below = await registry.plan_trim(
            stream_of(shard.log.identity), synced, tail.last, _now_us()
        )
        if below is not None:
            await tail.trim(below)
            log(_LOG, logging.DEBUG, "log_trimmed", shard=key, first=below)

    async def _open_databases(self) -> None:
        """Open the replicated databases of the cluster, so that this site has their rows too."""
        if self._open_database is None or self._registry is None:
            return
        for name in await self._registry.databases():
            if name not in self._opened:
                known = await self._registry.database(name)
                if known is not None and known.is_ready:
                    self._opened.add(name)
                    settings = known.founding.settings
                    await asyncio.to_thread(contain, partial(self._open_database, name, settings))

    async def _watch(self) -> None:
        """Start NATS again if it has ended, and connect to it."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if not self._process.is_alive():
                log(_LOG, logging.ERROR, "nats_ended")
                await patiently(self._restart, say=self._say)

    async def _restart(self) -> None:
        """Start NATS again. The client connects to its new port by itself, and subscribes again."""
        ports = await self._process.start()
        if not self._client.is_closed:
            self._client.set_server_pool([ports.client])
            return
        # It was refused for good; the bucket belongs to the connection.
        await self._connect(ports.client)
        await self._open_registry()

    async def _status(self) -> dict[str, Any]:
        now_us, now = _now_us(), self._loop.time()
        sites: dict[str, Any] = {self.site: {"state": "here"}}
        for name, peer in self._peers.items():
            away = now - peer.heard_at > _AWAY_SECONDS
            sites[name] = {"state": "away" if away else "there"}
        shards: dict[str, Any] = {}
        for key, shard in self._shards.items():
            mine = self._look_at(shard, now_us)
            known = {self.site: mine} | {
                name: peer.shards[key]
                for name, peer in self._peers.items()
                if key in peer.shards and sites[name]["state"] == "there"
            }
            last = max([each["sequence"] for each in known.values()])
            leaders = [name for name, each in known.items() if each["leads"]]
            shards[key] = {
                "leader": leaders[0] if leaders else None,
                "term": mine["term"],
                "first": 1 if shard.tail is None else shard.tail.first,
                "last": last,
                "waiting_calls": shard.log.waits,
                "replicas": {
                    name: {
                        "sequence": each["sequence"],
                        "lag": last - each["sequence"],
                        "synced": each["synced"],
                        "status": each["status"],
                        "reason": each["reason"],
                    }
                    for name, each in sorted(known.items())
                },
            }
        return {
            "cluster": self._settings.name,
            "site": self.site,
            "problem": self._problem,
            "sites": dict(sorted(sites.items())),
            "shards": dict(sorted(shards.items())),
        }

    async def _stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._client.is_connected:
            with suppress(NatsError, OSError, asyncio.TimeoutError):
                await asyncio.wait_for(self._client.close(), 2.0)
        await self._process.stop()


def _key(shard: ReplicatedLog) -> str:
    return f"{shard.database}/{shard.shard}"


def hash_of(site: str) -> int:
    """Return a number for a site that is the same in every process."""
    return sum(site.encode())


async def _ignore(_error: Exception) -> None:
    """Take an error of the connection: it connects again by itself."""
