"""What a listener asks of the system, and what it says when it is refused; no socket is opened."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from pathlib import PurePath
from typing import Any, cast

import pytest

from siltstone.broker.listen import sockets as listeners
from siltstone.broker.listen.sockets import BACKLOG, Listener, open_listener
from siltstone.broker.listen.websocket import WebSocketProtocol
from siltstone.broker.settings.broker import Limits, ListenerSettings
from siltstone.errors import DiskError, NotFoundError, UsageError

Address = tuple[str, int]


class FakeSocket:
    """A socket that listens on nothing."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.options: list[tuple[int, int, int]] = []
        self.is_closed = False
        self.copies: list[FakeSocket] = []
        self.may_be_copied = True

    def dup(self) -> FakeSocket:
        if not self.may_be_copied:
            raise OSError(errno.EMFILE, "Too many open files")
        self.copies.append(FakeSocket(self.address))
        return self.copies[-1]

    def setsockopt(self, level: int, option: int, value: int) -> None:
        self.options.append((level, option, value))

    def getsockname(self) -> Address:
        host, port = self.address
        return host, port or 40_001

    def close(self) -> None:
        self.is_closed = True


class FakeServer:
    """A server that accepts nobody."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


class FakeLoop:
    """A loop whose hosts are its own; refused_at is the number of the server that fails."""

    def __init__(self, *hosts: str, refused_at: int = -1) -> None:
        self.hosts = hosts
        self.refused_at = refused_at
        self.servers: list[FakeServer] = []
        self.options: list[dict[str, object]] = []
        self.make_protocol: Callable[[], asyncio.Protocol] | None = None
        self.on_create: Callable[[], Awaitable[None]] | None = None

    def time(self) -> float:
        return 0.0

    async def getaddrinfo(self, host: str, port: int, **options: object) -> list[Any]:
        if not self.hosts:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(family_of(host), socket.SOCK_STREAM, 6, "", (host, port)) for host in self.hosts]

    async def create_server(
        self, make_protocol: Callable[[], asyncio.Protocol], **options: object
    ) -> FakeServer:
        if len(self.servers) == self.refused_at:
            raise OSError(errno.EMFILE, "Too many open files")
        if self.on_create is not None:
            await self.on_create()
        self.make_protocol = make_protocol
        self.options.append(options)
        self.servers.append(FakeServer())
        return self.servers[-1]


class FakeTransport(asyncio.Transport):
    """Remembers the protocol that it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.protocol: asyncio.BaseProtocol | None = None

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol


class Channel(asyncio.Protocol):
    """Remembers its transport."""

    def __init__(self) -> None:
        self.transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport


class SocketFiles:
    """A file system that holds one name, which may be a socket."""

    def __init__(self, name: str = "", *, is_socket: bool = False) -> None:
        self.name = PurePath(name)
        self.holds_socket = is_socket

    def exists(self, path: PurePath) -> bool:
        return path == self.name

    def is_socket(self, path: PurePath) -> bool:
        return self.holds_socket and self.exists(path)

    def set_mode(self, path: PurePath, mode: int) -> None:
        raise NotFoundError(f"no such file or directory: path={path}")

    def remove(self, path: PurePath) -> None:
        raise DiskError(path, "remove", "Operation not permitted", errno=errno.EPERM)


class Sockets:
    """Stands for `socket.create_server`: refused_at is the number of the socket that fails."""

    def __init__(self) -> None:
        self.opened: list[FakeSocket] = []
        self.options: list[dict[str, object]] = []
        self.refused_at = -1
        self.number = 0

    def __call__(self, address: Address, **options: object) -> FakeSocket:
        if len(self.opened) == self.refused_at:
            raise OSError(self.number, "what the system says")
        self.opened.append(FakeSocket(address))
        self.options.append(options)
        return self.opened[-1]


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> Sockets:
    fake = Sockets()
    monkeypatch.setattr(socket, "create_server", fake)
    return fake


