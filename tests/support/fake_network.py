"""Connections in memory: a transport that records what is written, and a loop with a model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.support.model_server import ModelServer


class FakeTransport(asyncio.Transport):
    """Records what is written, or passes it to `answer` and its result back to the protocol.

    It pauses its protocol when `room` bytes were written since the last `take`.
    """

    def __init__(
        self,
        protocol: asyncio.Protocol,
        *,
        answer: Callable[[bytes], bytes] | None = None,
        room: int | None = None,
        half_closes: bool = True,
    ) -> None:
        super().__init__()
        self.written = bytearray()
        self.calls: list[str] = []
        self.buffered = 0
        self._protocol = protocol
        self._answer = answer
        self._room = room
        self._half_closes = half_closes
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview[int]) -> None:
        self.written += data
        if self._room is not None and len(self.written) >= self._room:
            self._protocol.pause_writing()
        if self._answer is not None and (reply := self._answer(bytes(data))):
            asyncio.get_running_loop().call_soon(self._protocol.data_received, reply)

    def take(self) -> bytes:
        """Return the bytes since the last call."""
        data = bytes(self.written)
        self.written.clear()
        return data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self.calls.append(f"limit {high}")

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def can_write_eof(self) -> bool:
        return self._half_closes

    def write_eof(self) -> None:
        self.calls.append("eof")
        if self._answer is not None:
            self.lose(None)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self.calls.append("close")
        self.lose(None)

    def abort(self) -> None:
        self.calls.append("abort")
        self.lose(None)

    def lose(self, error: Exception | None) -> None:
        """End the connection, as the other side or the network does."""
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, error)


class Network:
    """Replaces the sockets of a loop: connects to the server as scripted, then always."""

    def __init__(self, server: ModelServer, *script: Exception | None) -> None:
        self.server = server
        self.dialled: list[tuple[Any, ...]] = []
        self.transport: FakeTransport | None = None
        self.protocol: asyncio.Protocol | None = None
        self._script = list(script)

    def dial(self, make: Callable[[], asyncio.Protocol], *where: Any) -> Any:
        self.dialled.append(where)
        error = self._script.pop(0) if self._script else None
        if error is not None:
            raise error
        self.server.connect()
        self.protocol = protocol = make()
        self.transport = FakeTransport(protocol, answer=self.server.receive)
        protocol.connection_made(self.transport)
        return self.transport, protocol

    def send(self, data: bytes) -> None:
        """Send data to the client without a request."""
        assert self.protocol is not None
        self.protocol.data_received(data)

    def cut(self) -> None:
        """Lose the connection."""
        assert self.transport is not None
        self.transport.lose(ConnectionResetError(104, "Connection reset by peer"))


class Loop(asyncio.SelectorEventLoop):
    """A loop whose connections lead to a model."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self._network = network

    async def create_connection(self, make: Any, host: Any, port: Any, *, ssl: Any) -> Any:  # type: ignore[override]
        return self._network.dial(make, host, port, ssl)

    async def create_unix_connection(self, make: Any, path: Any) -> Any:  # type: ignore[override]
        return self._network.dial(make, path)
