from __future__ import annotations

import asyncio
import errno
import re
from collections.abc import Callable, Coroutine
from pathlib import PurePath

import pytest

from siltstone.bridge.dead_letters import DeadLetters
from siltstone.bridge.entries import decode_entry, encode_entries
from siltstone.bridge.forwarder import Forwarder
from siltstone.client.outgoing import Outgoing, ServerLimits
from siltstone.client.packet_ids import PacketIds
from siltstone.errors import PoisonedError
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.mqtt.publish import PUBACK, PublishBatch
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from siltstone.spool import Entry
from tests.support.links import DEAD, NoThreads, batch_of, spool_on


class Desk:
    """A Forwarder whose peer answers when told to."""

    def __init__(self, *messages: tuple[str, bytes, int]) -> None:
        self.memory = MemoryFileSystem()
        self.fs = FaultyFileSystem(self.memory)
        self.spool = spool_on(self.fs)
        self.outgoing = Outgoing(Version.V5, PacketIds(), window=100)
        self.sent: list[bytes] = []
        self.freed = 0
        self.breaks: str | None = None
        for message in messages:
            self.store(message)
        self.forwarder = Forwarder(
            self.spool,
            self.outgoing,
            DeadLetters(self.fs, DEAD, self.spool),
            name="peer",
            threads=NoThreads(),
            now_us=lambda: 1_000_000,
            pump=self.pump,
            freed=self._free,
        )

    def _free(self, size: int) -> None:
        self.freed += size

    def store(self, *messages: tuple[str, bytes, int]) -> list[Entry]:
        return self.spool.store_many(encode_entries(batch_of(*messages), 1_000_000))

    def connect(self, limits: ServerLimits | None = None) -> None:
        self.outgoing.begin(limits or ServerLimits(), session_present=True)
        self.pump()

    def pump(self) -> None:
        if self.breaks == "before it was sent":
            raise ZeroDivisionError
        while data := self.outgoing.take():
            self.sent.append(data)
        if self.breaks == "after it was refused":
            raise ZeroDivisionError
        self.forwarder.progressed()

    def acknowledge(self, *ids: int) -> None:
        self.outgoing.receive(PUBACK, list(ids))
        self.forwarder.progressed()


def run(scenario: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(scenario())


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(20):
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)


def dead(desk: Desk) -> list[str]:
    return [found.name for found in desk.memory.list(DEAD)]


def test_an_entry_is_discarded_when_all_of_it_was_acknowledged() -> None:
    async def scenario() -> None:
        desk = Desk(("a", b"1", 1), ("b", b"2", 1))
        assert desk.forwarder.waiting == 2
        task = asyncio.create_task(desk.forwarder.run())
        await settle()
        assert desk.sent == []
        desk.connect()
        await settle()
        desk.acknowledge(1)
        await settle()
        assert len(list(desk.spool)) == 2
        desk.acknowledge(2)
        await settle()
        assert (list(desk.spool), desk.forwarder.forwarded) == ([], 2)
        assert desk.freed > 0
        desk.forwarder.added(desk.store(("c", b"3", 0)))
        await settle()
        assert (list(desk.spool), desk.forwarder.forwarded) == ([], 3)
        task.cancel()

    run(scenario)


def test_refused_messages_are_dead_letters_and_the_others_go_on() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.forwarder.added(desk.store(("a", b"1", 1), ("b", bytes(99), 1), ("c", b"3", 1)))
        task = asyncio.create_task(desk.forwarder.run())
        desk.connect(ServerLimits(packet_size_max=90))
        await settle()
        desk.outgoing.refuse(1, Reason.NOT_AUTHORIZED)
        desk.acknowledge(2)
        await settle()
        assert (list(desk.spool), desk.forwarder.forwarded) == ([], 1)
        reasons = [
            desk.memory.read(DEAD / name).decode().splitlines()
            for name in dead(desk)
            if name.endswith(".reason.txt")
        ]
        assert [lines[0] for lines in reasons] == [
            "message is too large for the server: size_bytes=99 packet_size_max=90",
            "refused by the server: not authorized (0x87)",
        ]
        assert [lines[1].split()[0] for lines in reasons] == ["topic=b", "topic=a"]
        task.cancel()

    run(scenario)


def test_a_damaged_entry_and_one_that_is_gone_hold_nothing_up() -> None:
    async def scenario() -> None:
        desk = Desk(("a", b"1", 0), ("b", b"2", 0), ("c", b"3", 0))
        gone, damaged, _ = sorted(desk.spool)
        desk.spool.discard(gone)
        with desk.fs.open(desk.spool.path_of(damaged), writable=True) as file:
            file.write_at(0, b"!")
        task = asyncio.create_task(desk.forwarder.run())
        desk.connect()
        await settle()
        assert (list(desk.spool), desk.forwarder.forwarded) == ([], 1)
        assert dead(desk) == ["1-1000000_1", "1-1000000_1.reason.txt"]
        task.cancel()

    run(scenario)


