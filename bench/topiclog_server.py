"""The server for `bench.topiclog`, in a process of its own.

    python -m bench.topiclog_server disk|memory|kept|reused [DIRECTORY]

It is a topic log server on disk, the same server in memory, or a socket whose data is only read
into memory. It prints its port.
"""

from __future__ import annotations

import asyncio
import mmap
import socket
import sys
from array import array
from bisect import bisect_right
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import uvloop

from siltstone.store.directory import open_store
from siltstone.store.segment.writer import Room
from siltstone.store.shard.block_log import BlockRun
from siltstone.store.slab.settings import DatabaseSettings
from siltstone.store.writer.ticket import Outcome, Ticket
from siltstone.topiclog.log import TopicLogs, open_topic_logs
from siltstone.topiclog.server import TopicLogServer

MIB = 1024 * 1024


class MemoryLog:
    """The messages of one topic in memory: the baseline without persistence."""

    is_open = True

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self._firsts: list[int] = []
        self._runs: list[BlockRun] = []
        self._end = 0

    def open(self) -> None:
        """Do nothing: it is always open."""

    def append(self, offsets: bytes, values: bytes, *, timeout: float | None = None) -> Ticket:  # noqa: ARG002
        return self._keep(offsets, memoryview(values))

    def take_room(self, size: int, rows: int, then: Callable[[Room | Exception], None]) -> None:  # noqa: ARG002
        then(Room(64, size, memoryview(mmap.mmap(-1, size))))

    def append_room(self, offsets: bytes, room: Room, *, timeout: float | None = None) -> Ticket:  # noqa: ARG002
        return self._keep(offsets, room.contents())

    def give_up_room(self, room: Room) -> None:
        pass

    def _keep(self, offsets: bytes, data: memoryview) -> Ticket:
        count = len(offsets) // 4 - 1
        ends = memoryview(array("i", offsets))
        self._firsts.append(self._end)
        self._runs.append(BlockRun(first_offset=self._end, offsets=ends, data=data))
        ticket = Ticket(count, 1, waits=True)
        outcome = Outcome(
            duplicate=False,
            count=count,
            timestamp_us=0,
            frame_serial=self._end,
            frame_timestamp_us=0,
            frame_places=None,
        )
        self._end += count
        ticket.resolve(outcome, None)
        return ticket

    def bounds(self) -> range:
        return range(self._end)

    def length(self, offset: int) -> int:
        raise NotImplementedError

    def read(self, offset: int, *, bytes_max: int, rows_max: int = 0) -> list[BlockRun]:  # noqa: ARG002
        place = bisect_right(self._firsts, offset) - 1
        return self._runs[place : place + 1] if offset < self._end else []


class MemoryLogs:
    """Topics in memory."""

    def __init__(self) -> None:
        self._logs: dict[str, MemoryLog] = {}

    def topics(self) -> list[str]:
        return list(self._logs)

    def add(self, topic: str) -> MemoryLog:
        return self._logs.setdefault(topic, MemoryLog(topic))

    def find(self, topic: str) -> MemoryLog | None:
        return self._logs.get(topic)


async def serve(where: str, directory: str) -> None:
    """Serve topic logs until the process is killed."""
    with ExitStack() as opened:
        if where == "memory":
            logs = TopicLogs(MemoryLogs(), cast("Any", None))
        else:
            store = opened.enter_context(open_store(directory))
            logs, _ = open_topic_logs(store, DatabaseSettings())
        server = TopicLogServer(logs)
        print(await server.listen("127.0.0.1", 0), flush=True)
        await asyncio.Event().wait()


def receive(*, kept: bool) -> None:
    """Read data into memory: new memory that is kept, as for a log, or the same memory again."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            peer, _ = listener.accept()
            held: list[memoryview] = []
            place = memoryview(mmap.mmap(-1, MIB))
            while True:
                if kept:
                    place = memoryview(mmap.mmap(-1, MIB))
                    held.append(place)
                got = 0
                while got < MIB and (read := peer.recv_into(place[got:])):
                    got += read
                if got < MIB:
                    break
                peer.sendall(b"!")


def main() -> None:
    """Run the server that the first argument names."""
    where = sys.argv[1]
    if where in ("kept", "reused"):
        receive(kept=where == "kept")
    else:
        uvloop.run(serve(where, sys.argv[2] if len(sys.argv) > 2 else ""))


if __name__ == "__main__":
    main()
