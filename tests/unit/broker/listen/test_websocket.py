"""A WebSocket connection without a socket: the library's own client on the other side."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from siltstone.broker.listen.websocket import (
    HEAD_SIZE_MAX,
    WebSocketProtocol,
    WebSocketRules,
    WebSocketTransport,
)

RULES = WebSocketRules(path="/mqtt", handshake_timeout=10.0, drain_timeout=2.0, frame_size_max=1000)


class Timer:
    """A call that is due at a time, unless it is cancelled."""

    def __init__(self, due: float, call: Callable[[], None]) -> None:
        self.due = due
        self.call = call
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    """The clock of a loop, moved by hand."""

    def __init__(self) -> None:
        self.now = 100.0
        self.timers: list[Timer] = []

    def time(self) -> float:
        return self.now

    def call_at(self, due: float, call: Callable[[], None]) -> Timer:
        self.timers.append(Timer(due, call))
        return self.timers[-1]

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        return self.call_at(self.now + delay, call)

    def due(self) -> list[float]:
        return [timer.due for timer in self.timers if not timer.cancelled]

    def advance_to(self, now: float) -> None:
        self.now = now
        for timer in self.timers:
            if not timer.cancelled and timer.due <= now:
                timer.cancel()
                timer.call()


class SocketTransport(asyncio.Transport):
    """What was done to the socket; log holds all but the bytes, which are in output."""

    def __init__(self, *, half_closes: bool = True) -> None:
        super().__init__({"peername": ("127.0.0.1", 5)})
        self.output = bytearray()
        self.writes: list[int] = []
        self.log: list[object] = []
        self.half_closes = half_closes

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.output += data
        self.writes.append(len(data))

    def can_write_eof(self) -> bool:
        return self.half_closes

    def write_eof(self) -> None:
        self.log.append("write_eof")

    def close(self) -> None:
        self.log.append("close")

    def abort(self) -> None:
        self.log.append("abort")

    def is_closing(self) -> bool:
        return "close" in self.log or "abort" in self.log

    def pause_reading(self) -> None:
        self.log.append("pause_reading")

    def resume_reading(self) -> None:
        self.log.append("resume_reading")

    def get_write_buffer_size(self) -> int:
        return 77

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.log.append(("limits", high, low))


class Channel(asyncio.Protocol):
    """What it was told; on_data, if given, is called for each piece of data."""

    def __init__(self) -> None:
        self.transport: WebSocketTransport | None = None
        self.pieces: list[bytes] = []
        self.log: list[object] = []
        self.on_made: Callable[[WebSocketTransport], None] | None = None
        self.on_data: Callable[[WebSocketTransport], None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, WebSocketTransport)
        self.transport = transport
        if self.on_made is not None:
            self.on_made(transport)

    def data_received(self, data: bytes) -> None:
        assert type(data) is bytes
        self.pieces.append(data)
        if self.on_data is not None:
            assert self.transport is not None
            self.on_data(self.transport)

    def eof_received(self) -> None:
        self.log.append("eof")

    def pause_writing(self) -> None:
        self.log.append("pause_writing")

    def resume_writing(self) -> None:
        self.log.append("resume_writing")

    def connection_lost(self, exc: Exception | None) -> None:
        self.log.append(("lost", exc))


class Connection:
    """Both ends of one connection, and what passes between them."""

    def __init__(
        self,
        *,
        uri: str = "ws://broker.test/mqtt",
        offers: tuple[str, ...] = ("mqtt",),
        rules: WebSocketRules = RULES,
        half_closes: bool = True,
    ) -> None:
        self.loop = Loop()
        self.socket = SocketTransport(half_closes=half_closes)
        self.channel = Channel()
        self.channels_made = 0
        self.client = ClientProtocol(
            parse_uri(uri), subprotocols=[Subprotocol(name) for name in offers]
        )
        self.client.send_request(self.client.connect())
        self.request = b"".join(self.client.data_to_send())
        self.server = WebSocketProtocol(
            cast("asyncio.AbstractEventLoop", self.loop), self.make_channel, rules
        )
        self.server.connection_made(self.socket)

    def make_channel(self) -> Channel:
        self.channels_made += 1
        return self.channel

    @property
    def transport(self) -> WebSocketTransport:
        assert self.channel.transport is not None
        return self.channel.transport

    def answers(self) -> list[Frame | Response]:
        """Let the client read what was written since the last call."""
        self.client.receive_data(bytes(self.socket.output))
        self.socket.output.clear()
        self.client.data_to_send()
        return cast("list[Frame | Response]", self.client.events_received())

    def status(self) -> int:
        """Return the status of the answer to the request."""
        (response,) = self.answers()
        assert isinstance(response, Response)
        return response.status_code

    def from_client(self) -> bytes:
        """Return what the client has to send."""
        return b"".join(self.client.data_to_send())

    def shake_hands(self) -> None:
        self.server.data_received(self.request)
        assert self.status() == 101
        self.socket.writes.clear()


def opened(*, rules: WebSocketRules = RULES, half_closes: bool = True) -> Connection:
    connection = Connection(rules=rules, half_closes=half_closes)
    connection.shake_hands()
    return connection


def binary(data: bytes, *, fin: bool = True) -> Frame:
    return Frame(Opcode.BINARY, data, fin)


def close_frame(code: int, reason: str = "") -> Frame:
    return Frame(Opcode.CLOSE, code.to_bytes(2, "big") + reason.encode())


@pytest.mark.parametrize(
    ("offers", "selected"),
    [
        (("mqtt",), "mqtt"),
        (("mqttv3.1",), "mqttv3.1"),
        (("mqttv3.1", "mqtt"), "mqtt"),
        (("chat", "mqtt"), "mqtt"),
    ],
)
def test_mqtt_6_0_0_3_the_server_selects_the_subprotocol_mqtt(
    offers: tuple[str, ...], selected: str
) -> None:
    connection = Connection(offers=offers)
    connection.shake_hands()
    assert connection.client.subprotocol == selected


@pytest.mark.parametrize(
    ("offers", "uri", "status"),
    [
        ((), "ws://broker.test/mqtt", 400),
        (("chat",), "ws://broker.test/mqtt", 400),
        (("mqtt",), "ws://broker.test/", 404),
        (("mqtt",), "ws://broker.test/mqtt/more", 404),
    ],
)
def test_another_subprotocol_or_path_is_refused(
    offers: tuple[str, ...], uri: str, status: int
) -> None:
    connection = Connection(offers=offers, uri=uri)
    connection.server.data_received(connection.request)
    assert connection.status() == status
    assert connection.channels_made == 0
    assert connection.socket.log == ["write_eof"]
    # It may read why for a while, and what it still says is not listened to.
    connection.server.data_received(connection.request)
    assert connection.socket.output == b""
    connection.loop.advance_to(102.0)
    assert connection.socket.log == ["write_eof", "abort"]


def test_a_query_behind_the_path_does_not_matter() -> None:
    connection = Connection(uri="ws://broker.test/mqtt?token=1")
    connection.shake_hands()
    assert connection.channels_made == 1


def test_compression_is_not_taken_when_offered() -> None:
    connection = Connection()
    offer = b"Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n"
    connection.server.data_received(connection.request[:-2] + offer)
    assert b"permessage-deflate" not in connection.socket.output
    assert connection.status() == 101


def test_what_is_no_request_is_closed_without_an_answer() -> None:
    connection = Connection()
    connection.server.data_received(b"\x10\x0e\x00\x04MQTT\r\n\r\n")
    assert connection.socket.output == b""
    assert connection.socket.log == ["write_eof"]
    assert connection.channels_made == 0


@pytest.mark.parametrize("size", [1, 1000, HEAD_SIZE_MAX + 1])
def test_a_head_beyond_the_limit_is_refused_before_it_is_whole(size: int) -> None:
    connection = Connection()
    head = connection.request[:-2] + b"X-Filler: " + b"x" * HEAD_SIZE_MAX
    for start in range(0, len(head), size):
        connection.server.data_received(head[start : start + size])
    assert connection.status() == 431
    assert connection.socket.log == ["write_eof"]


def test_a_head_beyond_the_limit_is_refused_when_it_is_whole() -> None:
    connection = Connection()
    lines = b"X-Filler: x\r\n" * (HEAD_SIZE_MAX // 13 + 1)
    connection.server.data_received(connection.request[:-2] + lines + b"\r\n")
    assert connection.status() == 431


def test_the_time_for_the_handshake_runs_from_the_accept() -> None:
    connection = Connection()
    assert connection.loop.due() == [110.0]
    connection.server.data_received(connection.request[:-1])
    connection.loop.advance_to(110.0)
    assert (connection.socket.log, connection.channels_made) == (["abort"], 0)


def test_the_time_for_the_handshake_ends_with_it() -> None:
    assert opened().loop.due() == []


def test_a_connection_that_is_lost_in_the_handshake_leaves_no_timer() -> None:
    connection = Connection()
    assert connection.server.eof_received() is False
    connection.server.connection_lost(None)
    assert connection.loop.due() == []
    assert (connection.channels_made, connection.channel.log) == (0, [])


def test_mqtt_6_0_0_2_packets_may_span_frames_and_frames_come_in_any_pieces() -> None:
    template = Connection()
    template.shake_hands()
    for data in (b"\x10", b"", b"\x02ab\xc0\x00" * 60, b"\xc0"):
        template.client.send_binary(data)
    stream = template.from_client()
    for cut in range(1, len(stream)):
        connection = opened()
        connection.server.data_received(stream[:cut])
        connection.server.data_received(stream[cut:])
        assert b"".join(connection.channel.pieces) == b"\x10" + b"\x02ab\xc0\x00" * 60 + b"\xc0"
        assert b"" not in connection.channel.pieces
    connection = opened()
    for byte in stream:
        connection.server.data_received(bytes([byte]))
    assert b"".join(connection.channel.pieces) == b"\x10" + b"\x02ab\xc0\x00" * 60 + b"\xc0"


def test_the_frames_of_one_chunk_are_one_piece() -> None:
    connection = opened()
    connection.client.send_binary(b"ab")
    connection.client.send_binary(b"cd")
    connection.server.data_received(connection.from_client())
    assert connection.channel.pieces == [b"abcd"]


def test_the_handshake_may_come_in_any_pieces_and_frames_right_behind_it() -> None:
    for cut in range(1, 200, 7):
        connection = Connection()
        frame = Frame(Opcode.BINARY, b"eager").serialize(mask=True)
        stream = connection.request + frame + Frame(Opcode.CLOSE, b"").serialize(mask=True)
        connection.server.data_received(stream[:cut])
        connection.server.data_received(stream[cut:])
        assert connection.channel.pieces == [b"eager"]
        assert connection.channel.log == ["eof"]
        assert connection.answers()[1:] == [Frame(Opcode.CLOSE, b"")]


def test_fragments_are_passed_on_before_the_message_is_whole() -> None:
    connection = opened()
    connection.client.send_binary(b"a" * 1000, fin=False)
    connection.server.data_received(connection.from_client())
    assert connection.channel.pieces == [b"a" * 1000]
    connection.client.send_continuation(b"b" * 1000, fin=False)
    connection.client.send_ping(b"between")
    connection.client.send_continuation(b"c", fin=True)
    connection.server.data_received(connection.from_client())
    assert connection.channel.pieces == [b"a" * 1000, b"b" * 1000 + b"c"]
    assert connection.answers() == [Frame(Opcode.PONG, b"between")]


def test_a_frame_beyond_the_limit_is_refused_by_its_header() -> None:
    connection = opened()
    connection.client.send_binary(b"before")
    connection.client.send_binary(bytes(1001))
    stream = connection.from_client()
    connection.server.data_received(stream[:-1001])
    (answer,) = connection.answers()
    assert isinstance(answer, Frame)
    assert (answer.opcode, answer.data[:2]) == (Opcode.CLOSE, (1009).to_bytes(2, "big"))
    assert connection.channel.pieces == [b"before"]
    assert connection.channel.log == ["eof"]
    assert connection.socket.log == ["write_eof"]
    connection.server.data_received(stream[-1001:])
    assert connection.channel.pieces == [b"before"]


def test_mqtt_6_0_0_1_a_text_frame_ends_the_connection() -> None:
    connection = opened()
    connection.client.send_binary(b"before")
    connection.client.send_text(b"te", fin=False)
    connection.client.send_continuation(b"xt", fin=True)
    connection.client.send_binary(b"after")
    connection.server.data_received(connection.from_client())
    assert connection.answers() == [close_frame(1003, "MQTT must be sent in binary frames")]
    assert connection.channel.pieces == [b"before"]
    assert connection.channel.log == ["eof"]
    assert connection.socket.log == ["write_eof"]
    assert connection.transport.is_closing()


def test_a_text_frame_before_a_close_frame_ends_the_connection_too() -> None:
    connection = opened()
    connection.client.send_text(b"text")
    connection.client.send_close(1000)
    connection.server.data_received(connection.from_client())
    assert connection.answers() == [close_frame(1000)]
    assert (connection.channel.pieces, connection.channel.log) == ([], ["eof"])


@pytest.mark.parametrize(
    "stream",
    [
        Frame(Opcode.BINARY, b"x").serialize(mask=False),
        Frame(Opcode.CONT, b"x").serialize(mask=True),
        b"\x83\x80\0\0\0\0",
        b"\xc2\x80\0\0\0\0",
    ],
    ids=["not masked", "nothing to continue", "unknown opcode", "reserved bit"],
)
def test_a_frame_against_the_rules_ends_the_connection(stream: bytes) -> None:
    connection = opened()
    connection.server.data_received(stream)
    (answer,) = connection.answers()
    assert isinstance(answer, Frame)
    assert (answer.opcode, answer.data[:2]) == (Opcode.CLOSE, (1002).to_bytes(2, "big"))
    assert (connection.channel.pieces, connection.channel.log) == ([], ["eof"])


def test_every_ping_is_answered_in_one_write() -> None:
    connection = opened()
    for number in range(3):
        connection.client.send_ping(bytes([number]))
    connection.server.data_received(connection.from_client())
    assert len(connection.socket.writes) == 1
    assert connection.answers() == [Frame(Opcode.PONG, bytes([number])) for number in range(3)]
    assert connection.channel.pieces == []


def test_who_pings_and_does_not_read_is_owed_the_last_pong_alone() -> None:
    connection = opened()
    connection.server.pause_writing()
    for number in range(3):
        connection.client.send_ping(bytes([number]))
        connection.server.data_received(connection.from_client())
    assert connection.socket.output == b""
    connection.server.resume_writing()
    assert connection.answers() == [Frame(Opcode.PONG, b"\x02")]
    connection.server.pause_writing()
    connection.server.resume_writing()
    assert connection.answers() == []
    assert connection.channel.log == ["pause_writing", "resume_writing"] * 2


def test_a_pong_that_is_owed_does_not_follow_a_close_frame() -> None:
    connection = opened()
    connection.server.pause_writing()
    connection.client.send_ping(b"")
    connection.server.data_received(connection.from_client())
    connection.transport.write_eof()
    connection.server.resume_writing()
    assert connection.socket.output == close_frame(1000).serialize(mask=False)


def test_each_write_is_one_binary_frame() -> None:
    connection = opened()
    connection.transport.write(b"one")
    connection.transport.write(b"")
    connection.transport.writelines([b"tw", bytearray(b"o"), memoryview(b"!")])
    assert connection.answers() == [binary(b"one"), binary(b"two!")]
    assert connection.socket.writes == [5, 6]


def test_write_eof_is_a_close_frame_behind_which_only_the_peer_speaks() -> None:
    connection = opened()
    assert connection.transport.can_write_eof()
    connection.transport.write(b"last words")
    connection.transport.write_eof()
    connection.transport.write(b"too late")
    connection.transport.write_eof()
    # The client has not read it yet.
    connection.client.send_binary(b"crossing")
    connection.server.data_received(connection.from_client())
    assert connection.channel.pieces == [b"crossing"]
    assert connection.answers() == [binary(b"last words"), close_frame(1000)]
    # Or else a channel that waits for the peer before it closes would forget to.
    assert not connection.transport.is_closing()
    assert (connection.socket.log, connection.loop.due()) == ([], [])


def test_the_answer_to_a_close_frame_ends_the_connection() -> None:
    connection = opened()
    connection.transport.write_eof()
    connection.client.receive_data(bytes(connection.socket.output))
    connection.socket.output.clear()
    connection.server.data_received(connection.from_client())
    assert (connection.channel.log, connection.socket.log) == (["eof"], ["write_eof"])
    assert connection.socket.output == b""
    assert connection.transport.is_closing()


def test_a_close_frame_of_the_client_is_answered_and_told_as_the_end() -> None:
    connection = opened()
    connection.client.send_binary(b"\xe0\x00")
    connection.client.send_close(1001, "going away")
    connection.server.data_received(connection.from_client())
    assert connection.answers() == [close_frame(1001, "going away")]
    assert connection.client.state is State.CLOSING
    assert connection.channel.pieces == [b"\xe0\x00"]
    assert connection.channel.log == ["eof"]
    assert (connection.socket.log, connection.loop.due()) == (["write_eof"], [102.0])
    connection.transport.write(b"too late")
    assert connection.socket.output == b""
    # The client closes its side, and the loop closes ours.
    assert connection.server.eof_received() is False
    connection.server.connection_lost(None)
    assert connection.channel.log == ["eof", ("lost", None)]
    assert connection.loop.due() == []


def test_a_socket_that_cannot_be_closed_by_halves_is_closed() -> None:
    connection = opened(half_closes=False)
    connection.client.send_close(1000)
    connection.server.data_received(connection.from_client())
    assert connection.answers() == [close_frame(1000)]
    assert (connection.socket.log, connection.loop.due()) == (["close"], [])


def test_close_sends_a_close_frame_and_does_not_wait() -> None:
    connection = opened()
    connection.transport.close()
    assert connection.answers() == [close_frame(1000)]
    assert connection.socket.log == ["close"]
    assert connection.transport.is_closing()
    connection.transport.close()
    connection.transport.write(b"too late")
    assert connection.socket.output == b""


def test_a_channel_that_closes_gets_nothing_more() -> None:
    connection = opened()
    connection.channel.on_data = WebSocketTransport.close
    connection.client.send_binary(b"bad")
    connection.client.send_close(1000)
    connection.server.data_received(connection.from_client())
    assert connection.answers() == [close_frame(1000)]
    assert (connection.channel.pieces, connection.channel.log) == ([b"bad"], [])
    assert connection.socket.log == ["close"]


def test_a_channel_that_refuses_the_connection_gets_no_data() -> None:
    connection = Connection()
    connection.channel.on_made = WebSocketTransport.abort
    frame = Frame(Opcode.BINARY, b"eager").serialize(mask=True)
    connection.server.data_received(connection.request + frame)
    assert (connection.channel.pieces, connection.channel.log) == ([], [])
    assert connection.socket.log == ["abort"]


def test_the_end_without_a_close_frame_is_told_once_and_closes() -> None:
    connection = opened()
    assert connection.server.eof_received() is False
    connection.transport.write(b"too late")
    assert connection.socket.output == b""
    error = ConnectionResetError()
    connection.server.connection_lost(error)
    assert connection.channel.log == ["eof", ("lost", error)]


def test_what_is_not_about_frames_is_passed_to_the_socket() -> None:
    connection = opened()
    connection.transport.pause_reading()
    connection.transport.resume_reading()
    connection.transport.set_write_buffer_limits(high=9, low=3)
    assert connection.transport.get_write_buffer_size() == 77
    assert connection.transport.get_extra_info("peername") == ("127.0.0.1", 5)
    assert connection.transport.get_extra_info("peercert", "none") == "none"
    connection.transport.abort()
    # uvloop would raise.
    connection.transport.write(b"too late")
    assert connection.socket.output == b""
    assert connection.socket.log == [
        "pause_reading",
        "resume_reading",
        ("limits", 9, 3),
        "abort",
    ]
