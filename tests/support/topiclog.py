"""Topic logs on a disk in memory, served by this process or by another one."""

from __future__ import annotations

import asyncio
import socket
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path, PurePath
from threading import Event, Thread

import uvloop

import siltstone
from siltstone.clock import ManualClock
from siltstone.fs.memory import MemoryFileSystem
from siltstone.store.database import Database
from siltstone.store.directory import Store
from siltstone.store.kv.memory import MemoryEngine
from siltstone.store.segment.writer import Room
from siltstone.store.shard.block_log import BlockLog, BlockLogs
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.topiclog.hub import HubLimits
from siltstone.topiclog.log import DATABASE, TopicLogs, open_topic_logs
from siltstone.topiclog.protocol import RequestKind, encode_version, request, send_head
from siltstone.topiclog.server import TopicLogServer
from siltstone.topiclog.tables import table_of_ends
from tests.support.broker_process import BrokerProcess, broker_process
from tests.support.builders import NOW_US, PATH, SEGMENT_BYTES

SMALL = DatabaseSettings(segment_bytes=SEGMENT_BYTES)
WAIT_SECONDS = 20.0


@dataclass
class LogWorld:
    """A disk, a clock and the key-value engines, which outlive what is opened on them."""

    fs: MemoryFileSystem = field(default_factory=MemoryFileSystem)
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW_US))
    engines: dict[PurePath, MemoryEngine] = field(default_factory=dict)

    def engine(self, path: PurePath) -> MemoryEngine:
        engine = self.engines[path].reopened() if path in self.engines else MemoryEngine()
        self.engines[path] = engine
        return engine

    def store(self) -> Store:
        return Store(PATH, fs=self.fs, clock=self.clock, open_engine=self.engine)

    @contextmanager
    def logs(self, settings: DatabaseSettings = SMALL) -> Iterator[tuple[TopicLogs, Database]]:
        """Open all topic logs, which recovers them."""
        with self.store() as store:
            yield open_topic_logs(store, settings)

    @contextmanager
    def blocks(self, settings: DatabaseSettings = SMALL) -> Iterator[BlockLogs]:
        """Open only the database of topics."""
        with self.store() as store:
            yield store.ensure(DATABASE, settings).block_logs()


def offsets_of(values: Sequence[bytes]) -> bytes:
    """Return the offsets of messages in the form of the store."""
    return array("i", [0, *accumulate(map(len, values))]).tobytes()


def append(log: BlockLog, *values: bytes) -> int:
    """Store messages, and return the offset of the first."""
    return log.append(offsets_of(values), b"".join(values)).wait().first_serial()


def taken(log: BlockLog, size: int, rows: int = 1) -> Room:
    """Reserve a place for this number of bytes, and wait for it."""
    found: list[Room | Exception] = []
    there = Event()

    def then(place: Room | Exception) -> None:
        found.append(place)
        there.set()

    log.take_room(size, rows, then)
    assert there.wait(WAIT_SECONDS)
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


def fill(room: Room, *values: bytes) -> bytes:
    """Write messages into a reserved place, and return their offsets."""
    data = b"".join(values)
    room.contents()[: len(data)] = data
    room.filled = len(data)
    return offsets_of(values)


def append_large(log: BlockLog, *values: bytes) -> int:
    """Store messages through a reserved place, and return the offset of the first."""
    room = taken(log, sum(map(len, values)), len(values))
    return log.append_room(fill(room, *values), room).wait().first_serial()


def all_values(log: BlockLog, offset: int = 0) -> list[bytes]:
    """Return the values of all messages from an offset on."""
    values: list[bytes] = []
    while runs := log.read(offset, bytes_max=1 << 20):
        for run in runs:
            assert run.first_offset == offset
            first = run.offsets[0]
            for start, end in zip(run.offsets, run.offsets[1:], strict=False):
                values.append(bytes(run.data[start - first : end - first]))
            offset = run.next_offset
    return values


@contextmanager
def served(
    path: Path,
    *,
    settings: DatabaseSettings = SMALL,
    limits: HubLimits | None = None,
    body_timeout: float = 30.0,
) -> Iterator[int]:
    """Serve the topic logs of a directory from a thread of this process; yield the port."""
    ports: list[int] = []
    listening = Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        with siltstone.open(path) as store:
            logs, _ = open_topic_logs(store, settings)
            server = TopicLogServer(logs, limits=limits, body_timeout=body_timeout)
            ports.append(await server.listen("127.0.0.1", 0))
            ending = asyncio.Event()
            loops.append((asyncio.get_running_loop(), ending))
            listening.set()
            await ending.wait()
            await server.close()

    thread = Thread(target=lambda: uvloop.run(run()))
    thread.start()
    assert listening.wait(WAIT_SECONDS)
    try:
        yield ports[0]
    finally:
        loop, ending = loops[0]
        loop.call_soon_threadsafe(ending.set)
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()


@contextmanager
def served_by_process(data: Path, **settings: str) -> Iterator[BrokerProcess]:
    """Serve topic logs with a broker in another process; see `log_port`."""
    chosen = {"topiclog.enabled": "true", "topiclog.port": "0"} | settings
    with broker_process(data, settings=chosen) as broker:
        log_port(broker)
        yield broker


def log_port(broker: BrokerProcess) -> int:
    """Return the topic log port of the last start of a broker; wait until it listens."""
    # Each start logs its MQTT listener, then this one.
    event = broker.wait_for("listening", count=2 * len(broker.events("starting")))
    return int(str(event["address"]).rpartition(":")[2])


def half_send(port: int, topic: str, size: int, sent: int) -> socket.socket:
    """Start a send of `size` bytes, and stop after `sent` bytes; return the open socket."""
    peer = socket.create_connection(("127.0.0.1", port), WAIT_SECONDS)
    table = table_of_ends([bytes(size)])
    try:
        peer.sendall(request(RequestKind.HELLO, 1, payload=encode_version()))
        peer.sendall(send_head(2, topic, table=table, data_bytes=size) + b"h" * sent)
    except BaseException:
        peer.close()
        raise
    return peer
