from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from siltstone.client.connection import BrokerConnection
from siltstone.client.outgoing import Publication
from siltstone.client.protocol import ClientProtocol, ClientState
from siltstone.client.session import ClientSession
from siltstone.client.settings import ClientSettings
from siltstone.clock import ManualClock
from siltstone.errors import OutcomeUnknownError, ProtocolError, RetryError, UsageError
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    ConnAck,
    Disconnect,
    Packet,
    PingReq,
    PubAck,
    Publish,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.publish import PublishBatch
from siltstone.mqtt.reason import Reason
from siltstone.mqtt.wire import Version
from tests.support.fake_network import FakeTransport

V5 = Version.V5


def encoded(*packets: Packet) -> bytes:
    return b"".join(encode(V5, packet) for packet in packets)


class Bench:
    """A connection over a transport in memory, with a receiver that keeps or raises."""

    def __init__(
        self,
        *,
        keep_alive: int = 60,
        room: int | None = None,
        error: Exception | None = None,
        half_closes: bool = True,
    ) -> None:
        settings = ClientSettings(client_id="c", keep_alive_seconds=keep_alive)
        self.session = ClientSession(settings)
        self.clock = ManualClock()
        self.protocol = ClientProtocol(settings, self.session, now=self.clock.monotonic())
        self.delivered: list[bytes] = []
        self.pumped = 0
        self._error = error
        self.connection = BrokerConnection(
            self.protocol, self.clock, deliver=self._deliver, pumped=self._pumped
        )
        self.transport = FakeTransport(self.connection, room=room, half_closes=half_closes)
        self.connection.connection_made(self.transport)

    def _deliver(self, batch: PublishBatch) -> int:
        if self._error is not None:
            raise self._error
        self.delivered += batch.values
        return len(batch.topics)

    def _pumped(self) -> None:
        self.pumped += 1

    def receive(self, *packets: Packet) -> None:
        self.connection.data_received(encoded(*packets))

    def connect(self, answer: ConnAck | None = None) -> None:
        self.transport.take()
        self.receive(answer or ConnAck())

    async def ended(self) -> Exception | None:
        """Wait for the end, and return its error."""
        await asyncio.wait([self.connection.closed], timeout=5)
        error = self.connection.closed.exception()
        assert error is None or isinstance(error, Exception)
        return error


def in_loop(test: Callable[[], Coroutine[None, None, None]]) -> Callable[[], None]:
    """Run a test inside a loop."""

    def run() -> None:
        asyncio.run(test())

    run.__name__ = test.__name__
    return run


@in_loop
async def test_connect_is_sent_at_once() -> None:
    bench = Bench()
    connect = ClientSettings(client_id="c").connect("c", returning=False)
    assert bench.transport.take() == encoded(connect)
    bench.transport.lose(None)
    await bench.ended()


@in_loop
async def test_messages_are_acknowledged_once_they_are_handed_over() -> None:
    bench = Bench()
    bench.connect()
    bench.receive(Publish(topic=b"t", payload=b"x", qos=1, packet_id=7))
    assert (bench.delivered, bench.transport.take()) == ([b"x"], encoded(PubAck(packet_id=7)))
    bench.transport.lose(None)
    await bench.ended()


@in_loop
async def test_what_the_receiver_raises_ends_the_connection_and_is_passed_on() -> None:
    broken = BrokenPipeError(32, "Broken pipe")
    bench = Bench(error=broken)
    bench.connect()
    bench.receive(Publish(topic=b"t", payload=b"x", qos=1, packet_id=7))
    # No acknowledgement: the message was not taken.
    assert bench.transport.take() == encoded(Disconnect())
    assert (await bench.ended(), bench.protocol.state) == (broken, ClientState.OVER)


@in_loop
async def test_a_server_that_breaks_the_rules_hears_why() -> None:
    bench = Bench()
    bench.connect()
    bench.receive(ConnAck())
    assert bench.transport.take() == encoded(Disconnect(reason=Reason.PROTOCOL_ERROR))
    assert isinstance(await bench.ended(), ProtocolError)


