from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any, cast

import pytest

from siltstone.broker.connect.rounds import ROUND_SECONDS, Rounds
from siltstone.broker.listen.admission import Admission
from siltstone.broker.listen.transport import ClientTransport
from siltstone.broker.settings.broker import ListenerSettings
from siltstone.mqtt.encode import encode
from siltstone.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Subscribe,
    Subscription,
    Will,
)
from siltstone.mqtt.properties import Properties
from siltstone.mqtt.reason import Reason
from siltstone.topic.grammar import TopicFilter
from tests.support.broker_core import V5, Core, FailingTap, decode_all, message

TCP = ListenerSettings()
TLS = ListenerSettings(kind="tls", certificate="c", key="k", client_ca="a")


class Later:
    """A call that waits for its time."""

    def __init__(self, seconds: float, act: Callable[[], None]) -> None:
        self.seconds = seconds
        self.act = act
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class DeskLoop:
    """Of a loop, what a channel needs."""

    def __init__(self) -> None:
        self.laters: list[Later] = []

    def time(self) -> float:
        return 0.0

    def call_later(self, seconds: float, act: Callable[[], None]) -> Later:
        self.laters.append(Later(seconds, act))
        return self.laters[-1]


class Transport(asyncio.Transport):
    """Keeps what is written, and what is asked of it."""

    def __init__(self, *, half_closes: bool = True, **extra: Any) -> None:
        super().__init__(extra)
        self.calls: list[str] = []
        self.buffered = 0
        self.closing = False
        self._half_closes = half_closes
        self._written = bytearray()

    def take(self) -> list[Packet]:
        data, self._written = bytes(self._written), bytearray()
        return decode_all(V5, data)

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        assert not self.closing
        self._written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.calls.append(f"limit {high}")

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return self._half_closes

    def write_eof(self) -> None:
        self.calls.append("eof")

    def close(self) -> None:
        self.calls.append("close")
        self.closing = True

    def abort(self) -> None:
        self.calls.append("abort")
        self.closing = True

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


class Desk:
    """A channel between a broker and a transport."""

    def __init__(
        self,
        core: Core | None = None,
        listener: ListenerSettings = TCP,
        transport: Transport | None = None,
    ) -> None:
        self.core = core or Core(write_buffer_max=4096, packet_size_max=4096)
        self.loop = DeskLoop()
        self.closed: list[ClientTransport] = []
        self.admission = Admission(self.core.broker.limits)
        self.channel = ClientTransport(
            cast("asyncio.AbstractEventLoop", self.loop),
            self.core.broker,
            listener,
            self.admission,
            self.closed.append,
        )
        self.transport = transport or Transport(peername=("10.0.0.7", 5000))
        self.channel.connection_made(self.transport)

    def send(self, *packets: Packet) -> list[Packet]:
        """Bring packets; return what is written."""
        self.channel.data_received(b"".join(encode(V5, packet) for packet in packets))
        self.core.run()
        return self.transport.take()

    def use_up_round(self) -> list[Callable[[], None]]:
        """Use up the time of the round in which connections end; return the next round."""
        rounds: list[Callable[[], None]] = []
        endings = Rounds(rounds.append, count(0.0, ROUND_SECONDS).__next__)
        endings.run(lambda: None)
        self.core.broker.endings = endings
        return rounds

    def connected(self) -> Desk:
        answer = self.send(Connect(version=V5, client_id="c"))
        assert isinstance(answer[0], ConnAck)
        self.transport.calls.clear()
        return self


def test_packets_go_in_and_out() -> None:
    desk = Desk()
    assert desk.transport.calls == ["limit 4096"]
    answer = desk.send(Connect(version=V5, client_id="c"), PingReq())
    assert [type(packet).__name__ for packet in answer] == ["ConnAck", "PingResp"]
    assert desk.transport.calls == ["limit 4096", "pause", "resume"]


def test_after_the_last_packet_it_half_closes_and_closes_when_time_is_up() -> None:
    desk = Desk().connected()
    desk.channel.end_service()
    assert desk.transport.take() == [Disconnect(reason=Reason.SERVER_SHUTTING_DOWN)]
    assert desk.transport.calls == ["eof"]
    (later,) = desk.loop.laters
    assert later.seconds == desk.core.broker.settings.drain_timeout
    later.act()
    assert desk.transport.calls == ["eof", "abort"]


def test_where_it_cannot_half_close_it_closes_and_does_not_wait_for_ever() -> None:
    transport = Transport(half_closes=False, peername=("10.0.0.7", 5000))
    desk = Desk(transport=transport).connected()
    desk.channel.end_service()
    assert transport.calls == ["close"]
    assert len(desk.loop.laters) == 1


