"""The asyncio part of one connection: it moves bytes and decides nothing.

`closed` reports how the connection ended: with None after the client's own DISCONNECT, otherwise
with the error that ended it. An error that the receiver of messages raises ends the connection and
is passed on unchanged.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from siltstone.client.protocol import ClientProtocol, ClientState
from siltstone.client.refusal import system_words
from siltstone.clock import Clock
from siltstone.errors import OutcomeUnknownError, SiltstoneError
from siltstone.mqtt.publish import PublishBatch

# Takes messages and returns how many of them it has accepted; the others count as not received.
Deliver = Callable[[PublishBatch], int]

_WRITE_BUFFER_MAX: Final = 1_048_576
_LINGER_SECONDS: Final = 2.0


class BrokerConnection(asyncio.Protocol):
    """A transport and a protocol; `pumped` is called when all that may be sent is written."""

    def __init__(
        self,
        protocol: ClientProtocol,
        clock: Clock,
        *,
        deliver: Deliver,
        pumped: Callable[[], None],
    ) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._protocol = protocol
        self._clock = clock
        self._deliver = deliver
        self._pumped = pumped
        self._transport: asyncio.Transport | None = None
        self._paused = False
        self._error: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._lingering_bytes = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send CONNECT."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_MAX)
        self.pump()
        self._set_timer()

    def data_received(self, data: bytes) -> None:
        """Deliver messages, then acknowledge them."""
        try:
            for batch in self._protocol.receive(data, self._clock.monotonic()):
                self._protocol.accept(batch, self._deliver(batch))
        except (SiltstoneError, OSError) as exc:
            self._fail(exc)
            return
        self.pump()
        if self._protocol.tick_at != self._timer_at:
            self._set_timer()

    def pause_writing(self) -> None:
        """Stop writing, because the server reads slowly."""
        self._paused = True

    def resume_writing(self) -> None:
        """Continue writing."""
        self._paused = False
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report to the owner how the connection ended."""
        if self._timer is not None:
            self._timer.cancel()
        error = self._error
        if error is None and self._protocol.state is not ClientState.OVER:
            self._protocol.fail(OutcomeUnknownError())
            why = "the server closed it" if exc is None else system_words(exc)
            error = OutcomeUnknownError(f"the connection was lost: {why}")
        if self.closed.done():
            return
        if error is None:
            self.closed.set_result(None)
        else:
            self.closed.set_exception(error)

    def pump(self) -> None:
        """Write everything that may be sent now."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        try:
            while not self._paused:
                data = self._protocol.take(self._clock.monotonic())
                if not data:
                    break
                transport.write(data)
        except SiltstoneError as exc:
            self._fail(exc)
            return
        if self._protocol.state is ClientState.OVER:
            self._say_goodbye(transport)
        elif not self._paused:
            self._pumped()

    def abandon(self) -> None:
        """Close the connection without waiting for acknowledgements."""
        self._fail(OutcomeUnknownError("the client closed the connection"))

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        transport = self._transport
        if transport is not None and not transport.is_closing():
            last_packet = self._protocol.fail(error)
            if last_packet:
                transport.write(last_packet)
            transport.close()
            # Do not wait for a server that has stopped reading.
            asyncio.get_running_loop().call_later(_LINGER_SECONDS, transport.abort)

    def _say_goodbye(self, transport: asyncio.Transport) -> None:
        """Wait until the server closes the connection, which shows that it has read everything."""
        if self._lingering_bytes >= 0:
            return
        if self._timer is not None:
            self._timer.cancel()
        if transport.can_write_eof():
            transport.write_eof()
        self._linger(transport)

    def _linger(self, transport: asyncio.Transport) -> None:
        """Abort if the server has not closed the connection and no more bytes are being sent."""
        left = transport.get_write_buffer_size()
        if 0 <= self._lingering_bytes <= left:
            transport.abort()
            return
        self._lingering_bytes = left
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(_LINGER_SECONDS, self._linger, transport)

    def _set_timer(self) -> None:
        if self._protocol.state is ClientState.OVER:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._timer_at = self._protocol.tick_at
        if self._timer_at < float("inf"):
            wait = self._timer_at - self._clock.monotonic()
            self._timer = asyncio.get_running_loop().call_later(wait, self._tick)

    def _tick(self) -> None:
        try:
            self._protocol.tick(self._clock.monotonic())
        except SiltstoneError as exc:
            self._fail(exc)
            return
        self.pump()
        self._set_timer()
