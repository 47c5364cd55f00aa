"""MQTT over WebSocket (RFC 6455; MQTT 6.0): the bytes of a channel, in binary frames.

`WebSocketProtocol` owns the socket and the handshake. After the handshake it owns a channel, which
sees a plain connection: `data_received` with the payload of binary frames, in pieces of any size,
and a `WebSocketTransport` to write to. The `websockets` library encodes and decodes the frames; it
does no I/O here.

Invariants: no channel exists before the handshake is done; the channel is never called from within
its own call of the transport; the memory for one client is limited to the head of its request, one
frame, and the limits of its channel.

The Origin header is not checked: MQTT has its own login and uses no cookies. Compression is not
offered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final, cast

from websockets.frames import CloseCode, Frame, Opcode
from websockets.http11 import Request, Response
from websockets.protocol import SEND_EOF, State
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

# Clients of MQTT 3.1 offer the second name, which is older than the standard [MQTT-6.0.0-3].
SUBPROTOCOLS: Final = (Subprotocol("mqtt"), Subprotocol("mqttv3.1"))
HEAD_SIZE_MAX: Final = 16 * 1024

_HEAD_END: Final = b"\r\n\r\n"
_PONG: Final = 0x80 | Opcode.PONG
_PAYLOAD: Final = (Opcode.BINARY, Opcode.CONT)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSocketRules:
    """The limits for every connection of one listener; times in seconds.

    The handshake, including the one of TLS, must end within `handshake_timeout` after the accept.
    After a close frame, the client has `drain_timeout` to close. A frame is kept in memory until
    it is complete; a message of several frames is passed on frame by frame.
    """

    path: str
    handshake_timeout: float
    drain_timeout: float
    frame_size_max: int


class WebSocketTransport(asyncio.Transport):
    """The transport of a channel: each write is one binary frame, and `write_eof` a close frame.

    Data written after a close frame of either side is dropped: no frame may follow a close frame.
    """

    def __init__(
        self, transport: asyncio.Transport, frames: ServerProtocol, flush: Callable[[], bool]
    ) -> None:
        super().__init__()
        self._transport = transport
        self._frames = frames
        self._flush = flush

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if data and self._is_open():
            self._frames.send_binary(data)
            self._flush()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        """Send the close frame; the client may send until it answers with its own."""
        if self._is_open():
            self._frames.send_close(CloseCode.NORMAL_CLOSURE)
            self._flush()

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        """Send the close frame, if none was sent, and close without waiting for the answer."""
        self.write_eof()
        self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def is_closing(self) -> bool:
        """Return whether reading has ended; after `write_eof`, once the client has closed too."""
        return self._frames.eof_sent or self._transport.is_closing()

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._transport.get_extra_info(name, default)

    def _is_open(self) -> bool:
        return self._frames.state is State.OPEN and not self._transport.is_closing()


class WebSocketProtocol(asyncio.Protocol):
    """One WebSocket connection: its handshake, then the channel that `make_channel` returns.

    Create it when the connection is accepted: the handshake timeout starts with the constructor.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        make_channel: Callable[[], asyncio.Protocol],
        rules: WebSocketRules,
    ) -> None:
        self._loop = loop
        self._make_channel = make_channel
        self._rules = rules
        self._deadline = loop.time() + rules.handshake_timeout
        # Messages have no size limit, because they are passed on frame by frame. Frames have one.
        self._frames = ServerProtocol(
            subprotocols=SUBPROTOCOLS, max_size=(None, rules.frame_size_max)
        )
        self._head = bytearray()
        self._transport: asyncio.Transport | None = None
        self._channel: asyncio.Protocol | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._writing_paused = False
        self._pong_owed = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop have the methods of asyncio.Transport, but not always its type.
        self._transport = cast("asyncio.Transport", transport)
        self._timer = self._loop.call_at(self._deadline, self._open_transport().abort)

    def data_received(self, data: bytes) -> None:
        if self._frames.eof_sent:
            return
        if self._channel is None:
            data = self._take_head(data)
        if data and self._channel is not None and not self._open_transport().is_closing():
            self._take_frames(self._channel, data)

    def eof_received(self) -> bool:
        """Notify the channel, unless a close frame was sent; the loop then closes the socket."""
        if self._channel is not None and not self._frames.eof_sent:
            self._frames.receive_eof()
            self._frames.data_to_send()
            self._channel.eof_received()
        return False

    def pause_writing(self) -> None:
        self._writing_paused = True
        if self._channel is not None:
            self._channel.pause_writing()

    def resume_writing(self) -> None:
        self._writing_paused = False
        if self._pong_owed and self._frames.state is State.OPEN:
            self._open_transport().write(self._pong_owed)
        self._pong_owed = b""
        if self._channel is not None:
            self._channel.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.connection_lost(exc)

    def _take_head(self, data: bytes) -> bytes:
        """Collect the request head, answer it when complete, and return the bytes after it."""
        searched = max(0, len(self._head) - len(_HEAD_END) + 1)
        self._head += data
        end = self._head.find(_HEAD_END, searched) + len(_HEAD_END)
        found = end >= len(_HEAD_END)
        if (end if found else len(self._head)) > HEAD_SIZE_MAX:
            self._frames.send_response(self._frames.reject(431, "The request is too long.\n"))
        elif not found:
            return b""
        else:
            # Only the head: the library would read further bytes as frames before the answer is
            # decided.
            self._frames.receive_data(self._head[:end])
            for request in self._frames.events_received():
                assert isinstance(request, Request)
                self._frames.send_response(self._answer(request))
        rest = bytes(self._head[end:])
        self._head.clear()
        self._stop_timer()
        self._flush()
        if self._frames.state is not State.OPEN:
            self._end()
            return b""
        self._channel = self._make_channel()
        self._channel.connection_made(
            WebSocketTransport(self._open_transport(), self._frames, self._flush)
        )
        return rest

    def _answer(self, request: Request) -> Response:
        if request.path.partition("?")[0] != self._rules.path:
            return self._frames.reject(404, "MQTT is not served at this path.\n")
        return self._frames.accept(request)

    def _take_frames(self, channel: asyncio.Protocol, data: bytes) -> None:
        self._frames.receive_data(data)
        payloads = []
        for frame in self._frames.events_received():
            assert isinstance(frame, Frame)
            if frame.opcode in _PAYLOAD:
                payloads.append(frame.data)
            elif frame.opcode is Opcode.TEXT:
                # [MQTT-6.0.0-1]: "If any other type of data frame is received the recipient MUST
                # close the Network Connection."
                self._frames.fail(CloseCode.UNSUPPORTED_DATA, "MQTT must be sent in binary frames")
                break
        # Flush before the channel is called, so that its calls of the transport find no pending
        # output.
        ended = self._flush()
        if payload := b"".join(payloads):
            channel.data_received(payload)
        if ended:
            self._end()

    def _flush(self) -> bool:
        """Write the output of the library; return whether it ends the connection."""
        ended = False
        writes = []
        for data in self._frames.data_to_send():
            if data == SEND_EOF:
                ended = True
            elif self._writing_paused and data[0] == _PONG:
                # RFC 6455 5.5.3: a pong for the last ping is enough. Otherwise a client that sends
                # pings and never reads would fill the memory of the broker.
                self._pong_owed = data
            else:
                writes.append(data)
        if writes:
            self._open_transport().write(b"".join(writes))
        return ended

    def _end(self) -> None:
        """Half-close, and close when the client does or after `drain_timeout`.

        If the socket was closed at once, bytes that the client still sends would reset the
        connection before it has read the reason.
        """
        transport = self._open_transport()
        if self._channel is not None and not transport.is_closing():
            self._channel.eof_received()
        if transport.is_closing():
            return
        if transport.can_write_eof():
            transport.write_eof()
            self._timer = self._loop.call_later(self._rules.drain_timeout, transport.abort)
        else:
            transport.close()

    def _open_transport(self) -> asyncio.Transport:
        assert self._transport is not None, "no connection was made"
        return self._transport

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
