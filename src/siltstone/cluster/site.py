"""One site of a cluster: it runs NATS, reads the shared logs, and decides when to claim.

A thread has a loop of its own, so that the loop of the broker does not wait for the network. The
shards of the store call the site from their threads; it hands the messages of the shared logs to
them.

Each site reports its progress to the others several times a second (a *beat*). No site challenges a
leader that it hears. After a silence, the other sites claim, one after another.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from threading import Event, Thread
from typing import Any, Final, cast

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from siltstone.clock import Clock
from siltstone.cluster.certificates import SiteCertificates
from siltstone.cluster.copying import answer_request
from siltstone.cluster.epochs import enter_epoch
from siltstone.cluster.nats_process import PAYLOAD_MAX, SPACE_BYTES, USER, NatsProcess
from siltstone.cluster.registry import (
    AnySettings,
    ClusterRegistry,
    DroppedDatabase,
    Registered,
    patiently,
)
from siltstone.cluster.settings import SiteSettings
from siltstone.cluster.shared_log import ApiError, LogTail, NatsConnection, stream_of
from siltstone.cluster.sites.alarms import alarms_of, is_ready
from siltstone.cluster.sites.copier import Copier
from siltstone.cluster.sites.membership import (
    check_role,
    entered,
    has_left,
    is_entered,
    moved,
    preferring,
    with_role,
)
from siltstone.cluster.sites.placing import Placing
from siltstone.cluster.sites.producer_names import ProducerNames, ended_producers
from siltstone.cluster.sites.scrubber import Scrubber
from siltstone.cluster.sites.seen import AWAY_SECONDS, PeerSite, SiteShard, key_of
from siltstone.cluster.sites.standstill import ASK_SECONDS, ClusterStandstill, counted
from siltstone.cluster.sites.state import state_of
from siltstone.cluster.user_nats import UserNats
from siltstone.errors import OutcomeUnknownError, RetryError, SiltstoneError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.guard import contain
from siltstone.logs import log
from siltstone.store.shard.replicated.log import ReplicatedLog
from siltstone.store.shard.replicated.port import KEYVALUE_PREFIX, Founding, S
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.tx.settings import KeyValueSettings
from siltstone.store.writer.replication.codec import VERSION
from siltstone.store.writer.replication.follower import FollowerStatus, PeerProgress
from siltstone.store.writer.replication.health import ClaimTimer, all_can_read
from siltstone.store.writer.replication.sites.alarms import AlarmKind, AlarmWatch
from siltstone.store.writer.replication.sites.membership import ShardSites
from siltstone.store.writer.replication.sites.planning import SiteRole

_LOG: Final = logging.getLogger("siltstone.cluster")
_BEAT_SECONDS: Final = 0.25
_MARK_SECONDS: Final = 1.0
_WATCH_SECONDS: Final = 0.5
# A call without an answer is sent again, which is harmless.
_CALL_SECONDS: Final = 3.0
_SAY_SECONDS: Final = 10.0
_AGAIN_SECONDS: Final = 1.0
_STOP_SECONDS: Final = 15.0
_BEATS: Final = "silt.beat"
_PING_SECONDS: Final = 3
_RECONNECT_SECONDS: Final = 0.1
_RENEW_SECONDS: Final = 5.0
# The interval between two checks of the user's servers, which are also checked at each new
# connection.
_CHECK_SECONDS: Final = 30.0
_TIDY_SECONDS: Final = 2.0
# The same while shards or sites are moving.
_BUSY_SECONDS: Final = 0.3
# A part of a file, or the digest of a whole one.
_COPY_SECONDS: Final = 30.0
_TIDY_LIMIT: Final = 10.0
# The number of attempts to change a placement that others change at the same time.
_ATTEMPTS: Final = 20
_ALARM_SECONDS: Final = 1.0
_HAND_OVER_SECONDS: Final = 0.25
# The time of several beats.
_LISTEN_SECONDS: Final = 1.0
# The longest time that a site waits at its end for others to lead its shards.
_RESIGN_SECONDS: Final = 2.0


def _now_us() -> int:
    return time.monotonic_ns() // 1000


# Opens a database, or creates it with these settings.
OpenDatabase = Callable[[str, DatabaseSettings], object]
OpenMap = Callable[[str, KeyValueSettings], object]
# Deletes the copy of a key-value database with this identity; returns whether there was one.
DropMap = Callable[[str, bytes], bool]


class ClusterSite:
    """This process as a site of a cluster; the store uses it to commit replicated rows."""

    def __init__(self, settings: SiteSettings, fs: FileSystem, clock: Clock) -> None:
        self.site = settings.site
        self._settings = settings
        self._fs = fs
        self._clock = clock
        own = [] if settings.listen is None else [settings.listen]
        hosts = [address.host for address in (*settings.seeds, *own)]
        self._certificates = SiteCertificates(
            fs,
            settings.directory,
            cluster=settings.scope,
            site=settings.site,
            secret=settings.secret,
            hosts=hosts,
            given=settings.tls,
        )
        self._process: NatsProcess | UserNats = (
            UserNats(settings) if settings.nats else NatsProcess(fs, settings, self._certificates)
        )
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._run, name="siltstone-cluster", daemon=True)
        self._started = Event()
        self._failure: SiltstoneError | None = None
        self._connection = NatsConnection()
        self._ready = asyncio.Event()
        self._registry: ClusterRegistry | None = None
        self._shards: dict[str, SiteShard] = {}
        self._peers: dict[str, PeerSite] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._said_at = -_SAY_SECONDS
        self._problem = "it is starting"
        # The reason why the servers of the user could lose data; "" if they could not.
        self._unsafe = ""
        self._reconnected = asyncio.Event()
        self._open_database: OpenDatabase | None = None
        self._open_map: OpenMap | None = None
        self._drop_map: DropMap | None = None
        # The dropped databases of which this site has no copy any more.
        self._dropped: set[bytes] = set()
        # The databases that this process had open.
        self._attached: set[bytes] = set()
        self._opened: set[str] = set()
        # Those of other sites that are being opened.
        self._opening: set[str] = set()
        # The databases whose logs begin with the rows of this site, if they are not there yet.
        self._founding: tuple[str, ...] = ()
        self._connected_at = 0.0
        self._placing = Placing(settings, self._shards, self._peers, self._loop)
        self._alarms = AlarmWatch()
        self._producers = ProducerNames(fs, settings.directory, clock)
        self._copier = Copier(settings, self._shards, self._peers, self._ask_for_copy, self._loop)
        self._scrubber = Scrubber(
            settings,
            self._shards,
            self._placing,
            self._ask_for_copy,
            self._copier,
            self._replace_map,
        )
        self._standstill = ClusterStandstill(self.site, self._shards, self._ask_what_counted)

    # From any thread.

    def start(self) -> None:
        """Start NATS and connect to it. Raises: SiltstoneError."""
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def serve(
        self,
        open_database: OpenDatabase,
        open_map: OpenMap,
        drop_map: DropMap,
        founding: Iterable[str] = (),
    ) -> None:
        """Open and drop every replicated database of the cluster from now on with these functions,
        and open those whose logs begin with the rows of this site.
        """
        self._founding = tuple(founding)
        self._open_database, self._open_map, self._drop_map = open_database, open_map, drop_map

    def stop(self) -> None:
        """End everything that `start` began, after the store was closed."""
        if not self._thread.is_alive():
            self._loop.close()
            return
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(_STOP_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def found(self, database: str, settings: S) -> Founding[S]:
        """Create a replicated database, or learn how another site did; wait for a majority."""
        known = self._call(self._found(database, settings))
        if isinstance(known, RetryError):
            raise known
        assert isinstance(known, Registered)
        return cast("Founding[S]", known.founding)

    @property
    def epoch(self) -> int:
        """How often the logs have begun."""
        return self._settings.epoch

    def found_from_files(
        self, database: str, founding: Founding[DatabaseSettings]
    ) -> tuple[bytes, ...]:
        """Create the logs of a database that only this site has; wait for a majority."""
        known = self._call(self._found_from_files(database, founding))
        if isinstance(known, UsageError):
            raise known
        assert isinstance(known, Registered)
        return known.nonces

    def drop(self, database: str, identity: bytes) -> None:
        """Decide that a database is dropped at all sites.

        Raises: UsageError, RetryError, OutcomeUnknownError.
        """
        self._call(self._drop(database, identity))

    def boot(self) -> int:
        """Return a random number."""
        return secrets.randbits(63)

    def producer(self) -> bytes:
        """Return a name that no other producer has, or had."""
        return self._producers.take()

    def attach(self, shard: ReplicatedLog) -> None:
        self._soon(self._attach, shard)

    def detach(self, shard: ReplicatedLog) -> None:
        self._soon(self._detach, shard)

    def publish(self, shard: ReplicatedLog, data: bytes) -> None:
        self._soon(self._publish, shard, data)

    def fetch(self, shard: ReplicatedLog, sequence: int, reason: str) -> None:
        self._soon(self._fetch, shard, sequence, reason)

    def copy(self, shard: ReplicatedLog, first: int) -> None:
        self._soon(self._copy, shard, first)

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
        self._soon(lambda: self._spawn(self._send(key_of(shard), site, call, then)))

    def resign(self) -> None:
        """Let other sites lead as far as they can, because this site is about to end."""
        with suppress(RuntimeError, TimeoutError):
            work = asyncio.run_coroutine_threadsafe(self._resign(), self._loop)
            work.result(_STOP_SECONDS)

    def change_role(self, site: str, role: SiteRole) -> None:
        """Change what a site is for. Raises: UsageError, OutcomeUnknownError."""
        self._call(self._change_role(site or self.site, role))

    def move_shard(self, shard: str, old: str, new: str) -> None:
        """Replace a replica by another. Raises: UsageError, RetryError, OutcomeUnknownError."""
        self._call(self._move_shard(shard, old, new))

    def prefer_leader(self, shard: str, site: str) -> None:
        """Let a site lead a shard; "" for any. Raises: UsageError, RetryError."""
        self._call(self._change_placement(shard, partial(preferring, site=site)))

    def stand_still(self) -> dict[str, int]:
        """Let all shards of the cluster store no calls for some seconds, and wait until this site
        has everything that was acknowledged; return the next serial of each shard, for
        `stood_still`. Raises: RetryError, OutcomeUnknownError.
        """
        return self._call(self._stand_still())  # type: ignore[no-any-return]

    def stood_still(self, serials: Mapping[str, int]) -> bool:
        """Let the shards continue; return whether none has stored a call since `stand_still`.

        Raises: RetryError, OutcomeUnknownError.
        """
        return self._call(self._stood_still(serials))  # type: ignore[no-any-return]

    def status(self) -> dict[str, Any]:
        """Return the state of the cluster as this site sees it."""
        return self._call(self._status())  # type: ignore[no-any-return]

    @property
    def _has_certificates(self) -> bool:
        """Whether the connections use certificates of this site. Servers of the user may not."""
        return not self._settings.nats or self._settings.tls is not None

    @property
    def _client(self) -> Client:
        return self._connection.client

    def _call(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (TimeoutError, NatsError, ApiError) as exc:
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
            if not self._started.is_set():
                # `start` waits for it.
                reason = str(error) or type(error).__name__
                self._failure = SiltstoneError(f"the site of the cluster cannot start: {reason}")
                self._started.set()

    async def _begin(self) -> None:
        try:
            enter_epoch(self._fs, self._settings.directory, self._settings.epoch)
            if self._has_certificates:
                self._certificates.prepare(self._clock.now_us())
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
        self._connected_at = self._loop.time()
        self._registry = ClusterRegistry(
            self._connection,
            self._clock,
            replicas=self._settings.replicas,
            epoch=self._settings.epoch,
        )
        self._started.set()
        self._spawn(self._open_registry())
        for work in (
            self._beat,
            self._watch,
            self._check_servers,
            self._renew,
            self._mark,
            self._tidy,
            self._hand_over,
            self._scrubber.run,
            self._look_for_alarms,
        ):
            self._spawn(self._forever(work))

    async def _forever(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a loop. If an unexpected error ends it, log the error and run the loop again."""
        while True:
            task = self._start(work())
            await asyncio.wait([task])
            if task.cancelled() or task.exception() is None:
                return
            await asyncio.sleep(_AGAIN_SECONDS)

    async def _connect(self, url: str) -> None:
        client = Client()
        is_ours = not self._settings.nats
        await client.connect(
            url.split(","),
            # The URLs of the user's servers have a user, if one is needed.
            user=USER if is_ours else None,
            password=self._settings.password("client") if is_ours else None,
            tls=self._certificates.context if self._has_certificates else None,
            tls_hostname=self._process.host,
            name=f"siltstone {self.site}",
            max_reconnect_attempts=-1,
            reconnect_time_wait=_RECONNECT_SECONDS,  # type: ignore[arg-type] # it sleeps so long
            connect_timeout=2,
            ping_interval=_PING_SECONDS,
            max_outstanding_pings=2,
            allow_reconnect=True,
            reconnected_cb=self._reconnect,
            error_cb=_ignore,
        )
        await client.subscribe(_BEATS, cb=self._hear)
        await client.subscribe(f"silt.call.{self.site}", cb=self._take_call)
        await client.subscribe(f"silt.copy.{self.site}", cb=self._take_copy)
        await client.subscribe(f"silt.lead.{self.site}", cb=self._take_lead)
        await client.subscribe(f"silt.counted.{self.site}", cb=self._take_question)
        # Only now: all tasks use it from here on.
        self._connection.client = client

    async def _open_registry(self) -> None:
        assert self._registry is not None
        if isinstance(self._process, UserNats):
            await patiently(partial(self._process.check_account, self._client), say=self._say)
        await patiently(partial(self._registry.open, self._settings.scope), say=self._say)
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

    async def _found(self, database: str, settings: AnySettings) -> Registered | RetryError:
        await self._ready.wait()
        assert self._registry is not None
        await self._listen()
        known: Registered | RetryError = await patiently(
            partial(self._found_once, self._registry, database, settings), say=self._say
        )
        self._problem = ""
        return known

    async def _listen(self) -> None:
        """Wait until the reachable sites were heard: one of them may bring a database."""
        await asyncio.sleep(self._connected_at + _LISTEN_SECONDS - self._loop.time())

    async def _found_once(
        self, registry: ClusterRegistry, database: str, settings: AnySettings
    ) -> Registered | RetryError:
        if database in self._opening and await registry.database(database) is None:
            # It was dropped since this site has read of it: this site must not create another one.
            return RetryError(f"{database} was dropped in the cluster at this moment, try again")
        for name, peer in self._peers.items():
            if database in peer.founding and await registry.database(database) is None:
                raise RetryError(
                    f"site {name} begins the logs of {database}: wait until it has finished"
                )
        return await registry.found(database, settings)

    async def _found_from_files(
        self, database: str, founding: Founding[DatabaseSettings]
    ) -> Registered | UsageError:
        await self._ready.wait()
        registry = self._registry
        assert registry is not None

        async def found() -> Registered | UsageError:
            try:
                return await registry.found_from_files(database, founding, self.site)
            except UsageError as exc:
                # Waiting does not help.
                return exc

        known: Registered | UsageError = await patiently(found, say=self._say)
        self._problem = ""
        return known

    async def _drop(self, database: str, identity: bytes) -> None:
        registry = await self._opened_registry()
        known = await registry.database(database)
        if known is not None and known.identity == identity:
            await registry.drop(known)
        elif identity not in await registry.dropped():
            raise UsageError(
                f"the cluster has another database {database}, or none: stop this site to delete "
                f"only its copy"
            )
        # Without its logs, no site acknowledges anything in it any more. What fails now is done
        # again by `_drop_databases`.
        with suppress(TimeoutError, NatsError, ApiError):
            await registry.clear(await registry.dropped_database(identity))

    def _attach(self, log_: ReplicatedLog) -> None:
        sites = len(self._settings.seeds)
        rank = (hash_of(self.site) + log_.shard) % max(1, sites)
        shard = SiteShard(log_, ClaimTimer(rank, _now_us()), rank)
        log_.hold_rows(self._unsafe)
        self._shards[key_of(log_)] = shard
        self._attached.add(log_.identity.database)
        shard.task = self._start(self._tail(shard))

    def _detach(self, log_: ReplicatedLog) -> None:
        shard = self._shards.get(key_of(log_))
        if shard is None or shard.log is not log_:
            return
        del self._shards[key_of(log_)]
        if shard.task is not None:
            shard.task.cancel()
        # Nothing may write to the directory after the store was closed.
        self._copier.stop(key_of(log_))

    async def _tail(self, shard: SiteShard) -> None:
        await self._ready.wait()
        registry = self._registry
        assert registry is not None
        known = await patiently(partial(registry.database, shard.log.database), say=self._say)
        if known is None or known.identity != shard.log.identity.database:
            dropped = await patiently(registry.dropped, say=self._say)
            if shard.log.identity.database in dropped:
                return
            log(
                _LOG,
                logging.CRITICAL,
                "database_not_of_cluster",
                database=shard.log.database,
                remedy="the registry of this cluster has another database of this name, or none",
            )
            return
        if known.by == self.site:
            # The marks of all shards are written: the other sites can copy them.
            await patiently(partial(registry.finish, known), say=self._say)
        try:
            shard.damaged = await asyncio.to_thread(shard.log.damaged)
        except SiltstoneError as exc:
            log(_LOG, logging.ERROR, "scrub_failed", error=str(exc), shard=key_of(shard.log))
        shard.tail = LogTail(self._connection, shard.log, known.nonces[shard.log.shard])
        await shard.tail.run()

    def _publish(self, log_: ReplicatedLog, data: bytes) -> None:
        shard = self._shards.get(key_of(log_))
        if shard is not None and shard.tail is not None:
            self._spawn(shard.tail.publish(data))

    def _fetch(self, log_: ReplicatedLog, sequence: int, reason: str) -> None:
        shard = self._shards.get(key_of(log_))
        log(_LOG, logging.WARNING, "log_gap", shard=key_of(log_), sequence=sequence, reason=reason)
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
        shard.log.take_call(data, partial(self._soon, self._answer, message.reply))

    def _answer(self, reply: str, data: bytes) -> None:
        self._spawn(self._reply(reply, data))

    async def _reply(self, reply: str, data: bytes) -> None:
        with suppress(NatsError, OSError):
            await self._client.publish(reply, data)

    # Copying

    def _copy(self, log_: ReplicatedLog, first: int) -> None:
        """Begin to copy a shard, unless it is being copied."""
        shard = self._shards.get(key_of(log_))
        if shard is not None and shard.log is log_:
            self._spawn(self._copier.copy(shard, first))

    async def _ask_for_copy(self, peer: str, values: dict[str, Any]) -> bytes:
        data = json.dumps(values).encode()
        subject = f"silt.copy.{peer}"
        return (await self._client.request(subject, data, timeout=_COPY_SECONDS)).data

    async def _take_copy(self, message: Msg) -> None:
        """Answer a site that copies; several answers may be under way."""
        self._spawn(self._answer_copy(message))

    async def _answer_copy(self, message: Msg) -> None:
        try:
            values = json.loads(message.data)
            shard = self._shards[str(values["shard"])]
        except (ValueError, KeyError, TypeError):
            await self._reply(message.reply, b"-unknown shard")
            return
        await self._reply(message.reply, await answer_request(shard.log, values))

    async def _beat(self) -> None:
        """Report the progress of this site to the others, and claim the shards without a leader."""
        while True:
            now_us = _now_us()
            facts = self._placing.facts()
            for shard in self._shards.values():
                shard.claims.rank = self._placing.rank(shard, facts)
            shards = {key: self._look_at(shard, now_us) for key, shard in self._shards.items()}
            values = {
                "site": self.site,
                "reads": VERSION,
                "clock_us": self._clock.now_us(),
                "producers": [self._producers.site.hex(), self._producers.base],
                "shards": shards,
                "stopping": self._placing.is_stopping,
                "fit": self._placing.is_fit,
                "founding": self._founding,
            }
            with suppress(NatsError, OSError, asyncio.TimeoutError):
                if self._client.is_connected:
                    beat = self._client.publish(_BEATS, json.dumps(values).encode())
                    await asyncio.wait_for(beat, 1.0)
            await asyncio.sleep(_BEAT_SECONDS)

    def _look_at(self, shard: SiteShard, now_us: int) -> dict[str, Any]:
        """Return the state of a shard; claim it if no leader is heard."""
        view, copying = shard.log.view, self._copier.under_way.get(key_of(shard.log))
        shard.outbox.watch(view.waiting, now_us)
        leads = view.leads and not shard.outbox.is_stalled(now_us)
        if leads:
            shard.claims.heard(now_us)
        elif (
            view.status is FollowerStatus.CURRENT
            and not view.leads
            and not view.is_full
            # It would decide about transactions by what it has.
            and not (shard.damaged and shard.log.is_map)
            and self._placing.is_fit
            and shard.claims.is_due(now_us)
        ):
            shard.claims.claimed(now_us)
            if all_can_read(VERSION, self._versions_heard()):
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
            # Whether changes that counted wait for disk space, or NATS does.
            "full": view.is_full or not self._placing.has_space,
            "damaged": bool(shard.damaged),
            # The first message that must stay in the log while this site copies.
            "hold": 0 if copying is None else copying.hold,
            "copied_bytes": 0 if copying is None else copying.fetched_bytes,
            "copy_bytes": 0 if copying is None else copying.size_bytes,
        }

    def _versions_heard(self) -> list[int]:
        """Return the newest version of records that each site that is heard can read."""
        now = self._loop.time()
        return [peer.reads for peer in self._peers.values() if now - peer.heard_at < AWAY_SECONDS]

    async def _hear(self, message: Msg) -> None:
        """Take the beat of another site."""
        try:
            values = json.loads(message.data)
            site, shards = str(values["site"]), dict(values["shards"])
            reads = int(values.get("reads", 1))
            now_wall_us = self._clock.now_us()
            skew_us = int(values.get("clock_us", now_wall_us)) - now_wall_us
            names, base = values.get("producers", ("", -1))
            producers = (bytes.fromhex(names), int(base)) if names and base >= 0 else None
        except (ValueError, KeyError, TypeError):
            return
        if site == self.site:
            return
        now_us = _now_us()
        is_fit = bool(values.get("fit", True))
        self._peers[site] = PeerSite(
            self._loop.time(),
            shards,
            bool(values.get("stopping")),
            reads,
            skew_us,
            producers,
            is_fit,
            frozenset(map(str, values.get("founding", ()))),
        )
        for key, theirs in shards.items():
            shard = self._shards.get(key)
            if shard is None:
                continue
            view = shard.log.view
            if theirs["leads"] and theirs["term"] >= view.term:
                shard.claims.heard(now_us)
            if theirs["sequence"] == view.progress.sequence:
                shard.log.heard(
                    PeerProgress(
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
        """Keep the placements, and open the databases that other sites created."""
        await self._ready.wait()
        while True:
            await asyncio.sleep(_BUSY_SECONDS if self._placing.is_busy else _TIDY_SECONDS)
            assert self._registry is not None
            try:
                await asyncio.wait_for(self._read_sites(self._registry), _TIDY_LIMIT)
                for key, shard in list(self._shards.items()):
                    placing = self._placing.place(self._registry, key, shard)
                    await asyncio.wait_for(placing, _TIDY_LIMIT)
                self._retire()
                await self._open_databases(await self._drop_databases(self._registry))
                self._problem = ""
            except (TimeoutError, NatsError, ApiError, OSError) as exc:
                self._say(exc)

    async def _read_sites(self, registry: ClusterRegistry) -> None:
        """Read the entries of the sites; enter this site if it is new."""
        sites = await registry.sites()
        producers = self._producers.site
        if not is_entered(sites.get(self.site), self._settings, producers):
            enter = partial(entered, settings=self._settings, producers=producers)
            await registry.change_site(self.site, enter)
            sites = await registry.sites()
        leaving = [name for name, site in sites.items() if site.role is SiteRole.LEAVING]
        placed = await registry.placed() if leaving else frozenset()
        left = [name for name in leaving if name not in placed]
        for name in left:
            if await registry.change_site(name, has_left):
                log(_LOG, logging.INFO, "site_left", site=name)
        self._placing.sites = sites

    def _retire(self) -> None:
        """Let the shards that this site leads forget the producers of processes that have ended."""
        ended = ended_producers(
            self._placing.sites,
            [(self._producers.site, self._producers.base)],
            [peer.producers for name, peer in self._peers.items() if self._placing.is_alive(name)],
        )
        for shard in self._shards.values():
            if shard.log.view.leads:
                shard.log.retire(ended)

    # Handing over

    async def _hand_over(self) -> None:
        """Ask other sites to lead the shards that this site should not lead."""
        while True:
            await asyncio.sleep(_HAND_OVER_SECONDS)
            await self._ask_successors()

    async def _ask_successors(self) -> bool:
        """Ask each successor to claim; return whether there is one."""
        chosen = self._placing.successors()
        for key, name in chosen.items():
            # It may have been closed while the one before it was handed over.
            if (shard := self._shards.get(key)) is None:
                continue
            term = shard.log.view.term
            log(_LOG, logging.INFO, "shard_handed_over", shard=key, site=name, term=term)
            data = json.dumps({"shard": key, "term": term}).encode()
            await self._reply(f"silt.lead.{name}", data)
        return bool(chosen)

    async def _take_lead(self, message: Msg) -> None:
        """Claim a shard, because its leader asks for it. A claim that comes late is harmless."""
        try:
            values = json.loads(message.data)
            shard, term = self._shards[str(values["shard"])], int(values["term"])
        except (ValueError, KeyError, TypeError):
            return
        view = shard.log.view
        is_ready = view.status is FollowerStatus.CURRENT and view.term == term and not view.leads
        is_fit = self._placing.is_fit and not shard.damaged and not view.is_full
        if is_ready and is_fit and all_can_read(VERSION, self._versions_heard()):
            shard.log.claim()

    async def _resign(self) -> None:
        self._placing.is_stopping = True
        for _ in range(int(_RESIGN_SECONDS / _HAND_OVER_SECONDS)):
            if not await self._ask_successors():
                return
            await asyncio.sleep(_HAND_OVER_SECONDS)

    # Standing still for a backup

    async def _stand_still(self) -> dict[str, int]:
        registry = await self._opened_registry()
        keys: set[str] = set()
        for name in await registry.databases():
            known = await registry.database(name)
            if known is not None and known.is_ready:
                keys |= {f"{name}/{shard}" for shard in range(len(known.nonces))}
        try:
            return await self._standstill.reach(keys)
        except BaseException:
            await self._standstill.end(keys)
            raise

    async def _stood_still(self, serials: Mapping[str, int]) -> bool:
        try:
            return await self._standstill.lasted(serials)
        finally:
            await self._standstill.end(serials)

    async def _ask_what_counted(self, peer: str, values: dict[str, Any]) -> bytes:
        data = json.dumps(values).encode()
        subject = f"silt.counted.{peer}"
        return (await self._client.request(subject, data, timeout=ASK_SECONDS)).data

    async def _take_question(self, message: Msg) -> None:
        """Answer how far the log of a shard has counted; several answers may be under way."""
        self._spawn(self._answer_question(message))

    async def _answer_question(self, message: Msg) -> None:
        try:
            values = json.loads(message.data)
            shard, rest = self._shards[str(values["shard"])], values["rest"]
            index = await counted(shard.log, None if rest is None else float(rest))
        except (ValueError, KeyError, TypeError):
            index = None
        await self._reply(message.reply, json.dumps({"index": index}).encode())

    # Membership

    async def _change_role(self, name: str, role: SiteRole) -> None:
        """Change what a site is for. Raises: UsageError, OutcomeUnknownError."""
        registry = await self._opened_registry()
        sites = await registry.sites()
        check_role(sites, name, role, is_alive=self._placing.is_alive)
        await registry.change_site(name, partial(with_role, role=role))
        log(_LOG, logging.INFO, "site_changed", site=name, role=role.value)
        self._placing.sites = await registry.sites()

    async def _move_shard(self, key: str, old: str, new: str) -> None:
        change = partial(moved, self._placing.facts(), old=old, new=new)
        await self._change_placement(key, change)

    async def _change_placement(
        self, key: str, change: Callable[[ShardSites], ShardSites | None]
    ) -> None:
        shard = self._shards.get(key)
        if shard is None:
            raise UsageError(f"expected DATABASE/SHARD of a replicated database, got {key!r}")
        registry, name = await self._opened_registry(), stream_of(shard.log.identity)
        for _ in range(_ATTEMPTS):
            before, revision = await registry.placement(name)
            if before is None:
                break
            after = change(before)
            if after is None or await registry.place(name, after, revision):
                return
        raise RetryError(f"the placement of {key} changes at this moment, try again")

    async def _opened_registry(self) -> ClusterRegistry:
        if not self._ready.is_set() or self._registry is None:
            raise RetryError(f"the cluster does not answer: {self._problem}")
        return self._registry

    async def _drop_databases(self, registry: ClusterRegistry) -> frozenset[bytes]:
        """Delete the copies of databases that were dropped in the cluster, and their entries and
        logs there; return the identities of all dropped databases.
        """
        dropped = await registry.dropped()
        here = {shard.log.identity.database for shard in self._shards.values()}
        for identity in dropped:
            # A copy may be opened again at the moment when it is dropped.
            if identity in self._dropped and identity not in here:
                continue
            known = await registry.dropped_database(identity)
            if await self._drop_here(known):
                # This site may have written a placement after another one had cleared it.
                if not known.is_cleared or identity in self._attached:
                    await registry.clear(known)
                self._opened.discard(known.name)
                self._dropped.add(identity)
        return dropped

    async def _drop_here(self, dropped: DroppedDatabase) -> bool:
        """Delete the copy of this site; return whether none is left."""
        if self._drop_map is None:
            return False
        name = dropped.name.removeprefix(KEYVALUE_PREFIX)
        try:
            was_here = await asyncio.to_thread(self._drop_map, name, dropped.identity)
        except SiltstoneError as exc:
            log(_LOG, logging.ERROR, "drop_failed", database=dropped.name, error=str(exc))
            return False
        if was_here:
            log(_LOG, logging.WARNING, "database_dropped", database=dropped.name)
        return True

    async def _replace_map(self, database: str, sources: Mapping[str, frozenset[str]]) -> None:
        """Delete the copy of a key-value database; it is opened again as by a new site, and its
        shards are copied from these sites only.
        """
        assert self._drop_map is not None
        self._copier.sources |= sources
        identities = {
            shard.log.identity.database
            for shard in self._shards.values()
            if shard.log.database == database
        }
        name = database.removeprefix(KEYVALUE_PREFIX)
        for identity in identities:
            await asyncio.to_thread(self._drop_map, name, identity)
        self._opened.discard(database)

    async def _open_databases(self, dropped: frozenset[bytes]) -> None:
        """Open the replicated databases of the cluster, so that this site has their rows too."""
        if self._open_database is None or self._open_map is None or self._registry is None:
            return
        for name in self._founding:
            if name not in self._opened:
                self._opened.add(name)
                # It exists here, so it keeps its settings.
                settings = DatabaseSettings()
                await asyncio.to_thread(contain, partial(self._open_database, name, settings))
        for name in await self._registry.databases():
            if name not in self._opened:
                known = await self._registry.database(name)
                if known is not None and known.is_ready and known.identity not in dropped:
                    self._opened.add(name)
                    settings = known.founding.settings
                    if isinstance(settings, KeyValueSettings):
                        local = name.removeprefix(KEYVALUE_PREFIX)
                        act = partial(self._open_map, local, settings)
                    else:
                        act = partial(self._open_database, name, settings)
                    self._opening.add(name)
                    try:
                        await asyncio.to_thread(contain, partial(self._open, name, act))
                    finally:
                        self._opening.discard(name)

    def _open(self, name: str, act: Callable[[], object]) -> None:
        """Open a database of another site. What fails for the moment is tried again soon."""
        try:
            act()
        except RetryError:
            self._opened.discard(name)
            raise

    async def _watch(self) -> None:
        """Start NATS again if it has ended, or keeps no logs any more, and connect to it."""
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            if not self._process.is_alive():
                log(_LOG, logging.ERROR, "nats_ended")
            elif await self._has_space_again():
                await self._process.stop()
            else:
                continue
            await patiently(self._restart, say=self._say)

    async def _has_space_again(self) -> bool:
        """Return whether NATS found no space for the logs, and there is some now."""
        had_space = self._placing.has_space
        self._placing.has_space = await self._process.stores()
        if self._placing.has_space:
            return False
        free_bytes = self._fs.free_bytes(self._settings.directory)
        if had_space:
            log(_LOG, logging.ERROR, "nats_without_space", free_bytes=free_bytes)
        return free_bytes >= SPACE_BYTES

    async def _reconnect(self) -> None:
        """Note that there is another connection: the server may have other settings."""
        self._reconnected.set()

    async def _check_servers(self) -> None:
        """Check the servers of the user again, and let rows wait while they could lose data."""
        while isinstance(self._process, UserNats):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._reconnected.wait(), _CHECK_SECONDS)
            self._reconnected.clear()
            danger = await self._process.danger(self._client)
            if danger is None or danger == self._unsafe:
                continue
            self._unsafe = danger
            for shard in self._shards.values():
                shard.log.hold_rows(danger)
            if danger:
                log(_LOG, logging.CRITICAL, "nats_unsafe", error=danger)
            else:
                log(_LOG, logging.WARNING, "nats_safe")

    async def _renew(self) -> None:
        """Replace the certificates that end soon, and use those that the user has replaced."""
        while self._has_certificates:
            await asyncio.sleep(_RENEW_SECONDS)
            try:
                if self._certificates.renew(self._clock.now_us()):
                    self._process.reload()
                    log(_LOG, logging.INFO, "cluster_certificates_replaced", site=self.site)
            except SiltstoneError as exc:
                # Connections go on with the old ones.
                log(_LOG, logging.ERROR, "cluster_certificates_failed", error=str(exc))

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
        now_us = _now_us()
        mine = {key: self._look_at(shard, now_us) for key, shard in self._shards.items()}
        state = {
            "cluster": self._settings.name,
            "site": self.site,
            "problem": self._problem,
            "nats": self._unsafe,
            **state_of(self._placing, self._shards, self._peers, mine, self._scrubber.undecided),
        }
        return {
            **state,
            "ready": is_ready(state),
            "alarms": [
                {"kind": alarm.kind.value, "place": alarm.place, "text": text}
                for alarm, text in self._alarms.texts().items()
            ],
            "counters": {
                "alarms": {kind.value: self._alarms.counts[kind] for kind in AlarmKind},
                "handovers": self._placing.handovers,
                "segments_checked": self._scrubber.checked,
                "segments_damaged": self._scrubber.damaged,
            },
        }

    async def _look_for_alarms(self) -> None:
        """Log the problems that last for a while, and those that are over."""
        while True:
            await asyncio.sleep(_ALARM_SECONDS)
            changes = self._alarms.look(alarms_of(await self._status()), _now_us())
            for alarm, text in changes.raised.items():
                facts = {"kind": alarm.kind.value, "place": alarm.place, "text": text}
                log(_LOG, logging.ERROR, "cluster_alarm_raised", **facts)
            for alarm in changes.cleared:
                facts = {"kind": alarm.kind.value, "place": alarm.place}
                log(_LOG, logging.WARNING, "cluster_alarm_cleared", **facts)

    async def _stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._client.is_connected:
            with suppress(NatsError, OSError, asyncio.TimeoutError):
                await asyncio.wait_for(self._client.close(), 2.0)
        await self._process.stop()


def hash_of(site: str) -> int:
    """Return a number for a site that is the same in every process."""
    return sum(site.encode())


async def _ignore(_error: Exception) -> None:
    """Take an error of the connection: it connects again by itself."""