def test_what_comes_while_it_drains_is_thrown_away() -> None:
    desk = Desk().connected()
    desk.channel.end_service()
    desk.transport.take()
    assert desk.send(PingReq(), message("a", "late")) == []
    assert desk.core.database.rows == []


def test_a_peer_that_was_not_read_is_read_to_the_end_when_it_drains() -> None:
    desk = Desk().connected()
    desk.channel.stop_reading()
    desk.channel.end_service()
    assert desk.transport.calls == ["pause", "resume", "eof"]
    desk.channel.pause_reading()
    assert desk.transport.calls == ["pause", "resume", "eof"]


def test_it_closes_once() -> None:
    desk = Desk().connected()
    desk.channel.close()
    desk.channel.close()
    assert (desk.transport.calls, len(desk.loop.laters)) == (["eof"], 1)


def test_a_transport_that_is_closing_is_left_alone() -> None:
    desk = Desk().connected()
    desk.transport.closing = True
    desk.channel.write(b"\xd0\x00")
    desk.channel.close()
    assert (desk.transport.calls, desk.transport.take()) == ([], [])


def test_reading_stops_and_goes_on_once() -> None:
    desk = Desk().connected()
    for _ in range(2):
        desk.channel.pause_reading()
    for _ in range(2):
        desk.channel.resume_reading()
    assert desk.transport.calls == ["pause", "resume"]


def test_reading_does_not_go_on_in_a_transport_that_is_closing() -> None:
    desk = Desk().connected()
    desk.channel.pause_reading()
    desk.transport.closing = True
    desk.channel.resume_reading()
    assert desk.transport.calls == ["pause"]


def test_what_has_stopped_for_good_does_not_go_on_when_others_do() -> None:
    desk = Desk(Core(automatic=False, pending_bytes_max=65_536)).connected()
    desk.send(message("a", "x" * 70_000))
    desk.channel.stop_reading()
    desk.core.settle()
    assert desk.transport.calls == ["pause"]


def test_a_connection_that_is_lost_is_told_once_and_its_client_is_gone() -> None:
    desk = Desk().connected()
    assert desk.channel.eof_received() is False
    desk.channel.connection_lost(None)
    assert desk.closed == [desk.channel]
    assert desk.core.broker.clients == {}


def test_a_client_returns_before_the_end_of_its_lost_connection_was_processed() -> None:
    desk = Desk().connected()
    rounds = desk.use_up_round()
    desk.transport.closing = True
    desk.channel.connection_lost(None)
    assert desk.closed == []
    again = Desk(desk.core).connected()
    (peer,) = desk.core.broker.clients.values()
    rounds[0]()
    assert desk.closed == [desk.channel]
    assert [*desk.core.broker.clients.values()] == [peer]
    assert again.send(PingReq()) == [PingResp()]


def test_a_disconnect_counts_from_its_arrival_even_if_it_is_processed_later() -> None:
    core = Core()
    watch = Desk(core)
    watch.send(Connect(version=V5, client_id="watch"))
    subscription = Subscription(filter=TopicFilter.parse("will"))
    watch.send(Subscribe(packet_id=1, subscriptions=(subscription,)))
    desk = Desk(core)
    will = Will(topic=b"will", payload=b"gone")
    expiry = Properties(session_expiry_interval=100)
    desk.send(Connect(version=V5, client_id="c", will=will, properties=expiry))
    rounds = desk.use_up_round()
    properties = Properties(session_expiry_interval=0)
    # What follows a DISCONNECT is not read.
    assert desk.send(Disconnect(properties=properties), PingReq()) == []
    assert len(core.broker.clients) == 2
    again = Desk(core).send(Connect(version=V5, client_id="c", clean_start=False))
    assert isinstance(again[0], ConnAck)
    assert again[0].session_present is False
    rounds[0]()
    core.run()
    assert watch.transport.take() == []
    assert desk.transport.take() == []
    assert len(core.broker.clients) == 2


def test_nothing_waits_for_a_connection_that_is_lost() -> None:
    desk = Desk().connected()
    desk.channel.end_service()
    desk.channel.connection_lost(None)
    assert [later.is_cancelled for later in desk.loop.laters] == [True]


def test_a_mistake_of_ours_ends_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk().connected()
    desk.core.broker.taps.add(FailingTap())
    desk.send(message("a"))
    assert desk.transport.calls == ["abort"]
    assert [record.message for record in caplog.records] == ["internal_error"]
    desk.channel.connection_lost(None)
    assert desk.core.broker.clients == {}


