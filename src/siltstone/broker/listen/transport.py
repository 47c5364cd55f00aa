"""One connection's bytes between its transport and its client; it moves them and decides nothing.

After the last packet it half-closes and reads on for a while, throwing away what comes: closing at
once with unread bytes would reset the connection, and the peer could not read why it was ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from siltstone.broker.access.access import Credentials
from siltstone.broker.broker import Broker
from siltstone.broker.connect.connection import ClientConnection
from siltstone.broker.listen.admission import Admission
from siltstone.broker.listen.descriptors import tell_refused
from siltstone.broker.listen.tls import certificate_user
from siltstone.broker.settings.broker import ListenerSettings
from siltstone.guard import contain, contain_with
from siltstone.mqtt.packets import Connect
from siltstone.mqtt.reason import Reason


class ClientTransport:
    """One connection; `closed` is called when it is gone.

    It has all methods of asyncio.Protocol, and as a compiled class cannot inherit from it.
    """

    __slots__ = (
        "_aborting",
        "_admission",
        "_admitted",
        "_answers_max",
        "_broker",
        "_client",
        "_closed",
        "_is_choked",
        "_is_draining",
        "_is_paused",
        "_listener",
        "_loop",
        "_transport",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        broker: Broker,
        listener: ListenerSettings,
        admission: Admission,
        closed: Callable[[ClientTransport], None],
    ) -> None:
        self._loop = loop
        self._broker = broker
        self._listener = listener
        self._admission = admission
        self._closed = closed
        self._client = ClientConnection(broker, self)
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._is_draining = False
        # Messages wait long before so much is unsent, but for the one that is being written.
        limits = broker.limits
        self._answers_max = 2 * limits.write_buffer_max + limits.packet_size_max
        self._is_choked = False
        # The address under which it is counted; None where it was not let in.
        self._admitted: str | None = None
        self._aborting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are asyncio's in all but their class.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._broker.limits.write_buffer_max)
        address = self.address
        # Its time may be over before the handshake of TLS was.
        if self._client.ended:
            self.abort()
        elif self._admission.enter(address):
            self._admitted = address
        else:
            tell_refused(self._admission, address, self._loop.time())
            self.abort()

    def data_received(self, data: bytes) -> None:
        if self._is_draining:
            return
        contain_with(self._client.receive, data, self.abort)

    def eof_received(self) -> bool:
        # The client closed without a word: nothing more is sent to it.
        return False

    def pause_writing(self) -> None:
        self._client.pause_writing()

    def resume_writing(self) -> None:
        if self._is_choked:
            self._is_choked = False
            self._client.unchoke()
        contain(self._client.resume_writing, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the interface
        contain(self._client.lost)
        if self._aborting is not None:
            self._aborting.cancel()
        if self._admitted is not None:
            self._admission.leave(self._admitted)
        self._closed(self)
        # The two refer to each other.
        self._transport = None

    # What the client asks for.

    def credentials(self, connect: Connect, client_id: str) -> Credentials:
        """Return what the client and its connection say of who it is."""
        certificate = None
        if self._listener.secure and self._listener.user_from_certificate:
            assert self._transport is not None
            certificate = certificate_user(self._transport.get_extra_info("peercert"))
        return Credentials(
            client_id=client_id,
            username=connect.username,
            password=connect.password,
            certificate_user=certificate,
            address=self.address,
            listener=self._listener.address,
            anonymous_allowed=self._broker.settings.lets_in_anonymous(self._listener),
        )

    @property
    def address(self) -> str:
        """The address of the peer, without its port."""
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else "local"

    def write(self, data: bytes) -> None:
        """Send bytes. Who reads no answers is not read either, once there are too many."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if not self._is_choked and transport.get_write_buffer_size() > self._answers_max:
            self._is_choked = True
            self._client.choke()

    def close(self) -> None:
        """Close once the peer has had a moment to read what was sent."""
        transport = self._transport
        if self._is_draining or transport is None or transport.is_closing():
            return
        self._is_draining = True
        self.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()
        else:
            transport.close()
        self._aborting = self._loop.call_later(self._broker.settings.drain_timeout, self.abort)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def stop_reading(self) -> None:
        """Bring no more bytes, whoever waits for whom."""
        self._client.stop()

    def end_service(self) -> None:
        """Tell the client that the server shuts down."""
        self._client.end(Reason.SERVER_SHUTTING_DOWN)

    def pause_reading(self) -> None:
        """Stop bringing bytes."""
        if self._transport is not None and not self._is_paused and not self._is_draining:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Bring bytes again."""
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
