"""A cluster in one process: shared logs in lists, and the sites that read them."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import PurePath
from threading import RLock
from typing import Any

from siltstone.clock import Clock, SystemClock
from siltstone.errors import OutcomeUnknownError, SiltstoneError, UsageError
from siltstone.fs.api import FileSystem
from siltstone.fs.memory import MemoryFileSystem, PowerCut
from siltstone.store.directory import Store
from siltstone.store.kv.api import EngineOpener
from siltstone.store.kv.rocks import RocksEngine
from siltstone.store.shard.replicated.copying import (
    CopyFile,
    Offer,
    collect,
    digest_of_file,
    read_part,
)
from siltstone.store.shard.replicated.log import ReplicatedLog
from siltstone.store.shard.replicated.port import Founding, S
from siltstone.store.slab.manifest import Manifest
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.replication.codec import encode
from siltstone.store.writer.replication.follower import FollowerStatus, LogBounds
from siltstone.store.writer.replication.messages import Genesis, LogIdentity

NONCE = b"n" * 16
Key = tuple[str, int]


class SharedLogs:
    """The logs of all shards, and what the sites have agreed on."""

    def __init__(self) -> None:
        self.lock = RLock()
        self.messages: dict[Key, list[bytes]] = {}
        # The messages before it are trimmed.
        self.first = 1
        self.founded: dict[str, Any] = {}
        # The identities of the databases that were dropped.
        self.dropped: set[bytes] = set()
        self.sites: dict[str, MemorySite] = {}
        self.epoch = 1

    def publish(self, key: Key, data: bytes) -> None:
        with self.lock:
            messages = self.messages[key]
            messages.append(data)
            for site in self.sites.values():
                site.deliver(key, len(messages), data)

    def site(self, name: str) -> MemorySite:
        return MemorySite(name, self)


class MemorySite:
    """One site, as the shards of its store see the cluster."""

    def __init__(self, name: str, logs: SharedLogs) -> None:
        self.site = name
        self.logs = logs
        self.attached: dict[Key, ReplicatedLog] = {}
        # What this site publishes is lost while it is set.
        self.is_cut = False
        # The answers to calls of this site are lost while it is set.
        self.loses_answers = False
        # What this site publishes is stored twice while it is set.
        self.repeats = False
        # How many parts of files this site may still copy from others.
        self.copies = 1 << 60
        # After so many operations of the copy the power is cut.
        self.cut_after: int | None = None
        self.copying: threading.Thread | None = None
        # If this site repairs: its own files that are kept.
        self.repairs: frozenset[str] | None = None
        self.fetched = -1
        self.failed: BaseException | None = None
        with logs.lock:
            logs.sites[name] = self

    def open(
        self,
        fs: FileSystem,
        clock: Clock | None = None,
        open_engine: EngineOpener = RocksEngine,
    ) -> Store:
        return Store(
            PurePath("/store"),
            fs=fs,
            clock=clock or SystemClock(),
            cluster=self,
            open_engine=open_engine,
        )

    def found(self, database: str, settings: S) -> Founding[S]:
        with self.logs.lock:
            known: dict[str, Any] = self.logs.founded
            if database not in known:
                salt = secrets.randbits(63)
                known[database] = Founding(salt=salt, created_us=1_000_000, settings=settings)
            founding: Founding[S] = known[database]
            return founding

    @property
    def epoch(self) -> int:
        return self.logs.epoch

    def found_from_files(
        self, database: str, founding: Founding[DatabaseSettings]
    ) -> tuple[bytes, ...]:
        with self.logs.lock:
            logs = self.logs
            known = logs.founded.setdefault(database, founding)
            if known.salt != founding.salt:
                raise UsageError(f"the cluster has another database {database!r}")
            manifest = Manifest(
                database=database, salt=founding.salt, settings=founding.settings, slabs=()
            )
            for shard in range(founding.settings.shards):
                identity = LogIdentity(
                    database=bytes.fromhex(manifest.identity.text), shard=shard, epoch=logs.epoch
                )
                logs.messages[database, shard] = [encode(Genesis(identity, NONCE))] * 2
            logs.first = 2
        return (NONCE,) * founding.settings.shards

    def drop(self, database: str, identity: bytes) -> None:
        if self.is_cut:
            raise OutcomeUnknownError("the cluster does not answer")
        with self.logs.lock:
            self.logs.dropped.add(identity)
            del self.logs.founded[database]
            for key in [key for key in self.logs.messages if key[0] == database]:
                del self.logs.messages[key]

    def boot(self) -> int:
        return secrets.randbits(63)

    def producer(self) -> bytes:
        return secrets.token_bytes(16)

    def attach(self, log: ReplicatedLog) -> None:
        key = (log.database, log.shard)
        with self.logs.lock:
            genesis = encode(Genesis(log.identity, NONCE))
            messages = self.logs.messages.setdefault(key, [genesis])
            self.attached[key] = log
            log.found(LogBounds(first=self.logs.first, last=len(messages), nonce=NONCE))
            start = log.view.progress.sequence
            if start + 1 < self.logs.first:
                return
            for sequence, data in enumerate(messages[start:], start + 1):
                log.deliver(sequence, data)

    def deliver(self, key: Key, sequence: int, data: bytes) -> None:
        if key in self.attached:
            self.attached[key].deliver(sequence, data)

    def detach(self, log: ReplicatedLog) -> None:
        with self.logs.lock:
            self.attached.pop((log.database, log.shard), None)

    def publish(self, log: ReplicatedLog, data: bytes) -> None:
        if not self.is_cut:
            for _ in range(2 if self.repeats else 1):
                self.logs.publish((log.database, log.shard), data)

    def fetch(self, log: ReplicatedLog, sequence: int, reason: str) -> None:
        raise AssertionError(f"a log in memory has no gaps: {sequence} {reason}")

    def copy(self, log: ReplicatedLog, first: int) -> None:
        # Not on the thread of the shard, which the installation ends.
        thread = threading.Thread(target=self._copy, args=(log,))
        thread.start()
        self.copying = thread

    def _copy(self, log: ReplicatedLog) -> None:
        key = (log.database, log.shard)
        peers = [site for name, site in self.logs.sites.items() if name != self.site]
        for peer in peers:
            other = peer.attached.get(key)
            if other is not None and other.view.status is FollowerStatus.CURRENT:
                found: Future[Offer | None] = Future()
                other.ask_for_offer(found.set_result)
                offer = found.result(20.0)
                assert offer is not None
                offer = Offer.decode(offer.encode())
                source = _Files(self, other)
                if self.cut_after is not None:
                    assert isinstance(log.fs, MemoryFileSystem)
                    log.fs.operations_left = self.cut_after
                try:
                    kept = self.repairs
                    self.fetched = collect(log.staging(), offer, source, kept or frozenset())
                    log.install(offer, again=kept is not None)
                except (PowerCut, SiltstoneError) as exc:
                    self.failed = exc
                return

    def send(
        self, log: ReplicatedLog, site: str, call: bytes, then: Callable[[bytes | None], None]
    ) -> None:
        peer = self.logs.sites.get(site)
        other = None if peer is None else peer.attached.get((log.database, log.shard))
        if other is None or self.is_cut:
            then(None)
            return
        other.take_call(call, lambda answer: then(None if self.loses_answers else answer))

    def crash(self) -> None:
        """Read and publish nothing more, as a process that was killed."""
        with self.logs.lock:
            self.is_cut = True
            self.attached.clear()
            if self.logs.sites.get(self.site) is self:
                del self.logs.sites[self.site]


class _Files:
    """The files of another site."""

    def __init__(self, site: MemorySite, log: ReplicatedLog) -> None:
        self._site = site
        self._log = log

    def digest(self, file: CopyFile) -> bytes:
        return digest_of_file(self._log.fs, self._log.place, file.path, file.end)

    def read(self, file: CopyFile, start: int) -> Iterator[bytes]:
        for at in range(start, file.end, 8192):
            if self._site.copies == 0:
                raise OutcomeUnknownError("the other site does not answer")
            self._site.copies -= 1
            length = min(8192, file.end - at)
            yield read_part(self._log.fs, self._log.place, file.path, at, length)