def test_a_client_that_does_not_read_is_sent_nothing_until_it_does() -> None:
    desk = Desk().connected()
    subscription = Subscription(filter=TopicFilter.parse("a"))
    desk.send(Subscribe(packet_id=1, subscriptions=(subscription,)))
    desk.channel.pause_writing()
    publisher = desk.core.connect("p")
    publisher.publish("a", "x")
    assert desk.transport.take() == []
    desk.channel.resume_writing()
    desk.core.run()
    assert desk.transport.take() == [message("a", "x")]


def test_who_reads_no_answers_is_not_read_either() -> None:
    desk = Desk().connected()
    desk.transport.buffered = 2 * 4096 + 4096
    desk.send(PingReq())
    assert desk.transport.calls == []
    desk.transport.buffered += 1
    assert desk.send(PingReq()) == [PingResp()]
    assert desk.send(PingReq()) == [PingResp()]
    assert desk.transport.calls == ["pause"]
    desk.channel.resume_writing()
    assert desk.transport.calls == ["pause", "resume"]


def test_who_reads_answers_again_and_then_no_more_is_not_read_again() -> None:
    desk = Desk().connected()
    for buffered in (12_289, 0, 12_289):
        desk.transport.buffered = buffered
        desk.send(PingReq())
        if not buffered:
            desk.channel.resume_writing()
    assert desk.transport.calls == ["pause", "resume", "pause"]


def test_who_reads_no_answers_is_silent_by_its_own_fault() -> None:
    desk = Desk()
    desk.send(Connect(version=V5, client_id="c", keep_alive_seconds=10))
    desk.transport.buffered = 12_289
    desk.send(PingReq())
    desk.core.advance(14.9)
    assert desk.transport.take() == []
    desk.core.advance(0.1)
    assert desk.transport.take() == [Disconnect(reason=Reason.KEEP_ALIVE_TIMEOUT)]


def test_a_mistake_of_ours_at_the_end_does_not_keep_its_place(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("on purpose")

    desk = Desk(Core(connections_per_address_max=1)).connected()
    monkeypatch.setattr(desk.core.broker.registry, "leave", fail)
    desk.channel.connection_lost(None)
    assert [record.message for record in caplog.records] == ["internal_error"]
    assert (desk.closed, desk.admission.enter("10.0.0.7")) == ([desk.channel], True)


def test_a_handshake_that_ends_too_late_is_closed_at_once() -> None:
    core = Core(connect_timeout=1)
    desk = Desk(core)
    late = ClientTransport(
        cast("asyncio.AbstractEventLoop", desk.loop),
        core.broker,
        TCP,
        desk.admission,
        desk.closed.append,
    )
    core.advance(1)
    transport = Transport(peername=("10.0.0.7", 5001))
    late.connection_made(transport)
    late.connection_lost(None)
    assert transport.calls[-1] == "abort"


def test_who_is_not_let_in_is_closed_at_once_and_not_counted_out() -> None:
    core = Core(connections_per_address_max=1)
    desk = Desk(core)
    second = ClientTransport(
        cast("asyncio.AbstractEventLoop", desk.loop),
        core.broker,
        TCP,
        desk.admission,
        desk.closed.append,
    )
    transport = Transport(peername=("10.0.0.7", 5001))
    second.connection_made(transport)
    second.connection_lost(None)
    assert transport.calls[-1] == "abort"
    assert desk.admission.enter("10.0.0.7") is False
    desk.channel.connection_lost(None)
    assert desk.admission.enter("10.0.0.7") is True


class TestCredentials:
    CONNECT = Connect(version=V5, client_id="", username="u", password=b"p")

    def test_they_say_who_and_from_where(self) -> None:
        credentials = Desk().channel.credentials(self.CONNECT, "c")
        assert (credentials.client_id, credentials.username, credentials.password) == (
            "c",
            "u",
            b"p",
        )
        assert (credentials.address, credentials.listener) == ("10.0.0.7", "tcp://127.0.0.1:1883")
        assert (credentials.certificate_user, credentials.anonymous_allowed) == (None, True)

    def test_a_unix_socket_has_no_address(self) -> None:
        listener = ListenerSettings(kind="unix", path="/run/s")
        desk = Desk(listener=listener, transport=Transport(peername=""))
        assert desk.channel.credentials(self.CONNECT, "c").address == "local"

    @pytest.mark.parametrize(("is_used", "user"), [(True, "device"), (False, None)])
    def test_a_certificate_has_a_user_where_that_is_wanted(
        self, is_used: bool, user: str | None
    ) -> None:
        certificate = {"subject": ((("commonName", "device"),),)}
        listener = TLS.model_copy(update={"user_from_certificate": is_used})
        desk = Desk(
            listener=listener,
            transport=Transport(peername=("10.0.0.7", 1), peercert=certificate),
        )
        assert desk.channel.credentials(self.CONNECT, "c").certificate_user == user
