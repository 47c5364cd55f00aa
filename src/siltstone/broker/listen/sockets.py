"""The listeners of the broker: TCP, TLS, WebSocket and Unix sockets, opened and closed.

Invariants: a listener listens on all of its addresses or on none. It never replaces the socket file
of a running server, nor a file that is not a socket. The socket keeps listening while certificates
are replaced. The channel of a connection processes its bytes.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final, Protocol

from siltstone.broker.listen.tls import server_context
from siltstone.broker.listen.websocket import WebSocketProtocol, WebSocketRules
from siltstone.broker.settings.broker import Limits, ListenerSettings
from siltstone.errors import DiskError, NotFoundError, UsageError

# Large enough for many clients that connect at the same time. The kernel may apply a lower limit.
BACKLOG: Final = 4096

# One frame may contain many packets, so a small packet limit must not limit frames.
FRAME_SIZE_MIN: Final = 64 * 1024

# The event loops do not accept 0 as the timeout of the TLS shutdown.
_SHUTDOWN_TIMEOUT_MIN: Final = 0.1

_REASONS: Final = {
    errno.EADDRINUSE: "the address is in use, stop what listens there or choose another port",
    errno.EACCES: "permission denied, ports below 1024 are for privileged users",
    errno.EADDRNOTAVAIL: "this machine does not have the address",
}
_UNIX_REASONS: Final = {
    errno.EACCES: "permission denied for the socket file or its directory",
    errno.ENOENT: "the directory of the socket file does not exist",
}

MakeProtocol = Callable[[], asyncio.Protocol]


class SocketFiles(Protocol):
    """The file system calls that Unix sockets need."""

    def exists(self, path: PurePath) -> bool: ...

    def is_socket(self, path: PurePath) -> bool: ...

    def set_mode(self, path: PurePath, mode: int) -> None: ...

    def remove(self, path: PurePath) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Serving:
    """Accepts the connections of one listener."""

    loop: asyncio.AbstractEventLoop
    make_protocol: MakeProtocol
    is_unix: bool
    handshake_timeout: float
    shutdown_timeout: float

    async def start(
        self, sockets: Sequence[socket.socket], context: ssl.SSLContext | None
    ) -> list[asyncio.Server]:
        """Accept connections on the sockets; the servers own the sockets from now on."""
        servers: list[asyncio.Server] = []
        try:
            for sock in sockets:
                servers.append(await self._start_one(sock, context))  # noqa: PERF401 - see below
        except BaseException:
            # The list has the servers that were started before the error.
            _close(servers, sockets)
            raise
        return servers

    async def _start_one(
        self, sock: socket.socket, context: ssl.SSLContext | None
    ) -> asyncio.Server:
        if self.is_unix:
            return await self.loop.create_unix_server(
                self.make_protocol, sock=sock, backlog=BACKLOG
            )
        return await self.loop.create_server(
            self.make_protocol,
            sock=sock,
            backlog=BACKLOG,
            ssl=context,
            ssl_handshake_timeout=self.handshake_timeout if context else None,
            ssl_shutdown_timeout=self.shutdown_timeout if context else None,
        )


class _Doorkeeper(asyncio.Protocol):
    """The protocol of a TLS connection until its handshake is done; then the channel replaces it.

    The event loops create the protocol when they accept a connection, and do not call it if the
    handshake fails. A channel would never learn that its connection has ended.
    """

    def __init__(self, make_channel: MakeProtocol) -> None:
        self._make_channel = make_channel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        channel = self._make_channel()
        transport.set_protocol(channel)
        channel.connection_made(transport)


class Listener:
    """One open listener."""

    def __init__(
        self,
        settings: ListenerSettings,
        serving: _Serving,
        sockets: Sequence[socket.socket],
        servers: Sequence[asyncio.Server],
        fs: SocketFiles,
    ) -> None:
        self._settings = settings
        self._serving = serving
        self._sockets = sockets
        self._servers = servers
        self._fs = fs
        self._bound = [] if serving.is_unix else [sock.getsockname()[:2] for sock in sockets]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The bound addresses, in the form of `ListenerSettings.address`."""
        if self._serving.is_unix:
            return (self._settings.address,)
        return tuple(
            self._settings.model_copy(update={"host": host, "port": port}).address
            for host, port in self._bound
        )

    @property
    def port(self) -> int:
        """The port of the first address; 0 for a Unix socket."""
        return self._bound[0][1] if self._bound else 0

    async def reload(self) -> None:
        """Read the certificates again, for future connections.

        Raises: UsageError; the old certificates stay in use.
        """
        if not self._settings.secure or not self._servers:
            return
        context = server_context(self._settings)
        # A second descriptor of the same accept queue, so that no waiting connection is lost.
        sockets: list[socket.socket] = []
        try:
            for sock in self._sockets:
                sockets.append(sock.dup())  # noqa: PERF401 - closed on error
            servers = await self._serving.start(sockets, context)
        except OSError as exc:
            _close([], sockets)
            raise _refusal(self._settings, exc) from exc
        if not self._servers:  # Closed meanwhile.
            _close(servers, sockets)
            return
        _close(self._servers, self._sockets)
        self._sockets, self._servers = sockets, servers

    async def close(self) -> None:
        """Accept no more connections; open ones stay. A second call does nothing."""
        if self._serving.is_unix and self._servers:
            # Remove the file while the socket still listens. If it was removed later, another
            # server could find a dead file, replace it by its own, and lose it here.
            with suppress(NotFoundError):
                self._fs.remove(PurePath(self._settings.path))
        _close(self._servers, self._sockets)
        self._sockets, self._servers = [], []


