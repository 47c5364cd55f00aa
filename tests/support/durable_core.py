"""A broker core on a real store in memory, which can be killed and started again.

The store has threads of its own, but tests are deterministic: an append reaches the store when the
test says so, and `run` waits for the commits of sessions, unless these are held.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import PurePath
from random import Random
from threading import Event, Thread
from typing import Any, Final

from siltstone.broker.access.access import Access
from siltstone.broker.broker import Broker
from siltstone.broker.retained.log import LOG_NAME, LOG_SETTINGS
from siltstone.broker.retained.messages import RetainedMessages
from siltstone.broker.sessions.durables import Durables
from siltstone.broker.sessions.startup import begin_keeping, begin_reclaiming, begin_run
from siltstone.clock import Clock, GuardedClock, ManualClock
from siltstone.errors import DiskError, SiltstoneError
from siltstone.fs.memory import MemoryFileSystem
from siltstone.session.archive.records import SavedSession
from siltstone.session.archive.store import ARCHIVE_NAME, ARCHIVE_SETTINGS, SessionArchive
from siltstone.session.durable.delivered_source import DeliveredSource
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.kv.memory import MemoryEngine
from tests.support.broker_core import NOW_US, OPEN, Core, ScriptedDatabase
from tests.support.builders import NAME, PATH, settings_of
from tests.support.reading import read_rows
from tests.support.tx_model import queue_of

_ROUNDS_MAX: Final = 1000


class Disk:
    """The state that outlives a broker: files, a key-value store, and the wall clock."""

    def __init__(
        self, fs: MemoryFileSystem, engines: dict[PurePath, MemoryEngine], clock: ManualClock
    ) -> None:
        self.fs = fs
        self.engines = engines
        self.clock = clock

    def crashed(self, rng: Random | None = None) -> Disk:
        """Return the disk after a power cut now."""
        engines = {path: engine.reopened() for path, engine in self.engines.items()}
        return Disk(self.fs.crash_clone(rng), engines, ManualClock(self.clock.now_us()))

    def open_engine(self, path: PurePath) -> MemoryEngine:
        before = self.engines.get(path)
        self.engines[path] = MemoryEngine() if before is None else before.reopened()
        return self.engines[path]


def new_disk() -> Disk:
    """Return an empty disk."""
    return Disk(MemoryFileSystem(), {}, ManualClock(NOW_US))


class HeldDatabase(ScriptedDatabase):
    """A real database whose appends reach it when they are settled."""

    def __init__(self, real: Database, *, automatic: bool) -> None:
        super().__init__(automatic=automatic)
        self._real = real
        self._log, self._keyed = real._log, None  # noqa: SLF001 - reads go to the real one
        self._source, self._feeds = real._source, real._feeds  # noqa: SLF001
        self._opened = real._opened  # noqa: SLF001

    def settle(self, error: Exception | None = None, *, index: int = 0) -> None:
        """Store one pending append, or let it fail; appends of a shard keep their order."""
        if error is None:
            append = self.pending[index]
            ticket = self._real.append(append.columns, producer=append.producer)
            ticket.wait()
        super().settle(error, index=index)


class DurableCore(Core):
    """A core whose sessions outlive it; with a boot id it has a guarded clock."""

    def __init__(
        self,
        disk: Disk | None = None,
        *,
        access: Access = OPEN,
        automatic: bool = True,
        shards: int = 1,
        boot: str = "",
        reclaim: str = "none",
        **others: Any,
    ) -> None:
        super().__init__(access=access, **others)
        self.others = others | {"access": access, "automatic": automatic, "shards": shards}
        self.others |= {"boot": boot, "reclaim": reclaim}
        self.disk = new_disk() if disk is None else disk
        self.clock = self.disk.clock
        self.shell._clock = self.clock  # noqa: SLF001 - the time of the disk
        self.guarded = GuardedClock(self.clock, jump_seconds=60, confirm_seconds=3600, boot=boot)
        told: Clock = self.guarded if boot else self.clock
        self.store = Store(PATH, fs=self.disk.fs, clock=told, open_engine=self.disk.open_engine)
        self.real = self.store.ensure(
            NAME, settings_of(shards=shards, flush_interval=0.0, reclaim=reclaim)
        )
        self.database: HeldDatabase = HeldDatabase(self.real, automatic=automatic)
        log = self.store.ensure(LOG_NAME, LOG_SETTINGS.changed({"segment_bytes": 64 * 1024}))
        self.retained_log: HeldDatabase = HeldDatabase(log, automatic=automatic)
        settings = self.broker.settings
        retained = RetainedMessages(self.retained_log, told, settings.limits)
        retained.load()
        self.broker = Broker(
            settings,
            database=self.database,
            retained=retained,
            access=access,
            clock=told,
            shell=self.shell,
        )
        keyvalue = self.store.keyvalue(ARCHIVE_NAME, ARCHIVE_SETTINGS)
        self._queue = queue_of(keyvalue)
        self.archive = SessionArchive(keyvalue, told, self.real.origin)
        self.durables: Durables = begin_keeping(
            self.broker,
            self.archive,
            DeliveredSource(self.database.feed_source()),
            begin_run(self.archive, told),
        )
        self.durables.load_interest()
        self.durables.feeding.listen_with(self.real.on_commit)
        if reclaim == "delivered":
            begin_reclaiming(self.broker, self.real)
        self._held: Event | None = None
        self._holding: Thread | None = None

    def run(self) -> None:
        """Run everything that is due now, with the results of commits and reads unless these are
        held.
        """
        rounds = 0
        while True:
            rounds += 1
            assert rounds < _ROUNDS_MAX, "the broker does not come to rest"
            self.shell.run()
            if self._held is None:
                self.flush_commits()
                if self.shell.works:
                    self.shell.finish_works()
                    continue
            if not self.shell.acts:
                return

    def flush_commits(self) -> None:
        """Wait until everything that was passed to the archive is durable or has failed."""
        with suppress(SiltstoneError):
            self._queue.order(lambda: None)

    def hold(self) -> None:
        """Hold commits of sessions, and reads of the store, from now on."""
        if self._held is None:
            began, self._held = Event(), Event()
            self._holding = Thread(target=_hold, args=(self._queue.order, began, self._held))
            self._holding.start()
            began.wait()

    def let_go(self) -> None:
        """Release held commits, without running what follows from them."""
        held, self._held = self._held, None
        if held is not None and self._holding is not None:
            held.set()
            self._holding.join()
            self.flush_commits()

    def break_commits(self) -> None:
        """Make all later commits of sessions fail."""

        def fail(_: object) -> None:
            raise DiskError(PATH, "write", "scripted", errno=5)

        for engine in self.disk.engines.values():
            engine.write = fail  # type: ignore[method-assign,assignment]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold commits in this context."""
        self.hold()
        try:
            yield
        finally:
            self.let_go()

    @property
    def is_held(self) -> bool:
        return self._held is not None

    def crash(self, rng: Random | None = None, **changes: Any) -> DurableCore:
        """Return a core on the disk as it is after a power cut now."""
        disk = self.disk.crashed(rng)
        self.close()
        return DurableCore(disk, **(self.others | changes))

    def commits(self) -> int:
        """Return the number of commits of sessions and groups since the disk was created."""
        self.flush_commits()
        return self._queue.committer.serial

    def connected(self) -> list[str]:
        """Return the sessions that are connected according to the disk."""
        return [each.client_id for each in self.archive.list() if each.connected]

    def close(self) -> None:
        """End the threads."""
        self.let_go()
        with suppress(SiltstoneError):
            self.store.close()

    def peek(self, client_id: str) -> SavedSession | None:
        """Return the stored state of a session."""
        return self.archive.peek(client_id)

    def stored(self) -> list[bytes]:
        """Return the values in the store, in order of time."""
        return [row.value for row in read_rows(self.real, "#")]

    def rows_behind(
        self, topic_filter: str, *places: Mapping[int, int]
    ) -> list[tuple[int, int, str]]:
        """Return shard, serial and topic of the stored rows that are before none of the places."""
        return [
            (row.shard, row.serial, row.topic)
            for row in read_rows(self.real, topic_filter)
            if all(row.serial >= place.get(row.shard, 0) for place in places)
        ]


def _hold(order: Any, began: Event, go: Event) -> None:
    def wait() -> None:
        began.set()
        go.wait()

    order(wait)