@pytest.mark.parametrize("operation", ["open", "link", "remove"])
def test_a_disk_that_refuses_is_asked_again(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.bridge.forwarder._AGAIN_SECONDS", 0)

    async def scenario() -> None:
        desk = Desk(("a", bytes(99), 1), ("b", b"2", 0))
        desk.fs.add(
            Fault(operation=operation, errno=errno.EIO, nth=2)  # type: ignore[arg-type]
        )
        task = asyncio.create_task(desk.forwarder.run())
        desk.connect(ServerLimits(packet_size_max=90))
        await settle()
        assert (list(desk.spool), desk.forwarder.forwarded) == ([], 1)
        assert desk.memory.read(DEAD / PurePath(dead(desk)[0])).endswith(bytes(99))
        task.cancel()

    run(scenario)


def test_a_poisoned_spool_ends_it() -> None:
    async def scenario() -> None:
        desk = Desk(("a", b"1", 0))
        desk.fs.add(Fault(operation="sync_directory", errno=errno.EIO, path_suffix="/q"))
        desk.connect()
        with pytest.raises(PoisonedError):
            await desk.forwarder.run()

    run(scenario)


def test_after_an_internal_error_the_entries_in_progress_are_sent_again() -> None:
    async def scenario() -> None:
        desk = Desk(("a", b"1", 1), ("b", b"2", 1))
        desk.connect()
        desk.breaks = "before it was sent"
        with pytest.raises(ZeroDivisionError):
            await desk.forwarder.run()
        assert desk.forwarder.waiting == 0
        desk.breaks = None
        task = asyncio.create_task(desk.forwarder.run())
        await settle()
        desk.acknowledge(1, 2)
        await settle()
        desk.acknowledge(3, 4)
        await settle()
        assert (list(desk.spool), desk.forwarder.forwarded) == ([], 2)
        task.cancel()

    run(scenario)


def test_after_an_internal_error_while_entries_are_read_all_are_sent_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reads = 0

    def decode(data: bytes, path: PurePath) -> PublishBatch:
        nonlocal reads
        reads += 1
        if reads == 3:
            raise ZeroDivisionError
        return decode_entry(data, path)

    monkeypatch.setattr("siltstone.bridge.forwarder.decode_entry", decode)

    async def scenario() -> None:
        desk = Desk(("a", b"first", 0), ("b", b"second", 0), ("c", b"third", 0))
        desk.connect()
        with pytest.raises(ZeroDivisionError):
            await desk.forwarder.run()
        task = asyncio.create_task(desk.forwarder.run())
        await settle()
        assert (list(desk.spool), desk.forwarder.forwarded) == ([], 3)
        assert re.findall(b"first|second|third", b"".join(desk.sent)) == [
            b"first",
            b"second",
            b"third",
        ]
        task.cancel()

    run(scenario)


@pytest.mark.parametrize("when", ["before it was sent", "after it was refused"])
def test_after_an_internal_error_a_refused_message_is_one_dead_letter(when: str) -> None:
    async def scenario() -> None:
        desk = Desk(("a", bytes(99), 1))
        desk.connect(ServerLimits(packet_size_max=90))
        desk.breaks = when
        with pytest.raises(ZeroDivisionError):
            await desk.forwarder.run()
        desk.breaks = None
        task = asyncio.create_task(desk.forwarder.run())
        await settle()
        assert (list(desk.spool), desk.forwarder.forwarded) == ([], 0)
        assert len([name for name in dead(desk) if name.endswith(".publish")]) == 1
        task.cancel()

    run(scenario)


def test_a_message_that_ends_every_connection_is_a_dead_letter_at_last() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.forwarder.added(desk.store(("bad", b"!", 1), ("good", b"2", 1), ("good", b"3", 1)))
        task = asyncio.create_task(desk.forwarder.run())
        desk.connect()
        await settle()
        for _ in range(11):
            desk.forwarder.lost()
            desk.sent.clear()
            desk.connect()
        # One at a time, and the first is gone.
        assert [b"2" in data for data in desk.sent] == [True]
        desk.acknowledge(2)
        desk.pump()
        desk.acknowledge(3)
        await settle()
        assert (list(desk.spool), desk.forwarder.forwarded) == ([], 2)
        assert desk.memory.read(DEAD / dead(desk)[0]).endswith(b"!")
        assert desk.memory.read(DEAD / dead(desk)[1]).startswith(b"the server ended every")
        task.cancel()

    run(scenario)


def test_a_peer_that_goes_but_acknowledges_something_each_time_refuses_nothing() -> None:
    async def scenario() -> None:
        desk = Desk()
        desk.forwarder.added(desk.store(*(("t", b"%d" % number, 1) for number in range(30))))
        task = asyncio.create_task(desk.forwarder.run())
        desk.connect()
        await settle()
        for number in range(1, 31):
            desk.forwarder.lost()
            desk.connect()
            desk.acknowledge(number)
        await settle()
        assert (list(desk.spool), desk.forwarder.forwarded) == ([], 30)
        task.cancel()

    run(scenario)


def test_an_entry_that_somebody_discards_meanwhile_keeps_the_others_from_nothing() -> None:
    async def scenario() -> None:
        desk = Desk(("a", b"1", 1), ("b", b"2", 1), ("c", b"3", 1))
        task = asyncio.create_task(desk.forwarder.run())
        desk.connect()
        await settle()
        desk.spool.discard(sorted(desk.spool)[1])
        desk.acknowledge(1, 2, 3)
        await settle()
        assert (list(desk.spool), desk.forwarder.forwarded) == ([], 3)
        task.cancel()

    run(scenario)