async def open_listener(
    loop: asyncio.AbstractEventLoop,
    settings: ListenerSettings,
    make_channel: MakeProtocol,
    *,
    fs: SocketFiles,
    limits: Limits,
    drain_timeout: float,
) -> Listener:
    """Listen on the addresses of the settings; each connection gets its own channel.

    A channel is created when the handshakes of TLS and WebSocket are done. They must end within
    `limits.connect_timeout` after the accept.

    Raises: UsageError that names the listener and, if a file is the cause, the file.
    """
    serving = _Serving(
        loop=loop,
        make_protocol=_protocol_maker(loop, settings, make_channel, limits, drain_timeout),
        is_unix=settings.kind == "unix",
        handshake_timeout=limits.connect_timeout,
        shutdown_timeout=max(drain_timeout, _SHUTDOWN_TIMEOUT_MIN),
    )
    context = server_context(settings) if settings.secure else None
    try:
        if serving.is_unix:
            sockets = [_bind_unix(settings, fs)]
        else:
            sockets = await _bind_all(loop, settings)
        servers = await serving.start(sockets, context)
    except (DiskError, OSError) as exc:
        raise _refusal(settings, exc) from exc
    except ValueError as exc:
        # Python cannot encode the name, for example a host name with an empty label.
        raise UsageError(f"cannot listen on {settings.address}: invalid host name or path") from exc
    return Listener(settings, serving, sockets, servers, fs)


def _protocol_maker(
    loop: asyncio.AbstractEventLoop,
    settings: ListenerSettings,
    make_channel: MakeProtocol,
    limits: Limits,
    drain_timeout: float,
) -> MakeProtocol:
    if settings.kind == "tls":
        return lambda: _Doorkeeper(make_channel)
    if settings.kind not in {"ws", "wss"}:
        return make_channel
    rules = WebSocketRules(
        path=settings.url_path,
        handshake_timeout=limits.connect_timeout,
        drain_timeout=drain_timeout,
        frame_size_max=max(limits.packet_size_max, FRAME_SIZE_MIN),
    )
    return lambda: WebSocketProtocol(loop, make_channel, rules)


async def _bind_all(
    loop: asyncio.AbstractEventLoop, settings: ListenerSettings
) -> list[socket.socket]:
    """Return a listening socket for each address of the host."""
    host = settings.host or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")  # noqa: S104 - asked for
    found = await loop.getaddrinfo(
        host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        # The result may contain an address twice.
        for family, address in dict.fromkeys((family, address) for family, *_, address in found):
            sock = socket.create_server(
                address, family=family, backlog=BACKLOG, dualstack_ipv6=host == "::"
            )
            sockets.append(sock)
            # Accepted sockets inherit this option. asyncio would not set it, because it does not
            # recognize them as TCP.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError:
        _close([], sockets)
        raise
    return sockets


def _bind_unix(settings: ListenerSettings, fs: SocketFiles) -> socket.socket:
    """Return a listening Unix socket; a socket file without a running server is replaced."""
    path = PurePath(settings.path)
    if fs.is_socket(path):
        if _is_live(path):
            raise UsageError(
                f"cannot listen on {settings.address}: another server listens there; stop it or "
                f"choose another path: path={path}"
            )
        with suppress(NotFoundError):
            fs.remove(path)
    elif fs.exists(path):
        raise UsageError(
            f"cannot listen on {settings.address}: a file that is not a socket has this path; "
            f"choose another path: path={path}"
        )
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        # No client can connect before listen(), so the mode that bind() gave the file is harmless.
        fs.set_mode(path, settings.mode)
        sock.listen(BACKLOG)
    except (DiskError, OSError):
        sock.close()
        raise
    return sock


def _is_live(path: PurePath) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(str(path))
        except BlockingIOError:  # The queue of the server is full.
            return True
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        return True


def _close(servers: Sequence[asyncio.Server], sockets: Sequence[socket.socket]) -> None:
    for server in servers:
        server.close()
    for sock in sockets:
        sock.close()


def _refusal(settings: ListenerSettings, exc: DiskError | OSError) -> UsageError:
    if isinstance(exc, DiskError):
        reason = str(exc)
    elif isinstance(exc, socket.gaierror):
        reason = f"the host cannot be found: host={settings.host}"
    else:
        reasons = _UNIX_REASONS if settings.kind == "unix" else _REASONS
        reason = reasons.get(exc.errno or 0, "") or exc.strerror or str(exc)
    return UsageError(f"cannot listen on {settings.address}: {reason}")