@in_loop
async def test_a_lost_connection_says_how() -> None:
    for error, words in (
        (None, "the server closed it"),
        (ConnectionResetError(104, "Connection reset by peer"), "connection reset by peer"),
    ):
        bench = Bench()
        bench.connect()
        bench.transport.lose(error)
        ended = await bench.ended()
        assert isinstance(ended, OutcomeUnknownError)
        assert str(ended) == f"the connection was lost: {words}"


@in_loop
async def test_writing_stops_while_the_server_is_slow() -> None:
    bench = Bench(room=200_000)
    bench.connect()
    payloads = [bytes(100_000)] * 6
    bench.session.outgoing.add(Publication(topic=b"t"), payloads)
    pumped = bench.pumped
    bench.connection.pump()
    assert (len(bench.transport.take()) // 100_000, bench.pumped) == (3, pumped)
    bench.connection.pump()
    assert bench.transport.take() == b""
    bench.connection.resume_writing()
    assert len(bench.transport.take()) // 100_000 == 3
    bench.transport.lose(None)
    await bench.ended()


@in_loop
async def test_more_is_wanted_whenever_all_was_written() -> None:
    bench = Bench()
    before = bench.pumped
    bench.connect()
    bench.connection.pump()
    assert bench.pumped == before + 2
    bench.transport.lose(None)
    await bench.ended()


@in_loop
async def test_the_end_waits_until_the_server_has_read_everything() -> None:
    bench = Bench()
    bench.connect()
    bench.session.finish()
    bench.connection.pump()
    assert bench.transport.take() == encoded(Disconnect())
    assert bench.transport.calls == ["limit 1048576", "eof"]
    bench.connection.pump()
    bench.receive(Publish(topic=b"t", payload=b"late"))
    assert (bench.delivered, bench.transport.calls) == ([], ["limit 1048576", "eof"])
    bench.transport.lose(ConnectionResetError())
    assert await bench.ended() is None


@pytest.mark.parametrize("half_closes", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_server_that_does_not_close_is_left_when_no_more_bytes_go_out(
    half_closes: bool, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("siltstone.client.connection._LINGER_SECONDS", 0.0)

    async def test() -> None:
        bench = Bench(half_closes=half_closes)
        bench.transport.buffered = 10
        if at_once:
            bench.session.finish()
        bench.connect()
        bench.session.finish()
        bench.connection.pump()
        assert await bench.ended() is None
        assert bench.transport.calls[1:] == ["eof", "abort"][not half_closes :]

    asyncio.run(test())


@in_loop
async def test_a_message_that_the_server_does_not_take_ends_the_connection() -> None:
    bench = Bench()
    bench.connect(ConnAck(properties=Properties(maximum_packet_size=50)))
    bench.session.outgoing.add(Publication(topic=b"t"), [bytes(100)])
    bench.connection.pump()
    assert bench.transport.take() == encoded(Disconnect())
    assert isinstance(await bench.ended(), UsageError)


@in_loop
async def test_abandoning_says_goodbye() -> None:
    bench = Bench()
    bench.connect()
    bench.connection.abandon()
    bench.connection.abandon()
    assert (bench.transport.take(), bench.transport.calls[1:]) == (encoded(Disconnect()), ["close"])
    assert isinstance(await bench.ended(), OutcomeUnknownError)
    bench.connection.pump()
    assert bench.transport.take() == b""


@in_loop
async def test_time_that_passes_without_an_answer_ends_the_connection() -> None:
    bench = Bench()
    bench.clock.advance(11)
    # Any answer makes it look at the time; here the timer is due at once.
    bench.connection.connection_made(bench.transport)
    assert isinstance(await bench.ended(), RetryError)


@in_loop
async def test_the_keep_alive_of_the_answer_sets_the_timer_anew() -> None:
    bench = Bench()
    bench.clock.advance(1)
    bench.connect(ConnAck(properties=Properties(server_keep_alive=2)))
    bench.clock.advance(1)
    # Setting the timer again finds it due: the ping goes out in the next turn of the loop.
    bench.protocol.tick_at -= 0.5
    bench.receive(Publish(topic=b"t", payload=b""))
    turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0, turn.set_result, None)
    await turn
    assert bench.transport.take() == encoded(PingReq())
    bench.transport.lose(None)
    await bench.ended()