def family_of(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def opened(
    loop: FakeLoop,
    settings: ListenerSettings,
    *,
    fs: SocketFiles | None = None,
    limits: Limits | None = None,
) -> Listener:
    return asyncio.run(
        open_listener(
            cast("asyncio.AbstractEventLoop", loop),
            settings,
            Channel,
            fs=fs or SocketFiles(),
            limits=limits or Limits(),
            drain_timeout=2.0,
        )
    )


def refusal(loop: FakeLoop, settings: ListenerSettings, *, fs: SocketFiles | None = None) -> str:
    with pytest.raises(UsageError) as refused:
        opened(loop, settings, fs=fs)
    return str(refused.value)


def test_tcp_is_without_delay_and_says_where_it_really_listens(sockets: Sockets) -> None:
    loop = FakeLoop("127.0.0.1")
    listener = opened(loop, ListenerSettings(port=0))
    assert listener.addresses == ("tcp://127.0.0.1:40001",)
    assert listener.port == 40_001
    (sock,) = sockets.opened
    assert sock.options == [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    assert sockets.options == [
        {"family": socket.AF_INET, "backlog": BACKLOG, "dualstack_ipv6": False}
    ]
    assert loop.options == [
        {
            "sock": sock,
            "backlog": BACKLOG,
            "ssl": None,
            "ssl_handshake_timeout": None,
            "ssl_shutdown_timeout": None,
        }
    ]
    assert loop.make_protocol is Channel
    asyncio.run(listener.reload())
    assert len(loop.servers) == 1
    asyncio.run(listener.close())
    assert (loop.servers[0].is_closed, sock.is_closed) == (True, True)


def test_every_address_of_the_host_is_listened_on_once(sockets: Sockets) -> None:
    loop = FakeLoop("127.0.0.1", "::1", "127.0.0.1")
    listener = opened(loop, ListenerSettings(host="localhost", port=1883))
    assert listener.addresses == ("tcp://127.0.0.1:1883", "tcp://[::1]:1883")


@pytest.mark.parametrize(("host", "both"), [("::", True), ("::1", False), ("127.0.0.1", False)])
def test_only_the_host_of_all_takes_ipv4_and_ipv6(sockets: Sockets, host: str, both: bool) -> None:
    opened(FakeLoop(host), ListenerSettings(host=host))
    assert [options["dualstack_ipv6"] for options in sockets.options] == [both]


@pytest.mark.parametrize(
    ("number", "reason"),
    [
        (
            errno.EADDRINUSE,
            "the address is in use, stop what listens there or choose another port",
        ),
        (errno.EACCES, "permission denied, ports below 1024 are for privileged users"),
        (errno.EADDRNOTAVAIL, "this machine does not have the address"),
        (errno.EAFNOSUPPORT, "what the system says"),
    ],
)
def test_a_refused_address_is_a_sentence_and_leaves_nothing_open(
    sockets: Sockets, number: int, reason: str
) -> None:
    sockets.refused_at, sockets.number = 1, number
    settings = ListenerSettings(host="localhost", port=1883)
    text = refusal(FakeLoop("127.0.0.1", "::1"), settings)
    assert text == f"cannot listen on tcp://localhost:1883: {reason}"
    assert [sock.is_closed for sock in sockets.opened] == [True]


def test_a_server_that_does_not_start_leaves_nothing_open(sockets: Sockets) -> None:
    loop = FakeLoop("127.0.0.1", "::1", refused_at=1)
    text = refusal(loop, ListenerSettings(host="localhost", port=1883))
    assert text == "cannot listen on tcp://localhost:1883: Too many open files"
    assert [server.is_closed for server in loop.servers] == [True]
    assert [sock.is_closed for sock in sockets.opened] == [True, True]


def test_a_host_that_is_not_known_is_named(sockets: Sockets) -> None:
    text = refusal(FakeLoop(), ListenerSettings(host="quarry", allow_anonymous=True))
    assert text == "cannot listen on tcp://quarry:1883: the host cannot be found: host=quarry"
    assert sockets.opened == []


def test_a_websocket_stands_before_the_channel(sockets: Sockets) -> None:
    loop = FakeLoop("127.0.0.1")
    listener = opened(loop, ListenerSettings(kind="ws", port=0, path="/broker"))
    assert listener.addresses == ("ws://127.0.0.1:40001/broker",)
    assert loop.make_protocol is not None
    assert type(loop.make_protocol()) is WebSocketProtocol


def test_certificates_are_read_before_anything_is_opened(sockets: Sockets) -> None:
    settings = ListenerSettings(kind="tls", certificate="/nowhere/c", key="/nowhere/k")
    text = refusal(FakeLoop("127.0.0.1"), settings)
    assert text == (
        "cannot listen on tls://127.0.0.1:1883: certificate cannot be read: "
        "No such file or directory: path=/nowhere/c"
    )
    assert sockets.opened == []


@pytest.fixture
def any_certificate(monkeypatch: pytest.MonkeyPatch) -> ListenerSettings:
    """Settings of a TLS listener, whose files are never looked at."""
    monkeypatch.setattr(listeners, "server_context", lambda settings: "context")
    return ListenerSettings(kind="tls", host="localhost", port=8883, certificate="c", key="k")


def test_tls_has_a_channel_once_it_has_shaken_hands(
    sockets: Sockets, any_certificate: ListenerSettings
) -> None:
    loop = FakeLoop("127.0.0.1")
    opened(loop, any_certificate)
    assert loop.options == [
        {
            "sock": sockets.opened[0],
            "backlog": BACKLOG,
            "ssl": "context",
            "ssl_handshake_timeout": 10.0,
            "ssl_shutdown_timeout": 2.0,
        }
    ]
    assert loop.make_protocol is not None
    protocol, transport = loop.make_protocol(), FakeTransport()
    assert not isinstance(protocol, Channel)
    protocol.connection_made(transport)
    assert isinstance(transport.protocol, Channel)
    assert transport.protocol.transport is transport


def test_a_reload_that_fails_changes_nothing_and_leaves_nothing_open(
    sockets: Sockets, any_certificate: ListenerSettings
) -> None:
    loop = FakeLoop("127.0.0.1", "::1")
    listener = opened(loop, any_certificate)
    first, second = sockets.opened
    second.may_be_copied = False
    with pytest.raises(UsageError) as refused:
        asyncio.run(listener.reload())
    assert str(refused.value) == "cannot listen on tls://localhost:8883: Too many open files"
    assert [copy.is_closed for copy in first.copies] == [True]
    assert [server.is_closed for server in loop.servers] == [False, False]
    assert (first.is_closed, second.is_closed) == (False, False)


def test_a_listener_that_is_closed_is_not_opened_by_a_reload(
    sockets: Sockets, any_certificate: ListenerSettings
) -> None:
    async def scenario() -> None:
        reloading = asyncio.create_task(listener.reload())
        loop.on_create = listener.close
        await reloading
        await listener.reload()

    loop = FakeLoop("127.0.0.1")
    listener = opened(loop, any_certificate)
    asyncio.run(scenario())
    assert [server.is_closed for server in loop.servers] == [True, True]
    (sock,) = sockets.opened
    assert [sock.is_closed, *(copy.is_closed for copy in sock.copies)] == [True, True]


def test_a_file_that_is_no_socket_is_not_replaced() -> None:
    settings = ListenerSettings(kind="unix", path="/data/messages")
    assert refusal(FakeLoop(), settings, fs=SocketFiles("/data/messages")) == (
        "cannot listen on unix:///data/messages: a file that is not a socket has this path; "
        "choose another path: path=/data/messages"
    )


def test_a_dead_socket_file_that_cannot_be_removed_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listeners, "_is_live", lambda path: False)
    settings = ListenerSettings(kind="unix", path="/run/s")
    assert refusal(FakeLoop(), settings, fs=SocketFiles("/run/s", is_socket=True)) == (
        "cannot listen on unix:///run/s: remove failed: Operation not permitted: "
        "path=/run/s errno=1"
    )
