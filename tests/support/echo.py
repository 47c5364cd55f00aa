"""Listeners with an echo instead of the broker's channel, and clients for it."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import ClassVar, cast

import pytest
import uvloop
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidHandshake
from websockets.typing import Subprotocol

from siltstone.broker.listen import sockets as listeners
from siltstone.broker.listen.sockets import Listener, open_listener
from siltstone.broker.listen.tls import certificate_user
from siltstone.broker.listen.websocket import WebSocketProtocol
from siltstone.broker.settings.broker import Limits, ListenerSettings
from siltstone.errors import UsageError
from siltstone.fs.posix import PosixFileSystem
from tests.support.certificates import CertificateFiles

MakeLoop = Callable[[], asyncio.AbstractEventLoop]

MQTT = Subprotocol("mqtt")
LOOPS: list[MakeLoop] = [asyncio.new_event_loop, uvloop.new_event_loop]
LOOP_NAMES = ["asyncio", "uvloop"]

# The timeout for waits that normally end at once.
PATIENCE_SECONDS = 10

# The errors of a client whose connection the server closes; the timing decides which one.
REFUSED = (ssl.SSLError, ConnectionError, asyncio.IncompleteReadError, InvalidHandshake)


class Connections:
    """Counts the connections of the server, so that a test can wait until there are none."""

    def __init__(self) -> None:
        self.echoes_made = 0
        self._count = 0
        self._none = asyncio.Event()

    def made(self) -> None:
        self._count += 1
        self._none.clear()

    def lost(self) -> None:
        self._count -= 1
        if self._count == 0:
            self._none.set()

    async def none(self) -> None:
        if self._count:
            await self._none.wait()


class Echo(asyncio.Protocol):
    """Sends back what it receives; answers b"who?" with the name in the client's certificate."""

    connections: ClassVar[Connections]

    def __init__(self) -> None:
        self.connections.echoes_made += 1
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.connections.made()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections.lost()

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if data == b"who?":
            user = certificate_user(self._transport.get_extra_info("peercert"))
            data = b"nobody" if user is None else user.encode()
        elif data == b"delay?":
            sock = self._transport.get_extra_info("socket")
            data = bytes([sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)])
        self._transport.write(data)


class CountedWebSocket(WebSocketProtocol):
    """Is counted from the accept on; the echo behind it is counted separately."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Echo.connections.made()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        Echo.connections.lost()


@contextmanager
def counted_runner(
    make_loop: MakeLoop, monkeypatch: pytest.MonkeyPatch
) -> Iterator[asyncio.Runner]:
    """Run on a new loop, and wait at the end until the server has no connection."""
    connections = Connections()
    monkeypatch.setattr(Echo, "connections", connections, raising=False)
    monkeypatch.setattr(listeners, "WebSocketProtocol", CountedWebSocket)
    with asyncio.Runner(loop_factory=make_loop) as runner:
        yield runner
        # Closing a loop does not close its connections.
        runner.run(asyncio.wait_for(connections.none(), PATIENCE_SECONDS))


@asynccontextmanager
async def listening(
    settings: ListenerSettings, limits: Limits | None = None
) -> AsyncIterator[Listener]:
    """Open a listener, and close it at the end."""
    listener = await open_listener(
        asyncio.get_running_loop(),
        settings,
        Echo,
        fs=PosixFileSystem(),
        limits=limits or Limits(),
        drain_timeout=2.0,
    )
    try:
        yield listener
    finally:
        await listener.close()


async def refusal(settings: ListenerSettings) -> str:
    """Return the error of a listener that cannot be opened."""
    with pytest.raises(UsageError) as refused:
        async with listening(settings):
            pass
    return str(refused.value)


async def echo(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, size: int = 0
) -> bytes:
    """Send data and return the answer, of the same or the given size."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        writer.write(data)
        await writer.drain()
        return await reader.readexactly(size or len(data))


async def ask(port: int, data: bytes, size: int, context: ssl.SSLContext | None = None) -> bytes:
    """Connect, send data, and return size bytes of the answer."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=context, server_hostname="localhost" if context else None
    )
    try:
        return await echo(reader, writer, data, size)
    finally:
        await closed(writer)


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


def websocket(address: str, context: ssl.SSLContext | None = None, path: str = "") -> connect:
    """Return the connection of a stock client, as a context manager."""
    return connect(
        address + path,
        subprotocols=[MQTT],
        ssl=context,
        server_hostname="localhost" if context else None,
        proxy=None,
    )


def tls_settings(files: CertificateFiles, *, kind: str = "tls", **more: object) -> ListenerSettings:
    """Return the settings of a listener with these files, on a free port."""
    return ListenerSettings.model_validate(
        {"kind": kind, "port": 0, "certificate": files.certificate, "key": files.key, **more}
    )
