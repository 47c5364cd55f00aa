"""The bytes of one connection, between its transport and its client; it makes no decisions.

After the last packet, the connection is half-closed. The broker reads and discards further bytes
for a while. Closing at once with unread bytes would reset the connection, and the client could not
read the reason.
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


def _ignore(data: bytes) -> None:
    """Do nothing."""


def _nothing() -> None:
    """Do nothing."""


class ClientTransport:
    """One connection; `closed` is called when it is lost.

    It has all methods of asyncio.Protocol. As a compiled class it cannot inherit from it.
    """

    __slots__ = (
        "_abort",
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
        "_receive",
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
        # Messages stop at `write_buffer_max` unsent bytes, except for the one that is being
        # written. More unsent bytes than this are therefore answers.
        limits = broker.limits
        self._answers_max = 2 * limits.write_buffer_max + limits.packet_size_max
        self._is_choked = False
        # The address under which the connection is counted; None if it was not admitted.
        self._admitted: str | None = None
        # Bound methods that every read needs, while there is a connection.
        self._receive: Callable[[bytes], None] = _ignore
        self._abort: Callable[[], None] = _nothing
        self._aborting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # The transports of uvloop have the methods of asyncio.Transport, but are not subclasses.
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=self._broker.limits.write_buffer_max)
        self._receive, self._abort = self._client.receive, self.abort
        address = self._client.address = self.address
        # The connect timeout may end before the TLS handshake does.
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
        contain_with(self._receive, data, self._abort)

    def eof_received(self) -> bool:
        # The client closed without DISCONNECT: nothing more is sent to it.
        return False

    def pause_writing(self) -> None:
        self._client.pause_writing()

    def resume_writing(self) -> None:
        if self._is_choked:
            self._is_choked = False
            self._client.unchoke()
        contain(self._client.resume_writing, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - the interface
        if self._aborting is not None:
            self._aborting.cancel()
        self._leave()
        self._broker.endings.run(self._end)

    def _end(self) -> None:
        contain(self._client.lost)
        self._closed(self)
        # Break the reference cycles.
        self._transport = None
        self._receive = _ignore
        self._abort = _nothing

    # Methods of Outlet, for the client.

    def credentials(self, connect: Connect, client_id: str) -> Credentials:
        """Return the credentials of the client, from its CONNECT and its connection."""
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
        """The address of the client, without its port; `local` for a Unix socket."""
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else "local"

    def write(self, data: bytes) -> None:
        """Send bytes. If a client does not read its answers, stop reading from it at a limit."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(data)
        if not self._is_choked and transport.get_write_buffer_size() > self._answers_max:
            self._is_choked = True
            self._client.choke()

    def close(self) -> None:
        """Half-close, and close after `drain_timeout`, so that the client can read the rest."""
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
        if self._admitted is not None:
            self._admission.closes(self)

    def give_way(self) -> None:
        """Close at once and leave the admission: a new connection needs the place."""
        self._leave()
        self.abort()

    def _leave(self) -> None:
        address, self._admitted = self._admitted, None
        if address is not None:
            self._admission.closed(self)
            self._admission.leave(address)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def stop_reading(self) -> None:
        """Read no more bytes, for good: no `go_on` follows."""
        self._client.stop()

    def end_service(self) -> None:
        """Tell the client that the server shuts down, and close."""
        self._client.end(Reason.SERVER_SHUTTING_DOWN)

    def pause_reading(self) -> None:
        """Pause reading from the socket."""
        if self._transport is not None and not self._is_paused and not self._is_draining:
            self._is_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading from the socket."""
        if self._is_paused and self._transport is not None:
            self._is_paused = False
            if not self._transport.is_closing():
                self._transport.resume_reading()
