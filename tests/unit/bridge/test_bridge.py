from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Coroutine
from pathlib import PurePath
from typing import Any

import pytest

from siltstone.bridge.bridge import Bridge, Here, publisher_of
from siltstone.bridge.entries import decode_entry
from siltstone.bridge.outbound import WaitingBytes
from siltstone.bridge.settings import LinkSettings, LinkTopic
from siltstone.client.settings import ClientSettings
from siltstone.client.target import TcpTarget
from siltstone.clock import SystemClock
from siltstone.fs.faulty import Fault, FaultyFileSystem
from siltstone.fs.memory import MemoryFileSystem
from siltstone.mqtt.packets import Publish, Subscribe
from siltstone.mqtt.publish import PublishBatch
from tests.support.fake_network import Loop, Network
from tests.support.links import DEAD, SPOOL, batch_of, rows, spool_on
from tests.support.model_server import ModelServer

SETTINGS = LinkSettings(
    name="peer",
    target=TcpTarget("peer.example", 1883),
    tls=None,
    client=ClientSettings(client_id="me", keep_session=True, reconnect=True),
    topics=(LinkTopic(pattern="s/#"), LinkTopic(pattern="cmd/#", direction="in")),
    spool_bytes_max=100_000,
)


class Bench:
    """A link to a model of a server."""

    def __init__(self, *script: Exception | None) -> None:
        self.server = ModelServer()
        self.network = Network(self.server, *script)
        self.fs = MemoryFileSystem()
        self.faults = FaultyFileSystem(self.fs)
        self.published: list[tuple[bytes, bytes, int]] = []
        self.settled: list[Exception | None] = []

    def link(self) -> Bridge:
        return Bridge(
            SETTINGS,
            spool_on(self.faults),
            Here(publish=self._publish, pace=WaitingBytes(lambda _: None, lambda _: None)),
            fs=self.faults,
            clock=SystemClock(),
            dead_letters=DEAD,
            again_seconds=0,
        )

    def _publish(self, batch: PublishBatch, done: Callable[[Exception | None], None]) -> None:
        self.published += rows(batch)
        done(None)

    def settle(self, part: PublishBatch, error: Exception | None) -> None:
        self.settled.append(error)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=lambda: Loop(self.network)) as runner:
            runner.run(main)


async def until(holds: Callable[[], bool]) -> None:
    """Let the link go on until something holds."""
    while not holds():
        await asyncio.get_running_loop().run_in_executor(None, lambda: None)


async def stop(task: asyncio.Task[None], link: Bridge) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    link.close()


def test_what_is_taken_before_the_peer_is_there_reaches_it_later() -> None:
    bench = Bench(ConnectionRefusedError(111, "Connection refused"))

    async def main() -> None:
        link = bench.link()
        assert link.take(batch_of(("s/1", b"x", 1)), b"c", bench.settle) == 1
        await until(lambda: bench.settled == [None])
        task = asyncio.create_task(link.run())
        await until(lambda: bench.server.delivered == [b"x"])
        await until(lambda: bench.fs.list(SPOOL / "q") == [])
        await stop(task, link)

    bench.run(main())


def test_what_the_peer_sends_is_published_here() -> None:
    bench = Bench()

    async def main() -> None:
        link = bench.link()
        task = asyncio.create_task(link.run())
        await until(lambda: any(isinstance(p, Subscribe) for p in bench.server.controls))
        order = Publish(topic=b"cmd/1", payload=b"go", qos=1, packet_id=9)
        bench.network.send(bench.server.publish(order))
        await until(lambda: bench.server.unacknowledged == [])
        assert bench.published == [(b"cmd/1", b"go", 1)]
        await stop(task, link)

    bench.run(main())


def test_a_bridge_with_an_internal_error_is_reported_and_tries_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench(ZeroDivisionError("ours"))

    async def main() -> None:
        link = bench.link()
        link.take(batch_of(("s/1", b"x", 1)), b"c", bench.settle)
        task = asyncio.create_task(link.run())
        await until(lambda: bench.server.delivered == [b"x"] or task.done())
        await stop(task, link)

    bench.run(main())
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.message for record in errors] == ["internal_error", "bridge_failed"]
    assert "ZeroDivisionError: ours" in caplog.text


@pytest.mark.parametrize("error", [ZeroDivisionError("ours"), asyncio.CancelledError()])
def test_an_internal_error_of_the_forwarder_is_reported_and_it_tries_again(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench()
    errors = [error]

    def decode(data: bytes, path: PurePath) -> PublishBatch:
        if errors:
            raise errors.pop()
        return decode_entry(data, path)

    monkeypatch.setattr("siltstone.bridge.forwarder.decode_entry", decode)

    async def main() -> None:
        link = bench.link()
        link.take(batch_of(("s/1", b"x", 1)), b"c", bench.settle)
        task = asyncio.create_task(link.run())
        async with asyncio.timeout(10):
            await until(lambda: bench.server.delivered == [b"x"])
        await stop(task, link)

    bench.run(main())
    events = [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.message for record in events] == ["internal_error", "bridge_forward_failed"]
    assert events[1].__dict__["facts"]["error"] == "internal error: see the log of the broker"


def test_a_poisoned_spool_ends_the_forwarder_and_not_the_bridge(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.faults.add(Fault(operation="sync_directory", errno=errno.EIO, path_suffix="/q", nth=2))

    async def main() -> None:
        link = bench.link()
        link.take(batch_of(("s/1", b"x", 1)), b"c", bench.settle)
        task = asyncio.create_task(link.run())
        await until(lambda: "bridge_forward_failed" in caplog.text)
        order = Publish(topic=b"cmd/1", payload=b"go", qos=1, packet_id=9)
        bench.network.send(bench.server.publish(order))
        await until(lambda: bench.server.unacknowledged == [])
        assert bench.published == [(b"cmd/1", b"go", 1)]
        await stop(task, link)

    bench.run(main())
    errors = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert errors == ["bridge_forward_failed"]


def test_closing_a_bridge_stores_what_waits_for_its_disk() -> None:
    bench = Bench()

    async def main() -> None:
        link = bench.link()
        for number in range(3):
            link.take(batch_of((f"s/{number}", b"x", 1)), b"c", bench.settle)
        link.close()

    bench.run(main())
    with spool_on(bench.fs) as spool:
        assert spool.stats().entries == 2


def test_who_publishes_here_what_came_by_a_bridge_has_a_name_of_its_own() -> None:
    assert publisher_of("peer") == b"bridge:peer"
