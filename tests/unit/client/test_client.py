from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from siltstone.client.client import Client
from siltstone.client.outgoing import Publication
from siltstone.client.refusal import RefusedError
from siltstone.client.session import NO_SUBSCRIPTIONS, ClientSession, WantedSubscriptions
from siltstone.client.settings import ClientSettings
from siltstone.client.target import Target, TcpTarget, UnixTarget
from siltstone.clock import ManualClock
from siltstone.errors import OutcomeUnknownError, RetryError, UsageError
from siltstone.mqtt.packets import ConnAck, Connect, Disconnect, Publish, Subscription
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.reason import Reason
from siltstone.topic.grammar import TopicFilter
from tests.support.fake_network import Loop, Network
from tests.support.model_server import ModelServer

HERE = TcpTarget("localhost", 1883)
PLAIN = ClientSettings(client_id="c")
STUBBORN = replace(PLAIN, reconnect=True)
REFUSED = ConnectionRefusedError(111, "Connection refused")
ONCE = Publication(topic=b"t", qos=1)


class Bench:
    """A client, a server, and what passed between them and their user."""

    def __init__(
        self,
        settings: ClientSettings,
        *script: Exception | None,
        target: Target = HERE,
        subscriptions: WantedSubscriptions = NO_SUBSCRIPTIONS,
        server: ModelServer | None = None,
    ) -> None:
        self.server = server or ModelServer()
        self.network = Network(self.server, *script)
        self.session = ClientSession(settings, subscriptions)
        self.clock = ManualClock()
        self.notes: list[str] = []
        self.delivered: list[bytes] = []
        self.on_wanted: Callable[[], None] = lambda: None
        self.client = Client(
            settings,
            self.session,
            target,
            clock=self.clock,
            deliver=self.deliver,
            wanted=self.want,
            note=self.notes.append,
        )

    def want(self) -> None:
        self.on_wanted()

    def deliver(self, batch: PublishBatch) -> int:
        self.delivered += batch.values
        return len(batch.topics)

    def run(self, main: Coroutine[Any, Any, None] | None = None) -> None:
        with asyncio.Runner(loop_factory=lambda: Loop(self.network)) as runner:
            runner.run(main or self.client.run())


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let no test wait: the waits are written down."""
    written: list[float] = []

    async def wait(seconds: float) -> None:
        written.append(seconds)

    monkeypatch.setattr("siltstone.client.client.asyncio.sleep", wait)
    return written


def test_it_publishes_and_ends_when_everything_is_acknowledged() -> None:
    bench = Bench(PLAIN)
    bench.session.outgoing.add(ONCE, [b"1", b"2"])
    bench.session.finish()
    bench.run()
    assert (bench.server.delivered, bench.session.outgoing.completed) == ([b"1", b"2"], 2)
    assert [type(packet) for packet in bench.server.controls] == [Connect, Disconnect]
    assert (bench.network.dialled, bench.notes) == ([("localhost", 1883, None)], [])


def test_a_socket_file_is_dialled_by_its_path() -> None:
    bench = Bench(PLAIN, target=UnixTarget("/run/silt.sock"))
    bench.session.finish()
    bench.run()
    assert bench.network.dialled == [("/run/silt.sock",)]


def test_what_is_added_while_it_runs_is_sent_when_it_is_pumped() -> None:
    bench = Bench(PLAIN)
    chunks = [[b"1"], [b"2", b"3"]]

    def wanted() -> None:
        if chunks:
            bench.session.outgoing.add(ONCE, chunks.pop(0))
        else:
            bench.session.finish()
        asyncio.get_running_loop().call_soon(bench.client.pump)

    bench.on_wanted = wanted
    bench.client.pump()
    bench.run()
    assert bench.server.delivered == [b"1", b"2", b"3"]


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (REFUSED, RetryError, "cannot connect to localhost:1883: connection refused"),
        (TimeoutError(), RetryError, "cannot connect to localhost:1883: no answer within 10 s"),
        (
            ssl.SSLError(1, "Odd"),
            RefusedError,
            "cannot connect to localhost:1883 with TLS: odd",
        ),
        (UnicodeError("label empty"), UsageError, "invalid host name or path: 'localhost:1883'"),
    ],
)
def test_a_server_that_cannot_be_reached_is_told_in_one_sentence(
    error: Exception, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind) as raised:
        Bench(PLAIN, error).run()
    assert str(raised.value) == words


def test_a_lost_connection_ends_a_client_that_does_not_come_back() -> None:
    bench = Bench(PLAIN)
    bench.on_wanted = bench.network.cut
    with pytest.raises(OutcomeUnknownError, match="was lost: connection reset by peer"):
        bench.run()


def test_a_stubborn_client_waits_for_the_server_and_says_so_once(waits: list[float]) -> None:
    bench = Bench(STUBBORN, REFUSED, REFUSED, REFUSED)
    bench.session.outgoing.add(ONCE, [b"1"])
    bench.session.finish()
    bench.run()
    assert bench.notes == [
        "cannot connect to localhost:1883: connection refused; connecting again",
        "connected again",
    ]
    assert [0.5 <= wait / full <= 1 for wait, full in zip(waits, (0.1, 0.2, 0.4), strict=True)] == [
        True,
        True,
        True,
    ]


def cut_once(bench: Bench, *, forgetful: bool = False) -> Callable[[], None]:
    """Lose the connection when all was sent and nothing is acknowledged."""
    bench.server.holding = True

    def wanted() -> None:
        if bench.server.holding and bench.server.received:
            bench.server.holding = False
            if forgetful:
                bench.server.forget()
            bench.network.cut()

    return wanted


@pytest.mark.parametrize("qos", [1, 2])
def test_a_kept_session_gets_what_was_not_acknowledged_again_with_dup(qos: int) -> None:
    bench = Bench(STUBBORN)
    bench.session.outgoing.add(Publication(topic=b"t", qos=qos), [b"1", b"2"])
    bench.session.finish()
    bench.on_wanted = cut_once(bench)
    bench.run()
    seen = [(row.payload, row.packet_id, row.dup) for row in bench.server.received]
    assert seen == [(b"1", 1, False), (b"2", 2, False), (b"1", 1, True), (b"2", 2, True)]
    assert bench.server.delivered == [b"1", b"2"] * (3 - qos)
    connects = [packet for packet in bench.server.controls if isinstance(packet, Connect)]
    assert [packet.clean_start for packet in connects] == [True, False]
    assert bench.server.controls[-1] == Disconnect(properties=Properties(session_expiry_interval=0))


def test_a_lost_session_gets_what_was_not_acknowledged_as_new() -> None:
    bench = Bench(STUBBORN)
    bench.session.outgoing.add(ONCE, [b"1"])
    bench.session.finish()
    bench.on_wanted = cut_once(bench, forgetful=True)
    bench.run()
    seen = [(row.payload, row.packet_id, row.dup) for row in bench.server.received]
    assert seen == [(b"1", 1, False), (b"1", 2, False)]


@pytest.mark.parametrize(("forgetful", "subscribes"), [(True, 2), (False, 1)])
def test_a_subscriber_subscribes_again_where_its_session_was_lost(
    forgetful: bool, subscribes: int
) -> None:
    subscriptions = WantedSubscriptions(
        subscriptions=(Subscription(filter=TopicFilter.parse("t"), qos=2),)
    )
    bench = Bench(STUBBORN, subscriptions=subscriptions)
    bench.server.holding = True
    message = Publish(topic=b"t", payload=b"x", qos=2, packet_id=5)

    def wanted() -> None:
        if bench.session.subscribed:
            answer = bench.server.resend() or bench.server.publish(message)
            bench.on_wanted = leave if bench.delivered else cut
            loop = asyncio.get_running_loop()
            loop.call_soon(bench.network.send, answer)

    def cut() -> None:
        bench.on_wanted = wanted
        if forgetful:
            bench.server.forget()
        bench.network.cut()

    def leave() -> None:
        bench.session.leave()
        asyncio.get_running_loop().call_soon(bench.client.pump)

    bench.on_wanted = wanted
    bench.run()
    kinds = [type(packet).__name__ for packet in bench.server.controls]
    assert kinds.count("Subscribe") == subscribes
    # QoS 2: the server of the kept session sent it twice, and it was handed over once.
    assert bench.delivered == [b"x"] * subscribes


@pytest.mark.parametrize(
    ("reason", "attempts"), [(Reason.NOT_AUTHORIZED, 1), (Reason.SERVER_BUSY, 2)]
)
def test_only_a_reason_that_passes_is_tried_again(reason: Reason, attempts: int) -> None:
    bench = Bench(STUBBORN, None, UsageError("enough"))
    bench.server.answer = ConnAck(reason=reason)
    with pytest.raises((RefusedError, UsageError)):
        bench.run()
    assert len(bench.network.dialled) == attempts


def test_a_stubborn_client_gives_up_in_the_end(waits: list[float]) -> None:
    bench = Bench(replace(STUBBORN, reconnect_seconds=0.0), REFUSED)
    with pytest.raises(RetryError, match="connection refused"):
        bench.run()
    assert (bench.notes, waits) == ([], [])


def test_cancelling_says_goodbye() -> None:
    bench = Bench(PLAIN)

    async def main() -> None:
        task = asyncio.ensure_future(bench.client.run())

        def cancel() -> None:
            task.cancel()

        bench.on_wanted = cancel
        with pytest.raises(asyncio.CancelledError):
            await task

    bench.run(main())
    assert bench.server.controls[-1] == Disconnect()


def test_it_comes_back_when_it_is_told_to() -> None:
    bench = Bench(STUBBORN)
    bench.client.reconnect()

    def again() -> None:
        if len(bench.network.dialled) == 1:
            bench.client.reconnect()
        else:
            bench.session.finish()
            asyncio.get_running_loop().call_soon(bench.client.pump)

    bench.on_wanted = again
    bench.run()
    assert len(bench.network.dialled) == 2
